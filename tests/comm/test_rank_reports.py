"""The row in which a rank's report travels: every field comes back as it was given."""
from __future__ import annotations

import numpy as np

from fedmpi.comm.rank_reports import RankReports


def test_reports_come_back_from_their_rows():
    given = [(1.5, .25, True, False, [64., 8.], [1, 2, 3]), (0., 3., False, True, [32., 0.], [4, 0, 6])]
    found = RankReports.from_rows(np.stack([RankReports.to_row(*report) for report in given]))
    fields = (found.train_seconds, found.evaluation_seconds, found.on_gpu, found.stop_requested, found.peak_memory,
              found.steps)
    assert [field.tolist() for field in fields] == [list(column) for column in zip(*given, strict=True)]
    assert found.on_gpu.dtype == found.stop_requested.dtype == bool
