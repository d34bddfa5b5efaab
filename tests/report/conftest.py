"""Real runs with all data from which figures are drawn."""
from __future__ import annotations

import pytest

from fedmpi.report import figures, write
from fedmpi.report.results import collect_job_results
from fedmpi.sweeps import job as jobfile
from tests.runs import run_alone
from tests.sweeps import jobs

ROWS = {"FedAvg": "fedavg", "FedMHC & co": {"method": {"name": "fedmhc", "M": 3, "lam": .01}}, "Local": "local",
        "FedCPS": {"method": "fedcps"}}
FEW_SHOT = {"data": {"partition": {"name": "few_shot", "gamma": .4, "classes": 4, "few_classes": 2}}}
PUBLISHED = {"FedAvg": {"beta .3": [31.89, .44]}, "Local": {"beta .3": 50}, "FedCPS": {"beta .3": 95}}


@pytest.fixture(scope="session")
def results(tmp_path_factory, cache):
    """The results of a job whose last run was left out."""
    folder = tmp_path_factory.mktemp("job")
    path = jobs.write(folder, cache, seeds=[0, 1], rows=ROWS, columns={"beta .3": {}, "few-shot": FEW_SHOT},
                      published=PUBLISHED, also={"best_round": {"Local": {"few-shot": 7}}},
                      set={"engine": "loop", "evaluate.embeddings": [1, 2]})
    job = jobfile.load_job(path)
    runs = jobfile.expand(job, path, folder / "out", None)
    for run in runs[:-1]:
        assert run_alone(str(run.config), run.overrides, str(run.folder)) == 0
    return collect_job_results(job, runs, "fedmpi sweep job.yaml")


@pytest.fixture(scope="session")
def drawn(results):
    """All figures of these results, by name."""
    return {picture.name: picture for picture in figures.draw_figures(results)}


@pytest.fixture(scope="session")
def report(results, drawn, tmp_path_factory):
    """The folder of their report, with coarse figures of one column, because writing figures takes most of the time."""
    pictures = [picture for name, picture in drawn.items() if name.endswith("beta-.3")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw_figures", lambda results: pictures)
        patch.setattr(write, "FORMS", {"png": 50, "svg": 50})
        return write.write_report(results, tmp_path_factory.mktemp("report")).parent
