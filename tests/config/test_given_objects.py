"""Classes and functions that a program gives as settings: a run finds them by their names."""
from __future__ import annotations

import dataclasses
import functools
import sys

import pytest
from torch import nn

from fedmpi.config.overrides import to_yaml_value
from fedmpi.config.schema import load_config
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg


def made_twice(title):
    @dataclasses.dataclass(frozen=True)
    class Twice(FedAvg):
        """A class that a later one takes the name of."""
    Twice.title = title
    Twice.__qualname__ = "Twice"
    return Twice


def test_an_object_whose_name_another_one_has_taken_is_refused(monkeypatch):
    """A run finds it by its name."""
    first, second = made_twice("A"), made_twice("B")
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "Twice", second, raising=False)
    assert to_yaml_value({"method": {"name": second}}) == {"method": {"name": f"{__name__}:Twice"}}
    with pytest.raises(BadInput, match=f"^Twice of {__name__} is another object now than the one that was given"):
        load_config({}, {"method": first})
    again = rf"if the module was imported again since, take it from there again \(from {__name__} import Twice\), "
    with pytest.raises(BadInput, match=again + "else give each a name of its own, or make what differs a setting"):
        load_config({}, {"evaluate": {"measures": [first]}})
    # a notebook is not imported
    monkeypatch.delattr(module, "__file__")
    with pytest.raises(BadInput, match="by their names; give each a name of its own"):
        to_yaml_value(first)
    # of what has no place in its module nothing can be said here
    monkeypatch.delattr(module, "Twice")
    assert to_yaml_value(first) == f"{__name__}:Twice"
    assert to_yaml_value(FedAvg.client) == "fedmpi.methods.fedavg:FedAvg.client"


class Mine:
    """A data set that nobody loads."""
    title = "mine"


make_wide = functools.partial(nn.Linear, 64, 10)


def test_a_class_that_is_given_for_data_is_its_name():
    named = f"{__name__}:Mine"
    for config, keywords in (({"data": Mine}, {}), ({"data": {"clients": 7}}, {"data": Mine}),
                             ({}, {"data": {"name": Mine}})):
        data = load_config(config, keywords).data
        assert data.name == named and data.clients == (7 if config and keywords else load_config({}).data.clients)


def test_a_partial_function_has_the_name_under_which_a_module_holds_it(monkeypatch):
    with pytest.raises(BadInput, match=r"Linear.*a partial function has none that is known here; give its name, as in "
                                       "model='module:mk'$"):
        load_config({}, {"model": make_wide})
    monkeypatch.setattr(sys.modules["__main__"], "mk", make_wide, raising=False)
    assert to_yaml_value({"model": make_wide}) == {"model": "__main__:mk"}
    monkeypatch.setattr(sys.modules[__name__], "mk", other := functools.partial(made_twice, "A"), raising=False)
    assert to_yaml_value([other]) == [f"{__name__}:mk"]
    # an equal one is another one, perhaps with other arguments soon
    with pytest.raises(BadInput, match="give its name"):
        to_yaml_value(functools.partial(made_twice, "A"))
