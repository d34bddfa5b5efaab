"""Collectives on 1 to 9 ranks from and to any of them, their counted bytes, and how ranks wait."""
from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmpi.comm import mpi_world as worlds
from fedmpi.comm import transport
from fedmpi.comm.transport import Counting, Solo
from fedmpi.session import receive, send
from tests.comm.together import together


@pytest.fixture
def pieces(monkeypatch):
    """Let every buffer of more than three numbers take several calls."""
    monkeypatch.setattr(worlds, "PIECE_ELEMENTS", 3)


def part(rank: int, length: int, dtype="int64"):
    # Each rank has its own digit.
    return (10. ** rank * np.arange(1, length + 1)).astype(dtype)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9])
def test_sums_reach_any_rank_whatever_the_number(pieces, size):
    """Up to eight ranks add up among themselves; nine leave the sum to the library."""
    def act(world):
        found = {}
        for root in {0, 1, size // 2, size - 1}:
            for length in (0, 3, 7):
                total = world.reduce(part(world.rank, length), root)
                if world.rank == root:
                    found[root, length] = total.tolist()
        tensor = world.reduce(torch.full((2, 5), world.rank + 1.))
        return found, tensor.tolist()
    found = together(size, act)
    digits = int("1" * size)
    for root in {0, 1, size // 2, size - 1}:
        assert found[root][0] == {(root, n): [digits * i for i in range(1, n + 1)] for n in (0, 3, 7)}
    assert found[0][1] == [[size * (size + 1) / 2] * 5] * 2


@pytest.mark.parametrize("size, expected", [(8, 0), (9, 3)])
def test_who_adds_up(pieces, size, expected):
    """The library adds up only above MAX_RANKS_FOR_HALVING, in one call per piece; 8 numbers are three pieces."""
    assert worlds.MAX_RANKS_FOR_HALVING == 8

    def act(world):
        calls, reduce = [], world.comm.Reduce
        world.comm.Reduce = lambda *words: calls.append(1) or reduce(*words)
        total = world.reduce(np.arange(8), 0)
        return len(calls), total.tolist()
    found = together(size, act)
    assert [calls for calls, _ in found] == [expected] * size and found[0][1] == [size * i for i in range(8)]


def test_the_parts_of_a_sum_go_from_rank_to_rank_in_three_steps_of_eight():
    """In each step half of the ranks that are left send one part each: 7 sends in all."""
    def act(world):
        sends, send = [], world.comm.Send
        world.comm.Send = lambda buffer, to, tag=0: sends.append((to, tag)) or send(buffer, to, tag)
        world._reduce_by_halving(np.ones(2), 3)
        return [to for to, _ in sends]
    # Place of the receiver for the rank at each place after the root.
    places = [[], [0], [0], [2], [0], [4], [4], [6]]
    assert together(8, act) == [[(to + 3) % 8 for to in places[(rank - 3) % 8]] for rank in range(8)]


def test_every_rank_hears_and_gives(pieces):
    def act(world):
        header = np.arange(4) if world.rank == 0 else np.zeros(4, int)
        world.broadcast_header(header)
        heard = world.broadcast(part(world.rank, 7).reshape(7, 1))
        counts = np.array([2, 0, 1, 3])
        rows = world.rank * 100 + np.arange(2 * counts[world.rank]).reshape(-1, 2)
        gathered = world.gather(np.asfortranarray(rows), counts)
        parts = [np.full((world.rank + 1, 2), 10 * world.rank + to) for to in range(4)]
        swapped = world.alltoall(parts, 2 * np.arange(1, 5))
        if world.rank == 1:
            world.send(np.arange(8.), 3)
        taken = world.recv(np.empty(8), 1) if world.rank == 3 else None
        return header.tolist(), heard.ravel().tolist(), gathered, swapped.tolist(), taken
    found = together(4, act)
    for rank, (header, heard, gathered, swapped, taken) in enumerate(found):
        assert header == [0, 1, 2, 3] and heard == [1, 2, 3, 4, 5, 6, 7]
        assert swapped == [*[rank] * 2, *[10 + rank] * 4, *[20 + rank] * 6, *[30 + rank] * 8]
        assert (gathered is None) == (rank > 0) and (taken is None) == (rank != 3)
    assert found[0][2].tolist() == [[0, 1], [2, 3], [200, 201], [300, 301], [302, 303], [304, 305]]
    assert found[3][4].tolist() == [*range(8)]


@pytest.mark.parametrize("act, sent, received", [
    (lambda world: world.broadcast(np.zeros(5)), [80, 0, 0], [0, 40, 40]),      # five doubles to two workers
    (lambda world: world.reduce(np.zeros(5)), [0, 40, 40], [40, 0, 0]),
    (lambda world: world.reduce(np.zeros(5), 1), [40, 0, 0], [0, 40, 0]),       # rank 0 adds its part once
    (lambda world: world.gather(np.zeros((world.rank, 2), np.int32), np.arange(3)), [0, 8, 16], [24, 0, 0]),
    (lambda world: world.gather(np.zeros((2 - world.rank, 1)), np.array([2, 1, 0])), [0, 8, 0], [8, 0, 0]),
    (lambda world: world.alltoall([np.zeros(1 + r) for r in range(3)], np.full(3, world.rank + 1)),
     [40, 0, 0], [16, 0, 0]),
    (lambda world: world.broadcast_header(np.zeros(5)), [0, 0, 0], [0, 0, 0]),
    (lambda world: world.barrier(), [0, 0, 0], [0, 0, 0])],
    ids=["broadcast", "sum", "sum at 1", "gather", "own rows", "swap", "header", "barrier"])
def test_bytes_are_counted(act, sent, received):
    found = together(3, lambda world: (act(world), world.sent, world.received)[1:])
    assert found == [*zip(sent, received, strict=True)]


def state(world) -> tuple[int, bool]:
    return world.collectives, world.in_collective


def test_a_collective_is_noted_while_it_goes_on():
    def act(world):
        steps = [state(world)]
        wait = world._wait_for
        world._wait_for = lambda request: steps.append(state(world)) or wait(request)
        world.broadcast(np.zeros(1))
        # A barrier is not counted.
        world.barrier()
        world.broadcast_header(np.zeros(1))
        steps.append(state(world))
        return steps
    assert together(2, act) == [[(0, False), (1, True), (1, False), (2, True), (2, False)]] * 2


def test_rank_0_may_give_up_while_it_waits():
    """The other rank comes only after rank 0 has given up."""
    def act(world):
        looks = []

        def give_up():
            looks.append(1)
            if len(looks) == 3:
                raise KeyError
        if world.rank:
            return world.comm.Recv(np.empty(1), 0)
        world.while_waiting = give_up
        with pytest.raises(KeyError):
            world.broadcast(np.zeros(1))
        return world.comm.Send(np.zeros(1), 1), len(looks)
    assert together(2, act) == [(None, 3), None]


def test_once_all_have_met_rank_0_does_not_give_up_any_more():
    def act(world):
        world.while_waiting = None if world.rank else lambda: None
        world.barrier()
        return world.while_waiting
    assert together(2, act) == [None, None]


def test_a_collective_that_fails_is_over():
    def act(world):
        def fails():
            raise KeyError
        world.barrier = fails
        with pytest.raises(KeyError):
            world.reduce(np.zeros(1))
        return state(world)
    assert together(2, act) == [(1, False)] * 2


def test_what_a_world_says_of_itself():
    found = together(3, lambda w: (w.rank, w.size, w.library, w.thread_level, w.local_rank, w.cuda_aware, w.sent))
    assert found == [(r, 3, "sockets of the tests", "multiple", r, None, 0) for r in range(3)]


def test_scratch_is_kept_from_sum_to_sum():
    world = together(2, lambda world: world)[0]
    first = world._scratch_like(np.zeros(6))
    assert (first.shape, first.dtype) == ((6,), float) and np.shares_memory(first, world._scratch)
    assert np.shares_memory(world._scratch_like(np.zeros(5, np.float32)), first) and world._scratch.nbytes == 48
    assert world._scratch_like(np.zeros(7)).nbytes == 56 and not np.shares_memory(world._scratch, first)
    assert world._scratch_like(torch.zeros(2, 3)).shape == (2, 3)


class Clock:
    """A clock that advances by sleeping, and by a hundred-thousandth of a second at each look."""

    def __init__(self):
        self.now, self.naps = 50., []

    def perf_counter(self) -> float:
        self.now += 1e-5
        return self.now

    def sleep(self, seconds: float):
        self.naps.append((self.now - 50, seconds))
        self.now += seconds


@pytest.mark.parametrize("lasts", [1e-4, 1e-3, .01, .1])
def test_a_wait_begins_without_sleep_and_then_sleeps_a_sixteenth_of_its_time(monkeypatch, lasts):
    assert (worlds.FIRST_SLEEP_AFTER_S, worlds.SHORTEST_SLEEP_S, worlds.LONGEST_SLEEP_S, worlds.SLEEP_DIVISOR) == (
        2e-4, 1e-4, 2e-3, 16)
    clock, world = Clock(), together(2, lambda world: world)[1]
    monkeypatch.setattr(worlds, "time", clock)
    # Its sockets are closed.
    world.departures = SimpleNamespace(find_why_to_end=str)
    world._wait_for(SimpleNamespace(Test=lambda: clock.now - 50 > lasts))
    assert bool(clock.naps) == (lasts > 2e-4)
    # A nap is a sixteenth of the time since the first look.
    for waited, nap in clock.naps:
        assert waited > 2e-4 and nap == pytest.approx(min(max((waited - 1e-5) / 16, 1e-4), 2e-3))
    assert clock.now - 50 - lasts <= max(lasts / 16, 1e-4) + 2e-5
    if clock.naps:
        # It sleeps as soon as it may.
        assert clock.naps[0][0] < 2.4e-4 and clock.naps[0][1] == 1e-4
    if lasts == .1:
        assert clock.naps[-1][1] == 2e-3


def test_no_piece_counts_more_bytes_than_mpi_can():
    """MPI counts by 32-bit integers, and the widest number has 8 bytes."""
    assert worlds.PIECE_ELEMENTS == 4_194_304 and worlds.PIECE_ELEMENTS * 8 < 2 ** 31


def test_one_process_needs_no_library(capsys, monkeypatch):
    solo, x = Solo(), np.arange(3)
    assert solo.broadcast(x) is x and solo.reduce(x) is x and solo.reduce(x, 0) is x and solo.gather(x, x) is x
    assert solo.alltoall([x.reshape(3, 1)], x).tolist() == [0, 1, 2]
    assert solo.broadcast_header(x) is solo.barrier() is solo.close(3) is None
    assert (solo.rank, solo.size, solo.local_rank) == (0, 1, 0)
    assert (solo.collectives, solo.in_collective, solo.order) == (0, False, -1)
    assert (solo.heartbeat, solo.on_failure, solo.cuda_aware, solo.sent, solo.received) == (None, None, None, 0, 0)
    for call in (solo.send, solo.recv):
        with pytest.raises(ValueError, match="no rank 3"):
            call(x, 3)
    ended = []
    monkeypatch.setattr(transport.os, "_exit", ended.append)
    solo.fail("fedmpi: why", 2)
    assert ended == [2] and capsys.readouterr() == ("", "fedmpi: why\n")


def test_a_counting_transport_moves_nothing_and_counts_bytes():
    found, x = Counting(), np.arange(3.)
    assert (found.rank, found.size) == (0, 2) and found.broadcast(x) is x and found.reduce(x[:2], 1).size == 2
    assert found.gather(x[:1], np.ones(2)).size == 1 and found.broadcast(x) is x
    assert (found.broadcast_bytes, found.reduced_bytes, found.gathered_bytes) == (48, 16, 8)


@pytest.mark.parametrize("text", ["clé", "a\udcff", ""])
def test_texts_between_ranks_do_not_depend_on_the_locale(text, monkeypatch):
    """Python takes ASCII for paths under LC_ALL=C without UTF-8 mode; a path may also hold bytes that are not text."""
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("ascii", "surrogateescape"))
    monkeypatch.setattr(os, "fsdecode", lambda data: data.decode("ascii", "surrogateescape"))
    found = together(2, lambda world: receive(world) if world.rank else send(world, text))
    assert found[1] == text
