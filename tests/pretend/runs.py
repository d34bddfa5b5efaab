"""Runs on the simulated GPU for tests: a method is trained for two rounds, with all that a run does beside training."""
from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmpi.comm.orders import MINE, UP
from fedmpi.comm.rows import make_rows
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.method import Participants
from tests.federations import Digits, Lab, cnn, method, mlp
from tests.methods.table import SHOWN
from tests.pretend import GPU, on_gpu, pretend

# Training samples, for 4, 4, 1 and 1 steps.
SIZES = (33, 31, 3, 1)
PHASES = ("train", "server", "evaluate")


class Seen(NamedTuple):
    """The final state of a run, and the costs of its second round."""
    digest: str
    # as Lab.state, on the host
    state: dict
    # (syncs, launches) of each of PHASES
    counts: tuple
    evaluated: np.ndarray
    # (syncs, copies) of trainings of one step and of three
    steps: list
    graphs: list
    unpinned: dict
    atomic: dict
    # what the host waited for, and how often
    waits: dict


def engine(name: str):
    """Make an engine: loop, vmap, or graphs, that is vmap with CUDA graphs."""
    made = Loop() if name == "loop" else Vmap(graphs="on" if name == "graphs" else "off")
    if name != "loop":
        made.unfolded = []
    return made


def laboratory(name: str, how: str, image: bool = False, device=GPU, **sections) -> Lab:
    return Lab(method(name, (cnn if image else mlp)(), **SHOWN.get(name, {})), Digits(SIZES, test=4, image=image),
               engine(how), device=device, **sections)


def driven(name: str, how: str, image: bool = False, **sections) -> Seen:
    """Run two rounds; check that everything is where it belongs, and that states can be saved, moved and spilt."""
    with pretend() as books:
        lab = laboratory(name, how, image, **sections)
        lab.open()
        for t in range(2):
            marks = [books.now()]
            who = lab.train(t, evaluates=True)
            marks.append(books.now())
            lab.shared = lab.method.server(lab.shared, lab.rows(), who)
            marks.append(books.now())
            evaluated = lab.evaluate(t + 1)
            marks.append(books.now())
        counts = tuple((b[0] - a[0], b[1] - a[1]) for a, b in zip(marks, marks[1:], strict=False))
        placed(lab)
        digest, state = lab.digest(), {name: v.cpu() for name, v in lab.state().items()}
        lines = [books.lines(kind) for kind in ("unpinned", "atomic", "sync")]
        graphs = list(books.graphs)
        # A capture refuses waits.
        steps = [] if how == "graphs" else longer(lab, books)
        moved(lab, lab.digest())
        pictured(lab)
    return Seen(digest, state, counts, evaluated, steps, graphs, *lines)


def longer(lab, books) -> list[tuple[int, int]]:
    """Train for one step and for three; return the syncs and copies of each training."""
    who, config, spent = Participants(np.arange(2), lab.federation.sizes[:2], 5, 3), lab.group.config, []
    for number in (1, 3):
        lab.group.config = replace(config, train=replace(config.train, steps=number))
        before = books.count("sync"), books.copies
        lab.train(5, who)
        spent.append((books.count("sync") - before[0], books.copies - before[1]))
    lab.group.config = config
    return spent


def pictured(lab) -> None:
    """Check that the clients' heads reach the server."""
    rows = lab.method.embedding(*(make_rows(lab.pool, source, like) for source, like in (
        (MINE, lab.group.store.first), (UP, lab.up))))
    assert rows is None or rows.gram().isfinite().all()


def placed(lab) -> None:
    """Check that the server's state is on the host, and the clients' on the GPU."""
    assert not any(on_gpu(v) for v in lab.shared), lab.shared._fields
    states = [lab.mine(c) for c in lab.group.clients] + list(lab.group.ups.values())
    assert all(on_gpu(v) for state in states for v in state)


def moved(lab, digest: str) -> None:
    """Save and restore the clients' states, give one away and take it back, spill them; check that they stay equal."""
    store, clients = lab.group.store, list(lab.group.clients)
    rows = lab.group.collect_states(np.array(clients))
    for i, client in enumerate(clients):
        store.restore(client, {name: column[i] for name, column in rows.items()})
    assert lab.digest() == digest
    if rows:
        lab.group.host_client(3, *lab.group.release_client(3))
        assert lab.digest() == digest
        store.memory = 1
        for client in clients:
            store.write(client, store.read(client))
        assert len(store._rows) == 1 and lab.digest() == digest
    placed(lab)
