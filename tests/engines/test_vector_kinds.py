"""Fields of a method's states declare which of them are models, feature extractors or heads."""
from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import torch

from fedmpi.engines import batchnorm
from fedmpi.errors import BadInput
from fedmpi.method import BASE, HEAD, WHOLE, Method, Nothing, find_kind_of_field
from tests.clients.normed import lab, model_of
from tests.federations import method


class Tables(NamedTuple):
    """Fields that have a model's lengths, declared or not."""
    w: Annotated[torch.Tensor, WHOLE]
    phi: Annotated[torch.Tensor, BASE]
    heads: Annotated[torch.Tensor, HEAD]
    parts: Annotated[torch.Tensor, WHOLE, HEAD]
    table: torch.Tensor


def test_statistics_take_the_place_of_those_in_declared_vectors_alone():
    """A table of numbers that has the model's width by chance keeps its numbers."""
    kept = lab("fedavg", head=("5", "6", "8")).method
    model, row = kept.model, torch.arange(24.)
    state = Tables(torch.ones(model.size), torch.ones(model.base.size), torch.ones(2, model.head.size),
                   torch.ones(3, model.head.size), torch.ones(5, model.size))
    found = kept._with(state, row)
    first = sum(part.stop - part.start for part in model.base.buffers)
    assert 0 < first < 24
    assert torch.equal(batchnorm.gather_statistics(found.w, model.buffers), row)
    assert torch.equal(batchnorm.gather_statistics(found.phi, model.base.buffers), row[:first])
    for heads in (found.heads, found.parts):
        assert all(torch.equal(batchnorm.gather_statistics(h, model.head.buffers), row[first:]) for h in heads)
    assert found.table is state.table and all((value == 1).all() for value in state)


@pytest.mark.parametrize("name, length, kind", [
    ("w", "whole", WHOLE), ("w", "head", None), ("phi", "base", BASE), ("heads", "head", HEAD), ("parts", "head", HEAD),
    ("parts", "whole", WHOLE), ("parts", "base", None), ("table", "whole", None)])
def test_a_kind_is_declared_and_has_its_length(name, length, kind):
    model = model_of(head=("5", "6", "8"))
    sizes = {"whole": model.size, "base": model.base.size, "head": model.head.size}
    assert find_kind_of_field(model, Tables, name, sizes[length]) is kind


class Undeclared(Method):
    """A method that does not declare which of its fields is a model."""
    title = "Undeclared"

    def init(self, n):
        return Seen(self.model.start), Nothing()


class Seen(NamedTuple):
    w: torch.Tensor


def test_a_method_that_declares_no_vectors_needs_the_average():
    with pytest.raises(BadInput, match="Undeclared does not declare which of its vectors are models; annotate them"):
        batchnorm.bind_method(Undeclared(), model_of())
    bound = batchnorm.bind_method(Undeclared(), model_of("average"))
    assert bound.global_model(bound.init(1)[0]) is None
    assert method("fedavg", bound.model).global_model(bound.init(1)[0]) is None


def count_numbers(name, policy, head=(), **settings):
    """Return how many float32 numbers a client receives and sends, and its method."""
    found = lab(name, policy, head, **settings)
    down, up = found.checked.traffic(found.shared)
    return down / 4, up / 4, found.method


@pytest.mark.parametrize("name, down, up, also", [("fedavg", 1, 1, 0), ("fedprox", 1, 1, 0), ("ditto", 1, 1, 0),
                                                  ("fedfomo", 3, 1, 4), ("fesem", 2, 1, 0)])
def test_statistics_that_stay_at_the_client_are_not_counted_as_sent(name, down, up, also):
    """Statistics that are averaged travel, and those that are the client's own do not."""
    settings = {"fedfomo": {"M": 3}, "fesem": {"k": 2}}.get(name, {})
    received, sent, kept = count_numbers(name, "average", **settings)
    d = kept.model.size
    assert (received, sent) == (down * d, up * d + also)
    received, sent, kept = count_numbers(name, "local", **settings)
    assert kept.model.size == d and (received, sent) == (down * (d - 24), up * (d - 24) + also)


@pytest.mark.parametrize("name, part", [("fedper", "base"), ("fedrep", "base"), ("lg_fedavg", "head")])
def test_nor_are_those_of_a_part_that_is_sent(name, part):
    received, sent, kept = count_numbers(name, "local", head=("5", "6", "8"))
    net = getattr(kept.model, part)
    statistics = sum(block.stop - block.start for block in net.buffers)
    assert 0 < statistics < 24 and received == sent == net.size - statistics
    assert count_numbers(name, "average", head=("5", "6", "8"))[:2] == (net.size, net.size)
