"""What the settings of a class are, as the tables of `fedmpi settings` and `fedmpi methods NAME` show them."""
from __future__ import annotations

import dataclasses
import types
import typing

from fedmpi.json_values import JsonObject
from fedmpi.settings import AtMost, Ge, Gt, Le, Lt, collect_marks, find_default, is_setting, list_helps


def describe_settings(cls: type) -> list[JsonObject]:
    """List a class's settings as dicts with `name`, `type`, `allowed` (a range, or ""), `default`, `required` and
    `help`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [{"name": field.name, "type": name_type(hints[field.name]),
             "allowed": describe_range(collect_marks(cls)[field.name]), "default": find_default(field),
             "required": is_required(field),
             "help": list_helps(cls)[field.name]}
            for field in dataclasses.fields(cls) if is_setting(field)]


def describe_range(marks: tuple[object, ...]) -> str:
    """Return the range that annotations declare, such as `> 0, <= 1`; "" if they declare none."""
    signs = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le"), AtMost: ("<=", "limit")}
    found = [f"{signs[type(mark)][0]} {getattr(mark, signs[type(mark)][1])}" for mark in marks if type(mark) in signs]
    # lower limits first
    return ", ".join(sorted(found, reverse=True))


def name_type(annotation: object) -> str:
    """Return a type as users read it: `float`, the choices of a Literal, `list of int`, `int or null`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return name_type(inner[0])
    if origin is typing.Literal:
        return "|".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(name_type, inner))
    if origin is tuple and inner[1:] == (...,):
        return f"list of {name_type(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(map(name_type, inner))}]"
    name = getattr(origin or annotation, "__name__", str(annotation))
    # a section that a name chooses is typed as Any
    return {"NoneType": "null", "dict": "mapping", "Any": "name, or {name: ..., setting: ...}"}.get(name, name)


def is_required(field: dataclasses.Field[object]) -> bool:
    """Say whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
