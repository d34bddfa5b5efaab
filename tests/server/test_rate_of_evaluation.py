"""What clients train in order to be evaluated has the learning rate of the round just trained, or that of the first."""
from __future__ import annotations

import pytest

from fedmpi.engines.batch_plan import LocalTraining, change_batches
from fedmpi.python_api import InterpreterWorld
from tests.runs import run_alone

ADAPTING = ("fedbabu", "{name: per_fedavg, alpha: null}", "fedgroup", "fedcr")
MEASURES = ("accuracy", "f1", "loss", "auc")


def measures(bench, name) -> list[dict]:
    """Return what was measured in each round."""
    return [{key: value for key, value in line.items() if key.startswith(MEASURES)} for line in bench.metrics(name)]


@pytest.mark.parametrize("method", ADAPTING)
def test_a_milestone_after_the_last_round_changes_nothing(method, bench):
    """Neither clients nor new clients are evaluated at a rate at which no round has trained."""
    name = method.strip("{}").split(",")[0]
    words = (f"method={method}", *["data.new_clients=3"] * (method == "fedgroup"))
    assert bench.lead(f"{name} constant", *words) == 0
    step = ("train.schedule=step", "train.milestones=[3]", "train.step_factor=1e-12")
    assert bench.lead(f"{name} step", *words, *step) == 0
    assert measures(bench, f"{name} step") == measures(bench, f"{name} constant")
    assert bench.result(f"{name} step")["digest"] == bench.result(f"{name} constant")["digest"]


def test_a_model_is_adapted_after_the_last_round_of_a_cosine(bench):
    assert bench.lead("cosine", "method=fedbabu", "train.schedule=cosine") == 0
    last = bench.metrics("cosine")[-1]
    assert abs(last["loss"] - last["loss_unadapted"]) > .01


def test_new_clients_begin_with_the_rate_of_the_first_round(bench):
    """Local serves a new client by a model of its own, from the common start: no schedule of the others counts."""
    words = ("method=local", "data.new_clients=3")
    for schedule in ("constant", "cosine"):
        assert bench.lead(f"new {schedule}", *words, f"train.schedule={schedule}") == 0
    served = [[line["loss_new_clients"] for line in bench.metrics(f"new {schedule}")]
              for schedule in ("constant", "cosine")]
    assert served[0] == served[1]
    assert bench.metrics("new cosine")[-1]["loss"] != bench.metrics("new constant")[-1]["loss"]


def test_fine_tuning_goes_on_where_a_decay_has_left_nothing(bench):
    """1e-320 squared is 0 in floating point."""
    words = ["method=fedbabu", "train.lr_decay=1e-320", "rounds=3"]
    assert run_alone(bench.config, words, bench.out("nothing left"), world=InterpreterWorld()) == 0
    last = bench.metrics("nothing left")[-1]
    assert abs(last["loss"] - last["loss_unadapted"]) > .01


def test_fine_tuning_does_not_follow_the_schedule():
    local = LocalTraining(0, 9, 10, 1, None, .001, .5, .01, full_lr=.1)
    assert change_batches(local, 2, kind="fine_tuning")[5:8] == (.1, .5, 1.)
    assert change_batches(local, 2, kind="head")[5:8] == (.001, .5, .01)
