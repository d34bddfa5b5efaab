"""Which of several models fits a client's samples best, without a pass of all samples through each of them (IFCA).

A cross-entropy is never negative. So a model is out as soon as its losses of a part of the samples are together higher
than those of another model on all of them, and only the models that remain need a full pass. This is exact: the
choice is that of full passes through all models."""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpi.models.build import SAMPLES_PER_PASS, as_input
from fedmpi.models.flat import Net
from fedmpi.models.losses import compute_loss
from fedmpi.models.precision import is_autocasting, run_forward

# A model first passes a 32nd of the samples, and never fewer than are worth a pass of their own.
FIRST_SHARE = 32
FEWEST_SAMPLES = 16
# Networks and samples of fewer multiplications pass all at once.
FEWEST_PRODUCTS = 1 << 21
# Until it is out, it then passes further FEWEST_SAMPLES, or half as many as it has passed so far if these are more.
GROWTH = 2
# The last bits of outputs depend on how many samples are passed at once. A model is out only if its loss is higher by
# this part of the largest outputs, which is far more than rounding makes.
MARGIN = 1e-4


@dataclass
class Candidate:
    """A model among which a client chooses, and what is known of its losses."""
    w: Tensor
    # sum over the samples passed so far
    loss: float = 0.
    # number of these samples
    passed: int = 0
    # absolute value of the largest output
    largest: float = 0.

    def take(self, net: Net, x: Tensor, y: Tensor, upto: int) -> Tensor:
        """Pass further samples, until so many have passed, and return their losses. The network holds the weights."""
        found = []
        pieces = (t[self.passed:upto].split(SAMPLES_PER_PASS) for t in (x, y))
        for inputs, labels in zip(*pieces, strict=True):
            outputs = run_forward(net.module, inputs)
            found.append(compute_loss(outputs, labels, reduction="none"))
            self.loss += float(found[-1].sum())
            self.largest = max(self.largest, float(outputs.abs().max()))
        self.passed = upto
        return torch.cat(found)

    def is_behind(self, best: Candidate, n: int) -> bool:
        """Say whether this model's loss is higher than that of another one, which has passed all n samples."""
        return self.loss > best.loss + n * MARGIN * (1 + self.largest + best.largest)


def count_first(net: Net, y: Tensor) -> int:
    """Return how many samples each model passes first; all of them if no model should be left out early.

    Rows of an embedding's table are read, not multiplied. On a GPU, each comparison would wait for its pass; sums of
    bfloat16 are too rough, and errors of targets may grow with the square of the outputs."""
    multiplied = net.size - (net.table.stop - net.table.start if net.table else 0)
    if (y.is_floating_point() or y.is_cuda or is_autocasting() or not net.plain
            or len(y) * multiplied < FEWEST_PRODUCTS):
        return len(y)
    return min(len(y), max(FEWEST_SAMPLES, len(y) // FIRST_SHARE))


def spread_out(n: int) -> Tensor:
    """Return an order of n samples of which each beginning is spread evenly over all: they may lie sorted by class.

    The multiples of the golden section, in the order of their fractions, are spread so."""
    return (torch.arange(n, dtype=torch.float64) * (math.sqrt(5) - 1) / 2 % 1).argsort()


def find_possible_best(net: Net, models: Tensor, x: Tensor, y: Tensor, first: int) -> list[int]:
    """Return the positions of the models that may have the lowest loss, mostly a single one, in ascending order.

    Args:
        net: a network, in evaluation mode.
        models: the weights of k models, (k, d).
        x: samples as stored, (n, ...).
        y: their labels, (n,).
        first: how many samples each model passes first."""
    n, order = len(y), spread_out(len(y))
    x, y = as_input(x[order]), y[order]
    candidates = [Candidate(w) for w in models]
    for candidate in candidates:
        net.bind(candidate.w)
        candidate.take(net, x, y, first)
    # NaN is higher than nothing: such a model is never out here, and chosen by nobody later.
    best, *others = sorted(candidates, key=lambda c: math.inf if math.isnan(c.loss) else c.loss)
    net.bind(best.w)
    # Samples of high loss come first. They are hard for the others, too, which so are out the sooner.
    hardest = first + best.take(net, x, y, n).argsort(descending=True, stable=True)
    order = torch.cat([torch.arange(first), hardest])
    x, y = x[order], y[order]
    for candidate in others:
        if candidate.is_behind(best, n):
            continue
        net.bind(candidate.w)
        while candidate.passed < n and not candidate.is_behind(best, n):
            more = max(FEWEST_SAMPLES, candidate.passed // GROWTH)
            candidate.take(net, x, y, min(n, candidate.passed + more))
        if candidate.passed == n and candidate.loss < best.loss:
            best = candidate
    return [at for at, candidate in enumerate(candidates) if not candidate.is_behind(best, n)]
