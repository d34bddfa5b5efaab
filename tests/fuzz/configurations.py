"""Configurations: every setting inside, at and beyond its bounds, of wrong types, under wrong names, and odd YAML."""
from __future__ import annotations

import copy
import json
import random
import typing
from functools import cache
from pathlib import Path

import yaml

from fedmpi import registry
from fedmpi.config import schema
from fedmpi.config.load import format_yaml
from fedmpi.settings import list_setting_names
from tests.fuzz.case import Case
from tests.fuzz.reference import CONFIG, Reference
from tests.fuzz.values import TEXTS, hostile, near, plausible, word

# Texts that are not a valid configuration, or hardly one. A number repeats the text before it so many times.
TEXTS_OF_FILES = (
    b"", b"[]", b"0", b"false", b"''", b"~", b"---\n---\n", b"a: 1\na: 2", b"\xff\xfe", b"\xef\xbb\xbfrounds: 1",
    b"\t- x", "rounds: 1".encode("utf-16"), b"rounds: \xe9", b"rounds: 0o7", b"rounds: 1:30", b"rounds: 010",
    b"rounds: !!int '3'", b"rounds: !!binary x", b"!!python/object/apply:os.getpid []", b"? [a, b]\n: 1", b"&a [*a]",
    b"a: &a\n  <<: *a", b"rounds: .nan", b"rounds: !!float nan", b"{" * 5000, b"- " * 5000, b"[" * 300 + b"]" * 300,
    b"\0", b"a: \x1b[31m", b"\x1b[31m: 1", b"seed: 99999999999999999999", b"rounds: 1e0", b"rounds: 1_0",
    b"!!set {a, b}", b"!!omap [a: 1]", b"data: !!str {}", b"rounds: !<tag:yaml.org,2002:int> 1",
    b"%YAML 9.9\n---\na: 1", b"a: 2001-01-01", b"'", b"\"\\x\"", b"x: &x [1]\ny: [" + b"*x," * 30000 + b"1]",
    b"#" * 2**21, b"method: {name: [fedavg]}", b"data: null", b"data: []", b"model: 3", b"method: null", b"model: ''",
    b"data: {partition: null}", b"data: {partition: 3}", b"method: fedavg:", b"train: {lr: 1e-3, lr: 2}",
    b"rounds: 1\n...\nrounds: 2", b"<<: {rounds: 1}", b"<<: 3", b"1: 2", b"null: 3", b"[a]: 3", b"{a: b}: 3",
    b"a.b: 3", b"train.lr: 3", b"True: 1", b"? ", b"!!null x", b"!!bool maybe", b"=: 3")
COMMANDS = ("run", "run", "run", "run", "run", "run", "plan", "data", "submit")


def build(draw: random.Random, folder: Path, reference: Reference) -> Case:
    """Write a configuration; return the case of a command that reads it."""
    config, words, what = copy.deepcopy(CONFIG) | {"rounds": 1}, [], []
    if draw.random() < .12:
        text = draw.choice(TEXTS_OF_FILES)
        what.append(f"file {text[:30]!r}")
    else:
        config["method"] = {"name": draw.choice(sorted(registry.list_built_in("methods")))}
        config["engine"] = draw.choice(["loop", "loop", "loop", "auto", "vmap"])
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            path, value = change(draw, config)
            what.append(f"{'.'.join(path)} = {value!r:.60}")
            # A surrogate has no YAML; a command line may have one.
            if draw.random() < .3 and all("=" not in part for part in path):
                words.append(word(draw, f"{'.'.join(path)}={write(value)}"))
            else:
                put(config, path, value)
        text = write(config).encode(errors="replace")
    (folder / "c.yaml").write_bytes(text)
    command = draw.choice(COMMANDS)
    more = {"run": ["--out", "out"], "submit": ["--dry-run"]}.get(command, [])
    return Case(f"{command}: {', '.join(what)}", [[command, "c.yaml", *words, *more]])


def write(value: object) -> str:
    """Return a value as YAML, or as JSON if YAML cannot hold it."""
    try:
        return format_yaml(value, in_one_line=True)
    except (yaml.YAMLError, UnicodeError):
        return json.dumps(value)


def put(config: dict, path: tuple[str, ...], value: object) -> None:
    """Set a value in nested mappings."""
    *sections, last = path
    for name in sections:
        inner = config.get(name)
        config[name] = inner if isinstance(inner, dict) else {"name": inner} if isinstance(inner, str) else {}
        config = config[name]
    config[last] = value


def change(draw: random.Random, config: dict) -> tuple[tuple[str, ...], object]:
    """Return a setting and a new value for it."""
    path, hint = draw.choice(list_settings())
    how = draw.random()
    # Settings of the classes that have a name; half of all changes are there.
    if how < .5:
        kind, where = draw.choice([("methods", ("method",)), ("methods", ("method",)), ("models", ("model",)),
                                   ("partitions", ("data", "partition"))])
        as_it_is = where == ("method",) and isinstance(config["method"], dict)
        name = config["method"].get("name", "ditto") if as_it_is else draw.choice(
            sorted(registry.list_built_in(kind)))
        path, hint = (*where, "name"), str
        cls = registry.find_class(kind, name if isinstance(name, str) and name in registry.list_built_in(kind)
                                  else "iid") if kind == "partitions" else find(kind, name)
        if cls and (own := hints_of(cls)):
            put(config, path, name)
            setting, hint = draw.choice(own)
            path = (*where, setting)
        else:
            return path, draw.choice([*TEXTS, near(draw, str(name)), name])
    how = draw.random()
    if how < .1:
        *sections, last = path
        return (*sections, near(draw, last)), plausible(draw, hint, last)
    if how < .15:
        return path[:1], hostile(draw)
    return path, hostile(draw) if how < .4 else plausible(draw, hint, path[-1])


def find(kind: str, name: object) -> type | None:
    """Return a built-in class, None for any other name."""
    return registry.find_class(kind, name) if isinstance(name, str) and name in registry.list_built_in(kind) else None


@cache
def hints_of(cls: type) -> list[tuple[str, object]]:
    """Return the settings of a class with their types."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [(name, hints[name]) for name in list_setting_names(cls)]


@cache
def list_settings() -> list[tuple[tuple[str, ...], object]]:
    """Return the path and the type of every setting outside of the classes that have a name."""
    found = [((name,), hint) for name, hint in hints_of(schema.Config) if name not in schema.SECTIONS]
    for section, cls in schema.SECTIONS.items():
        found += [((section, name), hint) for name, hint in hints_of(cls)]
    return found
