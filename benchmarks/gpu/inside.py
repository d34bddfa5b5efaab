"""The only file of this folder that uses fedmpi's internals, so a change there needs a change only here.

All other files use configurations, the command `fedmpi`, and plain PyTorch."""
from __future__ import annotations

import gc
import hashlib
import pkgutil
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import torch

from fedmpi.assembly import build_parts
from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.clients.state_store import compute_digest, copy_to_numpy
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.orders import UP
from fedmpi.comm.rows import make_rows
from fedmpi.comm.transport import Solo
from fedmpi.config.schema import resolve
from fedmpi.engines import convolutions, cuda_graphs, engine_choice
from fedmpi.method import Participants
from fedmpi.models import precision
from fedmpi.server.rounds import send_messages
from fedmpi.server.sampling import draw_participants

# Settings under which a method does within two rounds all that it ever does.
SHOWN = {"lcfed": {"K": 2, "D": 4}, "fedcps": {"layers": 1}, "ifca_cam": {"warm_up": 1}, "fesem_cam": {"warm_up": 0},
         "cfl": {"after": 0, "eps1": 10., "eps2": 0.}, "fedgroup": {"K": 2, "first": 2}, "pfedcam": {"K": 3},
         "cgpfl": {"K": 3}}

# The phases of a round: name -> the function that is timed.
PHASES = {
    "receive": "fedmpi.clients.hosted.HostedClients.receive_shared", "plans": "fedmpi.engines.cohort.Cohort.plans",
    "pad": "fedmpi.engines.vmap.pad_samples", "descend": "fedmpi.engines.cohort.Cohort.descend",
    "record": "fedmpi.engines.cuda_graphs.record_step", "vectorised client": "fedmpi.engines.vmap.apply_to_cohort",
    "keep": "fedmpi.clients.hosted.HostedClients._keep", "train": "fedmpi.clients.hosted.HostedClients.train",
    "sums": "fedmpi.clients.partial_sums.PartialSums.sum_weighted",
    "judge": "fedmpi.clients.evaluation.Evaluator.measure_clients",
    "server": "fedmpi.comm.rank_pool.RankPool.call"}


class Lab:
    """Runs a federation round by round in this process, with one method and one engine."""

    def __init__(self, federation, device: str, settings: dict, engine: str = "loop", **forced):
        # An earlier Lab is part of reference cycles, which hold memory of the GPU.
        gc.collect()
        self.federation = federation
        train = {"batch": 10, "lr": .05, "lr_decay": .9} | settings.pop("train", {})
        self.config = resolve({"data": {"clients": len(federation.sizes)}, "engine": "loop", "device": device,
                               "seed": 3, "train": train, **settings})
        self.parts = build_parts(Solo(), self.config, federation, server_host="")
        self.group, self.pool, self.shared = self.parts.pool.hosted, self.parts.pool, self.parts.shared
        self.checked = CheckedMethod(self.parts.method, self.group.store.first, self.parts.up, federation.classes)
        self.take(engine, **forced)

    def take(self, name: str, **forced) -> Lab:
        """Train with another engine from now on."""
        # Precision is a setting of the process, which another Lab may have changed.
        precision.set_precision(self.config.precision)
        self.group.engine = make_engine(self.config, name, **forced)
        return self

    def round(self, t: int, who: Participants | None = None) -> None:
        who = who or draw_participants(self.config, t, self.federation.sizes)
        send_messages(self.pool, self.checked, self.shared, who)
        who = who.only(self.pool.train(t, who.ids, False, self.shared))
        self.shared = self.checked.server(self.shared, make_rows(self.pool, UP, self.parts.up), who)

    def go(self, rounds: int) -> Lab:
        """Run the warm-up round, if the method has one, and the first rounds; then evaluate once."""
        ids = self.parts.method.warm_up_participants(len(self.federation.sizes), self.config.seed)
        if ids is not None:
            self.round(-1, Participants(ids, self.federation.sizes[ids], -1, self.config.seed,
                                        len(self.federation.sizes)))
        for t in range(rounds):
            self.round(t)
        self.pool.evaluate(rounds, self.shared)
        return self

    def train(self) -> None:
        """Let all clients train from the server's present state, without evaluation and the server's step."""
        self.group.receive_shared([True] * len(self.shared), [copy_to_numpy(v) for v in self.shared])
        self.group.train(0, np.arange(len(self.federation.sizes)), self.group.clients, False)

    def evaluate(self) -> None:
        self.pool.evaluate(1, self.shared)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of the server and of all clients, by name, on the CPU."""
        found = {f"shared.{name}": value.cpu() for name, value in self.shared._asdict().items()}
        for c in self.group.clients:
            own = self.group.store.read(c)._asdict()
            found |= {f"client {c}.{name}": value.cpu() for name, value in own.items()}
        return found

    def digest(self) -> str:
        """Return the digest of the final state that a run's result holds."""
        total = hashlib.sha256(compute_digest(self.shared))
        total.update(np.ascontiguousarray(self.pool.call(OrderPerformer.gather_digests)).data)
        return total.hexdigest()

    @property
    def steps(self) -> int:
        """Return the SGD steps of all clients in a round."""
        train = self.config.train
        return int(sum(train.steps or train.epochs * -(-n // train.batch) for n in self.federation.sizes))

    def network(self):
        """Return a new module like the one that is trained."""
        shape = self.federation.shape
        inputs = (shape[2], *shape[:2]) if len(shape) == 3 else tuple(shape)
        return self.config.model.build(inputs, self.federation.classes)


def make_engine(config, name: str, graphs: str = "off", chunk: int | None = None, unfolded=None):
    """Return an engine, optionally with a forced chunk width, or forced unfolded convolutions ("all", or names)."""
    engine = engine_choice.build_engine(name, replace(config, cuda_graphs=graphs))
    forced = {"most": chunk, "unfolded": unfolded}
    for attribute, value in forced.items():
        if value is not None:
            if not hasattr(engine, attribute):
                raise AttributeError(f"engine {name} has no {attribute} any more: see {__name__}.make_engine")
            setattr(engine, attribute, value)
    return engine


def convolutions_of(lab: Lab) -> list[str]:
    """Return the names of the layers that can be computed in two ways, grouped and unfolded."""
    return [name for name, layer in lab.parts.method.model.module.named_modules() if convolutions.can_convolve(layer)]


def apart(a: dict, b: dict) -> float:
    """Return the largest difference between two states; inf if their names or shapes differ, nan if a number is not
    finite in only one of them."""
    if a.keys() != b.keys() or any(a[k].shape != b[k].shape for k in a):
        return float("inf")
    return max((float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.)


def finite(state: dict) -> bool:
    return all(bool(v.isfinite().all()) for v in state.values() if v.is_floating_point())


@contextmanager
def recorder():
    """Yield a dict that counts steps that were `recorded` as CUDA graphs, and those that `fell_back`."""
    counts, original = {"recorded": 0, "fell_back": 0}, cuda_graphs.record_step

    def record(step, stream):
        try:
            found = original(step, stream)
        except RuntimeError:
            counts["fell_back"] += 1
            raise
        counts["recorded"] += 1
        return found
    with mock.patch.object(cuda_graphs, "record_step", record):
        yield counts


@contextmanager
def spoiling(before, device: str):
    """Call `before()` at the beginning of every step that is recorded, to see what a failed recording leaves behind.

    A CPU records no steps; there `before()` is called instead of the recording."""
    original = cuda_graphs.record_step

    def record(step, stream):
        def spoilt():
            before()
            step()
        if device == "cpu":
            before()
        return original(spoilt if device == "cuda" else step, stream)
    with mock.patch.object(cuda_graphs, "record_step", record):
        yield


@contextmanager
def phases(around):
    """Let each function of PHASES run within `around(name)`; yield the names of those that no longer exist."""
    gone = []
    with ExitStack() as stack:
        for name, path in PHASES.items():
            owner, _, attribute = path.rpartition(".")
            try:
                owner = pkgutil.resolve_name(owner)
                original = getattr(owner, attribute)
            except (ImportError, AttributeError):
                gone.append(name)
                continue
            stack.enter_context(mock.patch.object(owner, attribute, wrapped(original, around, name)))
        yield gone


def wrapped(original, around, name: str):
    def call(*arguments, **words):
        with around(name):
            return original(*arguments, **words)
    return call
