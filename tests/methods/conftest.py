"""What the tests of single methods share."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.federations import TRAIN, Lab
from tests.methods.table import REST

DAILY = {f"test_{name}.py" for name in ("contract", "defaults", "ditto", "fedamp", "fedper", "fedprox", "limits")}


def pytest_collection_modifyitems(items):
    """Mark tests of single methods as slow, except those of some methods in table.KINDS."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in DAILY:
            item.add_marker(REST)


@pytest.fixture(params=[0., .9], ids=["plain", "momentum"])
def momentum(request, monkeypatch):
    """Let laboratories train without and with momentum; transcriptions say which training uses the run's momentum."""
    monkeypatch.setattr(Lab, "training", replace(TRAIN, momentum=request.param))
    return request.param


@pytest.fixture(params=[{}, {"momentum": .9}, {"epochs": 2, "steps": 5}], ids=["plain", "momentum", "steps"])
def training(request, monkeypatch):
    """Do as `momentum` does, and also train by steps, not epochs: 3 passes of a method then take 8 steps (7.5)."""
    monkeypatch.setattr(Lab, "training", replace(TRAIN, **request.param))
