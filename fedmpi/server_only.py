"""Fields of Shared that stay with the server: `m: Annotated[Tensor, SERVER_ONLY]`.

They are kept, saved and part of the digest, and never sent: clients see a NotSent in their place. A method may declare
a vector's kind beside it, `Annotated[Tensor, WHOLE, SERVER_ONLY]`."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import NoReturn, TypeVar, get_type_hints

from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.own_code.places import show_relative_path


class Reach(Enum):
    """Who knows a field of Shared, if not everybody."""
    SERVER_ONLY = "the server alone"


SERVER_ONLY = Reach.SERVER_ONLY
# A Shared of a method's own.
SharedType = TypeVar("SharedType", bound=Sequence[Tensor])


class NotSent:
    """Stands for a field that is SERVER_ONLY where clients compute; whatever they do with it is refused."""

    def __init__(self, field: str):
        self._field = field

    def _refuse(self, *_: object) -> NoReturn:
        raise BadInput(f"method: Shared.{self._field} is SERVER_ONLY, so it is never sent, but what runs at a client "
                       "uses it; use it in `init`, `messages` and `server` alone, or leave SERVER_ONLY out")

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    @classmethod
    def __torch_function__(cls, function: Callable[..., object], types: Sequence[type],
                           args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None) -> NoReturn:
        """Refuse to be an argument of a function of PyTorch."""
        given = [value for pack in (*args, *(kwargs or {}).values())
                 for value in (pack if isinstance(pack, list | tuple) else [pack])]
        next(value for value in given if isinstance(value, NotSent))._refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _refuse
    __neg__ = __matmul__ = __rmatmul__ = __getitem__ = __iter__ = __len__ = __bool__ = __float__ = __int__ = _refuse
    # Without these, `shared.t == 0` would be False whatever the server's t is.
    __lt__ = __le__ = __gt__ = __ge__ = __abs__ = __invert__ = __floordiv__ = __mod__ = __rpow__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


def read_hints(state: type) -> dict[str, object]:
    """Return the types of the fields of a NamedTuple, with what is annotated. Raises BadInput if a name in them is not
    known at run time."""
    try:
        return get_type_hints(state, include_extras=True)
    except NameError as error:
        file = getattr(sys.modules.get(state.__module__), "__file__", None)
        where = show_relative_path(file) if file else state.__module__
        raise BadInput(f"method: {where}: {state.__name__}: {error.name} is imported for type checkers only, or "
                       "defined in a function; import it at run time, at the top of the file") from error


def list_sent(state: type) -> tuple[bool, ...]:
    """Return for each field of a NamedTuple whether it is sent."""
    return _read_sent(state)


@cache
def _read_sent(state: type) -> tuple[bool, ...]:
    hints = read_hints(state)
    fields: tuple[str, ...] = getattr(state, "_fields", ())
    return tuple(SERVER_ONLY not in getattr(hints.get(name), "__metadata__", ()) for name in fields)


def select_sent(shared: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return those fields of a Shared that clients receive. What is not a NamedTuple is sent as a whole."""
    sent = list_sent(type(shared))
    return tuple(value for value, is_sent in zip(shared, sent, strict=True) if is_sent) if sent else tuple(shared)


def join_sent(state: Callable[..., SharedType], values: Sequence[Tensor | None]) -> SharedType:
    """Return a Shared as clients see it, from its class and the fields that were sent."""
    fresh = iter(values)
    fields: tuple[str, ...] = getattr(state, "_fields", ())
    assert isinstance(state, type)
    return state(*(next(fresh) if is_sent else NotSent(name)
                   for name, is_sent in zip(fields, list_sent(state), strict=True)))


def hide_server_only(shared: SharedType) -> SharedType:
    """Return a Shared as clients see it."""
    return shared if all(list_sent(type(shared))) else join_sent(type(shared), select_sent(shared))


def refuse_server_only(*states: Sequence[Tensor]) -> None:
    """Refuse fields that are SERVER_ONLY outside of Shared: Mine, Up and messages. Raises BadInput."""
    for state in states:
        cls = type(state)
        kept = [name for name, is_sent in zip(getattr(cls, "_fields", ()), list_sent(cls), strict=True) if not is_sent]
        if kept:
            raise BadInput(f"method: {cls.__name__}.{kept[0]} is SERVER_ONLY, which only fields of Shared can be; "
                           "leave the annotation out there")
