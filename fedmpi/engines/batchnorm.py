"""Running statistics (BatchNorm's) that stay with their client: the policy `local`.

A model's vector holds the statistics beside the parameters (models.flat). With the policy `average` that is all: they
are averaged wherever vectors are. Here they never leave a client: in what the server sends, the client's own take the
place of those in the vector, and in what a client sends zeros do. A client's own statistics are those that its latest
training of the network left, kept beside its private state; personal models in that state keep theirs.
Which fields hold vectors is declared: see VectorKind in method.py."""
from __future__ import annotations

import dataclasses
from collections import namedtuple
from functools import cache
from typing import get_type_hints

import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import BASE, HEAD, WHOLE, Method, State, declared_kinds, kind_of_field
from fedmpi.models.flat import Model
from fedmpi.settings import setting_names


def bind_method(method: Method, model: Model) -> Method:
    """Return the method on a model, with clients that keep their statistics to themselves where the model says so.
    Raises BadInput for a method that makes other numbers of its models, in which the statistics would count."""
    local = model.buffers and model.policy == "local"
    if local and not method.supports_local_batchnorm:
        raise BadInput(f"model.statistics = local: {method.title} computes with whole models, in which a client's own "
                       "running statistics would count; set model.statistics = average, or model.norm = group")
    bound = method.with_model(model)
    if not local:
        return bound
    if not any(kinds for state in bound.init(1) for kinds in declared_kinds(type(state)).values()):
        raise BadInput(f"model.statistics = local: {method.title} does not declare which of its vectors are models; "
                       "annotate them as `w: Annotated[Tensor, WHOLE]` (or BASE, HEAD; from fedmpi.method), or set "
                       "model.statistics = average")
    return with_local_batchnorm(method).with_model(model)


def with_local_batchnorm(method: Method) -> Method:
    cls = type(method)
    ours = type(cls.__name__, (LocalBatchNorm, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return ours(**{name: getattr(method, name) for name in setting_names(cls)})


class LocalBatchNorm:
    """Goes before a method's class: its clients' Mine has one more field, `statistics`."""

    def init(self, n):
        shared, mine = super().init(n)
        return self._with(shared, None), join_state(mine, gather_statistics(self.model.start, self.model.buffers))

    def client(self, shared, mine, data):
        own, row = split_state(mine)
        new, up = super().client(self._with(shared, row), own, self._addressed(data, row))
        return join_state(new, data.left.get(len(row), row)), self._with(up, None)

    def idle(self, shared, mine, data):
        own, row = split_state(mine)
        return join_state(super().idle(self._with(shared, row), own, self._addressed(data, row)), row)

    def personal(self, shared, mine, data):
        if not hasattr(mine, "statistics"):      # a method's own client asks
            return super().personal(shared, mine, data)
        own, row = split_state(mine)
        return super().personal(self._with(shared, row), own, self._addressed(data, row))

    def unadapted(self, shared, mine):
        own, row = split_state(mine)
        return super().unadapted(self._with(shared, row), own)

    def trained(self, mine, up):
        own, row = split_state(mine)
        return super().trained(own, self._with(up, row))

    def _addressed(self, data, row):
        return data if data.message is None else dataclasses.replace(data, message=self._with(data.message, row))

    def _with(self, state: State, row: Tensor | None) -> State:
        """Return a NamedTuple whose vectors hold these statistics; None: zeros."""
        return type(state)(*(self._replaced(type(state), name, value, row) for name, value in state._asdict().items()))

    def _replaced(self, state: type, name: str, value: Tensor, row: Tensor | None) -> Tensor:
        model = self.model
        kind = kind_of_field(model, state, name, value.shape[-1]) if value.ndim else None
        if kind is None:
            return value
        # where the head's statistics begin in `row`
        first = sum(part.stop - part.start for part in model.base.buffers)
        buffers, at = {HEAD: (model.head.buffers, first), BASE: (model.base.buffers, 0), WHOLE: (model.buffers, 0)}[
            kind
        ]
        value = value.clone() if buffers else value
        for part in buffers:
            length = part.stop - part.start
            value[..., part] = 0 if row is None else row[at:at + length]
            at += length
        return value


def gather_statistics(w: Tensor, buffers: list[slice]) -> Tensor:
    """Return the statistics in a vector, one after another."""
    return torch.cat([w[part] for part in buffers])


@cache
def extend_state_class(kind: type) -> type:
    """Return a class of Mine with the field `statistics` behind those of another."""
    longer = namedtuple(kind.__name__, (*kind._fields, "statistics"))
    longer.__annotations__ = get_type_hints(kind, include_extras=True) | {"statistics": Tensor}
    longer.without = kind
    return longer


def join_state(mine: State, row: Tensor) -> State:
    return extend_state_class(type(mine))(*mine, row)


def split_state(mine: State) -> tuple[State, Tensor]:
    """Return a client's state as its method knows it, and its statistics."""
    return type(mine).without(*mine[:-1]), mine[-1]
