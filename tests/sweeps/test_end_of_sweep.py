"""How a sweep ends: what it shows last, and that a second Ctrl-C waits for no run."""
from __future__ import annotations

import signal
import time

import pytest

import fedmpi
from fedmpi.storage.lock import read_start_mark
from fedmpi.sweeps import local


def test_the_last_state_of_all_runs_is_shown(sweep, monkeypatch):
    """Before that the table may be older, for the runs need the processor."""
    shown = []
    monkeypatch.setattr(local.Board, "show", lambda board, under_way, waiting, at_end=False: shown.append(
        (len(under_way), len(waiting), at_end)))
    assert sweep("")[0] == 0
    assert shown[-1] == (0, 0, True) and shown[0] == (1, 2, False) and not any(at_end for _, _, at_end in shown[:-1])


# A run that hears of no polite signal, nor does a process of its own, as a rank is.
DEAF = """(trap '' TERM INT; exec sleep 300) & echo $! >"$out/child"
    stop_all {} TERM; kill -{} $PPID; for i in {{1..1000}}; do sleep .01; done; exit 1 ;;"""
CONTINUES = "0 of 3 runs finished, 3 left: the same command continues"


@pytest.mark.parametrize("first", ["INT", "TERM"])
def test_a_second_interrupt_ends_runs_that_ignore_the_first(sweep, tmp_path, first):
    code, said = sweep(f"*) {DEAF.format(first, 'INT')}")
    assert (code, said) == (75, ["Ctrl-C after a first signal ended 1 of 3 runs at once: what they had not saved is "
                                 "lost; the same command continues", CONTINUES])
    child = int((tmp_path / "out/a/one/seed-0/child").read_text())
    give_up = time.monotonic() + 60
    while read_start_mark(child) is not None:
        assert time.monotonic() < give_up
        time.sleep(.01)
    # The same command continues, and says what it found.
    code, said = sweep("")
    assert (code, said[-1]) == (0, "3 of 3 runs finished")


def test_another_signal_after_the_first_gives_runs_their_time(sweep):
    """A scheduler may send several."""
    again = 'asked=; kill -TERM $PPID; until [ "$asked" ]; do sleep .01; done; exit 75'
    assert sweep(f"*) stop_all INT TERM; {again} ;;") == (75, [CONTINUES])


def test_a_run_that_was_killed_by_somebody_else_has_failed(sweep):
    code, said = sweep("*) stop_all INT TERM; kill -KILL $$ ;;")
    assert code == 1 and said[-3] == "0 of 3 runs finished, 1 failed, 2 left: the same command continues"


def test_python_says_how_many_runs_are_left_beside_one_that_failed(sweep, tmp_path):
    pytest.importorskip("pandas")
    assert sweep("*) stop_all INT TERM; kill -KILL $$ ;;")[0] == 1
    with pytest.raises(fedmpi.FedmpiError, match=r"^a / one / seed 0: .*\n2 of 3 runs are left; call again to go on$"):
        fedmpi.sweep(tmp_path / "job.yaml", out=tmp_path / "out")
    assert sweep("b) exit 1 ;;")[0] == 1
    with pytest.raises(fedmpi.FedmpiError) as said:
        fedmpi.sweep(tmp_path / "job.yaml", out=tmp_path / "out")
    assert "left" not in str(said.value)


def test_a_second_interrupt_while_a_run_is_being_started_ends_it_too(sweep, monkeypatch):
    class Popen(local.subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(local.subprocess, "Popen", Popen)
    code, said = sweep("*) trap '' TERM; for i in {1..300}; do sleep .01; done; exit 1 ;;")
    assert (code, said[1:]) == (75, [CONTINUES]) and said[0].startswith("Ctrl-C after a first signal ended 1 of 3")
