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

from annotated_types import Ge, Gt, Le, Lt  # noqa: F401  (the ranges that settings classes use)

from fedmpi.errors import BadInput

# Metadata of a field that is no setting: configurations cannot name it.
NO_SETTING = {"setting": False}


def make_settings(cls, values: dict, where: str):
    """Make a `cls` from `values`; `where` is the dotted path of the section ("" for the top level).

    Raises BadInput that names every offending key, its path and what is allowed."""
    if not isinstance(values, dict):
        raise BadInput(f"{where or 'the configuration'} must be a mapping of settings, not {shorten(values)}")
    problems = [unknown(cls, key, where) for key in values if key not in setting_names(cls)]
    problems += [f"{dotted(where, key)} = {shorten(value)}: should be made of finite numbers, texts, lists and mappings"
                 for key, value in values.items() if not is_plain(value)]
    if problems:
        raise BadInput("\n".join(problems))
    from pydantic import ValidationError
    try:
        return adapter(cls).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        found = {}      # a value that fits none of several types gives an error for each
        for e in error.errors():
            where_what, message = complaint(e, where, cls)
            found.setdefault(where_what, []).append(message)
        raise BadInput("\n".join(f"{what}{' or '.join(messages)}" for what, messages in found.items())) from None


@cache
def adapter(cls):
    from pydantic import TypeAdapter
    return TypeAdapter(cls)


def is_plain(value) -> bool:
    """Say whether JSON can hold a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def shorten(value) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def dotted(where: str, name) -> str:
    return f"{where}.{name}" if where else str(name)


def setting_names(cls) -> list[str]:
    """List the settings of a class, in the order in which they are declared."""
    return [f.name for f in dataclasses.fields(cls) if is_setting(f)]


def is_setting(field: dataclasses.Field) -> bool:
    return field.init and field.metadata.get("setting", True)


def unknown(cls, key: str, where: str) -> str:
    new = getattr(cls, "renamed", {}).get(key)
    if new:
        return f"{dotted(where, key)} is called {dotted(where, new)} since version 0.2"
    owner = getattr(cls, "title", None) or cls.__name__
    close = difflib.get_close_matches(str(key), setting_names(cls), 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    known = ", ".join(setting_names(cls)) or "none"
    return f"{dotted(where, key)} is not a setting of {owner}; its settings are {known}{hint}"


def complaint(error: dict, where: str, cls) -> tuple[str, str]:
    """Turn one pydantic error into `path = value: ` and what is wrong."""
    inner = [str(part) for part in error["loc"] if part in setting_names(cls) or isinstance(part, int)]
    path = ".".join(filter(None, [where, *inner]))
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if error["type"] == "missing":
        return f"{path} is missing and has no default: ", "set it"
    if error["type"] == "value_error" and not inner:      # of __post_init__, which names the setting itself
        return dotted(where, ""), message
    return f"{path} = {shorten(error['input'])}: ", message


def describe(cls) -> list[dict]:
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


def type_name(annotation) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, typing.get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation)) if not typing.get_args(annotation) else str(annotation)


def default(field: dataclasses.Field):
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
