"""Sweeps by the real command: a stop in the middle and its continuation, other jobs' folders, a terminal.

test_local.py tests runs that fail, or that another process has under way."""
from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands.summary import summarise_runs
from fedmpi.config import schema
from fedmpi.errors import BadInput
from fedmpi.sweeps import job, local
from fedmpi.sweeps.changed_code import mark_runs
from tests import launch
from tests.report import made
from tests.runs import run_alone
from tests.sweeps import jobs

ROWS = {"FedAvg": "fedavg", "Local": "local"}
ONE = {"one": {}}
GPUS = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def sweep(tmp_path, cache, warm):
    """Start a sweep of the small job, in its folder."""
    started = []

    def start(*words, **changed):
        started.append(launch.start(1, "-m", "fedmpi", "sweep", jobs.write(tmp_path, cache, **changed),
                                    "--out", tmp_path / "out", *words, cwd=tmp_path, python=warm))
        return started[-1]
    yield start
    for one in started:
        launch.end(one)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_cut_short_in_the_middle_it_continues(sweep, tmp_path, monkeypatch, how):
    """The first run is finished and the second half done when the sweep is stopped, or killed with all its runs."""
    def go(rounds: int):
        rows = {"FedAvg": "fedavg", "Local": {"method": "local", "rounds": rounds}}
        return sweep(rows=rows, columns=ONE, published={}, seeds=[0])
    started, out = go(100_000), tmp_path / "out/local/one"
    metrics = out / "seed-0/metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert started.poll() is None, started.stderr.read()
        time.sleep(.05)
    if how == "killed":
        launch.end(started)
        started.communicate()
    else:
        started.send_signal(signal.SIGTERM)
        done = launch.finish(started)
        assert done.returncode == 75, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "1 of 2 runs finished, 1 left: the same command continues"
    saved = (out / "seed-0/checkpoints").glob("round-*.h5")
    rounds = max(int(path.stem.removeprefix("round-")) for path in saved) + 1
    done = launch.finish(go(rounds))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "1 of 2 runs are finished already"
    assert f"continuing after round {rounds - 1}" in (out / "seed-0.txt").read_text()
    result = json.loads((out / "seed-0/result.json").read_text())
    assert result["rounds"] == rounds and result["digest"] == straight_digest(tmp_path, rounds)
    monkeypatch.setenv("COLUMNS", "300")
    table = summarise_runs(tmp_path / "out").splitlines()
    assert table[-1] == "2 finished" and table[-2].split()[:3] == ["local/one/seed-0", "finished", "2"]


def straight_digest(tmp_path, rounds: int) -> str:
    """Return the digest of the second run without interruption."""
    run = job.expand(job.load_job(tmp_path / "job.yaml"), tmp_path / "job.yaml", tmp_path / "straight", None)[1]
    assert run_alone(str(run.config), run.overrides, str(run.folder)) == 0
    assert run.outcome().result["rounds"] == rounds
    return run.outcome().result["digest"]


def test_runs_of_another_job_are_not_taken_for_this_one_s(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns=ONE, published={})
    run = job.expand(job.load_job(path), path, tmp_path / "out", None)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(json.dumps(schema.to_plain(run.settings)))
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns={"one": {"train.lr": .01}}, published={})
    done = CliRunner().invoke(app, ["sweep", path, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and "other settings (train.lr)" in done.stderr and "--out" in done.stderr


@pytest.mark.parametrize("text, said", [
    ("", "it is not known whether Local / one / seed 0 of this job is in this folder ({path} is damaged: it holds no "
     "settings); look at it, or give"),
    ("{", "({folder} is not the folder of a run: config.yaml cannot be read (ValueError)); look at it, or give"),
    ("hello: world", "{folder} holds a run with other settings (hello, seed, ")])
def test_settings_that_cannot_be_read_are_not_said_to_be_others(tmp_path, cache, text, said):
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns=ONE, published={}, seeds=[0])
    run = job.expand(job.load_job(path), path, tmp_path / "out", None)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(text)
    with pytest.raises(BadInput) as error:
        mark_runs(job.expand(job.load_job(path), path, tmp_path / "out", None), True)
    assert said.format(folder=run.folder, path=run.folder / "config.yaml") in str(error.value)
    assert len(str(error.value)) < 600


def test_one_run_whose_settings_cannot_be_read_stops_only_a_sweep(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows=ROWS, columns=ONE, published={}, seeds=[0])
    words = [path, "--out", str(tmp_path / "out")]
    for run in job.expand(job.load_job(path), path, tmp_path / "out", None):
        made.run(run.folder, schema.to_plain(run.settings),
                 result={"rounds": run.settings.rounds, "accuracy_best_on_test": .5})
    damaged = tmp_path / "out/local/one/seed-0/config.yaml"
    damaged.write_text("{")
    done = CliRunner().invoke(app, ["status", *words])
    assert done.exit_code == 0 and "config.yaml cannot be read (ValueError)" in done.stdout
    assert done.stdout.endswith("2 finished\n")
    done = CliRunner().invoke(app, ["report", *words, "--to", str(tmp_path / "report")])
    assert done.exit_code == 0 and "report" in done.stdout, done.stderr
    for more in ([], ["--dry-run"], ["--accept-changed-code"]):
        done = CliRunner().invoke(app, ["sweep", *words, *more])
        assert done.exit_code == 2 and "it is not known whether Local / one / seed 0 of this job is in" in done.stderr
    damaged.write_text("rounds: 7")
    for command in ("status", "report", "sweep"):
        done = CliRunner().invoke(app, [command, *words])
        assert done.exit_code == 2 and "holds a run with other settings" in done.stderr


@pytest.mark.parametrize("above", [False, True])
def test_a_folder_that_cannot_be_looked_into_fails_alone(tmp_path, cache, monkeypatch, above):
    """Such as that of a colleague's run. Root may look into any folder, so the answer of the system is made up."""
    path = jobs.write(tmp_path, cache, rows=ROWS, columns=ONE, published={}, seeds=[0])
    runs = job.expand(job.load_job(path), path, tmp_path / "out", None)
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / "config.yaml").write_text(json.dumps(schema.to_plain(run.settings) | {"seed": 7}))
    (runs[0].folder / "config.yaml").write_text(json.dumps(schema.to_plain(runs[0].settings)))
    if above:
        def is_dir(folder):
            if folder == runs[1].folder:
                raise PermissionError
            return os.path.isdir(folder)
        monkeypatch.setattr("fedmpi.paths.Path.is_dir", is_dir)
    else:
        monkeypatch.setattr("fedmpi.paths.os.access", lambda folder, mode: folder != runs[1].folder)
    for run in runs:
        job.refuse_other(run)
    assert [run.outcome().state for run in runs] == ["unfinished", "failed"]
    assert runs[1].outcome().said == f"{runs[1].folder} cannot be looked into: Permission denied"
    done = CliRunner().invoke(app, ["status", path, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and done.stdout.endswith("1 stopped, 1 unreadable\n")


def test_settings_of_which_code_is_not_imported_are_compared_as_they_are(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns=ONE, published={}, seeds=[0])
    run = job.expand(job.load_job(path), path, tmp_path / "out", None)[0]
    run.folder.mkdir(parents=True)
    there = schema.to_plain(run.settings) | {"method": {"name": "theirs:Method"}}
    (run.folder / "config.yaml").write_text(json.dumps(there))
    with pytest.raises(BadInput, match=r"other settings \(method.name\)"):
        job.refuse_other(run)


def test_settings_that_change_no_result_may_be_others(tmp_path, cache):
    changed = {"rows": {"Local": "local"}, "columns": ONE, "published": {}, "seeds": [0]}
    path = jobs.write(tmp_path, cache, **changed)
    run = job.expand(job.load_job(path), path, tmp_path / "out", None)[0]
    there = schema.to_plain(run.settings) | {"threads": 3, "device": "cpu"}
    there["checkpoint"]["every"] = 7
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(json.dumps(there))
    job.refuse_other(run)
    # The best rounds in a table would be others.
    there["evaluate"]["every"] = 2
    (run.folder / "config.yaml").write_text(json.dumps(there))
    with pytest.raises(BadInput, match=r"other settings \(evaluate.every\)"):
        job.refuse_other(run)


def test_more_rounds_of_a_cosine_are_another_run(tmp_path, cache):
    """The rates of all rounds depend on their number, so `fedmpi run` would refuse to continue it."""
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns={"one": {"train.schedule": "cosine"}},
                      published={}, seeds=[0])
    run = job.expand(job.load_job(path), path, tmp_path / "out", None)[0]
    there = schema.to_plain(run.settings)
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(json.dumps(there | {"rounds": there["rounds"] + 1}))
    with pytest.raises(BadInput, match=r"other settings \(rounds\)"):
        job.refuse_other(run)


def test_runs_at_once_share_the_gpus(monkeypatch):
    assert [local.choose_gpu_setting(list("0123"), slot, 2) for slot in (0, 1)] == [{GPUS: "0,2"}, {GPUS: "1,3"}]
    assert [local.choose_gpu_setting(["a", "b"], slot, 3)[GPUS] for slot in range(3)] == ["a", "b", "a"]
    assert local.choose_gpu_setting(["0"], 1, 2) == local.choose_gpu_setting([], 0,
                                                                             2) == local.choose_gpu_setting(["0", "1"],
                                                                                                            0, 1) == {}
    monkeypatch.setenv(GPUS, "3,5")
    assert local.list_visible_gpus() == ["3", "5"]
    monkeypatch.setenv(GPUS, "")
    assert local.list_visible_gpus() == []


def test_a_setting_newer_than_a_run_had_its_default(tmp_path, cache):
    """Another version of fedmpi wrote the run's folder."""
    path = jobs.write(tmp_path, cache)

    def second():
        return job.expand(job.load_job(path), path, tmp_path / "out", None)[1]
    folder, settings = second().folder, schema.to_plain(second().settings)
    folder.mkdir(parents=True)
    del settings["method"]["anchor"]
    (folder / "config.yaml").write_text(json.dumps(settings))
    assert second().outcome().state == "unfinished"
    settings["method"]["lam"] = 7.
    (folder / "config.yaml").write_text(json.dumps(settings))
    with pytest.raises(BadInput, match=r"other settings \(method.lam\)"):
        second()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a pseudo-terminal")
def test_a_terminal_shows_a_table_that_stays_up_to_date(tmp_path, cache, warm):
    path = jobs.write(tmp_path, cache, rows={"Local [1]": "local"}, columns=ONE, published={})
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    done = subprocess.Popen(launch.command(1, "-m", "fedmpi", "sweep", path, "--out", tmp_path / "out", python=warm),
                            stdin=subprocess.DEVNULL, stdout=its, stderr=its,
                            env=launch.ENVIRONMENT | {"TERM": "xterm"})
    os.close(its)
    said = b""
    # Linux raises this if the other end is closed.
    with suppress(OSError):
        while part := os.read(ours, 1 << 16):
            said += part
    os.close(ours)
    assert done.wait(launch.LIMIT) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode())
    frames = [" ".join(frame.split()) for frame in shown.split("run ")]
    assert any("Local [1] / one / seed 0 under way 0/2 - ?" in frame for frame in frames), shown
    assert any(re.search(r"Local \[1\] / one / seed 0 finished 2/2 \d+\.\d\d %", frame) for frame in frames), shown
    assert shown.splitlines()[-1] == "1 of 1 runs finished"
