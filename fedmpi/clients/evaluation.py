"""Judging models on clients' samples. Each look at a number waits for a GPU, so that there the measures of all clients
stay where they are until the last one is judged, and are then read together; engine `vmap` judges many models at once.

Legend: c clients, s samples of the one with most, k classes."""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedmpi.engines import batch_plan, convolutions
from fedmpi.engines.cohort import SAMPLES_PER_BLOCK, pad
from fedmpi.engines.factored_gradients import judging
from fedmpi.models.build import as_input

MODELS_AT_ONCE = 32            # with SAMPLES_PER_BLOCK samples each they fill a GPU
SAMPLES_PER_FORWARD = 500      # of a single model


class Judge:
    """Measures models of hosted clients, some of them later; `measure` and `measures` are those of measures.py."""

    def __init__(self, group, parts: tuple[str, ...], measure, measures):
        self.group, self.of_logits, self.measures = group, measure, measures
        self.parts = [{"validation": "val"}.get(part, part) for part in parts]      # as fields of Samples end
        self.models: list = []       # not judged yet
        self.tallies: list = []      # judged, but not read yet

    def look(self, into: dict, key, client: int, weights, part: int = 0) -> None:
        """Let into[key] be the CLIENT_MEASURES of weights on a part of a client's samples; known after `settle`."""
        group, (x, y) = self.group, self.samples(client, part)
        if group.device.type != "cuda" or not len(y):
            into[key] = self.measure(weights, x, y)
        elif group.engine.name == "vmap":
            self.models.append(((into, key), weights, x, y))
            if len(self.models) == MODELS_AT_ONCE:
                self._judge_together()
        else:
            logits = self.logits(weights, x)
            self.tallies.append(([(into, key)], score_batch(logits[None], y[None], torch.ones_like(y[None]))))

    def samples(self, client: int, part: int = 0) -> tuple[Tensor, Tensor]:
        """Return the samples of a part on which a client's models are judged."""
        mine, name = self.group.samples[client], self.parts[part]
        return mine[f"x_{name}"], mine[f"y_{name}"]

    def measure(self, weights, x: Tensor, y: Tensor) -> np.ndarray:
        """Return the CLIENT_MEASURES of weights on a client's samples; without any, nothing is known."""
        return self.of_logits(self.logits(weights, x), y) if len(y) else np.array([0., 0., 0., np.nan])

    @torch.no_grad()
    def logits(self, weights, x: Tensor) -> Tensor:
        method = self.group.method
        method.model.eval()
        with judging(method.model, self.group.device):
            return torch.cat([method.predict(weights, as_input(part)) for part in x.split(SAMPLES_PER_FORWARD)])

    def settle(self) -> None:
        """Judge what is left, and read all measures at once."""
        if self.models:
            self._judge_together()
        if self.tallies:
            rows = torch.cat([rows for _, rows in self.tallies]).cpu().numpy()
            for (into, key), row in zip([place for places, _ in self.tallies for place in places], rows, strict=True):
                k = round(np.sqrt(len(row) - 1))
                into[key] = self.measures(row[1:].reshape(k, k), float(row[0]))
            self.tallies = []

    @torch.no_grad()
    def _judge_together(self) -> None:
        """Judge the models that wait, as one batch: samples in blocks, so that few are in memory at once."""
        group, method = self.group, self.group.method
        waiting = sorted(self.models, key=lambda model: -len(model[3]))      # as `pad` needs them
        places, weights, xs, ys = zip(*waiting, strict=True)
        x, y = pad(xs), pad(ys)
        leaves, trees = zip(*map(tree_flatten, weights), strict=True)
        w = tree_unflatten([torch.stack(column) for column in zip(*leaves, strict=True)], trees[0])
        sizes = batch_plan.sent(np.array([len(mine) for mine in ys]), group.device)
        own = torch.arange(y.shape[1], device=y.device) < sizes[:, None]
        method.model.eval()
        with convolutions.unfolded(method.model, group.engine.unfolded or ()):
            parts = [
                score_batch(
                    vmap(method.predict)(w, as_input(part.flatten(0, 1)).unflatten(0, part.shape[:2])), labels, counted
                )
                for part, labels, counted in zip(*(t.split(SAMPLES_PER_BLOCK, 1) for t in (x, y, own)), strict=True)
            ]
        self.tallies.append((places, sum(parts[1:], parts[0])))
        self.models = []


def score_batch(logits: Tensor, y: Tensor, own: Tensor) -> Tensor:
    """Return each client's loss, summed over samples, and its confusion by label, (c, 1 + k * k), from logits (c, s, k)
    and labels (c, s) of its own samples: where `own` (c, s) is not 0."""
    k, own = logits.shape[2], own.to(logits.dtype)
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    classes = torch.arange(k, device=y.device)
    true = (y[..., None] == classes) * own[..., None]
    predicted = (logits.argmax(2)[..., None] == classes).to(logits.dtype)
    confusion = true.transpose(1, 2) @ predicted      # whole numbers: exact, in whatever precision products are
    return torch.cat([(losses * own).sum(1, keepdim=True), confusion.flatten(1)], 1)
