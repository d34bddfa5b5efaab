"""Samples that influence each other within a batch: engine vmap, which pads batches, leaves these to loop."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmpi.engines import coupling
from fedmpi.engines.coupling import SAMPLES_COMPARED, find_coupling, is_same_alone
from fedmpi.engines.engine_choice import choose_by_network, refuse_vmap, time_engines
from fedmpi.engines.loop import Loop
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg, Up
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.nets import MLP, FastText
from fedmpi.models.precision import is_autocasting, set_precision
from tests.federations import Digits, Lab
from tests.federations import method as make_method
from tests.methods.table import NAMES

BLANK = make_blank_samples((64,), "float32")


def build(settings):
    return build_model(settings, (64,), np.dtype("float32"), 10, seed=5)


class Centring(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


@dataclass(frozen=True)
class Centred:
    def build(self, shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), Centring(), nn.Linear(8, classes))


@dataclass(frozen=True)
class Contrastive(FedAvg):
    """Cross-entropy and a supervised contrastive term on the features."""
    how: str = "descend"
    weight: float = 1.

    def client(self, shared, mine, data):
        def loss(w, x, y, *more):
            noise, args = (more, ()) if self.how == "noise" else ((), more)
            z = F.normalize(self.model.features(w, x), dim=1)
            # (Khosla et al., 2020): which of the others are of the same class
            others = 1 - torch.eye(len(y))
            same, s = (y[:, None] == y) * others, z @ z.T / .5
            log_share = s - (s.exp() * others).sum(1, keepdim=True).clamp_min(1e-9).log()
            near = (same * log_share).sum(1) / same.sum(1).clamp_min(1)
            return F.cross_entropy(self.model(w, x + sum(noise)), y, reduction="none") - sum(args, self.weight) * near
        if self.how == "scan":
            return mine, Up(data.scan(lambda state, gradient: (state[0] - .1 * gradient(loss, state[0]),),
                                      (shared.w,))[0])
        return mine, Up(data.descend(loss, shared.w, args=(torch.zeros(()),) * (self.how == "args"),
                                     noise=(64,) if self.how == "noise" else None))


@pytest.mark.parametrize("how", ["descend", "args", "scan", "noise"])
def test_a_loss_that_compares_the_samples_of_a_batch_is_left_to_loop(how):
    method = Contrastive(how=how).with_model(build(MLP(hidden=8)))
    name, why = choose_by_network(method, *method.init(2), BLANK)
    assert name == "loop" and why.endswith("its loss of a sample depends on the other samples of the batch")
    with pytest.raises(BadInput, match=r"vmap: .*client cannot be vectorised \(its loss of a sample depends on"):
        refuse_vmap("vmap", method, BLANK)
    # The same loss without what couples them.
    method = Contrastive(how=how, weight=0.).with_model(build(MLP(hidden=8)))
    assert choose_by_network(method, *method.init(2), BLANK)[0] == "vmap"


@pytest.mark.parametrize("share, same", [(0., True), (2e-4, True), (4e-3, False)])
def test_more_than_roundings_is_an_influence(share, same):
    x = torch.arange(1., 1. + SAMPLES_COMPARED)
    assert is_same_alone(lambda x: x + share * x.mean(0), build(MLP(hidden=8)), x) == same


@pytest.mark.parametrize("weight, finds", [(1., True), (0., False)])
def test_on_a_gpu_it_is_not_timed(weight, finds):
    """The engines are timed on clients' own samples there."""
    lab = Lab(Contrastive(weight=weight).with_model(build(MLP(hidden=8))), Digits(sizes=(3, 5), test=2), Loop())
    loop, vmap = time_engines(lab.group, lab.shared)
    assert 0 < loop < np.inf and (vmap == np.inf) == finds


def test_a_network_that_centres_a_batch_is_left_to_loop():
    method = FedAvg().with_model(build(Centred()))
    name, why = choose_by_network(method, *method.init(2), BLANK)
    assert name == "loop" and why == ("the network cannot be vectorised: the outputs of a sample depend on the other "
                                      "samples of its batch")


@pytest.mark.parametrize("name", NAMES)
def test_no_built_in_method_lets_samples_influence_each_other(name):
    method = make_method(name, build(MLP(hidden=8)))
    assert find_coupling(method, *method.init(4), BLANK) is None


def test_neither_does_a_text():
    model = build_model(FastText(vocabulary=20, width=4), (6,), np.dtype("int32"), 3, seed=5)
    method = FedAvg().with_model(model)
    assert find_coupling(method, *method.init(2), make_blank_samples((6,), "int32")) is None


def test_padding_would_have_changed_what_is_learned():
    """The reason for all this: a batch that is padded with a copy has another loss."""
    model, loss = build(Centred()), nn.CrossEntropyLoss(reduction="none")
    x, y = torch.randn(3, 64), torch.tensor([0, 1, 2])
    padded = loss(model(model.start, torch.cat([x, x[:1]])), torch.cat([y, y[:1]]))[:3]
    assert not torch.allclose(padded, loss(model(model.start, x), y))


def test_samples_are_compared_in_float32(monkeypatch):
    """In bfloat16 one last bit is more than the tolerance, and a GPU rounds a batch and a single sample differently."""
    seen, before = [], coupling.is_same_alone
    monkeypatch.setattr(coupling, "is_same_alone", lambda *args: (seen.append(is_autocasting()), before(*args))[1])
    chosen = make_method("fedavg", build(MLP(hidden=8)))
    set_precision("bf16")
    try:
        assert find_coupling(chosen, *chosen.init(2), BLANK) is None
        assert seen and not any(seen) and is_autocasting()
    finally:
        set_precision("float32")
