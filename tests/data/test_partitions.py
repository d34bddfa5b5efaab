import time

import numpy as np
import pytest

from fedmpi import settings
from fedmpi.data.partitions import BUILT_IN, Dirichlet, Iid, Pathological, divide
from fedmpi.errors import BadInput

TEN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))
HUNDRED = np.random.default_rng(1).permutation(np.repeat(np.arange(100), 60))
UNEVEN = np.random.default_rng(2).choice(7, 2000, p=[.4, .3, .1, .1, .05, .03, .02])
GAPS = np.repeat([3, 5, 11], [100, 50, 70])       # classes that do not occur

ALL = [Iid(), Iid(balanced=False), Dirichlet(.5), Dirichlet(.5, "plain"), Dirichlet(.5, smallest=9),
       Pathological(2), Pathological(2, balanced=True), Pathological(3)]


def assign(partition, labels, clients, seed=0):
    return partition.assign(labels, clients, np.random.default_rng(seed))


def table(parts, labels):
    """Samples per client and class (N, C)."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("labels", [TEN, UNEVEN, GAPS], ids=["ten", "uneven", "gaps"])
@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_every_sample_has_one_holder_and_every_client_a_sample(partition, labels):
    for clients in (5, 8):
        parts, _ = assign(partition, labels, clients)
        assert len(parts) == clients and min(map(len, parts)) > 0
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_the_seed_decides(partition):
    first, second, other = (np.concatenate(assign(partition, TEN, 10, seed)[0]) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("partition", [Iid(), Iid(False), Dirichlet(5.), Pathological(10)], ids=repr)
def test_one_client_holds_everything(partition):
    parts, _ = assign(partition, TEN, 1)
    assert len(parts[0]) == len(TEN)


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(), Pathological()], ids=repr)
def test_more_clients_than_samples_is_bad_input(partition):
    with pytest.raises(BadInput, match="data.clients = 3001: the data set has only 3000 samples"):
        assign(partition, TEN, 3001)


def test_settings_are_listed_and_checked():
    for partition in BUILT_IN.values():
        assert partition.title and partition.__doc__ and all(row["help"] for row in settings.describe(partition))
    with pytest.raises(BadInput, match="data.partition.beta = 0"):
        settings.build(Dirichlet, {"beta": 0.0}, "data.partition")


def test_iid_shares():
    even, _ = assign(Iid(), TEN, 7)
    assert {len(p) for p in even} == {len(TEN) // 7, len(TEN) // 7 + 1}
    uneven, _ = assign(Iid(balanced=False), TEN, 7)
    sizes = np.array([len(p) for p in uneven])
    assert sizes.max() > 1.5 * sizes.min() and sizes.max() <= 11 * sizes.min()
    assert np.abs(table(even, TEN) / 43 - 1).max() < .5     # every class at every client


def test_dirichlet_capped_gives_nothing_to_those_who_have_their_share():
    parts, groups = assign(Dirichlet(.3), HUNDRED, 20)
    held = table(parts, HUNDRED).cumsum(1)
    full = held[:, :-1] >= len(HUNDRED) / 20
    assert groups is None and full.any() and not np.diff(held)[full].any()
    plain = table(assign(Dirichlet(.3, "plain"), HUNDRED, 20)[0], HUNDRED).cumsum(1)
    assert np.diff(plain)[plain[:, :-1] >= len(HUNDRED) / 20].any()


@pytest.mark.parametrize("clients, wanted", [(10, 40), (50, 30), (100, 15)])
def test_dirichlet_capped_leaves_no_client_below_the_papers_minimum(clients, wanted):
    for seed in range(5):
        assert min(map(len, assign(Dirichlet(.7), TEN, clients, seed)[0])) >= wanted


def test_dirichlet_redraws_until_the_smallest_is_large_enough():
    smallest = [min(map(len, assign(Dirichlet(.3, "plain", s), TEN, 10)[0])) for s in (None, 60, 120)]
    assert smallest[0] >= 2 and smallest[1] >= 60 and smallest[2] >= 120
    with pytest.raises(BadInput) as error:
        assign(Dirichlet(.05, smallest=299, tries=100), TEN, 10)
    message = str(error.value)
    for piece in ("data.partition", "beta=0.05", "10 clients", "3000 samples", "299", "100 times", "raise", "lower"):
        assert piece in message


def test_dirichlet_gives_up_soon_even_when_no_draw_can_succeed():
    start = time.perf_counter()
    with pytest.raises(BadInput, match="best draw: 0"):
        assign(Dirichlet(1e-4), TEN, 50)
    assert time.perf_counter() - start < 5


def test_a_draw_in_which_nobody_with_room_has_a_share_has_failed():
    draws = Dirichlet(1e-3).draw(np.full(4, 100), 5, 200, np.random.default_rng(0))
    assert set(draws.sum((1, 2))) == {0, 400}


def test_dirichlet_with_the_settings_of_the_quickstart():
    labels = np.repeat(np.arange(10), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    for seed in range(5):
        assert min(map(len, assign(Dirichlet(), labels, 20, seed)[0])) >= 40


def test_dirichlet_follows_beta():
    """E[sum of squared shares] of Dir(beta) over N clients is (beta + 1) / (N beta + 1)."""
    for beta in (.1, 1, 10):
        draws = Dirichlet(beta, "plain").draw(np.full(10, 10_000), 5, 200, np.random.default_rng(0)) / 10_000
        assert (draws ** 2).sum(2).mean() == pytest.approx((beta + 1) / (5 * beta + 1), rel=.05)


def test_dirichlet_with_more_clients_than_samples_of_a_class_reaches_them_all():
    parts, _ = assign(Dirichlet(1000., "plain"), HUNDRED, 200)      # 60 samples of a class, 200 clients
    assert min(map(len, parts)) >= 10


@pytest.mark.parametrize("labels, each, blocks, block", [(TEN, 2, 5, 4), (HUNDRED, 10, 10, 2)])
def test_pathological_plants_the_groups_of_the_papers(labels, each, blocks, block):
    parts, groups = assign(Pathological(each), labels, 20)
    np.testing.assert_array_equal(groups, np.repeat(np.arange(blocks), block))
    classes = [frozenset(labels[part]) for part in parts]
    assert all(len(c) == each for c in classes)
    assert len(set(classes)) == blocks and frozenset.union(*classes) == set(labels)
    assert all((classes[i] == classes[j]) == (groups[i] == groups[j]) for i in range(20) for j in range(20))


@pytest.mark.parametrize("clients", [4, 7, 20, 33])
@pytest.mark.parametrize("each", [3, 4, 7, 9, 10])
def test_pathological_when_the_numbers_do_not_divide(clients, each):
    parts, groups = assign(Pathological(each), TEN, clients)
    classes = [tuple(np.unique(TEN[part])) for part in parts]
    assert all(len(c) == each for c in classes) and len(np.concatenate(parts)) == len(TEN)
    assert len(set(classes)) == groups.max() + 1 == -(-10 // each)
    assert (np.diff(groups) >= 0).all() and np.ptp(np.bincount(groups)) <= 1
    assert all(len({classes[i] for i in np.flatnonzero(groups == g)}) == 1 for g in groups)


def test_pathological_shares_equal_or_drawn():
    even = table(assign(Pathological(2, balanced=True), TEN, 20)[0], TEN)
    assert set(even[even > 0]) == {75}
    drawn = table(assign(Pathological(2), TEN, 20)[0], TEN)
    assert drawn[drawn > 0].std() > 10 and drawn[drawn > 0].min() >= 300 * .1 / 3.1


def test_pathological_says_what_cannot_be():
    with pytest.raises(BadInput, match="classes_per_client = 11: the data set has 10 classes"):
        assign(Pathological(11), TEN, 20)
    with pytest.raises(BadInput, match="data.clients to 5 or more, or data.partition.classes_per_client to 3"):
        assign(Pathological(2), TEN, 4)
    few = np.repeat([0, 1], [50, 3])
    with pytest.raises(BadInput, match="class 1 has 3 samples for 5 clients"):
        assign(Pathological(2), few, 5)


def test_divide():
    assert divide(10, 3).tolist() in ([3, 4, 3], [3, 3, 4], [4, 3, 3])
    for total in (5, 6, 100):
        drawn = divide(total, 5, np.random.default_rng(0))
        assert drawn.sum() == total and drawn.min() >= 1
