"""The client-wise Dirichlet partition of Hsu et al. (2019): clients have equal sizes and draw their mix of classes."""
from __future__ import annotations

import numpy as np
import pytest

from fedmpi.data.allocation import draw_labels_of_client
from fedmpi.data.partitions import ClientDirichlet
from fedmpi.errors import BadInput

TEN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))
UNEVEN = np.random.default_rng(2).choice(7, 2000, p=[.4, .3, .1, .1, .05, .03, .02])


class Fixed:
    """A generator whose shares and order are given, and which draws the most likely counts."""

    def __init__(self, *shares):
        self.shares, self.asked = list(shares), []

    def permutation(self, n):
        # Clients draw in reverse order.
        return np.arange(n)[::-1] if np.isscalar(n) else n

    def dirichlet(self, parameters):
        self.asked.append(parameters)
        return np.array(self.shares.pop(0))

    def multinomial(self, n, p):
        drawn = np.floor(n * np.array(p) + 1e-9).astype(int)
        drawn[np.argmax(p)] += n - drawn.sum()
        return drawn


def assign(partition, labels, clients, seed=0):
    return partition.assign(labels, clients, np.random.default_rng(seed))


def table(parts, labels):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def test_known_mixes_give_known_amounts():
    """Three clients of 4 samples; class 0 (6 samples) is used up by the first two who draw, so the last has class 1."""
    labels, rng = np.repeat([0, 1], [6, 6]), Fixed([1., 0.], [.5, .5], [.9, .1])
    parts, groups = ClientDirichlet(alpha=.5).assign(labels, 3, rng)
    assert table(parts, labels).tolist() == [[0, 4], [2, 2], [4, 0]] and groups is None
    assert [p.tolist() for p in rng.asked] == [[.5, .5]] * 3


def test_parameters_follow_the_shares_of_the_pool():
    labels, rng = np.repeat([0, 1, 2], [60, 30, 30]), Fixed([1., 0., 0.])
    ClientDirichlet(alpha=.1).assign(labels, 1, rng)
    # The mean of the parameters is alpha.
    np.testing.assert_allclose(rng.asked[0], [.15, .075, .075])


@pytest.mark.parametrize("labels", [TEN, UNEVEN], ids=["ten", "uneven"])
@pytest.mark.parametrize("clients", [1, 7, 50, 1999])
def test_all_clients_hold_as_many_and_nothing_twice(labels, clients):
    parts, _ = assign(ClientDirichlet(), labels, clients)
    assert {len(part) for part in parts} == {len(labels) // clients}
    held = np.concatenate(parts)
    assert len(np.unique(held)) == len(held) == len(labels) // clients * clients
    fewer = assign(ClientDirichlet(amount=1), labels, clients)[0]
    assert [len(part) for part in fewer] == [1] * clients


def test_alpha_says_how_unlike_clients_are():
    """Half of the pool is used, so classes last. Measured is the mean share of a client's largest class."""
    largest = {alpha: table(assign(ClientDirichlet(alpha, amount=50), TEN, 30)[0], TEN).max(1).mean() / 50
               for alpha in (.01, .1, 1., 1000.)}
    assert largest[.01] > .9 > largest[.1] > .5 > largest[1.] > .25 > largest[1000.]


def test_mixes_are_the_dirichlet_s():
    """The mean of the summed squared shares of C classes is (1 + alpha) / (1 + C alpha)."""
    labels = np.repeat(np.arange(4), 10 ** 5)
    shares = table(assign(ClientDirichlet(.5, amount=500), labels, 400)[0], labels) / 500
    assert (shares ** 2).sum(1).mean() == pytest.approx((1 + .5) / (1 + 4 * .5), abs=.04)
    assert shares.mean(0) == pytest.approx([.25] * 4, abs=.06)


def test_the_seed_decides():
    first, again, other = (assign(ClientDirichlet(), TEN, 20, seed)[0] for seed in (4, 4, 5))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(np.setdiff1d(a, b)) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("left, shares, total, expected", [
    ([5, 0, 3], [0., 1., 0.], 4, None),      # its mix has run out, so what is left decides
    ([2, 2], [1., 0.], 4, [2, 2]), ([0, 3], [.5, .5], 3, [0, 3]), ([4, 4], [1., 0.], 4, [4, 0]), 
    ([1, 1], [.5, .5], 0, [0, 0])])
def test_a_class_that_has_too_few_is_made_up_for_by_others(left, shares, total, expected):
    taken = draw_labels_of_client(np.array(left), np.array(shares), total, np.random.default_rng(1))
    assert taken.sum() == total and (taken <= left).all() and (expected is None or taken.tolist() == expected)


def test_more_than_there_are_is_refused():
    with pytest.raises(BadInput, match="amount = 301: the data set has 300 samples for each of 10 clients; lower"):
        assign(ClientDirichlet(amount=301), TEN, 10)
    with pytest.raises(BadInput, match="data.clients = 3001: the data set has only 3000 samples"):
        assign(ClientDirichlet(), TEN, 3001)
