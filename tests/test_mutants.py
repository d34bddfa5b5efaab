"""The tool that plants faults: what it draws, what it changes, and that it tells strong tests from weak ones."""
from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import drawing, equivalent, report
from tests.mutants.judge import Mutant
from tests.mutants.operators import find_sites
from tests.mutants.record import pack, unpack
from tests.mutants.source import Source

ROOT = Path(__file__).parent.parent
TEXT = '''"""A docstring with 1 < 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
__all__ = ["f"]


def f(a: list[1], b=3, *, c=.5) -> "x":
    """Another."""
    a = a + 1
    if not a < b and "é" in "né":
        raise ValueError("text", 7)
    for i in range(b):
        if a[i:b] is None:
            break
        a[i] -= f(i, b)["key"]
    print(f"{a + b}", flush=True)
    return -a
'''
# (operator, line, the line after)
CHANGES = [
    ("constant", 9, 'def f(a: list[1], b=4, *, c=.5) -> "x":'),
    ("constant", 9, 'def f(a: list[1], b=2, *, c=.5) -> "x":'),
    ("constant", 9, 'def f(a: list[1], b=3, *, c=1.0) -> "x":'), ("arithmetic", 11, "a = a - 1"),
    ("constant", 11, "a = a + 2"), ("constant", 11, "a = a + 0"), ("drop", 11, "pass"),
    ("condition", 12, 'if not (not a < b and "é" in "né"):'), ("boolean", 12, 'if (a < b) and "é" in "né":'),
    ("boolean", 12, 'if not a < b or "é" in "né":'), ("compare", 12, 'if not a <= b and "é" in "né":'),
    ("compare", 12, 'if not a >= b and "é" in "né":'), ("compare", 12, 'if not a < b and "é" not in "né":'),
    ("key", 12, 'if not a < b and "" in "né":'), ("key", 12, 'if not a < b and "é" in "":'), ("raise", 13, "pass"),
    ("range", 14, "for i in range((b) + 1):"), ("range", 14, "for i in range((b) - 1):"),
    ("condition", 15, "if not (a[i:b] is None):"), ("compare", 15, "if a[i:b] is not None:"),
    ("slice", 15, "if a[(i) + 1:b] is None:"), ("slice", 15, "if a[(i) - 1:b] is None:"),
    ("slice", 15, "if a[i:(b) + 1] is None:"), ("slice", 15, "if a[i:(b) - 1] is None:"), ("loop", 16, "pass"),
    ("drop", 17, "pass"), ("arithmetic", 17, 'a[i] += f(i, b)["key"]'), ("swap", 17, 'a[i] -= f(b, i)["key"]'),
    ("key", 17, 'a[i] -= f(i, b)[""]'), ("drop", 18, "pass"),
    ("return", 19, "return None"), ("arithmetic", 19, "return a")]


def test_the_operators_find_these_changes_and_no_others():
    source = Source(TEXT)
    found = [drawing.plant(source, site) for site in find_sites("fedmpi/x.py", TEXT)]
    assert Counter((m.what, m.line, m.new) for m in found) == Counter(CHANGES)
    assert {m.scope for m in found} == {"f"}


@pytest.fixture(scope="module")
def drawn():
    return drawing.draw(ROOT, [], 300, seed=3)


def test_a_mutant_is_a_python_file_that_differs_at_one_place(drawn):
    for m in drawn[::4]:
        old, new = (ROOT / m.path).read_text().split("\n"), m.text.split("\n")
        ast.parse(m.text)
        assert len(old) == len(new)
        differing = [n for n, lines in enumerate(zip(old, new, strict=True), 1) if lines[0] != lines[1]]
        assert differing and m.line <= differing[0] and differing[-1] <= m.last


def test_a_seed_repeats_a_draw_and_another_draws_others(drawn):
    assert drawing.draw(ROOT, [], 300, seed=3) == drawn
    others = drawing.draw(ROOT, [], 300, seed=4)
    assert len({(m.path, m.text) for m in drawn} & {(m.path, m.text) for m in others}) < 100


def test_every_package_gets_its_share_and_at_least_ten(drawn):
    counts = Counter(m.package for m in drawn)
    packages = {p.name for p in (ROOT / "fedmpi").iterdir() if (p / "__init__.py").exists()} | {"root"}
    assert counts.total() == 300
    assert set(counts) == packages
    assert min(counts.values()) >= 10
    assert drawing.shares({"a": 900, "b": 100, "c": 4}, 100) == {"a": 86, "b": 10, "c": 4}


@pytest.mark.slow("reads 1500 faults")
def test_all_hand_written_faults_apply():
    packages = {m.package for m in drawing.hand_written(ROOT, [])}
    assert packages == {next(package for package in packages if drawing.belongs(listed, package))
                        for listed in drawing.package_lists([])}


@pytest.mark.parametrize("name, old, new, complaint", [
    ("fedmpi.nowhere:", "a", "b", "no such module"), ("fedmpi.errors:Nobody", "a", "b", "no such definition"),
    ("fedmpi.server.metrics:", "not there at all", "b", "stands 0 times"), ("fedmpi.errors:", "class ", "b", "times"),
    ("fedmpi.clustering.kmeans_and_linkage:", "MAX_ITERATIONS = 300", "MAX_ITERATIONS = = 3", "not Python any more"),
    ("fedmpi.storage.lock:find_why_dead", "silence >= MAX_SILENCE_S", "silence >= BEAT / 2", "no BEAT in the file")])
def test_a_fault_that_the_code_has_outgrown_is_said(name, old, new, complaint):
    with pytest.raises(drawing.DoesNotApply, match=complaint):
        drawing.apply(ROOT, name, old, new)


def test_what_counts_and_what_is_too_few():
    def mutants(package, **counts):
        return [Mutant(f"fedmpi/{package}/x.py", 1, 1, "", "a", "b", "drop", outcome=outcome)
                for outcome, n in counts.items() for _ in range(n)]
    good = mutants("a", killed=90, timeout=1, survived=9)
    bad = mutants("b", killed=5, survived=1, uncovered=1, equivalent=9)
    assert report.rate(good) == .91
    assert report.failed(good) == []
    assert report.failed(good + bad) == ["71.4 % of b"]
    assert "| b | 16 | 5 | 0 | 1 | 1 | 9 | 71 % | 0.0 |" in report.table(good + bad)


def test_equivalent_mutants_are_known_by_their_lines(monkeypatch):
    monkeypatch.setattr(equivalent, "EQUIVALENT", [("fedmpi.a:f", "x", "y", "same")])
    monkeypatch.setattr(equivalent, "ELSEWHERE", [("fedmpi.a:g", "GPU")])
    assert equivalent.reason("fedmpi.a:f", "x", "y") == "same"
    assert equivalent.reason("fedmpi.a:f", "x", "z") == ""
    assert equivalent.reason("fedmpi.a:g.inner", "x", "z") == "GPU"
    assert equivalent.reason("fedmpi.a:gg", "x", "z") == ""


def test_line_numbers_survive_packing():
    lines = set(random.Random(1).sample(range(1, 300), 40))
    assert unpack(pack(lines)) == lines


CODE = """def strong(a):
    return a + 1

def weak(a):
    return a + 1

def hang(a):
    while a:
        a -= 1
    return 0

def forked():
    return 5

def started():
    return 5

def nobody():
    return 5

LIMIT = 3

def limit():
    return LIMIT

def in_fixture():
    return 4
"""
TESTS = """import os, subprocess, sys, pytest
from fedmpi.server import x

@pytest.fixture(scope="module")
def value():
    return x.in_fixture()

def test_strong():
    assert x.strong(1) == 2

def test_weak(value):
    x.weak(1)

def test_fixture(value):
    assert value == 4

def test_hang():
    assert x.hang(2) == 0

def test_limit():
    assert x.limit() == 3

def test_forked():
    child = os.fork()
    if not child:
        os._exit(x.forked())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5

def test_started():
    words = "from fedmpi.server import x; exit(x.started())"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 5

def test_broken():
    assert x.weak(1) == 7
"""
QUICK = {"MUTANTS_LOAD": "pytest", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
FAULTS = [("strong", "+", "-"), ("weak", "+", "-"), ("hang", "-= 1", "-= 0"), ("forked", "5", "6"),
          ("nobody", "5", "6"), ("started", "5", "6"), ("", "LIMIT = 3", "LIMIT = 4"), ("in_fixture", "4", "5")]


@pytest.fixture
def planted(tmp_path):
    """A tree with a package of one file, its tests, and this tool with faults in that package."""
    tool = ROOT / "tests" / "mutants"
    shutil.copytree(tool, tmp_path / "tests" / "mutants", ignore=shutil.ignore_patterns("__pycache__", "faults"))
    faults = [(f"fedmpi.server.x:{name}", old, new) for name, old, new in FAULTS]
    for name, text in {"fedmpi/__init__.py": "", "fedmpi/server/__init__.py": "", "fedmpi/server/x.py": CODE,
                       "tests/__init__.py": "", "tests/test_x.py": TESTS, "tests/mutants/faults/__init__.py": "",
                       "tests/mutants/faults/server.py": f"FAULTS = {faults!r}"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow("a process for each fault")
def test_what_was_killed_survived_hung_or_was_not_covered_is_told_apart(planted):
    words = [sys.executable, "-m", "tests.mutants", "--own", "--jobs", "1", "--patience", "1"]
    done = subprocess.run(words, cwd=planted, text=True, capture_output=True, env=os.environ | QUICK)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = json.loads((planted / ".mutants" / "report-own.json").read_text())["mutants"]
    assert {row["scope"]: (row["outcome"], row["by"].removeprefix("tests/test_x.py::")) for row in rows} == {
        "strong": ("killed", "test_strong"), "weak": ("survived", ""), "hang": ("timeout", "more CPU s than patience"),
        "forked": ("killed", "test_forked"), "nobody": ("uncovered", ""), "started": ("killed", "test_started"),
        "": ("killed", "test_limit"), "in_fixture": ("killed", "test_fixture")}
    assert "they fail without a mutant:\n  tests/test_x.py::test_broken\n" in done.stdout
    assert (planted / "fedmpi/server/x.py").read_text() == CODE
