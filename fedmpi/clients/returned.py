"""Refuse what functions of a method return if no run can work with it; the message names their file and line.

The error is BadInput; in a round clients/checked_method.py makes a failure of it."""
from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from torch import Tensor

from fedmpi.client_data import State
from fedmpi.comm.frame import DTYPES
from fedmpi.comm.rows import Mixed
from fedmpi.errors import BadInput
from fedmpi.method import Method, TrainSettings, list_declared_kinds
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import describe_definition
from fedmpi.text import printable

# Functions of a method that a run calls.
FUNCTIONS = ("init", "client", "personal", "with_model", "check", "server", "messages", "message_template", "idle",
             "predict", "traffic", "stages", "stage_of", "list_oddities", "describe_uncounted_steps",
             "warm_up_participants", "unadapted", "trained", "serve_newcomer", "global_model", "embedding")


def refuse_training_settings(method: Method, train: TrainSettings) -> None:
    """Let a method refuse settings of the training by its `check`, the first of its functions that a run calls.

    Raises BadInput if they do not fit, or if something else has the name of a function of the method."""
    cls = type(method)
    if odd := [name for name in FUNCTIONS if not callable(getattr(cls, name))]:
        raise BadInput(f"method {name_class(cls)}: {odd[0]} must be a function, not "
                       f"{describe_value(getattr(cls, odd[0]))}")
    method.check(train)


def name_class(cls: type) -> str:
    """Return the name by which a configuration has a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


@contextmanager
def blame_function(method: object, name: str) -> Iterator[None]:
    """Turn every error in this context into one of that function of a method."""
    with blame_own_code(f"method {name_class(type(method))}, {name}()", always=True,
                        place=describe_definition(getattr(type(method), name, None))):
        yield


def refuse_returned(method: object, name: str, found: object, wanted: str, details: str = "") -> NoReturn:
    """Raise BadInput that says what a function of a method returned, and what it must return.

    Args:
        details: what else is to be said of what it returned."""
    place = describe_definition(getattr(type(method), name))
    raise BadInput(f"method {name_class(type(method))}: {place}{name}() must return {wanted}, not "
                   f"{describe_value(found)}{details}")


def describe_value(value: object) -> str:
    """Return in a few words what a value is."""
    if isinstance(value, Tensor | np.ndarray):
        kind = "a tensor" if isinstance(value, Tensor) else "an array"
        return f"{kind} of shape {tuple(value.shape)} and type {value.dtype}"
    if value is None:
        return "None"
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    name = type(value).__name__
    return printable(f"{'an' if name[0] in 'aeio' else 'a'} {name}{size}")


def split_pair(method: object, name: str, found: object, wanted: str) -> tuple[State, State]:
    """Return the two states that a function returned; `wanted` names them. Raises BadInput if it returned others."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        refuse_returned(method, name, found, f"a pair {wanted}")
    for state, part in zip(found, wanted.strip("()").split(", "), strict=True):
        refuse_no_state(method, name, state, f"a pair {wanted} of NamedTuples of tensors", f"the {part} ")
    return found[0], found[1]


def refuse_no_state(method: object, name: str, found: object, wanted: str, part: str = "") -> None:
    """Raise BadInput if something is not a NamedTuple of tensors."""
    place = describe_definition(getattr(type(method), name))
    start = f"method {name_class(type(method))}: {place}{name}() must return {wanted}; {part}"
    if not isinstance(found, tuple) or not hasattr(found, "_fields"):
        raise BadInput(f"{start}is {describe_value(found)}")
    for field, value in zip(found._fields, found, strict=True):
        if not isinstance(value, Tensor):
            raise BadInput(f"{start}has {describe_value(value)} in its field {printable(field)}")


def refuse_unsent_types(method: object, name: str, state: State, part: str) -> None:
    """Raise BadInput if a state has a field whose numbers cannot travel between ranks, or into a checkpoint.

    Args:
        part: what the state is called."""
    names = [dtype.name for dtype in DTYPES]
    for field, value in state._asdict().items():
        if str(value.dtype).removeprefix("torch.") not in names:
            refuse_returned(method, name, value, f"in the field {printable(field)} of {part} numbers of type "
                            f"{', '.join(names)}")


def refuse_other_state(method: object, name: str, found: State, like: State, what: str, dtypes: bool = True,
                       origin: str = "init()") -> None:
    """Raise BadInput if a state is not a NamedTuple of tensors with the fields, shapes and types of the first one.

    Args:
        like: the first one.
        what: its name.
        dtypes: all types count, and not only those of vectors, which are sums in float32.
        origin: what returned the first one."""
    wanted = f"{what} like that of {origin}"
    kind: type = type(like)
    refuse_no_state(method, name, found, f"{wanted}, a NamedTuple of tensors", "it ")
    if found._fields != like._fields:
        refuse_returned(method, name, found, f"{wanted}, with the fields {', '.join(like._fields) or 'none'}")
    for field, value, first in zip(like._fields, found, like, strict=True):
        typed = dtypes or list_declared_kinds(kind).get(field)
        if value.shape != first.shape or typed and value.dtype != first.dtype:
            refuse_returned(method, name, value, f"{wanted}, whose field {field} is {describe_value(first)}")


def refuse_wrong_messages(method: Method, found: object, template: State, participants: int) -> None:
    """Raise BadInput if `messages` returns anything but `Rows.mix`, or a tensor (n, ...), for each field of the
    template."""
    names = ", ".join(template._fields)
    if not isinstance(found, tuple | list) or len(found) != len(template):
        refuse_returned(method, "messages", found, f"the fields of message_template() ({names}), each made by Rows.mix "
                        "or a tensor with a row for each participant")
    for name, mixed, like in zip(template._fields, found, template, strict=True):
        if isinstance(mixed, Tensor):
            shape, addressed = tuple(mixed.shape[1:]), len(mixed) if mixed.ndim else 0
            if mixed.dtype != like.dtype:
                refuse_returned(method, "messages", mixed, f"in the field {name} numbers of type {like.dtype}")
        elif isinstance(mixed, Mixed):
            shape, addressed = tuple(mixed.shape), len(mixed.coefficients)
        else:
            refuse_returned(method, "messages", mixed, f"in the field {name} what Rows.mix returns, or a tensor with a "
                            "row for each participant")
        if shape != tuple(like.shape) or addressed != participants:
            raise BadInput(f"method {name_class(type(method))}: {describe_definition(type(method).messages)}messages() "
                           f"addresses {name} of shape {shape} to {addressed} clients; the template has shape "
                           f"{tuple(like.shape)}, and {participants} take part")


def refuse_no_weights(method: Method, name: str, found: object) -> None:
    """Raise BadInput if something cannot be the weights that `predict` takes."""
    size = method.model.size
    if type(method).predict is Method.predict and not (isinstance(found, Tensor) and found.shape == (size,)):
        refuse_returned(method, name, found, f"the weights of the network, a tensor of shape ({size},)")
    if not is_weights(found):
        refuse_returned(method, name, found, "weights: a tensor, or a tuple of tensors")


def is_weights(found: object) -> bool:
    """Say whether something is a tensor or a tuple of tensors, as `predict` may take."""
    return isinstance(found, Tensor) or isinstance(found, tuple) and len(found) > 0 and all(
        isinstance(part, Tensor) for part in found)


def refuse_wrong_traffic(method: Method, found: object) -> None:
    """Raise BadInput for what is not a pair of numbers of bytes."""
    if not (isinstance(found, tuple | list) and len(found) == 2 and all(
            isinstance(v, int | float | np.number) and math.isfinite(v) and v >= 0 for v in found)):
        refuse_returned(method, "traffic", found, "a pair of numbers of bytes (received, sent)")


def refuse_wrong_stages(method: Method, found: object, like: State) -> None:
    """Raise BadInput for what is not a list of stages, each a number of rounds and a Shared.

    Args:
        like: the first Shared."""
    wanted = "a list of pairs (rounds, Shared), at least one"
    if not isinstance(found, list | tuple) or not found:
        refuse_returned(method, "stages", found, wanted)
    for stage in found:
        if not isinstance(stage, list | tuple) or len(stage) != 2:
            refuse_returned(method, "stages", stage, wanted)
        rounds, shared = stage
        if not isinstance(rounds, int | np.integer) or rounds < 0:
            refuse_returned(method, "stages", rounds, "whole numbers of rounds")
        refuse_other_state(method, "stages", shared, like, "in each stage a Shared", dtypes=False)
    if len(found) > 1 and type(method).stage_of is Method.stage_of:
        raise BadInput(f"method {name_class(type(method))}: stages() returns {len(found)} stages, so define stage_of(),"
                       " which says in which of them a round is that begins with a Shared")


def refuse_other_arguments(method: Method, name: str) -> None:
    """Raise BadInput if a function of a method cannot be given what the one of the base class is given."""
    wanted = [*inspect.signature(getattr(Method, name)).parameters][1:]
    try:
        inspect.signature(getattr(method, name)).bind(*wanted)
    except TypeError:
        place = describe_definition(getattr(type(method), name))
        raise BadInput(f"method {name_class(type(method))}: {place}{name}() must take the arguments (self, "
                       f"{', '.join(wanted)})") from None


def refuse_wrong_stage(method: Method, found: object, number: int) -> None:
    """Raise BadInput for what is not the place of one of so many stages."""
    if not isinstance(found, int | np.integer) or not 0 <= found < number:
        given = f" that is {found}" if isinstance(found, int | np.integer) else ""
        refuse_returned(method, "stage_of", found, f"a place from 0 to {number - 1} in the list of stages()", given)
