"""Refuse what a method's server code computed if it holds numbers that are not finite, and what a user's own method
logged if the run's files cannot hold it, before anything is saved.

Updates of clients are checked where they are summed (comm/exact.py), so such numbers come from the method itself."""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from torch import Tensor

from fedmpi.clients.measures import CLIENT_MEASURES
from fedmpi.clients.returned import describe_value, name_class
from fedmpi.comm.exact import BadWeights
from fedmpi.config.evaluation import CLIENT_COLUMNS
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.json_values import fits_json
from fedmpi.method import Method, Participants, State
from fedmpi.own_code.places import is_built_in
from fedmpi.server.metrics import (
    ENDINGS,
    FACTS_OF_CLUSTERS,
    make_history_columns,
    make_metrics_line,
    summarise_newcomers,
)
from fedmpi.storage.folder import replace_non_finite
from fedmpi.storage.run_status import LISTS_OF_A_ROUND, is_round
from fedmpi.task import TASKS, MeasureNames

# What a line of metrics.jsonl says of each round beside the clients' measures.
FACTS_OF_A_ROUND = (
    "round", "participants", "available", "candidates", "mib_candidates", "mib_idle", "late", "work_share", "lost",
    "bad_updates", "mib_per_client_round", "T_comp", "T_comm", "E_comp", "E_comm", "simulated_seconds_round",
    "simulated_seconds", "steps", "steps_so_far", "clients_moved", "seconds", "seconds_train", "seconds_judge",
    "imbalance", "idle_share", "bytes_sent_by_server", "bytes_received_by_server", "memory_mib", "memory_mib_server",
    "gpu_memory_mib")


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


def refuse_wrong_log(method: Method, who: Participants, names: MeasureNames) -> None:
    """Raise BadInput if the run's files cannot hold what a user's own method logged of a round.

    Args:
        who: the participants, with what was logged of them.
        names: of the run's measures, which a method cannot take."""
    if is_built_in(type(method)):
        return
    start, facts, n = f"method {name_class(type(method))}: who.log", dict(who.facts), len(who.ids)
    if "clusters" in facts:
        labels, k = read_clusters(facts.pop("clusters")), facts.pop("k", None)
        if not isinstance(k, int | np.integer):
            raise BadInput(f"{start}(clusters=...): give the number of clusters, too, as in who.log(clusters=..., "
                           f"k=4); k is {describe_value(k)}")
        if labels.shape != (n,) or labels.dtype.kind not in "iu" or n and not 0 <= labels.min() <= labels.max() < k:
            raise BadInput(f"{start}(clusters=...): give the cluster of each of the {n} participants, an integer from "
                           f"0 to {k - 1}, not {describe_value(labels)}")
    taken = list_taken_names(names) | (FACTS_OF_CLUSTERS if "clusters" in who.facts else set())
    for name, value in facts.items():
        if not fits_json(value):
            raise BadInput(f"{start}({name}=...): give a number as float() makes it, a text, or a list of such, not "
                           f"{describe_value(value)}")
        if not is_round(replace_non_finite({"round": 1, name: value})):
            wanted = "a list of numbers" if name in LISTS_OF_A_ROUND else "a number"
            raise BadInput(f"{start}({name}=...): readers of metrics.jsonl take {name} for {wanted}, not "
                           f"{describe_value(value)}; give yours another name")
    for name, values in who.each.items():
        if not name.isidentifier():
            raise BadInput(f"{start}_per_client: {name!r} cannot name a column of history.h5; take a name of letters, "
                           "digits and _ that does not begin with a digit")
        if not holds_numbers(values, n):
            raise BadInput(f"{start}_per_client({name}=...): give a number for each of the {n} participants, not "
                           f"{describe_value(values)}")
    clash = [name for name in (*facts, *who.each) if {name, f"{name}_mean" if name in who.each else name} & taken]
    if clash:
        raise BadInput(f"{start}: a line of metrics.jsonl has a measure {clash[0]} of its own; give yours another name")
    columns = list_taken_columns(names)
    if clash := [name for name in who.each if name in columns]:
        raise BadInput(f"{start}_per_client: history.h5 has a column {clash[0]} of its own; give yours another name")


def read_clusters(values: object) -> np.ndarray:
    """Return clusters as an array, of objects if they are lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(values, object)


@cache
def list_taken_names(names: MeasureNames) -> frozenset[str]:
    """Return the names in a line of metrics.jsonl that a method cannot give to what it logs."""
    rows = np.ones((2, len(CLIENT_MEASURES) + len(names.further)))
    measures = make_metrics_line(dict.fromkeys(ENDINGS, rows), np.array([True, False]), names)
    # by which readers tell what the run has learned
    tasks = (name for task in TASKS.values() for name in (task.key, task.measure))
    return frozenset({*FACTS_OF_A_ROUND, *measures, *summarise_newcomers({"": rows}, names), *tasks})


@cache
def list_taken_columns(names: MeasureNames) -> frozenset[str]:
    """Return the names of columns of history.h5, and of tables of clients, that a method cannot give to what it logs of
    each client."""
    rows = dict.fromkeys(ENDINGS, np.ones((1, len(CLIENT_MEASURES) + len(names.further))))
    own = make_history_columns(rows, names)
    return frozenset({*own, *CLIENT_COLUMNS, "cluster", "embedding", "new_client"})


def holds_numbers(values: object, n: int) -> bool:
    """Say whether values are n numbers."""
    try:
        return np.asarray(values, float).shape == (n,)
    except (TypeError, ValueError):
        return False
