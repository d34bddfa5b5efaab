"""FedALA: its limit, its formulas written a second time, and the first time that W is learned."""
from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from tests.federations import Lab, apart, method
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, digits, near, network, run


class Written:
    """FedALA by loops; the last `top` numbers of the model are blended."""

    def __init__(self, ref, top, first_passes=50, spread=.01, share=.8, mix_everyone=False):
        self.ref, self.top, self.first_passes, self.spread, self.share = ref, top, first_passes, spread, share
        self.everyone = mix_everyone
        self.w, clients = ref.start, range(len(ref.data))
        self.own = dict.fromkeys(clients, ref.start)
        self.W = {i: torch.ones(top) for i in clients}
        self.learned = dict.fromkeys(clients, False)
        self.passes = []

    def blended(self, i, W):
        own, w = self.own[i][-self.top:], self.w[-self.top:]
        return torch.cat([self.w[:-self.top], own + (w - own) * W])

    def one_pass(self, i, t, part, W, k):
        difference = (self.w - self.own[i])[-self.top:]
        for x, y in self.ref.batches_of(part, i, t, stream=2 + k, epochs=1):
            module = self.ref.network(self.blended(i, W))
            F.cross_entropy(module(x), y).backward()
            gradient = parameters_to_vector(p.grad for p in module.parameters())[-self.top:]
            W = (W - gradient * difference).clamp(0, 1)
        return W

    def mix(self, i, t):
        part = self.ref.part(i, t, self.share, stream=1)
        W, losses = self.one_pass(i, t, part, self.W[i], 0), []
        if not self.learned[i] and not torch.equal(self.own[i][-self.top:], self.w[-self.top:]):
            while True:
                losses.append(float(self.ref.loss_on(self.blended(i, W), part)))
                if len(losses) == self.first_passes or len(losses) >= 10 and np.std(losses[-10:]) < self.spread:
                    break
                W = self.one_pass(i, t, part, W, len(losses))
            self.passes.append(len(losses))
        return W

    def round(self, t):
        ids, sent = self.ref.who(t).ids, []
        for i in range(len(self.ref.data)) if self.everyone else ids:
            W = self.mix(i, t)
            self.learned[i] |= not torch.equal(self.own[i][-self.top:], self.w[-self.top:])
            what, self.W[i] = self.blended(i, W), W
            if i in ids:
                sent.append(self.ref.sgd(what, self.ref.batches(i, t), t))
            else:
                self.own[i] = what
        for i, w in zip(ids, sent, strict=True):
            self.own[i] = w
        self.w = self.ref.mean(sent, ids)


@pytest.mark.slow("mixes until they converge")
@pytest.mark.usefixtures("training")
def test_the_formulas():
    follow(2, 170, {})


@pytest.mark.slow("mixes until they converge")
@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("momentum, p, top, settings", [
    (.9, 2, 170, {"spread": 4e-4, "first_passes": 20}), (0., 1, 10, {"spread": 1e-4, "first_passes": 13}),
    (0., 3, 186, {"share": .5}), (.9, 2, 170, {"mix_everyone": True})], indirect=["momentum"])
def test_the_formulas_with_other_settings(p, top, settings):
    follow(p, top, settings)


def follow(p, top, settings):
    """Run FedALA beside its formulas and compare what they find."""
    found = run("fedala", p=p, **settings)
    written = Written(again(found), top, **settings)
    for t in range(ROUNDS):
        written.round(t)
    near(found.shared.w, written.w)
    for c in range(8):
        mine = found.mine(c)
        near(mine.top, written.own[c][-top:])
        near(mine.W, written.W[c])
        assert bool(mine.learned) == written.learned[c]
        near(found.apply(found.method.personal, [c], ROUNDS)[c], written.blended(c, written.mix(c, ROUNDS)))
    assert max(written.passes) > 10 - (not settings.get("spread"))
    assert min(float(W.min()) for W in written.W.values()) < .9


def test_a_step_of_0_is_fedavg():
    near(run("fedala", mix_lr=0.).shared.w, run("fedavg").shared.w, 1e-6)
    assert apart(run("fedala").state(), run("fedala", mix_lr=0.).state()) > 1e-3


def test_w_is_learned_for_long_once_only():
    """The first time is when a client first differs from the global model, not the first round."""
    lab = run("fedala", participation=1., rounds=1)
    assert not any(bool(lab.mine(c).learned) for c in range(8)) and (lab.mine(0).W == 1).all()
    first = run("fedala", participation=1., rounds=2)
    assert all(bool(first.mine(c).learned) for c in range(8))
    assert apart(first.state(), run("fedala", participation=1., rounds=2, first_passes=1).state()) > 1e-3
    one, many = (Lab(method("fedala", network(), first_passes=n), digits()) for n in (1, 50))
    # As if W had been learned before: then there is one pass, whatever the bound.
    for lab in (one, many):
        for c in range(8):
            lab.group.store.write(c, first.mine(c))
        lab.shared = first.shared
        lab.round(2)
    assert one.digest() == many.digest()


def test_clients_that_converge_earlier_wait_for_the_others():
    """In engine vmap all clients of a chunk make as many passes as the slowest; that must not change the others' W."""
    written = Written(again(run("fedala", rounds=0)), 170, spread=4e-4)
    for t in range(ROUNDS):
        written.round(t)
    assert len(set(written.passes)) > 1
    lab = Lab(method("fedala", network(), spread=4e-4), digits(), Vmap(), share=.6).go()
    assert apart(lab.state(), run("fedala", spread=4e-4).state()) < 1e-5


def test_what_is_trained_later_leaves_no_trace_in_the_evaluated_model():
    lab = run("fedala")
    evaluated = lab.apply(lab.method.personal, [3], ROUNDS)[3]
    assert torch.equal(evaluated[:lab.method.cut], lab.shared.w[:lab.method.cut])
    assert not torch.equal(evaluated[lab.method.cut:], lab.shared.w[lab.method.cut:])


def test_more_tensors_than_there_are_is_refused():
    with pytest.raises(BadInput, match="method.p = 5: the model has 4 parameter tensors"):
        method("fedala", network(), p=5)


def test_mixing_everyone_is_mixing_participants_when_all_take_part():
    everyone, participants = run("fedala", 1., 2, mix_everyone=True), run("fedala", 1., 2)
    assert everyone.digest() == participants.digest()
