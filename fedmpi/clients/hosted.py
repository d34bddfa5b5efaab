"""The clients that one rank hosts: their data, their private states, and the local part of every order of rank 0."""
from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from fedmpi.clients import updates
from fedmpi.clients.evaluation import Judge
from fedmpi.clients.measures import CLIENT_MEASURES, measure, measures
from fedmpi.clients.sample_cache import SampleCache
from fedmpi.clients.state_store import StateStore, as_numpy
from fedmpi.comm import exact
from fedmpi.comm.orders import UP
from fedmpi.config.schema import Config
from fedmpi.engines import batch_plan, convolutions, engine_choice, gpu_card
from fedmpi.engines.batch_plan import LocalTraining, generate
from fedmpi.engines.step_counter import JUDGED, OTHERS, PARTICIPANTS, StepCounter
from fedmpi.errors import GivenUp
from fedmpi.faults import attackers

ROUND_PHASES = ("train", "judge")
ON_GPU = len(ROUND_PHASES)      # column of `times`
ATTACK = 0xA77A  # stream of an attacker's noise


class HostedClients:
    """Hosted clients, ascending, and the engine that trains them. All arguments of the verbs are plain arrays."""

    def __init__(self, method, first_shared, first_mine, engine, federation, clients, config: Config,
                 device: torch.device, room: gpu_card.Room | None = None):
        self.method, self.engine, self.config, self.device = method, engine, config, device
        self.shared_type, self.shared = type(first_shared), (None,) * len(first_shared)      # as last heard
        self.clients = [int(c) for c in clients]
        self.attackers = set(attackers(config.attack, len(federation.sizes), config.seed).tolist())
        self.skips = config.faults.bad_update == "skip"
        self.room = room = room or gpu_card.room(config, device)
        self.store = StateStore(
            type(first_mine)(*(v.to(device) for v in first_mine)), room.states, config.state.scratch
        )
        self.samples = SampleCache(federation, device, room.samples)
        self.later, self.counter = Judge(self, config.judged_on, measure, measures), StepCounter()
        self.ups, self.fresh = {}, {}      # of this round: what participants send; their measures after training
        self.kept = {}                     # of this round: the largest number of each state that changed
        self.messages = {}                    # what the server addressed to clients for the next round
        self.at, self.when = None, 0       # the client and round at work, for error messages
        self.seconds = dict.fromkeys(ROUND_PHASES, 0.)
        self.waits = lambda: 0.            # seconds since this rank was asked to stop
        self.why = ""                      # this engine trains

    def training(self, client: int) -> tuple[Tensor, Tensor]:
        x, y = self.samples[client]["x_train"], self.samples[client]["y_train"]
        lies = client in self.attackers and self.config.attack.kind == "label_flip"
        return x, self.samples.federation.classes - 1 - y if lies else y

    def local(self, when: int) -> LocalTraining:
        """Return the local training of round `when`."""
        return batch_plan.of_round(self.config, when)

    def hear(self, fresh, arrays) -> None:
        """Take the fields of the server's state that changed, (fields,) bool, and keep the others."""
        arrays = iter(arrays)
        self.shared = self.shared_type(*(
            torch.as_tensor(next(arrays)).to(self.device, copy=True) if changed else kept
            for changed, kept in zip(fresh, self.shared, strict=True)))

    def apply(self, function, clients, shared, when: int, whose: int | None = None):
        """Yield (client, result); `whose` steps are counted says engines/step_counter.py, None: nobody's."""
        self.when = when
        self.counter.begin(whose, warm_up=when < 0)
        yield from self.engine.apply(function, clients, shared, self, self.local(when))
        self.counter.begin(None)
        self.at = None

    def in_time(self, function, clients, shared, when: int, whose: int):
        """The same for training, which is given up before the next client when somebody waits for the end too long."""
        for done, pair in enumerate(self.apply(function, clients, shared, when, whose), 1):
            yield pair
            if done < len(clients):
                self.check_grace()

    def check_grace(self) -> None:
        """Give the round up when somebody waits for its end too long; engines that train many at once ask it often."""
        grace = self.config.checkpoint.grace
        if self.waits() > grace:
            raise GivenUp(f"asked to stop more than {grace:g} s ago (checkpoint.grace): the round is given up")

    def train(self, when: int, everybody, here, judge: bool) -> None:
        """Train the participants that are `here`; their Up stays for the verbs below."""
        begin = time.perf_counter()
        shared, ids = self.shared, [int(i) for i in here]
        self.here, self.ups, self.fresh, self.kept = ids, dict.fromkeys(ids), {}, {}
        for client, (mine, up) in self.in_time(self.method.client, ids, shared, when, PARTICIPANTS):
            sent = self._sent(client, shared, up, when)
            if self.skips and not updates.fits_exact_sums(mine, sent):
                self.ups.pop(client)      # and its state stays what it was
                continue
            self._keep(client, mine, known=self.skips)
            self.ups[client] = sent
            if judge and self.config.evaluate.after != "off":
                self._judge_fresh(client, mine, up)
        judges_all = judge and self.config.evaluate.after == "all"
        rest = np.setdiff1d(self.clients, everybody).tolist() if self.method.idles or judges_all else []
        if self.method.idles:
            for client, mine in self.in_time(self.method.idle, rest, shared, when, OTHERS):
                self._keep(client, mine)
        if judges_all:      # as if they had taken part, without keeping it
            for client, (mine, up) in self.apply(self.method.client, rest, shared, when):
                self._judge_fresh(client, mine, up)
        self.later.settle()
        self._refuse_spoilt()
        self.messages.clear()
        convolutions.synchronize(self.device)  # a GPU's work counts where it is done; the next order would wait for it
        self.seconds["train"] += time.perf_counter() - begin

    def _sent(self, client: int, shared, up, when: int):
        """Return a client's update as the server takes it."""
        attack, most = self.config.attack, self.config.server.clip_norm
        if client in self.attackers and attack.kind != "label_flip":
            up = updates.tampered(attack, shared, up, generate(self.config.seed, when, client, ATTACK))
        return up if most is None else updates.clipped(shared, up, most)

    def _keep(self, client: int, mine, known: bool = False) -> None:
        """Store a client's state; look at its numbers, unless they are known to be usable."""
        self.store.write(client, mine)
        if known:
            return
        largest = [v.abs().max().float() for v in mine if v.is_floating_point() and v.numel()]
        if largest:
            self.kept[client] = torch.stack(largest).max()

    def _refuse_spoilt(self) -> None:
        """Raise NotFinite for a client that keeps numbers of which no sum could be taken: the server may never look.
        All clients' are read together, since each look at a number waits for the GPU."""
        if not self.kept or (torch.stack([*self.kept.values()]) < exact.RANGE).all():      # false for nan
            return
        for client in self.kept:
            for name, v in self.store.read(client)._asdict().items():
                if not updates.fits_exact_sums((v,)):
                    self.at = client
                    raise exact.NotFinite(0, v, name)

    def bad(self, ids) -> np.ndarray:
        """Return 1 for each of the participants that trained here and whose update cannot be used, (n,)."""
        return (np.isin(ids, self.here) & ~np.isin(ids, list(self.ups))).astype(np.int64)

    def _judge_fresh(self, client: int, mine, up) -> None:
        weights = self.method.trained(mine, up)
        if weights is not None:
            self.later.look(self.fresh, client, client, weights)

    def judge(self, when: int, n: int) -> np.ndarray:
        """Measure the model that each hosted client would use in round `when`: a table (n, 3 or 4, 1 + measures) of all
        n clients, in which this rank fills its own and leaves 0 elsewhere, so that ranks' tables add up.

        Columns: 1 where filled, then CLIENT_MEASURES. Entries of the second dimension: before local training, right
        after that of the last round, without what `personal` trains, and the first one on validation samples where
        these are judged beside."""
        begin = time.perf_counter()
        shared, beside, found = self.shared, len(self.later.parts) > 1, {}
        table = np.zeros((n, 3 + beside, 1 + len(CLIENT_MEASURES)))
        for client, weights in self.apply(self.method.personal, self.clients, shared, when, JUDGED):
            self.later.look(found, (client, 0), client, weights)
            if beside:
                self.later.look(found, (client, 3), client, weights, part=1)
            weights = self.method.unadapted(shared, self.store.read(client))
            if weights is not None:
                self.later.look(found, (client, 2), client, weights)
        self.later.settle()
        for place, numbers in [*found.items(), *(((client, 1), row) for client, row in self.fresh.items())]:
            table[place] = 1, *numbers
        self.seconds["judge"] += time.perf_counter() - begin
        return table

    def holders(self, source: int) -> list[int]:
        """Return the hosted clients that have a row of a source, ascending."""
        return list(self.ups) if source == UP else self.clients

    def rows(self, what) -> np.ndarray:
        """Return columns [start, stop) of a field of the hosted clients, (n, stop - start) float32."""
        clients = self.holders(what[0])
        rows = self._rows(what, clients)
        if rows and self.device.type == "cuda":      # one copy to the host, not one for each client
            rows = torch.stack(rows).cpu()
        rows = [row.float() for row in rows]
        for r, row in enumerate(rows):
            if not row.isfinite().all():
                raise self._named(exact.NotFinite(r, row), what, clients)
        return torch.stack(rows).numpy() if rows else np.empty((0, what[3] - what[2]), np.float32)

    def _rows(self, what, clients) -> list[Tensor]:
        source, field, start, stop = map(int, what)
        states = (self.ups[c] if source == UP else self.store.read(c) for c in clients)
        return [state[field].reshape(-1)[start:stop] for state in states]

    def _named(self, error: exact.NotFinite, what, clients) -> exact.NotFinite:
        """Return the same error with the field's name, and note the client."""
        self.at = clients[error.row]
        state = self.ups[self.at] if what[0] == UP else self.store.first
        return exact.NotFinite(error.row, error.values, state._fields[what[1]])

    def distances(self, what, groups: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """Return how far the hosted clients' rows are from their groups' centres (k, d), (n,)."""
        rows, centres = self._rows(what, self.holders(what[0])), torch.from_numpy(centres).to(self.device).double()
        found = [(row.double() - centres[j]).norm() for row, j in zip(rows, groups.tolist(), strict=True)]
        return torch.stack(found).cpu().numpy() if found else np.empty(0)

    def weighted(self, what, weights, groups=None, k=0) -> Tensor:
        """Return the hosted clients' part of a (grouped) weighted sum: int64 fixed point, or float32."""
        shape = (what[3] - what[2],) if groups is None else (k, what[3] - what[2])
        used, holders = np.flatnonzero(weights), self.holders(what[0])
        clients = [holders[i] for i in used]
        rows, weights, groups = self._rows(what, clients), weights[used], None if groups is None else groups[used]
        if self.config.server.reduce == "exact":
            total = torch.zeros(shape, dtype=torch.int64, device=self.device)
            try:
                exact.accumulate(rows, torch.from_numpy(weights), total,
                                 None if groups is None else torch.from_numpy(groups))
            except exact.NotFinite as error:
                raise self._named(error, what, clients) from None
            return total
        total = torch.zeros(shape, dtype=torch.float64, device=self.device)
        for r, row in enumerate(rows):
            (total if groups is None else total[int(groups[r])]).add_(row.double(), alpha=float(weights[r]))
        if not total.isfinite().all():
            r = next(r for r, row in enumerate(rows) if not row.isfinite().all())
            raise self._named(exact.NotFinite(r, rows[r]), what, clients)
        return total.float()

    def add_message(self, slot: int, client: int, totals, scales: np.ndarray, shape) -> None:
        """Keep a field of what the server addresses to a hosted client: sums of rows (m, d) with their scales (m,)."""
        like, totals = self.method.message_template(), exact.read_sum(torch.as_tensor(totals))
        field = (totals * torch.from_numpy(scales).to(totals.device)[:, None]).reshape(shape).to(like[slot].dtype)
        fields = self.messages.get(client, like)
        self.messages[client] = fields._replace(**{like._fields[slot]: field.to(self.device)})

    def probe(self) -> np.ndarray:
        """Time both engines on the first hosted clients, (2,) seconds."""
        return engine_choice.time_engines(self, self.shared)

    def use(self, engine: str) -> None:
        """Train with another engine from now on."""
        self.engine = engine_choice.engine(engine, self.config, self.room)

    def probe_layers(self) -> np.ndarray:
        """Time both ways of every convolution on a GPU, (2, layers) seconds: grouped, as products of patches."""
        model, gpu = self.method.model, self.device.type == "cuda" and self.clients
        blank = self.training(self.clients[0])[0][:1] if gpu else None
        return convolutions.time_layers(model, blank, self.config.train.batch, len(self.clients))

    def use_layers(self, unfolded: np.ndarray) -> None:
        """Compute these convolutions, (layers,) bool, as products of patches from now on."""
        names = convolutions.list_convolutions(self.method.model)
        self.engine.unfolded = [name for name, chosen in zip(names, unfolded, strict=True) if chosen]

    def chosen(self) -> dict:
        """Return how clients are trained, as far as that was chosen, for the books of the run."""
        ways = getattr(self.engine, "unfolded", None)
        return {"engine": self.engine.name, "engine_why": self.why} | ({} if ways is None else {"convolutions": ways})

    def digests(self) -> np.ndarray:
        return self.store.digests(self.clients)

    def touched(self) -> np.ndarray:
        return self.store.touched(self.clients)

    def state(self, clients) -> dict[str, np.ndarray]:
        return self.store.stacked(clients)

    def restore(self, path: str, ids: np.ndarray) -> None:
        """Read the hosted clients' rows from a checkpoint file that holds those of `ids`."""
        self.store.restore_from(path, ids, self.clients)

    def give(self, client: int) -> list[np.ndarray]:
        """Let a client go: return its state, and first whether it has one of its own."""
        touched, mine = self.store.touched([client])[0], self.store.give(client)
        self.clients.remove(client)
        return [touched, *map(as_numpy, mine)]

    def take(self, client: int, touched, *mine: np.ndarray) -> None:
        """Host a client from now on."""
        self.clients = sorted([*self.clients, client])
        if touched:
            self.store.restore(client, dict(zip(self.store.first._fields, mine, strict=True)))

    def times(self) -> np.ndarray:
        """Return and reset the seconds spent per phase, and whether this rank trains on a GPU, (phases + 1,)."""
        spent = np.array(
            [*(self.seconds[p] for p in ROUND_PHASES), bool(self.clients) and self.device.type == "cuda"], float
        )
        self.seconds = dict.fromkeys(ROUND_PHASES, 0.)
        return spent
