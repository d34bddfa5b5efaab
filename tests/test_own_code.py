"""The files of a run can name code, and no command that only reads them imports it."""
from __future__ import annotations

import shutil

import pytest
import yaml
from typer.testing import CliRunner

import fedmpi
from fedmpi import registry
from fedmpi.cli import app
from fedmpi.errors import BadInput
from fedmpi.storage.checkpoint import CheckpointFile, read_checkpoint, write_checkpoint
from fedmpi.storage.listing import list_checkpoints
from tests.sweeps import jobs

HARM = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\nclass Harm:\n    pass\n"
PLACES = {"method": ("method", "name"), "model": ("model", "name"), "data set": ("data", "name"),
          "partition": ("data", "partition", "name")}
NAMES = ("harm:Harm", "installed_harm")


class Installed:
    """An entry point of an installed plug-in, which the import of its module would run."""

    def __init__(self, name):
        self.name = name

    def load(self):
        return registry.import_class("methods", "harm:Harm")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    """Return the folder of a sweep of one run, which is finished and has only built-in names."""
    folder = tmp_path_factory.mktemp("finished")
    path = jobs.write(folder, cache, rows={"FedAvg": "fedavg"}, columns={"one": {}}, published={})
    done = CliRunner().invoke(app, ["run", str(folder / "c.yaml"), "engine=loop", "method=fedavg", "seed=0",
                                    "--out", str(folder / "out" / "fedavg" / "one" / "seed-0")])
    assert done.exit_code == 0, done.output
    assert path == str(folder / "job.yaml")
    return folder


@pytest.fixture
def work(tmp_path, finished, monkeypatch):
    """Return a copy of that folder, with a module that leaves a file when it is imported, in the current folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "harm.py").write_text(HARM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(registry.sys.modules, "harm", raising=False)
    monkeypatch.setattr(registry, "entry_points", lambda group, name=None: [
        Installed("installed_harm")] if name in (None, "installed_harm") else [])
    yield tmp_path
    registry.sys.modules.pop("harm", None)


def name_harm(work, place, name):
    """Let the configuration of the run, and of its checkpoint, name that code; returns the run's folder."""
    def named(settings):
        *sections, last = PLACES[place]
        section = settings
        for key in sections:
            section = section[key]
        section[last] = name
        return settings
    run = work / "out" / "fedavg" / "one" / "seed-0"
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump(named(yaml.safe_load(path.read_text()))))
    for saved in list_checkpoints(run / "checkpoints"):
        snapshot = read_checkpoint(saved)
        rows = CheckpointFile(saved).read_rows(0, len(snapshot.ids))
        named(snapshot.config)
        write_checkpoint(run / "checkpoints", snapshot, [rows])
    return run


def copy_with_other_seed(run, work):
    """Copy a run, as if another seed had given it; return the folder of the copy."""
    other = work / "other"
    shutil.copytree(run, other)
    (other / "config.yaml").write_text((run / "config.yaml").read_text().replace("seed: 0", "seed: 1"))
    return other


def command(*words):
    done = CliRunner().invoke(app, list(map(str, words)))
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("place, name", [*((place, "harm:Harm") for place in PLACES), ("method", "installed_harm")])
def test_commands_that_read_import_nothing_that_a_run_names(work, place, name):
    run = name_harm(work, place, name)
    run.with_name("seed-0.txt").write_text("job 7: start 1 on host: c.yaml rounds=2\n")
    assert command("compare", run, copy_with_other_seed(run, work))[0] == 0
    assert command("summary", work / "out")[0] == 0
    code, said = command("export", run, work / "x.safetensors")
    assert code == 2 and "reading what a run left imports no code that the run names; if you trust the run" in said
    code, said = command("sweep", work / "job.yaml", "--out", work / "out", "--dry-run", "--rate", 9)
    assert code == 2 and "holds a run with other settings" in said
    assert command("report", work / "job.yaml", "--out", work / "out")[0] == 2
    assert not (work / "imported").exists() and not (work / "x.safetensors").exists()


@pytest.mark.slow("draws all figures")
@pytest.mark.parametrize("name", NAMES)
def test_a_report_imports_nothing_that_a_run_names(work, name):
    """A report takes a second, so all places name the code at once; the plug-in is a method."""
    run = [name_harm(work, place, name) for place in (PLACES if name == "harm:Harm" else ["method"])][-1]
    assert command("report", run, copy_with_other_seed(run, work), "--to", work / "report")[0] == 0
    assert not (work / "imported").exists()


def test_tensorboard_imports_nothing_either(work):
    pytest.importorskip("tensorboard")
    assert command("tensorboard", name_harm(work, "method", "harm:Harm"))[0] == 0
    assert not (work / "imported").exists()


@pytest.mark.parametrize("name", NAMES)
def test_who_names_it_himself_or_says_so_has_it_imported(work, name):
    run = name_harm(work, "method", name)
    # The command fails because Harm is not a method.
    assert command("export", run, work / "x.safetensors", "--own-code")[0] == 2
    assert (work / "imported").exists()


def test_a_run_of_the_configuration_imports_it(work):
    assert command("run", work / "c.yaml", "method=harm:Harm", "--out", work / "mine")[0] == 2
    assert (work / "imported").exists()


def test_a_job_that_names_own_code_still_knows_its_runs(work):
    """A sweep that examines a folder may import what the job itself names."""
    with registry.refuse_own_code(but={"harm:Harm"}):
        assert registry.find_class("methods", "harm:Harm").__name__ == "Harm"
        with pytest.raises(BadInput, match="'harm:Other' is not built in"):
            registry.find_class("methods", "harm:Other")
    with registry.refuse_own_code(), pytest.raises(BadInput, match="not built in"):
        registry.find_class("methods", "harm:Harm")
    # The refusal ends with its context.
    assert registry.find_class("methods", "harm:Harm").__name__ == "Harm"


def test_from_python_too(work):
    run = name_harm(work, "model", "harm:Harm")
    with pytest.raises(BadInput, match="if you trust the run, give own_code=True"):
        fedmpi.load_result(run).model(0)
    assert not (work / "imported").exists()
    with pytest.raises(BadInput, match="harm:Harm is not a class of networks"):
        fedmpi.load_result(run, own_code=True).model(0)
    assert (work / "imported").exists()
