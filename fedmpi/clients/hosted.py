"""The clients that one rank hosts: their samples, their private states, and the engine that trains them.

HostedClients performs the local part of rank 0's orders; its `evaluator` takes measures, its `sums` add up rows."""
from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedmpi.clients import updates
from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.clients.evaluation import Evaluator
from fedmpi.clients.measures import load_measures
from fedmpi.clients.partial_sums import PartialSums
from fedmpi.clients.sample_cache import SampleCache
from fedmpi.clients.state_store import StateStore, copy_to_numpy
from fedmpi.comm import exact
from fedmpi.config.schema import Config
from fedmpi.context import RankContext
from fedmpi.data.federation import Federation
from fedmpi.engines import batch_plan, convolutions, engine_choice, gpu_card
from fedmpi.engines.batch_plan import LocalTraining, Portion
from fedmpi.engines.gpu_waiting import wait_for_device
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.rehearsal import make_blank_message
from fedmpi.engines.result_memory import ResultMemory
from fedmpi.engines.step_counter import EVALUATED, OTHERS, PARTICIPANTS, StepCounter
from fedmpi.errors import ROUND_GIVEN_UP, GivenUp
from fedmpi.faults import choose_attackers
from fedmpi.method import Method, State
from fedmpi.server_only import join_sent, list_sent

if TYPE_CHECKING:
    from fedmpi.engines.engine import Engine


class HostedClients:
    """The clients of one rank, in ascending order, and the engine that trains them.

    Args:
        method: the method, on a model that lies on `device`
        first_shared, first_mine: the first Shared and the first Mine of every client, from `method.init`
        engine: engines.loop.Loop or engines.vmap.Vmap
        federation: the samples of all clients
        clients: numbers of the hosted clients
        newcomers: numbers of the new clients that are evaluated here, which are never trained
        config: the run's configuration
        device: where clients are trained and their states lie
        limits: bytes for states, samples and chunks of clients; default: as the configuration says
        context: what this rank's parts share
        up: one client's Up, with which those that own methods return are compared"""

    def __init__(self, method: Method, first_shared: State, first_mine: State, engine: Engine, federation: Federation,
                 clients: Iterable[int], config: Config, device: torch.device,
                 limits: gpu_card.MemoryLimits | None = None, context: RankContext | None = None,
                 newcomers: Sequence[int] = (), up: State = None):
        self.method, self.engine, self.config, self.device = method, engine, config, device
        self.context = context or RankContext()
        self.clients, self.newcomers = [*map(int, clients)], [*newcomers]
        self.attackers = set(choose_attackers(config.attack, len(federation.sizes), config.seed).tolist())
        self.skips_bad_updates = config.faults.bad_update == "skip"
        self.limits = limits = limits or gpu_card.limit_memory(config, device)
        first = type(first_mine)(*(v.to(device) for v in first_mine))
        self.checked = CheckedMethod(method, first_mine, up, federation.classes)
        self.store = StateStore(first, limits.states, config.state.scratch if self.clients else None)
        self.samples = SampleCache(federation, device, limits.samples)
        self.evaluator = Evaluator(self, config.evaluated_on, load_measures(config.evaluate.measures))
        self.sums, self.counter = PartialSums(self), StepCounter()
        self.passes, self.results = PassMemory(), ResultMemory()
        # the server's state as it was last received
        self.shared_type: type[State] = type(first_shared)
        self._received: list[Tensor | None] = [None] * sum(list_sent(self.shared_type))
        self.shared: State = join_sent(self.shared_type, self._received)
        # of this round: the participants that train here, what they send, and the largest number of each new state
        self.here: list[int] = []
        self.ups: dict[int, State] = {}
        self.largest: dict[int, Tensor] = {}
        # for the next round: what the server addressed to clients, and the part of their steps that they make
        self.messages: dict[int, State] = {}
        self.portions: dict[int, Portion] = {}
        self.seconds = {"train": 0., "evaluate": 0.}

    def get_training_samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's training samples and labels; an attacker may flip its labels."""
        x, y, attack = self.samples[client]["x_train"], self.samples[client]["y_train"], self.config.attack
        flips = attack is not None and attack.kind == "label_flip" and client in self.attackers
        return x, self.samples.federation.classes - 1 - y if flips else y

    def plan_training(self, round: int, for_evaluation: bool = False, decays: bool = True) -> LocalTraining:
        """Return the settings of local training in a round, or of what only serves evaluation before it."""
        return batch_plan.get_local_training(self.config, round, for_evaluation, decays)

    def receive_shared(self, changed: Iterable[bool], arrays: Iterable[np.ndarray | Tensor]) -> None:
        """Take the fields of the server's state that changed, and keep the others.

        Args:
            changed: (fields that are sent,) bool
            arrays: one array or tensor for each field that changed"""
        fresh = iter(arrays)
        self._received = [torch.as_tensor(next(fresh)).to(self.device, copy=True) if is_new else kept
                          for is_new, kept in zip(changed, self._received, strict=True)]
        self.shared = join_sent(self.shared_type, self._received)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the seconds of a block to a phase."""
        begin = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - begin

    def apply(self, function: Callable[..., State], clients: list[int], shared: State, round: int,
              whose: int | None = None, for_evaluation: bool = False,
              decays: bool = True) -> Iterator[tuple[int, State]]:
        """Yield (client, function(shared, mine, data)) for each of some hosted clients, in a round; give up before
        the next client if somebody waits too long for the end.

        Args:
            whose: as what gradient steps are counted (see engines/step_counter.py); None: they are not
            for_evaluation: whether they train only to be evaluated; see get_local_training, also for `decays`"""
        self.context.round = round
        self.counter.begin(whose, warm_up=round < 0)
        self.passes.begin(shared, fills=whose == EVALUATED)
        self.results.begin(round, fills=whose == EVALUATED)
        results = self.engine.apply(function, clients, shared, self, self.plan_training(round, for_evaluation, decays))
        for done, pair in enumerate(results, 1):
            yield pair
            if done < len(clients):
                self.check_grace()
        self.counter.begin(None)
        self.context.client = None

    def check_grace(self) -> None:
        """Give the round up if somebody waits too long for its end. Engines that train many clients at once ask often.
        Raises GivenUp if the run was asked to stop more than `checkpoint.grace` seconds ago."""
        grace = self.config.checkpoint.grace
        if self.context.waits() > grace:
            raise GivenUp(f"asked to stop more than {grace:g} s ago (checkpoint.grace): {ROUND_GIVEN_UP}")

    def train(self, round: int, everybody: np.ndarray, here: Iterable[int], evaluates: bool) -> None:
        """Train the participants that are `here`; what they send stays here for `sums`.

        Args:
            round: number of the round
            everybody: the participants on all ranks, ascending
            here: those of them that train on this rank
            evaluates: measure clients right after their training, as `evaluate.after_training` says"""
        with self.timed("train"):
            self.context.has_begun = True
            evaluates = evaluates and self.checked.may_differ_after_training
            after = self.config.evaluate.after_training if evaluates else "off"
            self.here = [*map(int, here)]
            absent = np.setdiff1d(self.clients, everybody).tolist() if after == "all" or self.method.idles else []
            self._train_participants(round, evaluates=after != "off")
            # who is lost or left out does what all do that do not take part, wholly
            self.portions.clear()
            if after == "all":
                # the others train only to be measured; their new state is discarded
                for client, (mine, up) in self.apply(self.checked.client, absent, self.shared, round):
                    self.evaluator.measure_after_training(client, mine, up)
            # who does not take part has none, measured or not
            self.messages.clear()
            if self.method.idles:
                idle = sorted({*absent, *self.here} - self.ups.keys())
                for client, mine in self.apply(self.checked.idle, idle, self.shared, round, OTHERS):
                    self._keep(client, mine)
            self.evaluator.finish()
            self._refuse_bad_states()
            wait_for_device(self.device)

    def _train_participants(self, round: int, evaluates: bool) -> None:
        self.ups, self.evaluator.after_training, self.largest = dict.fromkeys(self.here), {}, {}
        for client, (mine, up) in self.apply(self.checked.client, self.here, self.shared, round, PARTICIPANTS):
            sent = updates.alter_update(self.config, self.method.model, client, client in self.attackers, self.shared,
                                        up, round)
            if self.skips_bad_updates and not updates.fits_exact_sums(mine, sent):
                # its state stays what it was
                self.ups.pop(client)
                continue
            self._keep(client, mine, known=self.skips_bad_updates)
            self.ups[client] = sent
            if evaluates:
                self.evaluator.measure_after_training(client, mine, up)

    def _keep(self, client: int, mine: State, known: bool = False) -> None:
        """Store a client's state. Note its largest number, unless the state is known to be usable."""
        self.store.write(client, mine)
        largest = [] if known else [v.abs().max().float() for v in mine if v.is_floating_point() and v.numel()]
        if largest:
            self.largest[client] = torch.stack(largest).max()

    def _refuse_bad_states(self) -> None:
        """Refuse states of which no sum could be taken: the server may never look at them. Raises NotFinite, with the
        field; `context.client` is then its client.

        The numbers of all clients are read together, since each look at a number waits for the GPU."""
        # the comparison is false for nan
        if not self.largest or (torch.stack([*self.largest.values()]) < exact.RANGE).all():
            return
        for client in self.largest:
            for name, v in self.store.read(client)._asdict().items():
                if not updates.fits_exact_sums((v,)):
                    self.context.client = client
                    raise exact.NotFinite(0, v, name, idle=client not in self.ups)

    def find_bad_updates(self, ids: np.ndarray) -> np.ndarray:
        """Return 1 for each of the participants that trained here and whose update cannot be used, else 0, (n,)."""
        return (np.isin(ids, self.here) & ~np.isin(ids, list(self.ups))).astype(np.int64)

    def add_mixed_field(self, slot: int, client: int, totals: np.ndarray | Tensor, scales: np.ndarray,
                        shape: tuple[int, ...]) -> None:
        """Keep a field of a client's message: the sums `totals` (m, d) times `scales` (m,), in this shape."""
        like, totals = self.checked.message_template, exact.read_sum(torch.as_tensor(totals))
        field = (totals * torch.from_numpy(scales).to(totals.device)[:, None]).reshape(shape).to(like[slot].dtype)
        self._keep_field(slot, client, field)

    def add_server_field(self, slot: int, client: int, row: np.ndarray) -> None:
        """Keep a field of what the server made for a hosted client alone; `row` is its bytes."""
        like = self.checked.message_template[slot]
        self._keep_field(slot, client, torch.tensor(row).view(like.dtype).view(like.shape))

    def _keep_field(self, slot: int, client: int, field: Tensor) -> None:
        fields: State = self.messages.get(client, self.checked.message_template)
        self.messages[client] = fields._replace(**{fields._fields[slot]: field.to(self.device)})

    def time_engines(self) -> np.ndarray:
        """Time both engines on the first hosted clients, (2,) seconds, with blank messages."""
        blank = make_blank_message(self.method, self.device)
        self.messages = {} if blank is None else dict.fromkeys(self.clients, blank)
        seconds = engine_choice.time_engines(self, self.shared)
        self.messages.clear()
        return seconds

    def use_engine(self, engine: str) -> None:
        """Train with another engine from now on."""
        self.engine = engine_choice.build_engine(engine, self.config, self.limits)

    def time_convolutions(self) -> np.ndarray:
        """Time both ways of every convolution on a GPU, (2, layers) seconds: grouped, as products of patches."""
        model, gpu = self.method.model, self.device.type == "cuda" and self.clients
        blank = self.get_training_samples(self.clients[0])[0][:1] if gpu else None
        return convolutions.time_layers(model, blank, self.config.train.batch, len(self.clients))

    def use_convolutions(self, unfolded: np.ndarray) -> None:
        """Compute these convolutions, (layers,) bool, as products of patches from now on."""
        names = convolutions.list_convolutions(self.method.model)
        self.engine.unfolded = [name for name, chosen in zip(names, unfolded, strict=True) if chosen]

    def describe_engine(self) -> dict[str, object]:
        """Return how clients are trained, as far as that was chosen, for result.json and checkpoints."""
        found: dict[str, object] = {"engine": self.engine.name}
        return found if self.engine.unfolded is None else found | {"convolutions": self.engine.unfolded}

    def set_portions(self, ids: np.ndarray, portions: np.ndarray) -> None:
        """Let hosted clients make a part of their steps in the next round: `portions` (n, 2) of clients `ids` (n,)."""
        self.portions = {client: Portion(*pair) for client, pair in zip(ids.tolist(), portions.tolist(), strict=True)}

    def compute_digests(self) -> np.ndarray:
        """Return the sha256 of each hosted client's state, (n, 32) uint8."""
        return self.store.compute_digests(self.clients)

    def find_touched(self) -> np.ndarray:
        """Say which hosted clients have a state of their own, (n,) bool."""
        return self.store.find_touched(self.clients)

    def collect_states(self, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the states of some hosted clients as arrays (n, ...) by field."""
        return self.store.stack(clients)

    def restore_states(self, path: str | Path, ids: np.ndarray) -> None:
        """Read the hosted clients' states from a checkpoint file that holds those of clients `ids`."""
        self.store.restore_from(path, ids, self.clients)

    def release_client(self, client: int) -> list[np.ndarray]:
        """Stop hosting a client. Return whether it has a state of its own, and the fields of its state."""
        touched, mine = self.store.find_touched([client])[0], self.store.pop(client)
        self.clients.remove(client)
        return [touched, *map(copy_to_numpy, mine)]

    def host_client(self, client: int, touched: bool, *mine: np.ndarray) -> None:
        """Host a client from now on; the arguments are what `release_client` returned."""
        bisect.insort(self.clients, client)
        if touched:
            self.store.restore(client, dict(zip(self.store.first._fields, mine, strict=True)))

    def take_seconds(self) -> tuple[float, float]:
        """Return the seconds of training and of evaluation since the last call."""
        spent, self.seconds = self.seconds, {"train": 0., "evaluate": 0.}
        return spent["train"], spent["evaluate"]

    @property
    def trains_on_gpu(self) -> bool:
        """Return whether this rank hosts clients that train on a GPU."""
        return bool(self.clients) and self.device.type == "cuda"
