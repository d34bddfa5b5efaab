"""What the hash of a class without a file says: every change of what the class does, and nothing else."""
from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import ModuleType

import pytest

from fedmpi.errors import BadInput
from fedmpi.own_code.without_file import hash_class_without_file
from tests.own_code.modules import write

CELL = """
import functools
import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

import mine_helpers
from mine_helpers import shift

LIMIT = 3
FILES = {"train": ["a", "b"], "test": [Path("c")]}
POINTS = np.arange(4.)
ROUND = math.floor

class Kind(Enum):
    RED = 1

@dataclass
class Scale:
    factor: float = 2.
    made: list = field(default_factory=lambda: [11])

SCALE = Scale()

def helper(x):
    return inner(x) if x > LIMIT else Scale(3.)

def inner(x, by=4):
    return helper(x - by) * 2

def keep(number):
    def wrap(function):
        @functools.wraps(function)
        def call(self):
            try:
                return function(self) + number
            except ValueError:
                return None
        return call
    return wrap

class Base:
    sizes = [5, 6]

    def load(self, root):
        return helper(len(FILES)) + POINTS.sum() + SCALE.factor + Kind.RED.value + ROUND(2.5)

class Mine(Base):
    '''A data set.'''
    rows = 7
    names = set("pqrstuvwxyz")
    __firstlineno__ = 50

    def more(self, scale=8, *, extra=9):
        return sorted(x for x in self.names if x in {"x", "y", str(UNUSED_BUT_NAMED)})

    @property
    def width(self):
        return 10

    @functools.lru_cache
    def cached(self):
        return 12

    @staticmethod
    def plain():
        return 13

    @classmethod
    def made(cls):
        return cls() if shift(14) else mine_helpers

    @keep(15)
    def kept(self):
        return super().load(None)

    part = functools.partial(inner, by=16)

UNUSED_BUT_NAMED = (17, [18])
LOOP = [19]
LOOP.append(LOOP)
Mine.loop = LOOP
NOT_NAMED = 20
"""
CHANGES = [
    ("LIMIT = 3", "LIMIT = 4"), ('["a", "b"]', '["b", "a"]'), ('Path("c")', 'Path("d")'), ("arange(4.)", "arange(4)"),
    ("arange(4.)", "arange(4.) + 1"), ("math.floor", "math.ceil"), ("RED = 1", "RED = 2"), ("factor: float = 2.",
    "factor: float = 3."), ("lambda: [11]", "lambda: [12]"), ("SCALE = Scale()", "SCALE = Scale(4.)"),
    ("x > LIMIT", "x < LIMIT"), ("Scale(3.)", "Scale(4.)"), ("by=4", "by=5"), ("(x - by) * 2", "(x - by) * 3"),
    ("[5, 6]", "[5, 7]"), ("helper(len(FILES))", "inner(len(FILES))"), ("class Mine(Base)", "class Mine"),
    ("rows = 7", "rows = 8"), ("xyz", "xyw"), ("scale=8", "scale=9"), ("extra=9", "extra=10"),
    ("return 10", "return 11"), ("return 12", "return 13"), ("return 13", "return 14"),
    ("shift(14)", "shift(15)"), ("@keep(15)", "@keep(16)"),
    ("except ValueError", "except TypeError"), ("by=16", "by=17"), ("(17, [18])", "(17, [19])"), ("[19]", "[20]"),
    ("function(self) + number", "function(self) - number"), ('{"x", "y", str', '{"x", "v", str')]


@pytest.fixture
def hash_cell(monkeypatch, place):
    """Return a function that hashes the class Mine of a cell, whose helpers lie in a file."""
    def hash_cell(text: str, helpers: str = "def shift(x):\n    return x\n") -> str:
        write(place, {"mine_helpers.py": helpers})
        monkeypatch.setitem(sys.modules, "cells", cells := ModuleType("cells"))
        exec(compile(text, "a cell", "exec"), vars(cells))
        return hash_class_without_file(cells.Mine)
    return hash_cell


def test_every_change_of_what_it_does_is_seen(hash_cell):
    before, seen = hash_cell(CELL), {}
    for old, new in CHANGES:
        assert CELL.count(old) == 1, old
        seen[old, new] = hash_cell(CELL.replace(old, new))
    seen["helpers"] = hash_cell(CELL, "def shift(x):\n    return -x\n")
    assert before not in seen.values() and len(before) == 64
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("old, new", [
    ("LIMIT = 3", "\n\nLIMIT = 3  # a comment"), ("A data set", "Some data"), ("NOT_NAMED = 20", "NOT_NAMED = 21"),
    ("__firstlineno__ = 50", "__firstlineno__ = 51"), ("pqrstuvwxyz", "zyxwvutsrqp")])
def test_what_changes_nothing_does_not_count(hash_cell, old, new):
    assert hash_cell(CELL) == hash_cell(CELL.replace(old, new))


def test_values_that_are_nested_too_deeply_are_one_line(hash_cell):
    with pytest.raises(BadInput, match="^Mine: names values that are nested too deeply .*; write the class to a file"):
        hash_cell("deep = []\nfor _ in range(10 ** 4):\n    deep = [deep]\nclass Mine:\n    held = deep\n")


def test_a_set_of_functions_has_no_order(hash_cell):
    """Their addresses give it one, which is another each time."""
    cell = """
def scale(x):
    return 2 * x
def square(x):
    return scale(x) ** 2
def absolute(x):
    return abs(scale(x))
class Mine:
    losses = {square, absolute, max}
"""
    kept, found = [], set()
    for _ in range(40):
        found.add(hash_cell(cell))
        kept.append(sys.modules["cells"])
    assert len(found) == 1 and found != {hash_cell(cell.replace("max", "min"))}
    assert found != {hash_cell(cell.replace("2 * x", "3 * x"))}


def test_other_processes_have_the_same_hash(place):
    """Sets have another order there, and everything another address."""
    write(place, {"mine_helpers.py": "def shift(x):\n    return x\n"})
    text = CELL + "\nfrom fedmpi.data.federation import hash_class\nprint(hash_class(Mine))\n"
    found = [subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, check=True, timeout=120,
                            env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in "12"]
    assert found[0] == found[1] and len(found[0].strip()) == 64


def test_a_base_in_a_file_counts_by_its_file(hash_cell, place):
    cell = "from mine_helpers import shift\nclass Mine(shift):\n    pass\n"
    before = hash_cell(cell, "class shift:\n    x = 1\n")
    assert before == hash_cell(cell, "class shift:\n    x = 1\n")
    assert before != hash_cell(cell, "class shift:\n    x = 2\n")
    assert importlib.import_module("mine_helpers").shift.x == 2
