"""Figures of rows with long names."""
from __future__ import annotations

from fedmpi.report.figures import accuracy, style, work
from fedmpi.report.results import ReportRun, Results
from tests.report import made


def test_long_names_of_rows_leave_the_axes_their_place(tmp_path):
    """A report of folders puts a method's settings into its row. Names are broken, and nothing leaves the picture."""
    name = "FedCPS (lam=0.1, lam_max=10.0, layers=1, personal_layers=cluster)"
    assert style.wrap_name(name).count("\n") == 1 and style.wrap_name("FedAvg") == "FedAvg"
    lines = [{"round": t, "accuracy_mean": .5, "seconds": 1. * t, "seconds_train": .5, "seconds_judge": .1,
              "idle_share": .3, "mib_per_client_round": .1, "participants": 4} for t in (1, 2)]
    rows = [name, name.replace("0.1", "0.2"), "Local"]
    runs = [ReportRun(row, "x", seed, made.run(tmp_path / f"{i}-{seed}", lines=lines, result={"ranks": 2},
                                               history={"round": [2], "accuracy": [[.1 * i, .2, .3, .4]]}))
            for i, row in enumerate(rows) for seed in range(2)]
    results = Results("t", "c", rows, ["x"], [0, 1], runs)
    for draw in (accuracy.draw_accuracy_by_client, accuracy.draw_accuracy_by_round, work.draw_phases):
        figure = draw(results, "x")
        figure.draw_without_rendering()
        assert figure.axes[0].get_window_extent().width > .3 * figure.bbox.width
        width, height = figure.get_size_inches()
        drawn = figure.get_tightbbox()
        assert min(drawn.x0, drawn.y0) >= -.01 and drawn.x1 <= width + .01 and drawn.y1 <= height + .01
