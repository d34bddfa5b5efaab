"""Which rank hosts which client."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpi.clients.placement import Pace, assign_homes, place_longest_first
from fedmpi.method import Participants

HOW = ("balanced", "blocks", "shuffled")
# A client costs as much as so many samples, beside its own.
FIXED = 20


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=60), ranks=st.integers(1, 9),
       server=st.booleans(), how=st.sampled_from(HOW))
def test_every_client_has_one_home_that_may_host(sizes, ranks, server, how):
    where = assign_homes(np.array(sizes), ranks, server, how)
    assert where.shape == (len(sizes),) and where.dtype == np.int64
    assert where.min() >= (0 if server or ranks == 1 else 1) and where.max() < ranks


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=60), ranks=st.integers(2, 9))
def test_balanced_is_balanced(sizes, ranks):
    costs = np.array(sizes) + FIXED
    loads = np.bincount(assign_homes(np.array(sizes), ranks, True), costs, ranks)
    # the bound of any list scheduling
    assert loads.max() <= costs.sum() / ranks + costs.max() * (1 - 1 / ranks)
    best = max(costs.sum() / ranks, costs.max())
    assert loads.max() <= 4 / 3 * best + costs.max()
    assert len(sizes) < ranks or loads.min() > 0


def test_a_client_costs_twenty_samples_beside_its_own():
    """The last of three small clients goes where it ends first: 42 + 21 is as early as 3 x 21, 43 + 21 is later."""
    assert assign_homes(np.array([22, 1, 1, 1]), 2, True).tolist() == [0, 1, 1, 0]
    assert assign_homes(np.array([23, 1, 1, 1]), 2, True).tolist() == [0, 1, 1, 1]


def test_longest_first_beats_blocks():
    sizes = np.array([1000, 900, 10, 10, 10, 10, 10, 10])
    loads = [np.bincount(assign_homes(sizes, 3, False, how), sizes, 3).max() for how in ("balanced", "blocks")]
    assert loads[0] < 1050 and loads[1] > 1900


def test_more_ranks_than_clients_leaves_some_idle():
    where = assign_homes(np.array([5, 6, 7]), 6, False)
    assert len(set(where)) == 3 and 0 not in where


@pytest.mark.parametrize("how", HOW)
def test_ranks_host_equally_many_equal_clients(how):
    counts = np.bincount(assign_homes(np.full(20, 30), 6, False, how), minlength=6)
    assert counts.tolist() == [0, 4, 4, 4, 4, 4]


def test_shuffled_depends_on_the_seed_alone():
    sizes = np.arange(1, 21)
    first, again, other = (assign_homes(sizes, 4, False, "shuffled", s) for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def who(ids, sizes):
    return Participants(np.array(ids), np.array(sizes), 0, 0)


def test_clients_with_a_state_train_at_home():
    pace = Pace(np.array([1, 2, 1, 2]), movable=False)
    assert pace.choose_ranks(who([0, 2, 3], [5, 9, 7])).tolist() == [1, 1, 2]


def test_clients_without_a_state_are_spread_over_the_ranks_that_host():
    pace = Pace(np.array([1, 1, 1, 3]), movable=True)
    at = pace.choose_ranks(who([0, 1, 2], [50, 50, 50]))
    assert set(at) == {1, 3} and len(at) == 3


def test_a_slower_rank_gets_less():
    pace, everyone = Pace(np.array([1, 2] * 20), movable=True), who(range(40), [80] * 40)
    for _ in range(6):
        at = pace.choose_ranks(everyone)
        work = np.bincount(at, minlength=3)
        # Rank 2 takes three times as long.
        facts = pace.record(work * [0, 1, 3], work, everyone)
    assert 28 <= work[1] <= 31 and work.sum() == 40
    assert facts["imbalance"] < 1.1 and facts["idle_share"] < .1


def test_an_idle_round_does_not_stop_a_rank_for_good():
    pace = Pace(np.array([1, 2]), movable=True)
    one = who([0], [5])
    pace.choose_ranks(one)
    pace.record(np.zeros(3), np.zeros(3), one)
    assert np.isfinite(pace.speeds).all() and (pace.speeds > 0).all()


@pytest.mark.parametrize("ranks, slowness", [(2, 5), (4, 20)])
def test_one_slow_round_does_not_idle_a_rank_for_good(ranks, slowness):
    """As many participants as ranks, so a rank that is thought to be slow gets none and is not measured again."""
    pace, everyone = Pace(np.arange(ranks), movable=True), who(range(ranks), [60] * ranks)
    given = []
    for round in range(40):
        at = np.bincount(pace.choose_ranks(everyone), minlength=ranks)
        given.append(at[-1])
        pace.record(at * np.where(np.arange(ranks) < ranks - 1, 1., slowness if round == 0 else 1.), at, everyone)
    assert given[1] == 0 and given[-10:] == [1] * 10
    assert pace.speeds == pytest.approx(1, abs=.2)


def test_a_rank_that_is_slow_always_is_seldom_tried_again():
    pace, two = Pace(np.arange(2), movable=True), who([0, 1], [60, 60])
    given = []
    for _ in range(100):
        at = np.bincount(pace.choose_ranks(two), minlength=2)
        given.append(int(at[1]))
        pace.record(at * [1., 5.], at, two)
    assert given[0] and 2 <= sum(given) <= 6


def measured(pace, everyone, cost_per_second):
    """Let the ranks report three rounds with their speeds."""
    for _ in range(3):
        at = pace.choose_ranks(everyone)
        work = np.bincount(at, np.asarray(everyone.sizes) + FIXED, len(cost_per_second))
        facts = pace.record(work / cost_per_second, work, everyone)
    return facts


def pace_of(homes, sizes, row=1000):
    return Pace(np.array(homes), movable=False, sizes=np.array(sizes), row=row)


def test_clients_leave_a_slow_rank():
    pace, everyone = pace_of([1, 2] * 20, [80] * 40), who(range(40), [80] * 40)
    before = measured(pace, everyone, np.array([1., 300, 100]))["imbalance"]
    ids, ranks = pace.plan_moves(left=100)
    assert (pace.homes[ids] == 2).all() and (ranks == 1).all() and (np.diff(ids) > 0).all()
    homes = pace.homes.copy()
    homes[ids] = ranks
    pace.record_moves(homes, len(ids), .1)
    after = measured(pace, everyone, np.array([1., 300, 100]))["imbalance"]
    assert before > 1.4 and after < 1.1
    # Further moves gain nothing.
    assert pace.plan_moves(left=100) is None


def test_clients_stay_where_moving_takes_longer_than_it_saves():
    def moves(row, left):
        pace, everyone = pace_of([1, 2] * 20, [80] * 40, row), who(range(40), [80] * 40)
        # A round takes 20 s, of which moving saves 5.
        measured(pace, everyone, np.array([1., 300, 100]))
        return pace.plan_moves(left)
    assert moves(row=10**8, left=100) is not None
    assert moves(row=10**8, left=0) is None
    assert moves(row=10**12, left=100) is None


def test_clients_stay_where_ranks_are_even_or_not_measured_yet():
    pace = pace_of([1, 2] * 20, [80] * 40)
    assert pace.plan_moves(left=100) is None
    measured(pace, who(range(40), [80] * 40), np.array([1., 100, 105]))
    assert pace.plan_moves(left=100) is None


def test_clients_of_a_chosen_placement_stay():
    pace = Pace(np.array([1, 2] * 20), movable=False)
    measured(pace, who(range(40), [80] * 40), np.array([1., 300, 100]))
    assert pace.plan_moves(left=100) is None


@given(sizes=st.lists(st.integers(1, 5000), min_size=2, max_size=60),
       speeds=st.lists(st.floats(.1, 10), min_size=1, max_size=6))
def test_moves_never_make_the_slowest_rank_slower(sizes, speeds):
    ranks = np.arange(len(sizes)) % len(speeds)
    pace, everyone = pace_of(ranks, sizes, row=1), who(range(len(sizes)), sizes)
    measured(pace, everyone, np.array(speeds))
    moves = pace.plan_moves(left=10**9)
    if moves:
        after = ranks.copy()
        after[moves[0]] = moves[1]
        loads = [np.bincount(at, np.array(sizes) + FIXED, len(speeds))[pace.hosts] / pace.speeds
                 for at in (ranks, after)]
        assert loads[1].max() < loads[0].max()


def test_the_largest_first_to_whoever_would_finish_first():
    """By hand: sizes 100, 70, 50, 40 and 10, each plus 20, on three ranks; ties go to the lower rank."""
    assert assign_homes(np.array([10, 70, 100, 40, 50]), 4, False).tolist() == [2, 2, 1, 3, 3]
    assert assign_homes(np.array([10, 70, 100, 40, 50]), 3, True).tolist() == [1, 1, 0, 2, 2]
    assert assign_homes(np.array([5, 5, 5]), 1, False).tolist() == [0, 0, 0]
    # Fixed costs count: by samples alone all four clients of 1 would join the client of 60.
    assert assign_homes(np.array([60, 1, 1, 1, 1, 70]), 2, True).tolist() == [1, 1, 0, 1, 0, 0]


@given(costs=st.lists(st.integers(1, 500), min_size=1, max_size=30), bins=st.integers(1, 5),
       seed=st.integers(0, 5))
def test_longest_first_is_its_definition(costs, bins, seed):
    """The reference uses plain lists; clients with equal costs keep their order."""
    speeds = (1 + np.random.default_rng(seed).integers(0, 4, bins)).tolist()
    loads, place = [0.] * bins, {}
    for cost, item in sorted(((c, i) for i, c in enumerate(costs)), key=lambda pair: (-pair[0], pair[1])):
        done = [(load + cost) / speed for load, speed in zip(loads, speeds, strict=True)]
        place[item] = done.index(min(done))
        loads[place[item]] += cost
    found = place_longest_first(np.array(costs), bins, np.array(speeds, float))
    assert found.tolist() == [place[i] for i in range(len(costs))]


def test_blocks_and_shuffled_are_the_known_ones():
    """numpy.random.default_rng(5) alone drew the permutation of [1, 1, 1, 2, 2, 3, 3]."""
    sizes = np.array([9, 1, 1, 1, 1, 1, 50])
    assert assign_homes(sizes, 4, False, "blocks").tolist() == [1, 1, 1, 2, 2, 3, 3]
    assert assign_homes(sizes, 3, True, "blocks").tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert assign_homes(sizes, 4, False, "shuffled", 5).tolist() == [1, 2, 1, 2, 3, 3, 1]


def test_the_facts_of_a_round_are_those_of_the_ranks_that_host():
    """Rank 0 hosts nobody, so its seconds do not count."""
    pace = Pace(np.array([1, 2, 3, 3]), movable=False)
    pace.choose_ranks(who([0, 1, 2], [30, 80, 80]))
    facts = pace.record(*np.array([[9., 99], [2, 5], [3, 7], [1, 6]]).T, who([0, 1, 2], [30, 80, 80]))
    assert facts == {"seconds_train": 3., "seconds_judge": 7., "imbalance": 1.5, "idle_share": pytest.approx(1 / 3)}
    # Samples per second, with 20 more for each client or rank.
    rate = np.array([50 / 2, 100 / 3, 100 / 1])
    assert pace.speeds == pytest.approx(.5 + .5 * rate / rate.mean())
    assert (pace.rounds, pace.seconds) == (1, 3.)
    pace.record(*np.array([[0., 0], [5, 5], [3, 7], [1, 6]]).T, who([0, 1, 2], [30, 80, 80]))
    assert (pace.rounds, pace.seconds) == (2, 4.)
    # One rank did not train.
    pace.record(*np.array([[0., 0], [5, 5], [0, 7], [1, 6]]).T, who([0, 1, 2], [30, 80, 80]))
    assert (pace.rounds, pace.seconds) == (2, 4.)
    idle = pace.record(*np.zeros((4, 2)).T, who([0, 1, 2], [30, 80, 80]))
    assert idle == {"seconds_train": 0., "seconds_judge": 0., "imbalance": pytest.approx(1.), "idle_share": 1.}


def test_moves_are_those_by_hand():
    """Ranks 1 (costs 100, 80 and 60) and 2 (40) are equally fast; the client of 100 moves, and both have 140."""
    pace = pace_of([1, 1, 1, 2], [80, 60, 40, 20], row=10)
    for rounds in range(3):
        # Ranks were not measured for long enough.
        assert pace.plan_moves(left=100) is None and pace.rounds == rounds
        pace.choose_ranks(who(range(4), [80, 60, 40, 20]))
        pace.record(*np.array([[0., 0], [2.4, 0], [.4, 0]]).T, who(range(4), [80, 60, 40, 20]))
    ids, ranks = pace.plan_moves(left=100)
    assert (ids.tolist(), ranks.tolist()) == ([0], [2]) and ids.dtype == ranks.dtype == np.int64
    # No client has moved yet.
    assert pace.homes.tolist() == [1, 1, 1, 2]
    # Each round saves 1 s of 2.4 s. A row of 10 bytes takes 100 s, so moving pays off if more than 100 rounds are left.
    pace.bandwidth = 10 / 100
    assert pace.plan_moves(left=101) is not None and pace.plan_moves(left=99) is None
    pace.record_moves(np.array([2, 1, 1, 2]), 1, .5)
    assert (pace.rounds, pace.seconds, pace.bandwidth) == (0, 0., 20.) and pace.homes.tolist() == [2, 1, 1, 2]


@pytest.mark.parametrize("small, expected", [(60, None), (101, [1])])
def test_a_trifle_is_not_worth_moving(small, expected):
    """Moving saves 60 or 101 of loads of 1000, and must save a tenth."""
    sizes = np.array([1000 - small, small, 980 - 2 * small]) - FIXED
    pace = pace_of([0, 0, 1], sizes, row=0)
    for _ in range(3):
        pace.choose_ranks(who(range(3), sizes))
        pace.record(*np.array([[1000., 0], [980 - 2 * small, 0]]).T, who(range(3), sizes))
    found = pace.plan_moves(left=10)
    assert found is None if expected is None else found[0].tolist() == expected
