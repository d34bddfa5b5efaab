"""What the tests of single methods share."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.federations import TRAIN, Lab


@pytest.fixture(params=[0., .9], ids=["plain", "momentum"])
def momentum(request, monkeypatch):
    """Let laboratories train without and with momentum: transcriptions say who takes the run's, and who knows none."""
    monkeypatch.setattr(Lab, "training", replace(TRAIN, momentum=request.param))
    return request.param


@pytest.fixture(params=[{}, {"momentum": .9}, {"epochs": 2, "steps": 5}], ids=["plain", "momentum", "steps"])
def training(request, monkeypatch):
    """The same, and with steps in place of epochs: three passes of a method then take 8 steps, 7.5 rounded up."""
    monkeypatch.setattr(Lab, "training", replace(TRAIN, **request.param))
