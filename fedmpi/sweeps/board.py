"""What a sweep shows: on a terminal a table that stays up to date, elsewhere plain lines."""
from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fedmpi.progress import write_stdout
from fedmpi.storage.run_status import Outcome, find_seconds_before
from fedmpi.sweeps.job import PlannedRun
from fedmpi.task import choose_heading
from fedmpi.text import format_duration, printable

if TYPE_CHECKING:
    from rich.table import Table

# What is shown if there is no room for all.
STATES_SHOWN_FIRST = ("under way", "failed", "killed", "finished", "unfinished", "waiting")
# Lines of a terminal that the rows leave free, for the header, the counts, and what was said last.
AROUND = 7
# A pause between two looks at the runs takes at least so many seconds, and at least so many times as long as the look:
# the runs need the processor, and a look reads all that those under way have left.
LOOK_EVERY_S, PAUSE_PER_LOOK = 1., 10


class Board:
    """Use it as a context; `show` may be called at any time, and looks at the runs now and then."""

    def __init__(self, runs: list[PlannedRun]):
        self.runs = runs
        # the table on a terminal; None if the output goes elsewhere
        self.live: Live | None = None
        # shortened outcomes of runs that are under way neither here nor elsewhere; they rarely change, see `forget`
        self.known: dict[int, Outcome] = {}
        # when the runs are looked at again
        self.due = 0.
        if sys.stdout.isatty():
            from rich.live import Live
            self.live = Live(auto_refresh=False)

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            with suppress(OSError):
                self.live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        text = printable(text)
        if self.live:
            with suppress(OSError):
                self.live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            write_stdout(text + "\n")

    def show(self, under_way: list[PlannedRun], waiting: list[PlannedRun], at_end: bool = False) -> None:
        """Bring the table up to date, if that is due or the sweep ends."""
        begin = time.perf_counter()
        if self.live and (at_end or begin >= self.due):
            with suppress(OSError):
                self.live.update(self.table(self.states(under_way, waiting), self.live.console.height), refresh=True)
            end = time.perf_counter()
            self.due = end + max(LOOK_EVERY_S, PAUSE_PER_LOOK * (end - begin))

    def states(self, under_way: list[PlannedRun], waiting: list[PlannedRun]) -> list[tuple[PlannedRun, str, Outcome]]:
        """Return each run, its state in this sweep and what it left so far."""
        running, queued = set(map(id, under_way)), set(map(id, waiting))
        found: list[tuple[PlannedRun, str, Outcome]] = []
        for run in self.runs:
            if id(run) in running:
                self.forget(run)
                found.append((run, "under way", run.outcome().shorten()))
                continue
            known = self.known.get(id(run)) or run.outcome().shorten()
            if not known.alive:
                self.known[id(run)] = known
            found.append((run, "waiting" if id(run) in queued else known.state, known))
        return found

    def forget(self, run: PlannedRun) -> None:
        """Read at the next look what a run has left: it has changed."""
        self.known.pop(id(run), None)

    def table(self, states: list[tuple[PlannedRun, str, Outcome]], height: int) -> Table:
        """Return the table of `states`. A terminal of less than all lines shows the rows that matter most."""
        from rich.markup import escape
        from rich.table import Table
        counts = {state: sum(s == state for _, s, _ in states) for state in STATES_SHOWN_FIRST}
        table = Table(box=None, pad_edge=False, caption_justify="left",
                      caption=", ".join(f"{n} {state}" for state, n in counts.items() if n))
        for head in ("run", "state", "round", choose_heading(found.reached for _, _, found in states), "left"):
            table.add_column(head, justify="left" if head in ("run", "state") else "right", no_wrap=True)
        order = sorted(range(len(states)), key=lambda i: (STATES_SHOWN_FIRST.index(states[i][1]), i))
        for i in sorted(order[:max(1, height - AROUND)]):
            table.add_row(*map(escape, make_board_row(*states[i])))
        return table


def make_board_row(run: PlannedRun, state: str, found: Outcome) -> list[str]:
    """Return the cells of a run."""
    return [run.name, state, f"{found.round}/{run.settings.rounds}", found.reached,
            estimate_time_left(run, found) if state == "under way" else ""]


def estimate_time_left(run: PlannedRun, found: Outcome) -> str:
    """Return the time that a run will still take, at its pace so far."""
    seconds = found.lines[-1].get("seconds") if found.round else None
    if seconds is None:
        return "?"
    pace = (seconds - find_seconds_before(found.lines)) / found.round
    return format_duration(pace * (run.settings.rounds - found.round))
