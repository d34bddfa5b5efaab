"""One client's training data as engine `vmap` offers them: calls that take time step out of vmap and work on the whole
cohort."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines import batch_plan
from fedmpi.engines.cohort import Cohort
from fedmpi.engines.gradients import Loss, is_empty
from fedmpi.engines.outside_vmap import OutsideVmap
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.result_memory import name_call
from fedmpi.engines.round_settings import RoundSettings
from fedmpi.engines.step import StepOptions, StepSettings
from fedmpi.method import State
from fedmpi.models.build import as_stored
from fedmpi.models.flat import Net
from fedmpi.models.losses import attach_logits
from fedmpi.models.tables import find_lowest

if TYPE_CHECKING:
    from fedmpi.client_data import ClientData, NetOrOutputs


@dataclass(frozen=True)
class VmapData(RoundSettings):
    """One client's training data as a method sees them inside vmap; ClientData explains each function."""
    cohort: Cohort
    # number of training samples: a batched 0-d tensor, which also marks the level of vmap
    n: Tensor
    id: Tensor
    message: State = None

    @property
    def local(self) -> batch_plan.LocalTraining:
        """Return the settings of local training, which all clients of the cohort share."""
        return self.cohort.local

    @property
    def steps(self) -> int | Tensor:
        """Return the number of steps of one training (an int or 0-d)."""
        return OutsideVmap.apply(lambda n: self.cohort.steps, self.n) if any(self.cohort.portions) else super().steps

    @property
    def class_counts(self) -> Tensor:
        """Return the number of samples of each class, (c,)."""
        return OutsideVmap.apply(lambda n: self.cohort.class_counts(), self.n)

    def any_client(self, flag: Tensor) -> bool:
        """Say whether the flag (0-d) holds for any client of the cohort."""
        return bool(self._see(flag)[0].any())

    def with_batches(self, epochs: int | None, stream: int, steps: int | None = None,
                     kind: str | None = None) -> VmapData:
        """Return the same client with other batches, see batch_plan.change_batches; `stream` names their draw.

        Raises ValueError for an unknown kind of steps."""
        local = batch_plan.change_batches(self.cohort.local, epochs, steps, kind)
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, local=local, stream=stream))

    def _see(self, *tensors: Tensor) -> list[Tensor]:
        """Return tensors as the whole cohort has them, (c, ...); inside vmap they are one client's view of these."""
        seen: list[Tensor] = []

        def look(n: Tensor, *whole: Tensor) -> Tensor:
            seen.extend(whole)
            return n
        OutsideVmap.apply(look, self.n, *tensors)
        return seen

    def _forward(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return the outputs of the whole cohort."""
        return self.cohort.forward(net, *self._see(w))

    def with_features(self, net: NetOrOutputs, w: Tensor) -> VmapData:
        """Return the same client and batches with the outputs of net(w, x) in place of x."""
        cohort, [whole] = self.cohort, self._see(w)
        local = cohort.local._replace(augmentation=batch_plan.NO_AUGMENTATION)
        outputs = cohort.forward(net, whole)
        x = as_stored(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
        return dataclasses.replace(self, cohort=dataclasses.replace(
            cohort, x=x, local=local, passes=PassMemory(), made_by=(*cohort.made_by, (net, whole))))

    def with_added_logits(self, net: NetOrOutputs, w: Tensor) -> VmapData:
        """Return the same client with the logits of net(w, x) beside its labels, see losses.attach_logits."""
        labels = attach_logits(self.cohort.y, self._forward(net, w))
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, y=labels))

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> VmapData:
        """Return the same client with a random share of its samples, or with the other ones; at least one."""
        part = self.cohort.subset(share, stream, fixed, rest)
        sizes = copy_to_device(np.array(part.sizes), part.y.device)
        return dataclasses.replace(self, cohort=part, n=OutsideVmap.apply(lambda n: sizes, self.n))

    def class_sums(self, net: NetOrOutputs, w: Tensor, classes: int | None = None) -> Tensor:
        """Return the sum of the outputs (b, p) of net(w, x) over the samples of each class, (c, p)."""
        return OutsideVmap.apply(lambda n, w: self.cohort.class_sums(net, w, classes), self.n, w)

    def mean_loss(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return the mean cross-entropy on all of the client's samples (0-d), without gradients."""
        return OutsideVmap.apply(lambda n, w: self.cohort.mean_loss(net, w), self.n, w)

    def choose_model(self, net: NetOrOutputs, models: Tensor) -> Tensor:
        """Return the position (0-d) of that one of k models (k, d) which has the lowest mean loss on all samples."""
        return find_lowest(torch.stack([self.mean_loss(net, w) for w in models]))

    def descend(self, net: Net | Loss, w: Tensor, only: slice | None = None, args: Sequence[Tensor] = (),
                noise: tuple[int, ...] | None = None, where: Tensor | None = None,
                **settings: Unpack[StepSettings]) -> Tensor | tuple[Tensor, Tensor]:
        """Return w (d,) after SGD on the round's batches, or (w, v) with `spread`; w itself is not changed. The whole
        cohort trains; clients for which `where` is False then keep w.

        Raises TypeError for an unknown setting, and BadInput if `only` holds no whole parameter of the network."""
        options = StepOptions.from_settings(self.local, settings)
        own, flags = options.tensors(w), [] if where is None else [where]
        first, second = len(own), len(own) + len(flags)

        def descend_all(n: Tensor, w: Tensor, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            if not is_empty(only):
                self.cohort.count(*tensors[first:second])
            return self.cohort.descend(net, w, options.with_tensors(tensors[:first]), only, tensors[second:], noise)
        found = OutsideVmap.apply(descend_all, self.n, w, *own, *flags, *args)
        return found if where is None else options.choose(where, found, w)

    def once(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors, data), computed once to evaluate the clients and to train them next."""
        if self.message is not None:
            # evaluation had none
            return function(*tensors, self)
        cohort = self.cohort
        call = name_call((cohort.clients, cohort.portions), function, self._see(*tensors), cohort)
        known = cohort.results.recall(call, cohort.counter)
        if known is not None:
            return OutsideVmap.apply(lambda n: known, self.n)
        with cohort.results.watch(call, cohort.counter, cohort.model) as keep:
            return OutsideVmap.apply(lambda n, result: keep(result), self.n, function(*tensors, self))

    def one_by_one(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors), computed outside vmap for one client of the cohort after another."""
        def apply_to_each(n: Tensor, *tensors: Tensor) -> Tensor:
            # clones, since bits may depend on how a vector is aligned
            return torch.stack([function(*(t.clone() for t in row)) for row in zip(*tensors, strict=True)])
        return OutsideVmap.apply(apply_to_each, self.n, *tensors)

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Apply step(state, grad, ...) -> state to all batches of the cohort, and return this client's last state."""
        return OutsideVmap.apply(lambda n, *state: self.cohort.scan(step, state, streams, optimize), self.n, *state)


if TYPE_CHECKING:
    def as_client_data(data: VmapData) -> ClientData:
        """Let mypy check that this engine offers all that methods may use."""
        return data
