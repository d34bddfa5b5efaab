"""Do the samples of a batch influence each other? Contrastive losses and networks that centre a batch let them. And do
clients share what was drawn for one of them? Those do that draw from a generator which vmap knows nothing of.

Engine `vmap` fills short batches with copies of a sample, whose losses count nothing. That is right only if the output
and the loss of a sample depend on this sample alone. So both are compared on a few samples together and on each alone.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from fedmpi.engines.loop_data import LoopBatch, LoopData
from fedmpi.engines.rehearsal import REHEARSAL_TRAINING, make_blank_labels, make_blank_message
from fedmpi.method import Method, State
from fedmpi.models.build import as_input
from fedmpi.models.flat import Model, Net
from fedmpi.models.precision import without_autocast
from fedmpi.models.seeding import read_plain_generators
from fedmpi.server_only import hide_server_only

if TYPE_CHECKING:
    from fedmpi.engines.gradients import Loss
    from fedmpi.engines.step import StepSettings

# So many samples are compared: two of one class and two of others, for a contrast between two alone is none.
SAMPLES_COMPARED = 4
DRAWS_FOR_ALL = "it draws from a generator of NumPy or Python, which would be once for all clients"
# Equal numbers of a batch and of a single sample differ by roundings alone, in float32; those of bfloat16 are larger.
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-3, 1e-4


class CoupledSamples(Exception):
    """A loss of a sample depends on another sample."""


@without_autocast()
def find_coupling(method: Method, shared: State, mine: State, sample: Tensor) -> tuple[str, str] | None:
    """Return what lets the samples of a batch, or the clients of a cohort, influence each other, the network or the
    method's `client`, and how; None if nothing does.

    Args:
        sample: one sample as stored, (1, ...)."""
    batch, before = make_unlike(sample), read_plain_generators()
    model = method.model
    # In training BatchNorm takes no single sample.
    alone = not model.has_batchnorm and is_same_alone(lambda x: model(model.start, x), model, as_input(batch))
    if read_plain_generators() != before:
        return "the network", DRAWS_FOR_ALL
    if not alone:
        return "the network", "the outputs of a sample depend on the other samples of its batch"
    # of one class, and of two if there are two; or of one target, and of two
    for other in range(min(2, model.classes) if model.classes > 1 else 2):
        y = make_blank_labels(model, sample.device, SAMPLES_COMPARED)
        y[2:] = other
        data = ProbedData(batch, y, 0, REHEARSAL_TRAINING._replace(batch=SAMPLES_COMPARED),
                          message=make_blank_message(method, sample.device), model=model)
        try:
            method.client(hide_server_only(shared), mine, data)
        except CoupledSamples:
            return f"{method.title}.client", "its loss of a sample depends on the other samples of the batch"
        # Whatever else fails, fails in training, too, and is told there.
        except Exception:  # noqa: S110
            pass
    return (f"{method.title}.client", DRAWS_FOR_ALL) if read_plain_generators() != before else None


def make_unlike(sample: Tensor) -> Tensor:
    """Return SAMPLES_COMPARED samples as stored that differ from each other, made of one, (1, ...)."""
    # Not every number is that of a word.
    if sample.dtype in (torch.int32, torch.int64):
        return torch.cat([sample.roll(i, -1) for i in range(SAMPLES_COMPARED)])
    return torch.cat([sample.roll(i, -1) * (2 * i + 1) + i for i in range(SAMPLES_COMPARED)])


def is_same_alone(function: Callable[..., Tensor], model: Model, *batch: Tensor) -> bool:
    """Say whether function(*batch) (b, ...) has for all samples what it has for each of them alone, in training."""
    model.train_all(SAMPLES_COMPARED)
    with torch.no_grad():
        together = function(*batch)
        alone = torch.cat([function(*(part[i:i + 1] for part in batch)) for i in range(len(together))])
    return torch.allclose(together, alone, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True)


def watch_loss(loss: Loss, model: Model, noise: int = 0) -> Loss:
    """Return the same loss of a method's own, which raises CoupledSamples if the samples of a whole batch influence
    each other. The first `noise` arguments behind the labels are of each sample."""
    def watched(w: Tensor, x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
        if len(y) == SAMPLES_COMPARED and not is_same_alone(
                lambda x, y, *of_each: loss(w, x, y, *of_each, *more[noise:]), model, x, y, *more[:noise]):
            raise CoupledSamples
        return loss(w, x, y, *more)
    return watched


class ProbedBatch(LoopBatch):
    """A batch whose losses of a method's own are watched."""

    def __call__(self, net: Net | Loss, w: Tensor, *args: Tensor) -> Tensor:
        """Return the gradient, as LoopBatch does."""
        return super().__call__(net if isinstance(net, Net) else watch_loss(net, self.data._network), w, *args)


class ProbedData(LoopData):
    """Training data on which losses of a method's own are watched."""

    def descend(self, net: Net | Loss, w: Tensor, only: slice | None = None, args: Sequence[Tensor] = (),
                noise: tuple[int, ...] | None = None, where: Tensor | bool | None = None,
                **settings: Unpack[StepSettings]) -> Tensor | tuple[Tensor, Tensor]:
        """Return what LoopData does."""
        watched = net if isinstance(net, Net) else watch_loss(net, self._network, int(noise is not None))
        return super().descend(watched, w, only, args, noise, where, **settings)

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Return what LoopData does."""
        def watched(now: tuple[Tensor, ...], *batches: LoopBatch) -> tuple[Tensor, ...]:
            return step(now, *(ProbedBatch(*batch) for batch in batches))
        return super().scan(watched, state, streams, optimize)
