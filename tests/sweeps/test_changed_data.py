"""A sweep does not put runs of different samples into one table."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.errors import BadInput
from fedmpi.sweeps import changed_code, job
from tests.runs import run_alone
from tests.sweeps import jobs

pytestmark = pytest.mark.slow("runs of a sweep")


def save_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    np.savez("mine.npz", x_train=rng.random((120, 6), np.float32), y_train=rng.integers(0, 3, 120))


def plan(path: str, out: str = "out"):
    return job.plan_job(path, None, out)[1]


def write_job(cache, *methods: str, **more) -> str:
    rows = {name: name for name in methods}
    path = jobs.write(Path(), cache, published={}, **{"rows": rows, "columns": {"one": {}}} | more)
    config = json.loads(Path("c.yaml").read_text())
    config["data"] |= {"name": "arrays", "file": "mine.npz", "clients": 3}
    Path("c.yaml").write_text(json.dumps(config))
    return path


def test_a_finished_run_on_other_samples_is_another_run(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_samples(1)
    (first,) = plan(write_job(cache, "fedavg"))
    assert run_alone(first.config, first.overrides, first.folder) == 0
    path = write_job(cache, "fedavg", "local")
    assert changed_code.mark_runs(plan(path), False) == plan(path)

    save_samples(2)
    # All is finished, so there is nothing that it is compared with.
    assert changed_code.mark_runs([first], False) == [first]
    for accept in (False, True):
        with pytest.raises(BadInput, match=r"seed-0 was finished, the run fedavg / one / seed 0 of this job, on other "
                                           r"samples than local / one / seed 0 would get now: .*; put back what it"):
            changed_code.mark_runs(plan(path), accept)
    # A sweep that was interrupted after its first seed has no run of that seed left.
    seeds = write_job(cache, "fedavg", seeds=[0, 1])
    with pytest.raises(BadInput, match="fedavg / one / seed 0 of this job, on other samples than it would get now: "):
        changed_code.mark_runs(plan(seeds), False)
    # What is left may be of other data, which nobody has replaced.
    Path("other.npz").write_bytes(Path("mine.npz").read_bytes())
    columns = write_job(cache, "fedavg", columns={"one": {}, "two": {"data.file": "other.npz"}})
    assert changed_code.mark_runs(plan(columns), False) == plan(columns)
    path = write_job(cache, "fedavg", "local")
    # Without the file the run that is left says what is wrong.
    Path("mine.npz").rename("away.npz")
    assert changed_code.mark_runs(plan(path), False) == plan(path)
    Path("away.npz").rename("mine.npz")

    second = plan(path)[1]
    assert run_alone(second.config, second.overrides, second.folder) == 0
    done = CliRunner().invoke(app, ["compare", str(first.folder), str(second.folder)])
    (said,) = (line.split() for line in done.stdout.splitlines() if line.startswith("samples of the clients"))
    assert len(set(said[-2:])) == 2 and all(len(word) == 12 for word in said[-2:])


def test_a_finished_run_with_another_file_of_who_takes_part_is_another_run(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_samples(1)
    others = "client,begin,end\n0,1,9\n1,1,9\n"
    for name, text in (("away.csv", others), ("other.csv", others + "2,1,2\n")):
        Path(name).write_text(text)
    path = write_job(cache, "fedavg", "local")
    config = json.loads(Path("c.yaml").read_text()) | {"availability": {"unit": "rounds", "file": "away.csv"}}
    Path("c.yaml").write_text(json.dumps(config))
    first, second = plan(path)
    assert run_alone(first.config, first.overrides, first.folder) == 0
    assert changed_code.mark_runs(plan(path), False) == plan(path)

    Path("away.csv").write_text(others.replace("9", "8"))
    with pytest.raises(BadInput, match=r"seed-0 was finished, the run fedavg / one / seed 0 of this job, with another "
                                       r"availability.file = away.csv than the runs that are left would read now; put"):
        changed_code.mark_runs(plan(path), False)
    assert changed_code.mark_runs([first], False) == [first]
    # A run that reads a file of another name is not a reason to think that this one has changed.
    Path("c.yaml").write_text(json.dumps(config | {"availability": {"unit": "rounds", "file": "other.csv"}}))
    other = plan(path, "others")[1]
    assert changed_code.mark_runs([first, other], False) == [first, other]
    assert run_alone(other.config, other.overrides, other.folder) == 0
    done = CliRunner().invoke(app, ["compare", str(first.folder), str(other.folder)])
    (said,) = (line.split() for line in done.stdout.splitlines() if line.startswith("content of.availability.file"))
    assert len(set(said[-2:])) == 2 and all(len(word) == 12 for word in said[-2:])
    # Without the file the run that is left says what is wrong.
    Path("away.csv").unlink()
    assert changed_code.mark_runs([first, second], False) == [first, second]
