"""Layers that PyTorch does not have."""
from __future__ import annotations

from torch import Tensor, nn


class MeanOverPositions(nn.Module):
    """Average the vectors of a text's positions: (b, positions, width) -> (b, width)."""

    def forward(self, z: Tensor) -> Tensor:
        """Return the mean over positions (b, width) of z (b, positions, width)."""
        return z.mean(1)
