"""What there is: methods, models, data sets and partitions, built in or from plug-ins, each with its settings."""
from __future__ import annotations

import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from fedmpi import registry
from fedmpi.config.data_settings import Data
from fedmpi.config.source_settings import refuse_taken_settings
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.json_values import JsonObject
from fedmpi.own_code.failures import blame_own_code
from fedmpi.settings import list_setting_names, refuse_unfit_class
from fedmpi.settings_table import describe_settings
from fedmpi.text import format_columns, format_pairs, wrap_paragraphs

if TYPE_CHECKING:
    from fedmpi.method import Method

# The traffic of methods is given for a federation of so many clients.
TABLE_CLIENTS = 20
TRAFFIC_UNITS = f"in float32 numbers (P: the model, h: its head), with the default settings and {TABLE_CLIENTS} clients"
# What stands for numbers that are no sum of these.
UNKNOWN_TRAFFIC = "?"
# (features, hidden units) of networks: three of them fix the law of a method's traffic, the last one tests it.
TRAFFIC_PROBES = ((4, 3), (6, 3), (4, 5), (7, 6))
KIND_COLUMNS = {"methods": ["name", "title", "paper", "evaluated model", "down", "up"],
                "models": ["name", "what it is"], "datasets": ["name", "title", "what it is"],
                "partitions": ["name", "what it is"]}
PLACES = {"methods": "method", "models": "model", "datasets": "data", "partitions": "data.partition"}
# Head of a column -> key of an entry.
KEYS = {"evaluated model": "judged_by", "what it is": "summary"}


def list_names(kind: str) -> list[str]:
    """List the names of a kind: methods, models, datasets or partitions."""
    return list(dict.fromkeys(registry.list_available(kind)))


def describe_entry(kind: str, name: str) -> JsonObject:
    """Return name, title, summary and settings of an entry; of a method also paper, judged_by, newcomers, down, up.

    Raises BadInput for a name that is not known, and for a plug-in that cannot be loaded."""
    cls = registry.find_class(kind, name)
    refuse_other_kind(kind, name, cls)
    with blame_own_code(f"{kind[:-1]} {name!r}", always=name not in registry.list_built_in(kind)):
        refuse_unfit_class(cls, f"{kind[:-1]} {name!r}")
        taken = list_setting_names(Data) if kind == "datasets" else ("name",)
        refuse_taken_settings(cls, f"{kind[:-1]} {name!r}", taken)
        found = {"name": name, "title": getattr(cls, "title", "") or getattr(cls, "__name__", name),
                 "summary": " ".join(read_documentation(kind, cls).partition("\n\n")[0].split())}
        if kind == "methods":
            down, up = describe_traffic(cls)
            method: type[Method] = cls
            found |= {"paper": method.paper, "judged_by": method.judged_by,
                      "newcomers": method.serves_newcomers or "cannot be served", "down": down, "up": up}
        return found | {"settings": describe_settings(cls) if dataclasses.is_dataclass(cls) else []}


def refuse_other_kind(kind: str, name: str, cls: object) -> None:
    """Raise BadInput if what the name of something that is not built in leads to is nothing of that kind."""
    from fedmpi.method import Method
    from fedmpi.models.nets import makes_networks
    fits = {"methods": lambda: isinstance(cls, type) and issubclass(cls, Method),
            "models": lambda: makes_networks(cls) or hasattr(cls, "build"),
            "datasets": lambda: hasattr(cls, "load"), "partitions": lambda: hasattr(cls, "assign")}
    wanted = {"methods": "a class derived from fedmpi.method.Method", "models": "a class of networks",
              "datasets": "a class with a function `load`", "partitions": "a class with a function `assign`"}
    if name not in registry.list_built_in(kind) and not fits[kind]():
        raise BadInput(f"{kind[:-1]} {name!r} is not {wanted[kind]}")


def read_documentation(kind: str, cls: Callable[..., object]) -> str:
    """Return the class's docstring; a built-in method is documented by its file."""
    # A partial has the documentation of functools.
    if isinstance(cls, partial):
        cls = cls.func
    module, own = sys.modules[cls.__module__].__doc__ or "", cls.__doc__ or ""
    # dataclass writes a docstring if there is none.
    if own.startswith(f"{cls.__name__}("):
        own = ""
    if kind == "methods":
        own = module if cls.__module__.startswith("fedmpi.methods.") else own or module
    return inspect.cleandoc(own)


def list_kind(kind: str) -> str:
    """Return the table of a kind. A plug-in that cannot be loaded is listed with its error."""
    rows = []
    for name in list_names(kind):
        try:
            found = describe_entry(kind, name)
        except FedmpiError as error:
            found = {"name": name, "paper": str(error), "summary": str(error)}
        rows.append([found.get(KEYS.get(head, head), "") for head in KIND_COLUMNS[kind]])
    hint = f"`fedmpi {kind} NAME` explains one and lists its settings."
    if kind == "methods":
        hint = (f"down, up: what a participant receives and sends in a round, {TRAFFIC_UNITS}; {UNKNOWN_TRAFFIC}: "
                f"not a sum of these, see `fedmpi plan`. {hint}")
    return f"{format_columns(KIND_COLUMNS[kind], rows)}\n\n{wrap_paragraphs(hint)}"


def explain(kind: str, name: str) -> str:
    """Return all that is known of one: its documentation, its settings, and how to write it in a configuration."""
    found = describe_entry(kind, name)
    title = found["title"] if found["title"] == name else f"{found['title']} ({name})"
    parts = [title, wrap_paragraphs(read_documentation(kind, registry.find_class(kind, name)))]
    if kind == "methods":
        exchanged = (f"a participant receives {found['down']} and sends {found['up']}, {TRAFFIC_UNITS}"
                     if UNKNOWN_TRAFFIC not in (found["down"], found["up"]) else
                     "what a participant receives and sends depends on further sizes; `fedmpi plan CONFIG` shows it")
        parts.append(format_pairs([("paper", found["paper"]), ("evaluated model", found["judged_by"]),
                                   ("new clients", found["newcomers"]), ("a round", exchanged)]))
    if found["settings"]:
        parts.append(format_setting_rows(found["settings"]))
    return "\n\n".join([*filter(None, parts), show_usage(kind, found)])


def format_setting_rows(rows: list[JsonObject]) -> str:
    """Return the table of what `describe_settings` found."""
    return format_columns(["setting", "default", "values", "meaning"], [
        [row["name"], "required" if row["required"] else format_scalar(row["default"]), format_values(row), row["help"]]
        for row in rows])


def format_values(row: JsonObject) -> str:
    """Return the type of a setting with its range, such as `float > 0 or null`."""
    base, null, _ = row["type"].partition(" or null")
    return f"{base} {row['allowed']}".rstrip() + null


def show_usage(kind: str, found: JsonObject) -> str:
    """Show how a configuration and a command line name it, with the defaults."""
    name, settings = found["name"], {s["name"]: s["default"] for s in found["settings"]}
    settings = getattr(registry.find_class(kind, name), "example", settings)
    section, path = {"name": name, **settings}, PLACES[kind]
    for key in reversed(path.split(".")):
        section = {key: section}
    pieces = [f"{path}{'.name' if kind == 'datasets' else ''}={name}",
              *(f"{path}.{key}={format_scalar(value)}" for key, value in settings.items())]
    shown = " ".join(pieces[:3 if kind == "datasets" else 2])
    return f"in a configuration:\n\n{indent_section(section)}\n\non the command line: {shown}"


def indent_section(section: JsonObject) -> str:
    """Return a section as YAML, indented by four blanks."""
    from fedmpi.config.load import format_yaml
    return textwrap.indent(format_yaml(section).rstrip(), "    ")


def format_scalar(value: object) -> str:
    """Write a setting's value as YAML does."""
    from fedmpi.config.load import format_yaml
    return format_yaml(value, in_one_line=True)


@cache
def describe_traffic(cls: type) -> tuple[str, str]:
    """Return what a participant receives and sends in a round, as laws in P and h; UNKNOWN_TRAFFIC if there is none."""
    try:
        probes = [count_exchanged(cls, *sizes) for sizes in TRAFFIC_PROBES]
    # A method of a third party may want other samples, or have settings without defaults.
    except Exception:
        return UNKNOWN_TRAFFIC, UNKNOWN_TRAFFIC
    return fit_law([p[:2] for p in probes], [p[2] for p in probes]), fit_law([p[:2] for p in probes],
                                                                             [p[3] for p in probes])


def count_exchanged(cls: type, features: int, hidden: int) -> tuple[int, int, float, float]:
    """Return P, h, and how many float32 numbers a client receives and sends, from a dry run of a small network."""
    import torch

    from fedmpi.engines.rehearsal import rehearse_loop
    from fedmpi.models.build import build_model
    from fedmpi.models.nets import MLP
    method = cls().with_model(build_model(MLP(hidden), (features,), "float32", 2, 0))
    shared, mine = method.init(TABLE_CLIENTS)
    up = rehearse_loop(method, shared, mine, torch.zeros(1, features))[1]
    down, up = method.traffic(shared, up)
    return method.model.size, method.model.head.size, down / 4, up / 4


def fit_law(sizes: list[tuple[int, int]], numbers: list[float]) -> str:
    """Write numbers as a P + b h + c, given (P, h) of each."""
    import numpy as np
    known = np.array([(*pair, 1) for pair in sizes], float)
    factors = np.rint(np.linalg.lstsq(known, np.array(numbers), rcond=None)[0])
    if not np.array_equal(known @ factors, numbers):
        return UNKNOWN_TRAFFIC
    terms = [format_term(int(f), letter) for f, letter in zip(factors, ("P", "h", ""), strict=True) if f]
    return " ".join(terms).removeprefix("+ ") or "nothing"


def format_term(factor: int, letter: str) -> str:
    """Return a term of a law, such as `+ 2P`."""
    number = "" if letter and abs(factor) == 1 else abs(factor)
    return f"{'-' if factor < 0 else '+'} {number}{letter}"
