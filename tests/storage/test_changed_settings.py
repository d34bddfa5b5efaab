"""What a restart says of settings that may differ from those of the checkpoint, but not without a trace."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmpi.config.schema import resolve, to_plain
from fedmpi.storage.checkpoint import find_other_settings, warn_of_other_settings


def say(then: dict, now: dict) -> list[str]:
    before = SimpleNamespace(config=to_plain(resolve(then)), round=2, metrics=[])
    return warn_of_other_settings(before, to_plain(resolve(now)))


@pytest.mark.parametrize("then, now", [({}, {"edge": {}}), ({"edge": {}}, {"edge": {"bandwidth": 1000.}})])
def test_simulated_seconds_of_another_device_are_named(then, now):
    """Two rounds without `edge` and two with it gave half of the seconds of four rounds, without a word."""
    (said,) = say(then, now)
    assert said == ("edge differs from that of the checkpoint (round 2): simulated_seconds counts the rounds so far as "
                    "they were timed then, or not at all")
    assert say(now, now) == []


def test_sums_in_single_precision_depend_on_who_hosts_whom():
    blocks = {"placement": "blocks", "server": {"hosts_clients": True}}
    assert say({}, blocks) == []
    single = {"server": {"reduce": "float32"}}
    said = say(single, {"placement": "blocks", "server": {"reduce": "float32", "hosts_clients": True}})
    assert [line.partition(" is ")[0] for line in said] == ["placement", "server.hosts_clients"]


@pytest.mark.parametrize("unit, named", [("seconds", ["edge.bandwidth"]), ("rounds", [])])
def test_edge_is_fixed_where_seconds_say_who_is_there(unit, named):
    then, now = (to_plain(resolve({"edge": {"bandwidth": b}, "availability": {"file": "a.csv", "unit": unit}}))
                 for b in (1e6, 5e6))
    assert [*find_other_settings(then, now)] == named
