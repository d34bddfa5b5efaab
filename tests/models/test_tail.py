"""The last blocks of a network: their slice, and the choice among several tails after a common base."""
from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.loop_data import LoopData
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.models.nets import CNN4, Custom, FastText, LeNet5, ResNet18
from fedmpi.models.tail import cut_tail

LOCAL = LocalTraining(seed=0, round=0, batch=4, epochs=1, steps=None, lr=.1, momentum=0.)


class HeadFirst(torch.nn.Module):
    """A network that makes its head before the rest."""

    def __init__(self):
        super().__init__()
        self.out, self.body = torch.nn.Linear(5, 4), torch.nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.body(x).relu())


class OtherOrder(torch.nn.Module):
    """A network that makes two of its layers in another order than it uses them."""

    def __init__(self):
        super().__init__()
        self.first, self.third = torch.nn.Linear(6, 5), torch.nn.Linear(5, 5)
        self.second, self.out = torch.nn.Linear(5, 5), torch.nn.Linear(5, 4)

    def forward(self, x):
        return self.out(self.third(self.second(self.first(x).relu()).relu()).relu())


def image(settings, pixels=28):
    return build_model(settings, (pixels, pixels, 1), np.dtype("uint8"), 10, seed=0)


@pytest.mark.parametrize("settings, layers, first", [
    (CNN4(), 2, "fc1.weight"), (CNN4(), 1, "fc2.weight"), (CNN4(head=("fc1", "fc2")), 2, "fc1.weight"),
    (CNN4(), 4, "conv1.weight"), (LeNet5(), 2, "fc2.weight"), (LeNet5(), 3, "fc1.weight")])
def test_the_block_begins_with_the_first_of_its_layers(settings, layers, first):
    model = image(settings)
    found = cut_tail(model, layers, "here").block
    assert found == slice(model.blocks[first].start, model.size)


def test_groups_of_layers_are_blocks_too():
    model = image(ResNet18(), 32)
    found = cut_tail(model, 2, "here")
    assert found.block.start == model.blocks["layer4"].start and found.front is not None


# With 4 layers the features are maps (16, 12, 12) of a convolution.
@pytest.mark.parametrize("settings, layers", [
    (LeNet5(), 2), (LeNet5(), 1), (LeNet5(), 4), (LeNet5(), 5), (FastText(50, 4), 2)])
def test_the_part_that_is_chosen_makes_the_best_whole_network(settings, layers):
    text = isinstance(settings, FastText)
    model = build_model(settings, (6,), np.dtype("int32"), 4, seed=0) if text else image(settings)
    numbers = torch.arange(9 * (6 if text else 784))
    x = (numbers % 50).view(9, 6) if text else (numbers % 251).view(9, 28, 28, 1).byte()
    data = LoopData(x, torch.arange(9) % 4, 0, LOCAL)
    found, w = cut_tail(model, layers, "here"), model.starts(3)
    base, theta = w[0, :found.block.start], w[:, found.block]
    assert (found.front is None) == (layers == 5)
    losses = torch.stack([data.mean_loss(model, torch.cat([base, part])) for part in theta])
    for order in permutations(range(3)):
        assert found.choose_part(data, base, theta[list(order)]) == losses[list(order)].argmin()


def test_layers_in_another_order_than_their_use_keep_their_numbers():
    model = build_model(Custom(path="tests.models.test_tail:OtherOrder"), (6,), np.dtype("float32"), 4, 0)
    data = LoopData(torch.arange(54.).view(9, 6) / 54, torch.arange(9) % 4, 0, LOCAL)
    found, w = cut_tail(model, 3, "here"), model.start
    better = data.descend(model, w)
    # A block laid out otherwise would lose what was trained.
    assert data.mean_loss(model, torch.cat([w[:found.block.start], better[found.block]])) < data.mean_loss(model, w)
    for order in ([0, 1], [1, 0]):
        parts = torch.stack([w, better])[order][:, found.block]
        assert found.choose_part(data, w[:found.block.start], parts) == order.index(1)


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match=r"^here = 6: this network has 5 blocks \(conv1, conv2, fc1, fc2, fc3\); lower "):
        cut_tail(image(LeNet5()), 6, "here")


def test_blocks_that_are_not_the_last_ones_are_refused():
    model = build_model(Custom(path="tests.models.test_tail:HeadFirst", head=("out",)), (6,), np.dtype("float32"), 4, 0)
    with pytest.raises(BadInput, match="here = 1: the blocks body are not the last ones of this network's vector"):
        cut_tail(model, 1, "here")
