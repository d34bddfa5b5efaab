"""Counts of gradient steps equal those of formulas, and are the same in both engines and in the dry run."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmpi.config.schema import Evaluate
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.dry_run import count_steps_by_kind
from fedmpi.engines.loop import Loop
from fedmpi.engines.step_counter import EVALUATED, KINDS, OTHERS, PARTICIPANTS, StepCounter
from fedmpi.engines.vmap import Vmap
from fedmpi.models.build import make_blank_samples
from fedmpi.server.step_totals import StepTotals
from tests.clients.verbs import VERBS, Bench
from tests.federations import TRAIN, Digits, Lab, method, mlp
from tests.methods.table import KINDS as SOME
from tests.methods.table import NAMES, REST, SHOWN

# Training samples that give short, whole and single batches.
SIZES = (20, 1, 17, 3, 10, 23, 11, 8)
ALL = [pytest.param(name, marks=() if name in (*SOME, "fedala", "fedah", "ifca_cam", "per_fedavg") else REST)
       for name in NAMES]
# FedALA has its default number of passes, so that its clients stop after different numbers of them.
LONG = SHOWN | {"fedala": {}}
# Steps of a client with 20 samples: 2 epochs of 2 batches.
BY_HAND = [
    ("fedavg", {}, {"main": 4}), ("fedprox_plus", {"K": 3}, {"main": 12}), ("ditto", {}, {"main": 8}),
    ("pfedme", {"K": 5}, {"main": 20}), ("per_fedavg", {}, {"main": 8, "judging": 1}),
    ("per_fedavg", {"order": 2}, {"main": 16, "judging": 1}), ("fedrep", {}, {"head": 20, "main": 4}),
    ("fedah", {"mix_epochs": 3}, {"mix": 6, "head": 2, "main": 4, "judging": 6}),
    ("fedala", {}, {"mix": 2, "main": 4, "judging": 2}), ("pfedcam", {}, {"mix": 2, "main": 4, "judging": 2}),
    ("fedbabu", {}, {"main": 4, "fine_tuning": 10}), ("fedcr", {"ft": 3}, {"main": 4, "fine_tuning": 6}),
    ("fedmhc", {"anchor": "local"}, {"main": 8}), ("fedfomo", {}, {"main": 4}), ("local", {}, {"main": 4})]


def local(**settings):
    return LocalTraining(**{"seed": 0, "round": 0, "batch": 10, "epochs": 2, "steps": None, "lr": .1, "momentum": 0.}
                 | settings)


def table(counter) -> dict:
    """Return the steps that were counted: whose -> kind -> steps."""
    found = counter.take().reshape(-1, len(KINDS))
    return {whose: {kind: int(n) for kind, n in zip(KINDS, row, strict=True) if n} for whose, row in enumerate(found)}


@pytest.mark.parametrize("name, settings, expected", BY_HAND, ids=lambda v: v if isinstance(v, str) else "")
def test_steps_of_a_method_by_hand(name, settings, expected):
    of = method(name, mlp(), **settings)
    assert count_steps_by_kind(of, *of.init(8), make_blank_samples((64,), "float32"), 20, local()) == expected


def test_additive_models_warm_up_first_and_then_train_two():
    ifca = method("ifca_cam", mlp(), warm_up=6)
    shared, mine = ifca.init(8)
    stages = ifca.stages(shared, 10)
    assert [n for n, _ in stages] == [6, 4] and [n for n, _ in ifca.stages(shared, 5)] == [5, 0]
    assert [ifca.stage_of(shared._replace(round=torch.tensor(t))) for t in (0, 5, 6, 9)] == [0, 0, 1, 1]
    found = [
        count_steps_by_kind(ifca, stage, mine, make_blank_samples((64,), "float32"), 20, local()) for _, stage in stages
    ]
    assert found == [{"warm_up": 4}, {"main": 8}]
    fesem = method("fesem_cam", mlp(), warm_up=3, warm_steps=7)
    shared, mine = fesem.init(8)
    (none, _), (n, stage) = fesem.stages(shared, 10)
    assert fesem.stage_of(stage) == 1
    assert (none, n) == (0, 10)
    assert count_steps_by_kind(fesem, stage, mine, make_blank_samples((64,), "float32"), 20, local()) == {"main": 8}
    assert count_steps_by_kind(fesem, shared, mine, make_blank_samples((64,), "float32"), 20, local(round=-1)) == {
        "warm_up": 21
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("settings", [{}, {"steps": 3}], ids=["epochs", "steps"])
def test_both_engines_and_the_dry_run_count_alike(name, settings):
    """Steps of two rounds are counted, also those of evaluation; FedALA's first time ends for each client by itself."""
    found = []
    for engine in (Loop(), Vmap()):
        of, train = method(name, mlp(), **LONG.get(name, {})), replace(TRAIN, **settings)
        lab = Lab(of, Digits(SIZES), engine, train, share=.6)
        lab.open()
        opened = table(lab.group.counter)
        first, shared = lab.group.store.first, lab.shared
        lab.evaluate(0), lab.group.counter.take()
        who = lab.round(0)
        trained = table(lab.group.counter)
        lab.round(1, evaluates=True)
        found.append([opened, trained, table(lab.group.counter)])
    assert found[0] == found[1]
    expected = dict.fromkeys(KINDS, 0)
    for i in who.ids:
        of = count_steps_by_kind(
            lab.method, shared, first, make_blank_samples((64,), "float32"), SIZES[i], lab.group.plan_training(0)
        )
        for kind in of.keys() - {"judging", "fine_tuning"}:
            expected[kind] += of[kind]
    # The dry run does not know who has a group already.
    if name == "fedgroup":
        expected["warm_up"] = trained[PARTICIPANTS].get("warm_up")
    assert trained == {PARTICIPANTS: {k: n for k, n in expected.items() if n}, OTHERS: {}, EVALUATED: {}}
    assert set(opened[PARTICIPANTS]) <= {"warm_up"} and set(found[0][2][EVALUATED]) <= {"judging", "fine_tuning"}


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_makes_as_many_steps_with_both_engines(name):
    found = []
    for engine in (Loop(), Vmap()):
        bench = Bench()
        bench.counter.begin(PARTICIPANTS)
        bench.run(engine, VERBS[name])
        found.append(table(bench.counter))
    assert found[0] == found[1]


def test_clients_that_idle_count_apart_and_those_that_are_only_evaluated_not_at_all():
    lab = Lab(method("fedah", mlp(), mix_everyone=True), Digits(SIZES), share=.6,
              evaluate=Evaluate(after_training="all"))
    who = lab.round(0, evaluates=False)
    others = np.setdiff1d(range(8), who.ids)
    batches = [-(-SIZES[i] // 10) for i in range(8)]
    counted = table(lab.group.counter)
    assert counted[OTHERS] == {"mix": sum(batches[i] for i in others)}
    assert counted[PARTICIPANTS] == dict.fromkeys(("mix", "head", "main"), sum(batches[i] for i in who.ids))
    # The others train too, for the evaluation after training.
    who = lab.train(1, evaluates=True)
    again = table(lab.group.counter)
    assert again[PARTICIPANTS]["main"] == sum(batches[i] for i in who.ids) and again[EVALUATED] == {}
    assert again[OTHERS] == {"mix": sum(batches[i] for i in np.setdiff1d(range(8), who.ids))}


def test_a_client_for_which_the_flag_does_not_hold_keeps_its_weights_and_makes_no_steps():
    bench = Bench()

    # Clients have strengths 0, .2, .4, ...
    def small(model, shared, mine, data):
        return data.descend(model, mine.w, where=mine.s > .3)
    for engine in (Loop(), Vmap()):
        bench.counter.begin(PARTICIPANTS)
        found = bench.run(engine, small, epochs=1)
        assert table(bench.counter)[PARTICIPANTS] == {"main": sum(-(-n // 10) for n in (11, 3, 10))}
        for c in range(5):
            assert torch.equal(found[c], bench.store.read(c).w) == (c < 2)


def test_an_unknown_kind_is_named():
    said = r"data.with_batches\(kind='heads'\): no kind of steps; give one of main, head, mix"
    with pytest.raises(ValueError, match=said):
        Bench().run(
            Loop(), lambda model, shared, mine, data: data.with_batches(1, 2, kind="heads").descend(model, mine.w))


def test_what_nobody_asked_to_count_is_not_counted():
    counter = StepCounter()
    counter.add("main", 3)
    counter.begin(EVALUATED)
    counter.add("mix", 2), counter.add("fine_tuning", 5)
    assert table(counter) == {PARTICIPANTS: {}, OTHERS: {}, EVALUATED: {"judging": 2, "fine_tuning": 5}}
    assert not counter.take().any()


def test_a_run_says_what_its_clients_did(bench):
    """So does a run that was interrupted; a warm-up before the first round counts in the steps behind a model."""
    words = ["method={name: fesem_cam, k: 2, warm_up: 2, warm_steps: 4}", "evaluate.every=2"]
    assert bench.lead("cut", *words, "rounds=2") == 0 and bench.lead("whole", *words) == 0
    assert bench.lead("cut", *words, resume="auto") == 0
    lines = {line["round"]: line for line in bench.metrics("whole")}
    assert lines[0]["steps_so_far"] == lines[0]["steps"] == {"warm_up": 8}
    assert lines[3]["steps"] == {"main": 10} and lines[3]["steps_so_far"] == {"main": 20, "warm_up": 8}
    assert [bench.result(name)["steps_so_far"] for name in ("cut", "whole")] == [{"main": 20, "warm_up": 8}] * 2


def test_totals_are_means_and_whole_where_they_can_be():
    # counts of two ranks
    def steps(**counts):
        rows = np.zeros((2, 3 * len(KINDS)))
        for name, (rank, whose, n) in counts.items():
            rows[rank, whose * len(KINDS) + KINDS.index(name)] = n
        return rows
    totals = StepTotals()
    facts = totals.add_round(steps(main=(0, PARTICIPANTS, 30), mix=(1, OTHERS, 8), judging=(1, EVALUATED, 16)), 3, 8)
    assert facts == {"steps": {"main": 10, "judging": 2}, "steps_so_far": {"main": 3.75, "mix": 1, "judging": 2}}
    facts = StepTotals.of(totals.saved()).add_round(steps(main=(1, PARTICIPANTS, 2), judging=(0, EVALUATED, 8)), 4, 8)
    assert facts == {"steps": {"main": .5, "judging": 1}, "steps_so_far": {"main": 4, "mix": 1, "judging": 1}}
    assert type(facts["steps_so_far"]["main"]) is int
    # A checkpoint of fedmpi 0.1 has no counts.
    unknown = StepTotals.of(None)
    assert unknown.add_round(steps(main=(0, PARTICIPANTS, 2)), 1, 8) == {"steps": {"main": 2}}
    assert unknown.saved() is None
