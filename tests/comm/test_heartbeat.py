"""Which ranks keep the others waiting, what is said of them, and who ends the job. tests/test_interrupted.py stops
real ranks."""
from __future__ import annotations

import errno
import time
from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.comm import heartbeat
from fedmpi.comm.heartbeat import NO_REPORT, Heartbeat, describe_report, find_late
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.context import RankContext
from tests.comm.together import Aborted, together

SUM, TRAIN, STOP = (order.number for order in (OrderPerformer.sum_rows, OrderPerformer.train, OrderPerformer.stop))
IN, AT_WORK = np.array([7, 1, SUM, 3, -1, 0, 9]), np.array([7, 0, TRAIN, 3, 5, 0, 9])


@pytest.mark.parametrize("silent, still, known, late", [
    ((9, 10, 0), (10, 10, 10), (AT_WORK,) * 3, []),               # silence of exactly the limit is allowed
    ((11, 0, 0), (11, 11, 0), (IN, AT_WORK, IN), [1]),            # silence comes first, wherever it began
    ((11, 0, 12), (0, 0, 0), (IN, AT_WORK, IN), [1, 3]),
    ((0, 0, 0), (11, 11, 11), (IN, AT_WORK, IN), [2]),            # rank 2 is stuck, the others wait for it
    ((0, 0, 0), (99, 9, 99), (IN, AT_WORK, IN), [])])             # in a long round clients come and go
def test_who_is_missing(silent, still, known, late):
    ranks = (1, 2, 3)
    assert find_late(*(dict(zip(ranks, values, strict=True)) for values in (silent, still, known)), limit=10) == late


@pytest.mark.parametrize("words, said", [
    (AT_WORK, "client 5, round 4, order train"), (IN, "round 4, order sum_rows"),
    ([7, 0, TRAIN, 0, 5, 2, 9], "client 5 and 2 more, round 1, order train"),
    ([7, 0, STOP, 0, 0, 1, 9], "client 0 and 1 more, round 1, order stop"),
    ([-1] * 7, "ready for its first order")])
def test_what_a_rank_does(words, said):
    assert describe_report(np.array(words)) == said


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    """Start no threads of watches; tests let them look."""
    monkeypatch.setattr(heartbeat, "threading", SimpleNamespace(
        Event=heartbeat.threading.Event, Timer=Timer, Thread=lambda target, daemon: SimpleNamespace(
            start=lambda: None, join=lambda: None, target=target, daemon=daemon)))
    Timer.begun.clear()


class Timer:
    """Keeps what a timer would do, and when."""
    begun = []

    def __init__(self, seconds, act):
        self.seconds, self.act, self.daemon = seconds, act, False

    def start(self):
        assert self.daemon
        self.begun.append((self.seconds, self.act))


def on(world, timeout: float = 20., hosts=("n0", "n1", "n2", "n3")) -> Heartbeat:
    return Heartbeat(world, timeout, list(hosts), RankContext())


class Looks:
    """Stands for the event that ends a watch, and lets it look so many times."""

    def __init__(self, count: int):
        self.count, self.waits = count, []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > self.count

    def set(self):
        """Do nothing: the watch is over."""


def lonely(rank: int, size: int, timeout: float = 20.) -> Heartbeat:
    """Return the watch of a rank whose peers are silent; `fail` keeps whom it blames."""
    comm = SimpleNamespace(Iprobe=lambda status: False, Isend=lambda what, peer: SimpleNamespace(Test=lambda: False))
    world = SimpleNamespace(rank=rank, size=size, comm=SimpleNamespace(Dup=lambda: comm),
                            collectives=4, in_collective=False, order=1, end_if_worker_failed=lambda: None,
                            mpi=SimpleNamespace(Status=SimpleNamespace))
    return on(world, timeout, [f"n{r}" for r in range(size)])


def test_signs_of_life_are_given_often_enough():
    assert (heartbeat.REPORTS_PER_TIMEOUT, heartbeat.LONGEST_BEAT_S) == (10, 1)
    assert (heartbeat.ORDERLY_END_S, heartbeat.MAX_WORKERS_IN_TURN) == (10, 20)
    assert lonely(0, 3, timeout=600).beat == 1 and lonely(0, 3, timeout=5).beat == .5


@pytest.mark.parametrize("rank, timeout, limit", [(0, 20, 20), (1, 20, 20), (2, 20, 21), (5, 20, 24), (21, 20, 40),
                                                  (22, 20, 40), (99, 20, 40), (3, 5, 6)])
def test_workers_give_rank_0_up_one_after_another(rank, timeout, limit):
    """Rank 0 and the first worker act at the timeout, each further one a beat later, the 21st and the rest at once."""
    found = lonely(rank, 100, timeout)
    assert found.limit == limit and found.peers == ([0] if rank else [*range(1, 100)])


@pytest.mark.parametrize("rank, looks", [(0, 21), (1, 21), (3, 23)])
def test_silence_of_more_than_the_timeout_ends_the_job(rank, looks):
    found, blamed = lonely(rank, 4), []
    found.fail = lambda late: (blamed.append(late), (_ for _ in ()).throw(Aborted))
    found.over = Looks(looks - 1)
    found.run()
    assert not blamed and set(found.over.waits) == {1.}
    found.over = Looks(1)
    with pytest.raises(Aborted):
        found.run()
    assert blamed == [[1, 2, 3] if rank == 0 else [0]]


def test_one_sign_at_a_time_is_under_way():
    found, sent = lonely(0, 3), []
    taken = {1: True, 2: False}
    found.comm.Isend = lambda what, peer: sent.append(peer) or SimpleNamespace(Test=lambda: taken[peer])
    for _ in range(3):
        found.send_report(NO_REPORT)
    assert sent == [1, 2, 1, 1]


@pytest.mark.parametrize("at, when, expected", [
    (None, 2, [9, 1, 5, 2, -1, 0, 4]), (7, 2, [9, 1, 5, 2, 7, 0, 4]), ([3, 8, 9], 0, [9, 1, 5, 0, 3, 2, 4]),
    (np.array([4, 6]), 1, [9, 1, 5, 1, 4, 1, 4])])
def test_what_a_rank_says_of_itself(at, when, expected):
    found = lonely(1, 3)
    found.world.collectives, found.world.in_collective, found.world.order = 9, True, 5
    found.context.client, found.context.round, found.context.steps = at, when, 4
    assert found.make_report().tolist() == expected and found.make_report().dtype == np.int64


def test_ranks_hear_of_each_others_progress():
    """Any message ends silence; only a new state is progress, and a further step is one."""
    def act(world):
        found = on(world)
        world.barrier()
        if world.rank:
            for words in ([1, 0, 1, 0, 4, 0, 3], [1, 0, 1, 0, 4, 0, 3], [1, 0, 1, 0, 4, 0, 4])[:1 + world.rank]:
                # Wait until rank 0 is ready for the next message.
                world.comm.Recv(np.empty(1), 0)
                found.comm.Isend(np.array(words), 0)
                world.comm.Send(np.zeros(1), 0)
        else:
            steps = []
            for heard in ([1, 2], [1, 2], [2]):
                for peer in found.peers:
                    found.silent[peer] += 1
                    found.stuck[peer] += 1
                for peer in heard:
                    world.comm.Send(np.zeros(1), peer)
                    world.comm.Recv(np.empty(1), peer)
                found.receive_reports()
                steps.append(([*found.silent.values()], [*found.stuck.values()]))
            assert found.last_report[1].tolist() == [1, 0, 1, 0, 4, 0, 3]
            assert found.last_report[2].tolist() == [1, 0, 1, 0, 4, 0, 4]
            return steps
    assert together(3, act)[0] == [([0, 0], [0, 0]), ([0, 0], [1, 1]), ([1, 0], [2, 0])]


def test_all_that_was_told_is_received_before_the_end():
    def act(world):
        found = on(world)
        for _ in range(2 + world.rank):
            found.sending = {}
            found.send_report(found.make_report())
        found.close()
        world.barrier()
        return found.over.is_set(), found.comm.Iprobe()
    assert together(3, act) == [(True, False)] * 3


@pytest.mark.parametrize("late", [0, 1])
def test_a_peer_may_have_closed_before_the_last_look(late):
    """The late rank's thread takes the last report of the other, who then waits for it."""
    def act(world):
        found = on(world)
        world.barrier()
        if world.rank == late:
            while not found.comm.Iprobe():
                time.sleep(.001)
            found.receive_reports()
            found.send_report(found.make_report())
        found.close()
        return found.closed
    assert together(2, act) == ([{1}, set()] if late == 0 else [set(), {0}])


@pytest.mark.parametrize("rank, inside, waits", [(0, True, "; rank 0 waits in round 3, order sum_rows"),
                                                 (0, False, "; rank 0 works"), (2, False, "; rank 2 works")])
def test_what_is_said_of_a_rank_that_is_late(rank, inside, waits):
    found = lonely(rank, 4, timeout=2.5)
    found.world.in_collective, found.world.order, found.context.round = inside, SUM, 2
    peer = found.peers[-1]
    found.silent[peer], found.last_report[peer] = 7.6, AT_WORK
    assert found.describe_late(peer) == (
        f"rank {peer} of 4 on n{peer} made no progress for 2.5 s (comm.timeout) and gave its last sign of life 8 s "
        f"ago; last known: client 5, round 4, order train{waits}")


@pytest.mark.parametrize("late, more", [(1, ""), (5, ""), (6, "\n... and 1 ranks more"), (9, "\n... and 4 ranks more")])
def test_five_late_ranks_are_named_and_the_others_counted(monkeypatch, late, more):
    found, ended = lonely(0, 12), []
    found.world.fail = lambda *words, **how: ended.append((words, how))
    found.fail(list(range(1, 1 + late)))
    ((words, code), how), = ended
    named = "\n".join(found.describe_late(peer) for peer in range(1, 1 + min(late, 5)))
    assert words == f"fedmpi: {named}{more}\nlook at that machine and its file systems; if a client or a server " \
                    "step takes so long, set comm.timeout higher (0: wait for ever)"
    assert code == 1 and how == {"tell": False}
    # The timer ends the job if the orderly way is blocked.
    (seconds, end_anyway), = Timer.begun
    written, full = [], OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(heartbeat.os, "write", lambda to, text: written.append((to, text)))
    monkeypatch.setattr(heartbeat.os, "_exit", lambda code: written.append(code))
    end_anyway()
    assert seconds == 10 and written == [(2, f"{words}\n".encode()), 1]
    monkeypatch.setattr(heartbeat.os, "write", lambda to, text: (_ for _ in ()).throw(full))
    end_anyway()
    assert written[2:] == [1]
