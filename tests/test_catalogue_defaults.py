"""The defaults of networks and partitions, on which results depend. Those of methods are tested in tests/methods."""
from __future__ import annotations

import pytest

from fedmpi import registry
from fedmpi.settings import describe_settings

DEFAULTS = {
    "models": {
        "cnn4": {"width": 512, "head": (), "start": None},
        "fasttext": {"vocabulary": 98_635, "width": 32, "head": (), "start": None},
        "lenet5": {"head": (), "start": None},
        "mlp": {"hidden": 64, "head": (), "start": None},
        "resnet18": {"norm": "group", "groups": 2, "running_stats": "local", "head": (), "start": None}},
    "partitions": {
        "client_dirichlet": {"alpha": .1, "amount": None},
        "cluster_dirichlet": {"alpha": .1, "alpha_in": 10., "clusters": 10, "smallest": None, "tries": 1000},
        "cluster_n_class": {"classes_per_cluster": 3, "classes_per_client": 2, "clusters": 10},
        "dirichlet": {"beta": .1, "procedure": "capped", "smallest": None, "tries": 10_000},
        "few_shot": {"gamma": .1, "classes": 5, "few_classes": 2, "amount": None},
        "flower": {"partitioner": None, "settings": {}},
        "iid": {"balanced": True},
        "indices": {"file": None},
        "n_class": {"n": 2, "balanced": True},
        "natural": {"split": "given"},
        "pathological": {"classes_per_client": 2, "balanced": False}}}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults(kind):
    assert {name: {row["name"]: row["default"] for row in describe_settings(registry.find_class(kind, name))}
            for name in registry.list_available(kind)} == DEFAULTS[kind]
