"""Networks as flat vectors: sizes, layout, and what is refused."""
from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.config.schema import load_config, resolve, to_plain
from fedmpi.errors import BadInput
from fedmpi.models.build import as_input, build_model
from fedmpi.models.flat import Net
from fedmpi.models.nets import CNN4, MLP
from tests.federations import TinyCNN, cnn, mlp

BYTES, FLOATS = np.dtype("uint8"), np.dtype("float32")


@dataclass(frozen=True)
class Given:
    """Settings of a network that a given function makes."""
    make: object = field(repr=False)

    def build(self, shape, classes):
        return self.make()


def given(make, shape=(6,), classes=3, dtype=FLOATS):
    return build_model(Given(make), shape, dtype, classes, seed=0)


@pytest.mark.parametrize("shape, classes, parameters", [
    ((28, 28, 1), 10, 582_026), ((32, 32, 3), 10, 878_538), ((32, 32, 3), 100, 924_708),
    ((64, 64, 3), 200, 5_694_600)])
def test_cnn4_has_the_published_number_of_parameters(shape, classes, parameters):
    model = build_model(CNN4(), shape, BYTES, classes, seed=0)
    assert model.size == len(model.start) == parameters
    assert model.h.stop - model.h.start == 513 * classes


@pytest.mark.parametrize("side", range(16, 20))
def test_cnn4_takes_images_of_any_size(side):
    model = build_model(CNN4(width=3), (side, side + 3, 1), BYTES, 2, seed=0)
    assert model(model.start, torch.zeros(2, 1, side, side + 3)).shape == (2, 2)


def test_mlp_has_one_hidden_layer():
    assert build_model(MLP(hidden=64), (64,), FLOATS, 10, 0).size == 65 * 64 + 65 * 10
    assert build_model(MLP(hidden=5), (8, 8, 1), BYTES, 10, 0).size == 65 * 5 + 60


KINDS = {"mlp": (mlp, (64,)), "cnn": (cnn, (1, 8, 8)),
         "cnn4": (lambda: build_model(CNN4(), (16, 17, 3), BYTES, 10, 0), (3, 16, 17))}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind):
    return KINDS[kind][0]()


@pytest.fixture
def x(kind):
    return torch.rand(4, *KINDS[kind][1], generator=torch.Generator().manual_seed(0))


def test_flat_there_and_back(model):
    w = torch.randn(model.size, generator=torch.Generator().manual_seed(3))
    model.bind(w)
    assert torch.equal(model.flatten(), w)
    parameters = dict(model.module.named_parameters())
    for name, view in zip(model.names, model.split(w), strict=True):
        assert torch.equal(view, parameters[name]) and view.shape == parameters[name].shape


def test_the_flat_vector_gives_what_the_module_gives(model, x):
    w = model.start + .01
    functional = model(w, x)
    model.bind(w)
    torch.testing.assert_close(functional, model.module(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(functional, model(model.split(w), x), rtol=0, atol=0)


def test_base_and_head_make_the_whole(model, x):
    w = model.start
    features = model.base(w[model.phi], x)
    torch.testing.assert_close(model.head(w[model.h], features), model(w, x), rtol=0, atol=1e-6)
    assert torch.equal(model.join(w[model.phi], w[model.h]), w)
    assert model.base.size + model.head.size == model.size


def test_blocks_cover_the_vector(model):
    assert model.block("base") == slice(0, model.h.start) and model.block("head") == slice(model.h.start, model.size)
    pieces = sorted((model.block(name).start, model.block(name).stop) for name in model.names)
    assert pieces[0][0] == 0 and pieces[-1][1] == model.size
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
    with pytest.raises(BadInput, match="'middle' is not part of this model; its blocks are .*base, head"):
        model.block("middle")


def test_a_layer_is_a_block():
    model = mlp()
    assert model.block("fc1") == model.block("base") and model.block("fc2") == model.block("head")
    assert model.block("fc2.bias") == slice(model.size - 10, model.size)


def test_what_is_not_one_piece_is_no_block():
    net = Net(mlp().module, ["fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias"])
    assert list(net.blocks) == net.names
    inner = nn.ModuleDict({"b": nn.Linear(2, 3), "c": nn.Linear(1, 4)})
    nested = Net(nn.ModuleDict({"a": inner, "d": nn.Linear(1, 1)}))
    assert nested.blocks["a"] == slice(0, 17) and nested.blocks["a.c"] == slice(9, 17)


def test_views_share_the_vectors_memory(model):
    w = model.start.clone()
    for view in model.split(w):
        view.zero_()
    assert not w.any()
    # many is a batch of vectors.
    many = model.start.repeat(3, 1)
    for view, shape in zip(model.split(many), model.shapes, strict=True):
        assert view.shape == (3, *shape)
        view[1].fill_(7)
    assert (many[1] == 7).all() and torch.equal(many[2], model.start)


def test_convolutions_lie_channels_last():
    model = build_model(CNN4(), (16, 17, 3), BYTES, 10, 0)
    weight = model.split(model.start)[model.names.index("conv1.weight")]
    assert weight.shape == (32, 3, 5, 5) and weight.is_contiguous(memory_format=torch.channels_last)


def test_the_start_depends_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, same, other = (build_model(MLP(), (64,), FLOATS, 10, seed).start for seed in (3, 3, 4))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_as_input_scales_bytes_and_moves_channels():
    x = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 2, 1).expand(3, 4, 2, 2)
    y = as_input(x)
    assert y.shape == (3, 2, 4, 2) and y[0, 0, 0].tolist() == [-1, 1]
    floats = torch.rand(3, 5)
    assert as_input(floats) is floats


class Skip(nn.Module):
    """Its last Linear layer is not its last operation."""

    def __init__(self, after):
        super().__init__()
        self.fc1, self.fc2, self.after = nn.Linear(6, 6), nn.Linear(6, 3), after

    def forward(self, x):
        return self.after(self.fc2(self.fc1(x)), x)


class Shared(nn.Module):
    """Two layers have the same weights, the later one in the head or not."""

    def __init__(self, in_head: bool):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6 if in_head else 3)
        (self.fc3 if in_head else self.fc2).weight = self.fc1.weight

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


class Reading(nn.Module):
    """It reads the weights of its last Linear layer, and calls another layer `lookup`."""

    def __init__(self, reads=True):
        super().__init__()
        self.lookup, self.fc, self.reads = nn.Linear(6, 6), nn.Linear(6, 3), reads

    def forward(self, x):
        z = self.lookup(x)
        return nn.functional.linear(z, self.fc.weight, self.fc.bias) if self.reads else self.fc(z)


def test_any_layer_may_be_called_lookup():
    model = given(lambda: Reading(False))
    assert model.table is None and "lookup" in model.blocks


def test_layers_may_share_weights():
    model, x = given(lambda: Shared(False)), torch.randn(4, 6)
    assert model.size == 36 + 6 + 6 + 21
    w = model.starts(2)[1]
    with torch.no_grad():
        model.bind(w)
        assert model.module.fc2.weight is model.module.fc1.weight
        assert torch.equal(model.module(x), model(w, x)) and not torch.equal(model(w, x), model(model.start, x))


def test_a_failed_pass_leaves_the_layers_their_own_weights():
    model = given(lambda: Shared(False))
    with torch.no_grad():
        model.bind(model.start)
    own = dict(model.module.named_parameters())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(model.starts(2)[1], torch.randn(4, 7))
    assert all(own[name] is value for name, value in model.module.named_parameters())


@pytest.mark.parametrize("make, message", [
    (lambda: Shared(True), r"layers share weights \(fc3.weight\)"),
    (lambda: Skip(lambda z, x: z + x[:, :3]), "not its last operation"),
    (lambda: Skip(lambda z, x: 3 * z), "not its last operation"),
    (lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), "needs a Linear layer|not its last operation"),
    (Reading, "not its last operation"),
    (lambda: nn.Linear(6, 3), "needs a Linear layer as its last one"),
    (lambda: nn.Sequential(nn.Flatten()), "needs a Linear layer as its last one"),
    (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), "1.running_mean.*use GroupNorm"),
    (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)),
     "cannot take a single sample, .*: ValueError: Expected more than 1 value.*use GroupNorm"),
    (lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)), r"outputs of shape \(4,\), but the data have 3"),
    (lambda: nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3)), r"cannot take samples of shape \(6,\)"),
    (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(6, 3)), r"samples of shape \(6,\)")])
def test_networks_that_cannot_work_are_refused(make, message):
    with pytest.raises(BadInput, match=message) as error:
        given(make)
    assert str(error.value).startswith("model: ") and "\n" not in str(error.value)


def test_cnn4_refuses_small_images_and_vectors():
    for shape, dtype in (((8, 8, 1), BYTES), ((64,), FLOATS)):
        with pytest.raises(BadInput, match="at least 16 x 16"):
            build_model(CNN4(), shape, dtype, 10, 0)


def test_group_norm_is_welcome():
    model = given(lambda: nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)))
    assert model.size == 42 + 12 + 21


def test_dropout_and_a_single_layer_are_welcome():
    assert given(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(.5), nn.Linear(6, 3))).size == 63
    model = given(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    assert model.size == model.head.size == 21 and model.base.size == 0


def test_a_net_of_one_layer():
    net = Net(nn.Linear(4, 2))
    assert net.names == ["weight", "bias"] and net.size == 10 and net(torch.zeros(10), torch.ones(1, 4)).sum() == 0


class Own(nn.Module):
    """A third party's network."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.body, self.out = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.out(self.body(x).relu())


@pytest.fixture
def own(monkeypatch):
    module = ModuleType("somebodys")
    module.Own, module.TinyCNN, module.nothing = Own, TinyCNN, None
    Own.__module__ = "somebodys"
    monkeypatch.setitem(sys.modules, "somebodys", module)


def test_any_module_can_be_named(own):
    config = resolve({"model": {"name": "somebodys:Own", "width": 7}})
    assert build_model(config.model, (64,), FLOATS, 10, 0).size == 65 * 7 + 80
    assert resolve(to_plain(config)) == config and to_plain(config)["model"] == {"name": "somebodys:Own", "width": 7}


def test_settings_classes_can_be_named_too(own):
    config = resolve({"model": "somebodys:TinyCNN"})
    assert build_model(config.model, (8, 8, 1), BYTES, 10, 0).size == cnn().size


@pytest.mark.parametrize("section, message", [
    ({"name": "somebodys:Own", "depth": 7}, "somebodys:Own cannot be built from {'depth': 7}.*depth"),
    ("somebodys:Missing", "module somebodys has no Missing; name a class or function of this module"),
    ("nobodys:Own", "cannot import nobodys"),
    ("mpl", "model 'mpl' is not known; there are cnn4, .*mlp, .*Did you mean mlp")])
def test_models_that_are_not_there_are_refused(own, section, message, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {section!r}")
    with pytest.raises(BadInput, match=message):
        build_model(load_config(path).model, (64,), FLOATS, 10, 0)
