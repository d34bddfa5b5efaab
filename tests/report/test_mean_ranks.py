"""Mean ranks of rows whose columns have unlike numbers of seeds; test_significance.py has the other tests of ranks."""
from __future__ import annotations

import pytest

from fedmpi.report.figures.ranks import draw_mean_ranks
from fedmpi.report.results import ReportRun, Results
from fedmpi.report.significance import rank_rows
from tests.report import made

# accuracies of A, B and C by column and seed
FOUND = {("x", 0): (.9, .8, .7), ("x", 1): (.9, .8, .7), ("x", 2): (.7, .8, .9), ("y", 0): (.6, .7, .8)}


def test_a_column_counts_once_in_mean_ranks_however_many_seeds_it_has(tmp_path):
    """As in their critical difference. In x, A is first, first and third; in y, which has one seed, it is third."""
    runs = [ReportRun(row, column, seed, made.run(
        tmp_path / f"{row}{column}{seed}", result={"ranks": 1}, history={"round": [1], "accuracy": [[accuracy]]}))
        for (column, seed), of_rows in FOUND.items() for row, accuracy in zip("ABC", of_rows, strict=True)]
    results = Results("t", "c", [*"ABC"], ["x", "y"], [0, 1, 2], runs)
    ranks = rank_rows(results)
    assert ranks.means == pytest.approx([(5 / 3 + 3) / 2, 2, (7 / 3 + 1) / 2]) and ranks.columns == 2
    axes, = draw_mean_ranks(results).axes
    axes.figure.draw_without_rendering()
    label, whole = axes.xaxis.label.get_window_extent(), axes.figure.bbox
    assert whole.x0 <= label.x0 and label.x1 <= whole.x1
