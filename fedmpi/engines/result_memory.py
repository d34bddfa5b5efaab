"""Results of `ClientData.once`, kept from evaluating a client to its next training.

FedALA, FedAH, FedMHC-AH and pFedCAM train a mix to evaluate a client. They begin its next round with the same mix,
trained from the same numbers on the same batches: the server has changed nothing in between."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from fedmpi.models.seeding import read_all_generators
from fedmpi.torch_compat import count_changes, locate_memory, measure_memory

if TYPE_CHECKING:
    from fedmpi.client_data import NetOrOutputs
    from fedmpi.engines.batch_plan import LocalTraining
    from fedmpi.engines.step_counter import StepCounter
    from fedmpi.models.flat import Model

# Results that hold more bytes, with the tensors that they were computed from, are not kept: they are computed again.
MOST_RESULT_BYTES = 256 << 20


class DataOfOnce(Protocol):
    """What the data of an engine tell about themselves: see LoopData and Cohort."""
    @property
    def local(self) -> LocalTraining: """Return the settings of local training."""

    @property
    def stream(self) -> int: """Return the name of the draw of batches."""

    @property
    def y(self) -> Tensor: """Return the labels, perhaps with logits beside them."""

    @property
    def made_by(self) -> Sequence[tuple[NetOrOutputs, Tensor]]: """Return what made features of the samples."""


class Call(NamedTuple):
    """A call of `once`."""
    # the clients, the function and its random draws
    name: Hashable
    # what it computes from: held, so that its memory cannot become another tensor's
    tensors: tuple[Tensor, ...]


def name_call(whose: Hashable, function: Callable[..., Tensor], tensors: Sequence[Tensor], data: DataOfOnce) -> Call:
    """Return the call of a function with these tensors and data.

    Args:
        whose: names the clients."""
    nets = tuple(net for net, _ in data.made_by)
    return Call((whose, function, data.local, data.stream, nets), (*tensors, data.y, *(w for _, w in data.made_by)))


class KnownResult(NamedTuple):
    """What a function returned for some tensors, and the steps that it made."""
    tensors: tuple[Tensor, ...]
    result: Tensor
    # counts the changes in place of each of these
    versions: tuple[int, ...]
    # (kind, steps) of each training
    steps: list[tuple[str, int]]

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Say whether these tensors equal those that it was computed from."""
        now = tuple(map(count_changes, (*self.tensors, self.result)))
        return self.versions == now and len(tensors) == len(self.tensors) and all(map(is_equal, self.tensors, tensors))


def is_equal(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors hold the same numbers; those of one memory are not read."""
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    return (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride()) or one.equal(other)


class ResultMemory:
    """Results of functions of a rank's clients: kept while clients are evaluated, recalled when they train.

    Results are kept only if they depend on nothing but the tensors: of networks whose layers are PyTorch's or fedmpi's,
    without running statistics, and if no random number was drawn from a global generator (by dropout, for example)."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[KnownResult]] = {}
        self.fills, self.bytes = False, 0
        # where what is held lies: a model of the server's counts once for all clients
        self.held: set[int] = set()
        # number of the round before which clients were evaluated
        self.round: int | None = None

    def begin(self, round: int, fills: bool) -> None:
        """Begin to evaluate clients before a round, or to train them in it. Results of another round are forgotten.

        Args:
            round: number of the round.
            fills: results are kept."""
        if fills or round != self.round:
            self.forget()
        self.fills, self.round = fills, round

    def recall(self, call: Call, counter: StepCounter) -> Tensor | None:
        """Return a copy of a known result, and count its steps; None if it is not known."""
        for known in self.known.get(call.name, ()):
            if known.is_of(call.tensors):
                for kind, steps in known.steps:
                    counter.add(kind, steps)
                return known.result.clone()
        return None

    @contextmanager
    def watch(self, call: Call, counter: StepCounter, model: Model | None) -> Iterator[Callable[[Tensor], Tensor]]:
        """Yield a function that keeps a result, if it can be kept, and returns it. The result is computed meanwhile."""
        if not self.fills or model is None or not model.plain or model.buffers:
            yield lambda result: result
            return
        before = read_all_generators()
        versions = tuple(map(count_changes, call.tensors))

        def keep(result: Tensor) -> Tensor:
            new = {locate_memory(t): measure_memory(t) for t in (*call.tensors, result)
                   if locate_memory(t) not in self.held}
            size = sum(new.values())
            if self.bytes + size <= MOST_RESULT_BYTES and read_all_generators() == before:
                self.held.update(new)
                self.bytes += size
                known = KnownResult(call.tensors, result, (*versions, count_changes(result)), steps)
                self.known.setdefault(call.name, []).append(known)
            return result
        with counter.noting() as steps:
            yield keep

    def forget(self) -> None:
        """Forget all results."""
        self.known, self.held, self.bytes = {}, set(), 0
