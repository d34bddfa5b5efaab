"""The settings of a data set, which stand in the section `data` beside those that all data sets have; and names that no
setting of a class can have."""
from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection
from typing import Any, TypeAlias

from fedmpi import registry
from fedmpi.errors import BadInput
from fedmpi.json_values import Json, JsonObject
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import is_built_in
from fedmpi.settings import list_setting_names, make_settings

# Any: the settings of a network, a method, a data set or a partition. Its name chooses the class, and each has its own.
NamedSettings: TypeAlias = Any


def separate_source(data: Json, known: Collection[str], default: str) -> tuple[Json, JsonObject]:
    """Return the section `data` without its partition, which has a class of its own, and apart from it the settings of
    the data set. A setting that neither has goes to the one with a similar name, which refuses it.

    Args:
        data: the section as it was given.
        known: the settings that all data sets have.
        default: the name of the data set if none is given."""
    if not isinstance(data, dict):
        return data, {}
    plain = {k: v for k, v in data.items() if k != "partition"}
    unknown, name = [k for k in plain if k not in known], plain.get("name", default)
    # Code of one's own is imported only if there are settings for it.
    if not unknown or not isinstance(name, str):
        return plain, {}
    try:
        cls = registry.find_class("datasets", name)
    # That there is no such data set is said when it is built.
    except BadInput:
        return plain, {k: plain.pop(k) for k in unknown}
    own = list_setting_names(cls) if dataclasses.is_dataclass(cls) else []
    return plain, {k: plain.pop(k) for k in unknown if k in own or difflib.get_close_matches(str(k), own, 1)}


def build_source(data: Json, settings: JsonObject, default: str, known: Collection[str]) -> NamedSettings:
    """Return the data set with its settings, None if it has none. Raises BadInput.

    Args:
        data: the section without these settings.
        settings: what `separate_source` took out of it.
        default: the name of the data set if none is given.
        known: the settings that all data sets have."""
    name = data.get("name", default) if isinstance(data, dict) else None
    if not isinstance(name, str):
        return None
    # Asked last, because it reads what is installed.
    if not settings and name not in registry.list_built_in("datasets") and (
            ":" in name or name in registry.list_available("datasets")):
        return None
    cls = registry.find_class_of_setting("datasets", name, "data.name")
    if not dataclasses.is_dataclass(cls):
        return None
    refuse_taken_settings(cls, "data.name", known)
    with blame_own_code(f"data: {name}", always=not is_built_in(cls)):
        return make_settings(cls, settings, "data")


def refuse_taken_settings(cls: type, where: str, taken: Collection[str] = ("name",)) -> None:
    """Raise BadInput if a class declares a setting that no configuration can give it, since its section knows the name
    as something else.

    Args:
        where: what asks for the class, for the error.
        taken: the names that its section has for other things."""
    for name in list_setting_names(cls) if dataclasses.is_dataclass(cls) else ():
        if name in taken:
            use = "names the class itself" if name == "name" else "is one of all data sets"
            raise BadInput(f"{where}: {cls.__module__}:{cls.__qualname__} declares a setting {name}, which in a "
                           f"configuration {use}; call it otherwise")
