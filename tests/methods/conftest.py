"""What the tests of single methods share."""
from __future__ import annotations

import pytest

from tests.federations import Lab


@pytest.fixture(params=[0., .9], ids=["plain", "momentum"])
def momentum(request, monkeypatch):
    """Let laboratories train without and with momentum: transcriptions say who takes the run's, and who knows none."""
    monkeypatch.setattr(Lab, "momentum", request.param)
    return request.param
