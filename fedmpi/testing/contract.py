"""What every method promises, each as a function of a Subject that raises Broken. PROMISES lists them in words, with
what to do about one that is not kept."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from fedmpi.clients.state_store import compute_digest
from fedmpi.comm.transport import Transport
from fedmpi.engines.engine import Engine
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.faults import Faults
from fedmpi.method import State
from fedmpi.python_api import run as run_federation
from fedmpi.server.metrics import split_measures, summarise_clients
from fedmpi.server_only import join_sent, select_sent
from fedmpi.task import MeasureNames
from fedmpi.testing.federations import OddClients, OtherTests
from fedmpi.testing.lab import Lab
from fedmpi.testing.subject import Broken, Subject
from fedmpi.testing.thread_ranks import run_ranks
from fedmpi.testing.variants import (
    PLACE,
    RENUMBERING,
    SHARE,
    SPOILED,
    SpoilingLoop,
    compute_hosted_digest,
    list_tensors,
    measure_distance,
    renumber,
)
from fedmpi.torch_compat import locate_memory

# Engine -> ways of hosting under which a run is repeated on three ranks.
WAYS: dict[str, tuple[str, ...]] = {"loop": ("balanced", "moving"), "vmap": ("the server too",)}
# How far the engines may be apart after three rounds, and how far a change must at least move some number. Engines
# agree to 1e-5 in a step; on one kind of processor FedFomo, which divides by distances of models, comes to 1.2e-5.
NEAR, MOVED = 2e-5, 1e-6


def make_engine(name: str) -> Engine:
    """Return an engine by its name."""
    return Vmap() if name == "vmap" else Loop()


def compare_engines(subject: Subject) -> None:
    """Train one by one and many at once, and make the models that clients are evaluated with in both ways."""
    run = subject.straight()
    found = measure_distance(subject.straight("vmap").state(), run.state())
    if not found < NEAR:
        raise Broken(f"after three rounds the engines loop and vmap are {found:.2g} apart")
    used = (run.apply(run.method.personal, [2, 5, 6], 3, engine) for engine in (Loop(), Vmap()))
    one, other = (torch.cat([v.flatten() for c in (2, 5, 6) for v in list_tensors(weights[c])]) for weights in used)
    if not torch.allclose(one, other, rtol=0, atol=NEAR):
        raise Broken(f"the weights of `personal` are {(one - other).abs().max():.2g} apart in engines loop and vmap")


def check_learning(subject: Subject) -> None:
    """Look at what was learned in three rounds."""
    before, after = subject.straight().began, subject.straight().state()
    bad = [name for name, v in after.items() if not v.isfinite().all()]
    if bad:
        raise Broken(f"not finite after three rounds: {', '.join(bad)}")
    if not measure_distance(before, after) > 1e-3:
        raise Broken("no number has moved by more than .001 in three rounds")


def check_shapes(subject: Subject) -> None:
    """Compare the shapes of Shared after each round."""
    first, *later = subject.straight().shapes
    for t, shapes in enumerate(later, 1):
        differ = [name for name in first if shapes.get(name) != first[name]]
        if differ or shapes.keys() != first.keys():
            raise Broken(f"Shared has other fields, shapes or types after round {t}: {', '.join(differ)}")


def check_sending(subject: Subject) -> None:
    """Send what has changed of Shared, and compare what ranks then hold."""
    run = subject.straight()
    flags, *values = run.pool.list_changed_fields(run.shared)
    run.group.receive_shared(flags, values)
    if compute_digest(sent_alone(run.group.shared)) != compute_digest(sent_alone(run.shared)):
        raise Broken("a field of Shared was changed, but is not sent: it was changed through .numpy()")


def sent_alone(shared: State) -> State:
    """Return a Shared with zeros in place of what is SERVER_ONLY."""
    fields = join_sent(type(shared), select_sent(shared))._asdict()
    return type(shared)(*(v if isinstance(v, torch.Tensor) else torch.zeros(0) for v in fields.values()))


def check_hosting(subject: Subject) -> None:
    """Repeat three rounds on three ranks that host the clients in several ways."""
    for engine, ways in WAYS.items():
        for how in ways:
            def work(world: Transport, engine: str = engine, how: str = how) -> str | None:
                return compute_hosted_digest(world, subject.make(), subject.federation, make_engine(engine), how)
            if run_ranks(3, work) != subject.straight(engine).digest():
                raise Broken(f"engine {engine}, hosting {how}: three ranks end with another digest than one")


def check_renumbering(subject: Subject) -> None:
    """Give the clients other numbers, and compare what each keeps, and the server's state."""
    original, rounds = (subject.begun, 1) if subject.by_position else (subject.straight(), 3)
    run = renumber(subject.make(), subject.federation, original, rounds)
    for c in range(len(RENUMBERING)):
        if compute_digest(run.mine(int(PLACE[c]))) != compute_digest(original.mine(c)):
            raise Broken(f"client {c} keeps other numbers if the clients are renumbered")
    if not subject.by_position:
        tables = {field: getattr(original.shared, field)[RENUMBERING] for field in subject.by_client}
        if compute_digest(run.shared) != compute_digest(original.shared._replace(**tables)):
            raise Broken("Shared has other numbers if the clients are renumbered")


def check_independence(subject: Subject) -> None:
    """Train a client after others, and alone."""
    run = subject.begun
    for engine in (Loop(), Vmap()):
        alone = run.apply(run.method.client, [5], 1, engine)[5]
        for one, other in zip(list_tensors(alone), list_tensors(subject.trained(engine)[5]), strict=True):
            if not torch.allclose(one, other, rtol=0, atol=0 if engine.name == "loop" else 1e-6):
                raise Broken(f"engine {engine.name}: a client ends elsewhere if others are trained before it")


def check_evaluation(subject: Subject) -> None:
    """Permute the test labels, and evaluate before the last round."""
    run = Lab(subject.make(), OtherTests(subject.federation), share=SHARE).go(1)
    run.round(1, evaluates=True)
    run.round(2)
    if run.digest() != subject.straight().digest():
        raise Broken("other test labels, or an evaluation before the last round, change what is learned")
    other, same = run.evaluate(3), subject.straight().evaluate(3)
    if np.array_equal(other[:, 0], same[:, 0]):
        raise Broken("permuted test labels do not change the measures")
    if not np.array_equal(other, run.evaluate(3), equal_nan=True):
        raise Broken("two evaluations give two results")


def check_odd_clients(subject: Subject) -> None:
    """Train and evaluate with a client of one sample, one of a single class, and one without test samples."""
    for engine in (Loop(), Vmap()):
        run = Lab(subject.make(), OddClients(subject.federation), engine).go(1, evaluates=True)
        bad = [name for name, v in run.state().items() if not v.isfinite().all()]
        if bad:
            raise Broken(f"engine {engine.name}: with odd clients {', '.join(bad)} are not finite")
        before = split_measures(run.evaluated)[""]
        if before[2, 1] != 0 or (np.delete(before[:, 1], 2) != 12).any():
            raise Broken(f"engine {engine.name}: not all test samples of each client are evaluated")
        if not np.isfinite(list(summarise_clients(before, MeasureNames(subject.federation.task, ())).values())).all():
            raise Broken(f"engine {engine.name}: a measure is not finite")


def check_bad_updates(subject: Subject) -> None:
    """Let a client send what cannot be used, and repeat the run without it."""
    run = Lab(subject.make(), subject.federation, SpoilingLoop(), faults=Faults(bad_update="skip")).open()
    without = Lab(subject.make(), subject.federation)
    first = without.method.warm_up_participants(8, run.config.seed)
    for t, ids in [(-1, first)] * (first is not None) + [(0, np.arange(8)), (1, np.arange(8))]:
        ids = np.setdiff1d(ids, [SPOILED])
        without.round(t, without.choose(ids, t))
        if t >= 0 and not np.array_equal(run.round(t).ids, ids):
            raise Broken("a client whose update is not finite takes part")
    if run.digest() != without.digest():
        raise Broken("a client whose update is left out has changed what is learned")


def find_memory(state: State) -> set[int]:
    """Return the memory that the tensors of a state lie in."""
    return {locate_memory(t) for t in list_tensors(tuple(state))
            if isinstance(t, torch.Tensor) and t.numel()}


def check_memory(subject: Subject) -> None:
    """Look for memory that two clients, or a client and the server, have in common."""
    run = subject.begun
    for engine in (Loop(), Vmap()):
        results = subject.trained(engine)
        for client, result in results.items():
            others = [find_memory(list_tensors(r)) for c, r in results.items() if c != client]
            stored = [find_memory(run.mine(c)) for c in run.group.clients if c != client]
            if find_memory(list_tensors(result)) & set().union(find_memory(run.shared), *others, *stored):
                raise Broken(f"engine {engine.name}: client {client} keeps or sends a tensor that lies in the memory "
                             "of Shared or of another client")


def check_arguments(subject: Subject) -> None:
    """Call the functions of clients, and look whether what they were given has changed."""
    run = subject.begun
    before = compute_digest(run.shared), [compute_digest(run.mine(c)) for c in run.group.clients]
    for function in (run.method.client, run.method.idle, run.method.personal):
        run.apply(function, run.group.clients, 1)
        if (compute_digest(run.shared), [compute_digest(run.mine(c)) for c in run.group.clients]) != before:
            raise Broken(f"{function.__name__} changes its arguments")


def check_setting(subject: Subject, setting: str) -> None:
    """Change one setting, and compare three rounds, and then what is evaluated."""
    value, both = subject.choose_other(setting)
    other = Lab(subject.make(**{**both, setting: value}), subject.federation, share=SHARE).open()
    straight = subject.straight(settings=both)
    for t, state in enumerate(straight.states):
        other.round(t)
        if measure_distance(state, other.state()) > MOVED:
            return
    if not np.allclose(straight.evaluate(3), other.evaluate(3), rtol=0, atol=MOVED, equal_nan=True):
        return
    raise Broken(f"{setting} = {value} changes nothing in three rounds")


def check_settings(subject: Subject) -> None:
    """Change each setting in turn, but for those that are idle."""
    for setting in subject.list_settings():
        if setting not in subject.idle:
            check_setting(subject, setting)


def describe_run(subject: Subject, cache: str) -> dict[str, object]:
    """Return the configuration of two small rounds."""
    return {"rounds": 2, "seed": 4, "engine": "loop", "method": {"name": subject.name, **subject.settings},
            "model": {"name": "mlp", "hidden": 8},
            "data": {"clients": 9, "cache": cache, "fraction": .1, "partition": {"name": "dirichlet", "beta": .2}},
            "train": {"lr": .05, "participation": .5, "steps": 4}, "checkpoint": {"every": 1}}


def check_resuming(subject: Subject) -> None:
    """End a run, put it back to where a kill in its second round would have left it, and continue it."""
    with TemporaryDirectory() as own:
        cache = subject.folder or own
        out = Path(own) / "run"
        config = describe_run(subject, cache)
        run_federation(config, out=out, quiet=True)
        straight = read_outcome_and_books(out)
        (out / "result.json").unlink()
        (out / "checkpoints" / "round-000002.h5").unlink()
        run_federation(config, out=out, resume="auto", quiet=True)
        if read_outcome_and_books(out) != straight:
            raise Broken("a run that is saved after its first round and resumed ends elsewhere, or has other books")
        shutil.rmtree(out)


def read_outcome_and_books(out: Path) -> tuple[str, list[dict[str, object]]]:
    """Return the digest of a run, and its books without what differs from start to start."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "imbalance", "memory")
    books = [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]
    return json.loads((out / "result.json").read_text())["digest"], books


class Promise(NamedTuple):
    """One promise of the contract."""
    # how tests and reports name it
    name: str
    # in words
    says: str
    # what to do about a method that does not keep it
    remedy: str
    check: Callable[[Subject], None]


PROMISES = [
    Promise("vectorised", "many clients at once give what one after another gives",
            "use torch.where in place of `if`; make every tensor that a loss or a step uses one of its `args` or part "
            "of its state", compare_engines),
    Promise("learning", "it learns something finite", "find divisions by 0; return what was trained", check_learning),
    Promise("shapes", "Shared keeps its fields, shapes and types",
            "return from `server` what `init` returned, in shape and type", check_shapes),
    Promise("sending", "what changes is sent",
            "in `server`, make new tensors, or change them by PyTorch's operations in place", check_sending),
    Promise("hosting", "the same bits on any ranks", "in `server`, reduce over clients by the calls of `up` alone, and "
            "draw nothing from global generators", check_hosting),
    Promise("renumbering", "renumbered clients give renumbered results",
            "do not compute with a client's number or place; if the server draws by position, say why: "
            "by_position='...'; a table of Shared with a row for each client: by_client=('FIELD',)",
            check_renumbering),
    Promise("independence", "a client does not depend on who was trained before it",
            "keep nothing on the method object, in globals or in networks", check_independence),
    Promise("evaluation", "neither evaluation nor test samples have an influence",
            "`personal` must return weights and change nothing", check_evaluation),
    Promise("odd clients", "clients of a single sample or class are clients",
            "guard divisions by counts: clamp_min(1), torch.where", check_odd_clients),
    Promise("bad updates", "a client whose update is bad did not take part",
            "in `server`, take participants from `who` and `up` alone", check_bad_updates),
    Promise("memory", "clients and server hold nothing in common",
            "return copies: `t.clone()` of what comes from Shared, Mine or the message", check_memory),
    Promise("arguments", "no function changes its arguments", "make new tensors in place of changes in place",
            check_arguments),
    Promise("settings", "every setting matters",
            "use the setting, or name a value that matters: others={'NAME': VALUE}; one that cannot matter in three "
            "small rounds: idle={'NAME': 'reason'}", check_settings),
    Promise("resuming", "a run that is saved and resumed equals one that is not interrupted",
            "keep everything in Shared and Mine", check_resuming)]
