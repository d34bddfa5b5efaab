"""The built-in networks: their sizes are as published, and each refuses what it cannot take."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.models.build import as_input, build_model, make_blank_samples
from fedmpi.models.nets import FastText, LeNet5, ResNet18

BYTES, FLOATS, WORDS = np.dtype("uint8"), np.dtype("float32"), np.dtype("int32")


@pytest.mark.parametrize("settings, shape, dtype, classes, parameters", [
    (LeNet5(), (28, 28, 1), BYTES, 10, 61_706), (LeNet5(), (32, 32, 3), BYTES, 10, 62_006),
    (LeNet5(), (32, 32, 3), BYTES, 100, 69_656),
    (ResNet18(), (32, 32, 3), BYTES, 100, 11_227_812), (ResNet18(), (64, 64, 3), BYTES, 200, 11_279_112),
    (ResNet18(), (28, 28, 1), BYTES, 10, 11_227_812 - 90 * 513 - 2 * 64 * 49),
    (FastText(), (200,), WORDS, 4, 3_157_508)])
def test_sizes(settings, shape, dtype, classes, parameters):
    model = build_model(settings, shape, dtype, classes, seed=0)
    assert model.size == len(model.start) == parameters
    assert model.h.stop - model.h.start == model.head.size == (list(linear(model))[-1].in_features + 1) * classes


def linear(model):
    return (layer for layer in model.module.modules() if isinstance(layer, nn.Linear))


def test_lenet5_is_the_network_of_the_paper():
    """On 28 x 28 and on 32 x 32 pixels it has maps of 28 x 28 and 10 x 10, and 400 features for fc1."""
    for shape in ((28, 28, 1), (32, 32, 3)):
        model, z, seen = build_model(LeNet5(), shape, BYTES, 10, 0), as_input(make_blank_samples(shape, BYTES, 2)), {}
        for name, layer in model.module.named_children():
            z = layer(z)
            seen[name] = tuple(z.shape[1:])
        assert (seen["conv1"], seen["pool1"], seen["conv2"]) == ((6, 28, 28), (6, 14, 14), (16, 10, 10))
        assert (seen["flat"], seen["fc1"], seen["fc2"], seen["fc3"]) == ((400,), (120,), (84,), (10,))
        assert model.block("fc1").stop - model.block("fc1").start == 401 * 120


def test_resnet18_is_torchvisions():
    """Parameters have the same names and shapes, and features are equal if BatchNorm and GroupNorm agree."""
    from torchvision.models import resnet18
    model, theirs = build_model(ResNet18(), (32, 32, 3), BYTES, 100, 0), resnet18(num_classes=100)
    assert dict(zip(model.names, model.shapes, strict=True)) == {
        name: tuple(p.shape) for name, p in theirs.named_parameters()}
    assert (model.block("layer3").stop - model.block("layer3").start
            == sum(p.numel() for p in theirs.layer3.parameters()))


def test_resnet18_with_batchnorm_has_its_running_statistics_beside_the_parameters():
    model = build_model(ResNet18(norm="batch"), (32, 32, 3), BYTES, 100, 0)
    assert sum(size for name, size in zip(model.names, model.sizes, strict=True)
               if name not in model.buffer_names) == 11_227_812
    assert model.size == 11_227_812 + 9_600 and sum(part.stop - part.start for part in model.buffers) == 9_600
    assert (model.policy, ResNet18().policy) == ("local", None)


@pytest.mark.parametrize("groups", [2, 16])
def test_resnet18_normalises_by_groups(groups):
    model = build_model(ResNet18(groups=groups), (32, 32, 1), BYTES, 10, 0)
    norms = [layer for layer in model.module.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == 20 and {layer.num_groups for layer in norms} == {groups}
    assert not list(model.module.buffers())


def test_fasttext_is_linear_in_the_mean_of_its_words():
    model = build_model(FastText(vocabulary=50, width=4), (6,), WORDS, 3, 0)
    table, w1, b1, w2, b2 = model.split(model.start)
    x = torch.tensor([[3, 49, 3, 7, 0, 0], [1, 2, 3, 4, 5, 6]], dtype=torch.int32)
    mean = torch.stack([sum(table[i] for i in row) / 6 for row in x.tolist()])
    torch.testing.assert_close(model(model.start, x), (mean @ w1.T + b1) @ w2.T + b2)
    # Row 0 is padding.
    assert not table[0].any() and table[1:].all()


def test_words_stay_as_they_are():
    x = make_blank_samples((7,), WORDS, 3)
    assert x.dtype == torch.int32 and x.shape == (3, 7) and as_input(x) is x


@pytest.mark.parametrize("settings, shape, dtype, message", [
    (LeNet5(), (8, 8, 1), BYTES, "at least 12 x 12"), (LeNet5(), (64,), FLOATS, "at least 12 x 12"),
    (ResNet18(), (64,), FLOATS, "resnet18 needs images"), (FastText(), (8, 8, 1), BYTES, "fasttext needs texts"),
    (FastText(), (64,), FLOATS, r"cannot take samples of shape \(64,\)")])
def test_samples_that_do_not_fit_are_refused(settings, shape, dtype, message):
    with pytest.raises(BadInput, match=f"^model: .*{message}"):
        build_model(settings, shape, dtype, 10, 0)


@pytest.mark.parametrize("section, message", [
    ({"name": "resnet18", "groups": 3}, "model.groups = 3: .*divisor of 64"),
    ({"name": "resnet18", "norm": "layer"}, "model.norm = 'layer': should be 'group' or 'batch'"),
    ({"name": "resnet18", "running_stats": "none"}, "model.running_stats = 'none': should be 'local' or 'average'"),
    ({"name": "fasttext", "vocabulary": 0}, "model.vocabulary = 0: "),
    ({"name": "lenet5", "width": 3}, "model.width is not a setting of lenet5")])
def test_settings_that_cannot_be_are_refused(section, message):
    with pytest.raises(BadInput, match=f"^{message}"):
        resolve({"model": section})
