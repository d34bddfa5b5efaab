"""Reports of runs with an attack count the honest clients alone."""
from __future__ import annotations

import json

import numpy as np
import pytest

from fedmpi.report import write
from fedmpi.report.figures.accuracy import collect_last_accuracies
from fedmpi.report.results import ReportRun, Results, collect_folder_results
from fedmpi.report.significance import collect_accuracies_by_seed, compare_column
from tests.report import made
from tests.runs import run_alone
from tests.sweeps import jobs

ATTACK = {"kind": "sign_flip", "share": .4, "scale": 3.}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, cache):
    """The results of two runs in which four of ten clients attack."""
    folder = tmp_path_factory.mktemp("attacked")
    jobs.write(folder, cache)
    words = ["engine=loop", "data.clients=10", "seed=3", f"attack={json.dumps(ATTACK)}"]
    for name in ("fedavg", "ditto"):
        assert run_alone(str(folder / "c.yaml"), [*words, f"method={name}"], str(folder / name)) == 0
    return collect_folder_results([folder / "fedavg", folder / "ditto"])


def test_tests_ranks_and_boxes_leave_attackers_out(attacked):
    """Their mean is the accuracy that the run itself reports."""
    for run in attacked.runs:
        values = collect_last_accuracies([run])
        assert len(values) == 6 and run.outcome.result["accuracy_mean_attackers"] != pytest.approx(values.mean())
        assert run.outcome.result["accuracy_mean"] == pytest.approx(values.mean())
        by_seed = collect_accuracies_by_seed(attacked, run.row, run.column)
        assert np.nanmean(by_seed[3]) == pytest.approx(values.mean()) and np.isnan(by_seed[3]).sum() == 4


def test_the_difference_of_rows_is_that_of_their_accuracies(attacked):
    found = compare_column(attacked, attacked.columns[0])
    means = {run.row: run.outcome.result["accuracy_mean"] for run in attacked.runs}
    test, = found.tests
    assert test.difference == pytest.approx(100 * (means[test.row] - means[found.reference]))


def test_runs_whose_settings_are_lost_say_nothing_of_clients(tmp_path):
    """Nobody knows which of their clients attacked."""
    folder = made.run(tmp_path / "a", {"attack": ATTACK}, result={"rounds": 1},
                      history={"round": [1], "accuracy": [[.1] * 10]}, lines=[{"round": 1, "accuracy_mean": .1}])
    assert np.isnan(ReportRun("a", "x", 0, folder).last_measures).sum() == 4
    (folder / "config.yaml").unlink()
    run = ReportRun("a", "x", 0, folder)
    assert run.last_measures is None and collect_last_accuracies([run]).size == 0
    results = Results("t", "c", ["a"], ["x"], [0], [run])
    assert write.list_remarks(results) == [
        "config.yaml cannot be read, and tests and figures leave out the clients: a, x, seed 0"]
