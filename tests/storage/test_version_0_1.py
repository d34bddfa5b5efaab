"""Runs of version 0.1 are read by today's commands, continued, or refused by their version.

version_0_1.tar.gz holds the folder of such a run: Ditto on digits, four clients, an MLP of four hidden units, two
rounds, and a robust mean, so that it has settings with old names."""
from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.config import schema
from fedmpi.config.old_names import rename_settings
from fedmpi.errors import BadInput
from fedmpi.storage import run_status
from fedmpi.storage.checkpoint import read_checkpoint
from fedmpi.storage.older_versions import CHANGED_SINCE_0_1, refuse_changed_method

WRITTEN = Path(__file__).with_name("version_0_1.tar.gz")
# The digest after round 3 of the same run, by version 0.1 on the machine that wrote the folder.
DIGEST = "4eebc0ca8860f7fc"
OLD = {"data": {"share": .5}, "evaluate": {"after": "off"}, "server": {"robust": "median"}, "graphs": "off",
       "model": {"name": "resnet18", "norm": "batch", "statistics": "average"}}
NEW = {"data": {"fraction": .5}, "evaluate": {"after_training": "off"}, "server": {"aggregation": "median"},
       "cuda_graphs": "off", "model": {"name": "resnet18", "norm": "batch", "running_stats": "average"}}


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(WRITTEN) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "ditto"


@pytest.fixture
def config(folder, cache):
    """Return a configuration of the same run with today's names."""
    settings = run_status.read_settings(folder)
    settings["data"]["cache"] = str(cache)
    path = folder.with_name("ditto.yaml")
    path.write_text(yaml.safe_dump(settings))
    return path


def command(*words):
    done = CliRunner().invoke(app, list(map(str, words)))
    return done.exit_code, done.output


def test_settings_and_results_are_read(folder):
    settings = run_status.read_settings(folder)
    assert settings["server"]["aggregation"] == "median" and "robust" not in settings["server"]
    # 0.1 did not have these.
    new = {"stop": None, "checkpoint": settings["checkpoint"] | {"asynchronous": False}}
    assert schema.to_plain(schema.resolve(settings)) == settings | new
    found = run_status.read_outcome(folder)
    assert (found.state, found.round, found.result["digest"][:8]) == ("finished", 2, "2020a3b1")
    assert found.result["accuracy_best_on_test"] == pytest.approx(.1247, abs=1e-4)


def test_checkpoints_are_read(folder):
    found = read_checkpoint(folder / "checkpoints" / "round-000002.h5")
    assert (found.version, found.round, found.config["server"]["aggregation"]) == ("0.1.0", 2, "median")
    assert found.config["data"]["fraction"] == 1 and set(found.shared) == {"w"}


@pytest.mark.slow("a run, and a report with figures")
def test_report_compare_and_summary_take_it_beside_a_run_of_today(folder, config, tmp_path):
    code, said = command("run", config, "train.lr=.2", "--out", tmp_path / "now")
    assert code == 0, said
    code, said = command("compare", folder, tmp_path / "now")
    assert code == 0 and "train.lr" in said and "aggregation" not in said and "fraction" not in said, said
    assert command("report", folder, tmp_path / "now", "--to", tmp_path / "report")[0] == 0
    assert "12.47" in (tmp_path / "report" / "index.html").read_text()
    folder.with_name("ditto.txt").write_text("job 7: start 1 on host: ditto.yaml rounds=2\n")
    code, said = command("summary", tmp_path)
    # A narrow terminal breaks the line.
    text = " ".join(said.split())
    assert code == 0 and "accuracy 12.47 % after 2 rounds, digest 2020a3b1839f4d87" in text, said


def test_a_client_s_model_is_exported(folder, tmp_path):
    pytest.importorskip("safetensors")
    code, said = command("export", folder, tmp_path / "model.safetensors", "--client", 1)
    assert code == 0 and "model of client 1 after round 2" in said, said


def test_a_run_goes_on_to_the_same_end(folder, config, tmp_path):
    for words in ((folder, "--resume", "auto"), (tmp_path / "straight",)):
        code, said = command("run", config, "rounds=3", "--out", *words)
        assert code == 0, said
    resumed, straight = (json.loads((path / "result.json").read_text()) for path in (folder, tmp_path / "straight"))
    assert resumed["loss"] == pytest.approx(straight["loss"], rel=1e-5)
    # On the kind of machine that wrote the folder all three agree bit for bit.
    if straight["digest"].startswith(DIGEST):
        assert resumed["digest"] == straight["digest"]


def test_a_method_that_has_changed_since_is_refused_by_version():
    for name in CHANGED_SINCE_0_1:
        with pytest.raises(BadInput, match=f"c.h5 was written by fedmpi 0.1.0, whose {name} computes something else .*"
                                           "use it with fedmpi 0.1.0, or start a new run"):
            refuse_changed_method("c.h5", "0.1.0", {"method": {"name": name}})
        refuse_changed_method("c.h5", "0.2.0", {"method": {"name": name}})
    for name in ("ditto", "fedavg", "fedmhc", "own:Method"):
        refuse_changed_method("c.h5", "0.1.0", {"method": {"name": name}})


def test_resume_and_export_ask_for_the_version(folder, config, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmpi.storage.older_versions.CHANGED_SINCE_0_1", {"ditto"})
    for words in (("run", config, "rounds=3", "--out", folder, "--resume", "auto"),
                  ("export", folder, tmp_path / "model.safetensors", "--client", 1)):
        code, said = command(*words)
        assert code == 2 and "was written by fedmpi 0.1.0, whose ditto computes something else" in said, said
    assert (folder / "result.json").exists()


def test_old_names_are_refused_with_the_new_ones():
    assert rename_settings(OLD) == NEW
    assert rename_settings(NEW) == NEW
    with pytest.raises(BadInput) as refused:
        schema.resolve(OLD)
    assert set(str(refused.value).splitlines()) == {
        f"{old} is called {new} since version 0.2" for old, new in (
            ("data.share", "data.fraction"), ("evaluate.after", "evaluate.after_training"),
            ("server.robust", "server.aggregation"), ("graphs", "cuda_graphs"),
            ("model.statistics", "model.running_stats"))}
