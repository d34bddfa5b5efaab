"""Similarity of long rows by their low-rank images, and what it costs.

Legend: n rows, k centres, d components."""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Part of the rows' squares: directions that vary less do so only by rounding errors.
NEGLIGIBLE_VARIANCE = 1e-13


def decompose_symmetric(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues, ascending, and eigenvectors (columns) of a symmetric matrix.

    It uses one thread, since the bits depend on the number of threads."""
    from threadpoolctl import threadpool_limits
    with threadpool_limits(1):
        return np.linalg.eigh(gram)


def find_principal_weights(gram: Tensor, d: int) -> np.ndarray:
    """Return weights that make the first d principal components out of rows, (d, n).

    If the rows vary in fewer directions, or are fewer, the other components are 0.

    Args:
        gram: inner products of the rows, (n, n).
        d: the number of components."""
    n = len(gram)
    gram, centre = gram.double().numpy(), np.eye(n) - 1 / n
    variance, vectors = decompose_symmetric(centre @ gram @ centre)
    variance, vectors = variance[::-1][:d], vectors[:, ::-1][:, :d]
    # An eigenvector may have either sign; take the one in which its largest entry is positive.
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])])
    real = variance > NEGLIGIBLE_VARIANCE * np.trace(gram)
    scale = np.where(real, 1 / np.sqrt(np.where(real, variance, 1)), 0)
    return np.pad((centre @ (vectors * scale)).T, ((0, max(0, d - n)), (0, 0)))


def compute_cosines(images: Tensor, centres: Tensor) -> Tensor:
    """Return the cosine of each row (n, d) with each centre (k, d), (n, k); it is 0 if one of the two is 0."""
    return scale_to_unit_rows(images) @ scale_to_unit_rows(centres).T


def scale_to_unit_rows(rows: Tensor) -> Tensor:
    """Return rows of length 1; a row of zeros stays one."""
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)


def count_multiply_adds(n: int, k: int, length: int) -> int:
    """Return the multiply-adds of all cosines of n rows with k centres: n k inner products, and n + k norms."""
    return (n * k + n + k) * length
