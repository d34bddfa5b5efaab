"""A method that is checked: its settings, what is special about it, and runs of it that several promises look at."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from fedmpi.engines.engine import Engine
from fedmpi.engines.loop import Loop
from fedmpi.method import Method, State
from fedmpi.models.flat import Model
from fedmpi.settings import make_settings
from fedmpi.settings_table import describe_settings
from fedmpi.testing.federations import SmallFederation, build_small_network
from fedmpi.testing.lab import Lab
from fedmpi.testing.variants import SHARE, ObservedLab, split_in_chunks


class Broken(AssertionError):
    """A promise that a method does not keep."""


@dataclass(eq=False)
class Subject:
    """A method that is checked. The keywords of `check_method` explain what is special about it."""
    cls: type[Method]
    # the name by which a configuration finds it
    name: str
    settings: Mapping[str, object] = field(default_factory=dict)
    others: Mapping[str, object] = field(default_factory=dict)
    idle: Mapping[str, str] = field(default_factory=dict)
    by_position: str = ""
    by_client: Sequence[str] = ()
    # folder for federations and runs
    folder: str = ""
    federation: SmallFederation = field(default_factory=SmallFederation)
    model: Model = field(default_factory=build_small_network)
    _straight: dict[str, ObservedLab] = field(default_factory=dict)
    _trained: dict[str, dict[int, State]] = field(default_factory=dict)

    def make(self, **settings: object) -> Method:
        """Make the method; its settings are checked like those of a configuration."""
        made: Method = make_settings(self.cls, {**self.settings, **settings}, "method")
        return made.with_model(self.model)

    def straight(self, engine: str = "loop", settings: Mapping[str, object] | None = None) -> ObservedLab:
        """Return a laboratory after three rounds; each is run once."""
        settings = settings or {}
        key = f"{engine} {settings!r}"
        if key not in self._straight:
            with_engine: Engine = split_in_chunks() if engine == "vmap" else Loop()
            lab = ObservedLab(self.make(**settings), self.federation, with_engine)
            lab.go()
            self._straight[key] = lab
        return self._straight[key]

    @cached_property
    def begun(self) -> Lab:
        """A laboratory after one round, in which nobody stores anything."""
        return Lab(self.make(), self.federation, share=SHARE).go(1)

    def trained(self, engine: Engine) -> dict[int, State]:
        """Return what clients 2, 6 and 5 keep and send in the second round."""
        if engine.name not in self._trained:
            run = self.begun
            self._trained[engine.name] = run.apply(run.method.client, [2, 6, 5], 1, engine)
        return self._trained[engine.name]

    def list_settings(self) -> list[str]:
        """Return the names of the declared settings."""
        return [str(row["name"]) for row in describe_settings(self.cls)]

    def choose_other(self, name: str) -> tuple[object, Mapping[str, object]]:
        """Return another value of a setting, and settings of both runs with which it matters."""
        if name not in self.others:
            return find_alternative(self.cls, name, getattr(self.make(), name)), {}
        other = self.others[name]
        # A setting may be a tuple itself.
        if isinstance(other, tuple) and len(other) == 2 and isinstance(other[1], Mapping):
            return other
        return other, {}


def find_alternative(cls: type[Method], name: str, value: object) -> object:
    """Return a value of a setting that differs from the given one, within its range: rather not the default. Where
    there is no default, the given value is what others are made of."""
    hint = get_type_hints(cls, include_extras=True)[name]
    row = next(row for row in describe_settings(cls) if row["name"] == name)
    default = value if row["required"] else row["default"]
    marks = getattr(hint, "__metadata__", ())
    base = get_args(hint)[0] if marks else hint
    tried: list[object] = []
    if get_origin(base) is Literal:
        tried = [v for v in get_args(base) if v != default]
    elif isinstance(default, bool):
        tried = [not default]
    elif isinstance(default, int | float):
        numbers = [default + 1, default - 1] if isinstance(default, int) else [default * 3, default / 3, .5]
        tried = [v for v in numbers if v != default and all(is_allowed(mark, v) for mark in marks)]
    # Three times .1 is not .3, but the same for a method.
    found = [v for v in (*tried, default) if v != value and not (
        isinstance(v, float) and isinstance(value, float) and math.isclose(v, value))]
    if not found:
        raise Broken(f"no other value of {name} = {value!r} can be guessed; name one: others={{{name!r}: VALUE}}")
    return found[0]


def is_allowed(mark: object, value: float) -> bool:
    """Say whether a mark of a setting's type allows a value."""
    bounds: list[tuple[type, str, Callable[[float, float], bool]]] = [
        (Ge, "ge", operator.ge), (Gt, "gt", operator.gt), (Le, "le", operator.le), (Lt, "lt", operator.lt)]
    return all(allows(value, getattr(mark, name)) for kind, name, allows in bounds if isinstance(mark, kind))
