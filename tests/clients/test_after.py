"""Which clients a run evaluates right after local training changes no bit of its results, whatever clients keep."""
from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.config.schema import Evaluate
from fedmpi.engines.batchnorm import with_local_batchnorm
from fedmpi.engines.vmap import Vmap
from fedmpi.methods.fedamp import FedAMP
from tests.federations import Lab, method
from tests.methods.table import NAMES, SHOWN, marked


@pytest.mark.parametrize("name", ["fedah", "fedmhc_ah", "fedala"])
def test_clients_that_only_mix_are_evaluated_as_if_they_took_part(name, mlp, federation, monkeypatch):
    """They train, only to be measured, from what they kept before they mixed, as participants do."""
    run = Lab(method(name, mlp, mix_everyone=True), federation, share=.6, evaluate=Evaluate(after_training="all")).go(2)
    before, began, client = copy.deepcopy([run.mine(c) for c in range(8)]), {}, run.group.checked.client
    monkeypatch.setattr(run.group.checked, "client", lambda shared, mine, data: (
        began.setdefault(int(data.id), mine), client(shared, mine, data))[1])
    there = run.round(2, evaluates=True).ids
    assert sorted(began) == list(range(8)) and len(there) < 8
    assert all(torch.equal(x, y) for c in range(8) for x, y in zip(began[c], before[c], strict=True))
    assert any(not torch.equal(x, y) for c in range(8) if c not in there
               for x, y in zip(run.mine(c), before[c], strict=True))


class Addressed(FedAMP):
    """Its clients that do not take part look at their message."""
    idles = True
    seen: ClassVar[list] = []

    def idle(self, shared, mine, data):
        self.seen.append((data.local.round, data.message))
        return mine

    def trained(self, shared, mine, up):
        return mine.w


def test_who_does_not_take_part_has_no_message_although_it_is_measured(mlp, federation):
    """It has one while it is trained to be measured; what it then does for itself does not depend on that."""
    Addressed.seen.clear()
    lab = Lab(Addressed().with_model(mlp), federation, share=.6, evaluate=Evaluate(after_training="all"))
    lab.go(2, evaluates=True)
    assert {round for round, _ in Addressed.seen} == {0, 1} and all(message is None for _, message in Addressed.seen)


@pytest.mark.parametrize("name, others", [("fedamp", 0), ("fedavg", 3)])
def test_nobody_trains_to_be_measured_if_the_method_has_no_model_after_training(name, others, mlp, federation):
    """Nor is it sent a message for that."""
    lab = Lab(method(name, mlp), federation, share=.6, evaluate=Evaluate(after_training="all"))
    trained, addressed = [], []
    client, messages = lab.group.checked.client, lab.checked.messages
    lab.group.checked.client = lambda shared, mine, data: (
        trained.append(int(data.id)), client(shared, mine, data))[1]
    lab.checked.messages = lambda shared, mine, who: (addressed.append(who.ids), messages(shared, mine, who))[1]
    there = lab.round(0, evaluates=True).ids
    assert sorted(trained)[:5 + others] == sorted({*there, *trained}) and len(trained) == 5 + others
    assert all(ids.tolist() == there.tolist() for ids in addressed) and bool(addressed) is (name == "fedamp")


@pytest.mark.parametrize("name, differs", [("ditto", False), ("fedmhc", False), ("fedavg", True)])
def test_statistics_of_ones_own_bring_no_model_after_training(name, differs, mlp):
    checked = CheckedMethod(with_local_batchnorm(method(name, mlp)), None, None, 10)
    assert checked.may_differ_after_training is differs


@pytest.mark.parametrize("name", marked(*NAMES))
def test_states_do_not_depend_on_who_is_evaluated_after_training(name, mlp, federation):
    """The digest after two rounds with five of eight clients is the same if all or none are measured after training."""
    runs = [Lab(method(name, mlp, **SHOWN.get(name, {})), federation, Vmap(), share=.6,
                evaluate=Evaluate(after_training=after)) for after in ("all", "off")]
    for run in runs:
        run.go(2, evaluates=True)
    assert runs[0].digest() == runs[1].digest()
    np.testing.assert_array_equal(runs[0].group.find_touched(), runs[1].group.find_touched())
    tables = [run.evaluated for run in runs]
    np.testing.assert_array_equal(tables[0][:, [0, 2]], tables[1][:, [0, 2]])
    assert not tables[1][:, 1].any()
    has_model = runs[0].method.trained(runs[0].shared, runs[0].mine(0), runs[0].up) is not None
    np.testing.assert_array_equal(tables[0][:, 1, 0], float(has_model))
    assert has_model or not tables[0][:, 1].any()
