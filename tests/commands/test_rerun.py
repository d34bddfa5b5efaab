"""`fedmpi verify RUN` repeats a finished run and compares digests and losses."""
from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmpi.comm.transport import Solo
from fedmpi.commands import rerun
from fedmpi.errors import BadInput
from fedmpi.storage import run_status
from tests.forked import call
from tests.runs import run_alone

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    """The folder of a finished run of three rounds, of which the last two were evaluated."""
    folder = tmp_path_factory.mktemp("rerun") / "run"
    words = ["rounds=3", "evaluate.every=2", f"data.cache={cache}", "checkpoint.every=1"]
    assert run_alone(str(ROOT / "configs/quickstart.yaml"), words, str(folder)) == 0
    return folder


@pytest.fixture
def edited(run, tmp_path):
    """A copy of the run, whose files a test may change."""
    shutil.copytree(run, tmp_path / "edited", ignore=shutil.ignore_patterns("checkpoints"))
    return tmp_path / "edited"


def claim(run, digest="0" * 64, **losses):
    """Change the digest that a run reports, and multiply losses of rounds, which are named as in `round_3`."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if "loss" in line:
            line["loss"] *= losses.get(f"round_{line['round']}", 1)
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"digest": digest}))


@pytest.mark.slow("repeats runs on forked ranks")
def test_a_run_is_repeated_on_any_number_of_ranks(run, tmp_path, capsys, monkeypatch):
    # The path of a run may be longer than a line.
    monkeypatch.setenv("COLUMNS", "300")
    assert rerun.rerun(Solo(), run, str(tmp_path)) == 0
    said = capsys.readouterr().out
    digest = json.loads((run / "result.json").read_text())["digest"]
    assert re.search(rf"there +{digest[:16]}, .*run\nhere +{digest[:16]}\n", said)
    assert "the same digest: this machine computes the final states of the run bit for bit" in said
    assert not list(tmp_path.iterdir())
    done = call(3, lambda: exit(rerun.rerun_command(run, str(tmp_path), False)), cwd=ROOT)
    assert done.returncode == 0 and "the same digest" in done.stdout, done.stderr


def test_a_run_that_ended_early_is_repeated_with_its_rates(tmp_path, cache, capsys):
    """A cosine depends on the rounds that the run was to have."""
    words = ["rounds=30", f"data.cache={cache}", "train.schedule=cosine", "train.lr=0.5", "stop.patience=1",
             "data.split=[0.6,0.2,0.2]"]
    assert run_alone(str(ROOT / "configs/quickstart.yaml"), words, str(tmp_path / "run")) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] < 30
    capsys.readouterr()
    (tmp_path / "place").mkdir()
    assert rerun.rerun(Solo(), tmp_path / "run", str(tmp_path / "place")) == 0
    assert "the same digest" in capsys.readouterr().out


@pytest.mark.parametrize("claimed, code, said", [
    ({}, 0, r"losses that agree within rounding in 2 evaluated rounds \(at most 0e.00 apart\)"),
    ({"round_2": 1.0005}, 0, r"agree within rounding in 2 evaluated rounds \(at most 5e-04 apart\)"),
    ({"round_2": 1.0009}, 0, r"agree within rounding in 2 evaluated rounds \(at most 9e-04 apart\)"),
    ({"round_2": 1.0012}, 1, "WRONG: in round 2 the losses are 1e-03 apart; settings, data or code are others"),
    ({"round_2": 1.1}, 1, "WRONG: in round 2 the losses are 9e-02 apart; settings, data or code are others"),
    ({"round_3": 1.1}, 1, "WRONG: in round 3 the losses are 9e-02 apart; in round 2 only 0e.00. Either the code is")])
def test_another_digest_is_judged_by_the_losses_of_all_rounds(claimed, code, said, edited, tmp_path, capsys):
    claim(edited, **claimed)
    assert rerun.rerun(Solo(), edited, str(tmp_path)) == code
    assert re.search(said, capsys.readouterr().out)


def test_the_same_digest_with_other_losses_is_another_evaluation(edited, tmp_path, capsys):
    """The digest is of the final states alone. A loss that is no number cannot be compared."""
    digest = json.loads((edited / "result.json").read_text())["digest"]
    for claimed, code, said in (
            ({"round_3": 1.1}, 1, "WRONG: the same digest, but in round 3 the losses are 9e-02 apart: the evaluation"),
            ({"round_3": 1 / 1.1 + 1e-4}, 0, "the same digest: this machine computes the final states "),
            ({"round_2": math.inf}, 0, "the same digest: this machine")):
        claim(edited, digest, **claimed)
        assert rerun.rerun(Solo(), edited, str(tmp_path)) == code
        assert said in capsys.readouterr().out


@pytest.fixture
def own(tmp_path, cache, monkeypatch):
    """The folder of a finished run whose data, and who takes part, are in files that it names by relative paths."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    rng = np.random.default_rng(1)
    save_data(x_train=rng.random((90, 6), np.float32), y_train=np.arange(90) % 3,
              x_test=rng.random((30, 6), np.float32), y_test=np.arange(30) % 3)
    Path("away.csv").write_text("client,begin,end\n0,1,9\n1,1,9\n2,1,1\n")
    config = {"rounds": 2, "data": {"name": "arrays", "file": "mine.npz", "clients": 3, "cache": str(cache)},
              "model": {"name": "mlp", "hidden": 4}, "availability": {"unit": "rounds", "file": "away.csv"}}
    Path("c.yaml").write_text(json.dumps(config))
    assert run_alone("c.yaml", [], str(tmp_path / "own")) == 0
    return tmp_path / "own"


def save_data(**changed):
    """Write mine.npz with these arrays, and with those that it had."""
    held = dict(np.load("mine.npz")) if Path("mine.npz").exists() else {}
    np.savez("mine.npz", **(held | changed))


def test_a_run_on_data_that_were_changed_since_is_not_repeated(own, tmp_path, capsys):
    """One test target: the final states, and so the digest, are the same."""
    (place := tmp_path / "place").mkdir()
    assert rerun.rerun(Solo(), own, str(place)) == 0
    assert "the same digest: this machine" in capsys.readouterr().out
    then = np.load("mine.npz")["y_test"]
    save_data(y_test=np.r_[(then[0] + 1) % 3, then[1:]])
    with pytest.raises(BadInput) as caught:
        rerun.rerun(Solo(), own, str(place))
    assert str(caught.value) == (
        f"the data have changed since {own} was finished (or what reads and divides them): its clients held other "
        "samples, so a repetition says nothing of this machine; put back what data.file = mine.npz held then, or "
        f"change to the folder in which the run was started, not {Path.cwd()}")
    save_data(y_test=then)
    Path("away.csv").write_text(Path("away.csv").read_text() + "\n")
    with pytest.raises(BadInput, match=f"^availability.file = away.csv has changed since {own} was finished; put back"):
        rerun.rerun(Solo(), own, str(place))
    # runs of older versions have neither
    result = json.loads((own / "result.json").read_text())
    (own / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k not in ("federation", "files")}))
    assert rerun.rerun(Solo(), own, str(place)) == 0 and not list(place.iterdir())


@pytest.mark.parametrize("lost", ["data.file = mine.npz", "availability.file = away.csv", "model.start = w.h5"])
def test_from_another_folder_the_remedy_is_to_change_to_that_of_the_run(own, tmp_path, monkeypatch, lost):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    if "start" in lost:
        shutil.copy(own / "checkpoints" / "round-000002.h5", "w.h5")
        own = tmp_path / "started"
        assert run_alone("c.yaml", ["model.start=w.h5"], str(own)) == 0
    if "mine" not in lost:
        shutil.copy("mine.npz", elsewhere)
    monkeypatch.chdir(elsewhere)
    with pytest.raises(BadInput) as caught:
        rerun.rerun(Solo(), own, ".")
    assert str(caught.value) == (
        f"{lost}: not found from {elsewhere}, for the run has this path from the folder in which it was started; "
        "change to that folder (in Python by os.chdir) and try again")
    monkeypatch.chdir(tmp_path / "here")
    assert rerun.rerun(Solo(), own, "..") == 0


def test_a_repetition_that_is_refused_is_bad_input(edited, tmp_path, capfd):
    given = run_status.read_settings(edited)
    (edited / "config.yaml").write_text(json.dumps(given | {"server": given["server"] | {"aggregation": "median"}}))
    with pytest.raises(BadInput, match="run again of the verification was refused; what to do about it stands above"):
        rerun.rerun(Solo(), edited, str(tmp_path))
    assert "fedmpi: server.aggregation = median" in capfd.readouterr().err


def test_a_run_without_settings_of_its_data_is_compared_or_refused(edited, tmp_path, monkeypatch):
    given, seen = run_status.read_settings(edited), []
    monkeypatch.setattr(rerun, "perform", lambda world, place, name, words: seen.append(
        json.loads((place / "config.yaml").read_text())) or sys.exit(9))
    (edited / "config.yaml").write_text(json.dumps({name: given[name] for name in given if name != "data"}))
    result = json.loads((edited / "result.json").read_text())
    (edited / "result.json").write_text(json.dumps({name: result[name] for name in result if name != "federation"}))
    with pytest.raises(SystemExit):
        rerun.rerun(Solo(), edited, str(tmp_path))
    assert list(seen[0]["data"]) == ["cache"] and seen[0]["seed"] == given["seed"]
    (edited / "config.yaml").write_text("data: [1, 2]\n")
    with pytest.raises(BadInput, match="config.yaml is damaged: data holds no settings"):
        rerun.rerun(Solo(), edited, str(tmp_path))


def test_a_run_that_is_not_finished_cannot_be_verified(edited, tmp_path):
    (edited / "result.json").unlink()
    with pytest.raises(BadInput, match="edited is unfinished: there is no digest to compare; finish it with --resume"):
        rerun.rerun(Solo(), edited, str(tmp_path))
    with pytest.raises(BadInput, match="none is not the folder of a run"):
        rerun.rerun(Solo(), tmp_path / "none", str(tmp_path))
    with pytest.raises(BadInput, match="--add publishes what fedmpi verify runs by itself, not RUN"):
        rerun.rerun(Solo(), edited, str(tmp_path), add=True)
    assert [path.name for path in tmp_path.iterdir()] == ["edited"]
