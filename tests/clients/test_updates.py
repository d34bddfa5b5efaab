"""The updates of attackers, clipped updates, and what a method refuses."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.assembly import build_method
from fedmpi.clients.updates import ATTACK_STREAM, alter_update, attack_update, clip_update
from fedmpi.config.schema import Config, Server
from fedmpi.engines.batch_plan import make_generator
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.faults import Attack, choose_attackers
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.fedper import Shared, Up
from tests.clients.normed import model_of
from tests.federations import Digits, Lab, View, method, mlp


class Counted(NamedTuple):
    """A model between two fields of integers and of truth values."""
    counts: torch.Tensor
    w: torch.Tensor
    seen: torch.Tensor


class OnlyCounts(NamedTuple):
    counts: torch.Tensor


engines = pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])


@pytest.fixture
def sent(mlp, federation):
    """Return the laboratory after local training, and what each client sends, with or without settings."""
    def sent(name, engine=None, t=0, **sections):
        lab = Lab(method(name, mlp), federation, engine, **sections)
        lab.train(t)
        return lab, lab.group.ups
    return sent


@pytest.mark.parametrize("name, field", [("fedavg", "w"), ("fedper", "phi"), ("fedavg_plus", "w"), ("ifca", "w")])
@engines
def test_a_sign_flipper_sends_the_opposite_of_its_update(sent, name, field, engine):
    attack = Attack("sign_flip", share=.25, scale=3.)
    (lab, flipped), (_, honest) = sent(name, engine, attack=attack), sent(name, engine)
    assert len(lab.group.attackers) == 2
    for client in lab.group.clients:
        # The Shared of IFCA has no field of this name.
        origin = getattr(lab.shared, field, torch.tensor(0.))
        update = getattr(honest[client], field) - origin
        factor = -3 if client in lab.group.attackers else 1
        torch.testing.assert_close(getattr(flipped[client], field), origin + factor * update, rtol=0, atol=1e-6)
        if name == "ifca":
            assert flipped[client].z == honest[client].z


@engines
def test_noise_is_drawn_for_each_attacker_and_round(sent, engine):
    attack = Attack("noise", share=.25, scale=.5)
    (lab, noisy), (_, honest) = sent("fedavg", engine, attack=attack), sent("fedavg", engine)
    added = {c: noisy[c].w - honest[c].w for c in lab.group.clients}
    a, b = (added[c] for c in lab.group.attackers)
    assert all(.45 < v.std() < .55 and abs(v.mean()) < .05 for v in (a, b)) and abs(np.corrcoef(a, b)[0, 1]) < .1
    assert all(not added[c].any() for c in set(lab.group.clients) - lab.group.attackers)
    (_, later), (_, honest) = sent("fedavg", engine, 1, attack=attack), sent("fedavg", engine, 1)
    assert abs(np.corrcoef(a, later[min(lab.group.attackers)].w - honest[min(lab.group.attackers)].w)[0, 1]) < .1


@pytest.mark.parametrize("name, field, part", [("fedavg", "w", "whole"), ("fedper", "phi", "base")])
@pytest.mark.parametrize("attack", [Attack("sign_flip", share=.5, scale=-9.), Attack("noise", share=.5, scale=2.)])
def test_no_attacker_sends_a_negative_variance(name, field, part, attack):
    """All else that it sends is the attack's."""
    model = model_of("average")
    net = model if part == "whole" else model.base
    lab = Lab(method(name, model), Digits((20, 30), image=True))
    lab.train(0)
    up, config, negative = lab.group.ups[0], Config(attack=attack), 0
    raw = attack_update(attack, lab.shared, up, make_generator(config.seed, 4, 0, ATTACK_STREAM))
    sent = alter_update(config, model, 0, True, lab.shared, up, 4)
    for name, of_attack, taken in zip(net.names, *(net.split(getattr(v, field)) for v in (raw, sent)), strict=True):
        if name.endswith("running_var"):
            negative += int((of_attack < 0).sum())
            of_attack = of_attack.clamp_min(0)
        assert torch.equal(taken, of_attack)
    assert negative
    assert alter_update(config, model, 0, False, lab.shared, up, 4) is up


def test_a_label_flipper_trains_on_other_labels(mlp, federation):
    class Flipped(View):
        def client(self, i):
            s = federation.client(i)
            return s._replace(y_train=9 - s.y_train) if i in lab.group.attackers else s
    lab = Lab(method("fedmhc", mlp), federation, attack=Attack("label_flip", share=.4))
    assert len(lab.group.attackers) == 3
    for i in lab.group.clients:
        y = federation.client(i).y_train
        assert np.array_equal(lab.group.get_training_samples(i)[1], 9 - y if i in lab.group.attackers else y)
    other = Lab(method("fedmhc", mlp), Flipped(federation)).go(2)
    assert lab.go(2).digest() == other.digest() != Lab(method("fedmhc", mlp), federation).go(2).digest()


def test_attackers_are_drawn_once_for_all_and_never_all():
    attack = Attack("noise", share=.2)
    assert len(choose_attackers(attack, 50, 3)) == 10 == len(set(choose_attackers(attack, 50, 3)))
    assert list(choose_attackers(attack, 50, 3)) == sorted(choose_attackers(attack, 50,
                                                                            3)) != sorted(choose_attackers(attack, 50,
                                                                                                           4))
    assert [len(choose_attackers(replace(attack, share=s), 4, 0)) for s in (1e-3, .5, .999)] == [1, 2, 3]
    assert not len(choose_attackers(attack, 1, 0)) and not len(choose_attackers(None, 9, 0))


def test_clipping_shortens_long_updates_alone():
    # The direction has length 3.
    shared, direction = Shared(torch.tensor([1., 2., 3.])), torch.tensor([2., -1., 2.])
    assert torch.equal(clip_update(shared, Up(shared.phi + direction), 1.5).phi, shared.phi + direction / 2)
    up = Up(shared.phi + direction)
    assert clip_update(shared, up, 3.) is up
    # Values that are not finite stay, so that they are found.
    for bad in (float("nan"), float("inf")):
        assert not clip_update(shared, Up(direction * bad), 1.).phi.isfinite().all()


def test_integers_are_neither_shortened_nor_counted():
    shared = Counted(torch.tensor([1, 1000]), torch.tensor([1., 2., 3.]), torch.tensor([True, False]))
    sent = Counted(torch.tensor([900, 4]), shared.w + torch.tensor([2., -1., 2.]), torch.tensor([True, True]))
    found = clip_update(shared, sent, 1.5)
    assert found.counts is sent.counts and found.seen is sent.seen
    assert found.w.tolist() == [2, 1.5, 4] and clip_update(shared, sent, 3.) is sent


@engines
def test_the_server_takes_clipped_updates(sent, engine):
    norms = [float((up.w - lab.shared.w).norm()) for lab, ups in [sent("fedavg", engine)] for up in ups.values()]
    most = float(np.median(norms))
    lab, ups = sent("fedavg", engine, server=Server(clip_norm=most))
    found = [float((up.w - lab.shared.w).norm()) for up in ups.values()]
    np.testing.assert_allclose(found, np.minimum(norms, most), rtol=1e-5)


@dataclass(frozen=True)
class Counting(FedAvg):
    """Clients send counts of their own beside their models, or those alone."""
    alone: Annotated[bool, "no model"] = False

    def client(self, shared, mine, data):
        counts = torch.zeros(2, dtype=torch.int64)
        return mine, OnlyCounts(counts) if self.alone else Counted(counts, shared.w, counts > 0)


def test_updates_of_integers_alone_cannot_be_shortened(federation, mlp):
    from fedmpi.config.schema import resolve
    clip = resolve({"model": {"name": "mlp", "hidden": 4}, "server": {"clip_norm": 2}})
    build_method(replace(clip, method=Counting()), federation)
    with pytest.raises(BadInput, match="in FedAvg clients send counts, which is not an update of one model"):
        build_method(replace(clip, method=Counting(alone=True)), federation)


def refusal(config, name, federation) -> str:
    with pytest.raises(BadInput) as refused:
        build_method(replace(config, method=type(method(name, mlp()))()), federation)
    return str(refused.value)


def test_what_means_nothing_for_a_method_is_refused(federation):
    from fedmpi.config.schema import resolve
    robust, clip, noise, labels = (resolve({"model": {"name": "mlp", "hidden": 4}} | section) for section in (
        {"server": {"aggregation": "median"}}, {"server": {"clip_norm": 2}}, {"attack": {"kind": "noise"}},
        {"attack": {"kind": "label_flip"}}))
    for name, title in {"fedmhc": "FedMHC", "local": "Local", "fedamp": "FedAMP", "fedfomo": "FedFomo",
                        "fedcr": "FedCR", "lcfed": "LCFed"}.items():
        said = refusal(robust, name, federation)
        assert said.startswith(f"server.aggregation = median: the server of {title} does not")
    assert "in FedMHC clients send w, which is not an update of one model" in refusal(clip, "fedmhc", federation)
    assert "in FedCR clients send experts, which" in refusal(clip, "fedcr", federation)
    assert "in Local clients send nothing, which" in refusal(clip, "local", federation)
    for name in ("local", "fedamp"):
        assert refusal(noise, name, federation).startswith("attack.kind = noise: clients of ")
        build_method(replace(labels, method=type(method(name, mlp()))()), federation)
    assert "in FedFomo clients receive what other clients keep, which" in refusal(noise, "fedfomo", federation)
    for config in (robust, clip, noise):
        build_method(config, federation)
