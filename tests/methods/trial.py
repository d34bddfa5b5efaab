"""What the tests of single methods share: a run of three small rounds, its reference, and its evaluation."""
from __future__ import annotations

from functools import cache

import numpy as np
import torch

from tests.federations import Digits, Lab, method, mlp
from tests.methods.reference import Reference

ROUNDS = 3
network, digits = cache(mlp), cache(Digits)


def run(name, participation=.6, rounds=ROUNDS, federation=None, seed=3, train=None, engine=None, **settings) -> Lab:
    """Run a method; by default 5 of 8 clients take part in a round."""
    made = method(name, network(), **settings)
    return Lab(made, federation or digits(), engine, train, participation, seed).go(rounds)


def again(lab: Lab) -> Reference:
    """Return the plain reference for the same federation, rounds and training."""
    return Reference(lab.method.model, lab.federation, lab.config)


def near(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def mean(rows, n) -> torch.Tensor:
    """Return the mean of rows with weights n."""
    return torch.from_numpy(np.average(torch.stack(list(rows)).double().numpy(), 0, n)).float()


def evaluated(lab: Lab, client: int, t: int = ROUNDS) -> torch.Tensor:
    """Return the weights that a client is evaluated by before round t."""
    return lab.apply(lab.method.personal, [client], t)[client]


@torch.no_grad()
def correct(lab: Lab, client: int, w: torch.Tensor) -> int:
    """Return how many of a client's test samples the weights w get right."""
    s = lab.federation.client(client)
    logits = again(lab).network(w)(torch.from_numpy(s.x_test))
    return int((logits.argmax(1).numpy() == s.y_test).sum())
