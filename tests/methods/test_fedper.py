"""FedPer, FedRep and LG-FedAvg: one part of the model is averaged, the other stays with the client."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.torch_compat import measure_memory
from tests.federations import Digits
from tests.methods.reference import HEADS
from tests.methods.trial import ROUNDS, again, correct, evaluated, mean, near, network, run

NAMES = ("fedper", "fedrep", "lg_fedavg")


def fedper(ref, t, i, w, head_epochs):
    return ref.sgd(w, ref.batches(i, t), t)


def fedrep(ref, t, i, w, head_epochs):
    w = ref.sgd(w, ref.batches(i, t, stream=2, epochs=head_epochs), t, moving=lambda name: name in HEADS)
    return ref.sgd(w, ref.batches(i, t), t, moving=lambda name: name not in HEADS)


def split(ref, train, kept, head_epochs=None):
    """Return the averaged part, every client's own part, and the last participants' whole models.

    kept: "h" for FedPer and FedRep, "phi" for LG-FedAvg."""
    parts = {"phi": slice(0, ref.cut), "h": slice(ref.cut, None)}
    mine, sent = parts.pop(kept), next(iter(parts.values()))
    shared, own = ref.start[sent], dict.fromkeys(range(len(ref.data)), ref.start[mine])
    for t in range(ROUNDS):
        who, trained = ref.who(t), {}
        for i in who.ids:
            trained[i] = train(ref, t, i, joined(kept, own[i], shared), head_epochs)
            own[i] = trained[i][mine]
        shared = mean([w[sent] for w in trained.values()], who.sizes)
    return shared, own, trained


def joined(kept, own, shared):
    return torch.cat([own, shared] if kept == "phi" else [shared, own])


def reference(name, lab, **settings):
    return split(again(lab), fedrep if name == "fedrep" else fedper, kept(name), **settings)


def kept(name):
    return "phi" if name == "lg_fedavg" else "h"


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("share", [1., .6])
@pytest.mark.parametrize("name, settings", [("fedper", {}), ("lg_fedavg", {}), ("fedrep", {"head_epochs": 1}),
                                            ("fedrep", {"head_epochs": 3})])
def test_the_formulas(name, settings, share):
    found = run(name, share, **settings)
    shared, own, _ = reference(name, found, **settings)
    near(found.shared[0], shared)
    for c in range(8):
        near(found.mine(c)[0], own[c])
        near(evaluated(found, c), joined(kept(name), own[c], shared))


def test_fedrep_is_fedah_that_never_takes_the_global_head():
    rep, ah = run("fedrep", head_epochs=2), run("fedah", mix_start=0., mix_epochs=0, head_epochs=2)
    assert torch.equal(rep.shared.phi, ah.shared.w[rep.method.model.phi])
    for c in range(8):
        assert torch.equal(rep.mine(c).h, ah.mine(c).h)


@pytest.mark.parametrize("name", ["fedper", "lg_fedavg"])
def test_a_client_alone_trains_as_local(name):
    """With a single client its own part and the averaged one are two parts of one model."""
    alone, local = run(name, federation=Digits((33,))), run("local", federation=Digits((33,)))
    near(evaluated(alone, 0), local.mine(0).w, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_own_part_with_the_averaged_one_is_evaluated_and_right_after_training_both_own(name):
    found = run(name, rounds=ROUNDS - 1)
    found.round(ROUNDS - 1, evaluates=True)
    shared, own, trained = reference(name, found, **{"head_epochs": 10} if name == "fedrep" else {})
    table = found.evaluate(ROUNDS)
    assert table[:, 0, 1].tolist() == [correct(found, c, joined(kept(name), own[c], shared)) for c in range(8)]
    assert {c: row[1] for c, row in enumerate(table[:, 1]) if row[0]} == {c: correct(found, c, w)
                                                                          for c, w in trained.items()}
    assert not np.any(table[:, 2])


@pytest.mark.parametrize("name", NAMES)
def test_no_personal_part_is_shared(name):
    """Every participant has its own part, which is not the average of all and is not sent."""
    found = run(name, participation=1.)
    parts = torch.stack([found.mine(c)[0] for c in range(8)])
    assert torch.pdist(parts).min() > 1e-3
    model, numbers = found.method.model, sum(found.method.traffic(found.shared, found.up)) / 4
    assert numbers == 2 * (model.head.size if name == "lg_fedavg" else model.base.size)


@pytest.mark.parametrize("name", (*NAMES, "fedbabu"))
def test_a_client_keeps_and_sends_no_more_than_its_part_in_memory(name):
    """A slice that waits for the server, or that a client keeps, would keep the whole trained model."""
    found = run(name)
    c = int(found.who(ROUNDS - 1).ids[0])
    parts = [*found.mine(c), *found.group.ups[c]]
    assert len(parts) == (1 if name == "fedbabu" else 2)
    assert [measure_memory(part) for part in parts] == [4 * part.numel() for part in parts]


@pytest.mark.parametrize("name", NAMES)
def test_none_of_them_is_fedavg_or_local(name):
    found, model = run(name, participation=1.), network()
    block = model.h if name == "lg_fedavg" else model.phi
    for other in ("fedavg", "local"):
        other = run(other, participation=1.)
        assert (found.shared[0] - evaluated(other, 0)[block]).abs().max() > 1e-3
