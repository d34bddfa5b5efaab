"""Every number of a configuration has a limit, so that what is accepted can run; errors say which, and why."""
from __future__ import annotations

import dataclasses
import typing

import numpy as np
import pytest

from fedmpi import memory_check, registry
from fedmpi.config.schema import NAMED, SECTIONS, Config, resolve
from fedmpi.data import allocation
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.models.nets import MLP, FastText
from fedmpi.settings import is_setting, make_settings

HUGE = {float: (1e39, 1e308), int: (2 ** 31, 2 ** 63, 10 ** 30)}


def classes():
    """Yield every class of settings with the path of its section."""
    for kind, section in (*((kind, name) for name, kind in NAMED.items()), ("partitions", "data.partition")):
        yield from ((registry.find_class(kind, name), section) for name in registry.list_built_in(kind))
    yield from ((cls, name) for name, cls in SECTIONS.items())
    yield Config, ""


def numbers(cls):
    """Yield the names and types of the settings of a class that are numbers, or may be."""
    for field in filter(is_setting, dataclasses.fields(cls)):
        hint = typing.get_type_hints(cls)[field.name]
        kinds = {hint, *typing.get_args(hint)} if typing.get_origin(hint) not in (tuple, typing.Literal) else {hint}
        if found := kinds & {int, float}:
            yield field.name, found.pop()


@pytest.mark.parametrize("cls, where", [pytest.param(*found, id=found[0].__name__) for found in classes()])
def test_every_number_has_a_limit(cls, where):
    needed = {"attack": {"kind": "noise"}, "stop": {"patience": 1}, "availability": {"file": "a.csv"}}.get(where, {})
    for name, kind in numbers(cls):
        for value in HUGE[kind][name == "seed":]:
            with pytest.raises(BadInput) as error:
                make_settings(cls, needed | {name: value}, where)
            # some classes compare settings with each other first
            assert f"{name} = " in str(error.value)


def refusal(values) -> str:
    with pytest.raises(BadInput) as error:
        resolve(values)
    return str(error.value)


@pytest.mark.parametrize("values, said", [
    ({"train": {"lr": 1e308}}, "train.lr = 1e+308: should be less than or equal to 3.402823466e+38 (the largest number "
     "of float32, in which training computes)"),
    ({"train": {"batch": 2 ** 63}}, "train.batch = 9223372036854775808: should be less than or equal to 2147483647 "
     "(positions and counts are 32-bit integers)"),
    ({"threads": 2 ** 31}, "threads = 2147483648: should be less than or equal to 1024 (a rank computes on one node)"),
    ({"method": {"name": "ifca", "k": 10 ** 9}}, "method.k = 1000000000: should be less than or equal to 4096 (the "
     "server keeps a model for each, and compares them with each other)"),
    ({"train": {"epochs": 10 ** 7}}, "train.epochs = 10000000: should be less than or equal to 1000000 (the batches of "
     "all passes are drawn before the first step)"),
    ({"data": {"partition": {"tries": 10 ** 9}}}, "data.partition.tries = 1000000000: should be less than or equal to "
     "1000000 (more draws take hours, and seek what is too rare to be found)"),
    ({"evaluate": {"embeddings": [1, 2 ** 40]}}, "evaluate.embeddings = [1, 1099511627776]: should be less than or "
     "equal to 2147483647 (positions and counts are 32-bit integers)"),
    ({"data": {"file": "a\0b"}}, "data.file = 'a\\x00b': should have no NUL character")])
def test_limits_are_told_with_their_reason(values, said):
    assert refusal(values) == said


@dataclasses.dataclass(frozen=True)
class Own:
    """Settings as a third party declares them, without any range."""
    rate: float = 1.
    count: int = 1
    pair: tuple[float, ...] = ()


@pytest.mark.parametrize("name, value, said", [
    ("rate", -1e39, "greater than or equal to -3.402823466e+38"), ("pair", [1, 1e300], "less than or equal to"),
    ("count", -2 ** 40, "greater than or equal to -2147483647")])
def test_settings_of_others_have_limits_too(name, value, said):
    with pytest.raises(BadInput, match=f"method.{name} = .*: should be {said}".replace("+", "[+]")):
        make_settings(Own, {name: value}, "method")
    assert make_settings(Own, {"rate": 3.4e38, "count": 2 ** 31 - 1}, "method").count == 2 ** 31 - 1


@pytest.fixture
def small(monkeypatch):
    """Let this machine have a mebibyte of memory."""
    monkeypatch.setattr(memory_check, "read_machine_memory", lambda: 2 ** 20)


@pytest.mark.parametrize("method, train, said", [
    ("fedavg", {"batch": 5000}, "train.batch = 5000: samples of one batch take 0.001192 GiB, and this machine has "
     "0.0009766 GiB of memory; lower it: the largest client trains on 30 samples"),
    ("fedavg", {"epochs": 9000}, "train.epochs = 9000: the positions in the batches of the largest client take"),
    ("fedavg", {"steps": 90_000}, "train.steps = 90000: the positions in the batches of a client take"),
    ({"name": "fedbabu", "ft": 9000}, {}, "method.ft = 9000: the positions"),
    ({"name": "ifca", "k": 300}, {}, "method.k = 300: as many models of 1,000 parameters take")])
def test_what_does_not_fit_this_machine_is_refused_before_it_is_made(small, method, train, said):
    config = resolve({"method": method, "train": train})
    with pytest.raises(BadInput) as error:
        memory_check.refuse_large_method(config.method, 1000, config.train, 30, 64)
    assert str(error.value).startswith(said)
    memory_check.refuse_large_method(resolve({}).method, 1000, resolve({}).train, 30, 64)


def test_a_network_that_does_not_fit_is_not_built():
    with pytest.raises(BadInput, match=r"model: the network's 75,000,000,000,010 parameters take 279,397 GiB, .* "
                                       "choose a smaller one"):
        build_model(MLP(hidden=10 ** 12), (64,), "float32", 10, 0)
    with pytest.raises(BadInput, match="model: no tensor can be as large .* choose a smaller network"):
        build_model(FastText(width=2 ** 31 - 1), (8,), "int32", 4, 0)


def test_a_long_search_for_a_division_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(allocation, "REPORT_S", 0.)
    found = allocation.redraw_until_large(np.array([5, 5]), 10, .1, 2, 130, np.random.default_rng(0))
    assert found[0] is None
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == ("data.partition: 64 of 130 draws so far; in the best one the smallest of 10 clients had 0 of 2 "
                        "samples") and len(lines) >= 2


def test_epochs_that_steps_replace_need_no_memory(monkeypatch):
    monkeypatch.setattr(memory_check, "read_machine_memory", lambda: 10_000)
    train = resolve({"train": {"epochs": 100, "steps": 200}}).train
    # 30 samples are three batches of ten; 200 steps in place of 100 epochs are two steps in place of one.
    memory_check.refuse_large_method(resolve({}).method, 100, train, 30, 64)
    method = resolve({"method": {"name": "fedrep", "head_epochs": 100}}).method
    memory_check.refuse_large_method(method, 100, train, 30, 64)
    method = resolve({"method": {"name": "fedrep", "head_epochs": 200}}).method
    with pytest.raises(BadInput, match="method.head_epochs = 200: the positions in the batches of the largest client"):
        memory_check.refuse_large_method(method, 100, train, 30, 64)
