"""Arrays as one byte buffer and back."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedmpi.comm.orders import DTYPES, frame, unframe

ANY = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))


def same(one, other) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@given(st.lists(ANY, max_size=6))
def test_round_trip(values):
    back = unframe(frame(values))
    assert len(back) == len(values)
    assert all(same(np.asarray(a), b) for a, b in zip(values, back, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_as_number_empty_and_strided(dtype):
    strided = np.arange(12).reshape(3, 4).astype(dtype)[:, ::2].T
    values = [np.array(1).astype(dtype), np.empty((3, 0, 2), dtype), strided]
    assert all(same(a, b) for a, b in zip(values, unframe(frame(values)), strict=True))


def test_nothing():
    assert unframe(frame([])) == []


def test_types_that_cannot_travel_are_refused():
    with pytest.raises(ValueError):
        frame([np.array(["text"])])


def test_arrays_are_views_of_the_buffer():
    buffer = frame([np.arange(5.), np.arange(3)])
    assert all(np.shares_memory(a, buffer) for a in unframe(buffer))
