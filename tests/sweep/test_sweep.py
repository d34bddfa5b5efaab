"""Sweeps by the real command: all runs, a failing one, a stop in the middle and its continuation."""
from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from fedmpi import config
from fedmpi.errors import BadInput
from fedmpi.sweep import job, outcome
from tests import launch
from tests.sweep import jobs

ROWS = {"FedAvg": "fedavg", "Local": "local"}
ONE = {"one": {}}


@pytest.fixture
def sweep(tmp_path, cache):
    """Start a sweep of the small job, in its folder."""
    started = []

    def start(*words, **changed):
        started.append(launch.start(1, "-m", "fedmpi", "sweep", jobs.write(tmp_path, cache, **changed),
                                    "--out", tmp_path / "out", *words, cwd=tmp_path))
        return started[-1]
    yield start
    for one in started:
        launch.end(one)


def states(tmp_path) -> dict[str, bool]:
    """Say of every run folder whether it has a result."""
    return {f.parent.name: (f / "one" / "seed-0" / "result.json").exists() for f in (tmp_path / "out").glob("*/one")}


def test_a_failing_run_does_not_stop_the_others(sweep, tmp_path):
    """A file lies where the middle run's folder should be."""
    (tmp_path / "out" / "bad" / "one").mkdir(parents=True)
    (tmp_path / "out" / "bad" / "one" / "seed-0").write_text("in the way")
    changed = {"rows": {"FedAvg": "fedavg", "bad": "local", "Local": "local"}, "columns": ONE, "published": {}}
    done = launch.finish(sweep("--local", "2", **changed))
    assert done.returncode == 1, done.stdout + done.stderr
    last = done.stdout.splitlines()
    assert "2 of 3 runs finished, 1 failed" in last and any(line.startswith("failed bad / one / seed 0: ") and
                                                            "seed-0" in line for line in last)
    assert (tmp_path / "out/local/one/seed-0/result.json").exists()
    (tmp_path / "out" / "bad" / "one" / "seed-0").unlink()
    again = launch.finish(sweep(**changed))
    assert again.returncode == 0 and "2 of 3 runs are finished already" in again.stdout
    assert again.stdout.splitlines()[-1] == "3 of 3 runs finished"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_stopped_in_the_middle_it_saves_and_continues(sweep, tmp_path):
    changed = {"rows": ROWS, "columns": ONE, "published": {}, "scales": {"long": {"rounds": 100000}}}
    started = sweep("--scale", "long", **changed)
    metrics = tmp_path / "out/fedavg/one/seed-0/metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert started.poll() is None, started.stderr.read()
        time.sleep(.05)
    started.send_signal(signal.SIGTERM)
    done = launch.finish(started)
    assert done.returncode == 75, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "0 of 2 runs finished, 2 left: the same command continues"
    saved = (tmp_path / "out/fedavg/one/seed-0/checkpoints").glob("round-*.h5")
    rounds = max(int(path.stem.removeprefix("round-")) for path in saved) + 1
    done = launch.finish(sweep("--scale", "long", **changed | {"scales": {"long": {"rounds": rounds}}}))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out/fedavg/one/seed-0/result.json").read_text())
    assert result["rounds"] == rounds
    assert f"continuing after round {rounds - 1}" in (tmp_path / "out/fedavg/one/seed-0.sweep.txt").read_text()


def test_runs_of_another_job_are_not_taken_for_this_one_s(sweep, tmp_path):
    assert launch.finish(sweep(rows={"Local": "local"}, columns=ONE, published={})).returncode == 0
    done = launch.finish(sweep(rows={"Local": "local"}, columns={"one": {"train.lr": .01}}, published={}))
    assert done.returncode == 2 and "other settings (train)" in done.stderr and "--out" in done.stderr


def test_a_setting_newer_than_a_run_had_its_default(tmp_path, cache):
    """Another version of fedmpi wrote the run's folder."""
    path = jobs.write(tmp_path, cache)
    run = job.expand(job.load(path), path, tmp_path / "out", None)[1]
    run.folder.mkdir(parents=True)
    settings = config.plain(config.load(str(run.config), run.overrides))
    del settings["method"]["anchor"]
    (run.folder / "config.yaml").write_text(json.dumps(settings))
    assert outcome.of(run).state == "waiting"
    settings["method"]["lam"] = 7.
    (run.folder / "config.yaml").write_text(json.dumps(settings))
    with pytest.raises(BadInput, match="other settings"):
        outcome.of(run)


def test_dry_run_prints_the_commands(sweep, tmp_path):
    done = launch.finish(sweep("--dry-run"))
    assert done.returncode == 0 and not (tmp_path / "out").exists()
    lines = done.stdout.splitlines()
    assert len(lines) == 6 and all(line.startswith("fedmpi run ") for line in lines)
