"""What types leave open: each place has a reason beside it, and there are few. Mypy itself runs in `nox -s types`."""
from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.examples import write_examples

PACKAGE = Path(__file__).parent.parent / "fedmpi"
# How many places the package may have. The number only falls.
MOST = 7
# A comment that lets mypy pass over a line. It is written in two parts, so that this file has none.
IGNORE = "type: " + "ignore"


class OpenPlace(NamedTuple):
    """A line that takes `Any`, calls `cast` or tells mypy to ignore it."""
    file: str
    line: int
    text: str
    # A comment on the line or right before it, or the docstring after it, says why.
    has_reason: bool


def find_open_places(text: str, file: str = "") -> list[OpenPlace]:
    """Return the lines of a module that leave types open, other than its imports."""
    lines = text.splitlines()
    found = {}
    importing = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        number = token.start[0]
        if token.type == tokenize.NEWLINE:
            importing = False
        elif token.type == tokenize.NAME and token.string in ("import", "from"):
            importing = importing or not token.line[:token.start[1]].strip()
        is_open = (token.type == tokenize.NAME and token.string in ("Any", "cast") and not importing
                   or token.type == tokenize.COMMENT and IGNORE in token.string)
        if is_open:
            found[number] = OpenPlace(file, number, lines[number - 1].strip(), has_reason(lines, number))
    return list(found.values())


def has_reason(lines: list[str], number: int) -> bool:
    """Say whether the comment of line `number` (from 1), or the comment right before it, is more than a mark."""
    own = lines[number - 1].partition("#")[2]
    own = re.sub(rf"{IGNORE}(\[[\w, -]*\])?", "", own)
    before = lines[number - 2].strip() if number > 1 else ""
    return len(own.split()) > 2 or before.startswith("#") and len(before.split()) > 3


@pytest.fixture(scope="module")
def places():
    return [place for path in sorted(PACKAGE.rglob("*.py"))
            for place in find_open_places(path.read_text(), str(path.relative_to(PACKAGE.parent)))]


def test_few_places_leave_types_open(places):
    assert len(places) <= MOST, "\n".join(f"{place.file}:{place.line}: {place.text}" for place in places)


def test_each_of_them_says_why(places):
    assert [f"{place.file}:{place.line}: {place.text}" for place in places if not place.has_reason] == []


@pytest.mark.parametrize("text, reasons", [
    ("from typing import Any\nx: int = 1\n", []),
    ("from typing import (\n    Any,\n    cast)\n", []),
    ("def f(x: Any) -> None: ...\n", [False]),
    ("# Any: everybody has a class of their own.\nx: Any = 1\n", [True]),
    ("x = 1\n\ny: Any = 1      # each key has its own type\n", [True]),
    ("#\nx: dict[str, Any] = {}\n", [False]),
    (f"x = f()  # {IGNORE}\n", [False]),
    (f"x = f()  # {IGNORE}[no-untyped-call]\n", [False]),
    (f"# f has no types in this library.\nx = f()  # {IGNORE}[no-untyped-call]\n", [True]),
    ("y = cast(int, x)\n", [False]),
    ("'''Any word of a docstring.'''\nx = 'Any'\n", [])])
def test_what_is_open_is_seen(text, reasons):
    assert [place.has_reason for place in find_open_places(text)] == reasons


def test_the_files_of_the_pages_are_written_for_mypy(tmp_path):
    files = write_examples(tmp_path / "examples")
    assert {path.name for path in files} >= {"apfl.py", "mydata.py", "mynet.py", "mysplit.py"}
    assert sorted((tmp_path / "examples").iterdir()) == sorted(files)
    assert "class APFL(Method):" in (tmp_path / "examples" / "apfl.py").read_text()
