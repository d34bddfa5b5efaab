"""Rows of a job that are variants of another one."""
from __future__ import annotations

import json

import pytest

from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg
from fedmpi.report import tables
from fedmpi.report.results import collect_job_results
from fedmpi.sweeps import job
from tests.sweeps import jobs

ROWS = {"Ditto": {"method": {"name": "ditto", "lam": .5}, "train.lr": .2}, "FedAvg": "fedavg",
        "Ditto, long": {"variant_of": "Ditto", "rounds": 20, "method.lam": 3},
        "FedAvg, long": {"variant_of": "FedAvg", "rounds": 30},
        "Local": {"method": "local", "equal_steps": "Ditto, long"}, "FedPer": "fedper"}
PUBLISHED = {"Ditto": {"a": 50}, "FedAvg": {"a": [40, 1.]}, "FedPer": {"a": 60}}


@pytest.fixture
def write(tmp_path, cache):
    return lambda **changed: jobs.write(tmp_path, cache, **{
        "rows": ROWS, "columns": {"a": {}}, "published": PUBLISHED, "measure": "accuracy_mean",
        "set": {"rounds": 10, "train.steps": 6}} | changed)


def planned(path, tmp_path):
    return {run.row: run for run in job.expand(job.load_job(path), path, tmp_path / "out", None)}


def test_a_variant_has_the_settings_of_its_row_and_changes_them(write, tmp_path):
    runs = planned(write(cells={"Ditto": {"a": {"train.batch": 7, "train.participation": .5}},
                                "Ditto, long": {"a": {"train.batch": 8}}}), tmp_path)
    of = runs["Ditto, long"].settings
    assert (of.rounds, of.method.lam, of.train.lr, of.train.batch, of.train.participation) == (20, 3, .2, 8, .5)
    assert (runs["Ditto"].settings.rounds, runs["Ditto"].settings.method.lam) == (10, .5)
    assert runs["Ditto"].overrides.count("train.batch=7") == 1
    assert (runs["FedAvg, long"].settings.rounds, runs["FedAvg, long"].settings.method) == (30, FedAvg())
    # Two models for 20 rounds of 6 steps, in every second of which a client takes part: 12 a round for 10 rounds.
    assert runs["Local"].settings.train.steps == 12


def test_it_has_the_published_number_of_its_row_and_does_not_count_in_the_order(write, tmp_path):
    """With the variants, whose values are in another order, tau would be -1."""
    path = write(published_rounds={"Ditto": 40, "FedPer": 50}, also={"f1_mean": {"Ditto": {"a": 1}}})
    read = job.load_job(path)
    runs = job.expand(read, path, tmp_path / "out", None)
    values = {"Ditto": .5, "FedAvg": .4, "Ditto, long": .1, "FedAvg, long": .9, "Local": .3, "FedPer": .6}
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / "result.json").write_text(json.dumps({
            "rounds": run.settings.rounds, "accuracy_mean": values[run.row], "f1_mean": .5, "digest": "x",
            "ended": "rounds"}))
    found = collect_job_results(read, runs, "fedmpi sweep job.yaml")
    table, f1 = tables.make_tables(found)
    assert table.texts("FedAvg, long", "a") == ["90.00", "-", "40.00 ± 1.00", "+50.00"]
    assert table.texts("Ditto, long", "a") == ["10.00", "50 % of 40", "50.00", "-40.00"]
    assert table.tau == {"a": (pytest.approx(1), 3)}
    assert table.is_best("FedAvg, long", "a")
    note = "variants, which have the published number of another row and do not count in the order: "
    assert f"\n{note}Ditto, long (of Ditto), FedAvg, long (of FedAvg)\n" in tables.table_to_markdown(table)
    # Of F1 there is one number.
    assert f1.texts("Ditto, long", "a")[-2:] == ["1.00", "+49.00"] and f1.variants == {"Ditto, long": "Ditto"}


@pytest.mark.parametrize("changed, said", [
    ({"rows": ROWS | {"x": {"variant_of": "none"}}},
     "rows.x.variant_of = none: name a row of this job that has no variant_of or equal_steps itself; its rows: Ditto"),
    ({"rows": ROWS | {"x": {"variant_of": "x"}}}, "rows.x.variant_of = x: name a row"),
    ({"rows": ROWS | {"x": {"variant_of": "FedAvg, long"}}}, "rows.x.variant_of = FedAvg, long: name a row"),
    ({"rows": ROWS | {"x": {"variant_of": "Local"}}}, "rows.x.variant_of = Local: name a row"),
    ({"rows": ROWS | {"x": {"variant_of": ["Ditto"]}}}, r"rows.x.variant_of = \['Ditto'\]: give the name of a row"),
    ({"published": PUBLISHED | {"FedAvg, long": {"a": 41}}},
     "published.FedAvg, long: this row is a variant of FedAvg and has what is published of that row; remove it here, "
     "or variant_of from the row"),
    ({"also": {"f1_mean": {"Ditto, long": {"a": 41}}}}, "also.f1_mean.Ditto, long: this row is a variant of Ditto"),
    ({"published_rounds": {"Ditto, long": 41}}, "published_rounds.Ditto, long: this row is a variant of Ditto")])
def test_what_it_cannot_be_is_named(write, changed, said):
    with pytest.raises(BadInput, match=f"^.*job.yaml: {said}[^\n]*$"):
        job.load_job(write(**changed))
