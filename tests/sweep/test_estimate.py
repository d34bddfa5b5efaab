"""What a sweep would cost, before it starts."""
from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands.plan import prepared
from fedmpi.sweep import estimate, job
from tests.sweep import jobs

ROWS = {"FedAvg": "fedavg", "Ditto": "ditto", "IFCA": {"method": {"name": "ifca", "k": 2}}, "Local": "local"}


@pytest.fixture
def runs(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows=ROWS, columns={"one": {}}, published={})
    return job.expand(job.load(path), path, tmp_path / "out", None)


def costs(runs, rate=100.):
    cases = [prepared(str(run.config), run.overrides) for run in runs]
    return cases[0], dict(zip(ROWS, (estimate.cost(r, c, rate) for r, c in zip(runs, cases, strict=True)), strict=True))


def test_steps_and_bytes(runs):
    """Two rounds of six clients, three batches each; every round is evaluated."""
    case, found = costs(runs)
    judged = 2 * case.federation.counts[:, 2].sum() / 3 / 10
    size = 4 * case.method.model.size
    assert found["FedAvg"].steps == pytest.approx(2 * 6 * 3 + judged)
    assert found["Ditto"].steps == pytest.approx(2 * 2 * 6 * 3 + judged)      # two models
    assert found["IFCA"].steps == pytest.approx(2 * 6 * 3 + judged + 2 * 2 * case.federation.sizes.sum() / 3 / 10)
    assert (found["FedAvg"].down, found["FedAvg"].up) == (2 * 6 * size, 2 * 6 * size)
    assert found["IFCA"].down == 2 * 6 * 2 * size and found["Local"].down == found["Local"].up == 0


def test_only_what_is_left_is_counted(runs):
    _, before = costs(runs)
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / "metrics.jsonl").write_text(json.dumps({"round": 1, "accuracy_mean": .1}) + "\n")
    _, after = costs(runs)
    assert after["FedAvg"].rounds == 1 and after["FedAvg"].steps == pytest.approx(before["FedAvg"].steps / 2)
    assert after["Local"] == before["Local"]


def test_the_table_adds_up(runs):
    _, found = costs(runs)
    text = estimate.table(runs, list(found.values()), workers=1, at_once=1)
    total = sum(cost.steps for cost in found.values())
    assert f"in all {total:,.0f} steps" in text and f"{total / 100 / 3600:.2f} hours of one core" in text
    halved = estimate.table(runs, list(found.values()), workers=2, at_once=1)
    assert halved.splitlines()[2].split()[-2] < text.splitlines()[2].split()[-2]


def test_the_command(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns={"one": {}}, published={})
    words = ["sweep", path, "--out", str(tmp_path / "out"), "--dry-run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("fedmpi run ") and lines[2].split() == [
        "run", "rounds", "steps", "MiB", "down", "MiB", "up", "steps/s", "time"]
    assert float(lines[4].split()[-3].replace(",", "")) > 0 and not (tmp_path / "out").exists()      # measured here
    assert CliRunner().invoke(app, [*words, "--rate", "7"]).output.splitlines()[4].split()[-3] == "7"
    refused = CliRunner().invoke(app, [*words, "--rate", "0"])
    assert refused.exit_code == 2 and "--rate 0.0: should be more than 0" in refused.output
