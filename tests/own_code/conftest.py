"""A fixture for tests of the user's own code."""
from __future__ import annotations

import sys

import pytest

from tests.own_code.modules import forget


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return an empty current folder from which the user's modules are imported."""
    # Python takes bytecode for that of a file of the same length that was written in the same second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path
    forget()
