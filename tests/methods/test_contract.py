"""What every method must do. These tests include every method that is installed; table.py lists exceptions.

The promises are defined in fedmpi.testing, because third parties check their methods by them too."""
from __future__ import annotations

import pytest

from fedmpi import registry
from fedmpi.testing import contract
from fedmpi.testing.subject import Subject
from tests.methods.table import BY_CLIENT, BY_POSITION, IDLE, NAMES, OTHER, SHOWN, marked, settings

PROMISES = {promise.name: promise for promise in contract.PROMISES}


@pytest.fixture(scope="module")
def subject(mlp, federation, cache):
    """Return the subject of a method; its runs are kept for all promises."""
    found = {}

    def get(name):
        if name not in found:
            others = {setting: other for (whose, setting), other in OTHER.items() if whose == name}
            found[name] = Subject(registry.find_class("methods", name), name, SHOWN.get(name, {}), others, {},
                                  BY_POSITION.get(name, ""), BY_CLIENT.get(name, ()), str(cache), federation, mlp)
        return found[name]
    return get


@pytest.mark.parametrize("name, promise", marked(*[
    (name, promise) for name in NAMES for promise in PROMISES if promise != "settings"]))
def test_it_keeps_its_promise(name, promise, subject):
    PROMISES[promise].check(subject(name))


@pytest.mark.parametrize("name, setting", marked(*settings()))
def test_every_setting_matters(name, setting, subject):
    """A coefficient that changes nothing is one that is not in the gradient."""
    if (name, setting) in IDLE:
        pytest.skip(IDLE[name, setting])
    contract.check_setting(subject(name), setting)


@pytest.mark.parametrize("name", ["fedah", "fedala", "fedmhc_ah"])
def test_who_is_left_out_mixes_as_those_do_that_do_not_take_part(name, mlp, federation):
    cls, settings = registry.find_class("methods", name), {"mix_everyone": True}
    contract.check_bad_updates(Subject(cls, name, settings, federation=federation, model=mlp))
