"""The contents of the lists, which no plug-in can break."""
from __future__ import annotations

import json
from functools import partial

import pytest
from torch import nn

from fedmpi import registry
from fedmpi.commands import catalogue
from fedmpi.errors import BadInput
from fedmpi.settings import list_setting_names
from fedmpi.settings_table import describe_settings


class Single(nn.Linear):
    """A network of a single width."""


small = partial(Single, 4, 2)
KINDS = ("methods", "models", "datasets", "partitions")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


class Entry:
    """An entry point of an installed plug-in."""
    group = "fedmpi.methods"

    def __init__(self, name, load):
        self.name, self.load = name, load


@pytest.fixture
def plug_in(monkeypatch):
    """Make `plug_in(name, load)` install an entry point for a method."""
    installed = []

    def entry_points(group, name=None):
        return [e for e in installed if e.group == group and name in (None, e.name)]
    monkeypatch.setattr(registry, "entry_points", entry_points)
    return lambda name, load: installed.append(Entry(name, load))


def broken():
    raise ImportError("no module named nowhere")


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_has_an_entry_that_json_can_hold(kind):
    for name in catalogue.list_names(kind):
        found = catalogue.describe_entry(kind, name)
        assert found["name"] == name and found["title"] and found["summary"]
        json.dumps(found, default=str)


@pytest.mark.parametrize("name", catalogue.list_names("methods"))
def test_a_method_is_told_by_its_own_file(name):
    found, text = catalogue.describe_entry("methods", name), catalogue.explain("methods", name)
    assert found["paper"] and found["judged_by"]
    assert text.startswith(f"{found['title']} ({name})\n\n{found['summary'].split()[0]}")
    for setting in list_setting_names(registry.find_class("methods", name)):
        assert f"\n{setting} " in text and f"\n      {setting}:" in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [80, 120])
def test_a_list_has_a_row_per_name_and_keeps_to_the_width(kind, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = catalogue.list_kind(kind).splitlines()
    assert max(map(len, lines)) <= columns
    first = [line.partition(" ")[0] for line in lines]
    assert [word for word in first if word in catalogue.list_names(kind)] == catalogue.list_names(kind)


@pytest.mark.parametrize("name, down, up", [
    ("fedavg", "P", "P"), ("fedmhc", "P + 3h", "P"), ("fedah", "P", "P"), ("local", "nothing", "nothing")])
def test_a_method_says_what_a_round_sends(name, down, up):
    found = catalogue.describe_entry("methods", name)
    assert (found["down"], found["up"]) == (down, up)
    said = " ".join(catalogue.explain("methods", name).split())
    assert f"a participant receives {down} and sends {up}, in float32" in said


def test_a_method_whose_traffic_is_no_such_sum_says_where_it_is_shown():
    said = " ".join(catalogue.explain("methods", "fedcr").split())
    assert "a round what a participant receives and sends depends on further sizes; `fedmpi plan CONFIG` shows" in said
    assert "?" not in said.partition("a round")[2].partition("setting")[0]


def test_a_listing_has_its_heads_and_says_what_they_mean():
    text = catalogue.list_kind("methods")
    assert text.splitlines()[0].split() == ["name", "title", "paper", "evaluated", "model", "down", "up"]
    rows = {line.split()[0]: line for line in text.splitlines()[2:] if line[:1] not in " -"}
    assert rows["fedavg"].split()[1] == "FedAvg" and rows["fedavg"].split()[-2:] == ["P", "P"]
    said = " ".join(text.rpartition("\n\n")[2].split())
    assert said == ("down, up: what a participant receives and sends in a round, in float32 numbers (P: the model, h: "
                    "its head), with the default settings and 20 clients; ?: not a sum of these, see `fedmpi plan`. "
                    "`fedmpi methods NAME` explains one and lists its settings.")
    assert catalogue.list_kind("models").endswith("\n\n`fedmpi models NAME` explains one and lists its settings.")
    assert catalogue.list_kind("models").splitlines()[0].split() == ["name", "what", "it", "is"]


def test_the_command_line_shows_no_more_than_a_setting_of_a_method_and_two_of_data():
    said = {name: catalogue.explain(kind, name).rpartition("\n\non the command line: ")[2]
            for kind, name in (("methods", "fedmhc"), ("datasets", "femnist"))}
    assert len(said["fedmhc"].split()) == 2
    assert said["femnist"] == "data.name=femnist data.file=leaf/data/femnist/data data.partition=natural"


@pytest.mark.parametrize("kind, name, words", [
    ("methods", "fedprox", "method=fedprox method.weights=samples"), ("models", "mlp", "model=mlp model.hidden=64"),
    ("datasets", "digits", "data.name=digits"), ("datasets", "arrays", "data.name=arrays data.file=mine.npz"),
    ("partitions", "iid", "data.partition=iid")])
def test_how_a_name_is_written_on_the_command_line(kind, name, words):
    assert catalogue.explain(kind, name).rpartition("\n\non the command line: ")[2].startswith(words)


def test_a_method_of_which_no_client_can_be_rehearsed_has_no_law():
    assert catalogue.describe_traffic(int) == ("?", "?")
    assert [catalogue.format_term(f, letter) for f, letter in ((1, "P"), (-1, "h"), (3, "P"), (-4, ""), (1, ""))] == [
        "+ P", "- h", "+ 3P", "- 4", "+ 1"]


def test_a_law_is_written_only_where_it_holds():
    sizes = [(23, 8), (29, 8), (37, 12), (62, 14)]
    assert catalogue.fit_law(sizes, [p - h for p, h in sizes]) == "P - h"
    assert catalogue.fit_law(sizes, [2 * p + 5 * h + 7 for p, h in sizes]) == "2P + 5h + 7"
    assert catalogue.fit_law(sizes, [0] * 4) == "nothing"
    assert catalogue.fit_law(sizes, [p * p for p, _ in sizes]) == "?"
    assert catalogue.fit_law(sizes, [p / 2 for p, _ in sizes]) == "?"


def test_the_settings_table_agrees_with_describe():
    text = catalogue.explain("partitions", "dirichlet")
    for setting in describe_settings(registry.find_class("partitions", "dirichlet")):
        row = next(line for line in text.splitlines() if line.startswith(setting["name"] + " "))
        assert catalogue.format_scalar(setting["default"]) in row and catalogue.format_values(setting) in row


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in KINDS for name in catalogue.list_names(kind)])
def test_the_yaml_that_is_shown_is_a_configuration(kind, name):

    from fedmpi.config.load import parse_yaml
    from fedmpi.config.schema import resolve
    shown = catalogue.explain(kind, name).partition("in a configuration:\n\n")[2].partition("\n\n")[0]
    resolve(parse_yaml(shown))


@pytest.mark.parametrize("kind, wrong, right", [
    ("methods", "fedmch", "fedmhc"), ("models", "cnn", "cnn4"), ("datasets", "cifar", "cifar10"),
    ("partitions", "dirichlett", "dirichlet")])
def test_an_unknown_name_is_refused_with_the_nearest(kind, wrong, right):
    with pytest.raises(BadInput, match=f"{kind[:-1]} '{wrong}' is not known.*Did you mean {right}"):
        catalogue.describe_entry(kind, wrong)


def test_a_plug_in_is_listed_with_the_others(plug_in):
    plug_in("theirs", lambda: registry.find_class("methods", "fedavg"))
    assert catalogue.list_names("methods")[-1] == "theirs"
    assert "theirs" in catalogue.list_kind("methods")
    assert catalogue.describe_entry("methods", "theirs")["title"] == "FedAvg"


def test_a_broken_plug_in_is_listed_with_its_error(plug_in, monkeypatch):
    monkeypatch.setenv("COLUMNS", "350")
    plug_in("theirs", broken)
    row = next(line for line in catalogue.list_kind("methods").splitlines() if line.startswith("theirs"))
    why = (f"'theirs' is a plug-in that cannot be loaded: tests/commands/test_catalogue.py:"
           f"{broken.__code__.co_firstlineno + 1}: ImportError: no module")
    assert why in row
    with pytest.raises(BadInput, match=why):
        catalogue.explain("methods", "theirs")


def test_a_name_twice_is_listed_once(plug_in):
    plug_in("fedavg", broken)
    assert catalogue.list_names("methods").count("fedavg") == 1
    assert catalogue.describe_entry("methods", "fedavg")["title"] == "FedAvg"


@pytest.mark.parametrize("kind, name, wanted", [
    ("methods", "torch.nn:Linear", "a class derived from fedmpi.method.Method"), ("methods", "json:loads", "a class"),
    ("models", "json:loads", "a class of networks"), ("models", "os:path", "a class of networks"),
    ("datasets", "torch.nn:Linear", "a class with a function `load`"),
    ("partitions", "torch.nn:Linear", "a class with a function `assign`")])
def test_a_name_of_something_else_is_refused(kind, name, wanted):
    with pytest.raises(BadInput, match=f"{kind[:-1]} '{name}' is not {wanted}"):
        catalogue.explain(kind, name)


def test_any_class_of_networks_is_explained():
    assert catalogue.describe_entry("models", "torch.nn:Linear")["title"] == "Linear"


def test_a_partial_is_explained_by_what_it_calls():
    said = catalogue.explain("models", "tests.commands.test_catalogue:small")
    assert said.startswith("tests.commands.test_catalogue:small\n\nA network of a single width.\n\nin a configuration")
