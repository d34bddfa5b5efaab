"""Max-pooling before ReLU is cheaper and gives the same bits."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.models.pool_before_relu import pool_first


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
