"""Text in columns: what is aligned, wrapped and left as it is."""
from __future__ import annotations

import os

import pytest

from fedmpi import text as text_table
from fedmpi.text import format_pairs, printable, wrap_paragraphs

TABLE = """name       count
----------------
a [b] :x:      1
c          1,000"""


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")


def test_a_table_is_plain_text_with_numbers_on_the_right():
    assert squeezed(
        text_table.format_columns(["name", "count"], [["a [b] :x:", 1], ["c", "1,000"]], right=("count",))
    ) == (squeezed(TABLE))
    assert text_table.format_columns(["name", "count"], [["a", 1]]).splitlines()[2].split() == ["a", "1"]


def squeezed(table: str) -> list[str]:
    """Return the lines without the dashes of the second line, whose number does not matter."""
    return [line for line in table.splitlines() if set(line) - {"-", " "}]


def test_texts_are_wrapped_and_numbers_are_not(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    lines = text_table.format_columns(
        ["what", "n"], [["one two three four five six", 123456]], right=("n",)
    ).splitlines()
    assert max(map(len, lines)) <= 30 and lines[2].endswith("123456") and len(lines) > 3
    assert lines[0].endswith("     n")


def test_pairs_are_aligned_and_hang():
    text = format_pairs([("a", "one two " * 7), ("long", "two-words " * 6)])
    assert text.splitlines() == ["a     " + "one two " * 6 + "one", "      two",
                                 "long  " + ("two-words " * 5).strip(), "      two-words"]


def test_pairs_have_forty_columns_at_least(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    assert format_pairs([("a", "x" * 10 + " " + "y" * 26)]) == "a  " + "x" * 10 + " " + "y" * 26
    assert format_pairs([("a", "x" * 10 + " " + "y" * 27)]).splitlines() == ["a  " + "x" * 10, "   " + "y" * 27]


def test_long_paragraphs_are_wrapped_and_indented_ones_kept():
    long, kept = "word " * 20, "short\nlines"
    code = "title\n    " + "x" * 70
    assert wrap_paragraphs(f"{long}\n\n{kept}\n\n{code}").split("\n\n") == [
        ("word " * 12).strip() + "\n" + ("word " * 8).strip(), kept, code]
    assert wrap_paragraphs("a" * 60) == "a" * 60 and wrap_paragraphs("b " * 30 + "c") == ("b " * 30).strip() + "\nc"


def test_without_a_terminal_there_are_120_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(text_table.shutil.os, "get_terminal_size", lambda fd: (_ for _ in ()).throw(OSError()))
    assert text_table.find_width() == 120


def test_an_error_shows_no_name_of_thousands_of_characters():
    word = "ab" * 3000
    assert text_table.format_error(f"a {word}: b\x1b") == f"a {word[:120]}...{word[-59:]}:: b\\x1b".replace("::", ":")
    assert text_table.format_error(f"/{'a' * 300}") == f"/{'a' * 300}"
    assert text_table.format_error(f"first\n{'a b ' * 4000}; do so") == (
        f"first\n{'a b ' * 175}...{('a b ' * 99)[-293:]}; do so")
    assert len(text_table.format_error("\0" * 3000)) < 300


def test_what_no_terminal_and_no_file_takes_is_written_as_escapes():
    assert printable("a\x1b[31m\u202eb\tc\n") == "a\\x1b[31m\\u202eb\tc\n"
    assert printable(os.fsdecode(b"caf\xe9")) == r"caf\udce9" and printable(7) == "7"
