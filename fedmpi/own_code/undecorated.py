"""Classes whose settings are not what their author thinks: without @dataclass Python takes what they declare for no
settings, without a word, and a class attribute such as `title` that has a type becomes a setting."""
from __future__ import annotations

import dataclasses
import inspect

from fedmpi.errors import BadInput


def refuse_undecorated(cls: type, where: str) -> None:
    """Raise BadInput if a class is derived from a dataclass and declares fields, but is no dataclass itself, or gives a
    class attribute of its bases a type of a setting.

    Args:
        where: what asks for the class, for the error"""
    bases = cls.__mro__ if dataclasses.is_dataclass(cls) else ()
    declared = {base: inspect.get_annotations(base) for base in bases}
    attributes = {name for names in declared.values() for name, kind in names.items() if "ClassVar" in str(kind)}
    fields = {base: [name for name, kind in names.items() if "ClassVar" not in str(kind)]
              for base, names in declared.items()}
    for base in bases:
        for name in attributes.intersection(fields[base]):
            raise BadInput(f"{where}: {base.__module__}:{base.__qualname__} declares {name} with a type, which makes "
                           f"it a setting; write {name} = ... without one, or {name}: ClassVar[...] = ...")
    for base in bases:
        if "__dataclass_fields__" in vars(base):
            return
        if fields[base]:
            raise BadInput(f"{where}: {base.__module__}:{base.__qualname__} declares {', '.join(fields[base])} and is "
                           "no dataclass, so these are no settings; write @dataclass(frozen=True) above the class")
