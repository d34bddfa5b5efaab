"""Buffers that no forward pass changes are constants of a network: no vector holds them, and every copy has them."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.warm_start import arrange_state
from tests.federations import Digits, Lab, apart, method
from tests.models.test_models import FLOATS, Given, given


class Scaled(nn.Module):
    """It multiplies its samples by a buffer that a function makes."""

    def __init__(self, make=lambda: torch.linspace(.5, 1.5, 64), persistent=True):
        super().__init__()
        self.register_buffer("scale", make(), persistent)
        self.fc1, self.fc2 = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.fc2(self.fc1(x * self.scale).relu())


class Folded(Scaled):
    """The same without a buffer."""

    def __init__(self):
        super().__init__()
        del self.scale
        self.scale = torch.linspace(.5, 1.5, 64)


class Counting(Scaled):
    """It counts the batches that it is trained on."""

    def forward(self, x):
        if self.training:
            self.scale += 1
        return super().forward(x)


class Late(Scaled):
    """It makes its buffer in the first forward pass."""

    def __init__(self):
        super().__init__(lambda: None)

    def forward(self, x):
        if self.scale is None:
            self.scale = torch.ones(64)
        return super().forward(x)


def digits(make):
    return given(make, (64,), 10)


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_a_network_trains_as_without_the_buffer(engine, name):
    labs = [Lab(method(name, digits(make)), Digits(), engine, share=.6).go(2)
            for make in (Scaled, lambda: Scaled(persistent=False), Folded)]
    assert labs[0].digest() == labs[1].digest() == labs[2].digest()


def test_both_engines_agree():
    labs = [Lab(method("fedavg", digits(Scaled)), Digits(), engine, share=.6).go(2) for engine in (Loop(), Vmap())]
    assert apart(labs[0].state(), labs[1].state()) < 1e-5


def test_the_vector_does_not_hold_it():
    model = digits(Scaled)
    assert model.size == 65 * 8 + 90 and "scale" not in model.names and not model.buffers


def test_a_cut_network_has_it_too():
    class Cut(Given):
        head = ("fc1", "fc2")
    model, x = build_model(Cut(Scaled), (64,), FLOATS, 10, 0), torch.rand(3, 64)
    with torch.no_grad():
        features = model.base(model.start[model.phi], x)
        torch.testing.assert_close(model.head(model.start[model.h], features), model(model.start, x))
    assert model.base.size == 0 and torch.equal(features, x * model.module.scale)


def test_a_head_may_use_it_between_its_layers():
    class Within(Scaled):
        def __init__(self):
            super().__init__(lambda: torch.linspace(.5, 1.5, 8))
            self.fc3 = nn.Linear(10, 10)

        def forward(self, x):
            return self.fc3(self.fc2(self.fc1(x).relu() * self.scale))

    class Cut(Given):
        pass
    for within, head in ((True, ("fc1", "fc2", "fc3")), (False, ("fc2", "fc3"))):
        Cut.head = head
        model = build_model(Cut(Within), (64,), FLOATS, 10, 0)
        assert hasattr(model.head.module, "scale") == within != hasattr(model.base.module, "scale")

    class Trained(Within):
        def __init__(self):
            super().__init__()
            del self.scale
            self.scale = nn.Parameter(torch.ones(8))
    Cut.head = ("fc1", "fc2", "fc3")
    with pytest.raises(BadInput, match="scale works behind fc1 and is not in it"):
        build_model(Cut(Trained), (64,), FLOATS, 10, 0)


def test_it_follows_the_vector_to_another_device():
    model, x = digits(Scaled), torch.rand(3, 64)
    moved = model.to("meta")
    assert model.module.scale.is_meta and model.base.module.scale.is_meta
    there = model.module.scale
    assert moved(moved.start, x.to("meta")).is_meta
    with torch.no_grad():
        assert not model(model.start, x).is_meta and torch.equal(model.module.scale, torch.linspace(.5, 1.5, 64))
        moved.bind(moved.start)
    assert model.module.scale is there


@pytest.mark.parametrize("make", [Counting, Late, lambda: nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Linear(64, 8)), nn.Linear(8, 10)), lambda: nn.Sequential(
    nn.Unflatten(1, (1, 64)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 10))])
def test_buffers_that_forward_passes_change_are_refused(make):
    with pytest.raises(BadInput, match=r"keeps state outside its parameters \(.*\), .*; only buffers that no forward"):
        digits(make)


def test_a_constant_that_is_drawn_at_random_is_refused():
    with pytest.raises(BadInput, match="the buffer scale has other values in each copy.* torch.Generator with a seed"):
        digits(lambda: Scaled(lambda: torch.rand(64)))
    assert digits(lambda: Scaled(lambda: torch.rand(64, generator=torch.Generator().manual_seed(0)))).size == 610


def test_a_file_of_weights_must_have_the_same_constant():
    model = digits(Scaled)
    state = dict(model.module.state_dict())
    assert torch.equal(arrange_state(state, model, "here"), model.start)
    assert torch.equal(arrange_state({k: v for k, v in state.items() if k != "scale"}, model, "here"), model.start)
    with pytest.raises(BadInput, match="here: its scale is another one than the network's"):
        arrange_state(state | {"scale": torch.ones(64)}, model, "here")
