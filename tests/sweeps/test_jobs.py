"""All jobs that come with the program can start, and their published numbers are possible."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fedmpi.engines import batchnorm
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.report.measure_names import find_factor
from fedmpi.report.tables import split_published
from fedmpi.sweeps import job

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))
each = pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
# Jobs with several scales, with columns, and with neither; the others are tested only by the whole suite.
DAILY = ("digits", "fedah_table1", "quickstart")
REST = pytest.mark.slow("every run of thirty jobs; those of DAILY are looked at without this mark, too")


@pytest.mark.parametrize("changed", [{"measure": "f1_mean_at_best_validation"},
                                     {"also": {"loss_at_best_validation": {}}}])
def test_a_measure_that_no_run_has_is_refused(tmp_path, changed):
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"title": "t", "config": "c.yaml", "rows": {"A": "local"}} | changed))
    with pytest.raises(BadInput, match="_at_best_validation' is taken by no run; of the round that is best on "
                       "validation samples there are accuracy_at_best_validation, "
                       "accuracy_weighted_at_best_validation, f1_at_best_validation, mse_at_best_validation, "):
        job.load_job(path)


@pytest.mark.parametrize("task, measure, wanted", [
    ("regression", "accuracy_at_best_validation", "mse_at_best_validation"), ("regression", "f1_mean", "mae_mean"),
    ("regression", "accuracy_best_on_test", "mse_best_on_test"), ("classification", "mse_mean", "accuracy_mean"),
    ("classification", "mae_mean", "f1_mean")])
def test_a_measure_of_what_is_not_learned_is_refused(tmp_path, task, measure, wanted):
    """All runs were trained, and then there was no report."""
    def write(measure, also=None, **more):
        path.write_text(json.dumps({"title": "t", "config": "c.yaml", "rows": {"A": "local"}, "measure": measure,
                                    "also": also or {},
                                    "set": {"data.task": task, "data.split": [.6, .15, .25]} | more}))
        return job.load_job(path)

    path = tmp_path / "job.yaml"
    (tmp_path / "c.yaml").write_text("data: {name: digits}\n")
    with pytest.raises(BadInput, match=f"A / result / seed 0: measure {measure} is taken by no run with data.task = "
                                       f"{task}: take {wanted}$"):
        job.expand(write(measure), path, tmp_path / "out", None)
    assert len(job.expand(write(wanted), path, tmp_path / "out", None)) == 1
    with pytest.raises(BadInput, match=f"measure {measure} is taken by no run"):
        job.expand(write(wanted, {measure: {}}), path, tmp_path / "out", None)
    # `fedmpi report --measure`: the job's own measure is not shown.
    assert len(job.expand(write(measure), path, tmp_path / "out", None, [wanted])) == 1
    if "best" in measure:
        chosen = wanted.replace("best_on_test", "at_best_validation")
        for more, advised in (({"data.split": [.75, .25]}, "test"), ({"evaluate.on": "validation"}, "validation")):
            with pytest.raises(BadInput, match=f"(or|set) measure: mse_best_on_{advised}$"):
                job.expand(write(chosen, **more), path, tmp_path / "out", None)


def test_a_further_measure_that_begins_like_one_of_another_task_is_taken(tmp_path):
    path = tmp_path / "job.yaml"
    (tmp_path / "c.yaml").write_text("data: {name: digits}\nevaluate: {measures: [\"my:mse_probability\"]}\n")
    (tmp_path / "my.py").write_text("def mse_probability(outputs, targets): return 0.\n")
    path.write_text(json.dumps({"title": "t", "config": "c.yaml", "rows": {"A": "local"},
                                "measure": "mse_probability_mean"}))
    assert len(job.expand(job.load_job(path), path, tmp_path / "out", None)) == 1
    (tmp_path / "c.yaml").write_text("data: {name: digits}\n")
    with pytest.raises(BadInput, match="measure mse_probability_mean is taken by no run with data.task = classific"):
        job.expand(job.load_job(path), path, tmp_path / "out", None)


@pytest.mark.parametrize("path", [pytest.param(path, marks=() if path.stem in DAILY else REST) for path in JOBS],
                         ids=lambda path: path.stem)
def test_all_runs_of_all_scales_have_good_settings(path, tmp_path):
    read = job.load_job(path)
    # Seeds change nothing else.
    once = dataclasses.replace(read, seeds=read.seeds[:1])
    for scale in (None, *read.scales):
        kept = job.narrow_job(once, scale)
        runs = job.expand(once, path, tmp_path, scale)
        assert len(runs) == len(kept.rows) * len(kept.columns) * len(kept.seeds)
        assert len({run.folder for run in runs}) == len(runs)


def test_runs_have_the_section_that_the_measures_of_their_job_need(tmp_path):
    path = JOBS[0].parent / "fedcps_table4.yaml"
    read = job.load_job(path)
    assert {view.measure for view in job.list_views(read)} == {"T_comp", "T_comm", "E_comp", "E_comm"}
    assert all(run.settings.edge for run in job.expand(read, path, tmp_path, "small"))


@each
def test_published_numbers_are_what_their_measure_can_be(path):
    for view in job.list_views(job.load_job(path)):
        for row, cells in view.published.items():
            assert cells, row
            for cell in cells.values():
                mean, spread = split_published(cell)
                assert 0 < mean < (100 if find_factor(view.measure) == 100 else float("inf"))
                assert spread is None or 0 <= spread < mean


def test_no_two_jobs_have_one_title_and_the_page_names_all():
    assert len({job.load_job(path).title for path in JOBS}) == len(JOBS) > 20
    page = (JOBS[0].parent / "README.md").read_text()
    assert [path.name for path in JOBS if f"`{path.name}`" not in page] == []


@pytest.mark.slow("networks of 33 rows")
@pytest.mark.parametrize("name", ["fedah_table1", "fedah_table3", "fedmhc_table1"])
def test_every_row_can_train_the_network_with_batchnorm(name, tmp_path):
    """Statistics are local; methods that compute with whole models, or choose among them, refuse that and average."""
    networks, policies = {}, {}
    path = JOBS[0].parent / f"{name}.yaml"
    for run in job.expand(dataclasses.replace(job.load_job(path), seeds=[0]), path, tmp_path, None):
        model = run.settings.model
        if run.column == "TINY, ResNet-18":
            if model not in networks:
                networks[model] = build_model(model, (64, 64, 3), np.dtype("uint8"), 200, 0)
            batchnorm.bind_method(run.settings.method, networks[model])
            policies[run.row] = (model.norm, model.running_stats)
    averaged = {"FedAMP", "CFL", "IFCA (k=4)", "pFedCAM (K=4)"}
    assert policies == {row: ("batch", "average" if row in averaged else "local") for row in policies}
    assert len(policies) > 10
