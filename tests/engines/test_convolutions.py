"""Convolutions as products of patches give the layers' results within 1e-5, also under vmap."""
from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.engines import convolutions
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.models.build import as_input, build_model, make_blank_samples
from fedmpi.models.nets import CNN4, LeNet5, ResNet18
from tests.clients.verbs import Bench, class_sums, momentum, own_loss_block, plain, scan, with_features


class Standardised(nn.Conv2d):
    """A layer that convolves with other weights than its own."""

    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class Scaled(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, 2 * weight, bias)


class Named(nn.Conv2d):
    """A layer that computes as the one that it is derived from."""


LAYERS = {
    "derived": Named(3, 5, 3), "parametrized": nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 5, 3)),
    "plain": nn.Conv2d(3, 5, 3), "padded": nn.Conv2d(3, 5, 3, padding=2), "strided": nn.Conv2d(3, 5, (3, 2), (2, 3)),
    "dilated": nn.Conv2d(3, 5, (2, 3), dilation=(3, 2), padding=(1, 2)),
    "no bias": nn.Conv2d(3, 5, 7, 2, 3, bias=False)}


@pytest.fixture(scope="module")
def bench():
    return Bench(image=True)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_the_same_outputs(layer):
    x = torch.randn(4, 3, 12, 11, generator=torch.Generator().manual_seed(0))
    assert convolutions.can_convolve(layer)
    torch.testing.assert_close(convolutions.convolve(layer, x), layer(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(3, 5, 3, padding="same"), nn.Linear(3, 5),
                                   nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"), Standardised(3, 5, 3),
                                   Scaled(3, 5, 3)])
def test_what_is_left_to_pytorch(layer):
    assert not convolutions.can_convolve(layer)


@pytest.mark.parametrize("verb", [plain, momentum, with_features, own_loss_block, class_sums, scan])
def test_clients_are_trained_alike(bench, verb, monkeypatch):
    """This holds for every verb, also on the feature extractor alone; between calls the layers are PyTorch's again."""
    used = []

    def convolve(layer, x, real=convolutions.convolve):
        used.append(layer)
        return real(layer, x)
    monkeypatch.setattr(convolutions, "convolve", convolve)
    engine = Vmap()
    engine.unfolded = ["0"]
    expected, found = bench.run(Loop(), verb), bench.run(engine, verb)
    assert used and max(float((expected[c] - found[c]).abs().max()) for c in found) < 1e-5
    used.clear()
    bench.run(Vmap(), verb)
    assert not used


@pytest.mark.parametrize("settings, shape, names", [
    (CNN4(), (16, 17, 3), {"conv1", "conv2"}), (LeNet5(), (28, 28, 1), {"conv1", "conv2"}),
    (ResNet18(), (32, 32, 3), 20)])
def test_layers_are_found_with_their_inputs(settings, shape, names):
    model = build_model(settings, shape, np.dtype("uint8"), 10, 0)
    found = convolutions.record_input_shapes(model, as_input(make_blank_samples(shape, "uint8", 2)))
    assert found.keys() == names if isinstance(names, set) else len(found) == names
    assert found["conv1"] == (2, shape[2], *shape[:2])


def test_each_layer_takes_the_faster_way(bench, monkeypatch):
    x = bench.get_training_samples(0)[0][:1]
    assert set(convolutions.choose_unfolded(bench.model, x, 4, 3)) <= {"0"}
    given = []
    monkeypatch.setattr(convolutions, "time_layer", lambda layer, *of: given.append(of) or 1.)
    convolutions.time_layers(bench.model, x, 4, 300)
    assert given == [((4, 1, 8, 8), 128, x.device)] * 2
    for clock, expected in ((iter((2., 1.)), ["0"]), (iter((1., 2.)), [])):
        monkeypatch.setattr(convolutions, "time_layer", lambda *layer, clock=clock: next(clock))
        assert convolutions.choose_unfolded(bench.model, x, 4, 3) == expected
    for error, said in ((torch.OutOfMemoryError("CUDA out of memory"), None), (RuntimeError("no layer"), "no layer")):
        def fail(*layer, error=error):
            raise error
        monkeypatch.setattr(convolutions, "time_layer", fail)
        with pytest.raises(RuntimeError, match=said) if said else nullcontext():
            assert (convolutions.time_layers(bench.model, x, 4, 3) == np.inf).all()
            assert convolutions.choose_unfolded(bench.model, x, 4, 3) == []
    assert (
        convolutions.list_convolutions(bench.model) == ["0"]
        and not convolutions.time_layers(bench.model, None, 4, 3).any()
    )
