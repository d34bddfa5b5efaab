"""Any configuration runs, or is refused with the name of a setting.

Hypothesis draws settings of every kind, method, partition and section from their own types and ranges, and a little
beyond what is allowed. `FEDMPI_TEST_EXAMPLES=400 python -m pytest tests/test_any_run.py` tries more of them."""
from __future__ import annotations

import json
import os
import re
import typing
from itertools import count
from types import NoneType

import numpy as np
import pytest
from hypothesis import example, given, note
from hypothesis import settings as how_many
from hypothesis import strategies as st

from fedmpi import registry
from fedmpi.comm.transport import Solo
from fedmpi.config.schema import Evaluate, Server, Train
from fedmpi.context import RankContext
from fedmpi.decision import decide
from fedmpi.errors import BadInput
from fedmpi.faults import Attack, Faults
from fedmpi.run_request import RunRequest
from fedmpi.session import run_decision
from fedmpi.settings import list_setting_names
from tests.federations import pool

EXAMPLES = int(os.environ.get("FEDMPI_TEST_EXAMPLES", 30))
NUMBERS = count()
SECTION = r"\b(data|model|method|train|evaluate|server|state|faults|attack|rounds|seed|engine)\b"
REMEDY = r"should be|must|lower|raise|set |give|leave|choose|add|share in|shares|count from|there are"


class Ended(Exception):
    """The message and the exit code of a run that fails."""


class Alone(Solo):
    """A world of a single process that survives a failing run."""
    on_failure = None

    def fail(self, message, code, tell=True):
        raise Ended(message, code)


def values(hint) -> st.SearchStrategy | None:
    """Return values for a setting of some type, most of them allowed; None means that the default stays."""
    kind, *inner = (typing.get_origin(hint), *typing.get_args(hint))
    if kind is typing.Annotated:
        return values(inner[0])
    if kind is typing.Literal:
        return st.sampled_from(inner)
    if NoneType in inner:
        return st.none() | values(next(i for i in inner if i is not NoneType))
    return {bool: st.booleans(), int: st.integers(1, 4) | st.integers(-1, 30),
            float: st.sampled_from([1e-3, .1, .5, 1.]) | st.sampled_from([0., 3.])}.get(hint)


def settings(cls, most: int = 2) -> st.SearchStrategy:
    """Return values for some settings of a class; the others keep their defaults."""
    hints = typing.get_type_hints(cls, include_extras=True)
    possible = {name: how for name in list_setting_names(cls) if (how := values(hints[name])) is not None}
    if not possible:
        return st.just({})
    chosen = st.lists(st.sampled_from(sorted(possible)), max_size=most, unique=True)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: possible[key] for key in keys}))


def named(kind: str) -> st.SearchStrategy:
    return st.sampled_from(registry.list_built_in(kind)).flatmap(
        lambda name: settings(registry.find_class(kind, name)).map(lambda chosen: {"name": name} | chosen))


CONFIGS = st.fixed_dictionaries({
    "method": named("methods"), "train": settings(Train, 3).map(lambda chosen: {"steps": 2, "lr": .05} | chosen),
    "evaluate": settings(Evaluate), "server": settings(Server), "faults": settings(Faults),
    "attack": st.none() | settings(Attack).map(lambda chosen: {"kind": "sign_flip"} | chosen),
    "engine": st.sampled_from(["auto", "loop", "vmap"]),
    "seed": st.integers(0, 3), "data": st.fixed_dictionaries({
        "partition": named("partitions"), "clients": st.integers(1, 12) | st.sampled_from([0, 40, 121]),
        "split": st.sampled_from([[.75, .25], [.6, .2, .2], [1., 0.], [.5, .25, .25], [.5, .6]])})})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a data set of 120 digits that says who holds them."""
    folder = tmp_path_factory.mktemp("any")
    x, y, *_ = pool()
    np.savez(folder / "few.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:120], y_test=y[90:120],
             client_train=np.arange(90) % 4, client_test=np.arange(30) % 4)
    return folder


# With these settings engine auto once rehearsed a second client, which there is not.
ONE_CLIENT = {"method": {"name": "lcfed"}, "train": {"steps": 2}, "evaluate": {}, "server": {}, "engine": "auto",
              "seed": 2, "data": {"clients": 1, "partition": "iid"}}


@pytest.mark.slow("many runs")
@how_many(max_examples=EXAMPLES)
@given(CONFIGS)
@example(ONE_CLIENT)
def test_what_is_accepted_runs_and_what_is_not_is_named(folder, drawn):
    data = drawn["data"] | {"name": "arrays", "file": str(folder / "few.npz"), "cache": str(folder / "cache")}
    config = drawn | {"data": data, "rounds": 1, "model": {"name": "mlp", "hidden": 4}, "device": "cpu"}
    path, out = folder / "c.yaml", folder / f"run-{next(NUMBERS)}"
    path.write_text(json.dumps(config))
    try:
        decision = decide(RunRequest(path, [], out), Solo())
        try:
            assert run_decision(Alone(), RankContext(), decision) == 0
        finally:
            decision.folder.release()
    except (BadInput, Ended) as error:
        message, code = error.args if isinstance(error, Ended) else (str(error), error.code)
        note(message)
        # A run may also diverge, with a message that says so.
        assert code == 2 or "lower train.lr" in message
        assert "Traceback" not in message and "Error:" not in message
        for line in message.removeprefix("fedmpi: ").removesuffix("\n").splitlines():
            assert re.search(SECTION, line) and re.search(REMEDY, line), line
    else:
        result = json.loads((out / "result.json").read_text())
        assert result["rounds"] == 1 and len(result["digest"]) == 64
