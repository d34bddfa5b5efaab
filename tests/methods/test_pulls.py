"""Pulls with which every step would overshoot its centre by more than the last one are refused before a run starts."""
from __future__ import annotations

import inspect
import re

import pytest
import torch

from fedmpi import registry
from fedmpi.config.schema import resolve
from fedmpi.engines.optimizer import Optimizer
from fedmpi.engines.step import PullTerm, Step, StepOptions
from fedmpi.errors import BadInput
from tests.methods.table import NAMES

# The settings that pull, by method; the others have none, or refuse too strong ones by themselves (FedAMP, pFedMe and
# CGPFL).
PULLS = {"ditto": ["lam"], "fedprox": ["mu"], "fedprox_plus": ["mu"], "fedmhc": ["lam"], "fesem": ["lam"],
         "fesem_cam": ["lam"], "lcfed": ["mu", "lam"], "fedcps": ["lam_max"]}
OWN_CHECK = {"fedamp", "pfedme", "cgpfl"}


def check(name, pulls, **train):
    config = resolve({"method": {"name": name, **pulls}, "train": {"lr": .1, **train}})
    config.method.check(config.train)


@pytest.mark.parametrize("name, setting", [(name, s) for name, settings in PULLS.items() for s in settings])
def test_a_pull_that_would_diverge_is_refused(name, setting):
    others = dict.fromkeys({*PULLS[name]} - {setting}, 0.)
    check(name, {**others, setting: 19.9})
    with pytest.raises(BadInput, match=rf"^method\..*{setting}.* = 20: with train.lr = 0.1 every step .* below 20, or"):
        check(name, {**others, setting: 20.})
    # Momentum moves the limit to 2 (1 + m) / lr, and Adam has none.
    check(name, {**others, setting: 37.9}, momentum=.9)
    with pytest.raises(BadInput, match="it must be below 38, or"):
        check(name, {**others, setting: 38.}, momentum=.9)
    check(name, {**others, setting: 30.}, optimizer="adam")
    # Nesterov's momentum moves it back to 2 (1 + m) / ((1 + 2 m) lr), and weight decay pulls, too.
    with pytest.raises(BadInput, match="it must be below 13.6, or"):
        check(name, {**others, setting: 13.6}, momentum=.9, nesterov=True)
    with pytest.raises(BadInput, match="it must be below 15, or"):
        check(name, {**others, setting: 15.}, weight_decay=5.)


def test_both_pulls_of_lcfed_count():
    """Its extractor is pulled to two centres at once."""
    check("lcfed", {"mu": 10., "lam": 9.9})
    with pytest.raises(BadInput, match=r"^method\.mu \+ method\.lam = 20: with"):
        check("lcfed", {"mu": 10., "lam": 10.})


def test_fedcps_without_a_pull_has_no_limits():
    check("fedcps", {"lam": 0., "lam_min": 30., "lam_max": 40.})


def test_the_pull_of_fedcps_adapts_up_to_its_largest():
    """With the defaults a client of few samples would be driven away from its cluster."""
    with pytest.raises(BadInput, match=r"^method.lam_max = 10: with train.lr = 0.3 .* must be below 6.67, or"):
        check("fedcps", {}, lr=.3)


def test_every_method_that_pulls_is_here():
    """A step of the engine is told of pulls; whoever tells it one has a limit."""
    pulling = set()
    for name in NAMES:
        classes = [cls for cls in registry.find_class("methods", name).__mro__ if ".methods." in cls.__module__]
        if any("pull=" in inspect.getsource(cls) for cls in classes):
            pulling.add(name)
    assert pulling == set(PULLS) | {"fedamp"}


@pytest.mark.parametrize("momentum, nesterov, decay", [(0., False, 0.), (.9, False, 0.), (.9, True, 0.), (.5, True, 3.),
                                                       (0., False, 5.)])
def test_the_limit_is_where_steps_begin_to_diverge(momentum, nesterov, decay):
    """Steps of no other gradient come to the centre below it, and leave it above it."""
    settings = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    with pytest.raises(BadInput) as refused:
        check("ditto", {"lam": 100.}, **settings)
    limit, ends = float(re.search(r"below ([\d.]+)", str(refused.value))[1]), []
    for strength in (.98 * limit, 1.02 * limit):
        w, centre = torch.ones(5), torch.zeros(5)
        options = StepOptions(.1, momentum, [PullTerm(centre, strength, None)],
                              optimizer=Optimizer(weight_decay=decay, nesterov=nesterov))
        step = Step(w, lambda flat: [flat], options)
        for _ in range(300):
            step.take([torch.zeros(5)])
        ends.append(float(step.result().abs().max()))
    assert ends[0] < .1 and ends[1] > 10
