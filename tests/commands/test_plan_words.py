"""The text of a plan for given numbers, and its counts against closed forms."""
from __future__ import annotations

import pytest

from fedmpi.commands import plan_table

RANKS = [{"rank": 0, "role": "server", "clients": 0, "hosts": [], "samples": 0, "steps": 0, "memory_mib": 1.234},
         {"rank": 1, "role": "worker", "clients": 13, "hosts": list(range(13)), "samples": 1234, "steps": 30,
          "memory_mib": 2.5},
         {"rank": 2, "role": "worker", "clients": 2, "hosts": [13, 14], "samples": 66, "steps": 10, "memory_mib": 3},
         {"rank": 3, "role": "idle", "clients": 0, "hosts": [], "samples": 0, "steps": 0, "memory_mib": .5}]
PLAN = {"method": "FedX", "settings": "mu=1", "model": "mlp", "model_settings": "hidden=8", "parameters": 12345,
        "head_parameters": 1234, "data": "digits", "clients": 15, "federation": "f.h5", "rounds": 7, "batch": 10,
        "participation": {},
        "samples": {"train": 1300, "validation": 0, "test": 260}, "train_samples": [3, 99], "participants": [5, 6],
        "stages": [{"rounds": 0, "share": 1., "steps": {"warm_up": 300}},
                   {"rounds": 2, "share": .5, "steps": {"warm_up": 10}},
                   {"rounds": 5, "share": .5, "steps": {"mix": 7.15, "main": 20, "judging": 7.15}}],
        "uncounted_steps": "", "steps_per_round": 1040,
        "mib_per_client_round": .5, "mib_down": .375, "mib_up": .125, "ranks": 4,
        "bytes_per_round": {"broadcast": 2**20, "deliver": 0, "reduce": 2**19, "gather": 2**18, "exchange": 0,
                            "failure": None},
        "reduce": "exact", "short_batches": None,
        "evaluation": {"every": 2, "on": "test", "parts": ["test"], "samples_per_client": {"test": [1, 20]}},
        "patience": None, "engine": "auto",
        "checkpoint": {"every": 0, "minutes": 0., "mib": 12.345}, "engine_on_cpu": "vmap", "device": "cpu",
        "threads": 2, "movable": False, "per_rank": RANKS}
TABLE = """method      FedX mu=1
model       mlp hidden=8: 12,345 parameters, 1,234 of them in the head
data        digits, 15 clients: samples 1,300 train, 260 test; 3-99 to train on per client
federation  f.h5
rounds      7, each with 5-6 of 15 clients; local training draws about 1,040 batches of up to 10 samples a round
steps       of a participant before round 1 warm up 300; in a round of 1-2 warm up 10; in a round of 3-7 34.3 \
(mix 7.2, main 20, judging 7.2); behind a client's model at the end 385 (warm up 310, mix 17.9, main 50, \
judging 7.2)
bytes       0.500 MiB per client and round: 0.375 down, 0.125 up
on the wire per round, to each rank 1.000 MiB by broadcast; back from each 0.500 MiB by reduce (int64), and 0.250 MiB \
in all client by client
evaluation  every 2 rounds: all clients, 260 test samples (1-20 per client)
checkpoint  at the end: 12.3 MiB
engine      auto (vmap on a CPU), device cpu, 2 threads a rank"""
ROWS = ["0 server 0 0 0 1.23", "1 worker 13 1,234 30 2.50 0 1 2 3 4 5 6 7 8 9 10 11 and 1 more",
        "2 worker 2 66 10 3.00 13 14", "3 idle 0 0 0 0.50"]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_whole_table():
    head, ranks, below = plan_table.format_plan(PLAN).split("\n\n")
    assert words(head) == words(TABLE)
    assert words(ranks)[0] == "rank role clients samples steps MiB hosts" and words(ranks)[2:] == ROWS
    assert words(below)[1:] == ["balance the busiest rank takes 1.50 x the mean number of steps",
                                "idle 1 ranks: there are more ranks than clients"]
    assert words(below)[0] == f"memory {plan_table.COUNTED}" and "hosts " not in below.splitlines()[-1]
    assert plan_table.format_plan(PLAN | {"movable": True}).splitlines()[-1] == f"hosts    {plan_table.MOVABLE}"


@pytest.mark.parametrize("changed, line", [
    ({"stages": [{"rounds": 7, "share": 1., "steps": {"main": 1234.5}}]},
     "steps of a participant in a round main 1,234.5; behind a client's model at the end main 8,641.5"),
    ({"stages": [{"rounds": 7, "share": .2, "steps": {"main": 10}, "idle": {"mix": 2}}]},
     "steps of a participant in a round main 10, of another client mix 2; behind a client's model at the end 25.2 "
     "(main 14, mix 11.2)"),
    ({"uncounted_steps": "those of luck"}, "judging 7.2); not counted: those of luck"),
    ({"participants": [15, 15]}, "7, each with 15 of 15 clients; local training draws 1,040 batches of up to 10"),
    ({"participants": [5, 5]}, "7, each with 5 of 15 clients; local training draws about 1,040 batches"),
    ({"train_samples": [9, 9]}, "260 test; 9 to train on per client"),
    ({"reduce": "float32"}, "back from each 0.500 MiB by reduce (float32)"), ({"ranks": 1}, "nothing: one rank"),
    ({"bytes_per_round": {"broadcast": 0, "deliver": 0, "reduce": None, "gather": None, "failure": "E: x"}},
     "to each rank 0.000 MiB by broadcast; back: not known, the server cannot be rehearsed (E: x)"),
    ({"evaluation": {"every": 1, "samples_per_client": {"test": [0, 20], "train": [3, 99]}}, "patience": 5},
     "every round: all clients, 260 test samples (0-20 per client) and 1,300 train samples (3-99 per client); the run "
     "ends when 5 rounds bring nothing better on validation"),
    ({"evaluation": {"every": 1, "samples_per_client": {"test": [26, 26]}}}, "260 test samples (26 per client)"),
    ({"engine": "loop", "threads": 1}, "engine loop, device cpu, 1 thread a rank"), ({"settings": ""}, "method FedX"),
    ({"checkpoint": {"every": 5, "minutes": 10., "mib": .5}},
     "checkpoint every 5 rounds and 10 min after the last one: 0.5 MiB"),
    ({"checkpoint": {"every": 1, "minutes": 10., "mib": .5}}, "checkpoint every round: 0.5 MiB"),
    ({"short_batches": {"clients": 9, "samples": 2}}, "last batch 9 of 15 clients end every epoch with a step on at "
     "most 2 samples; a model that is evaluated right after local training depends much on them, and "
     "train.drop_last=true leaves such batches out bytes"),
    ({"short_batches": {"clients": 1, "samples": 1}}, "1 of 15 clients end every epoch with a step on at most 1 "
     "sample;")])
def test_lines_of_other_plans(changed, line):
    assert line in " ".join(plan_table.format_plan(PLAN | changed).split())


IF_ALL = ", if all are available and in time"


@pytest.mark.parametrize("drawn, condition", [
    ({"late": 0.}, ""), ({"late": 0., "available": 15.}, ""), ({"late": 0., "work_share": 1.}, ""),
    ({"late": .1}, IF_ALL), ({"late": 0., "available": 14.9}, IF_ALL), ({"late": 0., "work_share": .99}, IF_ALL)])
def test_numbers_that_suppose_that_all_take_part_say_so(drawn, condition):
    """Three participants a round, of whom some may be late, and rounds of five to six do not contradict that."""
    drawn = {"sampling": "uniform", "participants": 3., **drawn}
    text = words(plan_table.format_plan(PLAN | {"participation": drawn}))
    assert [line.endswith(IF_ALL) for line in text if line.split()[:1] in (["rounds"], ["balance"])] == [
        bool(condition)] * 2
    (steps,) = [line for line in text if line.startswith("steps of a participant")]
    assert steps.endswith(f"judging 7.2){condition}")
    assert ("steps of a rank in a round" + IF_ALL in text) == bool(condition)
    assert IF_ALL not in plan_table.format_plan(PLAN)


@pytest.mark.parametrize("drawn, condition", [
    ({"lost": .1}, ", if none is lost"), ({"sampling": "size"}, ", if all are drawn equally often"), ({"lost": 0.}, ""),
    ({"sampling": "size", "participants": 15.}, ""),
    ({"lost": .1, "sampling": "loss", "late": 1.},
     ", if all are available and in time, none is lost and all are drawn equally often")])
def test_numbers_that_suppose_that_all_updates_arrive_and_all_are_drawn_alike_say_so(drawn, condition):
    drawn = {"sampling": "uniform", "participants": 3., "late": 0., **drawn}
    text = words(plan_table.format_plan(PLAN | {"participation": drawn}))
    (steps,) = [line for line in text if line.startswith("steps of a participant")]
    assert steps.endswith(f"judging 7.2){condition}")
    assert ("0.1 of them lost" in " ".join(text)) == (drawn.get("lost") == .1)


def test_many_ranks_are_summarised():
    """Without the server and the idle rank there are 2, 13; 66, 1,234; 10, 30; the median of two is their mean."""
    assert plan_table.RANKS_SHOWN == 16 and plan_table.CLIENTS_SHOWN == 12
    table, server = plan_table.summarise_ranks(RANKS).split("\n\n")
    assert words(table)[0] == "2 ranks with clients least median most"
    assert words(table)[2:] == ["clients 2 8 13", "samples 66 650 1,234", "steps 10 20 30", "MiB 2.50 2.75 3.00"]
    assert server == "rank 0 is the server: 1.23 MiB"
    assert "rank 0 is the server" in plan_table.format_plan(PLAN | {"ranks": 17})
    assert "rank 0 is the server" not in plan_table.format_plan(PLAN | {"ranks": 16})


@pytest.mark.parametrize("steps, uneven", [
    ((10, 20, 60), "2.00"), ((7, 7), "1.00"), ((0, 0), "0.00"), ((1, 4), "1.60")])
def test_balance_is_the_most_by_the_mean_of_the_ranks_at_work(steps, uneven):
    ranks = [{"clients": 1, "steps": n, "role": "worker"} for n in steps]
    said = plan_table.describe_balance([{"clients": 0, "steps": 0, "role": "server"}, *ranks])
    assert said == [("balance", f"the busiest rank takes {uneven} x the mean number of steps")]


@pytest.mark.parametrize("clients, text", [(0, ""), (1, "0"), (12, "0 1 2 3 4 5 6 7 8 9 10 11"),
                                           (14, "0 1 2 3 4 5 6 7 8 9 10 11 and 2 more")])
def test_some_clients_are_named(clients, text):
    assert plan_table.list_clients(list(range(clients))) == text
