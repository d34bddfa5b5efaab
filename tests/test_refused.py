"""Whatever cannot be run is refused before anything starts: code 2 and one message, on any number of ranks."""
from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

import fedmpi


@pytest.fixture
def refusal(bench, capsys):
    """Run in this process, which is refused; return the message."""
    def refusal(name, *overrides, resume=None) -> str:
        assert bench.lead(name, *overrides, resume=resume) == 2
        out, error = capsys.readouterr()
        assert error.startswith("fedmpi: ") and error.count("fedmpi: ") == 1 and "Traceback" not in error + out
        return error.removeprefix("fedmpi: ").strip()
    return refusal


@pytest.mark.parametrize("setting, message", [
    ("method.lamda=1", "method.lamda is not a setting of FedMHC; its settings are M, lam, anchor, mini_batch"),
    ("method=fedmch", "method 'fedmch' is not known"),
    ("data.clients=5000", "data.clients = 5000: the data set has only 719 samples"),
    ("data.partition={name: dirichlet, beta: 1e-3, smallest: 70, tries: 20}", "the smallest client never had 70"),
    ("data.partition={name: pathological, classes_per_client: 11}", "the data set has 10 classes"),
    ("data={name: arrays, file: /nowhere/x.npz}", "/nowhere/x.npz"),
    ("model=cnn4", "cnn4 needs images of at least 16 x 16"),
    pytest.param("device=cuda", "device = cuda, but PyTorch sees no GPU",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"))])
def test_bad_input(refusal, bench, setting, message):
    assert message in refusal("bad", setting)
    assert not bench.out("bad").exists()


@pytest.mark.parametrize("setting, message", [
    ("method={}", r"^command line: method: method 'm+\.\.\.m+' is not known; there are cfl, "),
    ("model={}", r"^command line: model: model 'm+\.\.\.m+' is not known; there are cnn4, "),
    ("data.name={}:m", r"^dataset 'm+\.\.\.m+.*; it must be installed or lie in ")])
def test_a_name_of_5000_letters_is_shortened(refusal, setting, message):
    said = refusal("long", setting.format("m" * 5000))
    assert re.search(message, said) and len(said) < 900


def test_all_ranks_leave_with_the_same_code_and_one_message(bench, warm):
    done = bench.mpirun(2, "bad-2", "method.lamda=1", python=warm)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedmpi: command line: method.lamda is not a setting of FedMHC")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_only_workers_can_see_is_said_once_too(bench):
    done = bench.run(3, "no-gpu", "device=cuda")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert "device = cuda, but PyTorch sees no GPU" in line and "rank" in line


@pytest.fixture
def finished(bench):
    """A copy of a finished run, which a test may damage."""
    bench.straight(3)

    def copy(name):
        shutil.copytree(bench.out("straight-3"), bench.out(name), dirs_exist_ok=False)
        return bench.out(name)
    return copy


def damage(path):
    """Flip a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_a_folder_already_used(finished, refusal):
    finished("used")
    assert "already holds a run; continue it with --resume auto" in refusal("used")


def test_a_checkpoint_of_other_settings(finished, refusal):
    finished("others")
    message = refusal("others", "method.lam=0.7", "seed=9", "rounds=5", resume="auto")
    assert "method.lam is 0.1 in the checkpoint and 0.7 now" in message and "seed is 2 in" in message
    assert "rounds" not in message.replace("rounds back", "")


def test_rounds_of_other_settings_are_not_overwritten(finished, refusal):
    """The other run was killed before its first checkpoint, say."""
    folder = finished("unsaved")
    shutil.rmtree(folder / "checkpoints")
    (folder / "result.json").unlink()
    kept = {name: (folder / name).read_bytes() for name in ("config.yaml", "metrics.jsonl", "history.h5")}
    message = refusal("unsaved", "method.lam=0.7", "rounds=5", resume="auto")
    assert f"{folder} holds rounds of another run, which has saved no checkpoint:\n  method.lam is 0.1 there and 0.7 " \
           "now\nset these back" in message
    assert {name: (folder / name).read_bytes() for name in kept} == kept


def test_a_result_whose_checkpoints_were_deleted_stays(finished, bench, refusal, capsys):
    """To save space, say. What was asked for is there, and more rounds would begin with the first one."""
    folder = finished("bare")
    shutil.rmtree(folder / "checkpoints")
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    for rounds in (3, 2):
        assert bench.lead("bare", f"rounds={rounds}", resume="auto") == 0
        assert capsys.readouterr() == (f"{folder} is finished already, in round 3\n", "")
    assert fedmpi.run(bench.config, out=folder, resume="auto", quiet=True).digest == bench.straight(3)
    assert refusal("bare", "rounds=5", resume="auto") == (
        f"{folder} has a result of round 3, but no checkpoint from which it could go on; start a new run with "
        "another --out")
    assert "method.lam is 0.1 there and 0.7 now" in refusal("bare", "method.lam=0.7", resume="auto")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == kept
    result = bench.result("bare")
    (folder / "result.json").write_text(json.dumps(result | {"ended": "stop"}))
    assert bench.lead("bare", "rounds=5", resume="auto") == 0
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("stop: null", "stop: {patience: 9}"))
    assert "no checkpoint from which" in refusal("bare", "rounds=5", resume="auto")
    config.unlink()
    assert "config.yaml cannot be read" in refusal("bare", resume="auto")
    assert bench.result("bare")["digest"] == result["digest"]


def test_a_run_without_a_checkpoint_begins_anew(finished, bench):
    folder = finished("anew")
    shutil.rmtree(folder / "checkpoints")
    (folder / "result.json").unlink()
    assert bench.lead("anew", resume="auto") == 0
    assert bench.result("anew")["digest"] == bench.straight(3)


def test_a_checkpoint_that_is_not_there(refusal, bench, tmp_path):
    assert f"{tmp_path}/none.h5" in refusal("fresh-1", resume=f"{tmp_path}/none.h5")
    assert "is a folder" in refusal("fresh-2", resume=str(tmp_path))


def test_a_damaged_checkpoint_gives_way_to_the_one_before(finished, bench, capsys):
    folder = finished("damaged")
    newest, before = sorted(folder.glob("checkpoints/round-*.h5"))[:-3:-1]
    damage(newest)
    assert bench.lead("damaged", "rounds=4", resume="auto") == 0
    said = capsys.readouterr().out
    assert f"continuing after round 2 from {before}" in said
    assert "refused" in said and newest.name in said
    assert bench.result("damaged")["digest"] == bench.straight(4)


def test_no_good_checkpoint_is_not_a_fresh_start(finished, refusal):
    for path in finished("all-damaged").glob("checkpoints/round-*.h5"):
        damage(path)
    message = refusal("all-damaged", resume="auto")
    assert "no checkpoint in" in message and "start a new run with another --out" in message


def test_a_finished_run_has_nothing_to_continue(finished, refusal):
    finished("shorter")
    assert "rounds = 2: nothing to do" in refusal("shorter", "rounds=2", resume="auto")


def test_a_broken_federation_is_made_again(bench, tmp_path, capsys):
    assert bench.lead("first", f"data.cache={tmp_path}") == 0
    (path,) = tmp_path.glob("*.h5")
    path.write_bytes(path.read_bytes()[:5000])
    assert bench.lead("again", f"data.cache={tmp_path}") == 0
    assert bench.result("again")["digest"] == bench.result("first")["digest"]


def test_damaged_samples_are_never_trained_on(bench, tmp_path):
    assert bench.lead("before", f"data.cache={tmp_path}") == 0
    (path,) = tmp_path.glob("*.h5")
    damage(path)
    done = bench.run(2, "after", f"data.cache={tmp_path}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert str(path) in line and "delete it" in line
