"""Read the fenced blocks and the inline commands of the Markdown pages: everything that a reader may copy.

    sh [MARK]       Every line must end with code 0. With a MARK the lines are checked but not run. The marks are
                    cluster, gpu, download and long.
    console [CODE]  Commands follow `$ `, and what they print comes next; `...` stands for any text. The last command
                    ends with CODE.
    python [FILE]   The block is run. With a FILE it is written there instead; an existing file must be equal to it.
    yaml [FILE]     The block is written to FILE. Without a FILE it is only an example.
    text            Pictures and output that is not compared."""
from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`((?:[^`\n]*[\s])?(?:fedmpi [a-z]|python -m benchmarks )[^`\n]*)`")
MARKS = ("cluster", "gpu", "download", "long")
# Stands for the value of a setting that the reader chooses.
OPEN = "<chosen by the reader>"
OPERATORS = {"&&", "||", ";", "|", "&"}


class Block(NamedTuple):
    """A fenced block of a page."""
    # number of its first line in the page
    line: int
    language: str
    # the mark, code or file after the language, or ""
    about: str
    text: str

    @property
    def marked(self) -> bool:
        """Say whether the commands of this block are only checked."""
        return self.language == "sh" and self.about in MARKS

    def commands(self) -> list[tuple[str, str]]:
        """Return each command line of a shell block with the output that the page gives for it."""
        if self.language == "console":
            parts = re.split(r"^\$ ", self.text, flags=re.M)[1:]
            return [(line, said) for line, _, said in (part.partition("\n") for part in parts)]
        lines = self.text.replace("\\\n", " ").splitlines()
        return [(line, "") for line in lines if shlex.split(line, comments=True)]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text, found = page.read_text(), []
    for match in FENCE.finditer(text):
        language, _, about = match["info"].strip().partition(" ")
        found.append(Block(text[:match.start()].count("\n") + 1, language, about, match["text"]))
    return found


def inline(page: Path) -> list[str]:
    """Return the commands in the running text of a page."""
    return INLINE.findall(FENCE.sub("", page.read_text()))


def fill_in(word: str) -> str:
    """Return a word of a command, in which capitals, which the reader replaces, become 1, or OPEN as a setting's value.
    """
    head, equals, value = word.rpartition("=")
    if not re.fullmatch("[A-Z]+", value):
        return word
    return head + equals + (OPEN if equals and not word.startswith("-") else "1")


def calls(line: str) -> list[list[str]]:
    """Return the words after each `fedmpi` of a command line, and `benchmarks` with the words after each
    `python -m benchmarks`. What the reader replaces is filled in."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found, words = [], []
    for word in [*lexer, ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        if "fedmpi" in words or "benchmarks" in words:
            begin = words.index("fedmpi") + 1 if "fedmpi" in words else words.index("benchmarks")
            found.append([fill_in(word) for word in words[begin:]])
        words = []
    return found
