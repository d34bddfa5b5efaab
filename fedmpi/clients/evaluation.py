"""Measure models on the samples of hosted clients.

Reading a number from a GPU waits for the GPU. So the losses and predicted classes of all clients stay on the GPU until
the last one is known, and are then read together; engine `vmap` measures many models at once. Further measures need all
logits, which are read as they come.

Legend: n clients, s samples of the client with the most, c classes, k models. For targets in place of labels c is 1,
and TARGET_MEASURES stand in the places of CLIENT_MEASURES."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.clients.measures import (
    CLIENT_MEASURES,
    Measure,
    measure_errors,
    measure_predictions,
    measure_samples,
    predict_classes,
)
from fedmpi.clients.sample_cache import SampleCache
from fedmpi.clients.state_store import StateStore
from fedmpi.engines import convolutions
from fedmpi.engines.gpu_errors import is_out_of_memory, make_room_for_fewer
from fedmpi.engines.padding import join_blocks, mark_own, pad_samples, split_blocks
from fedmpi.engines.step_counter import EVALUATED
from fedmpi.method import Method, State, Weights
from fedmpi.models.build import SAMPLES_PER_PASS, as_input
from fedmpi.models.losses import compute_loss
from fedmpi.torch_compat import flatten_tree, unflatten_tree

if TYPE_CHECKING:
    from fedmpi.config.schema import Config
    from fedmpi.engines.engine import Engine

# Where measures go: by client, or by client and which weights. Any: a mapping's keys must be of one type.
Measured: TypeAlias = MutableMapping[Any, np.ndarray]
# A mapping of measures, the key of those of one model, and the number of its samples.
MeasureTarget: TypeAlias = tuple[Measured, Hashable, int]
# Where its measures go, its weights, and samples x (s, ...), y (s,).
WaitingModel: TypeAlias = tuple[MeasureTarget, Weights, Tensor, Tensor]

# So many models with a block of samples each fill a GPU.
MODELS_AT_ONCE = 32

# What `score_batch` sums over a client's samples if they have targets.
ERROR_SUMS = ("squared", "absolute")

# Second index of the table of measures: which weights, on which samples.
BEFORE_TRAINING, AFTER_TRAINING, WITHOUT_ADAPTATION, ON_VALIDATION = range(4)


class ClientHolder(Protocol):
    """Whose clients are measured: see HostedClients."""
    method: Method
    clients: list[int]
    newcomers: list[int]
    config: Config
    samples: SampleCache
    store: StateStore
    device: torch.device
    # its name says whether many models are measured at once
    engine: Engine
    shared: State
    checked: CheckedMethod

    def get_training_samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's training samples and labels."""

    def apply(self, function: Callable[..., State], clients: list[int], shared: State, round: int,
              whose: int | None = None, for_evaluation: bool = False,
              decays: bool = True) -> Iterator[tuple[int, State]]:
        """Yield (client, function(shared, mine, data))."""

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Add the seconds of a block to a phase."""


class Evaluator:
    """Measures the models of one rank's clients.

    Args:
        hosted: whose clients
        parts: the parts of the samples that clients are measured on, `test`, `validation` or both in this order
        measures: what is measured beside CLIENT_MEASURES, see fedmpi.clients.measures"""

    def __init__(self, hosted: ClientHolder, parts: tuple[str, ...], measures: Sequence[Measure] = ()):
        self.hosted, self.measures = hosted, measures
        # as the fields of Samples end
        self.parts = [{"validation": "val"}.get(part, part) for part in parts]
        # measures right after the local training of this round, by client
        self.after_training: dict[int, np.ndarray] = {}
        # models that are not measured yet, and rows of `score_batch`, by block, that were not read yet
        self.models: list[WaitingModel] = []
        self.tallies: list[tuple[Sequence[MeasureTarget], list[Tensor]]] = []

    def measure_after_training(self, client: int, mine: State, up: State) -> None:
        """Measure the weights that a client has right after its local training, if these differ from those that it is
        evaluated with; known after `finish`."""
        weights = self.hosted.checked.trained(self.hosted.shared, mine, up)
        if weights is not None:
            self.measure(self.after_training, client, client, weights)

    def measure_clients(self, round: int, n: int) -> np.ndarray:
        """Measure the model that each hosted client would use in this round, and that of each new client.

        Args:
            round: number of the round, from 0
            n: number of clients on all ranks, without the m new ones

        Returns:
            a table (n + m, 3 or 4, 1 + measures) in which this rank fills the rows of its own clients and leaves 0
            elsewhere, so that the ranks' tables add up. Columns: 1 if filled, CLIENT_MEASURES, and the further measures
            (nan if they are not defined). The second index is
            BEFORE_TRAINING, AFTER_TRAINING (of the last round), WITHOUT_ADAPTATION (without what `personal` trains)
            and, if validation samples are measured beside test samples, ON_VALIDATION (of BEFORE_TRAINING)."""
        hosted, both = self.hosted, len(self.parts) > 1
        found: dict[tuple[int, int], np.ndarray] = {}
        table = np.zeros((n + hosted.config.data.new_clients, 3 + both, 1 + len(CLIENT_MEASURES) + len(self.measures)))
        with hosted.timed("evaluate"):
            for client, weights in hosted.apply(hosted.checked.personal, hosted.clients, hosted.shared, round,
                                                EVALUATED, for_evaluation=True):
                self.measure(found, (client, BEFORE_TRAINING), client, weights)
                if both:
                    self.measure(found, (client, ON_VALIDATION), client, weights, part=1)
                weights = hosted.checked.unadapted(hosted.shared, hosted.store.read(client))
                if weights is not None:
                    self.measure(found, (client, WITHOUT_ADAPTATION), client, weights)
            # Their steps are not counted: the records state the steps behind the models of those that take part.
            if hosted.newcomers:
                for client, weights in hosted.apply(
                        hosted.checked.serve_newcomer, hosted.newcomers, hosted.shared, round, decays=False):
                    self.measure(found, (client, BEFORE_TRAINING), client, weights)
            self.finish()
            found |= {(client, AFTER_TRAINING): row for client, row in self.after_training.items()}
            for place, numbers in found.items():
                table[place] = 1, *numbers
        return table

    def measure(self, into: Measured, key: Hashable, client: int, weights: Weights, part: int = 0) -> None:
        """Let into[key] be the measures of weights on a part of a client's samples; known after `finish`."""
        x, y = self.get_samples(client, part)
        if self.hosted.device.type != "cuda" or not len(y):
            into[key] = self.measure_now(weights, x, y)
        elif self.hosted.engine.name == "vmap":
            self.models.append(((into, key, len(y)), weights, x, y))
            if len(self.models) == MODELS_AT_ONCE:
                self._measure_together()
        elif self.measures:
            into[key] = self.measure_outputs(self.compute_logits(weights, x), y)
        else:
            logits = self.compute_logits(weights, x)
            self.tallies.append(([(into, key, len(y))], [score_batch(logits[None], y[None], torch.ones_like(y[None]))]))

    def measure_training_losses(self, round: int, clients: Sequence[int]) -> np.ndarray:
        """Return the mean loss of hosted clients on their training samples, (n,), by which the round chooses: of
        the weights that they are evaluated with, before these are adapted."""
        hosted, checked = self.hosted, self.hosted.checked

        def measure(client: int, weights: Weights) -> Tensor:
            x, y = hosted.get_training_samples(client)
            return compute_loss(self.compute_logits(weights, x), y)
        with hosted.timed("evaluate"):
            # Losses wait and not weights, of which all candidates' may fill the memory
            losses = {client: measure(client, weights) for client in clients
                      if (weights := checked.unadapted(hosted.shared, hosted.store.read(client))) is not None}
            rest = [client for client in clients if client not in losses]
            losses |= {client: measure(client, weights)
                       for client, weights in hosted.apply(checked.personal, rest, hosted.shared, round)}
            return torch.stack([losses[client] for client in clients]).double().cpu().numpy() if losses else np.empty(0)

    def get_samples(self, client: int, part: int = 0) -> tuple[Tensor, Tensor]:
        """Return the samples x (s, ...), y (s,) of a part on which a client's models are measured."""
        samples, name = self.hosted.samples[client], self.parts[part]
        return samples[f"x_{name}"], samples[f"y_{name}"]

    def measure_now(self, weights: Weights, x: Tensor, y: Tensor) -> np.ndarray:
        """Return the measures of weights on samples; without samples they are 0, F1 and further measures nan."""
        if not len(y):
            return np.array([0., 0., 0., np.nan] + [np.nan] * len(self.measures))
        logits = self.compute_logits(weights, x)
        return self.measure_outputs(logits, y) if self.measures else measure_samples(logits, y)

    def measure_outputs(self, logits: Tensor, y: Tensor) -> np.ndarray:
        """Return CLIENT_MEASURES and the further measures of outputs (s, c) and labels y (s,), computed on the host."""
        logits, y = logits.cpu(), y.cpu()
        return np.array([*measure_samples(logits, y), *(measure(logits, y) for measure in self.measures)])

    @torch.no_grad()
    def compute_logits(self, weights: Weights, x: Tensor) -> Tensor:
        """Return the logits (s, c) of weights for samples x (s, ...) as stored."""
        self.hosted.method.model.eval()
        return torch.cat([self.hosted.checked.predict(weights, as_input(part)) for part in x.split(SAMPLES_PER_PASS)])

    def finish(self) -> None:
        """Measure the models that wait, and read all measures at once."""
        if self.models:
            self._measure_together()
        if self.tallies:
            every = [rows for _, blocks in self.tallies for rows in blocks]
            numbers = torch.cat([rows.flatten() for rows in every]).cpu().split([rows.numel() for rows in every])
            read = (part.view(rows.shape).numpy() for part, rows in zip(numbers, every, strict=True))
            for places, blocks in self.tallies:
                here = [next(read) for _ in blocks]
                for i, (into, key, n) in enumerate(places):
                    into[key] = read_score([rows[i] for rows in here if i < len(rows)], n, self.hosted.checked.outputs)
            self.tallies = []

    def _measure_together(self) -> None:
        """Measure the models that wait as one batch for each form that weights have (a method's `unadapted` may return
        another one than `personal`), or in halves if memory is too small for that."""
        by_form: dict[tuple[str, ...], list[WaitingModel]] = {}
        # `pad_samples` needs the client with the most samples first
        for model in sorted(self.models, key=lambda model: -len(model[3])):
            by_form.setdefault(describe_form(model[1]), []).append(model)
        parts = [*by_form.values()]
        self.models = []
        while parts:
            part = parts.pop()
            try:
                self._measure_batch(part)
            except RuntimeError as error:
                if len(part) == 1 or not is_out_of_memory(error):
                    raise
                why = str(error).partition("\n")[0]
            else:
                continue
            half = len(part) // 2
            make_room_for_fewer(f"to measure {len(part)} models", half, why)
            parts += [part[half:], part[:half]]

    @torch.no_grad()
    def _measure_batch(self, models: Sequence[WaitingModel]) -> None:
        """Measure models as one batch; samples come in blocks, so that few are in memory at once."""
        hosted, method = self.hosted, self.hosted.method
        places, weights, xs, ys = zip(*models, strict=True)
        x, y = pad_samples(xs), pad_samples(ys)
        leaves, trees = zip(*map(flatten_tree, weights), strict=True)
        stacked = [torch.stack(column) for column in zip(*leaves, strict=True)]
        sizes = [len(labels) for labels in ys]
        method.model.eval()
        blocks = split_blocks(sizes, x, y, mark_own(sizes, y)[0])
        with convolutions.use_unfolded(method.model, hosted.engine.unfolded or ()):
            outputs = ((self._apply_models(unflatten_tree([leaf[:len(block)] for leaf in stacked], trees[0]), block),
                        *rest) for block, *rest in blocks)
            if self.measures:
                whole = join_blocks([logits for logits, *_ in outputs]).cpu()
                for (into, key, _), logits, labels in zip(places, whole, ys, strict=True):
                    into[key] = self.measure_outputs(logits[:len(labels)], labels)
            else:
                self.tallies.append((places, [score_batch(*block) for block in outputs]))

    def _apply_models(self, w: Weights, x: Tensor) -> Tensor:
        """Return the outputs (k, s, ...) of k models, whose leaves are stacked, for samples x (k, s, ...) as stored."""
        return vmap(self.hosted.checked.predict)(w, as_input(x.flatten(0, 1)).unflatten(0, x.shape[:2]))


def describe_form(weights: Weights) -> tuple[str, ...]:
    """Return what is the same for weights that can be stacked: how tensors are nested, and their shapes and types."""
    leaves, tree = flatten_tree(weights)
    return str(tree), *(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in leaves)


def read_score(rows: Sequence[np.ndarray], n: int, classes: int) -> np.ndarray:
    """Return the measures of a client with n samples from its rows of `score_batch`, one for each block of samples."""
    if len(rows[0]) == len(ERROR_SUMS):
        squared, absolute = map(float, reduce(np.add, rows))
        return measure_errors(squared, n, absolute)
    loss = reduce(np.add, [row[0] for row in rows])
    y, predicted = np.concatenate([row[1:].reshape(2, -1) for row in rows], 1)[:, :n].astype(np.int64)
    # F1 in the precision of the row: that of a run on a GPU keeps its bits
    return measure_predictions(y, predicted, classes, float(loss), loss.dtype.type)


def score_batch(logits: Tensor, y: Tensor, own: Tensor) -> Tensor:
    """Return each client's loss, summed over samples, its labels and its predicted classes, (n, 1 + 2s), see
    predict_classes; for targets its ERROR_SUMS, (n, 2). A row grows with the samples and not with the classes.

    Args:
        logits: (n, s, c)
        y: labels or targets (n, s)
        own: (n, s), 0 for padding that is not a sample of the client"""
    if y.is_floating_point():
        errors = (logits.squeeze(2) - y) * own
        return torch.stack([errors.square().sum(1), errors.abs().sum(1)], 1)
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    # Labels are whole numbers below 2^24, which float32 holds exactly; a network's outputs may have fewer bits.
    loss = (losses * own).sum(1, keepdim=True).to(torch.promote_types(losses.dtype, torch.float32))
    return torch.cat([loss, y, predict_classes(logits)], 1)
