"""Measures without a confusion matrix: bit for bit those of the matrix, in memory that grows with classes and samples
but not with the square of the classes."""
from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmpi.clients.evaluation import read_score, score_batch
from fedmpi.clients.measures import measure_logits, predict_classes, try_measures
from fedmpi.engines.padding import mark_own, pad_samples, split_blocks
from fedmpi.task import CLASSIFICATION
from tests.work import Operators

# Samples of each client, in three blocks at most.
HOLDING = (150, 129, 64, 3, 1)


def measure_by_matrix(logits, y, precision) -> tuple[float, float, float]:
    """Return correct, tested and F1 of a confusion matrix, whose last row and column are no class."""
    k = logits.shape[1] + 1
    matrix = np.zeros((k, k), precision)
    np.add.at(matrix, (y.numpy(), predict_classes(logits).numpy()), 1)
    hit, true, predicted = np.diag(matrix)[:-1], matrix.sum(1)[:-1], matrix.sum(0)[:-1]
    here = true + predicted > 0
    return float(matrix.trace()), float(matrix.sum()), float((2 * hit[here] / (true + predicted)[here]).mean())


def make_clients(c: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return logits and labels, of which half are predicted rightly; some outputs of clients 0 and 3 are nan."""
    generator = torch.Generator().manual_seed(c)
    logits = [torch.randn(n, c, generator=generator) for n in HOLDING]
    labels = [torch.randint(c, (n,), generator=generator) for n in HOLDING]
    for outputs, y in zip(logits, labels, strict=True):
        y[::2] = outputs[::2].argmax(1)
    logits[0][100], logits[3][0, 1] = torch.nan, torch.nan
    return logits, labels


@pytest.mark.parametrize("c", [2, 3, 10, 101])
def test_measures_are_bit_for_bit_those_of_a_confusion_matrix(c):
    for logits, y in zip(*make_clients(c), strict=True):
        correct, tested, loss, f1 = measure_logits(logits, y)
        assert (correct, tested, f1) == measure_by_matrix(logits, y, np.int64)
        np.testing.assert_array_equal(loss, float(F.cross_entropy(logits, y, reduction="sum")))


@pytest.mark.parametrize("c", [2, 3, 10, 101])
def test_so_are_those_of_many_models_in_blocks_in_single_precision(c):
    """Rows of a GPU: padding counts for nothing, and the losses of blocks are added in their order."""
    every, labels = make_clients(c)
    x, y = pad_samples(every), pad_samples(labels)
    rows = [score_batch(*block).numpy() for block in split_blocks(HOLDING, x, y, mark_own(HOLDING, y)[0])]
    assert [row.shape for row in rows] == [(5, 129), (2, 129), (2, 129)]
    for i, n in enumerate(HOLDING):
        correct, tested, loss, f1 = read_score([row[i] for row in rows if i < len(row)], n, c)
        assert (correct, tested, f1) == measure_by_matrix(every[i], labels[i], np.float32)
        whole = float(F.cross_entropy(every[i], labels[i], reduction="sum"))
        assert loss == pytest.approx(whole, rel=1e-5, nan_ok=True) and np.isnan(loss) == (i in (0, 3))


def test_classes_are_exact_whatever_the_precision_of_the_outputs():
    """bfloat16 holds whole numbers up to 256."""
    y = torch.arange(400)
    logits = torch.eye(400, dtype=torch.bfloat16)
    row, = score_batch(logits[None], y[None], torch.ones(1, 400)).numpy()
    assert read_score([row], 400, 400)[[0, 1, 3]].tolist() == [400, 400, 1]


def test_errors_of_targets_are_added_over_blocks():
    """A model of a single sample has a row that is no longer."""
    generator = torch.Generator().manual_seed(0)
    outputs, targets = ([torch.randn(n, *rest, generator=generator) for n in HOLDING] for rest in ((1,), ()))
    x, y = pad_samples(outputs), pad_samples(targets)
    rows = [score_batch(*block).numpy() for block in split_blocks(HOLDING, x, y, mark_own(HOLDING, y)[0])]
    for i, n in enumerate(HOLDING):
        errors = (outputs[i][:, 0] - targets[i]).double()
        found = read_score([row[i] for row in rows if i < len(row)], n, 1)
        squared = float(errors.square().sum())
        np.testing.assert_allclose(found, [squared, n, squared, float(errors.abs().mean())], rtol=1e-5)


def spent(function) -> int:
    """Return the bytes of the tensors that fedmpi makes in a call, and of NumPy's arrays at their peak."""
    # PyTorch imports a lot when operators are first counted: memory is traced apart from that.
    with Operators() as operators:
        function()
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return operators.bytes + peak


@pytest.mark.parametrize("what", ["host", "gpu", "nothing to try"])
def test_memory_does_not_grow_with_the_square_of_the_classes(what):
    """A matrix of 3,000 classes would have 36 MB in single precision."""
    logits, y = torch.randn(20, 3000), torch.randint(3000, (20,))
    made = {"host": lambda: measure_logits(logits, y),
            "gpu": lambda: read_score(score_batch(logits[None], y[None], torch.ones(1, 20)).numpy(), 20, 3000),
            "nothing to try": lambda: try_measures([], 3000, CLASSIFICATION)}[what]
    assert spent(made) < 2e6
