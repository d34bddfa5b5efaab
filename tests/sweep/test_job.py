"""Job files: what they expand to, and what is refused."""
from __future__ import annotations

import pytest

from fedmpi import config
from fedmpi.errors import BadInput
from fedmpi.sweep import job
from tests.sweep import jobs


@pytest.fixture
def write(tmp_path, cache):
    return lambda **changed: jobs.write(tmp_path, cache, **changed)


def expanded(path, tmp_path, scale=None):
    return job.expand(job.load(path), path, tmp_path / "out", scale)


def test_a_run_for_every_row_column_and_seed(write, tmp_path):
    runs = expanded(write(seeds=[3, 5]), tmp_path)
    assert len(runs) == 3 * 2 * 2 == len({run.folder for run in runs})
    assert {(r.row, r.column, r.seed) for r in runs} == {
        (row, column, seed) for row in jobs.JOB["rows"] for column in jobs.JOB["columns"] for seed in (3, 5)}


def test_settings_reach_the_configuration(write, tmp_path):
    run = next(r for r in expanded(write(), tmp_path, "long") if (r.row, r.column) == ("FedMHC, weak", "beta 1"))
    found = config.load(str(run.config), run.overrides)
    assert (found.method.lam, found.data.partition.beta, found.engine, found.rounds) == (.01, 1, "loop", 100000)
    assert config.name_of(found.method) == "fedmhc" and found.train.steps == 3 and found.seed == 0


def test_later_settings_win(write, tmp_path):
    path = write(set={"train.lr": .1, "rounds": 3}, scales={"s": {"rounds": 4}},
                 columns={"a": {"train": {"lr": .2}}, "b": {}}, rows={"x": {"rounds": 5}, "y": None}, published={})
    found = {(r.row, r.column): config.load(str(r.config), r.overrides) for r in expanded(path, tmp_path, "s")}
    assert [found[key].rounds for key in (("x", "a"), ("y", "a"))] == [5, 4]
    assert [found[key].train.lr for key in (("x", "a"), ("x", "b"))] == [.2, .1]


def test_a_scale_keeps_some_columns_and_changes_them(write, tmp_path):
    path = write(rows={"x": {"rounds": 5}}, published={}, seeds=[0, 1], scales={"s": {
        "train.lr": .1, "seeds": [7], "columns": {"beta 1": {"rounds": 2, "train": {"batch": 3}}}}})
    (run,) = expanded(path, tmp_path, "s")
    assert (run.column, run.seed) == ("beta 1", 7)
    assert (run.settings.rounds, run.settings.train.lr, run.settings.train.batch) == (2, .1, 3)
    assert run.settings.data.partition.beta == 1
    kept = job.at(job.load(path), "s")
    assert (list(kept.columns), kept.seeds) == (["beta 1"], [7])
    assert len(expanded(path, tmp_path)) == 4 and job.at(kept, None) == kept


def test_a_table_for_each_measure(write):
    first, second = job.views(job.load(write(also={"f1_mean": {"FedAvg": {"beta 1": 30}}})))
    assert (first.measure, second.measure) == ("accuracy_best", "f1_mean")
    assert first.published == jobs.JOB["published"] and second.published == {"FedAvg": {"beta 1": 30}}


@pytest.mark.parametrize("changed, words", [
    ({"rows": {}}, "rows must have different names"),
    ({"rows": {"A b": "local", "a-B": "fedavg"}}, "rows must have different names"),
    ({"seeds": []}, "seeds = []"), ({"seeds": [1, 1]}, "seeds = [1, 1]"), ({"seeds": ["x"]}, "seeds"),
    ({"published": {"FedProx": {"beta 1": 3}}}, "'FedProx' is not among the rows"),
    ({"published": {"FedAvg": {"beta 2": 3}}}, "'beta 2' is not among the columns"),
    ({"also": {"f1_mean": {"FedAvg": {"beta 2": 3}}}}, "also.f1_mean: 'beta 2' is not among the columns"),
    ({"published": {"FedAvg": {"beta 1": [3.]}}}, "published.FedAvg.beta 1 = [3.0]: give a number, or [mean, spread]"),
    ({"published": {"FedAvg": {"beta 1": "31.89±.44"}}}, "give a number, or [mean, spread]"),
    ({"scales": {"s": {"columns": {"beta 2": {}}}}}, "scales.s.columns"),
    ({"scales": {"s": {"columns": {}}}}, "scales.s.columns = {}"),
    ({"scales": {"s": {"columns": ["beta 1"]}}}, "scales.s"), ({"scales": {"s": {"seeds": []}}}, "scales.s.seeds = []"),
    ({"colums": {}}, "colums"), ({"title": 3}, "title"),
])
def test_a_bad_job_is_refused(write, changed, words):
    path = write(**changed)
    with pytest.raises(BadInput) as error:
        job.load(path)
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
        job.load(tmp_path / "j.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        job.load(tmp_path / "none.yaml")
