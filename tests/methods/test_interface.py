"""The interface of methods and engines: `ClientData`, and fields that `with_model` sets."""
from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from pathlib import Path

import pytest

import fedmpi.methods
from fedmpi import registry
from fedmpi.client_data import ClientData
from fedmpi.engines.dry_run import DryRunData
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.step import StepSettings
from fedmpi.engines.vmap_data import VmapData
from fedmpi.errors import BadInput
from fedmpi.settings import make_settings
from fedmpi.settings_table import describe_settings
from tests.federations import method
from tests.methods.table import NAMES

OFFERED = {name: member for name, member in vars(ClientData).items() if not name.startswith("_")}
METHODS = Path(fedmpi.methods.__file__).parent
# Fields that `with_model` derives from the network, beside `model` itself.
MADE = {"fedcps": "tail", "fedcr": "net", "fedsr": "net"}


@pytest.mark.parametrize("kind", [LoopData, VmapData, DryRunData])
def test_engines_offer_what_the_protocol_says(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    for name, member in OFFERED.items():
        assert hasattr(kind, name) or name in fields, name
        if inspect.isfunction(member) and name != "descend":
            promised, kept = (inspect.signature(f).parameters.values() for f in (member, getattr(kind, name)))
            assert [(p.name, p.default, p.kind) for p in kept] == [(p.name, p.default, p.kind) for p in promised], name
    of_steps = typing.get_type_hints(StepSettings).keys()
    kept = inspect.signature(kind.descend).parameters.keys() - {"settings"} | of_steps
    assert kept == inspect.signature(ClientData.descend).parameters.keys()


def test_methods_use_nothing_else_of_their_data():
    used = {node.attr for path in METHODS.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "data"}
    assert used and used <= set(OFFERED)


def test_everything_offered_is_explained():
    for name, member in OFFERED.items():
        assert inspect.getdoc(member), name
        for argument in list(inspect.signature(member).parameters)[1:] if name in ("descend", "scan") else ():
            assert f"{argument}:" in inspect.getdoc(member) or f"{argument}," in inspect.getdoc(member), argument


@pytest.mark.parametrize("name", NAMES)
def test_replacing_a_setting_keeps_the_network(name, mlp):
    made = method(name, mlp)
    again = dataclasses.replace(made)
    assert again == made and again is not made and again.model is mlp
    if name in MADE:
        assert getattr(again, MADE[name]) is getattr(made, MADE[name]) is not None
    settings = {row["name"] for row in describe_settings(type(made))}
    assert settings.isdisjoint({"model", "net", "tail"}) and "model" not in repr(made)


@pytest.mark.parametrize("name, setting", [("fedavg", "model"), *MADE.items()])
def test_the_network_is_no_setting(name, setting):
    with pytest.raises(BadInput, match=rf"^method\.{setting} is not a setting of Fed"):
        make_settings(registry.find_class("methods", name), {setting: None}, "method")
