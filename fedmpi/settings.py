"""Frozen dataclasses of settings: built from plain values, strictly, with the exact path in every error.

A settings class is a standard frozen dataclass. Its fields may be annotated with ranges and one line of help:

    lam: Annotated[float, Ge(0), "strength of the pull towards the anchor"] = 0.1

A setting that got another name is refused with the new one if the class lists it: `renamed = {"old": "new"}`, without
an annotation.
"""
from __future__ import annotations

import dataclasses
import difflib
import json
import typing
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from annotated_types import Ge, Gt, Le, Lt  # noqa: F401  (the ranges that settings classes use)

from fedmpi.errors import BadInput

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

Settings = TypeVar("Settings")

# Metadata of a field that is no setting: configurations cannot name it.
NO_SETTING = {"setting": False}


def make_settings(cls: type[Settings], values: object, where: str) -> Settings:
    """Return the settings that a configuration gives for a class.

    Args:
        cls: a frozen dataclass of settings
        values: the section of the configuration
        where: the dotted path of the section, "" for the top level

    Raises:
        BadInput: with every key that is wrong, its path and what is allowed."""
    if not isinstance(values, dict):
        raise BadInput(f"{where or 'the configuration'} must be a mapping of settings, not {shorten(values)}")
    problems = [describe_unknown(cls, key, where) for key in values if key not in setting_names(cls)]
    problems += [f"{dotted(where, key)} = {shorten(value)}: should be made of finite numbers, texts, lists and mappings"
                 for key, value in values.items() if not is_plain(value)]
    if problems:
        raise BadInput("\n".join(problems))
    from pydantic import ValidationError
    try:
        return adapter(cls).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        # a value that fits none of several types gives an error for each type
        found: dict[str, list[str]] = {}
        for e in error.errors():
            where_what, message = describe_error(e, where, cls)
            found.setdefault(where_what, []).append(message)
        raise BadInput("\n".join(f"{what}{' or '.join(messages)}" for what, messages in found.items())) from None


@cache
def adapter(cls: type) -> TypeAdapter:
    """Return what checks values for a class."""
    from pydantic import TypeAdapter
    return TypeAdapter(cls)


def is_plain(value: object) -> bool:
    """Say whether JSON can hold a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def shorten(value: object) -> str:
    """Return a value as text of at most 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def dotted(where: str, name: object) -> str:
    """Return the dotted path of a setting in a section."""
    return f"{where}.{name}" if where else str(name)


def setting_names(cls: type) -> list[str]:
    """List the settings of a class, in the order in which they are declared."""
    return [f.name for f in dataclasses.fields(cls) if is_setting(f)]


def is_setting(field: dataclasses.Field) -> bool:
    """Say whether configurations can name a field."""
    return field.init and field.metadata.get("setting", True)


def describe_unknown(cls: type, key: str, where: str) -> str:
    """Return what to say of a key that is no setting of a class: its new name, or the settings that there are."""
    new = getattr(cls, "renamed", {}).get(key)
    if new:
        return f"{dotted(where, key)} is called {dotted(where, new)} since version 0.2"
    owner = getattr(cls, "title", None) or cls.__name__
    close = difflib.get_close_matches(str(key), setting_names(cls), 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    known = ", ".join(setting_names(cls)) or "none"
    return f"{dotted(where, key)} is not a setting of {owner}; its settings are {known}{hint}"


def describe_error(error: ErrorDetails, where: str, cls: type) -> tuple[str, str]:
    """Return "path = value: " and what is wrong, for an error of pydantic."""
    inner = [str(part) for part in error["loc"] if part in setting_names(cls) or isinstance(part, int)]
    path = ".".join(filter(None, [where, *inner]))
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if error["type"] == "missing":
        return f"{path} is missing and has no default: ", "set it"
    # the error is one of __post_init__, which names the setting itself
    if error["type"] == "value_error" and not inner:
        return dotted(where, ""), message
    return f"{path} = {shorten(error['input'])}: ", message


def describe(cls: type) -> list[dict]:
    """List a class's settings as dicts with `name`, `type`, `default` and `help`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    rows = []
    for field in dataclasses.fields(cls):
        if not is_setting(field):
            continue
        base, *extra = typing.get_args(hints[field.name]) if typing.get_origin(
            hints[field.name]) is typing.Annotated else (hints[field.name],)
        rows.append({"name": field.name, "type": type_name(base), "default": default(field),
                     "help": next((e for e in extra if isinstance(e, str)), "")})
    return rows


def type_name(annotation: Any) -> str:
    """Return a type as users read it: `float`, or the choices of a Literal. (Any: types of types have no class.)"""
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, typing.get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation)) if not typing.get_args(annotation) else str(annotation)


def default(field: dataclasses.Field) -> object:
    """Return the default of a field, None if it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
