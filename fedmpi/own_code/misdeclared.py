"""Classes whose settings are not what their author thinks: without @dataclass Python takes what they declare for no
settings, without a word, a class attribute such as `title` that has a type becomes a setting, and a setting that is
called like a function takes its place."""
from __future__ import annotations

import dataclasses
import inspect
from types import FunctionType

from fedmpi.errors import BadInput


def refuse_misdeclared(cls: type, where: str) -> None:
    """Raise BadInput if a class that is derived from a dataclass gives a class attribute of its bases a type, which
    makes a setting of it, calls a setting like a function of its bases, or declares settings without being a dataclass
    itself.

    Args:
        where: what asks for the class, for the error"""
    if dataclasses.is_dataclass(cls):
        refuse_typed_attributes(cls, where)
        refuse_misnamed_settings(cls, where)
        refuse_undecorated(cls, where)


def refuse_typed_attributes(cls: type, where: str) -> None:
    """Raise BadInput if a class or one of its bases declares a setting that the bases behind it have as an attribute of
    the class. The other way round is allowed: a ClassVar takes away a setting of the bases."""
    for owner in cls.__mro__:
        for name in list_fields(owner):
            declared = next((base for base in owner.__mro__[1:] if name in inspect.get_annotations(base)), None)
            if declared and name not in list_fields(declared):
                raise BadInput(f"{where}: {owner.__module__}:{owner.__qualname__} declares {name} with a type, which "
                               f"makes it a setting; write {name} = ... without one, or {name}: ClassVar[...] = ...")


def refuse_misnamed_settings(cls: type, where: str) -> None:
    """Raise BadInput if a class or one of its bases declares a setting that is called like a function of the bases
    behind it, or like a field that they set themselves, as `model` of Method."""
    for owner in cls.__mro__:
        for name in list_fields(owner):
            base = next((base for base in owner.__mro__[1:] if name in vars(base)), None)
            if base and isinstance(vars(base)[name], FunctionType):
                why = f"{base.__module__}:{base.__qualname__} has a function of that name"
            elif base and is_set_itself(base, name) and not is_set_itself(owner, name):
                why = f"fedmpi sets `{name}` itself{' to the network' if name == 'model' else ''}"
            else:
                continue
            raise BadInput(f"{where}: {owner.__module__}:{owner.__qualname__} declares a setting {name}, but {why}; "
                           "call the setting otherwise")


def is_set_itself(cls: type, name: str) -> bool:
    """Say whether a class declares a field that is no setting, because its functions set it."""
    field = vars(cls).get("__dataclass_fields__", {}).get(name)
    return field is not None and not field.metadata.get("setting", True)


def refuse_undecorated(cls: type, where: str) -> None:
    """Raise BadInput if a class, or a base before the first dataclass, declares settings."""
    for owner in cls.__mro__:
        if "__dataclass_fields__" in vars(owner):
            return
        if fields := list_fields(owner):
            raise BadInput(f"{where}: {owner.__module__}:{owner.__qualname__} declares {', '.join(fields)} and "
                           "is not a dataclass, so these are not settings; write @dataclass(frozen=True) above the "
                           "class")


def list_fields(cls: type) -> list[str]:
    """Return what a class itself declares with a type, without the attributes of the class (ClassVar)."""
    return [name for name, kind in inspect.get_annotations(cls).items() if "ClassVar" not in str(kind)]
