"""Parts of a network by name: classes, width of the features, features, layers that normalise."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models.build import build_model
from tests.federations import Digits, Lab, cnn, mlp


class Normed:
    """A convolutional network with layers that normalise, one of them without parameters."""
    head = ()

    def __init__(self, first):
        self.first = first

    def build(self, shape, classes):
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), self.first(4), nn.ReLU(), nn.Flatten(),
                             nn.Linear(144, 6), nn.LayerNorm(6), nn.LayerNorm(6, elementwise_affine=False),
                             nn.Linear(6, classes))


def normed(first=lambda c: nn.GroupNorm(2, c), policy=None):
    settings = Normed(first)
    settings.policy = policy
    return build_model(settings, (8, 8, 1), np.dtype("uint8"), 10, seed=0)


def test_features_are_what_the_head_takes():
    for model, x in ((mlp(), torch.rand(5, 64)), (cnn(), torch.rand(5, 1, 8, 8))):
        z = model.features(model.start, x)
        assert (model.classes, model.width) == (10, 16) and z.shape == (5, 16)
        torch.testing.assert_close(model.head(model.start[model.h], z), model(model.start, x))


def test_features_of_a_head_of_several_layers_are_flat():
    model = build_model(type("Net", (Normed,), {"head": ("4", "5", "7")})(lambda c: nn.GroupNorm(2, c)), (8, 8, 1),
                        np.dtype("uint8"), 10, seed=0)
    assert model.width == 144 and model.features(model.start, torch.rand(3, 1, 8, 8)).shape == (3, 144)


@pytest.mark.parametrize("first, policy", [(lambda c: nn.GroupNorm(2, c), None), (nn.BatchNorm2d, "local"),
                                           (lambda c: nn.LayerNorm((c, 6, 6)), None)], ids=["group", "batch", "layer"])
def test_layers_that_normalise_have_their_blocks(first, policy):
    model = normed(first, policy)
    layer = first(4)
    length = sum(p.numel() for p in layer.parameters())
    assert list(model.norms) == ["1", "5"]
    held = {name: model.start[block] for name, block in model.norms.items()}
    assert len(held["1"]) == length and held["5"].tolist() == [1] * 6 + [0] * 6
    mask = model.mask(*model.norms)
    assert mask.dtype == torch.bool and int(mask.sum()) == length + 12 and len(mask) == model.size
    assert not model.mask().any() and int(model.mask("head").sum()) == 70
    with pytest.raises(BadInput, match="block 'nonsense' is not part of this model"):
        model.mask("nonsense")


def test_clients_can_keep_their_layers_that_normalise():
    """In FedBN the evaluated model has the client's own parameters there, and the server's elsewhere."""
    class FedBN(FedAvg):
        def init(self, n):
            shared, _ = super().init(n)
            return shared, shared

        def client(self, shared, mine, data):
            w = super().client(self.mix(shared, mine), mine, data)[1].w
            return type(shared)(w), type(shared)(w.clone())

        def mix(self, shared, mine):
            return type(shared)(torch.where(self.model.mask(*self.model.norms), mine.w, shared.w))

        def personal(self, shared, mine, data):
            return self.mix(shared, mine).w
    model = normed()
    lab = Lab(FedBN().with_model(model), Digits(image=True), share=.6).go(2)
    mask = model.mask(*model.norms)
    evaluated = lab.apply(lab.method.personal, range(8), 2)
    for c, w in evaluated.items():
        assert torch.equal(w[mask], lab.mine(c).w[mask]) and torch.equal(w[~mask], lab.shared.w[~mask])
    assert len({tuple(w[mask].tolist()) for w in evaluated.values()}) > 4
