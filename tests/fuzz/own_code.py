"""Modules of the user that fail: when they are imported, in each function that is called, and in what these return."""
from __future__ import annotations

import json
import random
from pathlib import Path

from tests.fuzz.case import Case
from tests.fuzz.reference import CONFIG, Reference

START = """
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
import numpy as np
import torch
from torch import nn
from fedmpi.data.samples import Dataset
from fedmpi.method import Method
from fedmpi.methods.ditto import Ditto
class Odd(Exception):
    pass
class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")
"""
METHOD = """
def is_late():
    books = Path("out/metrics.jsonl")
    return books.exists() and books.stat().st_size > 0
@dataclass(frozen=True)
class Own(Ditto):
    title = "Own"
    extra: float = 1.
    def {function}(self, *given):
        {fault}
        return super().{function}(*given)
"""
FUNCTIONS = ("__post_init__", "with_model", "init", "client", "server", "personal", "warm_up_participants", "messages",
             "message_template", "traffic", "idle", "predict", "finish")
MODEL = """
class Own(nn.Module):
    def __init__(self, width=8):
        {at_start}
        super().__init__()
        self.a, self.b = nn.Linear(64, width), nn.Linear(width, 10)
    def forward(self, x):
        {fault}
        return self.b(torch.relu(self.a(x.reshape(len(x), -1))))
"""
DATASET = """
class Own:
    "Points."
    title = "Own"
    def load(self, root):
        {fault}
        y = np.arange(90) % 10
        x = np.random.default_rng(0).random((90, 64), np.float32)
        return Dataset(x, y, x[:30], y[:30])
    def files(self, root):
        {at_start}
        return []
"""
PARTITION = """
@dataclass(frozen=True)
class Own:
    title = "Own"
    def assign(self, labels, clients, rng):
        {fault}
        return np.array_split(np.arange(len(labels)), clients), {groups}
"""
MEASURE = """
def Own(logits, labels):
    {fault}
    return 1.
"""
# What a module prints when it is imported.
PRINTED = "\x1b[31mhello"
RAISES = (
    "raise KeyError('a key')", "raise Odd", "raise Odd('two\\nlines')", "raise Unprintable", "1 / 0", "[][1]",
    "None.x", "raise SystemExit(7)", "import sys; sys.exit(0)", "raise Odd('\\x1b[31mred')", "assert False",
    "raise FileNotFoundError(2, 'No such file', 'x')", "f = lambda: f(); f()", "raise MemoryError",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'why')", "raise StopIteration", "import not_there",
    "raise NotImplementedError", "raise ValueError", "raise TimeoutError('late')", "raise BrokenPipeError",
    "raise torch.OutOfMemoryError('much')", "raise AttributeError('title')", "raise ImportError('not there')")
RETURNS = ("return None", "return 3", "return []", "return ()", "return {}", "return 'x'", "yield 3", "return self",
           "return torch.zeros(3)", "return torch.full((3,), float('nan'))", "return np.zeros((0, 3))", "return object")
AT_IMPORT = (
    "def broken(:\n", "raise KeyError('at import')\n", "import sys; sys.exit(3)\n", "import not_there\n", "\0",
    "from fedmpi import nothing\n", "raise SystemExit\n", "1 / 0\n", "\tx = 1\n", "x = '\n", "# \xff\n", "Own = 3\n",
    "Own = None\n", "def Own(): return 3\n", "Own = type\n", "import own\nown.Own\n", "class Own: pass\n",
    f"print({PRINTED!r})\n", "raise BaseException('at import')\n",
    "def __getattr__(name): raise KeyError(name)\n")
GROUPS = (
    "None", "np.arange(clients)", "[0] * 2", "np.zeros((clients, 2))", "-np.ones(clients, int)", "'x'",
    "np.ones(clients)", "np.full(clients, np.nan)", "np.full(clients, 2**40)")
PARTS = (
    "return None", "return [], None", "return [np.arange(9)] * clients, None",
    "return [np.array([10**6])] * clients, None", "return (np.arange(3) for _ in range(clients)), None",
    "return [[]] * clients, None", "return [np.ones(3)] * clients, None", "return np.arange(clients), None",
    "return [np.array([-1])] * clients, None", "return {0: np.arange(3)}, None", "return [np.arange(9)] * clients",
    "return [None] * clients, None", "return ['a'] * clients, None")
SETS = ("return None", "return Dataset(None, None, None, None)", "return 1, 2, 3", "return Dataset([], [], [], [])",
        "return np.zeros(3)", "return Dataset(np.zeros((3, 2)), np.zeros(4), np.zeros((0, 2)), np.zeros(0))")


def build(draw: random.Random, folder: Path, reference: Reference) -> Case:
    """Write own.py; return the case of a command that needs it."""
    kind = draw.choice(["method", "method", "method", "model", "dataset", "partition", "measure"])
    fault, at_start, groups = "pass", "pass", "None"
    function = draw.choice(FUNCTIONS)
    if draw.random() < .55:
        fault = draw.choice(RAISES)
    else:
        fault = draw.choice({"partition": PARTS, "dataset": SETS}.get(kind, ()) or RETURNS)
    if kind == "method" and not fault.startswith("yield") and draw.random() < .4:
        fault = f"if is_late(): {fault}"
    elif draw.random() < .25:
        fault, at_start = "pass", draw.choice([*RAISES, "return None", "return 3"])
    if kind == "partition" and draw.random() < .4:
        fault, groups = "pass", draw.choice(GROUPS)
    text = START + {"method": METHOD, "model": MODEL, "dataset": DATASET, "partition": PARTITION,
                    "measure": MEASURE}[kind].format(
        function=function, fault=fault, at_start=at_start, groups=groups)
    what = f"{kind} {function if kind == 'method' else ''}: {at_start if fault == 'pass' else fault}"
    if draw.random() < .2:
        bad = draw.choice(AT_IMPORT)
        text, what = (bad + text, f"{kind}: {bad!r} first") if draw.random() < .6 else (text + bad,
            f"{kind}: {bad!r} last")
    if draw.random() < .08:
        return edited(draw, folder, kind)
    (folder / "own.py").write_text(text, encoding="latin-1")
    config = name_own(kind)
    (folder / "c.yaml").write_text(json.dumps(config | {"engine": draw.choice(["loop", "loop", "vmap", "auto"])}))
    command = draw.choice([["run", "c.yaml", "--out", "out"]] * 4 + [["plan", "c.yaml"], ["data", "c.yaml"], [
        "submit", "c.yaml", "--dry-run"], [f"{kind}s", "own:Own"] if kind != "measure" else ["plan", "c.yaml"]])
    ranks = 2 if command[0] == "run" and draw.random() < .1 else 1
    return Case(what, [command], ranks, own_code="own")


def name_own(kind: str) -> dict:
    """Return a configuration that names the own class of that kind."""
    config = CONFIG | {"rounds": 2, "data": CONFIG["data"] | {"clients": 4}}
    if kind in ("method", "model"):
        return config | {kind: {"name": "own:Own"}}
    if kind == "measure":
        return config | {"evaluate": {"measures": ["own:Own", "auc"]}}
    data = dict(config["data"])
    if kind == "dataset":
        data = {k: v for k, v in data.items() if k != "file"} | {"name": "own:Own"}
    else:
        data["partition"] = "own:Own"
    return config | {"data": data}


def edited(draw: random.Random, folder: Path, kind: str) -> Case:
    """Return the case of a module that is edited between the start of a run and its continuation."""
    template = START + {"method": METHOD, "model": MODEL, "dataset": DATASET, "partition": PARTITION,
                        "measure": MEASURE}[kind]
    names = {"function": "server", "at_start": "pass", "groups": "None"}
    (folder / "own.py").write_text(template.format(fault="pass", **names))
    (folder / "c.yaml").write_text(json.dumps(name_own(kind)))

    def edit(folder: Path) -> None:
        (folder / "own.py").write_text(template.format(fault="_ = 3", **names))
    return Case(f"{kind}: edited before it goes on", [["run", "c.yaml", "--out", "out"], [
        "run", "c.yaml", "--out", "out", "--resume", "auto", "rounds=3"]], promise="refused", own_code="own",
        between=edit)
