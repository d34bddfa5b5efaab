"""Running statistics (BatchNorm's) that stay with their client: the policy `local`.

A model's vector holds the statistics beside the parameters (models.flat). With the policy `average` nothing more is
needed: the statistics are averaged wherever vectors are. With the policy `local` they never leave a client. In what the
server sends, the client's own statistics replace those of the vector; in what a client sends, zeros replace them. A
client's own statistics are those that its latest training of the network left. They are kept beside its private state;
personal models in that state keep theirs. Methods declare which fields hold vectors, see VectorKind in method.py.

Legend: d entries of a vector, r running statistics of a model."""
from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

from torch import Tensor

from fedmpi.engines.loop_data import LoopData
from fedmpi.errors import BadInput
from fedmpi.extended_state import extend_state, strip_state
from fedmpi.method import BASE, HEAD, WHOLE, Method, State, find_kind_of_field, list_declared_kinds
from fedmpi.models.flat import Model
from fedmpi.models.slices import AVOID_STATISTICS, gather_statistics
from fedmpi.server_only import NotSent
from fedmpi.settings import list_setting_names

if TYPE_CHECKING:
    from fedmpi.client_data import ClientData
    from fedmpi.method import Weights


def bind_method(method: Method, model: Model) -> Method:
    """Return the method on a model. If the model's policy is `local`, its clients keep their statistics to themselves.

    Raises BadInput if the method needs statistics of more models than one, since a client keeps those of its latest
    training alone, or if the method does not declare which of its vectors are models."""
    local = model.buffers and model.policy == "local"
    if local and not method.supports_local_batchnorm:
        raise BadInput(f"model.running_stats = local: {method.title} mixes or keeps several models, at the server or "
                       "at a client, each of which needs running statistics of its own; set model.running_stats = "
                       f"average, or {AVOID_STATISTICS}")
    bound = method.with_model(model)
    if not local:
        return bound
    states: list[type] = [type(state) for state in bound.init(1)]
    if not any(kinds for state in states for kinds in list_declared_kinds(state).values()):
        raise BadInput(f"model.running_stats = local: {method.title} does not declare which of its vectors are models; "
                       "annotate them as `w: Annotated[Tensor, WHOLE]` (or BASE, HEAD; from fedmpi.method), or set "
                       "model.running_stats = average")
    return with_local_batchnorm(method).with_model(model)


def with_local_batchnorm(method: Method) -> Method:
    """Return a method with the same settings whose class has LocalBatchNorm as its first base. It has no model yet."""
    cls = type(method)
    about: dict[str, object] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    if cls.trained is Method.trained:
        # Else it would seem to have a model right after training.
        about["trained"] = Method.trained
    ours = type(cls.__name__, (LocalBatchNorm, cls), about)
    return ours(**{name: getattr(method, name) for name in list_setting_names(cls)})


class LocalBatchNorm(Method):
    """Keeps the running statistics of a method's clients; it is a base that goes before the method's own class.

    Each client's Mine has one more field, `statistics` (r,), which the method itself does not see."""

    def init(self, n: int) -> tuple[State, State]:
        """Return the first Shared, whose statistics are zeros, and the first Mine, with the statistics of the start."""
        shared, mine = super().init(n)
        return self._with(shared, None), join_state(mine, gather_statistics(self.model.start, self.model.buffers))

    def client(self, shared: State, mine: State, data: ClientData) -> tuple[State, State]:
        """Run one participant's round on its own statistics. Return its new Mine, with the statistics that its latest
        training of the network left, and its Up, in which they are zeros."""
        own, row = split_state(mine)
        addressed = self._addressed(data, row)
        new, up = super().client(self._with(shared, row), own, addressed)
        return join_state(new, addressed.left.get(len(row), row)), self._with(up, None)

    def idle(self, shared: State, mine: State, data: ClientData) -> State:
        """Return the new Mine of a client that does not take part in this round; its statistics stay as they are."""
        own, row = split_state(mine)
        return join_state(super().idle(self._with(shared, row), own, self._addressed(data, row)), row)

    def personal(self, shared: State, mine: State, data: ClientData) -> Weights:
        """Return the weights that a client is evaluated with, with its own statistics in what the server sent.

        A method's `client` may call it with a Mine without statistics; `shared` has the client's own then already."""
        # The method's own `client` calls it.
        if not hasattr(mine, "statistics"):
            return super().personal(shared, mine, data)
        own, row = split_state(mine)
        return super().personal(self._with(shared, row), own, self._addressed(data, row))

    def unadapted(self, shared: State, mine: State) -> Weights | None:
        """Return the weights from which `personal` trains, with the client's own statistics in what the server sent;
        None if it does not train."""
        own, row = split_state(mine)
        return super().unadapted(self._with(shared, row), own)

    def trained(self, shared: State, mine: State, up: State) -> Weights | None:
        """Return the weights right after local training, with the client's own statistics in what is sent; None if
        they do not differ from those of `personal`."""
        own, row = split_state(mine)
        return super().trained(self._with(shared, row), own, self._with(up, row))

    def traffic(self, shared: State, up: State) -> tuple[int, int]:
        """Return the bytes that one participant needs to receive and to send: all but the statistics, which stay at
        the clients."""
        bare, message = copy.copy(self), self.message_template()
        # The method's own `traffic` may count its message, once or several times
        vars(bare)["message_template"] = lambda: None if message is None else self._shortened(message)
        return super(LocalBatchNorm, bare).traffic(self._shortened(shared), self._shortened(up))

    def _addressed(self, data: ClientData, row: Tensor) -> LoopData:
        """Return the same data, whose message has the client's own statistics (r,)."""
        # Engine `vmap` refuses networks with BatchNorm.
        assert isinstance(data, LoopData)
        return data if data.message is None else dataclasses.replace(data, message=self._with(data.message, row))

    def _with(self, state: State, row: Tensor | None) -> State:
        """Return a NamedTuple whose vectors hold these statistics; None: zeros."""
        return type(state)(*(value if isinstance(value, NotSent) else self._replaced(type(state), name, value, row)
                             for name, value in state._asdict().items()))

    def _shortened(self, state: State) -> State:
        """Return a NamedTuple whose vectors are as long as what travels of them. Only lengths count, so these are
        views, and not of those numbers."""
        fields = {name: self._find_statistics(type(state), name, value)[0] for name, value in state._asdict().items()
                  if not isinstance(value, NotSent)}
        return state._replace(**{name: getattr(state, name)[..., sum(part.stop - part.start for part in buffers):]
                                 for name, buffers in fields.items() if buffers})

    def _find_statistics(self, state: type, name: str, value: Tensor) -> tuple[list[slice], int]:
        """Return the slices of the statistics in a field, and where those begin among all of a model (r,)."""
        model = self.model
        kind = find_kind_of_field(model, state, name, value.shape[-1]) if value.ndim else None
        first = sum(part.stop - part.start for part in model.base.buffers)
        return {HEAD: (model.head.buffers, first), BASE: (model.base.buffers, 0), WHOLE: (model.buffers, 0),
                None: ([], 0)}[kind]

    def _replaced(self, state: type, name: str, value: Tensor, row: Tensor | None) -> Tensor:
        buffers, at = self._find_statistics(state, name, value)
        value = value.clone() if buffers else value
        for part in buffers:
            length = part.stop - part.start
            value[..., part] = 0 if row is None else row[at:at + length]
            at += length
        return value


def join_state(mine: State, row: Tensor) -> State:
    """Return a client's state as its method knows it, with its statistics (r,) as the last field."""
    return extend_state(mine, {"statistics": Tensor}, statistics=row)


def split_state(mine: State) -> tuple[State, Tensor]:
    """Return a client's state as its method knows it, and its statistics (r,). It undoes `join_state`."""
    return strip_state(mine), mine.statistics
