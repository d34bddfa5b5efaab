"""Settings of who takes part: what is refused, and what speeds are drawn."""
from __future__ import annotations

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.participation import Stragglers


@pytest.mark.parametrize("values, said", [
    ({"train": {"candidates": 3}}, "train.candidates = 3: sampling uniform compares no losses; set sampling to loss, "
     "or leave candidates out"),
    ({"stragglers": {"spread": 11}}, "stragglers.spread = 11: should be less than or equal to 10 (one device would be "
     "e^10 times as slow as another)"),
    ({"stragglers": {}}, "stragglers.step_seconds = None: how long does a step take? Set step_seconds or file, or the "
     "section edge, whose cycles then count"),
    ({"stragglers": {"file": "a.csv", "step_seconds": 2}}, "stragglers.step_seconds = 2.0: the file gives the seconds "
     "of each client; leave step_seconds or file out"),
    ({"stragglers": {"file": "a.csv", "spread": 2}}, "stragglers.spread = 2.0: the file gives the seconds of each "
     "client; leave spread or file out"),
    ({"stragglers": {"step_seconds": 1, "late": "partial"}}, "stragglers.late = partial: nobody is late without a "
     "deadline; set stragglers.deadline, or leave late out"),
    ({"availability": {"file": "a.csv", "unit": "seconds"}}, "availability.unit = seconds: nothing says how many "
     "simulated seconds a round takes; set stragglers.step_seconds, or set unit to rounds"),
    ({"availability": {"file": "a.csv", "repeat": 1.5}}, "availability.repeat = 1.5: give whole rounds, or set unit to "
     "seconds"),
    ({"availability": {}}, "availability.file is missing and has no default: set it"),
])
def test_settings_that_do_not_go_together_are_refused(values, said):
    with pytest.raises(BadInput) as error:
        resolve(values)
    assert str(error.value) == said


def test_what_one_section_lacks_another_may_say():
    assert resolve({"stragglers": {"deadline": 3}, "edge": {"cycles": 1e7}}).stragglers.step_seconds is None
    left = {"file": "a.csv", "unit": "seconds"}
    config = resolve({"availability": left, "stragglers": {"step_seconds": 1, "late": "partial"}})
    assert config.availability.unit == "seconds" and config.stragglers.late == "partial"
    assert resolve({"availability": left, "edge": {}}).stragglers is None


def test_speeds_are_log_normal_by_the_seed():
    settings = Stragglers(step_seconds=.1, spread=.5, jitter=.2)
    factors = settings.draw_factors(20_000, seed=3)
    assert np.log(factors).mean() == pytest.approx(0, abs=.02) and np.log(factors).std() == pytest.approx(.5, abs=.01)
    np.testing.assert_array_equal(settings.draw_factors(20_000, seed=3), factors)
    first, again, later = (settings.draw_jitter(20_000, 3, when) for when in (-1, -1, 0))
    np.testing.assert_array_equal(first, again)
    assert np.log(first).std() == pytest.approx(.2, abs=.005) and abs(np.corrcoef(first, later)[0, 1]) < .05
    assert abs(np.corrcoef(first, factors)[0, 1]) < .05
    assert not np.array_equal(settings.draw_factors(20_000, 4), factors)
    assert (Stragglers(step_seconds=1).draw_jitter(5, 0, 7) == 1).all()
