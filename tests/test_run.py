"""The real command, from one rank to more than there are clients: the same bits, and what a run leaves."""
from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from functools import partial

import h5py
import pytest

from fedmpi.methods.local import Local
from tests import launch

MEASURES = ("accuracy_mean", "accuracy_weighted", "accuracy_worst_decile", "loss")


@pytest.fixture(scope="module")
def alone(bench):
    """A run in a process of its own."""
    done = bench.run(1, "alone")
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("ranks, engine, settings", [
    pytest.param(2, "vmap", ["placement=shuffled"], marks=pytest.mark.slow("ranks of a real MPI library")),
    (3, "loop", ["server.hosts_clients=true", "placement=blocks", "method=fedavg"])])
def test_any_number_of_ranks_gives_the_same_bits(bench, warm, ranks, engine, settings):
    # One case runs on a real MPI library.
    start = partial(bench.mpirun, python=warm) if engine == "vmap" else bench.run
    done = start(ranks, f"{engine}-{ranks}", f"engine={engine}", *settings)
    assert done.returncode == 0, done.stderr
    assert bench.lead(f"{engine}-1", f"engine={engine}", *settings) == 0
    found, expected = bench.result(f"{engine}-{ranks}"), bench.result(f"{engine}-1")
    assert found["ranks"] == ranks and found["digest"] == expected["digest"]
    for line, other in zip(bench.metrics(f"{engine}-{ranks}"), bench.metrics(f"{engine}-1"), strict=True):
        assert {k: line[k] for k in MEASURES} == {k: other[k] for k in MEASURES}
    assert f"digest {expected['digest'][:16]}" in done.stdout.splitlines()[-1]


@pytest.mark.slow("five ranks")
def test_more_ranks_than_clients(bench):
    done = bench.run(5, "idle", "data.clients=3", "method=fedah")
    assert done.returncode == 0, done.stderr
    assert "3 host 1 clients each, 1 idle" in done.stdout
    assert bench.lead("idle-alone", "data.clients=3", "method=fedah") == 0
    assert bench.result("idle")["digest"] == bench.result("idle-alone")["digest"]


def test_the_result_has_the_promised_fields(alone, bench):
    result = bench.result("alone")
    accuracies = [line["accuracy_mean"] for line in bench.metrics("alone")]
    assert len(result["digest"]) == 64 and int(result["digest"], 16)
    assert (result["rounds"], result["ranks"]) == (3, 1)
    assert (result["engine"], result["engine_why"]) == ("loop", "set")
    assert result["accuracy_mean"] == accuracies[-1] and result["accuracy_best_on_test"] == max(accuracies)
    assert 0 <= result["accuracy_worst_decile"] <= result["accuracy_mean"] <= 1
    assert 0 <= result["accuracy_weighted"] <= 1 and result["seconds"] > 0
    # phi is sent down and up, three heads are sent down and one up.
    floats = (64 * 16 + 16) * 2 + 4 * 170
    assert result["mib_per_client_round"] == pytest.approx(floats * 4 / 2**20)


def test_the_engine_is_chosen_by_the_network(bench):
    assert bench.lead("auto", "engine=auto", "rounds=1") == 0
    found = bench.result("auto")
    assert (found["engine"], found["engine_why"]) == ("vmap", "1,210 parameters, without convolutions")


def test_every_evaluated_round_is_a_line(alone, bench):
    lines = bench.metrics("alone")
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert all(math.isfinite(line[name]) for name in (*MEASURES, "seconds"))
        assert sum(line["cluster_sizes"]) == line["participants"] == 6
    assert lines[0]["seconds"] < lines[1]["seconds"] < lines[2]["seconds"]
    # The run does learn.
    assert lines[-1]["accuracy_mean"] > .5


def test_the_run_folder_holds_the_rest(alone, bench):
    folder = bench.out("alone")
    with h5py.File(folder / "history.h5") as history:
        assert history["round"][:].tolist() == [1, 2, 3] and history["accuracy"].shape == (3, 9)
        assert history["accuracy"][-1].mean() == pytest.approx(bench.result("alone")["accuracy_mean"])
    assert "round 3/3" in (folder / "log.txt").read_text() and bench.saved("alone")
    from fedmpi.config.schema import load_config
    # The resolved file can be run again.
    assert load_config(folder / "config.yaml") == load_config(bench.config)


def test_the_seed_and_the_settings_change_the_digest(alone, bench):
    seen = {bench.result("alone")["digest"]}
    for i, setting in enumerate(("seed=3", "train.lr=0.04", "method.lam=0.2")):
        assert bench.lead(f"other-{i}", setting) == 0
        seen.add(bench.result(f"other-{i}")["digest"])
    assert len(seen) == 4


def test_evaluating_less_changes_only_the_books(alone, bench):
    assert bench.lead("rarely", "evaluate.every=2", "evaluate.after_training=off", "checkpoint.every=0") == 0
    evaluated = {line["round"]: "accuracy_mean" in line for line in bench.metrics("rarely")}
    assert evaluated == {1: False, 2: True, 3: True}
    assert bench.result("rarely")["digest"] == bench.result("alone")["digest"]


def test_evaluating_everybody_after_training_leaves_no_trace(bench):
    assert bench.lead("all", "evaluate.after_training=all", "train.participation=.5") == 0
    assert bench.lead("none", "evaluate.after_training=off", "train.participation=.5") == 0
    assert bench.result("all")["digest"] == bench.result("none")["digest"]


@pytest.mark.parametrize("minutes, saved", [(0, [3]), (1e-9, [2, 3]), (60, [3])])
def test_time_passed_brings_a_checkpoint(bench, minutes, saved):
    assert bench.lead(f"timed-{minutes}", "checkpoint.every=0", f"checkpoint.minutes={minutes}") == 0
    assert [path.name for path in bench.saved(f"timed-{minutes}")][-2:] == [f"round-{t:06}.h5" for t in saved]


def test_single_precision_sums_are_close(alone, bench):
    assert bench.lead("float32", "server.reduce=float32") == 0
    assert bench.result("float32")["loss"] == pytest.approx(bench.result("alone")["loss"], abs=1e-4)


def test_both_engines_agree(alone, bench):
    for engine in ("loop", "vmap"):
        assert bench.lead(engine, f"engine={engine}") == 0
        assert (bench.result(engine)["engine"], bench.result(engine)["engine_why"]) == (engine, "set")
        assert bench.result(engine)["loss"] == pytest.approx(bench.result("alone")["loss"], abs=1e-4)


def test_results_are_strict_json(alone, bench):
    for path in bench.out("alone").glob("*.json*"):
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            # NaN and Infinity are not JSON
            json.loads(text, parse_constant=pytest.fail)


@dataclass(frozen=True)
class Uneven(Local):
    """Local, with a rank that is slow."""

    def client(self, shared, mine, data):
        time.sleep(.02 * (launch.rank_of(os.environ) == 2))
        return super().client(shared, mine, data)


def test_clients_move_to_ranks_that_are_faster(bench):
    settings = ("method=tests.test_run:Uneven", "rounds=6", "engine=loop", "train.participation=1.")
    assert bench.lead("stayed", *settings) == 0
    done = bench.run(3, "moved", *settings)
    assert done.returncode == 0, done.stderr
    assert sum(line["clients_moved"] for line in bench.metrics("moved")) > 0
    assert bench.result("moved")["digest"] == bench.result("stayed")["digest"]


def test_a_run_whose_folder_has_a_name_that_is_no_text_goes_on(bench):
    """On Linux a name is any bytes. Every rank reads the checkpoint there."""
    name = os.fsdecode(b"caf\xe9")
    assert bench.lead(name, "rounds=2") == 0
    done = bench.run(2, name, "rounds=3", "--resume", "auto")
    assert done.returncode == 0 and bench.result(name)["digest"] == bench.straight(3), done.stderr
