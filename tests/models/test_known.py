"""The built-in networks layer by layer, their outputs for known weights, and their first weights.

The weights here are .1 sin(i) for entry i of the flat vector, the samples cos(.3 i). NumPy computed the logits in
double precision (`forward` below), before the networks did."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.models.build import as_input, build_model, make_blank_samples
from fedmpi.models.flat import START_SEED_STRIDE, Net
from fedmpi.models.nets import CNN4, MLP, FastText, LeNet5, ResNet18
from fedmpi.models.variational import CODE_SEED_OFFSET, Variational

BYTES, FLOATS, WORDS = np.dtype("uint8"), np.dtype("float32"), np.dtype("int32")
EVERY = {"mlp": (MLP(hidden=7), (2, 2, 3), FLOATS, 3), "cnn4": (CNN4(width=9), (16, 20, 3), BYTES, 4),
         "lenet5": (LeNet5(), (28, 28, 1), BYTES, 10), "lenet5 of 32": (LeNet5(), (32, 32, 3), BYTES, 10)}

LAYERS = {
    "mlp": ["flat Flatten", "fc1 Linear 12 7", "relu ReLU", "fc2 Linear 7 3"],
    "cnn4": ["conv1 Conv2d 3 32 5 0", "pool1 MaxPool2x2", "relu1 ReLU", "conv2 Conv2d 32 64 5 0", "pool2 MaxPool2x2",
             "relu2 ReLU", "flat Flatten", "fc1 Linear 128 9", "relu3 ReLU", "fc2 Linear 9 4"],
    "lenet5": ["conv1 Conv2d 1 6 5 2", "pool1 MaxPool2x2", "relu1 ReLU", "conv2 Conv2d 6 16 5 0", "pool2 MaxPool2x2",
               "relu2 ReLU", "flat Flatten", "fc1 Linear 400 120", "relu3 ReLU", "fc2 Linear 120 84", "relu4 ReLU",
               "fc3 Linear 84 10"],
    "lenet5 of 32": ["conv1 Conv2d 3 6 5 0", "pool1 MaxPool2x2", "relu1 ReLU", "conv2 Conv2d 6 16 5 0",
                     "pool2 MaxPool2x2", "relu2 ReLU", "flat Flatten", "fc1 Linear 400 120", "relu3 ReLU",
                     "fc2 Linear 120 84", "relu4 ReLU", "fc3 Linear 84 10"]}

# The first logits of two samples.
LOGITS = {"mlp": [[-.088613, -.024747, .05545], [-.048882, .021543, .085516]],
          "cnn4": [[-.008904, -.054116, -.12887, .019454], [-.00929, -.05375, -.129151, .019601]],
          "lenet5": [[-.050635, .041328, .158659, -.320298], [-.050893, .041541, .158627, -.320468]],
          "lenet5 of 32": [[-.144732, .040906, .265967, -.165552], [-.146249, .042948, .264706, -.165879]]}

every = pytest.mark.parametrize("name", EVERY)


def model_of(name, seed=5):
    return build_model(*EVERY[name], seed)


def described(name, layer) -> str:
    facts = {nn.Linear: ("in_features", "out_features"),
             nn.Conv2d: ("in_channels", "out_channels")}.get(type(layer), ())
    more = [layer.kernel_size[0], layer.padding[0]] if type(layer) is nn.Conv2d else []
    return " ".join(map(str, [name, type(layer).__name__, *(getattr(layer, fact) for fact in facts), *more]))


@every
def test_layers_in_their_order(name):
    model = model_of(name)
    assert [described(*pair) for pair in model.module.named_children()] == LAYERS[name]
    for layer in model.module.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.stride == layer.dilation == (1, 1) and layer.kernel_size == (5, 5) and layer.groups == 1
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            assert layer.bias is not None
        if isinstance(layer, nn.MaxPool2d):
            assert layer.kernel_size == layer.stride == 2 and layer.padding == 0 and not layer.ceil_mode


def weights(size: int) -> np.ndarray:
    return (np.sin(np.arange(size)) * .1).astype(np.float32)


def sample(name) -> np.ndarray:
    (height, width, channels) = EVERY[name][1]
    return np.cos(np.arange(2 * height * width * channels) * .3).astype(np.float32).reshape(2, channels, height, width)


def forward(parameters, x, padding):
    """Return the logits of a network of convolutions, each followed by max-pooling, and Linear layers."""
    while len(parameters) and parameters[0].ndim == 4:
        w, b, *parameters = parameters
        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
        x, padding = np.einsum("bihwkl,oikl->bohw", windows, w) + b[:, None, None], 0
        n, c, height, width = x.shape
        x = np.maximum(x[:, :, :height // 2 * 2, :width // 2 * 2]
                       .reshape(n, c, height // 2, 2, width // 2, 2).max((3, 5)), 0)
    x = x.reshape(len(x), -1)
    while parameters:
        w, b, *parameters = parameters
        x = x @ w.T + b
        x = np.maximum(x, 0) if parameters else x
    return x


@every
def test_known_weights_give_known_logits(name):
    """Logits come from the flat vector, from the module that it is bound to, and from NumPy by the vector's layout."""
    model, parameters, at = model_of(name), [], 0
    w = weights(model.size)
    for shape in model.shapes:
        piece = w[at:at + math.prod(shape)].astype(np.float64)
        at += math.prod(shape)
        if len(shape) == 4:
            out, channels, height, width = shape
            parameters.append(piece.reshape(out, height, width, channels).transpose(0, 3, 1, 2))
        else:
            parameters.append(piece.reshape(shape))
    expected = forward(parameters, sample(name).astype(np.float64), 2 * (name == "lenet5"))
    np.testing.assert_allclose(expected[:, :4], LOGITS[name], rtol=0, atol=2e-6)
    w, x = torch.from_numpy(w), torch.from_numpy(sample(name))
    with torch.no_grad():
        np.testing.assert_allclose(model(w, x), expected, rtol=0, atol=1e-5)
        features = model.base(w[model.phi], x)
        np.testing.assert_allclose(model.head(w[model.h], features), expected, rtol=0, atol=1e-5)
        model.bind(w)
        np.testing.assert_allclose(model.module(x), expected, rtol=0, atol=1e-5)


@every
def test_gradients_are_those_of_differences(name):
    """The derivative along a direction is compared in double precision."""
    model = model_of(name)
    w, x = torch.from_numpy(weights(model.size)).double(), torch.from_numpy(sample(name)).double()
    y, direction = torch.tensor([1, 2]), torch.cos(torch.arange(model.size, dtype=torch.float64))
    model.module.double()
    loss = model.loss(at := w.clone().requires_grad_(), x, y)
    assert loss.shape == (2,)
    gradient, = torch.autograd.grad(loss.sum(), at)
    with torch.no_grad():
        change = (model.loss(w + 1e-7 * direction, x, y) - model.loss(w - 1e-7 * direction, x, y)).sum() / 2e-7
    torch.testing.assert_close(gradient @ direction, change, rtol=1e-4, atol=1e-6)


@every
def test_the_first_weights_are_pytorchs_own_for_the_seed(name):
    """One generator draws layer after layer in the order of the network, with bounds of 1 / sqrt(inputs)."""
    model = model_of(name)
    torch.manual_seed(5)
    flat = []
    for line in LAYERS[name]:
        _, kind, *facts = line.split()
        if facts:
            layer = getattr(nn, kind)(*map(int, facts[:3] if kind == "Conv2d" else facts))
            w = layer.weight.permute(0, 2, 3, 1) if kind == "Conv2d" else layer.weight
            bound = 1 / math.sqrt(w[0].numel())
            assert .9 * bound < w.abs().max() <= bound
            flat += [w.flatten(), layer.bias]
    assert torch.equal(model.start, torch.cat(flat).detach())
    assert not torch.equal(model.start, model_of(name, 6).start)


def test_the_first_weights_are_the_known_ones():
    """PyTorch draws them so from seed 5 for nn.Linear(12, 7): (2 u - 1) / sqrt(12) with uniform u."""
    model = model_of("mlp")
    generator = torch.Generator().manual_seed(5)
    uniform = torch.rand(84, generator=generator)
    torch.testing.assert_close(model.start[:84], (2 * uniform - 1) / math.sqrt(12), rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.start[:4], [0.190671, -0.215865, 0.2352527, 0.18471], rtol=0, atol=1e-6)


def test_further_starts_have_seeds_of_their_own():
    """Seeds are 0x5EED0000 apart and take the place of the first one's, also on devices and in copies."""
    model = model_of("cnn4")
    found = model.starts(3)
    assert torch.equal(found[0], model.start) and START_SEED_STRIDE == 0x5EED_0000 and len(model.starts(1)) == 1
    for j in (1, 2):
        assert torch.equal(found[j], model_of("cnn4", 5 + 0x5EED_0000 * j).start)
    moved = model.to("cpu")
    assert moved is not model and torch.equal(moved.starts(2)[1], found[1]) and moved.module is model.module


def test_the_vector_is_base_and_head_by_names():
    model = model_of("cnn4")
    assert model.names == ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias",
                           "fc2.weight", "fc2.bias"]
    sizes = [32 * 75, 32, 64 * 800, 64, 128 * 9, 9, 36, 4]
    edges = np.cumsum([0, *sizes]).tolist()
    assert model.sizes == sizes and model.size == edges[-1]
    for name, start, stop in zip(model.names, edges, edges[1:], strict=False):
        assert model.block(name) == slice(start, stop)
    assert model.block("conv2") == slice(edges[2], edges[4]) and model.block("base") == slice(0, edges[6])
    assert model.block("head") == model.h == slice(edges[6], edges[8]) and model.phi == slice(0, edges[6])
    assert model.moving(None) == list(range(8)) and model.moving(model.h) == [6, 7]
    assert model.moving(slice(edges[2], edges[5])) == [2, 3, 4] and model.moving(slice(1, edges[1])) == []
    two = build_model(CNN4(width=9, head=("fc1", "fc2")), (16, 20, 3), BYTES, 4, 5)
    assert two.names == model.names and two.h == slice(edges[4], edges[8]) and torch.equal(two.start, model.start)


def test_resnet18_has_its_layers_in_torchvisions_order():
    """It has GroupNorm in place of BatchNorm; the first convolution for grey images is drawn as torchvision's is."""
    model = build_model(ResNet18(), (32, 32, 1), BYTES, 10, 5)
    kinds = [type(layer).__name__ for layer in model.module.modules()]
    assert [kinds.count(kind) for kind in ("Conv2d", "GroupNorm", "BatchNorm2d", "ReLU", "MaxPool2d", "Linear")] == [
        20, 20, 0, 9, 1, 1]
    first = model.module.conv1
    assert (first.in_channels, first.out_channels, first.kernel_size, first.stride, first.padding, first.bias) == (
        1, 64, (7, 7), (2, 2), (3, 3), None)
    assert model.split(model.start)[0].std() == pytest.approx(math.sqrt(2 / (64 * 49)), rel=.05)
    normed = build_model(ResNet18(norm="batch"), (32, 32, 3), BYTES, 10, 5)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in normed.module.modules()) == 20
    with torch.random.fork_rng():
        torch.manual_seed(5)
        from torchvision.models import resnet18
        theirs = resnet18(num_classes=10).eval()
    x = torch.from_numpy(np.cos(np.arange(2 * 3 * 32 * 32) * .3).astype(np.float32)).view(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(normed(normed.start, x), theirs(x), rtol=0, atol=1e-5)


def test_fasttext_is_four_layers():
    model = build_model(FastText(vocabulary=11, width=3), (6,), WORDS, 4, 5)
    assert [type(layer).__name__ for layer in model.module.children()] == ["Embedding", "MeanOverPositions", "Linear",
                                                                           "Linear"]
    assert model.shapes == [(11, 3), (3, 3), (3,), (4, 3), (4,)] and model.table == slice(0, 33)
    assert model.lookup.padding_idx == 0 and FastText().vocabulary == 98_635 and FastText().width == 32
    behind = model.behind_table
    assert behind.names == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] and behind.size == model.size - 33
    x, w = torch.tensor([[3, 10, 3, 7, 0, 0]], dtype=torch.int32), model.start
    rows = w[:33].view(11, 3)[x.long()]
    torch.testing.assert_close(behind(w[33:], rows), model(w, x))


def test_the_code_of_a_variational_network_is_drawn_by_itself():
    """It is drawn from the seed and 0xC0DE and is as wide as the features; mu and sigma are worked out by hand."""
    model = model_of("mlp")
    net = Variational(model)
    torch.manual_seed(5 + 0xC0DE)
    code = nn.Linear(7, 14)
    assert CODE_SEED_OFFSET == 0xC0DE and net.width == 7 and net.classes == 3
    expected = [model.start[:91], code.weight.detach().flatten(), code.bias.detach(), model.start[91:]]
    assert torch.equal(net.start, torch.cat(expected)) and net.phi == slice(0, 91 + 112) and net.size == 115 + 112
    x, y = torch.from_numpy(sample("mlp")), torch.tensor([2, 0])
    w = torch.from_numpy(weights(net.size)).double().numpy()
    hidden = np.maximum(sample("mlp").reshape(2, 12) @ w[:84].reshape(7, 12).T + w[84:91], 0)
    p = hidden @ w[91:189].reshape(14, 7).T + w[189:203]
    mu, sigma = p[:, :7], np.log1p(np.exp(p[:, 7:])) + .01
    e = np.cos(np.arange(2 * 4 * 7)).reshape(2, 4, 7)
    z = mu[:, None] + sigma[:, None] * e
    logits = z @ w[203:224].reshape(3, 7).T + w[224:]
    losses = np.log(np.exp(logits).sum(-1)) - np.stack([logits[0, :, 2], logits[1, :, 0]])
    w = torch.from_numpy(weights(net.size))
    found = net.loss(w, x, y, torch.from_numpy(e).float())
    for a, b in zip(found, (losses, z, mu, sigma), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    np.testing.assert_allclose(net(w, x), mu @ weights(227)[203:224].reshape(3, 7).T + weights(227)[224:], atol=1e-5)
    np.testing.assert_allclose(net.experts(w[net.phi], x), np.concatenate([sigma ** -2, mu / sigma ** 2], 1), rtol=1e-4)


def test_bytes_are_scaled_and_blank_samples_are_as_stored():
    x = torch.tensor([[[[0], [51]], [[204], [255]]]], dtype=torch.uint8)
    torch.testing.assert_close(as_input(x)[0, 0], torch.tensor([[-1, -.6], [.6, 1]]))
    # The samples themselves are not changed.
    assert x.dtype == torch.uint8 and x[0, 0, 1, 0] == 51
    assert make_blank_samples((3, 2), BYTES, 4).shape == (4, 3, 2) and make_blank_samples((5,), "int32").shape == (1, 5)
    assert (
        make_blank_samples((5,), FLOATS).dtype == torch.float32
        and make_blank_samples((3, 2), BYTES).dtype == torch.uint8
    )
    # neither all padding nor all the same
    assert make_blank_samples((4,), "int32", 2).tolist() == [[1, 1, 1, 0]] * 2
    assert make_blank_samples((1,), "int32").tolist() == [[1]]
    assert make_blank_samples((2, 2), "float32").tolist() == [[[1, 2], [3, 1]]]


def test_a_bound_vector_is_reused_or_handed_over(monkeypatch):
    """A small one is copied and a large one handed over; the caller owns either."""
    from fedmpi.models import flat
    for large in (1 << 30, 0):
        monkeypatch.setattr(flat, "LARGE_VECTOR_SIZE", large)
        net = Net(nn.Linear(3, 2))
        work = net.bind(torch.arange(8.))
        given = net.release()
        assert (given is work) == (large == 0) and given.tolist() == list(range(8))
        again = net.bind(torch.ones(8))
        assert given.tolist() == list(range(8)) and (again is work) == (large > 0)
        assert net.module.weight.data_ptr() == again.data_ptr() and net.module.bias.tolist() == [1, 1]
