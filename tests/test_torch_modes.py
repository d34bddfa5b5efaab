"""A run from Python has the results of the command, whatever the caller has set in PyTorch."""
from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from pathlib import Path

import pytest
import torch

import fedmpi
from fedmpi.models.seeding import build_seeded
from fedmpi.process_state import isolate_computation
from fedmpi.torch_compat import read_tf32, set_tf32
from tests import forked

pytestmark = pytest.mark.slow("runs from Python")


@contextmanager
def default(setting, value, usual):
    setting(value)
    try:
        yield
    finally:
        setting(usual)


MODES = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64": lambda: default(torch.set_default_dtype, torch.float64, torch.float32),
    "device": lambda: default(torch.set_default_device, "meta", None),
}


ROUNDING = [torch.backends, torch.backends.mkldnn, *(getattr(torch.backends.mkldnn, name, None)
                                                     for name in ("matmul", "conv", "rnn"))]


def list_rounding() -> list:
    """What PyTorch says of the rounding of factors; None where it has no such place, or refuses to say it."""
    words = []
    for ask in (torch.get_float32_matmul_precision, read_tf32):
        try:
            words.append(ask())
        except RuntimeError:
            words.append(None)
    return [getattr(place, "fp32_precision", None) for place in ROUNDING] + words


def set_rounding(place: str, rounding: str) -> None:
    """Choose how factors are rounded: by PyTorch's older word, or by its newer `fp32_precision`."""
    if place == "word":
        torch.set_float32_matmul_precision(rounding)
    else:
        reduce(getattr, place.split("."), torch).fp32_precision = rounding


@pytest.mark.parametrize("place, rounding", [
    ("word", "high"), ("word", "medium"), ("backends", "tf32"), ("backends.mkldnn.matmul", "bf16"),
    ("backends.mkldnn.conv", "bf16")])
def test_factors_are_not_rounded_and_the_choice_is_put_back(place, rounding):
    """In a process of its own, because PyTorch does not forget that both ways were used."""
    if place != "word" and not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this PyTorch has no such place")
    done = forked.call(1, partial(round_factors, place, rounding))
    assert done.returncode == 0, done.stderr


def round_factors(place: str, rounding: str) -> None:
    set_rounding(place, rounding)
    before = list_rounding()
    with pytest.raises(ZeroDivisionError), isolate_computation():
        for switches in ((True, True), (False, False)):
            set_tf32(*switches)
            assert read_tf32() == switches
        assert set(list_rounding()) <= {"none", "ieee", "highest", None, (False, False)}
        raise ZeroDivisionError
    assert list_rounding() == before != [None] * 5 + ["highest", (False, True)]


def list_modes() -> list:
    return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(), torch.get_default_device().type]


@pytest.fixture(scope="module")
def runs(bench):
    """Return a function that runs a method which trains for evaluation, once, and gives its result."""
    found = {}

    def run(name):
        if name not in found:
            config = json.loads(Path(bench.config).read_text())
            found[name] = fedmpi.run(config, out=bench.out(name), quiet=True, method="fedbabu", rounds=1)
        return found[name]
    return run


@pytest.mark.parametrize("name", MODES)
def test_what_the_caller_has_set_changes_no_result(runs, name):
    usual = runs("nothing")
    with MODES[name]():
        before = list_modes()
        found = runs(name)
        network, (x, _) = found.model(2), found.samples(2)
        assert list_modes() == before
    assert (before == list_modes()) == (name == "nothing")
    assert found.digest == usual.digest and found.accuracy == usual.accuracy
    with torch.no_grad():
        assert torch.equal(network(x), usual.model(2)(usual.samples(2)[0])) and network(x).dtype == torch.float32


def test_a_gpu_that_is_used_only_afterwards_has_the_callers_seed(monkeypatch):
    """Until then PyTorch only notes the last seed of it."""
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        with pytest.raises(ZeroDivisionError), isolate_computation():
            build_seeded(object, 3)
            raise ZeroDivisionError
    assert seeds == [7, 3, 7]


def test_modes_are_put_back_after_an_error():
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), MODES["float64"]():
        before = list_modes()
        with pytest.raises(ZeroDivisionError), isolate_computation():
            assert list_modes() == [True, False, False, torch.float32, "cpu"]
            raise ZeroDivisionError
        assert list_modes() == before
