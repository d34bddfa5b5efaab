"""A sweep as a Slurm job array: its script runs the sweep's runs in the sweep's folders."""
from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.errors import BadInput
from fedmpi.slurm import sbatch as slurm_sbatch
from fedmpi.slurm import script
from fedmpi.storage.lock import Lock
from fedmpi.sweeps import array, job
from tests.launch import ENVIRONMENT
from tests.sweeps import jobs

# It starts one rank here without Slurm, and leaves out srun's own options.
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
ASKED = {"ranks": 1, "time": "10", "options": []}


@pytest.fixture
def runs(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = jobs.write(tmp_path, cache, rows={"Local": "local", "It's FedAvg": "fedavg"}, published={})
    return job.expand(job.load_job(path), path, Path("out 1"), None)


def test_a_task_is_a_run_of_the_sweep(runs, tmp_path, warm, monkeypatch):
    """The script itself runs the third run, which a sweep then finds finished."""
    monkeypatch.setattr(sys, "executable", str(warm))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "script").write_text(script.render_script(array.make_array(runs, **ASKED)))
    slurm = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_NODELIST": "n1",
             "SLURM_JOB_NUM_NODES": "1",
             "SLURM_CPUS_PER_TASK": "1", "PATH": f"{tmp_path / 'bin'}:{ENVIRONMENT['PATH']}"}
    done = subprocess.run(["bash", "script"], env=ENVIRONMENT | slurm, cwd=tmp_path, timeout=240)
    found = [run.outcome() for run in runs]
    assert done.returncode == 0, runs[2].folder.with_suffix(".txt").read_text()
    assert [o.state for o in found] == ["waiting", "waiting", "finished", "waiting"] and found[2].starts == 1
    kept = (tmp_path / "out 1" / "summary.txt").read_text()
    assert "1 finished" in kept and found[2].result["digest"][:16] in kept
    assert "--array=0-2\n" in script.render_script(array.make_array([r for r in runs if r is not runs[2]], **ASKED))


def test_a_finished_sweep_submits_nothing(runs):
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / "result.json").write_text(json.dumps({"rounds": 2, "accuracy_mean": 1, "digest": "a"}))
    assert array.submit_runs(runs, follow="", **ASKED) == "all 4 runs are finished or under way"


def test_what_failed_or_has_too_few_rounds_is_submitted_again(runs, tmp_path, monkeypatch):
    result = {"accuracy_mean": 1, "digest": "a"}
    for run, rounds in zip(runs, (1, 2, None, None), strict=True):
        run.folder.mkdir(parents=True)
        if rounds:
            (run.folder / "result.json").write_text(json.dumps(result | {"rounds": rounds}))
    runs[2].folder.with_suffix(".txt").write_text("job 7_1: start 1 on n1: c.yaml\njob 7_1: ended with code 1, why\n")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{ENVIRONMENT['PATH']}")
    assert array.submit_runs(runs, follow="fedmpi status j.yaml", **ASKED) == (
        "submitted runs/out-1.sbatch as job 4711: 3 of 4 runs; squeue --jobs 4711 and fedmpi status j.yaml show them")
    text = (tmp_path / "runs" / "out-1.sbatch").read_text()
    assert "#SBATCH --array=0-2\n" in text and "local/beta-1" in text
    assert [line.split("out=$folder/")[1] for line in text.splitlines() if ") settings+=" in line] == [
        f"{run.folder.relative_to('out 1')} ;;" for run in (runs[0], *runs[2:])]


def test_an_array_has_what_its_runs_need(runs):
    threads = [run._replace(settings=dataclasses.replace(run.settings, threads=n))
               for run, n in zip(runs, (1, 6, 2, 1), strict=True)]
    made = array.make_array(threads, **ASKED | {"ranks": 3, "gpus": 2, "time": "1-0", "options": ["--qos=x"],
                                                "setup": "s"})
    assert (made.config, made.name, made.out, made.nodes) == (str(runs[0].config), "out-1", "out 1", 1)
    assert (made.ranks, made.gpus, made.time, made.options) == (3, 2, "1-0", ("--qos=x",))
    assert (made.setup, made.cpus) == ("s", 6)
    assert made.array == tuple(tuple(run.overrides) for run in runs) and made.settings == ("device=cuda",)
    assert made.folders == tuple(str(run.folder.relative_to("out 1")) for run in runs)
    assert array.make_array(threads, cpus=2, **ASKED).cpus == 2


def test_a_long_name_of_the_folder_is_cut_for_the_job(runs):
    """The user gave --out, and a sweep has no option for the name of its job."""
    out = Path("x" * 130)
    made = array.make_array([run._replace(folder=out / run.folder.relative_to("out 1")) for run in runs], **ASKED)
    assert (made.name, made.out) == ("x" * 100, str(out))


def test_what_cannot_be_submitted_is_refused(runs, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="--time soon is not a time"):
        array.submit_runs(runs, follow="", **ASKED | {"time": "soon"})
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["sweep", "job.yaml", "--slurm"])
    assert done.exit_code == 2 and "sbatch is not on this machine" in done.output


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="there is no shellcheck here")
def test_the_script_pleases_shellcheck(runs, tmp_path):
    (tmp_path / "script").write_text(script.render_script(array.make_array(runs, **ASKED)))
    done = subprocess.run(["shellcheck", "script"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_script_says_what_was_asked_for(runs):
    asked = ASKED | {"ranks": 3, "options": ["--partition=long"], "setup": "module load mpich"}
    job = array.make_array(runs, cpus=4, mpi="pmix", **asked)
    text = script.render_script(job)
    for line in ("#SBATCH --ntasks-per-node=3", "ranks=3", "#SBATCH --partition=long", "#SBATCH --array=0-3",
                 "    module load mpich",
                 "#SBATCH --cpus-per-task=4"):
        assert f"{line}\n" in text
    assert "\nlauncher=(srun --mpi=pmix " in text
    assert array.make_array(runs, **ASKED).mpi == slurm_sbatch.guess_mpi()
    assert job.command == (sys.executable, "-m", "fedmpi") and "out=$folder/it-s-fedavg/beta-1/seed-0 ;;" in text


def test_a_profile_says_how_runs_are_started(runs, tmp_path):
    """In a container, for example. A run of a sweep is on one node, whatever the profile says."""
    (tmp_path / "site.yaml").write_text("nodes: 3\ncommand: apptainer exec fedmpi.sif fedmpi\nmpi: pmix\n")
    made = array.make_array(runs, str(tmp_path / "site.yaml"), **ASKED)
    assert made.command == ("apptainer", "exec", "fedmpi.sif", "fedmpi") and (made.nodes, made.mpi) == (1, "pmix")
    assert "\nfedmpi=(apptainer exec fedmpi.sif fedmpi)\n" in script.render_script(made)


def test_the_script_can_be_looked_at_first(runs, tmp_path, monkeypatch):
    # There is no sbatch.
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["sweep", "job.yaml", "--slurm", "--dry-run", "--mpi", "pmix", "--cpus", "2"])
    assert done.exit_code == 0 and done.output.startswith("#!/bin/bash") and "--cpus-per-task=2" in done.output


@pytest.mark.parametrize("words, message", [
    (["--time", "04:00:00", "--gpus", "2"], "--time --gpus: of use with --slurm alone; add --slurm to submit the runs"),
    (["--mpi", ""], "--mpi: of use with"), (["--at-once", "2"], "--at-once: of use with"),
    (["--slurm", "--option=--signal=USR1@600", "--dry-run"], "; `fedmpi sweep` takes it from the file of --profile"),
    (["--slurm", "--option=--array=0-9%4", "--dry-run"], "--array, and --at-once; `fedmpi sweep` has --at-once"),
    (["--option=--mem=8G", "--profile", "x"], "--profile --option: of use"),
    (["--slurm", "--local", "2"], "--local: --slurm makes no use of it; leave it out"),
    (["--slurm", "--local", "2", "--dry-run"], "since Slurm decides how many runs go on at a time"),
    (["--slurm", "--dry-run", "--rate", "5"], "--rate: --slurm makes no use of it; leave it out, since nothing is est"),
    (["--slurm", "--dry-run", "--mpi", "pmix", "--profile", "one-node"], "--mpi pmix: an option of the launcher srun"),
    (["--out", "", "--dry-run"], '--out "" is no path; give one, or leave --out out'),
    (["--slurm", "--dry-run", "--gpus", "2", "--ranks", "7"], "--ranks 7 with --gpus 2: a run has a rank for each")])
def test_options_that_would_not_count_are_refused(runs, words, message):
    done = CliRunner().invoke(app, ["sweep", "job.yaml", *words])
    assert done.exit_code == 2 and message in " ".join(done.output.split()) and not Path("runs").exists()


def test_what_may_not_be_meant_is_told_as_by_submit(runs, tmp_path, capsys):
    for profile, said in (("jsc-like", "profile jsc-like was not tested: written from what"), ("generic", "")):
        array.submit_runs(runs, True, profile, follow="fedmpi status", **ASKED)
        assert capsys.readouterr().err.startswith(said) and bool(said) == (profile == "jsc-like")
    array.submit_runs(runs, True, follow="fedmpi status", **ASKED | {"ranks": 99})
    assert " of 99 ranks will be idle: there are " in capsys.readouterr().err


def test_a_row_keeps_the_threads_that_it_sets(runs):
    """What stands last counts, so the CPUs of a rank are only the default of its threads."""
    made = array.make_array([run._replace(overrides=[*run.overrides, f"threads={n}"]) for n, run in enumerate(runs, 1)],
                            cpus=4, **ASKED)
    with pytest.raises(BadInput, match="threads = 4 with 3 CPUs per rank: .*; give --cpus 4, or fewer threads"):
        array.make_array([run._replace(overrides=["threads=1", "threads= 4"], settings=dataclasses.replace(
            run.settings, threads=4)) for run in runs], cpus=3, **ASKED)
    text = script.render_script(made)
    assert ' run "$config" \\\n    threads="$SLURM_CPUS_PER_TASK" "${settings[@]}" --out ' in text
    rows = [line for line in text.splitlines() if ") settings+=" in line]
    assert [f" threads={n}); out=" in row for n, row in enumerate(rows, 1)] == 4 * [True]


def test_so_many_runs_at_a_time(runs, tmp_path):
    asked = ASKED | {"partition": "long"}
    text = script.render_script(array.make_array(runs, at_once=3, **asked))
    assert "#SBATCH --array=0-3%3\n" in text and "#SBATCH --partition=long\n" in text
    (tmp_path / "site.yaml").write_text("at_once: 2\npartition: short\naccount: a1\n")
    of_site = array.make_array(runs, "./site.yaml", **ASKED)
    assert (of_site.at_once, of_site.options) == (2, ("--partition=short", "--account=a1"))
    assert array.make_array(runs, "./site.yaml", **asked).options == ("--partition=long", "--account=a1")


def test_a_server_that_trains_has_no_rank_of_its_own(runs):
    def made(*settings):
        given = [run._replace(settings=dataclasses.replace(run.settings, server=dataclasses.replace(
            run.settings.server, hosts_clients=trains))) for run, trains in zip(runs, settings, strict=True)]
        return array.make_array(given, gpus=3, **ASKED | {"ranks": None})
    assert made(True, True, True, True).planned_ranks == 3
    # those whose server does not train need one more
    assert made(True, False, True, True).planned_ranks == 4


def test_ranks_are_those_of_the_profile_unless_they_are_asked_for(runs, tmp_path):
    (tmp_path / "site.yaml").write_text("ranks: 5\n")
    assert array.make_array(runs, "./site.yaml", time="10", ranks=None).ranks == 5
    assert array.make_array(runs, "./site.yaml", time="10", ranks=3).ranks == 3
    assert array.make_array(runs, time="10", ranks=None).ranks == 1


def test_what_is_under_way_is_not_submitted_again(runs):
    runs[1].folder.mkdir(parents=True)
    lock = Lock(runs[1].folder)
    assert "#SBATCH --array=0-2\n" in array.submit_runs(runs, dry_run=True, follow="", **ASKED)
    lock.release()
    assert "#SBATCH --array=0-3\n" in array.submit_runs(runs, dry_run=True, follow="", **ASKED)
