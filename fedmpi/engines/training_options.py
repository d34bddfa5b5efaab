"""Refuse settings of the training that a method cannot take, before anything starts.

What a method does with its data shows in a dry run: steps of its own (`data.scan`) and losses of its own are not
moved, or not computed, by what these settings change."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

from torch import Tensor

from fedmpi.config.train import Train
from fedmpi.engines.batch_plan import get_local_training
from fedmpi.engines.dry_run import DryRunData
from fedmpi.engines.gradients import Loss
from fedmpi.engines.rehearsal import make_blank_labels
from fedmpi.engines.step import StepSettings
from fedmpi.errors import BadInput
from fedmpi.method import Method, State
from fedmpi.models.build import make_blank_samples
from fedmpi.models.flat import Net
from fedmpi.models.slices import AVOID_STATISTICS
from fedmpi.server_only import hide_server_only

if TYPE_CHECKING:
    from fedmpi.client_data import NetOrOutputs
    from fedmpi.config.schema import Config
    from fedmpi.data.federation import Federation

# What a dry run has seen of a method: steps of its own, a loss of its own, the run's steps with a gradient of whole
# vectors, and logits of another model that are computed once and added to those of each batch.
OWN_STEPS, OWN_LOSS, OWN_VECTOR, ADDED_LOGITS = "own steps", "own loss", "own vector", "added logits"
# Settings of the section `train` that belong to the optimizer, beside learning rate and momentum.
OF_OPTIMIZER = ("optimizer", "nesterov", "weight_decay", "clip_norm")


@dataclass(frozen=True)
class WatchedData(DryRunData):
    """Data of a dry run that notes what a method asks of them."""
    seen: set[str] = field(default_factory=set)

    def descend(self, net: Net | Loss, w: Tensor, only: slice | None = None, args: Sequence[Tensor] = (),
                noise: tuple[int, ...] | None = None, where: Tensor | bool | None = None,
                **settings: Unpack[StepSettings]) -> Tensor | tuple[Tensor, Tensor]:
        """Note a loss of the method's own that takes the run's steps, and return w as it was."""
        if settings.get("momentum") is None and not isinstance(net, Net):
            self.seen.update((OWN_LOSS, OWN_VECTOR))
        return super().descend(net, w, only, args, noise, where, **settings)

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Note steps of the method's own, and apply one of them to gradients of zeros."""
        self.seen.add(OWN_VECTOR if optimize else OWN_STEPS)
        return super().scan(step, state, streams, optimize)

    def note_loss(self, net: Net | Loss) -> None:
        """Note a loss of the method's own."""
        if not isinstance(net, Net):
            self.seen.add(OWN_LOSS)

    def with_added_logits(self, net: NetOrOutputs, w: Tensor) -> WatchedData:
        """Note that logits are added, and return data that have them."""
        self.seen.add(ADDED_LOGITS)
        added = super().with_added_logits(net, w)
        assert isinstance(added, WatchedData)
        return added


def refuse_training_options(config: Config, federation: Federation, method: Method) -> None:
    """Raise BadInput for a setting of `train` that the method cannot take. Nothing is run if all are as by default."""
    chosen, smoothing = list_changed(config.train, OF_OPTIMIZER), config.train.label_smoothing
    augments = f"train.augment = [{', '.join(config.train.augment)}]" if config.train.augment else ""
    if augments:
        refuse_augmentation(augments, config.train, federation.shape)
    if not chosen and not smoothing and not augments:
        return
    shared, mine = method.init(len(federation.sizes))
    blank = make_blank_samples(federation.shape, federation.dtype)
    seen = watch_method(method, shared, mine, blank, config)
    title = method.title
    if OWN_STEPS in seen and chosen:
        raise BadInput(f"{chosen[0]}: {title} takes steps of its own on each batch, to which no optimizer applies; "
                       "leave it out, or take another method")
    if ADDED_LOGITS in seen and augments:
        raise BadInput(f"{augments}: {title} adds logits that a second model gave for the images as they are, and not "
                       "for the changed ones; leave it out, or take another method")
    if OWN_LOSS in seen and smoothing:
        raise BadInput(f"train.label_smoothing = {smoothing}: {title} trains a loss of its own, whose labels stay as "
                       "they are; leave it out, or take another method")
    if OWN_VECTOR in seen and method.model.buffers and config.train.weight_decay:
        raise BadInput(f"train.weight_decay = {config.train.weight_decay}: {title} trains vectors in which BatchNorm's "
                       f"running statistics would decay too; leave it out, or {AVOID_STATISTICS}")


def refuse_regression(config: Config, method: Method) -> None:
    """Raise BadInput if targets are to be learned by a method, or with a setting, that needs classes."""
    if config.data.task != "regression":
        return
    if not method.supports_targets:
        raise BadInput(f"data.task = regression: {method.title} needs the classes of samples; take "
                       "another method")
    if config.train.label_smoothing:
        raise BadInput(f"train.label_smoothing = {config.train.label_smoothing}: with data.task = regression there are "
                       "no labels to smooth; leave it out")


def refuse_augmentation(augments: str, train: Train, shape: tuple[int, ...]) -> None:
    """Raise BadInput if samples of this shape, as stored, are not images, or are smaller than the padding of a crop."""
    if len(shape) != 3:
        raise BadInput(f"{augments}: samples of shape {tuple(shape)} are not images; leave it out, or take other data")
    height, width = shape[:2]
    if "crop" in train.augment and train.padding >= min(height, width):
        raise BadInput(f"train.padding = {train.padding}: images of {height} x {width} pixels could be shifted out of "
                       "sight; lower it")


def list_changed(train: Train, names: Sequence[str]) -> list[str]:
    """Return those of these settings that differ from their default, each as `train.name = value`."""
    plain = Train()
    return [f"train.{name} = {getattr(train, name)}" for name in names if getattr(train, name) != getattr(plain, name)]


def watch_method(method: Method, shared: State, mine: State, blank: Tensor, config: Config) -> set[str]:
    """Return what a method asks of its data in any stage of a run, and when a client is evaluated."""
    data = WatchedData(blank, make_blank_labels(method.model, blank.device), 0, get_local_training(config, 0),
                       message=method.message_template(), model=method.model)
    for part in [hide_server_only(part) for rounds, part in method.stages(shared, config.rounds) if rounds]:
        method.client(part, mine, data)
        alone = replace(data, message=None)
        method.personal(part, mine, alone)
        if config.data.new_clients:
            method.serve_newcomer(part, mine, alone)
    return data.seen
