"""Refuse what a method's server code computed if it holds numbers that are not finite, before anything is saved.

Updates of clients are checked where they are summed (comm/exact.py), so such numbers come from the method itself."""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from fedmpi.comm.exact import BadWeights
from fedmpi.errors import FedmpiError
from fedmpi.method import Method, Participants, State


def is_all_finite(values: Tensor) -> bool:
    """Say whether all values are finite. The sum of squares, which takes one pass, nearly always tells."""
    flat = values.reshape(-1)
    return math.isfinite(float(flat.dot(flat))) or bool(flat.isfinite().all())


def refuse_non_finite(method: Method, shared: State, round: int) -> None:
    """Raise FedmpiError if a field of the server's new state has values that are not finite.

    Args:
        round: the round after which the state is this one."""
    for name, value in shared._asdict().items():
        if value.is_floating_point() and not is_all_finite(value):
            raise FedmpiError(
                f"{method.title}: {int((~value.isfinite()).sum())} of {value.numel()} values of the server's field "
                f"{name} are not finite after round {round}, which is not saved; look for a division by zero in "
                f"{type(method).__name__}.server, or lower train.lr")


def refuse_non_finite_message(method: Method, name: str, rows: Tensor, who: Participants) -> None:
    """Raise FedmpiError if what the server made for single clients, (n, ...), is not finite.

    Args:
        name: the field of the message.
        who: the n clients that are addressed."""
    if rows.is_floating_point() and not is_all_finite(rows):
        raise FedmpiError(f"{method.title}: in {type(method).__name__}.messages, round {who.round + 1}, field {name} "
                          f"has {int((~rows.isfinite()).sum())} values that are not finite; look for a division by "
                          "zero")


@contextmanager
def name_method_in_errors(method: Method, function: str, round: int) -> Iterator[None]:
    """Let an error about weights say in which function of which method it arose."""
    try:
        yield
    except BadWeights as error:
        raise FedmpiError(f"{method.title}: in {type(method).__name__}.{function}, round {round}, {error}") from None
