"""What the tests of single methods share."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.federations import TRAIN, Lab
from tests.methods.table import REST

DAILY = {f"test_{name}.py" for name in ("contract", "defaults", "ditto", "fedamp", "fedper", "fedprox", "limits")}


def pytest_collection_modifyitems(items):
    """Mark as slow what tests methods one by one, but for some of table.KINDS."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in DAILY:
            item.add_marker(REST)


@pytest.fixture(params=[0., .9], ids=["plain", "momentum"])
def momentum(request, monkeypatch):
    """Let laboratories train without and with momentum: transcriptions say who takes the run's, and who knows none."""
    monkeypatch.setattr(Lab, "training", replace(TRAIN, momentum=request.param))
    return request.param


@pytest.fixture(params=[{}, {"momentum": .9}, {"epochs": 2, "steps": 5}], ids=["plain", "momentum", "steps"])
def training(request, monkeypatch):
    """The same, and with steps in place of epochs: three passes of a method then take 8 steps, 7.5 rounded up."""
    monkeypatch.setattr(Lab, "training", replace(TRAIN, **request.param))
