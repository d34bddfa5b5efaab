"""Rehearse the functions of a user's own method before the first round, and refuse what they return if it is wrong.

A client of one blank sample shows what is kept and sent, and the server's functions run on such rows, which are all
alike. Nothing is kept. Methods of fedmpi are not rehearsed, since tests check them.

Legend of shapes: d parameters, b batch, c classes."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedmpi.clients.hosted import HostedClients
from fedmpi.clients.returned import (
    blame_function,
    describe_value,
    name_class,
    refuse_no_state,
    refuse_no_weights,
    refuse_other_arguments,
    refuse_other_state,
    refuse_returned,
    refuse_unsent_types,
    refuse_wrong_messages,
    refuse_wrong_stage,
    refuse_wrong_stages,
    refuse_wrong_traffic,
    split_pair,
)
from fedmpi.comm.orders import MINE, UP
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.rows import RowsStay, make_rows
from fedmpi.comm.transport import Counting
from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.rehearsal import REHEARSAL_TRAINING, make_blank_labels
from fedmpi.errors import BadInput
from fedmpi.method import Method, Participants, State
from fedmpi.models.build import as_input, make_blank_samples
from fedmpi.models.flat import Model
from fedmpi.models.parameters import is_same
from fedmpi.own_code.failures import describe_failure, is_ctrl_c
from fedmpi.own_code.places import describe_definition, is_built_in
from fedmpi.server.sampling import draw_participants
from fedmpi.server.state_check import refuse_wrong_log
from fedmpi.server_only import hide_server_only, refuse_server_only
from fedmpi.torch_compat import count_changes

# So many participants are enough to see what the server returns.
PARTICIPANTS_REHEARSED = 16
REQUIRED_FUNCTIONS = ("init", "client", "personal")


class BlankClients(HostedClients):
    """Clients that all send the same Up, `blank`, and train nothing."""
    blank: State

    def train(self, round: int, everybody: np.ndarray, here: Iterable[int], evaluates: bool) -> None:
        """Let every participant send the same Up."""
        self.ups = dict.fromkeys(map(int, here), self.blank)


def make_blank_pool(config: Config, federation: Federation, method: Method, shared: State, mine: State, up: State
                    ) -> RankPool:
    """Return a pool on which the server's functions can run. Its clients are all alike, and what its collectives would
    move is counted."""
    clients = len(federation.sizes)
    group = BlankClients(method, shared, mine, Loop(), federation, range(clients), config, torch.device("cpu"))
    group.blank = up
    robust = RobustMean.from_settings(config.server.aggregation, config.server.trim)
    return RankPool(Counting(), group, np.zeros(clients, np.int64), robust=robust)


def refuse_faulty_method(config: Config, federation: Federation, model: Model) -> None:
    """Raise BadInput if a function of the user's own method returns what no run can work with, and FaultyCode if it
    fails on a client of one blank sample."""
    cls = type(config.method)
    if is_built_in(cls):
        return
    if missing := [name for name in REQUIRED_FUNCTIONS if getattr(cls, name) is getattr(Method, name)]:
        raise BadInput(f"method {name_class(cls)} has no function {' and no '.join(missing)}; define it, as "
                       "fedmpi/methods/fedavg.py does")
    with torch.random.fork_rng(devices=[]):
        rehearse_round(config, federation, model)


def rehearse_round(config: Config, federation: Federation, model: Model) -> None:
    """Call the functions that a round of training and evaluation calls. Raises BadInput and FaultyCode."""
    with blame_function(config.method, "with_model"):
        method = config.method.with_model(model)
    if not isinstance(method, Method) or method.model is not model:
        refuse_returned(config.method, "with_model", method, "the method with its network: end it with `return "
                        "super().with_model(model)`")
    clients = len(federation.sizes)
    shared, mine = split_pair(method, "init", call(method, "init", clients), "(Shared, Mine)")
    again = split_pair(method, "init", call(method, "init", clients), "(Shared, Mine)")
    for state, other, part in ((shared, again[0], "the Shared"), (mine, again[1], "the Mine")):
        refuse_unsent_types(method, "init", state, part)
        refuse_unlike_first(method, state, other, part)
    note = call(method, "message_template")
    if note is not None:
        refuse_no_state(method, "message_template", note, "None or a NamedTuple of tensors", "it ")
        refuse_unsent_types(method, "message_template", note, "the message")
    sample = make_blank_samples(federation.shape, federation.dtype)
    data = LoopData(sample, make_blank_labels(model, sample.device), 0, REHEARSAL_TRAINING, message=note, model=model)
    received = hide_server_only(shared)
    kept, up = split_pair(method, "client", call_at_client(method, "client", received, mine, data), "(Mine, Up)")
    refuse_server_only(mine, up, data.message or ())
    if up._fields and type(method).server is Method.server:
        raise BadInput(f"method {name_class(type(method))} sends {', '.join(up._fields)} and has no function server, "
                       "so the server would keep its first state; define it, or send Nothing()")
    refuse_other_state(method, "client", kept, mine, "a Mine")
    # Those that train are addressed, and nobody else.
    data = replace(data, message=None)
    if not isinstance(method.idles, bool):
        raise BadInput(f"method {name_class(type(method))}: idles must be True or False, or a property that is, not "
                       f"{describe_value(method.idles)}")
    if method.idles:
        refuse_other_state(method, "idle", call_at_client(method, "idle", received, mine, data), mine, "a Mine")
    weights = call_at_client(method, "personal", received, mine, data)
    refuse_wrong_weights(method, "personal", weights, sample, federation.classes)
    for name, given in (("trained", (received, kept, up)), ("unadapted", (received, mine))):
        weights = call_at_client(method, name, *given)
        if weights is not None:
            refuse_wrong_weights(method, name, weights, sample, federation.classes)
    refuse_wrong_participants(method, call(method, "warm_up_participants", clients, config.seed), clients)
    refuse_wrong_traffic(method, call(method, "traffic", shared, up))
    stages = call(method, "stages", shared, config.rounds)
    refuse_wrong_stages(method, stages, shared)
    assert isinstance(stages, list | tuple)
    refuse_wrong_stage(method, call(method, "stage_of", shared), len(stages))
    w = call(method, "global_model", shared)
    if w is not None and not (isinstance(w, Tensor) and w.shape == (model.size,)):
        refuse_returned(method, "global_model", w, f"None, or the weights of the network, a tensor ({model.size},)")
    odd = call(method, "list_oddities", config.rounds)
    if not isinstance(odd, list) or not all(isinstance(line, str) for line in odd):
        refuse_returned(method, "list_oddities", odd, "a list of texts, [] for none")
    for name in ("server", "messages"):
        refuse_other_arguments(method, name)
    try_server(config, federation, method, shared, mine, up)


def call(method: Method, name: str, *given: object) -> object:
    """Return what a function of the method returns; its errors are those of the user's code."""
    with blame_function(method, name):
        return getattr(method, name)(*given)


def call_at_client(method: Method, name: str, *given: object) -> object:
    """Return what a function that runs at clients returns. Raises BadInput if it changes a state that it was given,
    which others are still to read."""
    states = [state for state in given if isinstance(state, tuple)]
    tensors = [(type(state).__name__, getattr(state, "_fields", ())[i], value) for state in states
               for i, value in enumerate(state) if isinstance(value, Tensor)]
    before = [count_changes(value) for *_, value in tensors]
    found = call(method, name, *given)
    for (state, field, value), version in zip(tensors, before, strict=True):
        if count_changes(value) != version:
            raise BadInput(f"method {name_class(type(method))}: {describe_definition(getattr(type(method), name))}"
                           f"{name}() changes {state}.{field} in place, which others are still to read; write "
                           "w = w + step in place of w += step or w.add_(step)")
    return found


def refuse_unlike_first(method: Method, first: State, other: State, part: str) -> None:
    """Raise BadInput if `init` returns another state when it is called again, as each rank and each restart calls it.

    Args:
        part: what the state is called."""
    where = f"method {name_class(type(method))}: {describe_definition(type(method).init)}init()"
    if first._fields != other._fields or not all(
            is_same(one.nan_to_num(), two.nan_to_num()) for one, two in zip(first, other, strict=True)):
        raise BadInput(f"{where} returns another value of {part} each time, but every rank and restart calls it; take "
                       "random numbers from np.random.default_rng((self.model.seed, STREAM)), and count nothing")


def try_server(config: Config, federation: Federation, method: Method, shared: State, mine: State, up: State
                    ) -> None:
    """Refuse what the server's functions return on rows that are all alike. If a function fails on them, that may be
    due to these rows; so it is told in a round."""
    # With sampling loss it does not matter here who is chosen.
    who = draw_participants(config, 0, federation.sizes, measure=lambda ids: np.zeros(len(ids)))
    who = who.only(np.arange(len(who.ids)) < PARTICIPANTS_REHEARSED)
    pool = make_blank_pool(config, federation, method, shared, mine, up)
    if method.message_template() is not None:
        found = attempt(method, "messages", lambda: method.messages(shared, make_rows(pool, MINE, mine), who))
        if found is not None:
            refuse_wrong_messages(method, found[0], method.message_template(), len(who.ids))
    pool.train(0, who.ids, False, shared)
    found = attempt(method, "server", lambda: method.server(shared, make_rows(pool, UP, up), who))
    if found is not None:
        refuse_other_state(method, "server", found[0], shared, "a Shared", dtypes=False)
        refuse_wrong_log(method, who, config.measure_names)


def attempt(method: Method, name: str, function: Callable[[], object]) -> tuple[object] | None:
    """Return what a function of the server returns; None if it fails.

    Raises BadInput if the function is one of fedmpi and misses what the user's own functions should have given it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return (function(),)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        misnamed = isinstance(error, AttributeError) and isinstance(error.obj, Method | Participants)
        if misnamed or isinstance(error, RowsStay | NameError):
            # whatever the rows are
            with blame_function(method, name):
                raise
        own = next((n for n in ("client", "init") if not is_built_in(getattr(type(method), n))), None)
        if own and is_built_in(getattr(type(method), name)) and isinstance(error, AttributeError | TypeError):
            place = describe_definition(getattr(type(method), own))
            raise BadInput(f"method {name_class(type(method))}: {place}{own}() returns what {name}() of "
                           f"{getattr(type(method), name).__qualname__.partition('.')[0]} cannot take: "
                           f"{describe_failure(error)}; return the same fields, or define {name}()") from error
        return None


def refuse_wrong_weights(method: Method, name: str, weights: object, sample: Tensor, classes: int) -> None:
    """Raise BadInput if weights that a function returned are not those that `predict` takes.

    Args:
        sample: one sample as stored, (1, ...)
        classes: the number of classes, c"""
    refuse_no_weights(method, name, weights)
    guilty = name if is_built_in(type(method).predict) else "predict"
    with torch.no_grad(), blame_function(method, guilty):
        method.model.eval()
        logits = method.predict(weights, as_input(sample))
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        refuse_returned(method, guilty, logits, f"logits, a tensor of shape (b, {classes})" if guilty == "predict"
                        else f"weights of which predict() makes logits of shape (b, {classes})")


def refuse_wrong_participants(method: Method, found: object, clients: int) -> None:
    """Raise BadInput for clients that cannot train before the first round."""
    if found is None:
        return
    if not (isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in "iu" and len(found)
            and found[0] >= 0 and found[-1] < clients and (np.diff(found) > 0).all()):
        refuse_returned(method, "warm_up_participants", found, "None, or an array of the numbers of clients from 0 to "
                        f"{clients - 1}, ascending")
