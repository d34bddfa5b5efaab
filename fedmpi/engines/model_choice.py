"""Which of several models fits a client's samples best, without a pass of all samples through each of them (IFCA).

A cross-entropy is never negative. So a model is out as soon as its losses of a part of the samples are together higher
than those of another model on all of them, and only the models that remain need a full pass. This is exact: the
choice is that of full passes through all models."""
from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedmpi.models.build import as_input
from fedmpi.models.flat import Net
from fedmpi.models.losses import compute_loss
from fedmpi.models.precision import is_autocasting, run_forward

# Samples are passed in so many pieces at most, each with as many samples and multiplications as earn a piece its cost.
MOST_PIECES = 16
SAMPLES_OF_A_PIECE = 16
PRODUCTS_OF_A_PIECE = 1 << 21
# The last bits of outputs depend on how many samples are passed at once. A model is out only if its loss is higher by
# this part of the largest outputs, which is far more than rounding makes.
MARGIN = 1e-4


@dataclass
class Candidate:
    """A model among which a client chooses, and what is known of its losses."""
    w: Tensor
    # sum over the samples of the pieces passed so far
    loss: float = 0.
    passed: int = 0
    largest: float = 0.

    def take(self, net: Net, x: Tensor, y: Tensor) -> None:
        """Add the losses of a piece of the samples. The network holds this model's weights."""
        outputs = run_forward(net.module, x)
        self.loss += float(compute_loss(outputs, y, reduction="sum"))
        self.largest = max(self.largest, float(outputs.abs().max()))
        self.passed += 1

    def is_behind(self, best: Candidate | None, n: int) -> bool:
        """Say whether this model's loss is higher than that of another one, which has passed all n samples."""
        return best is not None and self.loss > best.loss + n * MARGIN * (1 + self.largest + best.largest)


def count_pieces(net: Net, y: Tensor) -> int:
    """Return in how many pieces the samples are passed; 1 if models should pass all of them at once.

    Rows of an embedding's table are read, not multiplied. On a GPU, each comparison would wait for its pass; sums of
    bfloat16 are too rough, and errors of targets may grow with the square of the outputs."""
    if y.is_floating_point() or y.is_cuda or is_autocasting() or not net.plain:
        return 1
    multiplied = net.size - (net.table.stop - net.table.start if net.table else 0)
    return max(1, min(MOST_PIECES, len(y) // SAMPLES_OF_A_PIECE, len(y) * multiplied // PRODUCTS_OF_A_PIECE))


def find_possible_best(net: Net, models: Tensor, x: Tensor, y: Tensor, pieces: int) -> list[int]:
    """Return the positions of the models that may have the lowest loss, mostly a single one, in ascending order.

    Args:
        net: a network, in evaluation mode.
        models: the weights of k models, (k, d).
        x: samples as stored, (n, ...).
        y: their labels, (n,).
        pieces: in how many pieces samples are passed: every so many-th one, since samples may lie sorted by class."""
    parts = [(as_input(x[at::pieces]), y[at::pieces]) for at in range(pieces)]
    candidates = [Candidate(w) for w in models]
    for candidate in candidates:
        net.bind(candidate.w)
        candidate.take(net, *parts[0])
    best: Candidate | None = None
    # NaN is greater than nothing: it is never out here, and chosen by nobody later.
    for candidate in sorted(candidates, key=lambda c: math.inf if math.isnan(c.loss) else c.loss):
        if not candidate.is_behind(best, len(y)):
            net.bind(candidate.w)
        while candidate.passed < pieces and not candidate.is_behind(best, len(y)):
            candidate.take(net, *parts[candidate.passed])
        if candidate.passed == pieces and (best is None or candidate.loss < best.loss) and candidate.loss < math.inf:
            best = candidate
    return [at for at, candidate in enumerate(candidates) if not candidate.is_behind(best, len(y))]
