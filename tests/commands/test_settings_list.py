"""`fedmpi settings`: all settings as their classes declare them, a section, or what a word finds."""
from __future__ import annotations

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from fedmpi import registry
from fedmpi.cli import app
from fedmpi.commands import settings_list
from fedmpi.config.schema import SECTIONS, Config, load_config, to_plain
from fedmpi.json_values import flatten_settings
from fedmpi.settings import collect_marks, list_setting_names
from fedmpi.settings_table import describe_settings


@pytest.fixture
def settings(monkeypatch):
    """Make `settings(*words)` call the command; its result has exit_code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "150")
    return lambda *words: CliRunner().invoke(app, ["settings", *words])


def list_classes() -> list[type]:
    """Return all classes of settings: those of a configuration, and what its names may choose."""
    named = [registry.find_class(kind, name) for kind in ("methods", "models", "datasets", "partitions")
             for name in registry.list_built_in(kind)]
    return [Config, *SECTIONS.values(), *filter(dataclasses.is_dataclass, named)]


@pytest.mark.parametrize("cls", list_classes(), ids=lambda cls: cls.__qualname__)
def test_every_setting_has_a_description(cls):
    without = [row["name"] for row in describe_settings(cls)
               if not row["help"] and not (cls is Config and row["name"] in SECTIONS)]
    assert without == []


def test_every_section_of_the_configuration_is_listed():
    # a section is declared without a help, its class has one; dataclass writes a docstring if there is none
    assert {name for name in list_setting_names(Config) if not collect_marks(Config)[name]} == set(SECTIONS)
    assert all(cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(") for cls in SECTIONS.values())


def test_it_lists_the_settings_of_a_resolved_configuration_with_their_defaults():
    named, off = ("model", "method", "data.partition"), [n for n in SECTIONS if getattr(Config, n, ...) is None]
    resolved = {name: value for name, value in flatten_settings(to_plain(load_config({}))).items()
                if not name.startswith(tuple(f"{n}." for n in named)) and name not in off}
    rows = [row for row in settings_list.list_all_settings() if row["name"] not in named and row["section"] not in off]
    assert resolved == {row["name"]: list(row["default"]) if isinstance(row["default"], tuple) else row["default"]
                        for row in rows} and len(rows) == len(resolved)


def test_the_list_names_each_setting_and_section(settings):
    done = settings()
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    for row in settings_list.list_all_settings():
        assert any(line.startswith(f"{row['name']} ") for line in lines)
    assert "stop (left out by default): Early stopping: when a run ends before its last round." in lines
    assert "train: Local training of a client in a round." in lines
    assert "`fedmpi methods NAME`" in done.stdout


@pytest.mark.parametrize("word, expected", [
    ("server", ["server.hosts_clients", "server.reduce", "server.aggregation", "server.trim", "server.clip_norm"]),
    ("stop", ["stop.patience", "stop.on"]),
    ("participation", ["train.participation"]), ("train.lr", ["train.lr", "train.lr_decay"]),
    ("Learning_rate", ["train.lr", "train.lr_decay", "train.schedule"]), ("rounds T", ["rounds"])])
def test_a_section_or_what_a_word_finds(settings, word, expected):
    assert [row["name"] for row in json.loads(settings(word, "--json").stdout)] == expected
    shown = settings(word).stdout
    assert all(f"\n{name} " in shown for name in expected) and "\nseed " not in shown


def test_a_row_says_what_may_be_given_and_what_a_setting_means(settings):
    lines = [" ".join(line.split()) for line in settings("train").stdout.splitlines()]
    assert "train.lr 0.005 float > 0 learning rate eta" in lines
    assert ("train.steps null int >= 1 or null local steps per round, in place of `epochs`, over as many epochs"
            in " ".join(lines))
    assert any(line.startswith("train.augment [] list of crop|flip ") for line in lines)
    assert any(line.startswith("stop.patience required int >= 1 ")
               for line in (" ".join(line.split()) for line in settings("stop").stdout.splitlines()))
    row = next(row for row in json.loads(settings("--json").stdout) if row["name"] == "train.momentum")
    assert row == {"name": "train.momentum", "section": "train", "type": "float", "allowed": ">= 0, <= 0.9999",
                   "default": 0., "required": False, "help": "momentum of local SGD, reset every round"}


@pytest.mark.parametrize("word, name", [
    ("early stopping", "stop.patience"), ("early_stopping", "stop.patience"), ("batch size", "train.batch"),
    ("scheduler", "train.schedule"), ("warmup", "train.warm_up"), ("gradient-clipping", "train.clip_norm"),
    ("dropout", "faults.drop"), ("num_clients", "data.clients"), ("Random seed", "seed"),
    ("heartbeat", "comm.timeout"), ("client selection", "train.sampling"), ("pretrained", "")])
def test_the_words_of_papers_and_other_programs_find_settings(settings, word, name):
    done = settings(word, "--json")
    assert name in [row["name"] for row in json.loads(done.stdout)] if name else "model.start=FILE" in done.stderr


def test_other_words_are_those_of_settings():
    assert set(settings_list.OTHER_WORDS) <= {row["name"] for row in settings_list.list_all_settings()}


@pytest.mark.parametrize("word, message", [
    ("-", "fedmpi: no setting has '-' in its name or its meaning; `fedmpi settings` lists all\n"),
    ("partcipation", "`fedmpi settings` lists all, did you mean train.participation?\n"),
    ("num_workers", "the launcher says how many ranks a run has: `mpiexec -n 5 fedmpi run CONFIG`\n"),
    ("nothing", "fedmpi: no setting has 'nothing' in its name or its meaning; `fedmpi settings` lists all\n"),
    ("fedmhc", "`fedmpi settings` lists all, `fedmpi methods fedmhc` lists those of this method\n"),
    ("n_class", "`fedmpi partitions n_class` lists those of this partition\n")])
def test_a_word_that_finds_nothing(settings, word, message):
    for words in ([word], [word, "--json"]):
        done = settings(*words)
        assert (done.exit_code, done.stdout) == (2, "") and done.stderr.endswith(message)
