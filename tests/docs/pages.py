"""The fenced blocks and the inline commands of the Markdown pages: what a reader may copy.

    sh [MARK]       every line must end with 0. Lines under a MARK are checked, not run: cluster, gpu, download, long
    console [CODE]  commands behind `$ ` and what they print, `...` standing for any text; the last one ends with CODE
    python [FILE]   run; with a FILE written there, and the same as the file of that name where there is one already
    yaml [FILE]     written to FILE; without one, YAML
    text            pictures and the like"""
from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`((?:[^`\n]*[\s])?(?:fedmpi [a-z]|python -m benchmarks )[^`\n]*)`")
MARKS = ("cluster", "gpu", "download", "long")
OPERATORS = {"&&", "||", ";", "|", "&"}


class Block(NamedTuple):
    line: int
    language: str
    about: str
    text: str

    @property
    def marked(self) -> bool:
        return self.language == "sh" and self.about in MARKS

    def commands(self) -> list[tuple[str, str]]:
        """Return the command lines of a shell block, and the output that each is said to have."""
        if self.language == "console":
            parts = re.split(r"^\$ ", self.text, flags=re.M)[1:]
            return [(line, said) for line, _, said in (part.partition("\n") for part in parts)]
        lines = self.text.replace("\\\n", " ").splitlines()
        return [(line, "") for line in lines if shlex.split(line, comments=True)]


def blocks(page: Path) -> list[Block]:
    text, found = page.read_text(), []
    for match in FENCE.finditer(text):
        language, _, about = match["info"].strip().partition(" ")
        found.append(Block(text[:match.start()].count("\n") + 1, language, about, match["text"]))
    return found


def inline(page: Path) -> list[str]:
    """Return the commands in a page's running text."""
    return INLINE.findall(FENCE.sub("", page.read_text()))


def calls(line: str) -> list[list[str]]:
    """Return the words behind each `fedmpi` of a command line, and `benchmarks` with the words behind each
    `python -m benchmarks`; capitals that stand for something become 1."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found, words = [], []
    for word in [*lexer, ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        if "fedmpi" in words or "benchmarks" in words:
            begin = words.index("fedmpi") + 1 if "fedmpi" in words else words.index("benchmarks")
            found.append([re.sub(r"(^|=)[A-Z]+$", r"\g<1>1", word) for word in words[begin:]])
        words = []
    return found
