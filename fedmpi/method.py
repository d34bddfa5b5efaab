"""The interface of a method: the class that an author writes, and what its functions are given.

A method is a frozen dataclass (`Method`) whose fields are its settings. The engine runs `client` for every participant,
one after another or many at once. In the second case each tensor is a batch that only the engine sees. So `client` must
not branch on a tensor's value, call `.item()`, or change an argument in place. `server` runs on rank 0 alone and may
branch on data. What `data` offers is in client_data.py.

Legend of shapes: N clients, n participants, d parameters, b batch, c classes."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from fedmpi.client_data import BatchGradient as BatchGradient
from fedmpi.client_data import ClientData as ClientData
from fedmpi.client_data import RowsByField as RowsByField
from fedmpi.client_data import State as State
from fedmpi.errors import BadInput
from fedmpi.models.flat import Model
from fedmpi.server_only import SERVER_ONLY as SERVER_ONLY
from fedmpi.server_only import read_hints, select_sent
from fedmpi.settings import NO_SETTING
from fedmpi.settings import TrainSettings as TrainSettings

if TYPE_CHECKING:
    from fedmpi.comm.rows import Rows

# What `personal`, `unadapted` and `trained` return and `predict` takes: a vector (d,), or several.
Weights: TypeAlias = Tensor | tuple[Tensor, ...]

# Names that version 0.1 had for parts of this interface.
RENAMED = {"on": "with_model", "opening": "warm_up_participants", "note": "message_template", "down": "messages",
           "averages": "supports_robust_mean", "keeps_statistics": "supports_local_batchnorm"}


class VectorKind(Enum):
    """What the numbers of a field are: vectors (..., length) of whole models, of feature extractors, or of heads.

    A method declares it in its Shared, Mine, Up and messages: `w: Annotated[Tensor, WHOLE]`. BatchNorm statistics that
    stay with their client, the picture of the clients and the global model go by it. A field that is declared as
    several kinds is the first one that has its length; undeclared fields are just numbers."""
    WHOLE = "whole"
    BASE = "base"
    HEAD = "head"


WHOLE, BASE, HEAD = VectorKind


@cache
def list_declared_kinds(state: type) -> dict[str, tuple[VectorKind, ...]]:
    """Return the declared kinds of each field of a NamedTuple."""
    return {name: tuple(m for m in getattr(hint, "__metadata__", ()) if isinstance(m, VectorKind))
            for name, hint in read_hints(state).items()}


def find_kind_of_field(model: Model, state: type, name: str, length: int) -> VectorKind | None:
    """Return the kind of a field whose vectors have so many numbers, or None if they are just numbers."""
    lengths = {WHOLE: model.size, BASE: model.base.size, HEAD: model.head.size}
    return next((kind for kind in list_declared_kinds(state).get(name, ()) if lengths[kind] == length), None)


class Nothing(NamedTuple):
    """A Shared, Mine or Up without fields."""


@dataclass
class Participants:
    """The clients that take part in a round, as the server sees them."""
    # Numbers of the clients (n,) int64, ascending
    ids: np.ndarray
    # Training samples of each (n,)
    sizes: np.ndarray
    # The round's number; the warm-up round before the first one is -1
    round: int
    # The run's seed
    seed: int
    # The number of all clients, N, whether they take part or not
    clients: int = 0
    # By what lr_decay, schedule and warm-up have multiplied the learning rate of this round
    decay: float = 1.
    # What `log` and `log_per_client` were told, by name
    facts: dict[str, object] = field(default_factory=dict, init=False)
    each: dict[str, np.ndarray] = field(default_factory=dict, init=False)

    @property
    def some_are_absent(self) -> bool:
        """Whether there are clients that do not take part, whose clusters may then seem empty."""
        return len(self.ids) < self.clients

    def only(self, kept: np.ndarray) -> Participants:
        """Return those participants for which `kept` (n,) is true, with what was logged of the round."""
        some = dataclasses.replace(self, ids=self.ids[kept], sizes=self.sizes[kept])
        some.facts = dict(self.facts)
        some.each = {name: np.asarray(values)[kept] for name, values in self.each.items()}
        return some

    def copy_log_per_client(self, others: Participants) -> None:
        """Take over what `log_per_client` was told of these participants among `others`, which include them."""
        self.each |= others.only(np.isin(others.ids, self.ids)).each

    def log(self, **facts: object) -> None:
        """Write measures of this round to metrics.jsonl: `clusters` (n,) of `k`, `iterations`, `distance`, ..."""
        self.facts |= facts

    def log_per_client(self, **columns: np.ndarray) -> None:
        """Log a measure of each participant (n,). history.h5 keeps every client's last value, and metrics.jsonl their
        mean over all clients that have one, and over the clients of each planted group that has a name."""
        self.each |= columns


# Any: the field is typed as a Model, so that no use of the network has to ask whether it is there.
def set_by_with_model() -> Any:
    """Return a field that `with_model` sets. It is not a setting, configurations cannot name it, and two methods that
    differ in it alone are equal."""
    return field(default=None, kw_only=True, repr=False, compare=False, metadata=NO_SETTING)


@dataclass(frozen=True)
class Method:
    """Base of all methods. A subclass sets the class attributes, declares its settings and overrides the functions."""
    # The network
    model: Model = set_by_with_model()

    # The name as papers write it; by default that of the class
    title: ClassVar[str] = ""
    # The title of a class that declares none
    name_as_title: ClassVar[str] = ""
    # Authors, venue and year
    paper: ClassVar[str] = ""
    # The weights that a client is evaluated with
    judged_by: ClassVar[str] = ""
    # True if the method works with client-local BatchNorm statistics (model.running_stats = local): False if it mixes
    # or keeps several models, because a client keeps the statistics of its latest training alone
    supports_local_batchnorm: ClassVar[bool] = True
    # True if the method can learn numbers in place of classes (data.task = regression): False if it needs classes
    supports_targets: ClassVar[bool] = True
    # How a client that never took part is served (`data.new_clients`), in a few words; "": it cannot be served
    serves_newcomers: ClassVar[str] = ""
    # Why a participant must make all its steps ("compares ..."), so that stragglers cannot do a part of them
    # (`stragglers.late: partial`); "": it need not
    needs_full_work: ClassVar[str] = ""
    # True if every model that `server` returns is made by `mean` or `mean_by`, which `server.aggregation` may replace;
    # other calls may choose the groups
    supports_robust_mean: ClassVar[bool] = True
    # Lets fields be of types that pydantic does not know, such as Model
    __pydantic_config__: ClassVar[dict[str, bool]] = {"arbitrary_types_allowed": True}

    def __init_subclass__(cls, **words: object) -> None:
        super().__init_subclass__(**words)
        # A title is inherited, a name that stands for one is not.
        if "title" not in vars(cls) and cls.title == cls.name_as_title:
            cls.title = cls.name_as_title = cls.__name__
        for old, new in RENAMED.items():
            if isinstance(vars(cls).get(old), FunctionType | bool):
                raise BadInput(f"{cls.__module__}: {cls.__name__}.{old} is called {new} since version 0.2; rename it")

    def __post_init__(self) -> None:
        """Refuse settings that do not go together. Raises ValueError."""

    def with_model(self, model: Model) -> Method:
        """Return this method for a network. Checks that need the network belong here; they raise BadInput."""
        return dataclasses.replace(self, model=model)

    def check(self, train: TrainSettings) -> None:
        """Refuse settings that do not go with those of the training. Raises BadInput."""

    def init(self, n: int) -> tuple[State, State]:
        """Return the first Shared and the first Mine, which is the same for all n clients."""
        raise NotImplementedError

    def client(self, shared: State, mine: State, data: ClientData) -> tuple[State, State]:
        """Run one participant's round. Return its new Mine, and the Up that it sends."""
        raise NotImplementedError

    def warm_up_participants(self, n: int, seed: int) -> np.ndarray | None:
        """Return the clients (ascending numbers) that train in a round before the first one, whose number is -1; None
        if there is no such round."""
        return None

    def stages(self, shared: State, rounds: int) -> list[tuple[int, State]]:
        """Return [(rounds, Shared)], the parts of a run in which the work of a client differs. `shared` is the first
        one. `fedmpi plan`, the cost of `edge` and simulated time are worked out for each part. One that cannot be
        foreseen has no rounds."""
        return [(rounds, shared)]

    def stage_of(self, shared: State) -> int:
        """Return in which of `stages` the round is that begins with this Shared: its place in the list."""
        return 0

    def describe_uncounted_steps(self, clients: int) -> str:
        """Say which steps no plan counts in a run with so many clients, in a few words; "" for none."""
        return ""

    def list_oddities(self, rounds: int) -> list[str]:
        """Return warnings of settings with which a run of so many rounds is not what the method's name says."""
        return []

    def message_template(self) -> State:
        """Return a NamedTuple of tensors like the message that `messages` addresses to one client; None for none."""
        return None

    def messages(self, shared: State, mine: RowsByField, who: Participants) -> State:
        """Return what the server addresses to each participant beyond Shared, before it trains.

        Args:
            mine: the rows that clients keep, a row for every client.
            who: what is logged here enters the record of the round.

        Returns:
            The fields of `message_template`. Each is made by `Rows.mix`, or a tensor of the server's own with a row
            for each participant, (n, ...), which goes to that client alone."""
        return ()

    def traffic(self, shared: State, up: State) -> tuple[int, int]:
        """Return the bytes that one participant needs to receive and to send in a round.

        Args:
            shared: what the server sends in this round.
            up: one client's Up; its shapes count, not its values."""
        return nbytes(select_sent(shared)) + nbytes(self.message_template() or ()), nbytes(up)

    @property
    def idles(self) -> bool:
        """Say whether clients that do not take part in a round still run `idle` in it."""
        return False

    def idle(self, shared: State, mine: State, data: ClientData) -> State:
        """Return the new Mine of a client that does not take part in this round, if `idles`."""
        return mine

    def embedding(self, mine: RowsByField, up: RowsByField) -> Rows | None:
        """Return the rows by which t-SNE pictures clients: their heads, as they keep or else send them; None if there
        are none. Only inner products of the rows are taken, so they may be long."""
        states: tuple[State, State] = mine, up
        for state in states:
            for name, rows in state._asdict().items():
                if find_kind_of_field(self.model, type(state), name, rows.width) in (WHOLE, HEAD):
                    return rows[-self.model.head.size:]
        return None

    def server(self, shared: State, up: RowsByField, who: Participants) -> State:
        """Return the next Shared from what the participants sent. A field that was not modified is not sent again.
        Modify fields with PyTorch operations, never through .numpy(): Tensor._version tells what was modified."""
        return shared

    def personal(self, shared: State, mine: State, data: ClientData) -> Weights:
        """Return the weights that a client is evaluated with, before its next local training."""
        raise NotImplementedError

    def serve_newcomer(self, shared: State, mine: State, data: ClientData) -> Weights:
        """Return the weights with which a client is evaluated that never took part, and will not: what it may download,
        and what it does with that on its training data. Nothing is sent or kept. The weights have the form of those of
        `personal`.

        By default these are the weights of `personal` for the first Mine. A class says by `serves_newcomers` how it
        serves them.

        Args:
            mine: the first Mine.
            data: its `id` is not a row in tables of Shared that go by client, and its `message` is None."""
        return self.personal(shared, mine, data)

    def unadapted(self, shared: State, mine: State) -> Weights | None:
        """Return the weights from which `personal` trains for this client, to be evaluated as well; None if it does not
        train."""
        return None

    def trained(self, shared: State, mine: State, up: State) -> Weights | None:
        """Return the weights right after local training if they differ from those of `personal`, else None.

        Args:
            shared: what the server sent in this round.
            mine: the Mine that `client` returned.
            up: the Up that it returned."""
        return None

    def global_model(self, shared: State) -> Tensor | None:
        """Return the weights (d,) of the one model that the server has for everybody, to export; None if there is
        none. By default this is Shared's field `w`, if it is declared as WHOLE and a single model."""
        w = getattr(shared, "w", None)
        if w is None or w.ndim != 1:
            return None
        return w if find_kind_of_field(self.model, type(shared), "w", len(w)) is WHOLE else None

    def predict(self, w: Weights, x: Tensor) -> Tensor:
        """Return the logits (b, c) of weights that `personal`, `unadapted` or `trained` returned."""
        return self.model(w, x)


def nbytes(state: State) -> int:
    """Return the bytes of the tensors in a state, or in any sequence."""
    return sum(v.numel() * v.element_size() for v in state)
