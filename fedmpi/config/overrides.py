"""Settings that replace those of a configuration: `key=value` texts of the command line, or Python values."""
from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from fedmpi.config.load import parse_yaml
from fedmpi.errors import BadInput
from fedmpi.json_values import Json, JsonObject
from fedmpi.settings import shorten_value

# sections of the form {name: ..., setting: ...}, which may be given as a bare name
NAMED_SECTIONS = ("model", "method", "partition")
# sections that are off until they are given: an empty one turns them on, with their defaults
OPTIONAL_SECTIONS = ("stop", "edge", "availability", "stragglers", "attack")


def apply_overrides(values: JsonObject, overrides: Sequence[str] | Mapping[str, object]) -> JsonObject:
    """Set settings in nested mappings of a configuration, and return these.

    Args:
        values: the configuration, which is changed
        overrides: texts `a.b=value`, whose values are YAML; or a mapping of `a.b`, or of nested mappings, to Python
            values. A mapping of settings changes those that it names alone, and a section with a `name` is replaced.

    Raises:
        BadInput: for what is not a setting and value."""
    if not isinstance(values, dict):
        raise BadInput(f"the configuration must be a mapping of settings, not {values!r}")
    for key, new in read_overrides(overrides):
        *parents, last = key.split(".")
        section = values
        for depth, name in enumerate(parents, 1):
            inner = section.get(name)
            if isinstance(inner, str) and name in NAMED_SECTIONS:
                inner = {"name": inner}
            if not isinstance(inner, dict | None):
                where = ".".join(parents[:depth])
                raise BadInput(f"{key}: {where} is {shorten_value(inner)} and no mapping of settings"
                               + f" (did you mean data.name={inner}?)" * (where == "data" and isinstance(inner, str)))
            section[name] = section = {} if inner is None else inner
        old = section.get(last)
        if isinstance(old, dict) and isinstance(new, str) and last in NAMED_SECTIONS:
            new = {**({} if old.get("name") not in (None, new) else old), "name": new}
        section[last] = new
    return values


def read_overrides(overrides: Sequence[str] | Mapping[str, object]) -> Iterator[tuple[str, Json]]:
    """Yield each setting that is replaced, with its value. Raises BadInput for what is not a setting and value."""
    if isinstance(overrides, Mapping):
        yield from flatten_values(name_data_class(overrides))
    else:
        for text in overrides:
            yield from flatten_values(dict([read_text(text)]))


def read_text(text: str) -> tuple[str, Json]:
    """Return the setting and the value of a text `key=value`. Raises BadInput."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise BadInput(f"{text!r} is not of the form key=value (for example train.lr=0.01)")
    try:
        return key, parse_yaml(value)
    except ValueError:
        raise BadInput(f"{key}={value}: the value is not valid YAML; put quotes around a list or mapping, for "
                       "example 'data.split=[.6, .2, .2]'") from None


def is_one_value(setting: str, value: object) -> bool:
    """Say whether what is given for a setting is one value: no mapping, a section with its name, an optional one
    without settings, or an empty mapping for what is not a section. The settings of other mappings are replaced one by
    one, so an empty one for a section changes nothing."""
    if not isinstance(value, Mapping):
        return True
    section, _, last = setting.rpartition(".")
    if value:
        return last in NAMED_SECTIONS and "name" in value
    return setting in OPTIONAL_SECTIONS or bool(section) and last not in NAMED_SECTIONS


def flatten_values(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Yield each setting of nested mappings with its value, see `is_one_value`. A mapping has no order: in each, a
    section as a whole comes before settings in it, so that its name does not drop them."""
    for key, value in sorted(values.items(), key=lambda item: str(item[0]).count(".")):
        if not isinstance(key, str) or not all(key.split(".")):
            raise BadInput(f"{prefix}{shorten_value(key)} is not the name of a setting (for example train.lr)")
        if is_one_value(f"{prefix}{key}", value):
            yield f"{prefix}{key}", to_yaml_value(value)
        elif isinstance(value, Mapping):
            yield from flatten_values(value, f"{prefix}{key}.")


def name_data_class(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return settings in which a class that is given for `data` is the name of the data set."""
    return {**values, "data": {"name": values["data"]}} if inspect.isclass(values.get("data")) else values


def to_yaml_value(value: object) -> Json:
    """Return a Python value as YAML would have it: a path as its text, a class or a function as `module:name`, numbers
    of NumPy as plain ones. What YAML has no counterpart for is returned as it is, for the check of the setting to
    refuse. Raises BadInput for a class or function that a run would not find by its name."""
    if isinstance(value, Mapping):
        return {key: to_yaml_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_yaml_value(inner) for inner in value]
    if inspect.isclass(value) or inspect.isfunction(value):
        return name_definition(value)
    if isinstance(value, partial):
        return name_partial(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def name_definition(value: type | Callable[..., object]) -> str:
    """Return `module:name` of a class or function, by which the run finds it. Raises BadInput if another object has
    taken its name since, which the run would use in its place."""
    found: object = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not None and found is not value:
        again = (f"if the module was imported again since, take it from there again (from {value.__module__} import "
                 f"{value.__qualname__.partition('.')[0]}), else ")
        has_file = value.__module__ != "__main__" and hasattr(sys.modules[value.__module__], "__file__")
        raise BadInput(f"{value.__qualname__} of {value.__module__} is another object now than the one that was given, "
                       f"and a run finds classes and functions by their names; {again * has_file}give each a name of "
                       "its own, or make what differs a setting")
    return f"{value.__module__}:{value.__qualname__}"


def name_partial(value: partial[object]) -> str:
    """Return `module:name` of a partial function, which itself has no name, where the module of what it calls, or the
    program, holds it. Raises BadInput if neither does."""
    for module in (getattr(value.func, "__module__", None), "__main__"):
        for name, held in [*getattr(sys.modules.get(str(module)), "__dict__", {}).items()]:
            if held is value:
                return f"{module}:{name}"
    raise BadInput(f"{shorten_value(value)}: a run finds functions by their names, and a partial function has none "
                   "that is known here; give its name, as in model='module:mk'")
