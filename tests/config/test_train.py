"""The learning rate of a round: decay, schedule and warm-up, against torch.optim.lr_scheduler."""
from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, MultiStepLR, SequentialLR

from fedmpi.config.schema import Train, resolve
from fedmpi.engines.batch_plan import get_local_training
from fedmpi.errors import BadInput

ROUNDS, LR = 10, .2


def rates(**train) -> list[float]:
    config = resolve({"rounds": ROUNDS, "train": {"lr": LR, **train}})
    return [get_local_training(config, t).lr for t in range(ROUNDS)]


def by_torch(scheduler) -> list[float]:
    """Return the rates of the rounds if each is an epoch of a scheduler of PyTorch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], LR)
    made, found = scheduler(optimizer), []
    for _ in range(ROUNDS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return found


@pytest.mark.parametrize("train, scheduler", [
    ({}, lambda o: ExponentialLR(o, 1.)), ({"lr_decay": .9}, lambda o: ExponentialLR(o, .9)),
    ({"schedule": "step", "milestones": [3, 7], "step_factor": .5}, lambda o: MultiStepLR(o, [3, 7], .5)),
    ({"schedule": "cosine"}, lambda o: CosineAnnealingLR(o, ROUNDS)),
    ({"schedule": "cosine", "warm_up": 4}, lambda o: SequentialLR(
        o, [LinearLR(o, 1 / 5, 1., 4), CosineAnnealingLR(o, ROUNDS - 4)], [4]))])
def test_rates_are_those_of_torch(train, scheduler):
    assert rates(**train) == pytest.approx(by_torch(scheduler))


def test_decay_and_schedule_multiply_and_so_do_rates_of_a_methods_own():
    train = {"lr_decay": .9, "schedule": "step", "milestones": [2], "warm_up": 1}
    assert rates(**train)[:4] == pytest.approx([LR / 2, LR * .9, LR * .081, LR * .0729])
    config = resolve({"rounds": ROUNDS, "train": {"lr": LR, **train}})
    found = [get_local_training(config, t) for t in (-1, 0, 3)]
    assert [local.decay * LR for local in found] == pytest.approx([local.lr for local in found])
    assert found[0].lr == found[1].lr


def test_the_last_round_of_a_warm_up_is_below_the_full_rate():
    assert rates(warm_up=ROUNDS - 1) == pytest.approx([LR * (t + 1) / ROUNDS for t in range(ROUNDS)])
    assert Train().rate_factor(7, ROUNDS) == 1.


def test_milestones_while_the_rate_grows_are_refused():
    step = {"lr": LR, "schedule": "step", "warm_up": 3}
    with pytest.raises(BadInput, match=r"milestones = \[3\]: the rate grows until round warm_up = 3; give later ones"):
        resolve({"rounds": ROUNDS, "train": step | {"milestones": [3]}})
    assert resolve({"rounds": ROUNDS, "train": step | {"milestones": [4]}})
