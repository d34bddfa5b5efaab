"""How a sweep ends: what it shows last, and that a second Ctrl-C waits for no run."""
from __future__ import annotations

from fedmpi.sweeps import local


def test_the_last_state_of_all_runs_is_shown(sweep, monkeypatch):
    """Before that the table may be older, for the runs need the processor."""
    shown = []
    monkeypatch.setattr(local.Board, "show", lambda board, under_way, waiting, at_end=False: shown.append(
        (len(under_way), len(waiting), at_end)))
    assert sweep("")[0] == 0
    assert shown[-1] == (0, 0, True) and shown[0] == (1, 2, False) and not any(at_end for _, _, at_end in shown[:-1])
