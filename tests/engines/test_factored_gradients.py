"""Gradients that stay factored until they are added: the same training, and only where it pays."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedmpi.engines import factored_gradients
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.loop import LoopData
from fedmpi.models import precision
from fedmpi.models.flat import Net
from fedmpi.models.layers import MeanOverPositions
from tests.federations import cnn, mlp

LOCAL = LocalTraining(seed=3, round=2, batch=10, epochs=2, steps=None, lr=.05, momentum=0.)


class Words(nn.Module):
    """Linear layers on positions (b, 6, 8), one without a bias, one used twice, and one whose weights serve the loss
    in another way too."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Linear(8, 16, bias=False), nn.Linear(16, 16)
        self.tied, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        z = self.twice(self.twice(self.first(x).relu()).relu())
        return self.last((self.tied(z).relu() @ self.tied.weight).mean(1))


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.idle = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.first(x)


def net(kind=Words) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Net(kind())


def data(*shape: int) -> LoopData:
    r = torch.Generator().manual_seed(1)
    return LoopData(torch.randn(34, *shape, generator=r), torch.randint(0, 4, (34,), generator=r), 6, LOCAL)


@pytest.fixture
def used(monkeypatch):
    """All layers are worth it; return the shapes of the factors that were added."""
    shapes, add = [], factored_gradients.add_gradients

    def noted(targets, gradients, alpha=1.):
        shapes.extend(
            (tuple(f.g.shape), tuple(f.x.shape)) for f in gradients if isinstance(f, factored_gradients.Factors)
        )
        add(targets, gradients, alpha)
    monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", 0)
    monkeypatch.setattr(factored_gradients, "add_gradients", noted)
    monkeypatch.setattr(Net, "plain", True)
    return shapes


def test_positions_and_layers_of_several_uses(used, monkeypatch):
    model = net()
    found = data(6, 8).descend(model, model.flatten())
    assert ((60, 16), (60, 8)) in used and ((10, 4), (10, 16)) in used
    assert ((60, 16), (60, 16)) not in used      # several uses: added up before
    monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", 1 << 30)
    whole = data(6, 8).descend(model, net().flatten())
    assert (found - net().flatten()).abs().max() > .01
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-6)


def test_a_frozen_layer_passes_the_gradient_on(used):
    model, start = net(), net().flatten()
    found = data(6, 8).descend(model, start, only=model.blocks["first.weight"])
    assert set(used) == {((60, 16), (60, 8)), ((24, 16), (24, 8))}
    assert torch.equal(found[model.blocks["last"]], start[model.blocks["last"]])


def test_not_where_gradients_are_needed_whole_or_rounded(used):
    model = net()
    data(6, 8).descend(model, model.flatten(), spread=True)
    precision.use("bf16")
    try:
        data(6, 8).descend(model, model.flatten())
    finally:
        precision.use("float32")
    assert not used


def test_what_follows_may_work_in_place_and_view(used, monkeypatch):
    class Views(nn.Sequential):
        def forward(self, x):
            z = self[0](x)
            z += 1
            return self[2](self[1](z.view(len(x), -1)))
    for model, x in ((nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4)), data(8)),
                     (Views(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(96, 4)), data(6, 8))):
        w = Net(model).flatten()
        monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", 0)
        found = x.descend(Net(model), w)
        monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", 1 << 30)
        torch.testing.assert_close(found, x.descend(Net(model), w), rtol=0, atol=1e-6)
    assert used


def test_not_for_small_layers():
    linear = Net(nn.Linear(512, 512))
    assert not factored_gradients.fit(linear, [nn.Linear(512, 511).weight]) and factored_gradients.fit(
        linear, [nn.Linear(512, 512).weight]
    )
    assert not factored_gradients.fit(linear, [nn.Conv2d(512, 512, 3).weight, nn.Linear(512, 512).weight.detach()])


def test_not_in_a_users_own_forward_pass(monkeypatch):
    """It may do anything: here it takes a gradient itself."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            x = x.detach().requires_grad_()
            return self.b(self.a(x).tanh() + torch.autograd.grad(self.a(x).tanh().square().sum(), x)[0])
    assert not net(Own).plain and not Net(nn.Sequential(nn.Linear(8, 8), Own())).plain
    assert mlp().plain and cnn().plain and Net(nn.Sequential(MeanOverPositions(), nn.Linear(8, 8))).plain
    found = data(8).descend(net(Own), net(Own).flatten())
    monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", 0)
    assert torch.equal(data(8).descend(net(Own), net(Own).flatten()), found)


@pytest.mark.parametrize("worth", [0, 1 << 30])
def test_a_parameter_that_no_output_depends_on(monkeypatch, worth):
    monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", worth)
    monkeypatch.setattr(Net, "plain", True)
    model = net(Idle)
    with pytest.raises(RuntimeError, match="takes no part|not have been used"):
        data(8).descend(model, model.flatten())


def test_gradients_are_those_of_autograd():
    layer, x = nn.Linear(6, 5), torch.randn(3, 6, requires_grad=True)
    tap = factored_gradients.Tap([])
    tap.leaves, tap.found = [layer.weight, layer.bias, x], {id(layer.weight): []}
    with tap:
        loss = F.linear(x, layer.weight, layer.bias).square().sum()
    weight, *rest = tap.gradients(loss)
    expected = torch.autograd.grad(layer(x).square().sum(), [layer.weight, layer.bias, x])
    torch.testing.assert_close([weight.g.T @ weight.x, *rest], list(expected))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [1, 10, factored_gradients.THIN, factored_gradients.THIN + 1])
def test_judging_gives_what_linear_gives(monkeypatch, n, bias):
    layer, x = nn.Linear(6, 5, bias=bias), torch.randn(n, 6)
    monkeypatch.setattr(factored_gradients, "MIN_FACTORED_WEIGHTS", 0)
    called, product, expected = [], factored_gradients.product, layer(x)
    monkeypatch.setattr(factored_gradients, "product", lambda *args: called.append(1) or product(*args))
    with torch.no_grad(), factored_gradients.judging(Net(layer), x.device):
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)
        assert layer(x).is_contiguous() and (called.clear() or layer(x)).view(1, -1).numel() == 5 * n
        torch.testing.assert_close(layer(x[None]), expected[None], rtol=0, atol=1e-6)
    assert len(called) == 1      # samples of more dimensions are left alone


def test_judging_small_networks_and_in_bf16_is_as_ever():
    small, large, cpu = Net(nn.Linear(6, 5)), Net(nn.Linear(512, 512)), torch.device("cpu")
    assert not isinstance(factored_gradients.judging(small, cpu), factored_gradients.Judging)
    assert not isinstance(factored_gradients.judging(large, torch.device("cuda")), factored_gradients.Judging)
    assert isinstance(factored_gradients.judging(large, cpu), factored_gradients.Judging)
    precision.use("bf16")
    try:
        assert not isinstance(factored_gradients.judging(large, cpu), factored_gradients.Judging)
    finally:
        precision.use("float32")


def test_the_same_bits_on_any_number_of_ranks(bench, monkeypatch):
    """Of a network that is large enough for all of this: 64 x 4200 weights."""
    done = bench.run(3, "three", "model.hidden=4200", "rounds=2")
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(factored_gradients, "product", counted := Counted(factored_gradients.product))
    assert bench.lead("one", "model.hidden=4200", "rounds=2") == 0
    assert bench.result("one")["digest"] == bench.result("three")["digest"]
    assert counted.grad and counted.judged      # in training, and in judging


class Counted:
    def __init__(self, product):
        self.product, self.grad, self.judged = product, 0, 0

    def __call__(self, rows, weight, bias):
        self.grad += weight.requires_grad
        self.judged += not weight.requires_grad
        return self.product(rows, weight, bias)
