"""Max-pooling before ReLU, or without indices, is cheaper and gives the same bits."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.models.max_pooling import MaxPool2x2, pool_first, skip_indices


def network(nested: bool):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, padding=1), nn.Flatten(), nn.Linear(8 * 8 * 8, 10)]
    if not nested:
        return nn.Sequential(*layers)
    return nn.Sequential(nn.Sequential(), *layers[:3], nn.Sequential(*layers[3:6]), *layers[6:])


def gradients(net, x):
    loss = nn.functional.cross_entropy(net(x), torch.arange(4))
    return [loss, *torch.autograd.grad(loss, [*net.parameters(), x])]


@pytest.mark.parametrize("nested", [False, True])
def test_outputs_and_gradients_keep_their_bits(nested):
    """Pixels have few values, so windows have equal ones, also of 0 and below."""
    x = torch.randint(-2, 3, (4, 3, 34, 34)).float().to(memory_format=torch.channels_last).requires_grad_()
    before = gradients(network(nested), x)
    net = pool_first(network(nested))
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(net, x), strict=True))
    assert net.state_dict().keys() == network(nested).state_dict().keys()
    kinds = [type(layer) for layer in net.modules()]
    assert not any(a is nn.ReLU and b is nn.MaxPool2d for a, b in zip(kinds, kinds[1:], strict=False))


def test_other_orders_are_left_alone():
    class Own(nn.Sequential):
        def forward(self, x):
            return self[0](x) + self[1](x)

    # A network may slice it, or read what passes between its layers.
    class Within(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))

        def __iter__(self):
            return iter(self.body)

    nets = [Own(nn.ReLU(), nn.MaxPool2d(2)), nn.Sequential(nn.LeakyReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
            Within()]
    for net in nets:
        layers = list(net)
        assert list(pool_first(net)) == layers


def test_a_layer_that_is_used_twice_stays_there_twice():
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    net = pool_first(nn.Sequential(relu, pool, nn.Conv2d(1, 1, 1), relu, pool, nn.Sequential(relu)))
    assert [type(layer).__name__ for layer in net] == ["MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU", "Sequential"]
    assert net[1] is net[4] is net[5][0] is relu and list(net.state_dict()) == ["2.weight", "2.bias"]


def test_a_relu_passes_every_pooling_that_follows_it():
    net = pool_first(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(3)))
    assert [type(layer) for layer in net] == [nn.MaxPool2d, nn.MaxPool2d, nn.ReLU]


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 9, 7), (1, 16, 2, 3), (3, 6, 6)])
def test_without_indices_outputs_keep_their_bits(shape):
    """Windows have equal values, some a NaN or an infinity; the odd row and column at the end are left out."""
    x = torch.randint(-2, 3, shape).float()
    x.view(-1)[::7] = torch.nan
    x.view(-1)[::11] = -torch.inf
    net = skip_indices(nn.Sequential(nn.MaxPool2d(2)))
    layouts = [x, x.to(memory_format=torch.channels_last)] if x.ndim == 4 else [x]
    for each in layouts:
        wanted = nn.functional.max_pool2d(each, 2)
        with torch.no_grad():
            found = net(each)
            several = torch.vmap(net)(torch.stack([each, each + 1]))
        assert torch.equal(found.nan_to_num(9), wanted.nan_to_num(9))
        assert torch.equal(several[1].nan_to_num(9), (wanted + 1).nan_to_num(9))
        # The next convolution reads channels-last without a copy.
        if each is not x:
            assert found.is_contiguous(memory_format=torch.channels_last)


def test_indices_are_looked_for_where_gradients_need_them(monkeypatch):
    asked = []
    pool = nn.MaxPool2d.forward
    monkeypatch.setattr(nn.MaxPool2d, "forward", lambda self, x: (asked.append(x.requires_grad), pool(self, x))[1])
    net = skip_indices(nn.MaxPool2d(2))
    x = torch.randn(1, 2, 4, 4).requires_grad_()
    with torch.no_grad():
        net(x)
    assert asked == []
    net(x)
    assert asked == [True]


def test_a_single_pixel_is_refused_with_and_without_gradients():
    net = skip_indices(nn.MaxPool2d(2))
    with torch.no_grad(), pytest.raises(RuntimeError, match="size"):
        net(torch.zeros(1, 2, 1, 4))


def test_only_usual_pooling_skips_indices_and_it_keeps_its_hooks():
    class Own(nn.MaxPool2d):
        pass

    class Within(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.MaxPool2d(2)

    other = [nn.MaxPool2d(3), nn.MaxPool2d(2, 1), nn.MaxPool2d((2, 1)), nn.MaxPool2d(2, padding=1), Own(2),
             nn.MaxPool2d(2, dilation=2), nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, return_indices=True)]
    usual = [nn.MaxPool2d(2), nn.MaxPool2d((2, 2), stride=(2, 2), padding=(0, 0)), nn.MaxPool2d(2, 2, dilation=(1, 1))]
    kinds = [type(layer) for layer in other]
    seen = []
    usual[0].register_forward_hook(lambda layer, given, found: seen.append(found))
    within = Within()
    net = skip_indices(nn.Sequential(*other, *usual, within))
    assert [type(layer) for layer in net] == [*kinds, *[MaxPool2x2] * 3, Within]
    assert list(net)[-4:] == [*usual, within] and type(within.pool) is MaxPool2x2
    usual[0](torch.zeros(1, 1, 2, 2))
    assert len(seen) == 1
