"""What a restart says of settings that may differ from those of the checkpoint, but not without a trace."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmpi.config.schema import resolve, to_plain
from fedmpi.storage.changed_settings import find_other_settings, warn_of_other_chunks, warn_of_other_settings


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


@pytest.mark.parametrize("reduce, named", [("exact", ["placement", "server.hosts_clients", "state.memory"]),
                                           ("float32", ["state.memory"])])
def test_who_is_trained_side_by_side_is_named_once(reduce, named):
    """Where it decides on the last bits, which is so with convolutions under `vmap`."""
    then, now = (to_plain(resolve({"server": {"reduce": reduce}} | more)) for more in ({}, {
        "placement": "blocks", "state": {"memory": 1.}, "server": {"reduce": reduce, "hosts_clients": True}}))
    before = SimpleNamespace(config=then)
    assert [line.partition(" is ")[0] for line in warn_of_other_chunks(before, now)] == named
    assert warn_of_other_chunks(before, then) == []


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_a_run_whose_last_bits_depend_on_neighbours_says_so(bench, engine):
    words = ["model={name: 'fedmpi.commands.verify:Images'}", "method=local", f"engine={engine}", "data.clients=2",
             "train.steps=1"]
    assert bench.lead(engine, *words, "rounds=1") == 0
    assert bench.lead(engine, *words, "rounds=2", "placement=blocks", resume="auto") == 0
    said = (bench.out(engine) / "log.txt").read_text()
    assert ("warning: placement is balanced in the checkpoint and blocks now" in said) == (engine == "vmap")
