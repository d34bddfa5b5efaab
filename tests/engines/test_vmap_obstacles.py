"""Functions of a method that engine vmap cannot run: `auto` takes loop, and engine=vmap is refused before round 1."""
from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedmpi.engines import engine_choice
from fedmpi.errors import BadInput, GivenUp
from fedmpi.methods.ditto import Ditto
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models.build import make_blank_samples
from tests.federations import Digits, Lab, method, mlp
from tests.methods.table import NAMES

BLANK = make_blank_samples((64,), "float32")


@dataclass(frozen=True)
class Branching(Ditto):
    """Ditto of which one function looks at a number."""
    where: str = "personal"
    title, idles = "Branching", True

    def idle(self, shared, mine, data):
        return self.look("idle", data, mine)

    def personal(self, shared, mine, data):
        return self.look("personal", data, shared.w)

    def serve_newcomer(self, shared, mine, data):
        return self.look("serve_newcomer", data, shared.w)

    def look(self, name, data, found):
        return found if name != self.where or data.class_counts.max() > 0 else None


@pytest.mark.parametrize("where, new_clients, finds", [
    ("personal", 0, True), ("idle", 0, True), ("serve_newcomer", 1, True), ("serve_newcomer", 0, False)])
def test_whatever_runs_at_clients_is_tried(where, new_clients, finds):
    made = Branching(where=where).with_model(mlp())
    name, why = engine_choice.choose_by_network(made, *made.init(2), BLANK, new_clients)
    assert name == ("loop" if finds else "vmap") and why.startswith(f"Branching.{where} cannot be") == finds
    lab = Lab(made, Digits())
    lab.group.config = replace(lab.config, data=replace(lab.config.data, new_clients=new_clients))
    assert np.isinf(engine_choice.time_engines(lab.group, lab.shared)[1]) == finds
    said = pytest.raises(BadInput, match=rf"^engine = vmap: Branching\.{where} cannot be .*; set engine=loop$")
    with said if finds else nullcontext():
        engine_choice.refuse_vmap("vmap", made, BLANK, new_clients)


@dataclass(frozen=True)
class Asserting(FedAvg):
    """FedAvg whose client wants to know its number of samples."""
    title = "Asserting"

    def client(self, shared, mine, data):
        assert isinstance(data.n, int), "a number"
        return super().client(shared, mine, data)


def test_whatever_fails_at_many_clients_alone_is_left_to_loop():
    made = Asserting().with_model(mlp())
    name, why = engine_choice.choose_by_network(made, *made.init(2), BLANK)
    assert name == "loop" and re.fullmatch(
        r"Asserting\.client cannot be vectorised: \S*test_vmap_obstacles\.py:\d+: AssertionError: a number.*", why)
    lab = Lab(made, Digits())
    loop, vmap = engine_choice.time_engines(lab.group, lab.shared)
    assert 0 < loop < vmap == np.inf


@pytest.mark.parametrize("error, passes", [
    (TypeError("odd"), False), (BadInput("odd"), False), (GivenUp("waited"), True), (SystemExit(), True)])
def test_the_probe_passes_on_that_a_round_is_given_up(monkeypatch, error, passes):
    lab = Lab(method("fedavg", mlp()), Digits())

    def timed(candidate, group, shared):
        if candidate.name == "vmap":
            raise error
        return 1.
    monkeypatch.setattr(engine_choice, "time_engine", timed)
    with pytest.raises(type(error)) if passes else nullcontext():
        assert engine_choice.time_engines(lab.group, lab.shared).tolist() == [1, np.inf]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_built_in_method_does_at_clients_can_be_vectorised(name):
    made = method(name, mlp())
    assert engine_choice.find_vmap_obstacle(made, *made.init(4), BLANK, new_clients=1) is None
