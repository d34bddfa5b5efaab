"""A small run of a method on uneven clients of real digits, and the reference for it."""
from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from fedmpi.engines import batch_plan
from tests import federations
from tests.federations import Digits, Lab, method
from tests.methods.reference import Reference

ROUNDS = 3
mlp, digits = cache(federations.mlp), cache(Digits)


def trial(name, participation=.6, rounds=ROUNDS, federation=None, seed=3, train=None, **settings) -> Lab:
    """Run a method; by default 5 of 8 clients take part in a round."""
    lab = Lab(method(name, mlp(), **settings), federation or digits(), share=participation, seed=seed, train=train)
    return lab.go(rounds)


def again(lab) -> Plain:
    """Return the plain reference for the same federation and rounds."""
    return Plain(lab.method.model, lab.federation, lab.config)


def near(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


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
