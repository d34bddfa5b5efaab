"""Code of a notebook is part of a run: a changed cell is refused when the run continues, as a changed file is."""
from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedmpi
from fedmpi.errors import BadInput
from fedmpi.own_code.changes import list_changes
from fedmpi.own_code.without_file import hash_all_own_code
from fedmpi.storage.checkpoint import CheckpointFile, read_checkpoint, write_checkpoint
from fedmpi.storage.listing import list_checkpoints
from tests.runs import CONFIG

CELL = """
from dataclasses import dataclass
from typing import Annotated, NamedTuple
import numpy as np
from torch import Tensor, nn
from fedmpi.method import WHOLE
from fedmpi.methods.fedavg import FedAvg
from fedmpi.settings import Gt

SCALE = 1.

class Shared(NamedTuple):
    w: Annotated[Tensor, WHOLE]

@dataclass(frozen=True)
class Own(FedAvg):
    lam: Annotated[float, Gt(0)] = .5
    def init(self, n):
        return Shared(self.model.start), super().init(n)[1]
    def server(self, shared, up, who):
        return shared._replace(w=SCALE * up.w.mean(who.sizes))

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

@dataclass(frozen=True)
class Split:
    title = "own"
    def assign(self, labels, clients, rng):
        return np.array_split(np.arange(len(labels)), clients), None

def above(logits, y):
    return float((logits > 0).double().mean())
"""
CHANGES = {"Own": ("SCALE = 1.", "SCALE = 1.5"), "Net": ("nn.ReLU()", "nn.Tanh()"),
           "Split": ('title = "own"', 'title = "mine"'), "above": ("logits > 0", "logits > 1")}


@pytest.fixture
def cells(monkeypatch):
    """Return a function that runs a cell, and returns the module without a file in which it does so."""
    def run_cell(text: str) -> ModuleType:
        monkeypatch.setitem(sys.modules, "cells", made := ModuleType("cells"))
        exec(compile(text, "a cell", "exec"), vars(made))
        return made
    return run_cell


@pytest.fixture
def start(place, cache, cells):
    """Return a function that runs a cell, and then the classes of it for some rounds in the folder `run`."""
    def start(text: str, rounds: int, **more: object) -> fedmpi.Result:
        made = cells(text)
        data = {"cache": str(cache), "clients": 3, "partition": made.Split}
        return fedmpi.run(CONFIG | {"data": data, "method": made.Own, "model": made.Net, "engine": "loop"}, out="run",
                          rounds=rounds, quiet=True, resume="auto", **{"evaluate.measures": [made.above]}, **more)
    return start


@pytest.mark.slow("runs whose code changes, and their continuations")
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_cell_is_refused_until_it_is_accepted(start, name):
    first = start(CELL, 1).values["own_code"]
    assert set(first) == {f"cells:{part}" for part in CHANGES} and all(len(value) == 64 for value in first.values())
    # what is only written in another way is the same code
    assert start(CELL.replace("SCALE = 1.", "# so much\n\nSCALE = 1."), 2).values["own_code"] == first
    changed = CELL.replace(*CHANGES[name])
    was = first[f"cells:{name}"][:12]
    with pytest.raises(BadInput, match=f"changed since the checkpoint of round 2: cells:{name} \\(was {was}, is .*"
                                       "accept the change by accept_changed_code=True"):
        start(changed, 3)
    found = start(changed, 3, accept_changed_code=True).values
    assert [change["module"] for change in found["accepted_code_changes"]] == [f"cells:{name}"]
    assert {part for part in first if found["own_code"][part] != first[part]} == {f"cells:{name}"}
    assert "own code without a file" not in Path("run/log.txt").read_text()


@pytest.mark.slow("a run and its continuation")
def test_a_checkpoint_that_has_no_hash_of_it_continues_with_a_warning(start, place):
    """As versions wrote it that did not look into such code."""
    start(CELL, 1)
    path = list_checkpoints(place / "run" / "checkpoints")[0]
    snapshot, saved = read_checkpoint(path), CheckpointFile(path)
    snapshot.extra["own_code"] = {"cells": None}
    write_checkpoint(path.parent, snapshot, [saved.read_rows(0, len(snapshot.ids))])
    assert set(start(CELL.replace(*CHANGES["Own"]), 2).values["own_code"]) == {f"cells:{name}" for name in CHANGES}
    log = Path("run/log.txt").read_text()
    assert log.count("warning: own code without a file, as in a notebook (cells): a change of it will not be no") == 1
    with pytest.raises(BadInput, match="since the checkpoint of round 2: cells:Own"):
        start(CELL, 3)


def test_the_types_of_fields_and_the_arguments_of_a_partial_function_count(cells):
    def hash_all(text: str, **arguments: object) -> dict[str, str | None]:
        made = cells(text)
        return hash_all_own_code([made.Own, functools.partial(made.above, **arguments), "cells"])
    first = hash_all(CELL)
    assert first == hash_all(CELL) and set(first) == {"cells:Own", "cells:above"}
    for old, new in (("w: Annotated[Tensor, WHOLE]", "w: Tensor"), ("Gt(0)", "Gt(1)")):
        other = hash_all(CELL.replace(old, new))
        assert other["cells:Own"] != first["cells:Own"] and other["cells:above"] == first["cells:above"]
    assert hash_all(CELL, y=3)["cells:above"] != first["cells:above"]


def test_what_cannot_be_told_is_unknown_and_no_change(cells):
    deep = CELL.replace("SCALE = 1.", "SCALE = []\nfor _ in range(10 ** 5):\n    SCALE = [SCALE]\n")
    unknown = hash_all_own_code([cells(deep).Own])
    assert unknown == {"cells": None}
    # only a name in the notebook, of a class that has a file
    assert hash_all_own_code(["cells"]) == {"cells": None}
    known = hash_all_own_code([cells(CELL).Own])
    assert list_changes(unknown, known, 1) == list_changes(known, unknown, 1) == []
    assert [change["module"] for change in list_changes({}, known, 1)] == ["cells:Own"]


@pytest.mark.slow("new processes that load torch")
def test_other_processes_with_the_same_text_have_the_same_fingerprint(place):
    """Sets have another order there, and everything another address."""
    tail = ("\nimport json\nfrom fedmpi.own_code.without_file import hash_all_own_code\n"
            "print(json.dumps(hash_all_own_code([Own, Net, Split, above, '__main__'])))\n")

    def call(text: str, seed: str) -> dict[str, str]:
        done = subprocess.run([sys.executable, "-"], input=text + tail, capture_output=True, text=True, check=True,
                              timeout=120, env={**os.environ, "PYTHONHASHSEED": seed})
        return json.loads(done.stdout)
    first = call(CELL, "1")
    assert call(CELL, "2") == first and set(first) == {f"__main__:{name}" for name in CHANGES}
    assert call(CELL.replace(*CHANGES["Net"]), "2")["__main__:Net"] != first["__main__:Net"]
