"""Parameters that a flat vector of trained numbers cannot stand for are refused when the network is built."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.errors import BadInput
from tests.models.test_models import given


class Table(nn.Module):
    """A table whose rows are shortened when they are read."""

    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(9, 4, max_norm=1.), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.table(x.long()).mean(1))


@pytest.mark.parametrize("make, message", [
    (lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)), r"0.weight is frozen \(requires"),
    (lambda: nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3)), "0.weight has no shape before the first forward pass"),
    (lambda: nn.Sequential(nn.Linear(6, 6, dtype=torch.cfloat), nn.Linear(6, 3)), "0.weight is of type torch.complex"),
    (Table, "table has max_norm, by which a forward pass changes parameters")])
def test_what_a_vector_cannot_stand_for_is_refused(make, message):
    with pytest.raises(BadInput, match=message) as error:
        given(make)
    assert str(error.value).startswith("model: ") and "\n" not in str(error.value)


def test_networks_that_cannot_be_copied_are_refused():
    """The old weight_norm keeps a tensor that was computed from parameters."""
    def make():
        network = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(network[0])
        return network
    with pytest.raises(BadInput, match="the network cannot be copied .*weight_norm from torch.nn.utils.parametri") as e:
        given(make)
    assert str(e.value).startswith("model: ") and "\n" not in str(e.value)
    assert given(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3))).size
