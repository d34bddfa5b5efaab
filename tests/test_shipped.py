"""What is installed beside the code: configurations and jobs by name, and a new study from its template."""
from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedmpi.cli import app
from fedmpi.config.schema import load_config
from fedmpi.errors import BadInput
from fedmpi.shipped import find_shipped, init_study, list_shipped
from fedmpi.sweeps.job import plan_job
from tests import forked

ROOT = Path(__file__).parent.parent


def test_a_name_leads_to_the_file_that_came_with_fedmpi(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart") == load_config(ROOT / "configs" / "quickstart.yaml")
    by_name, by_path = plan_job("digits", None, "out")[1], plan_job(str(ROOT / "jobs" / "digits.yaml"), None, "out")[1]
    assert [(run.folder, run.overrides) for run in by_name] == [(run.folder, run.overrides) for run in by_path]
    assert list_shipped("configs") == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    assert "fedmhc_table1" in list_shipped("jobs")


def test_a_file_wins_over_a_name_and_only_words_are_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ("quickstart.yaml", "./quickstart", "../configs/quickstart", "nothing", "q\0"):
        assert find_shipped(given, "configs") == Path(given)
    Path("quickstart").write_text("rounds: 7\n")
    assert load_config("quickstart").rounds == 7


@pytest.mark.parametrize("read, names", [(load_config, "mnist, own_data, quickstart"), (
    lambda path: plan_job(path, None, None), "digits, fedah_table1")])
def test_an_unknown_name_lists_the_known_ones(read, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=f"^nothing: cannot.*No such file .*; names that need no file: .*{names}"):
        read("nothing")
    with pytest.raises(BadInput, match="directory$"):
        read("nothing.yaml")


def test_a_study_is_written_into_an_empty_folder_only(tmp_path, monkeypatch, capsys):
    names = ["README.md", "config.yaml", "job.yaml", "make_data.py", "my_method.py", "test_study.py"]
    monkeypatch.setattr(sys, "argv", ["fedmpi", "init", str(tmp_path / "a" / "my study")])
    with pytest.raises(SystemExit) as end:
        app()
    assert end.value.code == 0 and f"next: cd '{tmp_path}/a/my study'; python make_data.py" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "a" / "my study").iterdir()) == names
    with pytest.raises(BadInput, match="is not empty; choose a new folder"):
        init_study(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written: File exists; choose another folder"):
        init_study(tmp_path / "file")


def test_a_study_that_does_not_fit_on_the_disk_leaves_an_empty_folder(tmp_path):
    """A limit of the size of files stands for the disk: the fifth of six files is larger."""
    def begin():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        with pytest.raises(BadInput, match="study cannot be written: File too large; choose another folder"):
            init_study(tmp_path / "study")
    done = forked.call(1, begin)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "study").iterdir()) == []
    assert len(init_study(tmp_path / "study")) == 6


@pytest.mark.slow("builds a wheel, installs it and runs a study with it in processes of their own")
def test_the_wheel_holds_all_that_a_study_needs(tmp_path):
    source, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    for name in ("fedmpi", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "jobs", source / "jobs", ignore=shutil.ignore_patterns("results"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", wheels, source], tmp_path)
    (wheel,) = wheels.iterdir()
    held = zipfile.ZipFile(wheel).namelist()
    assert {f"fedmpi/shipped/configs/{name}.yaml" for name in list_shipped("configs")} < set(held)
    assert {f"fedmpi/shipped/jobs/{name}.yaml" for name in list_shipped("jobs")} < set(held)
    assert not [name for name in held if "jobs/results" in name or not name.startswith("fedmpi")]
    run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], tmp_path)
    python = [sys.executable, "-c", "import sys; from fedmpi.__main__ import main; sys.argv[0] = 'fedmpi'; main()"]
    assert "make_data.py" in run([*python, "init", "study"], tmp_path, site)
    assert re.search(r"\b2 passed\b", run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "."],
                                          tmp_path / "study", site))
    where = "import fedmpi; print(fedmpi.plan('quickstart', ranks=2)['parameters'], fedmpi.__file__)"
    assert run([sys.executable, "-c", where], tmp_path, site).split()[1].startswith(str(site))


def run(words: list, folder: Path, site: Path | None = None) -> str:
    """Run a command with the fedmpi of `site`, and return what it printed."""
    import os
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], cwd=folder, env=environ | ({"PYTHONPATH": str(site)} if site else {}),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
