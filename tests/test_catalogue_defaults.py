"""Defaults on which results depend: of a configuration, of networks and partitions (tests/methods has the methods)."""
from __future__ import annotations

import pytest

from fedmpi import registry
from fedmpi.config.schema import load_config, to_plain
from fedmpi.json_values import flatten_settings
from fedmpi.settings_table import describe_settings

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


# Results depend on many of these; a change is named in CHANGELOG.md.
CONFIGURATION = {
    "seed": 0, "rounds": 100, "data.name": "digits", "data.file": None, "data.root": "~/.cache/fedmpi/data",
    "data.cache": None, "data.fraction": 1.0, "data.clients": 20, "data.new_clients": 0,
    "data.task": "classification", "data.split": [0.75, 0.25], "train.batch": 10, "train.lr": 0.005,
    "train.lr_decay": 1.0, "train.schedule": "constant", "train.milestones": [], "train.step_factor": 0.1,
    "train.warm_up": 0, "train.optimizer": "sgd", "train.momentum": 0.0, "train.nesterov": False,
    "train.weight_decay": 0.0, "train.clip_norm": None, "train.label_smoothing": 0.0, "train.augment": [],
    "train.padding": 4, "train.epochs": 1, "train.drop_last": False, "train.steps": None, "train.participation": 1.0,
    "train.sampling": "uniform", "train.candidates": None, "evaluate.every": 1, "evaluate.on": "test",
    "evaluate.after_training": "participants", "evaluate.measures": [], "evaluate.embeddings": [], "stop": None,
    "checkpoint.every": 10, "checkpoint.minutes": 10.0, "checkpoint.grace": 90.0, "checkpoint.keep": 2,
    "checkpoint.asynchronous": False, "checkpoint.failure": "stop", "server.hosts_clients": False,
    "server.reduce": "exact", "server.aggregation": "mean", "server.trim": 0.1, "server.clip_norm": None,
    "comm.timeout": 1800.0, "comm.cuda_aware": "auto", "state.memory": 8.0, "state.scratch": None, "edge": None,
    "availability": None, "stragglers": None, "faults.bad_update": "stop", "faults.drop": 0.0, "attack": None,
    "engine": "auto", "cuda_graphs": "auto", "device": "auto", "precision": "float32", "threads": 1,
    "placement": "balanced"}


def test_defaults_of_a_configuration():
    config = load_config({"method": "fedavg", "model": "mlp", "data": {"partition": "iid"}}, [])
    found = flatten_settings(to_plain(config), keep_empty=True)
    assert {name: value for name, value in found.items()
            if not name.startswith(("method.", "model.", "data.partition"))} == CONFIGURATION
