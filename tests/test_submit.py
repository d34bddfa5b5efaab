"""Job scripts: those in slurm/ are what `fedmpi submit` writes, and what is asked for is in them."""
from __future__ import annotations

import dataclasses
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.errors import BadInput
from fedmpi.slurm import submit
from tests.launch import ROOT

CONFIG = str(ROOT / "configs" / "quickstart.yaml")


def written(*words) -> str:
    """Return the script that the command prints."""
    done = CliRunner().invoke(app, ["submit", CONFIG, "--dry-run", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words) -> str:
    done = CliRunner().invoke(app, ["submit", CONFIG, "--dry-run", *words])
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize("name", submit.SLURM_DIR)
def test_the_scripts_are_what_the_command_writes(name):
    assert (ROOT / "slurm" / name).read_text() == submit.script(submit.SLURM_DIR[name])


def test_the_command_writes_that_script(monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["submit", "configs/quickstart.yaml", "--nodes", "2", "--mpi", "pmi2",
                                    "--command", "fedmpi", "--dry-run"])
    assert done.stdout == (ROOT / "slurm" / "run.sbatch").read_text()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="there is no shellcheck here")
@pytest.mark.parametrize("name", submit.SLURM_DIR)
def test_scripts_please_shellcheck(name, tmp_path):
    job = dataclasses.replace(submit.SLURM_DIR[name], settings=("a={b: 1}", "it's=so"), out="my runs")
    (tmp_path / name).write_text(submit.script(job))
    done = subprocess.run(["shellcheck", ROOT / "slurm" / name, tmp_path / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_bash_reads_settings_as_they_were_given(tmp_path):
    words = ("data.partition={name: dirichlet, beta: .3}", "it's=a $b `c`")
    text = submit.script(submit.Job(settings=words, array=(("a=1",), ("b=2", "c= 3"))))
    head = text.partition("setup()")[0] + '\nprintf "%s\\n" "${settings[@]}" "$out"'
    done = subprocess.run(["bash", "-c", head], env={"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7"},
                          capture_output=True, text=True)
    assert done.stdout.splitlines() == [*words, "b=2", "c= 3", "runs/quickstart-7/1"]


def test_what_is_asked_for_is_in_the_script():
    text = written("--nodes", "2", "--ntasks", "7", "--time", "1-12:00:00", "--partition", "long", "--option=--mem=8G",
                   "--out", "my runs", "--setup", "module load mpich", "--restarts", "3", "threads=2", "rounds=9")
    for line in ("--nodes=2", "--ntasks=7", "--ntasks-per-node=4", "--cpus-per-task=2", "--time=1-12:00:00",
                 "--partition=long", "--mem=8G", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {line}\n" in text
    for line in ("settings=(threads=2 rounds=9) ", "out='my runs' ", "    module load mpich\n", "restarts=3 "):
        assert line in text


def test_an_array_is_a_grid_or_the_lines_of_a_file(tmp_path):
    assert submit.runs_of(["seed=1,2", "lr=a"]) == (("seed=1", "lr=a"), ("seed=2", "lr=a"))
    (tmp_path / "runs.txt").write_text("a=1 'b={c: 2}'   # first\n\nd=3\n")
    assert submit.runs_of([str(tmp_path / "runs.txt")]) == (("a=1", "b={c: 2}"), ("d=3",))
    assert "#SBATCH --array=0-3\n" in written("--array", "seed=1,2", "--array", "train.lr=.1,.2")


@pytest.mark.parametrize("words, message", [
    (["method.lamda=1"], "method.lamda is not a setting of FedMHC"),
    (["--array", "seed=1,x"], "run 1 of the array: "), (["--array", "a=[1,2]"], "on a line of a file"),
    (["--array", "nowhere.txt"], "neither key=value,value nor a file"), (["--time", "soon"], "--time soon is no time"),
    (["--nodes", "3", "--ntasks", "2"], "a node would be empty"), (["--cpus", "0"], "--cpus 0"),
    (["--option", "--mem=8G\n#SBATCH --uid=0"], "cannot stand in a line for sbatch")], ids=str)
def test_what_cannot_run_is_refused_before_it_waits_in_a_queue(words, message):
    assert message in " ".join(refused(*words).split())


def test_without_sbatch_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="sbatch is not on this machine"):
        submit.submit(submit.Job())
