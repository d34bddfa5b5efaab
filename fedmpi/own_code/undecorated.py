"""Classes of settings that lack @dataclass: Python would take what they declare for no settings, without a word."""
from __future__ import annotations

import dataclasses
import inspect

from fedmpi.errors import BadInput


def refuse_undecorated(cls: type, where: str) -> None:
    """Raise BadInput if a class is derived from a dataclass and declares fields, but is no dataclass itself.

    Args:
        where: what asks for the class, for the error"""
    for base in cls.__mro__ if dataclasses.is_dataclass(cls) else ():
        if "__dataclass_fields__" in vars(base):
            return
        fields = [name for name, kind in inspect.get_annotations(base).items() if "ClassVar" not in str(kind)]
        if fields:
            raise BadInput(f"{where}: {base.__module__}:{base.__qualname__} declares {', '.join(fields)} and is no "
                           "dataclass, so these are no settings; write @dataclass(frozen=True) above the class")
