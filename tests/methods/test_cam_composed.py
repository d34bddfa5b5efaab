"""Clustered additive modelling on clustered methods that have a round of their own before the first, or checks."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch

from fedmpi.engines.loop import Loop
from fedmpi.engines.step_counter import KINDS, PARTICIPANTS
from fedmpi.engines.vmap import Vmap
from fedmpi.methods._cam import CAM
from fedmpi.methods.cgpfl import CGPFL
from fedmpi.methods.fedcps import FedCPS
from fedmpi.methods.fedgroup import FedGroup
from fedmpi.methods.fedmhc import FedMHC
from fedmpi.methods.fedmhc_ah import FedMHCAH
from fedmpi.methods.lcfed import LCFed
from fedmpi.methods.pfedcam import PFedCAM
from tests.federations import Lab, method
from tests.methods.test_cam import Silent, assert_is_what_it_modifies


@dataclass(frozen=True)
class LCFedCAM(CAM, LCFed):
    """CAM on a method whose clients start from the initial model until the round before the first one is over."""


@dataclass(frozen=True)
class FedGroupCAM(CAM, FedGroup):
    """CAM on a method whose groups come from the round before the first one."""


@dataclass(frozen=True)
class CGPFLCAM(CAM, CGPFL):
    """CAM on a method with checks of its own."""


@dataclass(frozen=True)
class SilentLCFed(Silent, LCFedCAM):
    """LCFed-CAM without g."""


@dataclass(frozen=True)
class SilentFedGroup(Silent, FedGroupCAM):
    """FedGroup-CAM without g."""


COMPOSED = [(SilentLCFed, LCFedCAM, "lcfed", {"K": 3}), (SilentFedGroup, FedGroupCAM, "fedgroup", {"K": 3})]


@pytest.mark.parametrize("silent, cam, name, settings", COMPOSED, ids=["lcfed", "fedgroup"])
def test_a_round_before_the_first_one_is_that_of_the_clustered_method(mlp, federation, silent, cam, name, settings):
    assert_is_what_it_modifies(mlp, federation, silent, name, settings)


@pytest.mark.parametrize("silent, cam, name, settings", COMPOSED, ids=["lcfed", "fedgroup"])
def test_the_global_model_warms_up_after_that_round(mlp, federation, silent, cam, name, settings):
    """While g is trained, the clusters' state stays as the round before the first one left it."""
    lab, plain = Lab(cam(warm_up=2, **settings).with_model(mlp), federation), Lab(method(name, mlp, **settings),
                                                                                  federation)
    for one in (lab, plain):
        one.go(0)
    first, g = lab.shared, mlp.starts(1)[-1]
    assert first.round == 0 and all(torch.equal(getattr(first, field), v)
                                    for field, v in plain.shared._asdict().items())
    lab.round(0)
    lab.round(1)
    assert all(torch.equal(getattr(lab.shared, field), getattr(first, field)) for field in plain.shared._fields)
    assert lab.shared.round == 2 and (lab.shared.g - first.g).norm() > .01 * g.norm()
    lab.round(2)
    assert any((getattr(lab.shared, field) != getattr(first, field)).any() for field in plain.shared._fields)


@pytest.mark.parametrize("clustered", [CGPFL, FedMHC, FedMHCAH, PFedCAM])
def test_clients_may_warm_up_alone_before_k_means(mlp, federation, clustered):
    """The server clusters what they send in the round before the first one, too."""
    cam = dataclass(frozen=True)(type("Warm", (CAM, clustered), {}))
    lab = Lab(cam(warm="local", warm_up=1, warm_steps=2).with_model(mlp), federation).go(0)
    assert lab.shared.round == 0 and lab.go(1).shared.round == 2


class Watched:
    """Notes beside which model g was trained."""

    def train_global(self, w, g, data):
        self.seen[int(data.id)] = w.clone()
        return super().train_global(w, g, data)


@dataclass(frozen=True)
class WatchedCGPFL(Watched, CGPFLCAM):
    seen: ClassVar[dict] = {}


@dataclass(frozen=True)
class WatchedFedCPS(Watched, CAM, FedCPS):
    seen: ClassVar[dict] = {}


@pytest.mark.parametrize("cam, settings", [(WatchedFedCPS, {}), (WatchedFedCPS, {"personal_layers": "client"}),
                                           (WatchedCGPFL, {})], ids=str)
def test_g_is_trained_beside_the_model_that_the_round_began_from(mlp, federation, cam, settings):
    """Not beside the one that the client is evaluated by, which it has from its round before (eq. 8)."""
    lab = Lab(cam(warm_up=0, **settings).with_model(mlp), federation, share=.6)
    for t in range(3):
        cam.seen.clear()
        old, before = lab.shared, {c: lab.mine(c) for c in range(8)}
        facts, ids = (who := lab.round(t)).facts, who.ids
        for i, j in zip(ids, facts["clusters"], strict=True):
            if cam is WatchedCGPFL:
                k = int(old.context[i])
                begun = old.Omega[k] if k >= 0 else old.Omega.mean(0)
            else:
                last = old.theta[int(j)] if not settings else before[i].w[len(old.base):]
                begun = torch.cat([old.base, last])
            assert torch.equal(cam.seen[i], begun)
        assert sorted(cam.seen) == ids.tolist()


@dataclass(frozen=True)
class FedMHCAHCAM(CAM, FedMHCAH):
    """CAM on a method whose clients mix also if they do not take part."""


def test_who_only_mixes_does_so_beside_g(mlp, federation):
    lab = Lab(FedMHCAHCAM(warm_up=1, mix_everyone=True).with_model(mlp), federation, share=.6)
    first = {c: lab.mine(c) for c in range(8)}
    lab.round(0)
    # while g is trained alone, nobody mixes
    assert all(torch.equal(a, b) for c in range(8) for a, b in zip(lab.mine(c), first[c], strict=True))
    # heads of one's own, without which there is nothing to mix
    lab.round(1)
    told = {c: lab.apply(lab.method.client, [c], 2)[c][0] for c in range(8)}
    plain = lab.apply(partial(FedMHCAH.idle, lab.method), [*range(8)], 2)
    who = lab.round(2)
    rest = sorted(set(range(8)) - set(who.ids.tolist()))
    assert rest and all(torch.equal(lab.mine(c).W, told[c].W) for c in rest)
    assert any((lab.mine(c).W != plain[c].W).any() for c in rest)


@dataclass(frozen=True)
class PFedCAMCAM(CAM, PFedCAM):
    """CAM on a method whose clients make further passes before their own training."""


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("engine", [Loop, Vmap])
@pytest.mark.parametrize("cam", [FedMHCAHCAM, PFedCAMCAM])
def test_while_g_warms_up_the_clustered_method_makes_no_steps(mlp, federation, cam, engine, steps):
    """Neither its own training nor further passes, which a client would make for nothing."""
    lab = Lab(cam(warm_up=1).with_model(mlp), federation, engine(), replace(Lab.training, steps=steps))
    kinds = []
    for t in range(2):
        lab.round(t)
        made = dict(zip(KINDS, lab.group.counter.take().reshape(-1, len(KINDS))[PARTICIPANTS], strict=True))
        kinds.append({kind for kind, count in made.items() if count})
    assert kinds[0] == {"warm_up"} and {"main", "mix"} <= kinds[1]


def test_the_stages_are_those_of_both(mlp):
    """While g warms up, while clients choose a cluster, and when their choices are final."""
    cam = WatchedFedCPS(warm_up=3, stable=4).with_model(mlp)
    shared = cam.init(5)[0]
    stages = cam.stages(shared, 10)
    assert [n for n, _ in stages] == [3, 7, 0] and [cam.stage_of(one) for _, one in stages] == [0, 1, 2]
    assert [n for n, _ in cam.stages(shared, 2)] == [2, 0, 0]
    assert cam.stage_of(shared._replace(round=torch.tensor(3))) == 1


def test_the_checks_of_the_clustered_method_stay():
    with pytest.raises(ValueError, match="lr_p"):
        CGPFLCAM(lr_p=.2)
    with pytest.raises(ValueError, match="warm_steps = 3: with warm global "):
        CGPFLCAM(warm_steps=3)
    with pytest.raises(ValueError, match="warm_steps = 3: with warm_up = 0 there is no warm-up"):
        CGPFLCAM(warm="local", warm_up=0, warm_steps=3)
