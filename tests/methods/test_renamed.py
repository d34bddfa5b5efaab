"""A method that was written for version 0.1 is refused with the new names of its functions."""
from __future__ import annotations

import pytest

from fedmpi.errors import BadInput
from fedmpi.method import RENAMED, Method


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_refused_with_the_new_one(old):
    part = True if old in ("averages", "keeps_statistics") else lambda self: None
    with pytest.raises(BadInput, match=rf"Old\.{old} is called {RENAMED[old]} since version 0.2"):
        type("Old", (Method,), {old: part})
    assert type("New", (Method,), {RENAMED[old]: part})


def test_a_setting_may_have_an_old_name():
    assert type("Mine", (Method,), {"on": .5, "note": "text"}).on == .5
