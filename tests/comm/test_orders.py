"""What rank 0 sends to the others: every order as it arrives, and only the changed part of the server's state."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import MINE, ORDERS
from fedmpi.comm.rank_pool import HEADER_BYTES, RankPool
from fedmpi.comm.transport import Solo
from fedmpi.context import RankContext
from fedmpi.engines.step_counter import EVALUATED, StepCounter
from tests.comm.together import together


def fresh(pool, shared) -> list[bool]:
    return pool.list_changed_fields(shared)[0].tolist()


@pytest.fixture
def pool():
    return RankPool(Solo(), None, np.zeros(1, np.int64))


def test_what_stays_the_same_tensor_is_not_sent_again(pool):
    w, centres = torch.ones(3), torch.zeros(2, 3)
    assert fresh(pool, (w, centres)) == [True, True]
    assert fresh(pool, (w, centres)) == [False, False]
    assert fresh(pool, (w + 1, centres)) == [True, False]
    # This is the state before the last one, which the ranks do not hold.
    assert fresh(pool, (w, centres)) == [True, False]


def test_what_was_changed_in_place_is_sent(pool):
    w, R = torch.ones(3), torch.zeros(4)
    assert fresh(pool, (w, R)) == [True, True]
    # Change it through a view.
    R[2:][0] = 5
    assert fresh(pool, (w, R)) == [False, True]
    flags, *arrays = pool.list_changed_fields((w.clone(), R))
    assert flags.tolist() == [True, False] and np.array_equal(arrays[0], np.ones(3))


class Hand:
    """A rank's clients that only keep what they receive; rank homes[i] hosts client i."""
    device = torch.device("cpu")

    def __init__(self, rank: int, skips=True):
        self.rank, self.told, self.skips_bad_updates, self.counter = rank, [], skips, StepCounter()
        # This object also stands for the parts of HostedClients.
        self.context, self.sums, self.evaluator = RankContext(), self, self

    def receive_shared(self, fresh, arrays):
        self.told.append(("hear", fresh.tolist(), [np.asarray(a).tolist() for a in arrays]))

    def train(self, round, ids, mine, evaluates):
        self.told.append(("train", round, ids.tolist(), mine.tolist(), evaluates))

    def check_grace(self):
        """Do nothing: nobody waits for the end of the round."""

    def find_bad_updates(self, ids):
        return ((ids == 5) & (self.rank == 2)).astype(np.int64)

    def measure_clients(self, round, clients):
        return np.full((clients, 1, 2), 10. ** self.rank + round)

    def take_seconds(self):
        return .5, self.rank

    @property
    def trains_on_gpu(self):
        return self.rank == 1

    def read_rows(self, what, dtype=None):
        self.told.append(("rows", what))
        return np.array([[i, 100 + i] for i in self.mine], float).reshape(-1, 2)

    def use_engine(self, name):
        self.told.append(("use", name))

    def restore_states(self, path, ids):
        self.told.append(("restore", path, ids.tolist()))

    def find_touched(self):
        return np.array([i % 2 == 0 for i in self.mine])


HOMES = np.array([1, 2, 0, 2, 1, 2])


def crews(act, skips=True) -> list:
    """Let rank 0 of three act(pool); return its answer and what each rank's clients received."""
    def rank(world):
        pool = RankPool(world, Hand(world.rank, skips), HOMES)
        pool.hosted.mine, answer = np.flatnonzero(world.rank == HOMES), None
        pool.hosted.context.stop = lambda: world.rank == 2
        if world.rank:
            answer = pool.serve()
        else:
            answer = act(pool)
            pool.call(OrderPerformer.stop, np.int64(75))
        return answer, pool.hosted.told, pool.ids.tolist(), pool.performer.ranks.tolist(), world.order
    return together(3, rank)


def test_every_rank_finds_an_order_by_its_number():
    """The number travels; the state of these orders may go straight to a GPU."""
    assert [order.number for order in ORDERS] == list(range(len(ORDERS))) and HEADER_BYTES == 8192
    assert len({order.name for order in ORDERS}) == len(ORDERS)
    assert all(getattr(OrderPerformer, order.name) is order for order in ORDERS)
    assert {order.name: order.first_state for order in ORDERS if order.first_state is not None} == {
        "train": 5, "evaluate": 2, "measure_losses": 3, "time_engines": 1}


def test_participants_train_at_their_homes_and_those_with_bad_updates_are_left_out():
    ids, state = np.array([0, 2, 3, 5]), [torch.tensor([1., 2.]), torch.tensor(3)]
    dismiss, stop = OrderPerformer.dismiss.number, OrderPerformer.stop.number
    (kept, *mine), *workers = crews(lambda pool: pool.train(6, ids, True, state).tolist())
    assert kept == [True, True, True, False]
    for rank, (told, left, ranks, order) in enumerate([mine, *(found[1:] for found in workers)]):
        assert told[0] == ("hear", [True, True], [[1, 2], 3])
        assert told[1] == ("train", 6, [0, 2, 3, 5], [[2], [0], [3, 5]][rank], True)
        assert left == [0, 2, 3] and ranks == [1, 0, 2] and order == (dismiss if rank else stop)
    assert [code for code, *_ in workers] == [75, 75]


@pytest.mark.parametrize("numbers", [0, HEADER_BYTES])
@pytest.mark.parametrize("skips", [False, True])
def test_rank_0_looks_at_the_grace_until_all_ranks_have_trained(skips, numbers):
    """They meet in the order to train if it asks for bad updates, and later otherwise. A state that does not fit into
    the order's header comes after a meeting of its own."""
    def act(pool):
        pool.train(0, np.array([1, 4]), False, [torch.zeros(numbers)])
        return pool.world.while_waiting == pool.hosted.check_grace
    assert crews(act, skips)[0][0] is not skips


def test_participants_train_where_they_are_told_to():
    ids = np.array([1, 4])
    found = crews(lambda pool: pool.train(0, ids, False, [], np.array([0, 2])).tolist(), skips=False)
    # Nobody checks whose update is bad.
    assert found[0][0] == [True, True]
    assert [told[1] for _, told, *_ in found] == [("train", 0, [1, 4], mine, False) for mine in ([1], [], [4])]
    assert all(found[rank][2:4] == ([1, 4], [0, 2]) for rank in range(3))


def test_the_table_of_all_clients_and_the_reports_of_all_ranks():
    """Rank 2 was asked to stop, which rank 0 learns from its report."""
    def act(pool):
        before = pool.stop_requested
        pool.hosted.counter.begin(EVALUATED)
        pool.hosted.counter.add("judging", 7)
        table, reports = pool.evaluate(3, [])
        return before, table.tolist(), pool.stop_requested, reports, pool.call(OrderPerformer.gather_reports)
    (before, table, asked, first, again), *_ = crews(act)[0]
    assert table == [[[120., 120.]]] * 6 and (before, asked) == (False, True)
    # Rank 0's steps are reported once.
    for reports, evaluated in ((first, 7), (again, 0)):
        assert reports.steps.tolist() == [[0] * 17 + [evaluated], [0] * 18, [0] * 18]
        assert (reports.train_seconds.tolist(), reports.evaluation_seconds.tolist()) == ([.5] * 3, [0, 1, 2])
        assert reports.on_gpu.tolist() == [False, True, False]
        assert reports.stop_requested.tolist() == [False, False, True]
        assert (reports.peak_memory[:, 0] > 0).all() and not reports.peak_memory[:, 1].any()


def test_rows_come_in_the_order_of_clients():
    def act(pool):
        everywhere = pool.call(OrderPerformer.gather_rows, np.array([MINE, 0, 0, 2]),
                                   np.empty(0, np.float32))
        return everywhere.tolist(), pool.call(OrderPerformer.gather_touched).tolist()
    (rows, touched), *_ = crews(act)[0]
    assert rows == [[i, 100 + i] for i in range(6)] and touched == [True, False] * 3


def test_words_reach_every_rank():
    def act(pool):
        pool.call(OrderPerformer.use_engine, np.frombuffer("vmap é".encode(), np.uint8))
        pool.call(OrderPerformer.restore, np.frombuffer(b"/a/b.h5", np.uint8), np.array([1, 4]))
    assert all(told == [("use", "vmap é"), ("restore", "/a/b.h5", [1, 4])] for _, told, *_ in crews(act))


@pytest.mark.parametrize("nbytes, broadcasts", [(8176 - 40, 0), (8176 - 40 + 1, 1)])
def test_an_order_that_fits_into_its_header_needs_no_second_broadcast(nbytes, broadcasts):
    """The header takes 16 bytes, the frame of one array 40."""
    def act(pool):
        pool.call(OrderPerformer.use_engine, np.full(nbytes, ord("x"), np.uint8))
        return pool.world.sent
    sent = crews(act)[0][0]
    assert (sent > 0) == broadcasts and sent == broadcasts * 2 * (40 + 8136 + 8)
