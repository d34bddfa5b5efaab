"""The lines that the suite's tests run and their costs, recorded once per test file and kept in the cache folder."""
from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tests.mutants.record import unpack

# Tests of this tool itself are left out: they would test its copy.
OWN = ("tests/test_mutants.py",)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def find_test_files(root: Path, among: list[str] = ()) -> list[str]:
    """List the test files below some folders or files of `tests/`."""
    files = sorted(str(p.relative_to(root)) for p in (root / "tests").rglob("test_*.py"))
    among = [name.rstrip("/") for name in among]
    return [f for f in files if f not in OWN and not f.startswith("tests/mutants/")
            and (not among or any(f == a or f.startswith(a + "/") for a in among))]


@cache
def translate(old: str, new: str) -> dict[int, int]:
    """Return old line number -> new line number for the lines that both texts have."""
    blocks = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_matching_blocks()
    return {a + i + 1: b + i + 1 for a, b, n in blocks for i in range(n)}


@dataclass
class Test:
    """A test as it ran when its file was mapped."""
    name: str
    file: str
    cpu: float
    fixtures: list[str]
    slow: bool
    # the number of lines that it runs
    breadth: int = 0

    @cached_property
    def function(self) -> str:
        return self.name.partition("[")[0]


@dataclass
class Suite:
    """The map of the tests of a tree."""
    root: Path
    # the cache: map/ and sources/
    folder: Path
    files: list[str]
    tests: dict[str, Test] = field(default_factory=dict)
    # fixture -> CPU seconds of its setup
    fixtures: dict[str, float] = field(default_factory=dict)
    # file -> line -> names of tests
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    # the same for lines that run when test files are imported
    imports: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    # tests that failed without a mutant
    broken: list[str] = field(default_factory=list)
    # lines that are newer than the map
    fresh: dict[str, set[int]] = field(default_factory=dict)
    # fedmpi's files as they are now
    texts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.texts = {str(p.relative_to(self.root)): p.read_text() for p in (self.root / "fedmpi").rglob("*.py")}
        self.sources = {path: digest(text) for path, text in self.texts.items()}

    # the map

    def record_of(self, file: str) -> Path:
        return self.folder / "map" / (file.replace("/", "__") + ".json")

    def key(self, file: str) -> str:
        return digest((self.root / file).read_text())

    def missing(self, anew: bool = False) -> list[str]:
        """List the test files that have changed since they were mapped, or never were."""
        return [f for f in self.files if anew or not self.record_of(f).exists()
                or json.loads(self.record_of(f).read_text())["key"] != self.key(f)]

    def keep(self, file: str, recorded: Path):
        """Put a file's record into the cache, and the sources that its lines belong to."""
        for name in ("map", "sources"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for path, text in self.texts.items():
            source = self.folder / "sources" / self.sources[path]
            if not source.exists():
                source.write_text(text)
        record = json.loads(recorded.read_text()) | {"key": self.key(file), "sources": self.sources}
        part = self.record_of(file).with_suffix(".part")
        part.write_text(json.dumps(record))
        part.replace(self.record_of(file))

    def load(self):
        """Read the map; lines of files that have changed since then are found again by their text."""
        for file in self.files:
            if self.record_of(file).exists():
                self.take(file, json.loads(self.record_of(file).read_text()))

    def take(self, file: str, record: dict):
        seconds, users = record["seconds"], {}
        for name, facts in record["tests"].items():
            if facts["outcome"] == "failed":
                self.broken.append(name)
            elif facts["outcome"] == "passed":
                self.tests[name] = Test(name, file, seconds.get(name, 0.), facts["fixtures"], facts["slow"])
                for context in (name, *facts["fixtures"]):
                    users.setdefault(context, set()).add(name)
        for context, files in record["lines"].items():
            if context.startswith("fixture "):
                self.fixtures[context] = seconds.get(context, 0.)
            for path, packed in files.items():
                found = self.now(path, record["sources"].get(path), unpack(packed))
                table = self.lines.setdefault(path, {})
                if context == "import":
                    for line in found:
                        self.imports.setdefault(path, {}).setdefault(line, set()).add(file)
                for line in found if context != "import" else ():
                    table.setdefault(line, set()).update(users.get(context, ()))
                for name in users.get(context, ()):
                    self.tests[name].breadth += len(found)

    def now(self, path: str, known: str | None, lines: set[int]) -> set[int]:
        """Translate lines of an earlier source into lines of the present one."""
        if path not in self.texts or known == self.sources[path]:
            return lines if path in self.texts else set()
        source = self.folder / "sources" / str(known)
        moved = translate(source.read_text(), self.texts[path]) if source.exists() else {}
        everything = set(range(1, self.texts[path].count("\n") + 2))
        self.fresh[path] = self.fresh.get(path, set()) | (everything - set(moved.values()))
        return {moved[line] for line in lines if line in moved}
