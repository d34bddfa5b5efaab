"""The state of a run, from its folder and what its job printed."""
from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedmpi.errors import BadInput
from fedmpi.json_values import flatten_settings
from fedmpi.storage import run_status
from fedmpi.storage.job_log import find_job_log
from fedmpi.storage.older_versions import add_missing_settings

LINE = {"round": 2, "accuracy_mean": .5}
START = "job 7: start 1 on n1: c.yaml seed=1\n"


@pytest.mark.parametrize("printed, lines, result, state, said", [
    (None, 0, None, "waiting", ""),
    (START, 0, None, "unfinished", "start 1 on n1: c.yaml seed=1"),
    (None, 1, None, "unfinished", ""),
    (START + "job 7: stopped with code 75 and starts again\n", 1, None, "unfinished", "stopped with code 75 and"),
    (START + "job 7: ended with code 75, cut short by Slurm\n", 1, None, "unfinished", "ended with code 75"),
    (START + "fedmpi: client 3: x\njob 7: ended with code 1\n", 1, None, "failed", "fedmpi: client 3: x"),
    (START + "job 7: ended with code -9\n", 1, None, "failed", "ended with code -9"),
    (START + "fedmpi: of old\njob 7: ended with code 1\n" + START, 1, None, "unfinished", "start 1 on"),
    (START + "job 7: ended with code 0\n", 1, 2, "finished", "ended with code 0"),
    (START + "job 7: ended with code 0\n", 1, 1, "unfinished", "ended with code 0")])
def test_the_state_of_a_run(tmp_path, printed, lines, result, state, said):
    """In the last case more rounds are asked for than its result has."""
    folder = tmp_path / "r"
    folder.mkdir()
    if printed:
        (tmp_path / "r.txt").write_text(printed)
    (folder / "metrics.jsonl").write_text((json.dumps(LINE) + "\n") * lines + '{"round": 3, "accur')
    if result:
        (folder / "result.json").write_text(json.dumps({"rounds": result, "accuracy_mean": .5, "digest": "ab"}))
    found = run_status.read_outcome(folder, rounds=2)
    assert found.state == state and found.said.startswith(said) and bool(said) == bool(found.said)
    assert (found.round, len(found.lines)) == ((2, 1) if lines else (0, 0))
    assert (found.starts, found.settings) == ((printed.count("start 1 on"), "seed=1") if printed else (0, ""))


@pytest.mark.parametrize("text", [
    "{", "[]", "5", "null", '{"rounds": 3}', '{"rounds": "x", "accuracy_mean": 1, "digest": "d"}',
    '{"rounds": 3, "accuracy_mean": 1, "digest": "d", "steps_so_far": {"main": "x"}}',
    '{"rounds": 3, "accuracy_mean": 1, "digest": 5}', '{"rounds": 3, "accuracy_mean": "x", "digest": "d"}',
    '[' * 100_000], ids=range(10))
def test_a_damaged_result_is_named_and_its_run_has_failed(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(BadInput, match="result.json is damaged .* put a copy of it back, .* no checkpoint is left"):
        run_status.read_result(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/round-000003.h5").touch()
    with pytest.raises(BadInput, match="result.json is damaged .* remove it, and continue the run with --resume auto"):
        run_status.read_result(tmp_path)
    found = run_status.read_outcome(tmp_path)
    assert (found.state, found.result) == ("failed", None)
    assert found.said.startswith(f"{tmp_path}/result.json is damaged")
    assert str(found) == found.said


def test_a_result_that_may_not_be_read_is_not_damaged(tmp_path, monkeypatch):
    """Root may read every file, so the answer of the system is made up."""
    (tmp_path / "result.json").write_text("{}")

    def refuse(path):
        raise PermissionError(13, "Permission denied")
    monkeypatch.setattr(run_status, "open_regular", refuse)
    with pytest.raises(BadInput, match=r"result.json cannot be read \(Permission denied\); give this user the right"):
        run_status.read_result(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/nowhere/at/all", path)])
def test_what_is_no_file_is_named_without_waiting(tmp_path, make):
    for name in ("result.json", "metrics.jsonl"):
        make(tmp_path / name)
    found = run_status.read_outcome(tmp_path)
    assert found.state == "failed" and "result.json is damaged" in found.said and found.lines == []


@pytest.mark.parametrize("bad", ["5", "{}", '{"round": "x"}', "[1]", '{"round": 3, "accuracy_mean": "x"}', '{"rou',
                                 "[" * 100_000, '{"round": 3, "participants": {"": ""}}', '{"round": 3, "seconds": []}',
                                 '{"round": 3, "lam_mean": "x"}', '{"round": 3, "cluster_sizes_all": [1, "x"]}'],
                         ids=range(11))
def test_rounds_are_read_up_to_a_damaged_line(tmp_path, bad):
    (tmp_path / "metrics.jsonl").write_text(
        '{"round": 1}\n{"round": 2, "accuracy_mean": null}\n' + bad + '\n{"round": 4}\n')
    assert [line["round"] for line in run_status.read_metrics(tmp_path)] == [1, 2]


def test_settings_that_differ():
    a, b = {"x": {"y": 1, "z": [1]}, "w": 2}, {"x": {"y": 3, "z": [1]}, "v": None, "w": 2}
    assert run_status.find_differences([a, b]) == {"x.y": [1, 3]}
    assert run_status.find_differences([a, b | {"x": {}}]) == {"x.y": [1, None], "x.z": [[1], None]}


@pytest.mark.parametrize("said, blamed", [
    ("fedmpi: rank 1: first\nfedmpi: second\n", "fedmpi: rank 1: first"),
    ("3: fedmpi: as srun --label says it\n", "fedmpi: as srun --label says it"),
    ("srun: error: n1: task 0: Killed\nslurmstepd: error: out of memory\n", "n1: task 0: Killed"),
    ("slurmstepd: error: out of memory\nfedmpi: ours comes first\n", "fedmpi: ours comes first"),
    ("x fedmpi: in the middle of a line\nsrun: information\n", "ended with code 1")])
def test_who_is_blamed(tmp_path, said, blamed):
    (tmp_path / "r").mkdir()
    (tmp_path / "r.txt").write_text("fedmpi: of an earlier start\n" + START + said + "job 7: ended with code 1\n")
    found = run_status.read_outcome(tmp_path / "r")
    assert (found.state, found.said, str(found)) == ("failed", blamed, blamed)


def test_a_waiting_run_and_one_with_nothing_but_a_checkpoint(tmp_path):
    folder = tmp_path / "r"
    found = run_status.read_outcome(folder)
    assert (found.state, found.round, found.starts, found.settings, str(found)) == ("waiting", 0, 0, "", "")
    assert np.isnan(found.accuracy)
    (folder / "checkpoints").mkdir(parents=True)
    assert run_status.read_outcome(folder).state == "waiting"
    (folder / "checkpoints" / "round-000001.h5").touch()
    assert run_status.read_outcome(folder).state == "unfinished"


def test_what_a_job_printed_and_nobody_may_read(tmp_path, monkeypatch):
    (tmp_path / "r.txt").write_text(START + "job 7: ended with code 1\n")

    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr(Path, "read_text", refuse)
    found = run_status.read_outcome(tmp_path / "r")
    assert (found.state, found.starts) == ("waiting", 0)
    assert found.said == f"{tmp_path}/r.txt cannot be read: Permission denied"


def test_the_settings_are_those_of_the_last_start(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r.txt").write_text(START + "job 7: start 2 on n2: c.yaml\njob 7: start 13 on n1: c.yaml a=1 b=[2, 3]\n"
                                    "no job 7: start 14 on n9: c.yaml lies=1\n")
    found = run_status.read_outcome(tmp_path / "r")
    assert (found.starts, found.settings, found.said) == (3, "a=1 b=[2, 3]", "start 13 on n1: c.yaml a=1 b=[2, 3]")
    assert find_job_log(tmp_path / "r") == tmp_path / "r.txt"


@pytest.mark.parametrize("config", [
    "c.yaml", "my\\ project/c.yaml", "'my project/c.yaml'",
    """'it'"'"'s a.yaml'""", "$'a\\' b.yaml'", "it\\'s\\ a.yaml"])
def test_a_configuration_of_several_words_is_none_of_the_settings(tmp_path, config):
    (tmp_path / "r.txt").write_text(f"job 7: start 1 on n1: {config} a=1 b='x y'\n")
    assert run_status.read_outcome(tmp_path / "r").settings == "a=1 b='x y'"


def test_a_run_is_found_by_whoever_stands_in_its_folder(tmp_path, monkeypatch):
    (tmp_path / "r" / "checkpoints").mkdir(parents=True)
    (tmp_path / "r.txt").write_text(START)
    monkeypatch.chdir(tmp_path / "r")
    for folder in (".", "../r", "checkpoints/.."):
        assert run_status.read_outcome(Path(folder)).starts == 1
    assert find_job_log(Path("/")) == Path("/.txt")


@pytest.mark.parametrize("code, state", [(0, "unfinished"), (75, "unfinished"), (1, "failed"), (2, "failed"),
                                         (-15, "failed"), (175, "failed")])
def test_codes_of_ends(tmp_path, code, state):
    (tmp_path / "r").mkdir()
    (tmp_path / "r.txt").write_text(START + f"job 7: ended with code {code}, why\n")
    assert run_status.read_outcome(tmp_path / "r").state == state


@pytest.mark.parametrize("rounds, state", [(4, "finished"), (5, "finished"), (6, "unfinished")])
def test_a_result_of_enough_rounds_is_finished(tmp_path, rounds, state):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"round": 5, "accuracy_mean": None}) + "\n")
    result = {"rounds": 5, "accuracy_mean": .98765, "digest": "0123456789abcdef01"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    found = run_status.read_outcome(tmp_path, rounds)
    assert found.state == state and found.round == 5 and np.isnan(found.accuracy)
    if state == "finished":
        assert str(found) == "accuracy 98.77 % after 5 rounds, digest 0123456789abcdef"


def test_only_whole_lines_count(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round": 1}\n{"round": 2}\n{"rou\xff')
    assert run_status.read_metrics(tmp_path) == [{"round": 1}, {"round": 2}]
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\nbad\n{"round": 3}\n')
    assert run_status.read_metrics(tmp_path) == [{"round": 1}] and run_status.read_metrics(tmp_path / "none") == []


def test_a_folder_without_settings_is_no_run(tmp_path):
    with pytest.raises(BadInput, match=f"{tmp_path} is not the folder of a run: config.yaml cannot be read "
                                       ".FileNotFoundError.; give the folder that `fedmpi run` names"):
        run_status.read_settings(tmp_path)
    (tmp_path / "config.yaml").write_text("- 1\n")
    with pytest.raises(BadInput, match="config.yaml is damaged: it holds no settings"):
        run_status.read_settings(tmp_path)
    (tmp_path / "config.yaml").write_text("train: {lr: 1e-3}\nseed: 2\n")
    settings = run_status.read_settings(tmp_path)
    found = flatten_settings(settings)
    # Settings that came later get the values that stand for what was done then.
    assert (found["train.lr"], found["seed"], found["train.optimizer"]) == (.001, 2, "sgd")
    assert {key.partition(".")[0] for key in found} == {"train", "seed", "availability", "stragglers"}


def test_settings_of_several_runs():
    runs = [{"a": 1, "b": {"c": 1}}, {"a": 1, "b": {"c": 1}}, {"a": 1, "b": {"c": 2, "d": 0}}]
    assert run_status.find_differences(runs) == {"b.c": [1, 1, 2], "b.d": [None, None, 0]}
    assert run_status.find_differences(runs[:2]) == {} and run_status.find_differences(runs[:1]) == {}


def test_a_natural_partition_of_before_keeps_the_parts_of_the_data():
    def complete(partition):
        return add_missing_settings({"data": {"partition": partition}})["data"]["partition"]
    assert complete({"name": "natural"}) == {"name": "natural", "split": "given"}
    assert complete({"name": "natural", "split": "drawn"}) == {"name": "natural", "split": "drawn"}
    assert complete({"name": "iid"}) == {"name": "iid"} and complete("natural") == "natural"
    assert add_missing_settings({"data": "odd"})["data"] == "odd"
