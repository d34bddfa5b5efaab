import numpy as np
import pytest

from fedmpi.data.allocation import (
    assign_blocks,
    deal_classes,
    divide_by_dirichlet,
    divide_total,
    draw_classes,
    redraw_until_large,
    refuse_too_few_samples,
    share_classes,
)
from fedmpi.data.partitions import ClusterDirichlet, Dirichlet
from fedmpi.errors import BadInput


class Script:
    """A generator whose draws are given; it keeps the arguments of its calls."""

    def __init__(self, *draws):
        self.draws, self.asked = list(draws), []

    def dirichlet(self, alpha, size):
        self.asked.append((list(alpha), size))
        return np.array(self.draws.pop(0), float)

    def uniform(self, low, high, size):
        self.asked.append((low, high, size))
        return np.full(size, .5) if not self.draws else np.array(self.draws.pop(0), float)


def test_divide():
    assert divide_total(10, 3).tolist() == [3, 4, 3] and divide_total(5, 5).tolist() == [1] * 5
    assert divide_total(7, 1).tolist() == [7]
    rng = Script([.1, .5, 1.])
    # Each has one; the other 32 are divided by .1 : .5 : 1.
    assert divide_total(35, 3, rng).tolist() == [1 + 2, 1 + 10, 1 + 20] and rng.asked == [(.1, 1, 3)]
    for total in (5, 6, 100):
        drawn = divide_total(total, 5, np.random.default_rng(0))
        assert drawn.sum() == total and drawn.min() >= 1


def test_as_many_clients_as_samples_are_enough():
    refuse_too_few_samples(np.zeros(5), 5)
    with pytest.raises(BadInput, match="data.clients = 6: the data set has only 5 samples; lower it"):
        refuse_too_few_samples(np.zeros(5), 6)


def test_blocks_are_consecutive_and_alike_within_one():
    assert assign_blocks(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert assign_blocks(4, 4).tolist() == [0, 1, 2, 3]
    with pytest.raises(BadInput, match="data.partition.clusters = 5: there are 4 clients"):
        assign_blocks(4, 5)


@pytest.mark.parametrize("classes, each", [(10, [2] * 7), (10, [5, 2, 5, 2, 2]), (3, [2] * 4), (4, [4, 1])], ids=repr)
def test_classes_are_chosen_equally_often_and_at_random(classes, each):
    draws = [draw_classes(classes, each, np.random.default_rng(seed)) for seed in range(40)]
    for held in draws:
        assert held.sum(1).tolist() == each and np.ptp(held.sum(0)) <= 1
    # Every class is equally likely at a client.
    often = np.mean(draws, axis=0)
    assert np.abs(often - np.array(each)[:, None] / classes).max() < .4
    assert len({held.tobytes() for held in draws}) > 3


def test_what_is_not_dealt_is_left_out():
    members = [np.arange(10), np.arange(10, 15)]
    hands = deal_classes(members, np.array([[2, 0, 3], [0, 1, 0]]), np.random.default_rng(0))
    assert [len(hand) for hand in hands] == [2, 1, 3] and hands[1][0] >= 10
    assert len(set(np.concatenate(hands))) == 6


def test_a_class_goes_to_its_holders_in_equal_shares():
    labels = np.repeat([4, 7], [10, 5])
    hands = share_classes(labels, np.array([[True, False], [True, True], [False, False]]), np.random.default_rng(0))
    assert [sorted(np.bincount(labels[h], minlength=8)[[4, 7]]) for h in hands] == [[0, 5], [5, 5], [0, 0]]
    with pytest.raises(BadInput, match="class 7 has 5 samples for 6 clients; lower data.clients or"):
        share_classes(labels, np.ones((6, 2), bool), np.random.default_rng(0))


def test_a_draw_in_which_nobody_with_room_has_a_share_has_failed():
    draws = divide_by_dirichlet(np.full(4, 100), 5, 1e-3, 200, np.random.default_rng(0), capped=True)
    assert set(draws.sum((1, 2))) == {0, 400}


def test_dirichlet_by_hand():
    """Classes have 10 and 6 samples, so each of two clients gets 8. The offset is .5, so shares are rounded."""
    first, second = [[.75, .25], [.5, .5]], [[1., 0.], [1., 0.]]
    for capped, wanted in ((False, [[[8, 2], [3, 3]], [[10, 0], [6, 0]]]),
                           (True, [[[8, 2], [0, 6]], [[0, 0], [0, 0]]])):      # the second fails, as 6 are left over
        rng = Script([first, second])
        rng.uniform = lambda low, high, size: np.full(size, .5)
        assert divide_by_dirichlet(np.array([10, 6]), 2, .3, 2, rng, capped).tolist() == wanted
        assert rng.asked == [([.3, .3], (2, 2))]
    uneven = Script([[[.3, .3, .4]]])
    uneven.uniform = lambda low, high, size: np.full(size, low if (low, high, size) == (1e-6, 1 - 1e-6, (1, 1)) else 9)
    # 2.1 and 4.2 are rounded down.
    assert divide_by_dirichlet(np.array([7]), 3, 1., 1, uneven).tolist() == [[[2, 2, 3]]]


def test_redraw_takes_the_first_draw_that_is_good_enough():
    # In these draws every client has at least 4, 2 and 0 of 8 samples.
    half, most, all_ = [[.5, .5]], [[.75, .25]], [[1., 0.]]

    def drawn(wanted, tries=4):
        rng = Script([all_, most, half, most])
        rng.uniform = lambda low, high, size: np.full(size, .5)
        return redraw_until_large(np.array([8]), 2, 1., wanted, tries, rng)
    for wanted, amounts in ((1, [[6, 2]]), (2, [[6, 2]]), (3, [[4, 4]]), (4, [[4, 4]])):
        assert drawn(wanted)[0].tolist() == amounts
    assert drawn(5) == (None, 4)


@pytest.mark.parametrize("classes, clients, tries, at_once", [
    (2, 3, 150, [64, 64, 22]), (10, 1000, 50, [20, 20, 10]), (500, 500, 3, [1, 1, 1])])
def test_tries_are_drawn_together_but_not_so_many_that_they_fill_the_memory(classes, clients, tries, at_once):
    class Nothing(Script):
        def dirichlet(self, alpha, size):
            self.asked.append(size)
            return np.zeros((*size, len(alpha)))

        def uniform(self, low, high, size):
            return np.full(size, .5)
    rng = Nothing()
    assert redraw_until_large(np.full(classes, 4), clients, 1., 1, tries, rng) == (None, 0)
    assert rng.asked == [(n, classes) for n in at_once]


def test_dirichlet_follows_beta():
    """E[sum of squared shares] of Dir(beta) over N clients is (beta + 1) / (N beta + 1)."""
    for beta in (.1, 1, 10):
        draws = divide_by_dirichlet(np.full(10, 10_000), 5, beta, 200, np.random.default_rng(0)) / 10_000
        assert (draws ** 2).sum(2).mean() == pytest.approx((beta + 1) / (5 * beta + 1), rel=.05)


def test_redraw_says_how_near_it_came():
    sizes, rng = np.full(10, 100), np.random.default_rng(0)
    amounts, best = redraw_until_large(sizes, 5, 1., 120, 500, rng)
    assert amounts.shape == (10, 5) and amounts.sum(0).min() >= 120 and best >= 120
    assert amounts.sum(1).tolist() == [100] * 10
    nothing, best = redraw_until_large(sizes, 5, 1., 200, 100, rng)
    assert nothing is None and 100 < best < 200


@pytest.mark.parametrize("cls", [Dirichlet, ClusterDirichlet])
def test_more_for_every_client_than_there_is_is_refused_before_a_draw(cls):
    with pytest.raises(BadInput, match="data.partition.smallest = 151: the data set has 150 samples for each of 20 "
                                       "clients; lower it, or data.clients"):
        cls(smallest=151).assign(np.zeros(3000, np.int64), 20, None)
