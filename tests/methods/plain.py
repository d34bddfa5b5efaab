"""The reference for methods that draw parts of a client's samples."""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from fedmpi.engines import batch_plan
from tests.methods.reference import Reference


def again(lab) -> Plain:
    """Return the plain reference for the same federation and rounds."""
    return Plain(lab.method.model, lab.federation, lab.config)


class Plain(Reference):
    """The reference, with the draws that some methods add."""

    def part(self, client, t, share, stream, fixed=False, rest=False):
        """Return a random part of a client's training data."""
        x, y = self.data[client]
        kept = batch_plan.draw_subset(self.settings(t), client, stream, len(y), share, fixed, rest)
        return x[kept], y[kept]

    def batches_of(self, part, client, t, stream=0, epochs=None):
        """Yield the batches of a part of a client's data."""
        x, y = part
        drawn = batch_plan.draw_batches(self.settings(t, epochs), client, stream, len(y))
        for index, count in zip(drawn.index, drawn.count, strict=True):
            yield x[index[:count]], y[index[:count]]

    @torch.no_grad()
    def loss_on(self, w, part):
        x, y = part
        return F.cross_entropy(self.network(w)(x), y)

    def mean(self, sent, ids=None):
        """Return the mean of vectors, weighted by the samples of clients `ids` if these are given."""
        n = None if ids is None else self.federation.sizes[ids]
        return torch.from_numpy(np.average(torch.stack(sent).double().numpy(), 0, n)).float()
