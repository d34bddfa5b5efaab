"""Job files: the runs that they expand to, and what is refused."""
from __future__ import annotations

import json
import re

import pytest

from fedmpi.config import schema
from fedmpi.edge import Edge
from fedmpi.errors import BadInput
from fedmpi.sweeps import job
from tests.sweeps import jobs


@pytest.fixture
def write(tmp_path, cache):
    return lambda **changed: jobs.write(tmp_path, cache, **changed)


def expanded(path, tmp_path, scale=None):
    return job.expand(job.load_job(path), path, tmp_path / "out", scale)


def test_a_run_for_every_row_column_and_seed(write, tmp_path):
    runs = expanded(write(seeds=[3, 5]), tmp_path)
    assert len(runs) == 3 * 2 * 2 == len({run.folder for run in runs})
    assert {(r.row, r.column, r.seed) for r in runs} == {
        (row, column, seed) for row in jobs.JOB["rows"] for column in jobs.JOB["columns"] for seed in (3, 5)}


def test_settings_reach_the_configuration(write, tmp_path):
    run = next(r for r in expanded(write(), tmp_path, "long") if (r.row, r.column) == ("FedMHC, weak", "beta 1"))
    found = schema.load_config(str(run.config), run.overrides)
    assert (found.method.lam, found.data.partition.beta, found.engine, found.rounds) == (.01, 1, "loop", 100000)
    assert schema.find_name(found.method) == "fedmhc" and found.train.steps == 3 and found.seed == 0


# Each setting is in two consecutive places; the first setting is in the configuration.
SOURCES = {
    "set": {"train.lr": .2, "train": {"steps": 4}}, "scale": {"train": {"steps": 5}, "rounds": 11},
    "column": {"rounds": 12, "checkpoint": {"keep": 3}}, "row": {"checkpoint.keep": 4, "checkpoint": {"every": 5}},
    "scale's column": {"checkpoint": {"every": 6}}}


def test_later_settings_win(write, tmp_path):
    """The order is configuration, set, scale, column, row, the scale's column, seed; later ones win."""
    scale = SOURCES["scale"] | {"columns": {"a": SOURCES["scale's column"]}}
    path = write(set=SOURCES["set"], scales={"s": scale}, columns={"a": SOURCES["column"], "b": {}},
                 rows={"x": SOURCES["row"], "y": None}, published={}, seeds=[7])
    run, other = expanded(path, tmp_path, "s")
    found = schema.load_config(str(run.config), run.overrides)
    assert found == run.settings and (run.row, other.row, run.column, run.seed) == ("x", "y", "a", 7)
    assert (found.train.lr, found.train.steps, found.rounds, found.checkpoint.keep, found.checkpoint.every, found.seed
            ) == (.2, 5, 12, 4, 6, 7)
    assert (other.settings.checkpoint.keep, other.settings.checkpoint.every) == (3, 6)
    # These are without the scale.
    plain = {(r.row, r.column): r.settings for r in expanded(path, tmp_path)}
    assert [plain[key].train.steps for key in plain] == [4] * 4
    assert [plain[key].rounds for key in (("x", "a"), ("x", "b"))] == [12, 2]
    assert [plain[key].checkpoint.every for key in (("x", "a"), ("y", "a"))] == [5, 1]


@pytest.mark.parametrize("earlier, later", [
    ("set", "scale"), ("set", "column"), ("set", "row"), ("scale", "column"), ("scale", "row"), ("column", "row"),
    ("column", "scale's column"), ("row", "scale's column")])
def test_of_two_places_the_later_wins(write, tmp_path, earlier, later):
    """A method is replaced as a whole, with the settings that it had elsewhere."""
    said = {earlier: {"method": {"name": "fedprox", "mu": 3.}, "train": {"lr": .7}}, later: {"method": "ditto"}}
    path = write(set=said.get("set", {}), columns={"a": said.get("column", {})}, rows={"x": said.get("row")},
                 published={}, scales={"s": said.get("scale", {}) | {"columns": {"a": said.get("scale's column", {})}}})
    (run,) = expanded(path, tmp_path, "s")
    assert schema.find_name(run.settings.method) == "ditto" and run.settings.train.lr == .7


def test_a_job_has_defaults(tmp_path, write):
    write()
    least = "title: t\nconfig: c.yaml\nrows: {A b: fedavg}"
    (tmp_path / "least.yaml").write_text(least)
    read = job.load_job(tmp_path / "least.yaml")
    assert (read.columns, read.seeds, read.set, read.scales, read.published, read.also, read.measure) == (
        {"result": {}}, [0], {}, {}, {}, {}, "accuracy_at_best_validation")
    (tmp_path / "least.yaml").write_text(f"{least}\nset: {{data.split: [.6, .15, .25]}}")
    (run,) = expanded(tmp_path / "least.yaml", tmp_path)
    # a configuration by its name, unless a file of that name is beside the job
    (tmp_path / "least.yaml").write_text(f"{least.replace('c.yaml', 'quickstart')}\nmeasure: accuracy_best_on_test")
    (named,) = expanded(tmp_path / "least.yaml", tmp_path)
    assert named.settings.data.clients == 40
    (tmp_path / "quickstart").write_text("data: {clients: 7}")
    (named,) = expanded(tmp_path / "least.yaml", tmp_path)
    assert named.settings.data.clients == 7
    assert run.folder == tmp_path / "out" / "a-b" / "result" / "seed-0" and run.name == "A b / result / seed 0"
    assert run.words() == ["run", str(tmp_path / "c.yaml"), "data.split=[0.6, 0.15, 0.25]", "method=fedavg",
                           "seed=0", "--out", str(run.folder), "--resume", "auto"]


SPLIT = {"data.split": [.6, .15, .25]}
CHOSEN = "accuracy_at_best_validation"


@pytest.mark.parametrize("measure, also, settings, words", [
    (CHOSEN, {}, {}, f"measure {CHOSEN} chooses the round on validation samples, and data.split = [0.75, 0.25] has no "
     "share of them: set data.split: [0.6, 0.15, 0.25], or measure: accuracy_best_on_test"),
    ("f1_mean", {f"f1{CHOSEN[8:]}": {}}, {"data.split": [.7, 0, .3]}, "data.split = [0.7, 0.0, 0.3] has no share"),
    (CHOSEN, {}, SPLIT | {"evaluate.on": "validation"}, f"measure {CHOSEN} is of test samples, and evaluate.on = "
     "validation uses none: set measure: accuracy_best_on_validation"),
    ("accuracy_best_on_validation", {}, {}, "accuracy_best_on_validation is of validation samples, and evaluate.on = "
     "test: set measure: accuracy_best_on_test")])
def test_a_round_chosen_on_validation_needs_samples_for_it(write, tmp_path, measure, also, settings, words):
    """Every run of the job needs them; the line names the first one that has none."""
    path = write(measure=measure, also=also, set=settings)
    with pytest.raises(BadInput) as error:
        expanded(path, tmp_path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{path}: FedAvg / beta .3 / seed 0: ") and words in line
    assert expanded(write(measure=measure.replace("best_on_v", "at_best_v"), also=also, set=SPLIT), tmp_path)


@pytest.mark.parametrize("changed, said", [
    ({"scales": {"s": 3}}, "scales.s = 3: should be a mapping"),
    ({"rows": ["fedavg"]}, "rows = ['fedavg']: should be a"),
    ({"published": {"Local": "high"}}, "published.Local = 'high': should be a mapping"),
    ({"also": {"f1_mean": {"Local": 3}}}, "also.f1_mean.Local = 3: should be a mapping"),
    ({"seeds": [0, "x"]}, "seeds.1 = 'x': should be a valid integer"), ({"seeds": 3}, "seeds = 3: should be a list"),
    ({"colums": {}}, "colums is not a setting of a job; its settings are title, ")])
def test_mistakes_in_a_job_are_named_with_their_place(write, changed, said):
    path = write(**changed)
    with pytest.raises(BadInput, match=re.escape(f"{path}: {said}")):
        job.load_job(path)


@pytest.mark.parametrize("changed", [{"measure": "accuracy_best"}, {"also": {"accuracy_weighted_best": {}}}])
def test_measures_of_old_names_are_refused_with_the_new_one(write, changed):
    name = str(changed).split("'")[-2] if "also" in changed else changed["measure"]
    with pytest.raises(BadInput, match=f"measure {name!r} is called {name}_on_test now: its round is the best on test"):
        job.load_job(write(**changed))


def test_a_run_that_ended_early_is_finished_however_many_rounds_are_asked_for(write, tmp_path):
    run = expanded(write(), tmp_path)[0]
    run.folder.mkdir(parents=True)
    result = {"rounds": 1, "accuracy_mean": .5, "digest": "a", "ended": "stop"}
    (run.folder / "result.json").write_text(json.dumps(result))
    assert run.outcome().state == "finished"
    (run.folder / "result.json").write_text(json.dumps(result | {"ended": "rounds"}))
    assert run.outcome().state != "finished"


def test_settings_become_words_of_the_command_line():
    nested = {"rounds": 3, "train": {"lr": .1, "participation": [.5, 1.0]}, "data.partition": {"name": "iid"},
              "data": {"partition": {"name": "n_class", "n": 3}, "fraction": 1e-3},
              "method": {"name": "ditto", "lam": .5}, "edge": None, "text": "a: b", "yes": True, "empty": {},
              "faults": {"edge": {}}}
    assert job.flatten_to_words(nested) == [
        "rounds=3", "train.lr=0.1", "train.participation=[0.5, 1.0]", "data.partition={n: 3, name: n_class}",
        "data.fraction=0.001", "method={lam: 0.5, name: ditto}", "edge=null", "text='a: b'", "yes=true",
        "faults.edge={}", "data.partition={name: iid}"]
    assert job.flatten_to_words({"edge": {}, "train": {}}) == ["edge={}"]


@pytest.mark.parametrize("row", [{"method.lam": .5, "method": {"name": "fedmhc", "M": 3}},
                                 {"method.lam": .5, "method.M": 3, "method": "fedmhc"}])
def test_settings_of_one_mapping_are_kept_in_any_order(write, tmp_path, row):
    run, _ = expanded(write(rows={"x": row}, published={}), tmp_path)
    assert (run.settings.method.lam, run.settings.method.M) == (.5, 3)


def test_a_name_that_is_no_setting_is_refused_with_its_row(write, tmp_path):
    with pytest.raises(BadInput, match=r"job.yaml: x / beta .3 / seed 0: train\.'\.lr' is not the name of a setting"):
        expanded(write(rows={"x": {"train": {".lr": 1}}}, published={}), tmp_path)


def test_an_empty_optional_section_is_on(write, tmp_path):
    runs = expanded(write(set={"edge": {}}), tmp_path)
    assert all(run.settings.edge == Edge() for run in runs)


@pytest.mark.parametrize("name, part", [
    ("FedAvg", "fedavg"), ("FedMHC, weak (1)", "fedmhc-weak-1"), ("beta .3", "beta-.3"), ("../..", "x"), ("é", "x"),
    ("..a..", "a")])
def test_names_become_parts_of_paths(name, part):
    assert job.make_slug(name) == part


def test_runs_of_a_seed_come_column_by_column(write, tmp_path):
    runs = expanded(write(seeds=[1, 0]), tmp_path)
    rows = list(jobs.JOB["rows"])
    assert [(r.seed, r.column, r.row) for r in runs] == [
        (seed, column, row) for seed in (1, 0) for column in ("beta .3", "beta 1") for row in rows]
    assert [r.settings.seed for r in runs] == [1] * 6 + [0] * 6


def test_a_scale_keeps_some_columns_and_changes_them(write, tmp_path):
    path = write(rows={"x": {"rounds": 5}}, published={}, seeds=[0, 1], scales={"s": {
        "train.lr": .1, "seeds": [7], "columns": {"beta 1": {"rounds": 2, "train": {"batch": 3}}}}})
    (run,) = expanded(path, tmp_path, "s")
    assert (run.column, run.seed) == ("beta 1", 7)
    assert (run.settings.rounds, run.settings.train.lr, run.settings.train.batch) == (2, .1, 3)
    assert run.settings.data.partition.beta == 1
    kept = job.narrow_job(job.load_job(path), "s")
    assert (list(kept.columns), kept.seeds) == (["beta 1"], [7])
    assert len(expanded(path, tmp_path)) == 4 and job.narrow_job(kept, None) == kept


@pytest.mark.parametrize("result, state", [(None, "unfinished"), (1, "unfinished"), (2, "finished"), (3, "finished")])
def test_a_run_is_finished_when_it_has_all_of_its_rounds(write, tmp_path, result, state):
    """If `rounds` of the job are raised, the run goes on."""
    run = expanded(write(), tmp_path)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text(json.dumps({"round": 1, "accuracy_mean": .1}) + "\n")
    if result:
        (run.folder / "result.json").write_text(json.dumps({"rounds": result, "accuracy_mean": .5, "digest": "a"}))
    assert run.outcome().state == state


@pytest.mark.parametrize("settings, where", [
    ({"set": {"seed": 5}}, "set"), ({"columns": {"beta .3": {}, "beta 1": {"seed": 5}}}, "columns.beta 1"),
    ({"rows": {"FedAvg": {"method": "fedavg", "seed": 5}}, "published": {}}, "rows.FedAvg"),
    ({"cells": {"FedAvg": {"beta 1": {"seed": 5}}}}, "cells.FedAvg.beta 1"),
    ({"scales": {"small": {"seed": 5}}}, "scales.small"),
    ({"scales": {"small": {"columns": {"beta 1": {"seed": 5}}}}}, "scales.small.columns.beta 1")])
def test_a_seed_among_settings_is_refused(write, settings, where):
    """The seeds of the job would win without a word."""
    with pytest.raises(BadInput, match=rf"{where}\.seed = 5: the seeds of a job's runs are its `seeds`; set seeds: "):
        job.load_job(write(**settings))


def test_a_measure_has_one_table(write):
    with pytest.raises(BadInput, match="also.f1_mean: this is the job's measure already; leave it out, and set what"):
        job.load_job(write(measure="f1_mean", also={"f1_mean": {}}))


@pytest.mark.parametrize("measure", ["auc_mean", "auc_undefined"])
def test_a_measure_that_no_run_takes_is_refused_before_they_run(write, tmp_path, measure):
    path = write(also={measure: {}, "lam_mean": {}})
    with pytest.raises(BadInput, match=rf"measure {measure} is taken by no run: set evaluate.measures: .auc."):
        expanded(path, tmp_path)
    # One row that takes it is enough.
    rows = jobs.JOB["rows"] | {"FedAvg": {"method": "fedavg", "evaluate.measures": ["auc"]}}
    assert expanded(write(rows=rows, also={measure: {}}), tmp_path)


def test_a_table_for_each_measure(write):
    first, second = job.list_views(job.load_job(write(also={"f1_mean": {"FedAvg": {"beta 1": 30}}})))
    assert (first.measure, second.measure) == ("accuracy_best_on_test", "f1_mean")
    assert first.published == jobs.JOB["published"] and second.published == {"FedAvg": {"beta 1": 30}}


@pytest.mark.parametrize("changed, words", [
    ({"rows": {}}, "rows is empty: give one at least"),
    ({"rows": {"A b": "local", "a-B": "fedavg"}}, "rows: 'A b' and 'a-B' would share the folder a-b"),
    ({"seeds": []}, "seeds = []"), ({"seeds": [1, 1]}, "seeds = [1, 1]"), ({"seeds": ["x"]}, "seeds"),
    ({"published": {"FedProx": {"beta 1": 3}}}, "'FedProx' is not among the rows"),
    ({"published": {"FedAvg": {"beta 2": 3}}}, "'beta 2' is not among the columns"),
    ({"also": {"f1_mean": {"FedAvg": {"beta 2": 3}}}}, "also.f1_mean: 'beta 2' is not among the columns"),
    ({"published": {"FedAvg": {"beta 1": [3.]}}}, "published.FedAvg.beta 1 = [3.0]: give a number, or [mean, spread]"),
    ({"published_rounds": {"FedProx": 500}}, "published_rounds: 'FedProx' is not among the rows"),
    ({"published_rounds": {"FedAvg": 0}}, "published_rounds of FedAvg = 0: give at least 1"),
    ({"published_rounds": -3}, "published_rounds of FedAvg = -3: give at least 1"),
    ({"published_rounds": "long"}, "published_rounds = 'long': should be a valid integer"),
    ({"baseline": "FedProx"}, "baseline = FedProx: name a row of this job; its rows: "),
    ({"baseline": 3}, "baseline = 3"),
    ({"published": {"FedAvg": {"beta 1": "31.89±.44"}}}, "give a number, or [mean, spread]"),
    ({"scales": {"s": {"columns": {"beta 2": {}}}}}, "scales.s.columns"),
    ({"scales": {"s": {"columns": {}}}}, "scales.s.columns = {}"),
    ({"scales": {"s": {"columns": ["beta 1"]}}}, "scales.s"), ({"scales": {"s": {"seeds": []}}}, "scales.s.seeds = []"),
    *[({"scales": {"s": {"seeds": seeds}}}, f"scales.s.seeds = {seeds}: give a list of different whole numbers")
      for seeds in ([{}], [1, "2"], [5, True], [1.5], [[1]], [3, 3], 4, {"a": 1})],
    ({"scales": {"s": {"columns": {"beta 1": None}}}}, "scales.s.columns = {'beta 1': None}"),
    ({"rows": {"FedAvg": [1, 2]}}, "rows.FedAvg = [1, 2]: give a method's name, or a mapping of settings"),
    ({"rows": {"FedAvg": 3}}, "rows.FedAvg = 3"), ({"also": {"f1_mean": {"FedAvg": 3}}}, "also"),
    ({"rows": {"FedAvg": {"equal_steps": [1]}}}, "rows.FedAvg.equal_steps = [1]: give the name of a row"),
    ({"colums": {}}, "colums"), ({"title": 3}, "title"),
])
def test_a_bad_job_is_refused(write, changed, words):
    path = write(**changed)
    with pytest.raises(BadInput) as error:
        job.load_job(path)
    assert words in str(error.value) and path in str(error.value)


@pytest.mark.parametrize("changed, scale, words", [
    ({}, "huge", "its scales: long"), ({"scales": {}}, "huge", "its scales: none"),
    ({"set": {"train.lrr": 1}}, None, "train.lrr"), ({"config": "none.yaml"}, None, "none.yaml"),
    ({"rows": {"A": "no_such_method"}, "published": {}}, None, "A / beta .3 / seed 0"),
])
def test_a_run_that_could_not_start_is_refused_before_any_does(write, tmp_path, changed, scale, words):
    path = write(**changed)
    with pytest.raises(BadInput) as error:
        expanded(path, tmp_path, scale)
    assert words in str(error.value) and path in str(error.value)


@pytest.mark.parametrize("text", ["- a", "a: [", "!!python/name:os.system {}", ""])
def test_what_is_no_job_is_refused(tmp_path, text):
    (tmp_path / "j.yaml").write_text(text)
    with pytest.raises(BadInput, match="j.yaml"):
        job.load_job(tmp_path / "j.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        job.load_job(tmp_path / "none.yaml")
