"""What clients train in order to be judged has the learning rate of the round just trained."""
from __future__ import annotations

import pytest

ADAPTING = ("fedbabu", "{name: per_fedavg, alpha: null}", "fedgroup", "fedcr")
MEASURES = ("accuracy", "f1", "loss", "auc")


def measures(bench, name) -> list[dict]:
    """Return what was measured in each round."""
    return [{key: value for key, value in line.items() if key.startswith(MEASURES)} for line in bench.metrics(name)]


@pytest.mark.parametrize("method", ADAPTING)
def test_a_milestone_after_the_last_round_changes_nothing(method, bench):
    """Neither clients nor new clients are judged at a rate at which no round has trained."""
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
