"""Clustered additive modelling on clustered methods that have a round of their own before the first, or checks."""
from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedmpi.methods._cam import CAM
from fedmpi.methods.cgpfl import CGPFL
from fedmpi.methods.fedgroup import FedGroup
from fedmpi.methods.lcfed import LCFed
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


def test_the_checks_of_the_clustered_method_stay():
    with pytest.raises(ValueError, match="lr_p"):
        CGPFLCAM(lr_p=.2)
    with pytest.raises(ValueError, match="warm_steps"):
        CGPFLCAM(warm_steps=3)
