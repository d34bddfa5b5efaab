"""Text in columns, for terminals, pipes and logs alike: plain characters, wrapped to the width there is."""
from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NoReturn, TextIO

# Bytes of the units in which sizes are shown.
MIB, GIB = 2 ** 20, 2 ** 30

# Characters by which a text could change a terminal, or pass for another text: controls but for tab and line feed, and
# those that reverse the direction of writing. Also halves of surrogate pairs, in which Python holds the bytes of a
# file's name that are no text: no file and no figure takes them.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def count_words(number: int, what: str) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


# A word so long is not a name that anybody reads.
LONG_WORD = re.compile(r"\S{400,}")
LONG_LINE = re.compile(".{1400,}")


def printable(text: object) -> str:
    """Return a text in which CONTROLS are written as escapes such as \\x1b, so that a terminal shows them."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def drop_addresses(text: str) -> str:
    """Return Python's text of a value without the addresses in it, as of a function, which each process has anew."""
    return re.sub(" at 0x[0-9a-f]+", "", text)


def format_error(error: object) -> str:
    """Return an error's message as a terminal shows it: without control characters, and with words and lines of
    thousands of characters cut."""
    text = LONG_WORD.sub(lambda found: f"{found[0][:120]}...{found[0][-60:]}", printable(error))
    return LONG_LINE.sub(lambda found: f"{found[0][:700]}...{found[0][-300:]}", text)


def split_traceback(message: str, log: Path) -> tuple[str, str]:
    """Return a message without its traceback, and where that is, which is "" if it has none."""
    first, _, more = message.partition("\nTraceback")
    return first, f"\n(traceback in {log})" if more else ""


def print_failure(error: object) -> None:
    """Print an error's message on stderr. What stderr refuses is lost: a full disk must not hide the exit code."""
    # A ValueError says that stderr is closed.
    with suppress(OSError, ValueError):
        print(format_error(error), file=sys.stderr, flush=True)


def drop_refused_text(stream: TextIO) -> None:
    """Flush a standard stream. If that is refused, the text is lost, and what follows, too: Python would try again at
    the end of the process, and give it another code."""
    try:
        if not stream.closed:
            stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_with(code: int) -> NoReturn:
    """Exit with the code of what a command has done, whatever stdout refuses of what it said."""
    drop_refused_text(sys.stdout)
    sys.exit(code)


def shorten_list(names: Iterable[object], most: int = 12) -> str:
    """Return at most so many names as text, and how many others there are."""
    listed = list(map(repr, names))
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} others" if len(listed) > most else "")


def format_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, a line for each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def find_width() -> int:
    """Return the columns of the terminal, or 120 where there is none ($COLUMNS decides)."""
    return shutil.get_terminal_size((120, 24)).columns


def format_columns(header: list[str], rows: Sequence[Sequence[object]], right: tuple[str, ...] = ()) -> str:
    """Return a table under its header; the columns named in `right` hold numbers."""
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    lines = Box("    \n    \n -- \n" + "    \n" * 5, ascii=True)
    table = Table(box=lines, show_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in right,
                         overflow="ellipsis" if name in right else "fold")
    for row in rows:
        table.add_row(*map(str, row))
    out = io.StringIO()
    console = Console(file=out, width=find_width(), color_system=None, markup=False, emoji=False, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def format_pairs(rows: list[tuple[str, str]]) -> str:
    """Return `name  text` lines, the texts aligned and wrapped."""
    indent = 2 + max(len(name) for name, _ in rows)
    wrap = textwrap.TextWrapper(max(40, find_width()), subsequent_indent=" " * indent, break_on_hyphens=False,
                                break_long_words=False)
    return "\n".join(wrap.fill(name.ljust(indent) + text) for name, text in rows)


def wrap_paragraphs(text: str) -> str:
    """Wrap a text's paragraphs where its lines are too long; what is indented stays as it is."""
    def wrapped(part: str) -> str:
        narrow = max(map(len, part.splitlines()), default=0) <= find_width()
        return part if narrow or "\n " in part else textwrap.fill(part, find_width(), break_on_hyphens=False)
    return "\n\n".join(map(wrapped, text.split("\n\n")))


def format_spans(numbers: list[int]) -> str:
    """Write ascending numbers as 0-3 5 7-8."""
    runs = [list(run) for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return " ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)


def format_range(numbers: Collection[int]) -> str:
    """Write the least and the most of some numbers as 3-7, or as 3 if they are equal."""
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}-{high}"


def format_duration(seconds: float) -> str:
    """Format seconds as 45 s, 12 min or 3.4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def format_percent(value: float | None) -> str:
    """Return a share as percent."""
    return f"{100 * value:.2f} %" if value is not None and value == value else "-"
