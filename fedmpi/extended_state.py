"""States with further fields behind those that a method declares: NamedTuple classes that are made at run time.

LocalBatchNorm adds a client's running statistics to its Mine, CAM adds the global model to Shared and Up. The method
itself sees its own class again: `strip_state` undoes `extend_state`."""
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache

from torch import Tensor

from fedmpi.client_data import State
from fedmpi.server_only import read_hints

# An extended class -> the class that it extends.
ORIGINAL_CLASSES: dict[type, type] = {}
# The fields are known only at run time; called by its own name, mypy wants them in the source.
make_class: Callable[..., type] = namedtuple


@cache
def extend_class(cls: type, names: tuple[str, ...], hints: tuple[object, ...]) -> type:
    """Return a NamedTuple class with the fields of another and further ones, which have these types."""
    own: tuple[str, ...] = getattr(cls, "_fields", ())
    found = make_class(cls.__name__, own + names)
    found.__annotations__ = read_hints(cls) | dict(zip(names, hints, strict=True))
    ORIGINAL_CLASSES[found] = cls
    return found


def extend_state(state: State, hints: Mapping[str, object], **values: Tensor) -> State:
    """Return a state with further fields.

    Args:
        hints: the type of each further field, such as Annotated[Tensor, WHOLE]."""
    cls: type = type(state)
    return extend_class(cls, tuple(values), tuple(hints[name] for name in values))(*state, *values.values())


def strip_state(state: State) -> State:
    """Return a state without the fields that `extend_state` added."""
    cls = ORIGINAL_CLASSES[type(state)]
    return cls(*state[:len(getattr(cls, "_fields", ()))])
