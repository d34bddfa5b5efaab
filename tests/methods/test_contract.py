"""What every method must do, whichever it is: a method joins this table by existing (see table.py for exceptions)."""
from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedmpi import registry
from fedmpi.clients.state_store import digest_of
from fedmpi.engines.loop import Loop, LoopData
from fedmpi.engines.vmap import Vmap
from fedmpi.faults import Faults
from fedmpi.method import Participants
from fedmpi.server.metrics import judged, summarise_clients
from tests import forked
from tests.federations import Lab, Odd, OtherTests, Renumbered, apart, method
from tests.methods.table import BY_CLIENT, BY_POSITION, IDLE, KINDS, NAMES, OTHER, SHOWN, alternative, marked, settings
from tests.runs import run_alone

SHARE = .6      # of the clients in each round: 5 of 8
each = pytest.mark.parametrize("name", marked(*NAMES))
engines = pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])


@pytest.fixture
def lab(mlp, federation):
    """Make laboratories of a method by name."""
    def make(name, federation=federation, share=SHARE, engine=None, lab=Lab, **settings):
        return lab(method(name, mlp, **SHOWN.get(name, {}) | settings), federation, engine, share=share)
    return make


class Observed(Lab):
    """Keeps what there was after every round, the first of which is number 0: `states` and the shapes of Shared."""

    def __init__(self, *args, **sections):
        super().__init__(*args, **sections)
        self.states, self.shapes = [], []

    def round(self, t, *args, **how):
        who = super().round(t, *args, **how)
        self.shapes.append({k: (v.shape, v.dtype) for k, v in self.shared._asdict().items()})
        if t >= 0:
            self.states.append({k: v.clone() for k, v in self.state().items()})
        return who


@pytest.fixture(scope="module")
def straight(mlp, federation):
    """Laboratories after three rounds, by method, engine and settings; run once."""
    found = {}

    def get(name, engine="loop", **settings):
        key = name, engine, repr(settings)
        if key not in found:
            of = method(name, mlp, **SHOWN.get(name, {}) | settings)
            found[key] = Observed(of, federation, in_chunks() if engine == "vmap" else Loop(), share=SHARE).go()
        return found[key]
    return get


@pytest.fixture(scope="module")
def begun(mlp, federation):
    """Laboratories after one round, by method, for tests that store nothing in them; run once."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = Lab(method(name, mlp, **SHOWN.get(name, {})), federation, share=SHARE).go(1)
        return found[name]
    return get


def in_chunks() -> Vmap:
    """Return an engine that takes 5 participants in two chunks."""
    engine = Vmap()
    engine.most = 3
    return engine


@each
def test_vectorised_is_looped(name, straight):
    assert apart(straight(name, "vmap").state(), straight(name).state()) < 1e-5


@each
def test_it_learns_something_finite(name, lab, straight):
    before, after = lab(name).state(), straight(name).state()
    assert all(v.isfinite().all() for v in after.values())
    assert apart(before, after) > 1e-3


@each
def test_the_shared_state_keeps_its_shapes(name, lab, straight):
    first = {k: (v.shape, v.dtype) for k, v in lab(name).shared._asdict().items()}
    shapes = straight(name).shapes
    assert len(shapes) >= 3 and all(later == first for later in shapes)


@each
def test_ranks_hold_the_servers_state_though_what_stays_is_not_sent_again(name, straight):
    run = straight(name)
    flags, *values = run.pool.changed_fields(run.shared)
    run.group.receive_shared(flags, values)
    assert digest_of(run.group.shared) == digest_of(run.shared)
    assert not run.pool.changed_fields(run.shared)[0].any()


@pytest.fixture(scope="module")
def on_three_ranks():
    """Digests of a method for both engines and several ways of hosting, on three forked ranks; computed once."""
    found = {}

    def get(name) -> dict:
        if name not in found:
            done = forked.run(3, "tests.methods.ranks", name)
            assert done.returncode == 0, done.stderr
            found.update(json.loads(done.stdout))
        return found[name]
    return get


@each
@engines
def test_the_same_bits_wherever_clients_are_hosted(name, engine, straight, on_three_ranks):
    found = on_three_ranks(name)[engine.name]
    assert len(found) == (2 if name in KINDS else 1)
    assert set(found.values()) == {straight(name, engine.name).digest()}


class Translated(Loop):
    """Draws the batches of the original client numbers."""

    def __init__(self, order):
        self.order = order

    def apply(self, function, clients, shared, group, local):
        for client in clients:
            data = LoopData(*group.training(client), int(self.order[client]), local, message=group.messages.get(client),
                            number=client)
            yield client, function(shared, group.store.read(client), data)


ORDER = np.array([3, 0, 7, 5, 1, 6, 2, 4])      # client i is the original's ORDER[i]
PLACE = np.argsort(ORDER)                        # the original's client c is PLACE[c]


def renumbered(lab, name, federation, rounds):
    """Run with renumbered clients, each with its own data, batches and turns."""
    run, original = lab(name, Renumbered(federation, ORDER), engine=Translated(ORDER)), lab(name)
    first = original.method.warm_up_participants(len(ORDER), original.config.seed)
    turns = [] if first is None else [(-1, first)]
    for t, ids in turns + [(t, original.who(t).ids) for t in range(rounds)]:
        ids = np.sort(PLACE[ids])
        run.round(t, Participants(ids, run.federation.sizes[ids], t, original.config.seed))
    return run


@each
def test_renumbered_clients_give_renumbered_results(name, lab, federation):
    """Server and clients after three rounds; the clients of the first where the server's draws go by position."""
    rounds = 1 if name in BY_POSITION else 3
    run, original = renumbered(lab, name, federation, rounds), lab(name).go(rounds)
    for c in range(len(ORDER)):
        assert digest_of(run.mine(PLACE[c])) == digest_of(original.mine(c)), c
    if name not in BY_POSITION:
        tables = {field: getattr(original.shared, field)[ORDER] for field in BY_CLIENT.get(name, ())}
        assert digest_of(run.shared) == digest_of(original.shared._replace(**tables))


@each
@engines
def test_a_client_does_not_depend_on_who_was_trained_before_it(name, engine, begun):
    run = begun(name)
    alone, after = (run.apply(run.method.client, ids, 1, engine)[5] for ids in ([5], [2, 6, 5]))
    for one, other in zip(tree_leaves(alone), tree_leaves(after), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0 if engine.name == "loop" else 1e-6)


@each
def test_neither_judging_nor_test_samples_have_an_influence(name, lab, federation, straight):
    """The other laboratory has never judged a client."""
    run = lab(name, OtherTests(federation)).go(judge=True)
    assert run.digest() == straight(name).digest()
    other, same = run.judge(3), straight(name).judge(3)
    assert not np.array_equal(other[:, 0], same[:, 0])      # the labels did change
    np.testing.assert_array_equal(other, run.judge(3))


@each
@engines
def test_odd_clients_are_clients(name, engine, lab, federation):
    """One has a single sample, one a single class, one no test samples: they train, and the last is not judged."""
    run = lab(name, Odd(federation), engine=engine, share=1.).go(1, judge=True)
    assert all(v.isfinite().all() for v in run.state().values())
    before = judged(run.judge(1))[""]
    assert before[2, 1] == 0 and (np.delete(before[:, 1], 2) == 12).all()
    assert np.isfinite(list(summarise_clients(before).values())).all()


class Spoiling(Loop):
    """What client 5 keeps or sends is not finite."""

    def apply(self, function, clients, shared, group, local):
        for client, result in super().apply(function, clients, shared, group, local):
            if client == 5 and function.__name__ == "client":
                result = [type(state)(*(v / 0 if v.is_floating_point() else v for v in state)) for state in result]
            yield client, result


@each
def test_a_client_whose_updates_are_bad_did_not_take_part(name, lab):
    skipping = partial(Lab, faults=Faults(bad_update="skip"))
    run, without = lab(name, engine=Spoiling(), share=1., lab=skipping).open(), lab(name, share=1.)
    first = without.method.warm_up_participants(8, run.config.seed)
    for t, ids in [(-1, first)] * (first is not None) + [(0, np.arange(8)), (1, np.arange(8))]:
        ids = ids[ids != 5]
        without.round(t, Participants(ids, run.federation.sizes[ids], t, run.config.seed))
        if t >= 0:
            np.testing.assert_array_equal(run.round(t).ids, ids)
    assert run.digest() == without.digest()


def blocks(state) -> set[int]:
    """Return the memory that the tensors of a state lie in."""
    return {t.untyped_storage().data_ptr() for t in tree_leaves(tuple(state)) if t.numel()}


@each
@engines
def test_nothing_is_held_in_common(name, engine, begun):
    """No client's state or update lies in the memory of the server's state or of another client's."""
    run = begun(name)
    results = run.apply(run.method.client, [0, 2, 5], 1, engine)
    for client, result in results.items():
        others = [blocks(tree_leaves(r)) for c, r in results.items() if c != client]
        stored = [blocks(run.mine(c)) for c in run.group.clients if c != client]
        assert not blocks(tree_leaves(result)) & set().union(blocks(run.shared), *others, *stored)


@each
def test_a_method_changes_no_argument(name, begun):
    run = begun(name)
    before = digest_of(run.shared), [digest_of(run.mine(c)) for c in run.group.clients]
    for function in (run.method.client, run.method.idle, run.method.personal):
        run.apply(function, run.group.clients, 1)
    assert (digest_of(run.shared), [digest_of(run.mine(c)) for c in run.group.clients]) == before


@pytest.mark.parametrize("name, setting", marked(*settings()))
def test_every_setting_matters(name, setting, lab, straight):
    """A coefficient that changes nothing is one that is not in the gradient."""
    if (name, setting) in IDLE:
        pytest.skip(IDLE[name, setting])
    value, both = OTHER.get((name, setting)) or (alternative(registry.find_class("methods", name), setting), {})
    other = lab(name, **both | {setting: value}).open()
    for t, state in enumerate(straight(name, **both).states):
        other.round(t)
        if apart(state, other.state()) > 1e-6:
            return
    raise AssertionError(f"{setting} = {value} changes nothing in {t + 1} rounds")


def configured(path, cache, name) -> str:
    """Write the configuration of two small rounds on a prepared federation."""
    path.write_text(json.dumps({
        "rounds": 2, "seed": 4, "engine": "loop", "method": {"name": name, **SHOWN.get(name, {})},
        "model": {"name": "mlp", "hidden": 8},
        "data": {"clients": 9, "cache": str(cache), "fraction": .3, "partition": {"name": "dirichlet", "beta": .2}},
        "train": {"lr": .05, "participation": .5, "steps": 4}, "checkpoint": {"every": 1}}))
    return str(path)


@each
def test_saved_and_resumed_is_straight_through(name, tmp_path, cache):
    """The run ends, and is then put back to where a kill in its second round would have left it."""
    config, out = configured(tmp_path / "c.yaml", cache, name), tmp_path / "run"
    assert run_alone(config, [], str(out)) == 0
    straight = found(out)
    (out / "result.json").unlink()
    (out / "checkpoints" / "round-000002.h5").unlink()
    assert (out / "checkpoints" / "round-000001.h5").exists()
    assert run_alone(config, [], str(out), "auto") == 0
    assert found(out) == straight and len(straight[1]) == 2


def found(out) -> tuple[str, list[dict]]:
    """Return the digest of a run and its books."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return json.loads((out / "result.json").read_text())["digest"], [without_times(line) for line in lines]


def without_times(line: str) -> dict:
    return {k: v for k, v in json.loads(line).items() if not k.startswith("seconds") and k != "imbalance"}
