"""The section `train` of a configuration: the local training of a client in a round."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from fedmpi.errors import BadInput
from fedmpi.settings import AtMost, Ge, Gt, Le, Lt, PassCount

MAX_PADDING = 10_000


@dataclass(frozen=True)
class Train:
    """Local training of a client in a round."""
    title = "train"
    batch: Annotated[int, Ge(1), "samples per SGD step"] = 10
    lr: Annotated[float, Gt(0), "learning rate eta"] = .005
    lr_decay: Annotated[float, Gt(0), Le(1), "factor on the learning rate after every round"] = 1.0
    schedule: Annotated[Literal["constant", "step", "cosine"], "learning rate over the rounds, beside lr_decay: times "
                        "step_factor at each milestone, or half a cosine that would be 0 after the last round"
                        ] = "constant"
    milestones: Annotated[tuple[int, ...], "numbers of rounds after which schedule step lowers the rate"] = ()
    step_factor: Annotated[float, Gt(0), Le(1), "what schedule step multiplies the rate by at each milestone"] = .1
    warm_up: Annotated[int, Ge(0), "first rounds, in which the rate grows evenly up to that of the schedule"] = 0
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], "what takes the steps; the moments of adam and adamw "
                         "(.9, .999) start at zero in every local training, as momentum does"] = "sgd"
    momentum: Annotated[float, Ge(0), Le(.9999), "momentum of local SGD, reset every round"] = 0.0
    nesterov: Annotated[bool, "Nesterov's momentum in place of the usual one"] = False
    weight_decay: Annotated[float, Ge(0), "pull of the trained weights to 0: a part of the gradient (sgd, adam), or "
                            "beside the step (adamw)"] = 0.0
    clip_norm: Annotated[float | None, Gt(0), "longer gradients of a batch are shortened to this norm, before pulls "
                         "and weight decay are added; null: no limit"] = None
    label_smoothing: Annotated[float, Ge(0), Lt(1), "share of each label that is spread evenly over all classes while "
                               "a network is trained"] = 0.0
    augment: Annotated[tuple[Literal["crop", "flip"], ...], "random changes of training images, new for every "
                       "batch: crop (after padding with black), flip (left and right)"] = ()
    padding: Annotated[int, Ge(1), AtMost(MAX_PADDING, "shifts are 16-bit integers"), "pixels on each side that "
                       "augment crop adds before it cuts the image out"] = 4
    epochs: Annotated[PassCount, Ge(1), "local epochs E per round"] = 1
    drop_last: Annotated[bool, "leave out the last batch of an epoch if it is shorter than the others, as a DataLoader "
                         "with drop_last; a client's only batch stays"] = False
    steps: Annotated[int | None, Ge(1), "local steps per round, in place of `epochs`, over as many epochs as they "
                     "take; further passes that a method counts in epochs are shortened in the same proportion"] = None
    participation: Annotated[float | tuple[float, float],
                             "share of clients that take part in a round, or a range to draw it from"] = 1.0
    sampling: Annotated[Literal["uniform", "size", "loss"], "how participants are drawn: all clients alike, by their "
                        "training samples, or those of the highest loss among candidates (power-of-choice)"] = "uniform"
    candidates: Annotated[int | None, Ge(1), "clients whose losses sampling loss compares; null: twice as many as take "
                          "part"] = None

    def __post_init__(self) -> None:
        low, high = self.participation if isinstance(self.participation, tuple) else (self.participation,) * 2
        if not 0 < low <= high <= 1:
            shown = low if low == high else [low, high]
            raise ValueError(f"participation = {shown}: a share in (0, 1] or a range [low, high] of such")
        if self.candidates and self.sampling != "loss":
            raise ValueError(f"candidates = {self.candidates}: sampling {self.sampling} compares no losses; set "
                             "sampling to loss, or leave candidates out")
        self._refuse_optimizer()
        self._refuse_schedule()
        if len(set(self.augment)) < len(self.augment):
            raise ValueError(f"augment = {list(self.augment)}: give each change at most once")

    def _refuse_optimizer(self) -> None:
        """Refuse settings of the optimizer that do not go together. Raises ValueError."""
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum = {self.momentum}: {self.optimizer} has moments of its own; leave momentum "
                             "out, or set optimizer to sgd")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = True: there is no momentum; set momentum above 0 (with optimizer sgd), or "
                             "leave nesterov out")
        if self.optimizer != "adam" and self.lr * self.weight_decay >= 1:
            raise ValueError(f"weight_decay = {self.weight_decay}: with lr = {self.lr} each step would take the "
                             f"weights to 0 or past it; it must be below 1 / lr = {1 / self.lr:.3g}")

    def _refuse_schedule(self) -> None:
        """Refuse milestones that mean nothing. Raises ValueError."""
        if bool(self.milestones) != (self.schedule == "step"):
            raise ValueError(f"milestones = {list(self.milestones)}: they belong to schedule step, which needs them; "
                             "set both or none")
        if any(t < 1 for t in self.milestones) or sorted(set(self.milestones)) != list(self.milestones):
            raise ValueError(f"milestones = {list(self.milestones)}: they must ascend, and rounds count from 1")
        if self.milestones and self.milestones[0] <= self.warm_up:
            raise ValueError(f"milestones = {list(self.milestones)}: the rate grows until round warm_up = "
                             f"{self.warm_up}; give later ones, or a shorter warm_up")

    def refuse_rounds(self, rounds: int) -> None:
        """Raise BadInput if a run of so many rounds would end while the learning rate still grows."""
        if self.warm_up >= rounds:
            raise BadInput(f"train.warm_up = {self.warm_up}: no round of rounds = {rounds} would have the full rate; "
                           "lower it, or raise rounds")

    def rate_factor(self, round: int, rounds: int) -> float:
        """Return by what lr_decay, schedule and warm-up multiply the learning rate in a round, of `rounds` in all;
        the round before the first (-1) has the rate of the first."""
        t = max(0, round)
        factor = self.lr_decay ** t
        if t < self.warm_up:
            return factor * (t + 1) / (self.warm_up + 1)
        if self.schedule == "step":
            factor *= self.step_factor ** sum(t >= milestone for milestone in self.milestones)
        if self.schedule == "cosine":
            factor *= (1 + math.cos(math.pi * (t - self.warm_up) / (rounds - self.warm_up))) / 2
        return factor
