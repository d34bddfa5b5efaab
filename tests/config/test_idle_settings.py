"""Settings that ask for something after the last round, or belong to a value that is not chosen, are named."""
from __future__ import annotations

import pytest

from fedmpi.config.idle_settings import list_idle_settings, list_settings_of_statistics
from fedmpi.config.schema import resolve


def idle(**values) -> list[str]:
    return list_idle_settings(resolve({"rounds": 10, **values}))


def test_milestones_from_the_last_round_on():
    step = {"lr": .1, "schedule": "step"}
    assert idle(train=step | {"milestones": [3, 9]}) == []
    assert idle(train=step | {"milestones": [9, 10, 20]}) == [
        "train.milestones = [10, 20]: the run has 10 rounds, so the rate does not change then"]


def test_embeddings_after_the_last_round():
    assert idle(evaluate={"embeddings": [1, 10]}) == []
    assert idle(evaluate={"embeddings": [1, 11]}) == [
        "evaluate.embeddings = [11]: the run has 10 rounds, so nothing is stored then"]


@pytest.mark.parametrize("every, patience, first", [
    (1, 8, None), (1, 9, 10), (3, 6, None), (3, 7, 12), (5, 1, 10), (4, 4, None), (50, 1, 100)])
def test_patience_that_outlasts_the_run(every, patience, first):
    """The first evaluation may be the best one. The run ends with its last round anyhow."""
    data = {"name": "digits", "split": [.6, .15, .25]}
    said = idle(data=data, evaluate={"every": every}, stop={"patience": patience})
    assert said == ([] if first is None else [
        f"stop.patience = {patience} cannot end the run before its last round: with evaluate.every = {every} round "
        f"{first} is the first that could, and rounds = 10"])


@pytest.mark.parametrize("section, setting, usual, unusual, owner, value", [
    ("train", "step_factor", .1, .5, "schedule", "step"), ("train", "padding", 4, 2, "augment", "crop"),
    ("server", "trim", .1, .3, "aggregation", "trimmed_mean")])
def test_what_belongs_to_a_value_that_is_not_chosen(section, setting, usual, unusual, owner, value):
    with_owner = {"schedule": {"schedule": "step", "milestones": [2]}, "augment": {"augment": ["flip", "crop"]},
                  "aggregation": {"aggregation": "trimmed_mean"}}[owner]
    assert idle(**{section: {setting: usual}}) == []
    assert idle(**{section: {setting: unusual}}) == [
        f"{section}.{setting} = {unusual} changes nothing: it belongs to {section}.{owner}={value}"]
    assert idle(**{section: {setting: unusual, **with_owner}}) == []


@pytest.mark.parametrize("train, said", [
    ({"epochs": 5}, []), ({"steps": 10}, []), ({"steps": 10, "epochs": 1}, []), ({"steps": 10, "epochs": 5}, [
        "train.epochs = 5 sets no local steps, since train.steps = 10 does; it only scales a method's other passes, "
        "such as head_epochs (train.steps = null: epochs count)"])])
def test_epochs_beside_steps(train, said):
    assert idle(train=train) == said


def test_other_changes_of_images_do_not_pad():
    assert len(idle(train={"padding": 2, "augment": ["flip"]})) == 1


@pytest.mark.parametrize("kind, said", [
    ("label_flip", ["attack.scale = 2.0 changes nothing: kind label_flip has no strength"]), ("noise", [])])
def test_a_strength_that_an_attack_does_not_have(kind, said):
    assert idle(attack={"kind": kind}) == []
    assert idle(attack={"kind": kind, "scale": 2.}) == said


@pytest.mark.parametrize("model", [{"name": "resnet18"}, {"name": "torch.nn:Linear", "in_features": 2,
                                                          "out_features": 2}])
def test_whose_statistics_are_of_a_network_that_has_none(model):
    usual, asked = (resolve({"model": model | more}) for more in ({}, {"running_stats": "average"}))
    assert list_settings_of_statistics(usual, False) == list_settings_of_statistics(asked, True) == []
    assert list_settings_of_statistics(asked, False) == [
        "model.running_stats = average changes nothing: this network has no BatchNorm"]
    assert list_settings_of_statistics(resolve({"model": "mlp"}), False) == []


@pytest.mark.parametrize("share", [1, [1, 1]])
def test_a_choice_among_clients_that_all_take_part(share):
    all_of_them = "chooses nobody: with train.participation = 1 all clients that are available take part"
    assert idle(train={"participation": share}) == []
    assert idle(train={"participation": share, "sampling": "size"}) == [f"train.sampling = size {all_of_them}"]
    assert idle(train={"participation": share, "sampling": "loss"}) == [
        f"train.sampling = loss {all_of_them}; each makes a forward pass to tell its loss, for nothing"]
    for fewer in (.9, [.9, 1]):
        assert idle(train={"participation": fewer, "sampling": "loss"}) == []
