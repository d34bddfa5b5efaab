"""Time pfl-research's CIFAR10 benchmark, evaluated every 10 rounds, in a bare loop, in fedmpi's engines, and in other
frameworks whose Python is given, on the same cores. Pixels are random, because only time matters."""
from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch

from benchmarks import peers
from benchmarks.bare import Bare
from benchmarks.peers.shape import CLASSES, PIXELS, Shape, correct, made
from benchmarks.rig import Rig
from benchmarks.synthetic import Synthetic
from fedmpi.engines import engine_choice
from fedmpi.errors import BadInput

# Test images per client: 10,000 in all, as in CIFAR-10.
TESTS = 10
ENGINES = ("loop", "vmap")


def measure(world, clients=1000, samples=50, participants=50, batch=10, rounds=3, every=10, engines="loop,vmap",
            device="auto", hosts=False, pfl="", flower="") -> dict | None:
    """Return rank 0's table of seconds per round, including 1 / `every` of an evaluation on all test images.

    `ratio` is the first engine's seconds over the bare loop's; `cpu_ratio` compares the CPU time of all processes.
    Each rank that hosts clients runs the bare loop over its share of participants and test images, before and after
    each engine and framework, which is compared with these two runs. `pfl` and `flower` are paths of Pythons. Raises
    BadInput if a framework is not installed there, FedmpiError if it fails."""
    if unknown := [name for name in engines.split(",") if name not in ENGINES]:
        raise BadInput(f"engines = {engines}: {unknown[0]!r} is not known; there are {', '.join(ENGINES)}")
    pythons = {name: python for name, python in (("pfl", pfl), ("flower", flower)) if python}
    titles = {name: f"{name} {peers.version(name, python)}" for name, python in pythons.items()}
    rig = Rig(world, Synthetic(PIXELS, CLASSES, np.full(clients, samples), TESTS), {
        "model": f"{Shape.__module__}:CNN", "train": {"batch": batch}, "device": device,
        "server": {"hosts_clients": hosts}})
    homes = np.unique(rig.parts.pool.homes)
    shape = Shape(clients, samples, TESTS, participants, batch, rounds, len(homes),
                  "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu", rig.config.train.lr)
    bare = partial(measured, world, bare_turn(rig, shape, np.flatnonzero(homes == world.rank)), rounds)
    ours = {f"fedmpi {name}": partial(engine_turns, rig, name, shape, homes) for name in engines.split(",")}
    theirs = {titles[name]: partial(peer_turns, world, name, python, shape) for name, python in pythons.items()}
    before, rows = bare(1), []
    for title, turns in (ours | theirs).items():
        found, after = turns(), bare()
        if world.rank == 0:
            rows.append(row(title, found, np.concatenate([before, after]), every))
        before = after
    return None if world.rank else {
        "benchmark": "cohort", "clients": clients, "samples": samples, "participants": participants, "batch": batch,
        "pixels": "synthetic", "ranks": world.size, "cores": len(homes), "threads": 1, "device": shape.device,
        "ratio": rows[0]["ratio"], "rows": rows,
        "notes": [f"{name} was not measured: {peers.how(name)}" for name in peers.PEERS if name not in pythons]}


def row(title: str, found: np.ndarray, bare: np.ndarray, every: int) -> dict:
    """Compare turns (rounds, 2, 2) with the bare loop's turns before and after them, by medians."""
    seconds, alone = (np.median(turns[:, 0] + turns[:, 1] / every, 0) for turns in (found, bare))
    wall, cpu = seconds / alone
    return {"who": title, "bare_seconds": float(alone[0]), "seconds": float(seconds[0]),
            "evaluation_seconds": float(np.median(found[:, 1, 0])), "ratio": float(wall), "cpu_ratio": float(cpu)}


def measured(world, turn, rounds: int, warm: int = 0) -> np.ndarray:
    """Measure turns of all ranks after `warm` unmeasured ones; `turn(t)` yields after training and after evaluation.

    Returns (rounds, 2, 2): seconds of training and evaluation, as wall time of the slowest rank and CPU time of all."""
    spent = []
    for t in range(-warm, rounds):
        # All start together.
        world.barrier()
        stamps = [(time.perf_counter(), time.process_time())]
        stamps += [(time.perf_counter(), time.process_time()) for _ in turn(t)]
        every = world.gather(np.diff(stamps, axis=0)[None], np.ones(world.size, np.int64))
        if t >= 0 and world.rank == 0:
            spent.append(np.stack([every[..., 0].max(0), every[..., 1].sum(0)], -1))
    return np.array(spent)


def bare_turn(rig: Rig, shape: Shape, place: np.ndarray):
    """Return the bare loop's turn over this rank's share.

    Args:
        place: the rank's index among those that host clients; empty if it hosts none and has nothing to do"""
    own = [rig.parts.federation.client(c)[:2] for p in place for c in range(p, shape.participants, shape.cores)]
    bare = Bare(rig.network, own, shape.batch, shape.lr, str(rig.parts.device)) if own else None
    tests = made(0, shape.clients * shape.tests // shape.cores, str(rig.parts.device))

    def turn(t):
        if bare:
            bare.run()
        yield
        if bare:
            correct(bare.module, *tests)
        yield
    return turn


def engine_turns(rig: Rig, name: str, shape: Shape, homes: np.ndarray) -> np.ndarray:
    group = rig.parts.pool.hosted
    group.engine = engine_choice.build_engine(name, rig.config)
    # Evenly, as a run spreads clients without a state.
    ranks = homes[np.arange(shape.participants) % len(homes)]

    def turn(t):
        rig.round(t + 1, shape.participants / shape.clients, ranks)
        yield
        rig.evaluate(t)
        yield
    return measured(rig.world, turn, shape.rounds, 1)


def peer_turns(world, name: str, python: str, shape: Shape) -> np.ndarray | None:
    """Run another framework at rank 0, while the other ranks sleep until the next turn."""
    return None if world.rank else peers.timed(name, python, shape)
