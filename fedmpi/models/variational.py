"""A variational network: between the feature extractor and the head of a model lies a Gaussian code of the sample.

x -> base -> features (b, f) -> Linear -> (mu, s) (b, 2 f); sigma = softplus(s) + MIN_SIGMA, z = mu + sigma e,
e ~ N(0, I); z -> head -> logits. The code is as wide as the features, so that the model's own head takes it. Clients
are evaluated with the mean of the code, and heads that are trained on computed features use it, too: nothing is drawn
there.
Vector: (base, code, head); `phi` is base and code, the encoder. Legend: b batch, f features, c classes."""
from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmpi.errors import BadInput
from fedmpi.models.flat import Model, Net
from fedmpi.models.slices import AVOID_STATISTICS

# Added to the seed of a model's start it gives the seed of its code's start.
CODE_SEED_OFFSET = 0xC0DE
# Added to sigma, so that 1 / sigma^2 stays finite.
MIN_SIGMA = 1e-2
# The random stream of the batches of the fine-tuning.
FINE_TUNING_STREAM = 1


class TrainingData(Protocol):
    """What `Variational.tune_head` asks of a client's data: see ClientData."""

    def with_features(self, net: Net, w: Tensor) -> TrainingData:
        """Return the same samples with the outputs of net(w, x) in place of x."""

    def with_batches(self, epochs: int | None, stream: int, *, kind: str | None = None) -> TrainingData:
        """Return the same samples with other batches."""

    def descend(self, net: Callable[..., Tensor], w: Tensor) -> Tensor:
        """Return the weights after SGD on the loss net(w, x, y) -> (b,)."""


class Variational:
    """A model with a code; calling it gives the logits of the code's mean."""

    def __init__(self, model: Model):
        if model.buffers:
            raise BadInput(f"method: its code needs a network without BatchNorm; {AVOID_STATISTICS}")
        f = count_features(model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(model.seed + CODE_SEED_OFFSET)
            code = nn.Linear(f, 2 * f)
        self.encoder, self.experts = append_layers(model, code), append_layers(model, code, Experts())
        first = torch.cat([p.detach().flatten() for p in code.parameters()]).to(model.start.device)
        self.head, self.width = model.head, f
        self.classes = model.classes
        self.start = torch.cat([model.start[model.phi], first, model.start[model.h]])
        self.size = len(self.start)
        self.phi, self.h = slice(0, self.encoder.size), slice(self.encoder.size, self.size)

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        return self.head(w[self.h], self.encode(w[self.phi], x)[0])

    def encode(self, phi: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and sigma (b, f) of samples. Engines set the model to training or not; the encoder, a copy of its
        feature extractor, follows the head."""
        if self.encoder.module.training != self.head.module.training:
            self.encoder.module.train(self.head.module.training)
        return split_gaussian(self.encoder(phi, x))

    def loss(self, w: Tensor, x: Tensor, y: Tensor, e: Tensor) -> tuple[Tensor, ...]:
        """Return cross-entropies (b, s) of s codes of each sample, drawn with e (b, s, f); the codes, mu and sigma."""
        mu, sigma = self.encode(w[self.phi], x)
        z = mu[:, None] + sigma[:, None] * e
        logits = self.head(w[self.h], z.flatten(0, 1))
        losses = F.cross_entropy(logits, y.repeat_interleave(e.shape[1]), reduction="none")
        return losses.unflatten(0, e.shape[:2]), z, mu, sigma

    def loss_of_head(self, h: Tensor, p: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy (b,) of the head on the codes' means, which are the first half of p (b, 2 f)."""
        return self.head.loss(h, split_gaussian(p)[0], y)

    def tune_head(self, phi: Tensor, h: Tensor, data: TrainingData, epochs: int) -> Tensor:
        """Return (phi, h) after the head alone was trained for some epochs on the means of the client's codes."""
        if epochs:
            means = data.with_features(self.encoder, phi)
            h = means.with_batches(epochs, FINE_TUNING_STREAM, kind="fine_tuning").descend(self.loss_of_head, h)
        return torch.cat([phi, h])


class Experts(nn.Module):
    """Turns the output of an encoder into the terms that a product of Gaussians adds up, (b, 2 f)."""

    def forward(self, p: Tensor) -> Tensor:
        """Return (1 / sigma^2, mu / sigma^2), (b, 2 f), of what an encoder gave, p (b, 2 f)."""
        mu, sigma = split_gaussian(p)
        return torch.cat([sigma ** -2, mu * sigma ** -2], -1)


def append_layers(model: Model, *layers: nn.Module) -> Net:
    """Return a network of its own: a copy of the model's feature extractor and further layers behind it, in evaluation
    mode."""
    parts = [("base", model.base.module), *((f"layer{i}", layer) for i, layer in enumerate(layers))]
    return Net(copy.deepcopy(nn.Sequential(OrderedDict(parts))).eval())


def count_features(model: Model) -> int:
    """Return the width of the features that the head takes."""
    first = next(layer for layer in model.head.module.modules() if list(layer.parameters(recurse=False)))
    if not isinstance(first, nn.Linear):
        raise BadInput("method: its code is a vector, so the head must begin with a Linear layer; choose another "
                       "model.head")
    return first.in_features


def split_gaussian(p: Tensor) -> tuple[Tensor, Tensor]:
    """Return mu and sigma (b, f) from what an encoder gives."""
    mu, s = p.chunk(2, -1)
    return mu, F.softplus(s) + MIN_SIGMA


def compute_kl_divergence(mu: Tensor, sigma: Tensor, r_mu: Tensor, r_sigma: Tensor) -> Tensor:
    """Return KL(N(mu, sigma^2) || N(r_mu, r_sigma^2)), (b,)."""
    each = torch.log(r_sigma / sigma) + (sigma ** 2 + (mu - r_mu) ** 2) / (2 * r_sigma ** 2) - .5
    return each.sum(-1)


def take_class_rows(rows: Tensor, y: Tensor) -> Tensor:
    """Return the row of rows (c, f) for each label, (b, f), as a product, whose gradient adds up in a fixed order."""
    return (y[:, None] == torch.arange(len(rows), device=y.device)).to(rows.dtype) @ rows
