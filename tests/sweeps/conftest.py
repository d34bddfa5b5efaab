"""A sweep whose runs are small fake programs."""
from __future__ import annotations

import signal

import pytest

from fedmpi.stop_signals import SIGNALS
from fedmpi.sweeps import job, local
from tests.sweeps import jobs

# It is called like fedmpi, and does what the test defines for each run.
FAKE = """#!/bin/bash
echo "$*" >>"$(dirname "$0")/called"
while [ "$1" != --out ]; do shift; done
out=$2; row=$(basename "$(dirname "$(dirname "$2")")"); here=$(dirname "$0")
mkdir -p "$out"
best='"accuracy_best_on_test": 0.75'
finish() { echo '{"rounds": 2, "accuracy_mean": 0.5, "digest": "abc", '"$best}" >"$out/result.json"; }
stop_all() { trap 'asked=yes' ${2-TERM}; kill -${1-TERM} $PPID; until [ "$asked" ]; do sleep .01; done; }
case $row in
DOES
esac
"""
ROWS = ("a", "b", "c")


@pytest.fixture
def handlers():
    """Let no signal end this process until a sweep has installed its handlers."""
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def plan(tmp_path, cache):
    """Return a function that plans a run of two rounds for every row."""
    def plan(rows=ROWS, **changed):
        path = jobs.write(tmp_path, cache, rows={row: {"method": "local"} for row in rows}, columns={"one": {}},
                          published={}, **changed)
        return job.expand(job.load_job(path), path, tmp_path / "out", None)
    return plan


@pytest.fixture
def sweep(tmp_path, monkeypatch, plan, capfd, handlers):
    """Return a function that runs a sweep; `does` has a branch of bash's `case` for some rows."""
    def sweep(does: str, runs=None, at_once: int = 1, measures: tuple[str, ...] = (), ranks: int = 1):
        (tmp_path / "fake").write_text(FAKE.replace("DOES", f"{does}\n*) finish ;;"))
        (tmp_path / "fake").chmod(0o755)
        monkeypatch.setattr(local, "POLL_S", .01)
        monkeypatch.setattr(local, "find_launcher", lambda ranks: [str(tmp_path / "fake")])
        code = local.Sweep(runs or plan(), at_once, ranks, measures).go()
        return code, capfd.readouterr().out.splitlines()
    return sweep
