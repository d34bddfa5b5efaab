"""A run from Python has the results of the command, whatever the caller has set in PyTorch."""
from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

import fedmpi
from fedmpi.process_state import restore_torch

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


def test_modes_are_put_back_after_an_error():
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), MODES["float64"]():
        before = list_modes()
        with pytest.raises(ZeroDivisionError), restore_torch():
            assert list_modes() == [True, False, False, torch.float32, "cpu"]
            raise ZeroDivisionError
        assert list_modes() == before
