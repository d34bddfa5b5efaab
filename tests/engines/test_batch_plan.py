"""The batches of a client and its other draws: what they cover, and what they depend on.

KNOWN and the other numbers here were drawn without the code under test, by a Philox generator of NumPy whose seed
sequence had the 32-bit words of (seed, round, client, stream). If these draws changed, every run would change."""
from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmpi.clients.updates import attack_update
from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.engines.batch_plan import (
    FIXED_ROUND,
    NOISE_STREAM_OFFSET,
    LocalTraining,
    change_batches,
    count_batches,
    count_local_steps,
    draw_batches,
    draw_noise,
    draw_subset,
    make_generator,
)
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.step_counter import MAIN
from fedmpi.faults import Attack
from fedmpi.methods.fedper import Shared, Up

BASE = LocalTraining(seed=1, round=2, batch=10, epochs=1, steps=None, lr=.1, momentum=0.)

# (seed, round, client, stream) -> an order of 12 samples
KNOWN = {
    (0, 0, 0, 0): [3, 7, 0, 10, 6, 11, 8, 4, 1, 5, 2, 9],
    (1, 2, 4, 0): [0, 1, 7, 4, 11, 9, 5, 8, 10, 6, 2, 3],
    (1, 255, 4, 0): [1, 3, 11, 2, 6, 9, 10, 8, 0, 4, 7, 5],
    (1, 256, 4, 0): [6, 9, 10, 0, 3, 8, 7, 2, 11, 4, 5, 1],
    (1, 511, 4, 0): [9, 6, 7, 1, 0, 3, 11, 4, 5, 10, 2, 8],
    (1, 2 ** 32 - 2, 4, 0): [0, 4, 7, 8, 1, 6, 3, 11, 2, 10, 9, 5],
    (1, -1, 4, 0): [7, 9, 1, 6, 2, 0, 3, 10, 8, 4, 5, 11],      # a warm-up before the first round
    (1, 2 ** 32, 4, 0): [9, 7, 11, 2, 6, 4, 10, 5, 1, 0, 3, 8],      # as round 0, because rounds begin again
    (1, 2 ** 32 + 2, 4, 0): [0, 1, 7, 4, 11, 9, 5, 8, 10, 6, 2, 3],
    (1, 2, 5, 0): [1, 6, 7, 5, 4, 10, 9, 8, 2, 0, 3, 11],
    (1, 2, 999, 0): [2, 0, 6, 10, 7, 8, 1, 11, 5, 4, 3, 9],
    (1, 2, 4, 1): [8, 11, 7, 9, 0, 10, 5, 4, 1, 3, 6, 2],
    (1, 2, 4, 4097): [0, 7, 2, 4, 6, 10, 9, 1, 3, 11, 8, 5],
    (7, 2, 4, 0): [1, 8, 10, 3, 9, 4, 2, 7, 11, 6, 0, 5],
    (2 ** 40 + 1, 2, 4, 0): [5, 2, 9, 4, 10, 6, 11, 7, 0, 8, 3, 1]}


def samples(drawn) -> list[np.ndarray]:
    """Return the positions of each batch."""
    return [row[:count] for row, count in zip(drawn.index, drawn.count, strict=True)]


@pytest.mark.parametrize("key", KNOWN, ids=str)
def test_batches_are_the_known_ones(key):
    """12 samples are in batches of 5, so the last batch has 2, followed by zeros."""
    seed, when, client, stream = key
    drawn = draw_batches(BASE._replace(seed=seed, round=when, batch=5), client, stream, 12)
    order = KNOWN[key]
    assert drawn.index.dtype == np.int32 and drawn.count.tolist() == [5, 5, 2]
    assert drawn.index.tolist() == [order[:5], order[5:10], [*order[10:], 0, 0, 0]]


def test_later_epochs_go_on_with_the_same_generator():
    epochs = [[1, 0, 6, 5, 2, 4, 3], [0, 1, 2, 4, 3, 6, 5], [2, 0, 5, 3, 1, 4, 6]]
    whole = draw_batches(BASE._replace(batch=7, epochs=3), 4, 0, 7)
    assert whole.index.tolist() == epochs and whole.count.tolist() == [7, 7, 7]
    # No client fills this batch.
    larger = draw_batches(BASE._replace(batch=8, epochs=3), 4, 0, 7)
    assert larger.index.tolist() == [[*e, 0] for e in epochs] and larger.count.tolist() == [7, 7, 7]
    # Two epochs, and one batch of the third.
    steps = draw_batches(BASE._replace(batch=4, epochs=1, steps=5), 4, 0, 7)
    assert steps.count.tolist() == [4, 3, 4, 3, 4]
    assert [b.tolist() for b in samples(steps)] == [epochs[0][:4], epochs[0][4:], epochs[1][:4], epochs[1][4:],
                                                    epochs[2][:4]]
    none = draw_batches(BASE._replace(epochs=0), 4, 0, 7)
    assert none.index.shape == (0, 10) and none.count.shape == (0,)
    single = draw_batches(BASE._replace(batch=3, epochs=2), 4, 9, 1)
    assert single.index.tolist() == [[0, 0, 0]] * 2 and single.count.tolist() == [1, 1]


def test_a_short_last_batch_is_left_out():
    """12 samples are two batches of 5, and 2 samples that this epoch leaves out. Orders are those of whole epochs."""
    drop = BASE._replace(batch=5, epochs=2, drop_last=True)
    kept, dropped = draw_batches(drop._replace(drop_last=False), 4, 0, 12), draw_batches(drop, 4, 0, 12)
    assert dropped.count.tolist() == [5, 5, 5, 5]
    assert dropped.index.tolist() == kept.index[[0, 1, 3, 4]].tolist()
    # five steps begin a third epoch, without the 2 samples of either epoch before
    steps = draw_batches(drop._replace(steps=5), 4, 0, 12)
    assert steps.count.tolist() == [5] * 5 and steps.index[:4].tolist() == dropped.index.tolist()
    # nothing is short
    for n in (10, 15):
        assert draw_batches(drop, 4, 0, n).index.tolist() == draw_batches(drop._replace(drop_last=False), 4, 0,
                                                                           n).index.tolist()


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_clients_only_batch_stays(n):
    """Otherwise a client with fewer samples than a batch would not train."""
    drop = BASE._replace(batch=5, epochs=2, drop_last=True)
    only = draw_batches(drop, 4, 0, n)
    assert only.count.tolist() == [n, n] and count_local_steps(drop, n) == 2
    assert only.index.tolist() == draw_batches(drop._replace(drop_last=False), 4, 0, n).index.tolist()


@pytest.mark.parametrize("drop_last, expected", [(False, [0, 1, 1, 1, 2, 2, 3]), (True, [0, 1, 1, 1, 1, 2, 2])])
def test_batches_of_an_epoch_are_counted_for_one_client_and_for_several(drop_last, expected):
    sizes = [0, 1, 4, 5, 9, 10, 14]
    assert [count_batches(n, 5, drop_last) for n in sizes] == expected
    assert count_batches(np.array(sizes), 5, drop_last).tolist() == expected
    found = count_batches(torch.tensor(sizes), 5, drop_last)
    assert found.dtype == torch.int64 and found.tolist() == expected


@pytest.mark.parametrize("stream, first, second", [
    (0, [-.33866662, -.10333816, -.10805613, -.49242577, -.78897709, .82644069],
     [1.89676893, -.16440797, .50635278, 1.85384357, -1.14260566, -.08909206]),
    (3, [3.19597006, -.85359627, -1.21136355, .22191797, -1.09597731, .96470875],
     [.56025225, -1.19054031, 1.00344467, .608913, -.10663863, -.41826198])])
def test_noise_is_the_known_one(stream, first, second):
    """Its stream is that of its batches plus NOISE."""
    drawn = draw_noise(BASE._replace(batch=2), 4, stream, (3,))
    for expected in (first, second):
        found = next(drawn)
        assert found.shape == (2, 3) and found.dtype == np.float32
        np.testing.assert_allclose(found.ravel(), expected, rtol=0, atol=1e-7)
    assert NOISE_STREAM_OFFSET == 65536


def test_noise_goes_with_the_samples_of_its_batch():
    """Noise for a loss is as short as the last batch."""
    data = LoopData(torch.arange(3.)[:, None], torch.zeros(3, dtype=torch.int64), 4, BASE._replace(batch=2), stream=3)
    batches = list(data.noisy_batches((3,)))
    assert [tuple(e.shape) for _, _, e in batches] == [(2, 3), (1, 3)]
    np.testing.assert_allclose(batches[0][2][1], [.22191797, -1.09597731, .96470875], rtol=0, atol=1e-7)
    np.testing.assert_allclose(batches[1][2][0], [.56025225, -1.19054031, 1.00344467], rtol=0, atol=1e-7)


def test_an_attackers_noise_is_the_known_one():
    up = attack_update(
        Attack("noise", scale=2.0), Shared(torch.zeros(4)), Up(torch.ones(4)), make_generator(1, 2, 4, 0xA77A)
    )
    np.testing.assert_allclose(up.phi, 1 + 2 * np.array([-1.0440739, .40228784, 1.14800515, .61624261]), rtol=1e-6)


def test_shares_are_the_known_ones():
    """Of ten samples stream 3 draws ROUND in round 2, NEXT in round 3, and FIXED for all rounds."""
    this, fixed, after = [2, 4, 9, 3, 5, 8, 6, 0, 7, 1], [5, 3, 9, 7, 2, 6, 0, 8, 4, 1], [0, 9, 8, 5, 4, 7, 3, 2, 1, 6]
    then = BASE._replace(round=3)
    assert FIXED_ROUND == 2 ** 32 - 2
    assert draw_subset(BASE, 4, 3, 10, .8, False, False).tolist() == this[:8]
    assert draw_subset(BASE, 4, 3, 10, .8, False, True).tolist() == this[8:]
    assert draw_subset(then, 4, 3, 10, .55, False, False).tolist() == after[:5]
    # These are held out in all rounds.
    for local in (BASE, then):
        assert draw_subset(local, 4, 3, 10, .7, True, False).tolist() == fixed[:7]
        assert draw_subset(local, 4, 3, 10, .7, True, True).tolist() == fixed[7:]
    # .3 * 10 counts as 3, not 2.999...
    for share, kept in ((.01, 1), (0., 1), (.29, 2), (.3, 3), (1., 10), (.999, 9)):
        assert draw_subset(BASE, 4, 3, 10, share, False, False).tolist() == this[:kept]
        assert draw_subset(BASE, 4, 3, 10, share, False, True).tolist() == this[min(kept, 9):]
    # .29 * 100 is less than 29 in floating point.
    assert len(draw_subset(BASE, 4, 3, 100, .29, False, False)) == 29
    assert (
        draw_subset(BASE, 4, 3, 1, 0.5, False, False).tolist()
        == draw_subset(BASE, 4, 3, 1, 0.5, False, True).tolist()
        == [0]
    )


@given(n=st.integers(2, 200), share=st.floats(0, 1), fixed=st.booleans())
def test_a_share_and_the_rest_are_everything(n, share, fixed):
    kept, rest = (draw_subset(BASE, 4, 3, n, share, fixed, other) for other in (False, True))
    assert max(1, np.floor(share * n)) <= len(kept) <= max(1, np.floor(share * n + 1e-6)) and len(rest) >= 1
    if len(kept) < n:
        assert sorted([*kept, *rest]) == list(range(n))
    else:
        # At least one sample is held out, which then also trains.
        assert rest.tolist() == [kept[-1]]


@given(n=st.integers(1, 70), batch=st.integers(1, 20), epochs=st.integers(1, 4))
def test_every_epoch_takes_every_sample_once(n, batch, epochs):
    drawn = draw_batches(BASE._replace(batch=batch, epochs=epochs), 0, 0, n)
    per_epoch = -(-n // batch)
    assert len(drawn.count) == epochs * per_epoch
    for e in range(epochs):
        epoch = samples(drawn)[e * per_epoch:(e + 1) * per_epoch]
        assert sorted(np.concatenate(epoch)) == list(range(n))
        assert [len(b) for b in epoch[:-1]] == [batch] * (per_epoch - 1)


@given(n=st.integers(1, 40), steps=st.integers(1, 30))
def test_steps_in_place_of_epochs_are_the_first_batches(n, steps):
    some = draw_batches(BASE._replace(steps=steps), 0, 0, n)
    many = draw_batches(BASE._replace(epochs=30), 0, 0, n)
    assert len(some.count) == len(some.index) == steps
    assert np.array_equal(some.index, many.index[:steps]) and np.array_equal(some.count, many.count[:steps])


def test_every_sample_is_as_likely_at_every_place():
    """Chi-square test on 3,000 clients' first epochs of 6 samples, with 36 places and 25 degrees of freedom."""
    orders = np.stack([draw_batches(BASE._replace(batch=6), client, 0, 6).index[0] for client in range(3000)])
    counts = np.array([np.bincount(column, minlength=6) for column in orders.T])
    # The probability of more is 1 in 10,000.
    assert ((counts - 500) ** 2 / 500).sum() < 60


def test_every_use_draws_something_else():
    """Batches, their noise and held-out parts of all rounds, clients and seeds differ in their order and numbers."""
    orders, numbers = {}, {}
    for seed, when, client, stream in product((0, 1, 2), (-1, 0, 1, 255, 256, 257, 65536), (0, 1, 256), (0, 1, 2)):
        local = BASE._replace(seed=seed, round=when, batch=30)
        key = seed, when, client, stream
        orders[key] = draw_batches(local, client, stream, 30).index[0]
        numbers[key] = next(draw_noise(local, client, stream, (20,)))[0]
        orders[*key, "fixed"] = draw_subset(local, client, stream, 30, 1., True, False)
    # Held-out parts are the same in all rounds.
    assert len({tuple(order) for order in orders.values()}) == 3 * 7 * 9 + 3 * 9
    for one, other in combinations(list(numbers)[:60], 2):
        assert abs(np.corrcoef(numbers[one], numbers[other])[0, 1]) < .95
    flat = np.concatenate(list(numbers.values()))
    assert len(np.unique(flat)) > .999 * len(flat)
    assert abs(flat.mean()) < .06 and abs(flat.std() - 1) < .05 and abs((flat ** 3).mean()) < .2


def test_other_batches_replace_epochs_and_steps():
    local = BASE._replace(epochs=3, steps=7)
    assert change_batches(local, None) == change_batches(local, None, kind=MAIN) == local
    # 2 epochs take 2 / 3 of the 7 steps of 3 epochs, rounded up.
    assert change_batches(local, 2) == local._replace(epochs=2, steps=5)
    assert change_batches(local._replace(steps=None), 2) == local._replace(epochs=2, steps=None)
    assert [change_batches(local, n).steps for n in (0, 1, 3, 6)] == [0, 3, 7, 14]
    assert count_local_steps(change_batches(local, 0), 20) == 0
    # Without epochs there are no steps.
    assert count_local_steps(change_batches(change_batches(local, 0), 4), 20) == 0
    assert change_batches(local, 0, 5) == local._replace(epochs=0, steps=5)
    # A number of steps counts without epochs, too.
    assert change_batches(local, None, 5, "head") == local._replace(steps=5, kind="head")
    assert count_local_steps(change_batches(local._replace(steps=None), None, 5), 20) == 5


def test_what_is_sent_is_not_copied_on_a_cpu():
    drawn = draw_batches(BASE, 4, 0, 12).index
    there = copy_to_device(drawn, torch.device("cpu"))
    assert there.dtype == torch.int32 and there.data_ptr() == drawn.ctypes.data


def test_the_draw_depends_on_nothing_else():
    np.random.seed(0)
    first = draw_batches(BASE, 4, 0, 30)
    draw_batches(BASE, 5, 0, 31)
    np.random.seed(1)
    again = draw_batches(BASE._replace(lr=9., momentum=.9), 4, 0, 30)
    assert np.array_equal(first.index, again.index)
