"""The batches of a client: what they cover, and what they depend on."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpi.clients.plan import Local, draw

BASE = Local(seed=1, round=2, batch=10, epochs=1, steps=None, lr=.1, momentum=0.)


def samples(drawn) -> list[np.ndarray]:
    """Return the positions of each batch."""
    return [row[:count] for row, count in zip(drawn.index, drawn.count, strict=True)]


@given(n=st.integers(1, 70), batch=st.integers(1, 20), epochs=st.integers(1, 4))
def test_every_epoch_takes_every_sample_once(n, batch, epochs):
    drawn = draw(BASE._replace(batch=batch, epochs=epochs), 0, 0, n)
    per_epoch = -(-n // batch)
    assert len(drawn.count) == epochs * per_epoch
    for e in range(epochs):
        epoch = samples(drawn)[e * per_epoch:(e + 1) * per_epoch]
        assert sorted(np.concatenate(epoch)) == list(range(n))
        assert [len(b) for b in epoch[:-1]] == [batch] * (per_epoch - 1)


@given(n=st.integers(1, 40), steps=st.integers(1, 30))
def test_steps_in_place_of_epochs_are_the_first_batches(n, steps):
    some = draw(BASE._replace(steps=steps), 0, 0, n)
    many = draw(BASE._replace(epochs=30), 0, 0, n)
    assert len(some.count) == len(some.index) == steps
    assert np.array_equal(some.index, many.index[:steps]) and np.array_equal(some.count, many.count[:steps])


def test_epochs_are_shuffled_anew():
    drawn = draw(BASE._replace(epochs=2), 0, 0, 30)
    assert not np.array_equal(drawn.index[:3], drawn.index[3:])
    assert not np.array_equal(drawn.index[:3].ravel(), np.arange(30))


@pytest.mark.parametrize("change", [{"seed": 9}, {"round": 9}, {"client": 9}, {"stream": 9}])
def test_the_draw_depends_on_seed_round_client_and_stream(change):
    where = {"client": 4, "stream": 0} | {k: v for k, v in change.items() if k in ("client", "stream")}
    local = BASE._replace(**{k: v for k, v in change.items() if k in ("seed", "round")})
    assert not np.array_equal(draw(local, n=30, **where).index, draw(BASE, 4, 0, 30).index)


def test_the_draw_depends_on_nothing_else():
    np.random.seed(0)
    first = draw(BASE, 4, 0, 30)
    draw(BASE, 5, 0, 31)
    np.random.seed(1)
    again = draw(BASE._replace(lr=9., momentum=.9), 4, 0, 30)
    assert np.array_equal(first.index, again.index)
