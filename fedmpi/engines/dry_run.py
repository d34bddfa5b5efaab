"""Count what a client's round would compute, without computing it.

A method runs on a single blank sample that counts as n samples, and no step is taken."""
from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Unpack
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedmpi.engines import batch_plan
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.gradients import Loss, is_empty
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.rehearsal import make_blank_labels
from fedmpi.engines.step import StepOptions, StepSettings
from fedmpi.engines.step_counter import EVALUATED, OTHERS, PARTICIPANTS, classify_steps
from fedmpi.method import Method, State
from fedmpi.models.build import as_input
from fedmpi.models.flat import Net
from fedmpi.server_only import hide_server_only

if TYPE_CHECKING:
    from fedmpi.client_data import NetOrOutputs


# What a network returned for blank samples, by their shape, type and device. An entry is dropped with its network.
OUTPUTS_BY_NET: WeakKeyDictionary[Net, dict[tuple[torch.Size, torch.dtype, torch.device], Tensor]] = WeakKeyDictionary()


class RoundWork(NamedTuple):
    """What a client computes in a round."""
    # samples that went forward and backward
    trained: int
    # samples that only went forward
    passed: int
    # of each part of the training, one after another
    steps: tuple[int, ...] = ()
    # batches that only went forward; the last one of a pass may be short
    batches: int = 0


@dataclass(frozen=True)
class DryRunData(LoopData):
    """Data of `count` samples, of which only a blank one is read.

    `spent` counts the samples that would be trained on, those that would only be passed forward, and the batches of the
    latter, see RoundWork; `made` counts the steps by kind."""
    count: int = 1
    spent: list[int] = field(default_factory=lambda: [0, 0, 0])
    made: Counter[str] = field(default_factory=Counter)
    # of each training, in the order in which they were made
    parts: list[int] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Return the number of samples that the blank one stands for."""
        return self.count

    def count_samples(self) -> int:
        """Return the samples of all batches of one training."""
        batch, batches = self.local.batch, batch_plan.count_batches(self.n, self.local.batch, self.local.drop_last)
        whole, rest = divmod(self.steps, batches)
        return whole * min(self.n, batches * batch) + rest * batch

    @property
    def steps(self) -> int:
        """Return the number of steps of one training."""
        return batch_plan.count_local_steps(self.local, self.n)

    def take(self) -> None:
        """Count the steps and samples of one training."""
        self.spent[0] += self.count_samples()
        self.made[self.local.kind] += self.steps
        self.parts.append(self.steps)

    def note_loss(self, net: Net | Loss) -> None:
        """Do nothing: it does not matter here what is differentiated."""

    def descend(self, net: Net | Loss, w: Tensor, only: slice | None = None, args: Sequence[Tensor] = (),
                noise: tuple[int, ...] | None = None, where: Tensor | bool | None = None,
                **settings: Unpack[StepSettings]) -> Tensor | tuple[Tensor, Tensor]:
        """Count the steps of a descent if it makes any, and return w (d,) as it was, or (w, 0) with `spread`."""
        if not is_empty(only) and (where is None or where):
            self.take()
        return StepOptions.from_settings(self.local, settings).unmoved(w.clone())

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Apply `step` to the state once, with gradients of zeros, and count all steps for each gradient it takes."""
        state, batch = tuple(t.clone() for t in state), DryBatch(self)
        found = step(state, batch, *(batch for _ in streams))
        return (state[0], *found[1:]) if optimize else found

    def count_pass(self, samples: int, batches: int) -> None:
        """Count samples, in so many batches, that are passed forward alone."""
        self.spent[1] += samples
        self.spent[2] += batches

    def _forward(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        self.count_pass(self.n, batch_plan.count_batches(self.n, self.local.batch, False))
        if not isinstance(net, Net):
            return super()._forward(net, w)
        # Only the shape of the outputs matters, so one pass serves clients of all sizes and all rounds.
        found = OUTPUTS_BY_NET.setdefault(net, {})
        key = (self.x.shape, self.x.dtype, self.x.device)
        if key not in found:
            found[key] = super()._forward(net, w)
        return found[key].clone()

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> DryRunData:
        """Return data of as many samples as the share keeps, or of the other ones with `rest`; nothing is drawn."""
        return dataclasses.replace(self, count=batch_plan.count_subset(self.n, share, rest))


class DryBatch(NamedTuple):
    """Stands for all batches of a training: see BatchGradient."""
    data: DryRunData

    def __call__(self, net: Net | Loss, w: Tensor, *args: Tensor) -> Tensor:
        """Count the steps of a training, and return a gradient of zeros."""
        self.data.note_loss(net)
        self.data.take()
        return torch.zeros_like(w)

    @torch.no_grad()
    def mean(self, outputs: Callable[..., Tensor], w: Tensor, *args: Tensor) -> Tensor:
        """Count the samples that a training passes forward, and return the outputs of the blank one."""
        self.data.count_pass(self.data.count_samples(), self.data.steps)
        return outputs(w, as_input(self.data.x), self.data.y, *args).mean(0)


def dry_run(function: Callable[..., State], method: Method, shared: State, mine: State, blank: Tensor, n: int,
            local: LocalTraining) -> DryRunData:
    """Return data that counted what method.client, method.idle or method.personal would do; only the first one of them
    has a message.

    Args:
        blank: a sample as stored, (1, ...).
        n: the number of samples that it stands for."""
    data = DryRunData(blank, make_blank_labels(method.model, blank.device), 0, local,
                      message=method.message_template() if function == method.client else None, count=n,
                      model=method.model)
    function(hide_server_only(shared), mine, data)
    return data


def count_round_work(method: Method, shared: State, mine: State, blank: Tensor, n: int, local: LocalTraining,
                     function: Callable[..., State] | None = None) -> RoundWork:
    """Return what a participant with n samples computes in a round.

    Args:
        function: method.idle, for a client that does not take part, or method.personal, to be evaluated; None:
            method.client."""
    data = dry_run(function or method.client, method, shared, mine, blank, n, local)
    trained, passed, batches = data.spent
    return RoundWork(trained, passed, tuple(data.parts), batches)


def count_steps_by_kind(method: Method, shared: State, mine: State, blank: Tensor, n: int,
                        local: LocalTraining, idle: bool = False) -> dict[str, int]:
    """Return the steps by kind of a client with n samples: those of a round in which it takes part, and those of its
    evaluation; with `idle` those of a round in which it does not take part."""
    made: Counter[str] = Counter()
    takes_part = ((method.client, PARTICIPANTS), (method.personal, EVALUATED))
    for function, whose in ((method.idle, OTHERS),) if idle else takes_part:
        for kind, number in dry_run(function, method, shared, mine, blank, n, local).made.items():
            made[classify_steps(kind, whose, local.round < 0)] += number
    return {kind: number for kind, number in made.items() if number}
