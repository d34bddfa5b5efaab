"""What there is: methods, models, data sets and partitions, built in or from plug-ins, each with its settings."""
from __future__ import annotations

import dataclasses
import inspect
import sys
from functools import cache

from fedmpi import registry
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.settings import describe
from fedmpi.text import format_columns, pairs, paragraphs

CLIENTS = 20                                          # for which the methods' traffic is given
UNITS = f"in float32 numbers (P: the model, h: its head), with the default settings and {CLIENTS} clients"
TRAFFIC_PROBES = ((4, 3), (6, 3), (4, 5), (7, 6))  # features, hidden units: three fix a law, the last one tests it
HEADS = {"methods": ["name", "title", "paper", "judged by", "down", "up"], "models": ["name", "what it is"],
         "datasets": ["name", "title", "what it is"], "partitions": ["name", "what it is"]}
PLACES = {"methods": "method", "models": "model", "datasets": "data", "partitions": "data.partition"}
KEYS = {"judged by": "judged_by", "what it is": "summary"}      # head of a column -> key of an entry


def names_of_kind(kind: str) -> list[str]:
    """List the names of a kind: methods, models, datasets or partitions."""
    return list(dict.fromkeys(registry.available(kind)))


def entry(kind: str, name: str) -> dict:
    """Return what is known of one: name, title, summary, settings; of a method also paper, judged_by, down and up.

    Raises BadInput for a name that is not known, and for a plug-in that cannot be loaded."""
    cls = loaded(kind, name)
    found = {"name": name, "title": getattr(cls, "title", "") or cls.__name__,
             "summary": " ".join(documentation(kind, cls).partition("\n\n")[0].split())}
    if kind == "methods":
        down, up = traffic(cls)
        found |= {"paper": cls.paper, "judged_by": cls.judged_by, "down": down, "up": up}
    return found | {"settings": describe(cls) if dataclasses.is_dataclass(cls) else []}


def loaded(kind: str, name: str) -> type:
    """Return the class of that name. Raises BadInput if it is not known, or cannot be loaded."""
    try:
        return registry.find_class(kind, name)
    except FedmpiError:
        raise
    # A plug-in may raise anything.
    except Exception as error:
        raise BadInput(f"{kind[:-1]} {name!r} is a plug-in that cannot be loaded: {type(error).__name__}: {error}; "
                       "repair or uninstall its package") from error


def documentation(kind: str, cls: type) -> str:
    """Return the class's docstring; a built-in method is documented by its file."""
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
    for name in names_of_kind(kind):
        try:
            found = entry(kind, name)
        except FedmpiError as error:
            found = {"name": name, "paper": str(error), "summary": str(error)}
        rows.append([found.get(KEYS.get(head, head), "") for head in HEADS[kind]])
    hint = f"`fedmpi {kind} NAME` explains one and lists its settings."
    legend = f"down, up: what a participant receives and sends in a round, {UNITS}. " if kind == "methods" else ""
    return f"{format_columns(HEADS[kind], rows)}\n\n{paragraphs(legend + hint)}"


def explain(kind: str, name: str) -> str:
    """Return all that is known of one: its documentation, its settings, and how to write it in a configuration."""
    found = entry(kind, name)
    title = found["title"] if found["title"] == name else f"{found['title']} ({name})"
    parts = [title, paragraphs(documentation(kind, registry.find_class(kind, name)))]
    if kind == "methods":
        parts.append(pairs([("paper", found["paper"]), ("judged by", found["judged_by"]),
                            ("a round", f"a participant receives {found['down']} and sends {found['up']}, {UNITS}")]))
    if found["settings"]:
        parts.append(format_columns(["setting", "default", "type", "meaning"], [
            [s["name"], scalar(s["default"]), s["type"], s["help"]] for s in found["settings"]]))
    return "\n\n".join([*filter(None, parts), usage(kind, found)])


def usage(kind: str, found: dict) -> str:
    """Show how a configuration and a command line name it, with the defaults."""
    name, settings = found["name"], {s["name"]: s["default"] for s in found["settings"]}
    if name == "arrays":
        settings = {"file": "mine.npz"}
    section, path = {"name": name, **settings}, PLACES[kind]
    for key in reversed(path.split(".")):
        section = {key: section}
    pieces = [f"{path}{'.name' if kind == 'datasets' else ''}={name}",
              *(f"{path}.{key}={scalar(value)}" for key, value in settings.items())]
    return f"in a configuration:\n\n{indented(section)}\n\non the command line: {' '.join(pieces[:2])}"


def indented(section: dict) -> str:
    """Return a section as YAML, indented by four blanks."""
    import yaml
    text = yaml.safe_dump(section, sort_keys=False)
    return "\n".join("    " + line for line in text.rstrip().splitlines())


def scalar(value: object) -> str:
    """Write a setting's value as YAML does."""
    import yaml
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


@cache
def traffic(cls: type) -> tuple[str, str]:
    """Return what a participant receives and sends in a round, as laws in P and h; "?" if there is no such law."""
    try:
        probes = [exchanged(cls, *sizes) for sizes in TRAFFIC_PROBES]
    # A method of a third party may want other samples, or have settings without defaults.
    except Exception:
        return "?", "?"
    return law([p[:2] for p in probes], [p[2] for p in probes]), law([p[:2] for p in probes], [p[3] for p in probes])


def exchanged(cls: type, features: int, hidden: int) -> tuple[int, int, float, float]:
    """Return P, h, and how many float32 numbers a client receives and sends, from a dry run of a small network."""
    import torch

    from fedmpi.engines.loop import rehearse_loop
    from fedmpi.models.build import build_model
    from fedmpi.models.nets import MLP
    method = cls().with_model(build_model(MLP(hidden), (features,), "float32", 2, 0))
    shared, mine = method.init(CLIENTS)
    up = rehearse_loop(method, shared, mine, torch.zeros(1, features))[1]
    down, up = method.traffic(shared, up)
    return method.model.size, method.model.head.size, down / 4, up / 4


def law(sizes: list[tuple[int, int]], numbers: list[float]) -> str:
    """Write numbers as a P + b h + c, given (P, h) of each."""
    import numpy as np
    known = np.array([(*pair, 1) for pair in sizes], float)
    factors = np.rint(np.linalg.lstsq(known, np.array(numbers), rcond=None)[0])
    if not np.array_equal(known @ factors, numbers):
        return "?"
    terms = [term(int(f), letter) for f, letter in zip(factors, ("P", "h", ""), strict=True) if f]
    return " ".join(terms).removeprefix("+ ") or "nothing"


def term(factor: int, letter: str) -> str:
    """Return a term of a law, such as `+ 2P`."""
    number = "" if letter and abs(factor) == 1 else abs(factor)
    return f"{'-' if factor < 0 else '+'} {number}{letter}"
