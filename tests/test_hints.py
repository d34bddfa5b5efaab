"""What a wrong name was probably meant to be: spelt otherwise, a title, or a setting of another section."""
from __future__ import annotations

import re

import pytest

from fedmpi import registry
from fedmpi.config.schema import load_config, resolve
from fedmpi.data.sources import make_source
from fedmpi.errors import BadInput
from fedmpi.hints import find_close_name, find_close_settings, simplify_name


def find_hint(values, *overrides) -> str:
    """Return the hint in the error about a configuration; "" if there is none."""
    with pytest.raises(BadInput) as error:
        resolve(values) if not overrides else load_config(values, overrides)
    found = re.search(r"[dD]id you mean ([^?]*)\?", str(error.value))
    return found[1] if found else ""


@pytest.mark.parametrize("kind", ["methods", "models", "datasets", "partitions"])
def test_the_title_of_each_class_leads_to_its_name(kind):
    for name in registry.list_built_in(kind):
        title = getattr(registry.find_class(kind, name), "title", name)
        if title not in (name, "Hugging Face folder"):
            with pytest.raises(BadInput, match=rf"Did you mean {name}\?$"):
                registry.find_class(kind, title)


@pytest.mark.parametrize("key, given, hint", [
    ("method", "FedMHC", "fedmhc"), ("method", "FedMHC-AH", "fedmhc_ah"), ("method", "FedAvg+", "fedavg_plus"),
    ("method", "fedmch", "fedmhc"), ("model", "ResNet-18", "resnet18"), ("model", "LeNet", "lenet5"),
    ("model", "CNN", "cnn4"), ("method", "nonsense", "")])
def test_names_are_hinted(key, given, hint):
    assert find_hint({key: given}) == hint


@pytest.mark.parametrize("given, hint", [("CIFAR-10", "cifar10"), ("Fashion-MNIST", "fashion_mnist"),
                                         ("AG News", "ag_news"), ("tiny-imagenet", "tiny_imagenet")])
def test_data_sets_are_hinted_with_their_setting(given, hint):
    with pytest.raises(BadInput, match=rf"^data\.name: dataset '{given}' is not known; .* Did you mean {hint}\?$"):
        make_source(given, None)


def test_a_bare_data_set_is_no_section():
    assert find_hint({"data": "cifar10"}) == "data.name=cifar10"
    assert find_hint({}, "data=cifar10") == "data.name=cifar10"
    assert find_hint({"train": "fast"}) == find_hint({"data": 3}) == find_hint({"data": "a\nb"}) == ""


@pytest.mark.parametrize("override, hint", [
    ("lr=.1", "train.lr"), ("LR=.1", "train.lr"), ("participation=.1", "train.participation"),
    ("clients=3", "data.clients"), ("partition=iid", "data.partition"), ("hidden=3", "model.hidden"),
    ("M=3", "method.M"), ("beta=.1", "data.partition.beta"), ("data.beta=.1", "data.partition.beta"),
    ("train.rounds=3", "rounds"), ("method.lr=.1", "train.lr"), ("data.partition.clients=3", "data.clients"),
    ("every=1", "evaluate.every or checkpoint.every"), ("patience=3", "stop.patience"),
    ("learning_rate=.1", "train.lr"), ("train.learning_rate=.1", "lr"), ("dataset=mnist", "data.name"),
    ("batch_size=3", "train.batch"), ("train.batch_size=3", "batch"), ("num_clients=3", "data.clients"),
    ("local_epochs=3", "train.epochs"), ("momentun=.1", "train.momentum"), ("optim=adam", "train.optimizer"),
    ("method.lamda=1", "lam"), ("train.partition=iid", "data.partition"), ("foo=1", ""), ("lr_x.y=1", "train.lr"),
    ("round=2", "rounds")])
def test_settings_are_hinted_with_their_section(override, hint):
    assert find_hint({"method": "fedmhc"}, override) == hint


def test_dotted_names_are_nested_in_files():
    for values, said in (({"data.clients": 3}, "data.clients: a file and a mapping nest their settings; write data: "
                          "{clients: ...}"),
                         ({"data.partition.beta": 3}, "write data: {partition: {beta: ...}}"),
                         ({"data": {"partition.beta": 3}}, "data.partition.beta: a file and a mapping nest their "
                          "settings; write partition: {beta: ...}")):
        with pytest.raises(BadInput, match=re.escape(said)):
            resolve(values)
    with pytest.raises(BadInput, match="evaluate.every.x is not a setting of evaluate"):
        resolve({"evaluate": {"every.x": 3}})


def test_the_settings_of_a_network_of_ones_own_are_not_known():
    assert find_hint({"model": {"name": "torch.nn:Linear"}}, "path=3") == ""


def test_simple_names():
    assert simplify_name("FedAvg+") == simplify_name("fedavg_plus") == simplify_name("FEDAVG Plus") == "fedavgplus"
    assert find_close_name("B_a", ["ab", "ba"]) == "ba" and find_close_name("xyz", ["ab", "ba"]) == ""
    assert find_close_name("", ["ab"]) == "" and find_close_name("x", []) == ""
    assert find_close_settings("x", {}, {}) == []
