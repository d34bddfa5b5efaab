"""Any last blocks of a network can be its head."""
from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmpi.config.schema import load_config, resolve, to_plain
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.models.nets import CNN4, MLP, FastText, LeNet5, ResNet18
from tests.federations import Digits, Lab, apart, method

BYTES, FLOATS, WORDS = np.dtype("uint8"), np.dtype("float32"), np.dtype("int32")


class Own(nn.Module):
    """A third party's network with operations between its layers."""

    def __init__(self, width: int = 6, between: str = "relu"):
        super().__init__()
        self.between = between
        # This layer is declared first and used last.
        self.out = nn.Linear(width, 10)
        self.one, self.two, self.three = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        z = F.relu(self.one(x))
        y = F.relu(self.two(z))
        y = {"relu": lambda: F.relu(self.three(y)), "beside": lambda: self.three(y) + z,
             "dropout": lambda: F.dropout(self.three(y), .5, self.training),
             "branch": lambda: self.three(y) if y.sum() > 0 else y}[self.between]()
        return self.out(y.flatten(1))


@pytest.fixture
def own(monkeypatch):
    module = ModuleType("somebodys")
    module.Own = Own
    monkeypatch.setattr(Own, "__module__", "somebodys")
    monkeypatch.setitem(sys.modules, "somebodys", module)


def settled(**section):
    return resolve({"model": section}).model


NETS = {
    "mlp": (lambda: MLP(head=("fc1", "fc2")), (64,), FLOATS, 64 * 65 + 650),
    "cnn4": (lambda: CNN4(head=("fc1", "fc2")), (28, 28, 1), BYTES, 512 * 1025 + 5130),
    "lenet5": (lambda: LeNet5(head=("fc2", "fc3")), (28, 28, 1), BYTES, 121 * 84 + 850),
    "in any order": (lambda: LeNet5(head=("fc3", "fc1", "fc2")), (28, 28, 1), BYTES, 401 * 120 + 121 * 84 + 850),
    "resnet18": (lambda: ResNet18(head=("layer4", "fc")), (32, 32, 3), BYTES, 8_393_728 + 5130),
    "inside": (lambda: ResNet18(head=("layer4.1", "fc")), (32, 32, 3), BYTES, 2 * (512 * 512 * 9 + 1024) + 5130),
    "fasttext": (lambda: FastText(vocabulary=50, head=("fc1", "fc2")), (9,), WORDS, 32 * 33 + 330),
    "own": (lambda: settled(name="somebodys:Own", head=["three", "out"]), (64,), FLOATS, 42 + 70),
    "one": (lambda: settled(name="somebodys:Own", head=["out"]), (64,), FLOATS, 70)}


@pytest.mark.parametrize("name", NETS)
def test_base_and_head_make_the_whole(name, own):
    make, shape, dtype, size = NETS[name]
    model = build_model(make(), shape, dtype, 10, seed=0)
    assert model.head.size == size == model.h.stop - model.h.start and model.base.size + size == model.size
    w = model.start + .01
    x = torch.rand(3, *shape[::-1], generator=torch.Generator().manual_seed(0))
    x = (x * 50).int() if dtype == WORDS else x
    with torch.no_grad():
        features = model.base(w[model.phi], x)
        torch.testing.assert_close(model.head(w[model.h], features), model(w, x), rtol=0, atol=1e-4)
    for block in getattr(make(), "head", ()):
        found = model.block(block)
        assert model.h.start <= found.start < found.stop <= model.h.stop


def test_without_names_it_is_the_last_linear_layer():
    one, other = (build_model(CNN4(head=head), (28, 28, 1), BYTES, 10, 0) for head in ((), ("fc2",)))
    assert one.names == other.names and one.h == other.h and torch.equal(one.start, other.start)


@pytest.mark.parametrize("head, message", [
    (["two"], r"model.head = \[two\]: three works behind two and is not in it; the head must be the last blocks"),
    (["two", "out"], r"model.head = \[two, out\]: three works behind two"),
    (["one", "two", "three"], "out works behind one"),
    (["four", "out"], r"model.head = \[four, out\]: four is not a block of this network; its blocks are out, one, two"),
    (["weight"], "weight is not a block"), ([""], " is not a block")])
def test_a_head_must_be_the_last_blocks(head, message, own):
    with pytest.raises(BadInput, match=message) as error:
        build_model(settled(name="somebodys:Own", head=head), (64,), FLOATS, 10, 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("between, message", [
    ("beside", "these blocks do not work on the result of the others alone"),
    ("dropout", "base and head together do not give what the network gives"), ("branch", "cannot be followed")])
def test_networks_that_cannot_be_cut_are_refused(between, message, own):
    with pytest.raises(BadInput, match=message) as error:
        build_model(settled(name="somebodys:Own", head=["three", "out"], between=between), (64,), FLOATS, 10, 0)
    assert "\n" not in str(error.value) and str(error.value).startswith("model.head = [three, out]: ")


@pytest.mark.parametrize("section, message", [
    ("{name: cnn4, head: fc2}", "model.head = 'fc2': "), ("{name: cnn4, head: [3]}", r"model.head.0 = 3: "),
    ("{name: 'somebodys:Own', head: 3}", "model.head = 3: ")])
def test_what_is_no_list_of_names_is_refused(section, message, own, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"model: {section}")
    with pytest.raises(BadInput, match=message):
        load_config(path)


@pytest.mark.parametrize("section", [{"name": "cnn4", "width": 512, "head": ["fc1", "fc2"], "start": None},
                                     {"name": "somebodys:Own", "width": 3, "head": ["three", "out"]},
                                     {"name": "somebodys:Own", "width": 3, "start": "w.h5"},
                                     {"name": "somebodys:Own", "width": 3}])
def test_the_configuration_keeps_it(section, own):
    config = resolve({"model": section})
    assert to_plain(config)["model"] == section and resolve(to_plain(config)) == config


@pytest.mark.parametrize("name", ["fedmhc", "fedah"])
def test_methods_follow(name, own):
    """Heads of two layers are clustered, blended and trained; both engines agree."""
    model = build_model(settled(name="somebodys:Own", head=["three", "out"]), (64,), FLOATS, 10, 0)
    labs = [Lab(method(name, model), Digits(), engine, share=.6).go(2) for engine in (Loop(), Vmap())]
    assert apart(labs[0].state(), labs[1].state()) < 1e-5
    heads = labs[0].shared.heads if name == "fedmhc" else labs[0].mine(0).h[None]
    assert heads.shape[1] == 112
