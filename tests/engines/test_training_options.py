"""Which methods refuse which settings of training, with one line that gives the reason, before anything starts."""
from __future__ import annotations

from dataclasses import replace

import pytest

from fedmpi.config.schema import Train, resolve
from fedmpi.engines import batchnorm
from fedmpi.engines.training_options import refuse_training_options
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg
from tests.federations import Digits, cnn, method, mlp
from tests.methods.table import NAMES, SHOWN

OPTIMIZERS = {"optimizer": "adamw", "weight_decay": .1, "clip_norm": 1.}
OWN_STEPS = "takes steps of its own on each batch, to which no optimizer applies; leave it out, or take another method"


def asking(model, federation):
    """Return a function that says why a method refuses settings of `train`; "" if it takes them."""
    def refusal(name, settings=None, **train) -> str:
        of = batchnorm.bind_method(method(name, model, **settings or {}), model)
        config = replace(resolve({}), train=Train(**train))
        try:
            refuse_training_options(config, federation, of)
        except BadInput as error:
            return str(error)
        return ""
    return refusal


@pytest.fixture(scope="module")
def refusal():
    return asking(mlp(), Digits((9, 4, 2)))


@pytest.fixture(scope="module")
def pictures():
    """Return such a function for a small convolutional network on images of 8 x 8."""
    return asking(cnn(), Digits((9, 4, 2), image=True))


@pytest.mark.parametrize("name", NAMES)
def test_only_methods_with_steps_of_their_own_refuse_optimizers(refusal, name):
    title = {"pfedme": "pFedMe", "cgpfl": "CGPFL", "per_fedavg": "Per-FedAvg"}.get(name)
    expected = f"train.optimizer = adamw: {title} {OWN_STEPS}" if title else ""
    assert refusal(name, SHOWN.get(name), **OPTIMIZERS) == expected
    assert refusal(name, SHOWN.get(name), momentum=.9, lr_decay=.5) == ""


@pytest.mark.parametrize("train, shown", [
    ({"weight_decay": .1}, "weight_decay = 0.1"), ({"clip_norm": 2.}, "clip_norm = 2.0"),
    ({"nesterov": True, "momentum": .5}, "nesterov = True")])
def test_each_setting_is_refused_by_name(refusal, train, shown):
    assert refusal("fedmhc", {"anchor": "local"}, **train) == f"train.{shown}: FedMHC {OWN_STEPS}"
    assert refusal("fedmhc", {"anchor": "global"}, **train) == ""


@pytest.mark.parametrize("name", NAMES)
def test_only_losses_of_a_methods_own_refuse_smoothed_labels(refusal, name):
    title = {"fedcr": "FedCR", "fedsr": "FedSR"}.get(name)
    expected = (f"train.label_smoothing = 0.1: {title} trains a loss of its own, whose labels stay as they are; leave "
                "it out, or take another method") if title else ""
    assert refusal(name, SHOWN.get(name), label_smoothing=.1) == expected


def test_a_loss_that_is_scaled_is_one_of_the_methods_own(refusal):
    assert "FeSEM trains a loss of its own" in refusal("fesem", {"scale_by_share": True}, label_smoothing=.1)


def test_images_are_needed_to_change_them(refusal):
    assert refusal("fedavg", augment=("crop", "flip")) == (
        "train.augment = [crop, flip]: samples of shape (64,) are not images; leave it out, or take other data")


@pytest.mark.parametrize("name", NAMES)
def test_only_methods_that_add_logits_refuse_changed_images(pictures, name):
    title = {"ifca_cam": "IFCA-CAM", "fesem_cam": "FeSEM-CAM"}.get(name)
    expected = (f"train.augment = [flip]: {title} adds logits that a second model gave for the images as they are, and "
                "not for the changed ones; leave it out, or take another method") if title else ""
    assert pictures(name, SHOWN.get(name), augment=("flip",)) == expected


@pytest.mark.parametrize("padding, refused", [(7, False), (8, True)])
def test_no_crop_may_lose_the_image(pictures, padding, refused):
    assert pictures("fedavg", augment=("crop",), padding=padding) == refused * (
        "train.padding = 8: images of 8 x 8 pixels could be shifted out of sight; lower it")
    assert pictures("fedavg", augment=("flip",), padding=padding) == ""


def test_steps_for_clients_that_are_held_back_count_if_there_are_any():
    """The method has its own steps only for new clients."""
    class Adapts(FedAvg):
        title = "Adapts"

        def serve_newcomer(self, shared, mine, data):
            return data.scan(lambda state, grad: (state[0] - grad(self.model, state[0]),), (shared.w,))[0]
    of, config = Adapts().with_model(mlp()), replace(resolve({}), train=Train(**OPTIMIZERS))
    refuse_training_options(config, Digits((9, 4)), of)
    with pytest.raises(BadInput, match="train.optimizer = adamw: Adapts takes steps of its own"):
        refuse_training_options(replace(config, data=replace(config.data, new_clients=1)), Digits((9, 4)), of)


def test_fedamp_with_adam_may_pull_more(refusal):
    """Only steps of SGD can pull past the centre."""
    of = method("fedamp", mlp(), pull=300.)
    with pytest.raises(BadInput, match=r"method.pull = 300.0: with train.lr"):
        of.check(Train())
    of.check(Train(optimizer="adam"))
