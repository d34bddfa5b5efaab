"""FedBABU: a head that never moves, a transcription, and the evaluation of the model before and after fine-tuning."""
from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedmpi.errors import BadInput
from fedmpi.methods.fedbabu import FedBABU
from fedmpi.testing.contract import describe_run
from fedmpi.testing.subject import Subject
from tests.clients.normed import lab
from tests.federations import Digits, OtherTests
from tests.methods.reference import HEADS
from tests.methods.trial import ROUNDS, again, correct, evaluated, mean, near, run
from tests.runs import run_alone


def fedbabu(ref):
    """Return the averaged model."""
    w = ref.start
    for t in range(ROUNDS):
        who = ref.who(t)
        w = mean([ref.sgd(w, ref.batches(i, t), t, moving=lambda name: name not in HEADS) for i in who.ids], who.sizes)
    return w


def tuned(ref, i, w, ft):
    """Fine-tuning has the rate of round 0: it does not decay."""
    return ref.sgd(w, ref.batches(i, ROUNDS, stream=1, epochs=ft), 0)


def unadapted(lab, client):
    return lab.method.unadapted(lab.shared, lab.mine(client))


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("share", [1., .6])
def test_fedbabu_is_its_formula(share):
    found = run("fedbabu", share, ft=3)
    ref = again(found)
    w = fedbabu(ref)
    near(found.shared.phi, w[:ref.cut])
    for c in range(8):
        near(unadapted(found, c), w)
        near(evaluated(found, c), tuned(ref, c, w, 3))


def test_the_head_never_moves():
    """The head is not sent either; but fine-tuning moves it."""
    found = run("fedbabu", rounds=10)
    model, h = found.method.model, found.method.model.h
    assert all(torch.equal(unadapted(found, c)[h], model.start[h]) for c in range(8))
    assert found.method.traffic(found.shared, found.up) == 2 * (4 * model.base.size,)
    assert (evaluated(found, 2)[h] - model.start[h]).abs().max() > 1e-3


def test_fine_tuning_starts_from_the_last_averaged_model_and_leaves_no_trace():
    plain, long = run("fedbabu", ft=0), run("fedbabu", ft=6)
    # Evaluate in every round.
    for t in range(ROUNDS, 2 * ROUNDS):
        plain.round(t, evaluates=True)
        long.round(t, evaluates=True)
    assert plain.digest() == long.digest()
    for c in range(8):
        assert torch.equal(evaluated(plain, c), unadapted(long, c)) and unadapted(plain, c) is None
        assert (evaluated(long, c) - unadapted(long, c)).abs().max() > 1e-3


def test_more_fine_tuning_leads_farther():
    gaps = [float((evaluated(found, 2) - found.method.global_model(found.shared)).norm())
            for found in (run("fedbabu", ft=ft) for ft in (0, 1, 5, 20))]
    assert gaps == sorted(gaps) and len(set(gaps)) == 4 and gaps[0] == 0


def test_fine_tuning_sees_no_test_sample():
    found, other = run("fedbabu"), run("fedbabu", federation=OtherTests(Digits()))
    assert all(torch.equal(evaluated(found, c), evaluated(other, c)) for c in range(8))


def test_the_fine_tuned_model_is_evaluated_and_the_averaged_one_beside_it():
    found = run("fedbabu", rounds=ROUNDS - 1)
    found.round(ROUNDS - 1, evaluates=True)
    table, ref = found.evaluate(ROUNDS), again(found)
    w = fedbabu(ref)
    assert table[:, 0, 1].tolist() == [correct(found, c, tuned(ref, c, w, 5)) for c in range(8)]
    assert table[:, 2, 1].tolist() == [correct(found, c, w) for c in range(8)]
    # No other model is in the books.
    assert not np.any(table[:, 1])


def test_both_accuracies_are_in_the_books(tmp_path, cache):
    config, out = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(json.dumps(describe_run(Subject(FedBABU, "fedbabu"), str(cache))))
    assert run_alone(config, ["train.lr=.2", "train.steps=40"], str(out)) == 0
    for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        assert line["accuracy_mean"] > line["accuracy_mean_unadapted"] + .1
        assert "accuracy_mean_after" not in line


@pytest.mark.parametrize("policy", ["local", "average"])
def test_a_head_with_statistics_is_refused_since_it_is_never_trained(policy):
    """They would stay at 0 and 1, while training normalises by those of the batches."""
    with pytest.raises(BadInput, match=r"^model\.head: FedBABU never trains its head, .* choose a head without it"):
        lab("fedbabu", policy, head=("5", "6", "8"))
    assert lab("fedbabu", policy).method.model.buffers
