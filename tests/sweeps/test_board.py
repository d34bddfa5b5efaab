"""The board of a sweep: states, rounds, accuracies, and the time that is left."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmpi.storage.run_status import Outcome
from fedmpi.sweeps import board as board_module
from fedmpi.sweeps.board import Board, estimate_time_left, make_board_row


class Run(SimpleNamespace):
    """A run of 10 rounds that reports given values and counts how often it is asked."""

    def __init__(self, name: str, state: str = "waiting", lines=(), result=None):
        super().__init__(name=name, settings=SimpleNamespace(rounds=10), asked=0,
                         found=Outcome(state, list(lines), result, 0, "", ""))

    def outcome(self) -> Outcome:
        self.asked += 1
        return self.found


def line(number: int, seconds: float, accuracy: float = .5) -> dict:
    return {"round": number, "seconds": seconds, "accuracy_mean": accuracy}


def test_a_row_says_how_far_a_run_is_and_what_is_left():
    run = Run("a / b / seed 0", lines=[line(1, 30., .1), line(4, 200., .25)])
    # A round takes 50 s, and 6 rounds are left.
    assert make_board_row(run, "under way", run.outcome()) == ["a / b / seed 0", "under way", "4/10", "25.00 %",
                                                               "5 min"]
    assert make_board_row(run, "failed", run.outcome()) == ["a / b / seed 0", "failed", "4/10", "25.00 %", ""]
    assert estimate_time_left(run, run.outcome()) == "5 min" and estimate_time_left(run, Run("new").outcome()) == "?"
    # Some methods train before round 1, here for 80 s.
    warmed = Run("w", lines=[line(0, 80.), line(4, 280.)])
    assert estimate_time_left(warmed, warmed.outcome()) == "5 min"
    assert make_board_row(Run("n"), "waiting", Run("n").outcome()) == ["n", "waiting", "0/10", "-", ""]


def test_states_are_asked_for_again_only_while_a_run_is_under_way():
    done, going, broken, later = runs = [Run("done", "finished"), Run("going", "unfinished"), Run("broken", "failed"),
                                         Run("later")]
    board = Board(runs)

    def states(under_way, waiting):
        return [state for _, state, _ in board.states(under_way, waiting)]
    for _ in range(3):
        assert states([going], [later]) == ["finished", "under way", "failed", "waiting"]
    assert [run.asked for run in runs] == [1, 3, 1, 1]
    # The run has ended, so its files are read once more.
    going.found = Run("", "finished").found
    for _ in range(2):
        assert states([later], []) == ["finished", "finished", "failed", "under way"]
    assert [run.asked for run in runs] == [1, 4, 1, 3]
    later.found = Run("", "failed").found
    assert states([], []) == ["finished", "finished", "failed", "failed"]


def test_a_run_that_goes_on_elsewhere_is_asked_for_again():
    there, waiting = Run("there", "unfinished"), Run("waiting")
    there.found = there.found._replace(alive=True)
    board = Board([there, waiting])

    def states():
        return [(state, found.round) for _, state, found in board.states([], [waiting])]
    assert states() == [("unfinished", 0), ("waiting", 0)]
    there.found = Run("", "finished", [line(10, 1.)]).found
    # Another sweep has finished the one that waits, and ours has seen that when its turn came.
    waiting.found = there.found
    board.forget(waiting)
    assert states() == [("finished", 10), ("waiting", 10)]
    states()
    assert there.asked == 2 and waiting.asked == 2


def test_of_a_run_only_what_the_board_shows_is_kept():
    lines = [line(0, 80.), *(line(number, 80. + 50 * number, .1) for number in range(1, 4)),
             {"round": 4, "seconds": 280.}]
    run, ended = Run("a", lines=lines), Run("b", "finished", lines)
    board = Board([run, ended])
    for state, (_, _, found) in zip(("under way", "finished"), board.states([run], []), strict=True):
        assert found.lines == [lines[0], lines[3], lines[4]]
        assert make_board_row(run, state, found) == make_board_row(run, state, run.outcome())
        assert found.accuracy == .1 and found.shorten() == found
    assert [found.lines for found in board.known.values()] == [[lines[0], lines[3], lines[4]]]
    # Before the first round, and where no round is evaluated.
    assert Run("c").outcome().shorten().lines == [] and Run("d", lines=lines[4:]).outcome().shorten().lines == lines[4:]


def test_what_a_run_has_reached_is_found_from_its_end():
    class Unread(dict):
        """A line that nobody looks into."""
        __contains__ = get = None
    found = Run("a", lines=[Unread(), line(2, 1.), {"round": 3, "seconds": 2.}]).outcome()
    assert (found.reached, found.accuracy) == ("50.00 %", .5)


def test_looking_at_the_runs_leaves_them_the_processor(monkeypatch):
    """At most a tenth of the time is for looks, and at most one look is in a second; the last state is always shown."""
    now = iter([5., 5.01, 6., 6.02, 9., 38.7, 38.7, 38.8])
    monkeypatch.setattr(board_module, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    run = Run("a")
    board = Board([run])
    board.live = SimpleNamespace(update=lambda *_, refresh: None, console=SimpleNamespace(height=30))
    looks = []
    # Looks at 5 (10 ms), not at 6, at 6.02 (2.98 s, as on a busy file system), not at 38.7 but at the end.
    for at_end in (False, False, False, False, True):
        board.show([run], [], at_end)
        looks.append(run.asked)
    assert looks == [1, 1, 2, 2, 3]


def cells(table) -> list[list[str]]:
    return [list(column) for column in zip(*(column.cells for column in table.columns), strict=True)]


@pytest.mark.parametrize("height, names", [
    (99, "abcdef"), (13, "abcdef"), (12, "abcde"), (11, "bcde"), (10, "bce"), (8, "e"), (1, "e")])
def test_the_rows_that_matter_most_are_shown_in_their_order(height, names):
    """Runs under way come first, then failed, finished, unfinished and waiting ones; seven lines are for the rest."""
    states = ["unfinished", "failed", "failed", "finished", "under way", "waiting"]
    table = Board([]).table([(Run(name), state, Run(name).outcome())
                             for name, state in zip("abcdef", states, strict=True)], height)
    assert [shown[0] for shown in cells(table)] == list(names)
    assert table.caption == "1 under way, 2 failed, 1 finished, 1 unfinished, 1 waiting"
    assert [column.header for column in table.columns] == ["run", "state", "round", "accuracy", "left"]


def test_states_that_no_run_has_are_not_counted_and_names_are_no_markup():
    table = Board([]).table([(Run("[red]x[/]"), "finished", Run("").outcome())], 30)
    assert table.caption == "1 finished" and cells(table)[0][0] == r"\[red]x\[/]"


def test_elsewhere_it_prints_lines_and_no_table(capsys):
    board = Board([Run("a")])
    with board:
        board.say("[bold]a line[/]")
        board.show([], board.runs)
    assert capsys.readouterr().out == "[bold]a line[/]\n" and board.live is None and board.runs[0].asked == 0


def test_on_a_terminal_lines_stay_above_the_table(monkeypatch, capsys):
    with monkeypatch.context() as terminal:
        terminal.setattr("sys.stdout.isatty", lambda: True)
        board = Board([Run("a")])
    with board:
        board.say("[bold]a line[/]" + 200 * "-")
        board.show([], board.runs)
    out = capsys.readouterr().out
    assert "[bold]a line[/]" + 200 * "-" in out and board.live is not None and board.runs[0].asked == 1
