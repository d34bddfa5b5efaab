"""States with further fields: their classes, their types, and the way back."""
from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import torch
from torch import Tensor

from fedmpi.extended_state import extend_state, strip_state
from fedmpi.method import BASE, WHOLE, list_declared_kinds

HINTS = {"g": Annotated[Tensor, WHOLE], "round": Tensor}


class Phi(NamedTuple):
    phi: Annotated[Tensor, BASE]


class Empty(NamedTuple):
    pass


def test_an_extended_state_has_both_kinds_of_fields_and_finds_back():
    state = Phi(torch.ones(2))
    longer = extend_state(state, HINTS, g=torch.zeros(3), round=torch.tensor(4))
    assert longer._fields == ("phi", "g", "round") and longer.phi is state.phi and longer.round == 4
    assert list_declared_kinds(type(longer)) == {"phi": (BASE,), "g": (WHOLE,), "round": ()}
    assert type(strip_state(longer)) is Phi and strip_state(longer).phi is state.phi
    assert type(strip_state(extend_state(Empty(), HINTS, g=torch.ones(1)))) is Empty


def test_equal_extensions_share_a_class_and_others_do_not():
    first, second = (extend_state(Phi(torch.ones(1)), HINTS, g=torch.ones(n)) for n in (1, 2))
    other = extend_state(Phi(torch.ones(1)), HINTS, round=torch.tensor(1))
    assert type(first) is type(second) and type(first) is not type(other)


def test_a_state_that_was_not_extended_cannot_be_stripped():
    with pytest.raises(KeyError):
        strip_state(Phi(torch.ones(1)))
