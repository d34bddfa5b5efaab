"""Rows of equal work: as many gradient steps as another row, in steps or in whole epochs."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg
from fedmpi.sweeps import equal, job
from fedmpi.sweeps.rows import EQUAL, find_other_row

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
DAILY = ("fedah_table1", "fedmhc_table1")
REST = pytest.mark.slow("every run of twenty jobs; those of DAILY are looked at without this mark, too")


def run(method, **train):
    more = {key: train.pop(key) for key in ("rounds", "seed") if key in train} | train.pop("more", {})
    return resolve({"rounds": 100, "method": method, "train": train, "data": {"clients": 20}} | more)


def compute_ratio(own, other):
    """Return the steps of another row divided by those of this one, for clients of 40 batches."""
    samples = equal.count_samples(own, other, 40)
    return equal.count_total_steps(other, samples) / equal.count_total_steps(own, samples)


@pytest.mark.parametrize("method, expected", [
    ("local", 10), ("fedmhc", 20), ("fedah", 30), ({"name": "fedrep", "head_epochs": 4}, 50), ("ditto", 20),
    ({"name": "pfedme", "K": 3}, 30), ({"name": "fedavg_plus", "K": 4}, 40), ({"name": "fedbabu", "ft": 20}, 12),
    ({"name": "fesem_cam", "warm_up": 50}, 25), ({"name": "ifca_cam", "warm_up": 40}, 16)])
def test_steps_by_hand(method, expected):
    """100 rounds have 10 steps; FedBABU's 200 steps of evaluation are a fifth more, 50 rounds of warm-up half more."""
    assert equal.find_equal_setting(run("local", steps=10), run(method, steps=10)) == f"train.steps={expected}"


@pytest.mark.parametrize("train, other, expected", [
    ({"participation": .2}, {"participation": .2}, 20), ({"participation": .5}, {"participation": .25}, 10),
    ({"rounds": 50}, {"rounds": 200}, 80), ({"steps": 4}, {}, 20)])
def test_who_takes_part_how_often_counts(train, other, expected):
    own, twice = run("local", **{"steps": 10} | train), run("ditto", **{"steps": 10} | other)
    assert equal.find_equal_setting(own, twice) == f"train.steps={expected}"


def test_clients_that_mix_without_taking_part_count():
    """A fifth takes part and makes 30 steps a round, each of the others 10."""
    own = run("local", steps=10, participation=.2)
    assert equal.find_equal_setting(own, run({"name": "fedah", "mix_everyone": True}, steps=10, participation=.2)) == (
        "train.steps=70")
    assert equal.find_equal_setting(own, run("fedah", steps=10, participation=.2)) == "train.steps=30"


@pytest.mark.parametrize("method, epochs, expected", [
    ("fedah", 1, 3), ("fedah", 5, 7), ("ditto", 2, 4), ("fedmhc_ah", 1, 3)])
def test_without_steps_the_answer_is_in_epochs(method, epochs, expected):
    """Training for evaluation is little beside 100 rounds."""
    own, other = run("local", epochs=epochs), run(method, epochs=epochs)
    assert equal.find_equal_setting(own, other) == f"train.epochs={expected}"


@pytest.mark.parametrize("own, other, expected", [
    (run("fedah", epochs=5), run("fedmhc", epochs=5), 8), (run("fedah", epochs=1), run("fedmhc", epochs=4), 6),
    (run({"name": "fedrep", "head_epochs": 1}, epochs=1), run("ditto", epochs=3), 5),
    (run({"name": "fedrep", "head_epochs": 3}, epochs=1), run("ditto", epochs=3), 3)])
def test_passes_of_a_method_s_own_stay_as_they_are(own, other, expected):
    """Two of FedAH and one or three of FedRep; the epochs were taken to bring them, too: 7, 3 and 2."""
    assert equal.find_equal_setting(own, other) == f"train.epochs={expected}"
    assert abs(compute_ratio(equal.with_length(own, expected), other) - 1) < .01


@pytest.mark.parametrize("own, other, expected", [
    (run({"name": "ifca_cam", "warm": "local", "warm_steps": 20}, steps=10), run("ditto", steps=10), 7),
    (run({"name": "ifca_cam", "warm": "local", "warm_steps": 20}, steps=10, rounds=50), run("local", steps=50), 44)])
def test_steps_of_a_method_s_own_stay_as_they_are(own, other, expected):
    """600 steps before round 1 do not grow with train.steps; the whole was scaled."""
    assert equal.find_equal_setting(own, other) == f"train.steps={expected}"
    assert abs(compute_ratio(equal.with_length(own, expected), other) - 1) < .51 / expected


@pytest.mark.parametrize("own, other", [
    (run({"name": "ifca_cam", "warm": "local", "warm_steps": 20}, steps=10, rounds=2), run("local", rounds=2, steps=5)),
    (run({"name": "fedah"}, steps=1), run("local", steps=1))])
def test_steps_that_would_be_none_are_refused(own, other):
    with pytest.raises(BadInput, match=r"^equal_steps: this row would need -?[0-9.]+ train.steps, and a round has a"):
        equal.find_equal_setting(own, other)


@dataclass(frozen=True)
class ThreeSteps(FedAvg):
    """A method of the user's own, whose steps do not depend on train.epochs or train.steps."""

    def client(self, shared, mine, data):
        return super().client(shared, mine, data.with_batches(None, 7, steps=3))


@pytest.mark.parametrize("train", [{"epochs": 2}, {"steps": 4}])
def test_a_row_whose_steps_are_its_own_is_refused(train):
    with pytest.raises(BadInput, match=r"^equal_steps: FedAvg of this row makes 300 steps whatever train.(epochs|ste"
                                       "ps) is, so it cannot do the work of another row; leave equal_steps out$"):
        equal.find_equal_setting(run(f"{__name__}:ThreeSteps", **train), run("local", **train))


@pytest.mark.parametrize("epochs", [1, 2])
def test_passes_of_a_method_s_own_that_are_all_or_more_than_all_are_refused(epochs):
    with pytest.raises(BadInput, match=r"would need -?[0-9.]+ epochs .*, not the same whole number"):
        equal.find_equal_setting(run({"name": "fedrep", "head_epochs": 2}), run("local", epochs=epochs))


@pytest.mark.parametrize("own, other, expected", [
    ({"batch": 50}, {"batch": 10}, "train.epochs=5"), ({"batch": 20, "epochs": 3}, {"batch": 30}, None),
    ({"batch": 10}, {"batch": 50}, None), ({"batch": 10}, {"batch": 50, "epochs": 5}, "train.epochs=1"),
    ({"batch": 10, "steps": 7}, {"batch": 50, "steps": 9}, "train.steps=9")])
def test_batches_of_two_sizes_are_of_the_same_samples(own, other, expected):
    if expected:
        assert equal.find_equal_setting(run("local", **own), run("fedavg", **other)) == expected
    else:
        with pytest.raises(BadInput, match="samples would need 0.[0-9]* epochs and one of .*give the column train.st"):
            equal.find_equal_setting(run("local", **own), run("fedavg", **other))


def test_steps_are_no_epochs():
    """Two epochs of a client of 40 batches are 80 steps, and of another one another number."""
    with pytest.raises(BadInput, match="the row that it names trains in epochs, .* give both train.steps, or both epo"):
        equal.find_equal_setting(run("local", steps=5), run("fedavg", epochs=2))


def test_epochs_that_are_not_whole_and_what_cannot_be_counted_are_refused():
    with pytest.raises(BadInput, match=r"a client of 400 samples would need 1.075 epochs and one of 10000 1.003, "
                                       r"not the same whole number from 1 on; give the column train.steps$") as error:
        equal.find_equal_setting(run("local"), run({"name": "fesem_cam", "warm": "local"}, rounds=50))
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match="on a network of two layers, .*method.layers = 4: .*; name another row$"):
        equal.find_equal_setting(run("local", steps=3), run({"name": "fedcps", "layers": 4}, steps=3))


STOP = {"stop": {"patience": 3}}
TIMES, LIMIT = {"availability": {"file": "t.csv"}}, {"stragglers": {"step_seconds": 1., "deadline": 9.}}


@pytest.mark.parametrize("own, other, said", [
    (TIMES, {}, "availability.file is set for this row, .*; leave availability or equal_steps out$"),
    ({}, TIMES, "availability.file is set for the row that it names, "),
    (LIMIT, LIMIT, "stragglers.deadline is set for this row, .*; leave stragglers or equal_steps out$"),
    ({}, LIMIT, "stragglers.deadline is set for the row that it names, "),
    (STOP, {}, "stop is set for this row, .*; leave stop or equal_steps out$"),
    ({}, STOP, "stop is set for the row that it names, ")])
def test_steps_that_depend_on_time_or_on_training_are_refused(own, other, said):
    """They were taken for those of clients that all take part and are in time: "equal" rows made twice the work."""
    with pytest.raises(BadInput, match=f"^equal_steps: {said}") as error:
        equal.find_equal_setting(run("local", steps=10, more=own), run("ditto", steps=10, more=other))
    assert "\n" not in str(error.value)
    # The server waits for all.
    waits = {"stragglers": {"step_seconds": 1., "spread": .5}}
    assert equal.find_equal_setting(run("local", steps=10), run("ditto", steps=10, more=waits)) == "train.steps=20"


def test_rows_that_lose_other_shares_of_their_updates_are_refused():
    lossy = {"faults": {"drop": .5}}
    with pytest.raises(BadInput, match="^equal_steps: faults.drop is 0.0 for this row and 0.5 for the row that it "
                                       "names, .*; give both the same$"):
        equal.find_equal_setting(run("local", steps=10), run("ditto", steps=10, more=lossy))
    both = [run(method, steps=10, more=lossy) for method in ("local", "ditto")]
    assert equal.find_equal_setting(*both) == "train.steps=20"


def test_epochs_of_clients_that_are_not_drawn_alike_are_refused():
    """Large clients make more steps of an epoch, so how often they are drawn counts; steps are the same for all."""
    def made(method, **train):
        return run(method, **{"epochs": 2, "sampling": "size"} | train)
    with pytest.raises(BadInput, match="^equal_steps: train.sampling = size for the row that it names draws large"):
        equal.find_equal_setting(run("local", epochs=1), made("ditto", participation=.5))
    with pytest.raises(BadInput, match="^equal_steps: train.sampling = size for this row "):
        equal.find_equal_setting(made("local", participation=[.5, 1.]), made("ditto", participation=.5))
    # all are drawn
    assert equal.find_equal_setting(made("local"), made("ditto")) == "train.epochs=4"
    steps = [run(method, steps=10, sampling="size", participation=.5) for method in ("local", "ditto")]
    assert equal.find_equal_setting(*steps) == "train.steps=20"


def test_new_clients_do_not_train():
    """Of 10 clients 5 are new; two of the others take part in a round, where Local has all five."""
    data = {"clients": 10, "new_clients": 5, "split": [.6, .2, .2]}
    own, other = (resolve({"method": method, "data": data, "train": {"steps": 100, "participation": share}})
                  for method, share in (("local", 1.), ("fedavg", .5)))
    assert equal.find_equal_setting(own, other) == "train.steps=40"


@pytest.fixture
def write(tmp_path):
    def write(rows, **more):
        (tmp_path / "c.yaml").write_text("rounds: 10\ntrain: {steps: 6}\n")
        import json
        (tmp_path / "j.yaml").write_text(json.dumps(
            {"title": "t", "config": "c.yaml", "rows": rows, "measure": "accuracy_mean"} | more))
        return tmp_path / "j.yaml"
    return write


def test_a_row_of_a_job_asks_for_it(write, tmp_path):
    path = write({"Ditto": "ditto", "even": {"method": "local", "equal_steps": "Ditto"}},
                 columns={"a": {}, "b": {"train.steps": 5}, "c": {}},
                 cells={"Ditto": {"c": {"train.steps": 9}}})
    runs = {(r.row, r.column): r for r in job.expand(job.load_job(path), path, tmp_path / "out", None)}
    assert [runs["even", c].settings.train.steps for c in "abc"] == [12, 10, 18]
    assert [runs["Ditto", c].settings.train.steps for c in "abc"] == [6, 5, 9]
    assert runs["even", "b"].overrides[-1] == "train.steps=10"


@pytest.mark.parametrize("rows, whose", [
    ({"A": "fedala", "B": {"method": "local", "equal_steps": "A"}}, "the row that it names"),
    ({"A": "local", "B": {"method": "fedala", "equal_steps": "A"}}, "this row")])
def test_steps_that_training_decides_are_no_equal_work(write, tmp_path, rows, whose):
    path = write(rows)
    with pytest.raises(BadInput, match=rf"j.yaml: B / .*: equal_steps: FedALA of {whose} makes steps that no "
                                       r"plan counts \(the further passes for W the first time, up to "):
        job.expand(job.load_job(path), path, tmp_path / "out", None)


def test_who_trains_to_find_its_group_later_makes_steps_that_are_not_counted(write, tmp_path):
    """All clients of a small federation train before the first round, and nobody does later."""
    counted = {"A": {"method": {"name": "fedgroup", "K": 2, "first": 10}}, "B": {"method": "local", "equal_steps": "A"}}
    path = write(counted)
    assert job.expand(job.load_job(path), path, tmp_path / "out", None)
    counted["A"]["method"]["first"] = 9
    path = write(counted)
    with pytest.raises(BadInput, match=r"FedGroup of the row .* \(the training by which a client that did not train "):
        job.expand(job.load_job(path), path, tmp_path / "out", None)


@pytest.mark.parametrize("rows, more, said", [
    ({"A": "local", "B": {"method": "local", "equal_steps": "X"}}, {},
     r"rows.B.equal_steps = X: name a row of this job that has no equal_steps itself; its rows: A, B"),
    ({"A": {"method": "local", "equal_steps": "A"}}, {}, "rows.A.equal_steps = A: name a row"),
    ({"A": "ditto"}, {"cells": {"C": {}}}, "cells: 'C' is not among the rows"),
    ({"A": "ditto"}, {"cells": {"A": {"x": {}}}}, "cells: 'x' is not among the columns"),
    ({"A": "ditto"}, {"columns": {"a": {}}, "cells": {"A": {"a": 3}}}, "cells.A.a = 3: give a mapping of settings")])
def test_wrong_rows_and_cells_are_named(write, rows, more, said):
    with pytest.raises(BadInput, match=f"^.*j.yaml: {said}[^\n]*$"):
        job.load_job(write(rows, **more))


def test_a_column_without_steps_is_named(write, tmp_path):
    path = write({"A": "fesem_cam", "B": {"method": "local", "equal_steps": "A"}},
                 columns={"a": {}, "b": {"train.steps": None}})
    with pytest.raises(BadInput, match=r"j.yaml: B / b / seed 0: equal_steps: a client of 400 .*train.steps$"):
        job.expand(job.load_job(path), path, tmp_path / "out", None)


@pytest.mark.parametrize("path", [
    pytest.param(path, marks=() if path.stem in DAILY else REST) for path in JOBS
    if "equal_steps" in path.read_text()], ids=lambda p: p.stem)
def test_rows_of_our_jobs_do_equal_work(path, tmp_path):
    """In all columns and scales they are as near as whole steps allow, or within 5 % with whole epochs."""
    made = job.load_job(path)
    # Seeds do not change steps.
    made = dataclasses.replace(made, seeds=made.seeds[:1])
    for scale in (None, *made.scales):
        runs = {(r.row, r.column): r for r in job.expand(made, path, tmp_path, scale)}
        for (row, column), found in runs.items():
            if (other := find_other_row(made.rows, row, EQUAL)) is not None:
                ratio, train = compute_ratio(found.settings, runs[other, column].settings), found.settings.train
                assert abs(ratio - 1) < (.51 / train.steps if train.steps else .05), (scale, column, ratio)


@pytest.mark.slow("the steps of every row of every job")
@pytest.mark.parametrize("path", [path for path in JOBS if "equal_steps" not in path.read_text()], ids=lambda p: p.stem)
def test_a_job_whose_rows_do_unequal_work_says_why_none_is_equal(path, tmp_path):
    """A difference of more than 5 % between rows of the first column counts; the header then has this sentence."""
    runs = job.expand(job.load_job(path), path, tmp_path, None)
    totals = []
    for found in runs:
        if (found.column, found.seed) == (runs[0].column, runs[0].seed):
            try:
                totals.append(equal.count_total_steps(found.settings, 40 * found.settings.train.batch))
            except BadInput as error:      # figure 4 of FedCPS clusters whole models of four blocks
                assert path.stem == "fedcps_figure4" and "network of two layers" in str(error)
    header = " ".join(path.read_text().replace("\n#", "").split())
    assert max(totals) < 1.05 * min(totals) or "There is no row of equal steps, because " in header
