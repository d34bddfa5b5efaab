"""`fedmpi bench NAME key=value ...`: run one benchmark on all ranks, print its table, write its JSON."""
from __future__ import annotations

import importlib
import inspect
import json
import sys

from fedmpi.bench.plot import plot
from fedmpi.config.load import parse
from fedmpi.errors import BAD_INPUT, BadInput, FedmpiError

NAMES = ("overhead", "engines", "collectives", "cohort", "scaling", "clustering", "similarity", "clients", "traffic",
         "exactness")


def main(name: str, settings: list[str], to: str | None, picture: str | None) -> int:
    from fedmpi.comm.launcher import speaks
    from fedmpi.comm.transport import open_world
    try:
        world = open_world()
        measure, chosen = find(name, settings)
        found = measure(world, **chosen)
    except BadInput as error:      # on all ranks
        if speaks():
            print(f"fedmpi: {error}", file=sys.stderr)
        return BAD_INPUT
    except FedmpiError as error:      # on one
        world.fail(f"fedmpi: {error}", error.code)
    if world.rank == 0:
        print(table(found))
        if to:
            with open(to, "w") as file:
                json.dump(found, file, indent=1)
        if picture:
            plot(found, picture)
    world.close()
    return 0


def find(name: str, settings: list[str]):
    """Return a benchmark's function and its checked arguments."""
    if name not in NAMES:
        raise BadInput(f"benchmark {name!r} is not known; there are {', '.join(NAMES)}")
    measure = importlib.import_module(f"fedmpi.bench.{name}").measure
    known = {p.name: p.default for p in list(inspect.signature(measure).parameters.values())[1:]}
    chosen = {}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in known:
            raise BadInput(f"{key!r} is not a setting of bench {name}; its settings are "
                           + ", ".join(f"{k}={v}" for k, v in known.items()))
        try:
            chosen[key] = parse(value)
        except ValueError:
            raise BadInput(f"{key} = {value}: the value is not valid YAML") from None
        if not isinstance(chosen[key], type(known[key])):
            raise BadInput(f"{key} = {value}: should be a {type(known[key]).__name__}, as {known[key]!r} is")
    return measure, chosen


def table(found: dict) -> str:
    """Format a benchmark's figures as text."""
    rows, head = found["rows"], ", ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}"
                                          for k, v in found.items() if k not in ("rows", "ratio", "notes"))
    lines = [head, "  ".join(f"{k:>22s}" for k in rows[0])]
    lines += ["  ".join(f"{v:22.5g}" if isinstance(v, float) else f"{v!s:>22s}" for v in row.values()) for row in rows]
    return "\n".join([*lines, f"ratio (median) {found['ratio']:.4g}", *found.get("notes", [])])
