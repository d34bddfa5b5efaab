"""What every method must do, whichever it is: a method joins this table by existing (see table.py for exceptions)."""
from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedmpi import registry
from fedmpi.clients.state_store import compute_digest
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.faults import Faults
from fedmpi.method import Participants
from fedmpi.server.metrics import split_measures, summarise_clients
from tests import forked
from tests.federations import Lab, Odd, OtherTests, apart, method
from tests.methods.table import BY_CLIENT, BY_POSITION, IDLE, KINDS, NAMES, OTHER, SHOWN, alternative, marked, settings
from tests.methods.variants import ORDER, PLACE, Observed, Spoiling, renumber
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
def test_it_learns_something_finite(name, straight):
    before, after = straight(name).began, straight(name).state()
    assert all(v.isfinite().all() for v in after.values())
    assert apart(before, after) > 1e-3


@each
def test_the_shared_state_keeps_its_shapes(name, straight):
    first, *later = straight(name).shapes
    assert len(later) >= 3 and all(shapes == first for shapes in later)


@each
def test_ranks_hold_the_servers_state_though_what_stays_is_not_sent_again(name, straight):
    run = straight(name)
    flags, *values = run.pool.changed_fields(run.shared)
    run.group.receive_shared(flags, values)
    assert compute_digest(run.group.shared) == compute_digest(run.shared)
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


@each
def test_renumbered_clients_give_renumbered_results(name, lab, federation, straight, begun):
    """Server and clients after three rounds; the clients of the first where the server's draws go by position."""
    original, rounds = (begun(name), 1) if name in BY_POSITION else (straight(name), 3)
    run = renumber(lab, name, federation, original, rounds)
    for c in range(len(ORDER)):
        assert compute_digest(run.mine(PLACE[c])) == compute_digest(original.mine(c)), c
    if name not in BY_POSITION:
        tables = {field: getattr(original.shared, field)[ORDER] for field in BY_CLIENT.get(name, ())}
        assert compute_digest(run.shared) == compute_digest(original.shared._replace(**tables))


@pytest.fixture(scope="module")
def trained(begun):
    """What clients 2, 6 and 5 keep and send in the second round, by method and engine; computed once."""
    found = {}

    def get(name, engine):
        if (name, engine.name) not in found:
            run = begun(name)
            found[name, engine.name] = run.apply(run.method.client, [2, 6, 5], 1, engine)
        return found[name, engine.name]
    return get


@each
@engines
def test_a_client_does_not_depend_on_who_was_trained_before_it(name, engine, begun, trained):
    run = begun(name)
    alone, after = run.apply(run.method.client, [5], 1, engine)[5], trained(name, engine)[5]
    for one, other in zip(tree_leaves(alone), tree_leaves(after), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0 if engine.name == "loop" else 1e-6)


@each
def test_neither_judging_nor_test_samples_have_an_influence(name, lab, federation, straight):
    """The laboratory that judges before its last round ends as one that has judged no client."""
    run = lab(name, OtherTests(federation)).go(1)
    run.round(1, judge=True)
    run.round(2)
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
    before = split_measures(run.judged)[""]
    assert before[2, 1] == 0 and (np.delete(before[:, 1], 2) == 12).all()
    assert np.isfinite(list(summarise_clients(before).values())).all()


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
def test_nothing_is_held_in_common(name, engine, begun, trained):
    """No client's state or update lies in the memory of the server's state or of another client's."""
    run, results = begun(name), trained(name, engine)
    for client, result in results.items():
        others = [blocks(tree_leaves(r)) for c, r in results.items() if c != client]
        stored = [blocks(run.mine(c)) for c in run.group.clients if c != client]
        assert not blocks(tree_leaves(result)) & set().union(blocks(run.shared), *others, *stored)


@each
def test_a_method_changes_no_argument(name, begun):
    run = begun(name)
    before = compute_digest(run.shared), [compute_digest(run.mine(c)) for c in run.group.clients]
    for function in (run.method.client, run.method.idle, run.method.personal):
        run.apply(function, run.group.clients, 1)
    assert (compute_digest(run.shared), [compute_digest(run.mine(c)) for c in run.group.clients]) == before


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
        "data": {"clients": 9, "cache": str(cache), "fraction": .1, "partition": {"name": "dirichlet", "beta": .2}},
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
    return {k: v for k, v in json.loads(line).items() if not k.startswith(("seconds", "imbalance", "memory"))}
