"""Arrays as one byte buffer and back."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedmpi.comm.frame import DTYPES, pack_frame, round_up_to_8, unpack_frame

ANY = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))


def same(one, other) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@given(st.lists(ANY, max_size=6))
def test_round_trip(values):
    back = unpack_frame(pack_frame(values))
    assert len(back) == len(values)
    assert all(same(np.asarray(a), b) for a, b in zip(values, back, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_as_number_empty_and_strided(dtype):
    strided = np.arange(12).reshape(3, 4).astype(dtype)[:, ::2].T
    values = [np.array(1).astype(dtype), np.empty((3, 0, 2), dtype), strided]
    assert all(same(a, b) for a, b in zip(values, unpack_frame(pack_frame(values)), strict=True))


def test_nothing():
    assert unpack_frame(pack_frame([])) == []


def test_types_that_cannot_travel_are_refused():
    with pytest.raises(ValueError):
        pack_frame([np.array(["text"])])


def test_arrays_are_views_of_the_buffer():
    buffer = pack_frame([np.arange(5.), np.arange(3)])
    assert all(np.shares_memory(a, buffer) for a in unpack_frame(buffer))


def test_the_layout_of_a_frame():
    """It consists of words of 8 bytes, and every array begins at a multiple of 8."""
    assert [str(dtype) for dtype in DTYPES] == ["uint8", "int32", "int64", "float32", "float64", "bool", "float16",
                                            "int8", "int16"]
    buffer = pack_frame([np.array([[1, 2, 3]], np.int32), np.array(.5), np.array([True])])
    assert buffer[:88].view(np.int64).tolist() == [
        11, 3,                   # words of this head, number of arrays
        1, 2, 1, 3,              # int32, two axes, (1, 3)
        4, 0,                    # float64, no axis
        5, 1, 1]                 # bool, one axis, (1,)
    assert buffer[88:100].view(np.int32).tolist() == [1, 2, 3] and buffer[104:112].view(float) == .5
    assert buffer[112] == 1 and buffer.size == 120


@pytest.mark.parametrize("nbytes, padded_to", [(0, 0), (1, 8), (7, 8), (8, 8), (9, 16)])
def test_arrays_begin_at_multiples_of_eight_bytes(nbytes, padded_to):
    assert round_up_to_8(nbytes) == padded_to and pack_frame([np.zeros(nbytes, np.uint8)]).size == 40 + padded_to


@pytest.mark.parametrize("first", [None, 0, 1, 2, 3])
def test_a_buffer_that_is_a_tensor_gives_tensors_from_a_place_on(first):
    values = [np.arange(3, dtype=np.int32), np.float16(2.5), np.array([[True], [False]])]
    found = unpack_frame(torch.from_numpy(pack_frame(values)), first)
    assert [isinstance(a, torch.Tensor) for a in found] == [first is not None and i >= first for i in range(3)]
    assert all(same(np.asarray(a), np.asarray(b)) for a, b in zip(values, found, strict=True))
