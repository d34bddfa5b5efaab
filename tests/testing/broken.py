"""Methods, each of which breaks one promise of the contract."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedmpi.engines.vmap_data import VmapData
from fedmpi.method import WHOLE
from fedmpi.methods.fedavg import FedAvg, Shared, Up
from fedmpi.settings import Ge, Le

# Values that faulty methods keep from call to call.
SEEN: list[int] = []


class Mine(NamedTuple):
    w: Annotated[Tensor, WHOLE]


class Keeping(FedAvg):
    """FedAvg whose clients keep a model."""

    def init(self, n):
        return Shared(self.model.start), Mine(self.model.start)

    def client(self, shared, mine, data):
        w = data.descend(self.model, shared.w)
        return Mine(self.keep(shared, mine, w, data)), Up(w)

    def keep(self, shared, mine, w, data):
        return w.clone()


class Branching(Keeping):
    def keep(self, shared, mine, w, data):
        return w if w.sum() > 0 else -w


class Differing(Keeping):
    """Clients end elsewhere where many are trained at once."""

    def keep(self, shared, mine, w, data):
        return w * 1.001 if isinstance(data, VmapData) else w.clone()


class DifferingAtLast(FedAvg):
    """FedAvg that evaluates another model where many clients are evaluated at once."""

    def personal(self, shared, mine, data):
        return shared.w * 1.01 if isinstance(data, VmapData) else shared.w


class Idle(FedAvg):
    def client(self, shared, mine, data):
        return mine, Up(shared.w.clone())


class Growing(FedAvg):
    def server(self, shared, up, who):
        return Shared(torch.cat([up.w.mean(), torch.zeros(who.round)])[:self.model.size + who.round])

    def client(self, shared, mine, data):
        return mine, Up(data.descend(self.model, shared.w[:self.model.size]))

    def personal(self, shared, mine, data):
        return shared.w[:self.model.size]


class Widening(FedAvg):
    def server(self, shared, up, who):
        w = up.w.mean()
        return Shared(w.double() if who.round == 2 else w)


class Ending(FedAvg):
    """The last round gives nan."""

    def server(self, shared, up, who):
        return Shared(up.w.mean() * (math.nan if who.round == 2 else 1))


class BehindTheBack(FedAvg):
    def server(self, shared, up, who):
        shared.w.numpy()[:] = up.w.mean().numpy()
        return shared


class RememberingServer(FedAvg):
    """Its server computes otherwise in each run, as one that draws from a global generator does."""

    def server(self, shared, up, who):
        SEEN.append(1)
        return Shared(up.w.mean() + 1e-3 * len(SEEN))


class Numbering(Keeping):
    def keep(self, shared, mine, w, data):
        return w + 1e-3 * data.id


class Remembering(Keeping):
    def keep(self, shared, mine, w, data):
        SEEN.append(1)
        return w + 1e-3 * len(SEEN)


class RememberingTogether(Keeping):
    """Remembers where many clients are trained at once."""

    def keep(self, shared, mine, w, data):
        if isinstance(data, VmapData):
            SEEN.append(1)
        return w + 1e-3 * len(SEEN)


class FirstNumber(FedAvg):
    def server(self, shared, up, who):
        return Shared(up.w.mean() + 1e-3 * int(who.ids[0]))


class Peeping(FedAvg):
    def personal(self, shared, mine, data):
        SEEN.append(1)
        return shared.w

    def server(self, shared, up, who):
        return Shared(up.w.mean() + len(SEEN))


class Dividing(Keeping):
    """The run itself refuses an update that is not finite."""

    def keep(self, shared, mine, w, data):
        return w / (data.n - 1)


class DividingLate(FedAvg):
    """The server divides by 0 because of a client that has a single sample."""

    def server(self, shared, up, who):
        return Shared(up.w.mean() * (1. if min(who.sizes) > 1 else math.nan))


class DividingAtLast(FedAvg):
    """Judges a client that has a single sample by a model that is not finite."""

    def personal(self, shared, mine, data):
        return shared.w / (data.n - 1)


class Moody(FedAvg):
    """Judges another model each time."""

    def personal(self, shared, mine, data):
        SEEN.append(1)
        return shared.w * len(SEEN)


class Counting(FedAvg):
    def server(self, shared, up, who):
        return Shared(up.w.mean() + who.clients / len(who.ids) * len(self.count(who)))

    def count(self, who):
        SEEN.extend(who.ids.tolist())
        return SEEN


class Lending(Keeping):
    def keep(self, shared, mine, w, data):
        return shared.w


class Overwriting(Keeping):
    def keep(self, shared, mine, w, data):
        mine.w.mul_(.9)
        return w


class OverwritingAtRest(Keeping):
    def idle(self, shared, mine, data):
        mine.w.mul_(.9)
        return mine


class OverwritingAtLast(FedAvg):
    def personal(self, shared, mine, data):
        shared.w.mul_(.9)
        return shared.w.clone()


@dataclass(frozen=True)
class Unused(FedAvg):
    lam: Annotated[float, Ge(0), "has no effect"] = 1.


@dataclass(frozen=True)
class Varied(FedAvg):
    halved: bool = False
    kind: Literal["a", "b"] = "a"
    times: Annotated[int, Ge(1), Le(3)] = 1
    limit: Annotated[float | None, Le(1)] = .1
    pair: tuple[int, int] = (1, 1)


# Promise, a method that breaks it, and what is found.
BROKEN = [
    ("vectorised", Branching, "vmap: .* data-dependent control flow"),
    ("vectorised", Differing, r"^after three rounds the engines loop and vmap are \S+ apart$"),
    ("vectorised", DifferingAtLast, r"^the weights of `personal` are \S+ apart in engines loop and vmap$"),
    ("learning", Idle, r"^no number has moved by more than \.001 in three rounds$"),
    ("learning", Ending, "^not finite after three rounds: shared.w$"),
    ("shapes", Growing, r"server\(\) must return a Shared like that of init\(\), whose field w is a tensor of shape"),
    ("shapes", Widening, r"server\(\) must return a Shared like .*field w is .*float32, not .*float64$"),
    ("sending", BehindTheBack, r"^a field of Shared was changed, but is not sent: it was changed through \.numpy"),
    ("hosting", RememberingServer, "^engine loop, hosting balanced: three ranks end with another digest than one$"),
    ("hosting", RememberingTogether, "^engine vmap, hosting the server too: three ranks end with another digest"),
    ("renumbering", Numbering, "^client 0 keeps other numbers if the clients are renumbered$"),
    ("renumbering", FirstNumber, "^Shared has other numbers if the clients are renumbered$"),
    ("independence", Remembering, "^engine loop: a client ends elsewhere if others are trained before it$"),
    ("independence", RememberingTogether, "^engine vmap: a client ends elsewhere if others are trained before it$"),
    ("evaluation", Peeping, "^other test labels, or an evaluation before the last round, change what is learned$"),
    ("evaluation", Moody, "^two evaluations give two results$"),
    ("odd clients", Dividing, "^update of w has 1210 non-finite values of 1210"),
    ("odd clients", DividingLate, r"^engine loop: with odd clients shared\.w are not finite$"),
    ("odd clients", DividingAtLast, "^engine loop: a measure is not finite$"),
    ("bad updates", Counting, "^a client whose update is left out has changed what is learned$"),
    ("memory", Lending, "^engine loop: client 2 keeps or sends a tensor that lies in the memory of Shared or"),
    ("arguments", Overwriting, "^client changes its arguments$"),
    ("arguments", OverwritingAtRest, "^idle changes its arguments$"),
    ("arguments", OverwritingAtLast, "^personal changes its arguments$"),
    ("settings", Unused, r"^lam = 3\.0 changes nothing in three rounds$"),
    ("resuming", Remembering, "^a run that is saved after its first round and resumed ends elsewhere, or has other")]
