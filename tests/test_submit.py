"""Job scripts: those in slurm/ are what `fedmpi submit` writes, and what is asked for is in them."""
from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands import submit
from fedmpi.errors import BadInput
from fedmpi.slurm import sbatch as slurm_sbatch
from fedmpi.slurm import script
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


@pytest.mark.parametrize("name", script.DEFAULT_SCRIPTS)
def test_the_scripts_are_what_the_command_writes(name):
    assert (ROOT / "slurm" / name).read_text() == script.render_script(script.DEFAULT_SCRIPTS[name])


def test_the_command_writes_that_script(monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["submit", "configs/quickstart.yaml", "--nodes", "2", "--mpi", "pmi2",
                                    "--command", "fedmpi", "--dry-run"])
    assert done.stdout == (ROOT / "slurm" / "run.sbatch").read_text()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="there is no shellcheck here")
@pytest.mark.parametrize("name", script.DEFAULT_SCRIPTS)
def test_scripts_please_shellcheck(name, tmp_path):
    job = dataclasses.replace(script.DEFAULT_SCRIPTS[name], settings=("a={b: 1}", "it's=so"), out="my runs",
                              chain=2, launcher="mpiexec")
    (tmp_path / name).write_text(script.render_script(job))
    done = subprocess.run(["shellcheck", ROOT / "slurm" / name, tmp_path / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_bash_reads_settings_as_they_were_given(tmp_path):
    words = ("data.partition={name: dirichlet, beta: .3}", "it's=a $b `c`")
    text = script.render_script(script.JobScript(settings=words, array=(("a=1",), ("b=2", "c= 3"))))
    head = text.partition("setup()")[0] + '\nprintf "%s\\n" "${settings[@]}" "$out"'
    done = subprocess.run(["bash", "-c", head], env={"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7"},
                          capture_output=True, text=True)
    assert done.stdout.splitlines() == [*words, "b=2", "c= 3", "runs/quickstart-7/1"]


def test_what_is_asked_for_is_in_the_script():
    text = written("--nodes", "2", "--ranks", "7", "--time", "1-12:00:00", "--partition", "long", "--option=--mem=8G",
                   "--out", "my runs", "--setup", "module load mpich", "--restarts", "3", "threads=2", "rounds=9")
    for line in ("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=2", "--time=1-12:00:00",
                 "--partition=long", "--mem=8G", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {line}\n" in text
    for line in ("settings=(threads=2 rounds=9)", "out='my runs'", "    module load mpich", "nodes=2", "ranks=7",
                 "restarts=3"):
        assert f"\n{line}\n" in text


def test_an_array_is_a_grid_or_the_lines_of_a_file(tmp_path):
    assert submit.expand_array(["seed=1,2", "lr=a"]) == (("seed=1", "lr=a"), ("seed=2", "lr=a"))
    (tmp_path / "runs.txt").write_text("a=1 'b={c: 2}'   # first\n\nd=3\n")
    assert submit.expand_array([str(tmp_path / "runs.txt")]) == (("a=1", "b={c: 2}"), ("d=3",))
    assert "#SBATCH --array=0-3\n" in written("--array", "seed=1,2", "--array", "train.lr=.1,.2")


@pytest.mark.parametrize("words, message", [
    (["method.lamda=1"], "method.lamda is not a setting of FedMHC"),
    (["--array", "seed=1,x"], "run 1 of the array: "), (["--array", "a=[1,2]"], "on a line of a file"),
    (["--array", "seed=0,1", "--array", "seed=2,3"], "--array seed=2,3: seed is given twice, and the later value"),
    (["--gpus", "2", "--ntasks", "7"], "--ranks 7 with --gpus 2: a run has a rank for each GPU, and one for the serv"),
    (["--chain", "3", "--restarts", "9"], "--restarts 9 with --chain 3: the jobs of a chain follow each other"),
    (["--profile", "tacc-like", "--restarts", "9"], "or give --chain 0 for one job that starts again"),
    (["--array", "nowhere.txt"], "neither key=value,value nor a file"),
    (["--time", "soon"], "--time soon is not a time"),
    (["--nodes", "3", "--ranks", "2"], "--ranks 2 on 3 nodes: a node would be empty"),
    (["--cpus", "0"], "Invalid value for '--cpus'"),
    (["--setup", "module load 'mpich"], """--setup "module load 'mpich": bash cannot read it (unexpected EOF"""),
    (["--setup", "if true"], "close every quote, bracket and if"), (["--setup", "cat <<E"], "here-document"),
    (["--setup", "export A=1 \\"], "bash cannot read it"), (["--setup", "# nothing"], "bash cannot read it"),
    (["--option", "--mem=8G\n#SBATCH --uid=0"], "new lines cannot stand in a job script")], ids=str)
def test_what_cannot_run_is_refused_before_it_waits_in_a_queue(words, message):
    assert message in " ".join(refused(*words).split())


@pytest.mark.parametrize("words, lost", [
    (["method.mu=.1", "--array", "method=fedprox,fedavg"], "run 0 of the array: method.mu=.1 would be lost: method=f"),
    (["--array", "method.mu=.1,1", "--array", "method=fedprox"], "run 0 of the array: method.mu=.1 would be lost"),
    (["method.M=4", "--array", "method=fedmhc,fedavg"], "run 1 of the array: method.M=4 would be lost: method=fedavg"),
    (["method.mu=.1", "method={name: fedprox}"], "fedmpi: method.mu=.1 would be lost: method={name: fedprox} comes"),
    (["data.partition.beta=.4", "data.partition=shards", "data.partition=dirichlet"], "give data.partition=NAME fir")])
def test_a_setting_that_a_later_name_would_drop_is_refused(words, lost):
    """The configuration names FedMHC and a pathological partition."""
    assert lost in " ".join(refused(*words).split())


@pytest.mark.parametrize("words", [
    ["--array", "method=fedprox", "--array", "method.mu=.1,1"], ["method.M=4", "--array", "method=fedmhc"],
    ["method.M=4", "--array", "method.M=5,6", "--array", "method=fedmhc"],
    ["method.name=fedprox", "--array", "method=fedavg,fedmhc"], ["method.mu=.1", "method=fedprox", "method.mu=1"],
    ["train.lr=.1", "method.M=4", "train.lr=.2"]])
def test_a_setting_that_no_later_name_drops_is_kept(words):
    written(*words)


def test_a_setup_of_several_lines_stands_as_it_is_and_an_empty_one_does_nothing():
    several = "if true; then\nmodule load a\nfi"
    assert f"setup() {{\n    {several}\n}}\n" in written("--setup", several)
    assert "setup() {\n    :\n}\n" in written("--setup", " ")


def test_nodes_ranks_and_threads_follow_from_what_is_asked_for():
    def asked(*words, array=(), options=(), **more):
        return submit.build_job(CONFIG, list(words), list(array), list(options), time="10", **more)
    job = asked("rounds=9", "threads=2", options=["--mem=8G"])
    assert job == script.JobScript(
        CONFIG,
        ("rounds=9", "threads=2"),
        name="quickstart",
        nodes=1,
        ranks=2,
        cpus=2,
        time="10",
        options=("--mem=8G",),
        command=(sys.executable, "-m", "fedmpi"),
        mpi=slurm_sbatch.guess_mpi(),
        launcher="srun",
    )
    assert (asked(nodes=3).ranks, asked(nodes=3, ranks=5).ranks, asked(cpus=4).cpus) == (6, 5, 4)
    # the most threads of all runs of an array
    assert asked(array=["threads=2,8,3"]).cpus == 8
    assert asked(command="apptainer exec 'my f.sif' fedmpi").command == ("apptainer", "exec", "my f.sif", "fedmpi")
    assert (asked(name="n").name, asked(mpi="none").mpi, asked(setup="x").setup, asked(restarts=0).restarts) == (
        "n", "none", "x", 0)


def test_a_name_that_cannot_stand_in_a_directive_is_changed(tmp_path):
    path = tmp_path / "my run (2).yaml"
    path.write_text("rounds: 3")
    assert submit.build_job(str(path), [], [], [], time="10").name == "my_run__2_"


def test_what_sbatch_is_told():
    def told(**asked):
        return script.list_directives(script.JobScript(**{"nodes": 2, "ranks": 4, "name": "n", **asked}))
    rest = ["--requeue", "--signal=USR1@120", "--open-mode=append"]
    assert told() == ["--job-name=n", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1",
                      "--time=01:00:00", *rest, "--output=%x-%j.out"]
    # ranks that do not divide: room for the node that has one more; a node of 3 GPUs has a rank for each, and one more
    assert told(ranks=5, cpus=3, time="9", signal="", options=("--qos=a", "--mem=1G")) == [
        "--job-name=n", "--nodes=2", "--ntasks-per-node=3", "--cpus-per-task=3", "--time=9", "--requeue",
        "--open-mode=append", "--output=%x-%j.out", "--qos=a", "--mem=1G"]
    assert told(gpus=3, ranks=1)[2:4] == ["--gpus-per-node=3", "--ntasks-per-node=4"]
    assert told(gpus=3, gpu_request="gres")[2:4] == ["--gres=gpu:3", "--ntasks-per-node=4"]
    assert told(gpus=3, gpu_request="gpus-per-task")[2:4] == ["--gpus-per-task=1", "--ntasks-per-node=3"]
    assert told(gpus=3, gpu_request="none")[2:4] == ["--ntasks-per-node=4", "--cpus-per-task=1"]
    assert told(gpus=3, gpu_request="none", launcher="ibrun")[2:4] == ["--ntasks=7", "--cpus-per-task=1"]
    assert "--no-requeue" in told(chain=2) and "--requeue" not in told(chain=2)
    assert told(array=((), ()), at_once=7)[5] == "--array=0-1%7" and told(at_once=7)[5] == "--requeue"
    assert told(array=((), (), ()))[5:] == ["--array=0-2", *rest, "--output=%x-%A_%a.out"]


@pytest.mark.parametrize("launcher, given, told", [
    ("mpiexec", "USR1@120", "B:USR1@120"), ("/opt/mpich/bin/mpiexec.hydra -n {ranks}", "USR2@9", "B:USR2@9"),
    ("mpirun -np {ranks}", "TERM", "B:TERM"), ("mpiexec", "R:USR1@60", "R:USR1@60"), ("mpiexec", "B:USR1", "B:USR1"),
    ("srun", "USR1@120", "USR1@120"), ("ibrun", "USR1@120", "USR1@120"), ("mpiexec", "", None)])
def test_the_script_gets_the_signal_for_what_srun_does_not_start(launcher, given, told):
    """Slurm sends it to the steps of srun, and with B: to the script, which passes it on."""
    options = script.list_directives(script.JobScript(launcher=launcher, signal=given))
    assert [option for option in options if option.startswith("--signal")] == [f"--signal={told}"] * (told is not None)


@pytest.mark.parametrize("installed, mpi", [({"openmpi"}, "pmix"), ({"mpich"}, "pmi2"), (set(), "pmi2")])
def test_mpi_is_that_of_the_library_that_is_installed(monkeypatch, installed, mpi):
    """MPICH speaks PMI-2 and Open MPI PMIx; an unknown library is taken for MPICH, Intel MPI or Cray MPICH."""
    def version(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return "5.0"
    monkeypatch.setattr(slurm_sbatch, "version", version)
    assert slurm_sbatch.guess_mpi() == mpi == submit.build_job(CONFIG, [], [], [], time="10").mpi


def test_a_script_is_written_and_submitted(fake_sbatch, tmp_path):
    fake_sbatch("echo '4711;cluster'")
    done = CliRunner().invoke(app, ["submit", CONFIG, "--name", "mine", "--account", "a1", "--partition", "long"])
    assert (done.exit_code, done.stdout) == (0, "4711\n")
    assert done.stderr.splitlines()[-1] == "submitted runs/mine.sbatch; squeue --jobs 4711 shows it"
    assert re.fullmatch(r"--parsable runs/mine.sbatch\.[0-9a-f]{12}\n", (tmp_path / "asked").read_text())
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine.sbatch"]
    text = (tmp_path / "runs" / "mine.sbatch").read_text()
    assert "\n#SBATCH --partition=long\n#SBATCH --account=a1\n" in text and "out=runs/mine-$SLURM_JOB_ID\n" in text
    job = submit.build_job(CONFIG, [], [], [], time="01:00:00", name="mine", partition="long", account="a1")
    assert text == script.render_script(job)


def test_what_sbatch_refuses_is_said_in_a_line(fake_sbatch):
    fake_sbatch("echo 5; echo 'sbatch: error: invalid\n  partition' >&2; exit 1")
    done = CliRunner().invoke(app, ["submit", CONFIG])
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr == "fedmpi: sbatch refused runs/quickstart.sbatch: sbatch: error: invalid partition\n"


def test_a_folder_that_cannot_be_written_is_refused(fake_sbatch, tmp_path):
    fake_sbatch("echo 1")
    (tmp_path / "runs" / "quickstart.sbatch").mkdir(parents=True)
    with pytest.raises(BadInput, match="runs/quickstart.sbatch cannot be written: Is a directory"):
        slurm_sbatch.submit_script(script.JobScript())
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").write_text("")
    with pytest.raises(BadInput, match="runs/quickstart.sbatch cannot be written: .*; go where you may write"):
        slurm_sbatch.submit_script(script.JobScript())
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("asked, message", [
    ({"nodes": 0}, "--nodes 0: should be 1 or more"), ({"ranks": 0, "gpus": 1}, "--ranks 0: should be 1 or more"),
    ({"nodes": 2, "ranks": 1}, "--ranks 1 on 2 nodes: a node would be empty"),
    ({"name": "a b"}, "--name 'a b': a job's name has letters"), ({"name": "../../x"}, "a job's name has"),
    ({"name": "x&id&y"}, "a job's name has"), ({"name": ".x"}, "not begin with a dot"), ({"name": ""}, "a job's name"),
    ({"name": "x" * 101}, "at most 100"), ({"name": "é"}, "letters of ASCII"),
    ({"signal": "a b"}, "--signal 'a b': write NAME@SECONDS"), ({"time": "1 h"}, "--time 1 h is not a time"),
    ({"out": "a\nb"}, "--out 'a\\\\nb': control characters"), ({"settings": ("a=\0",)}, "the setting .*: control char"),
    ({"out": "-rf"}, "--out '-rf': commands would not take it for a path; write ./-rf"), ({"out": ""}, "--out ''"),
    ({"config": "-c"}, "write ./-c"), ({"launcher": "a 'b"}, "--launcher .*No closing quotation; close every quote"),
    ({"launcher": " "}, "--launcher is empty"), ({"mpi": "\x1b[31m"}, "--mpi .*control characters"),
    ({"gpu_request": "all"}, "--gpu-request all: there are gpus-per-node, gres, gpus-per-task, none"),
    ({"options": ("mem=8G",)}, "'mem=8G' is not an option of sbatch"),
    ({"options": ("-x y",)}, "is not an option of sbatch"),
    ({"options": ("--ntasks=3",)}, "--option=--ntasks=3 contradicts the plan in the script; give .* --ranks"),
    *(({"options": (option,)}, f"--option={option} contradicts the plan in the script; give `fedmpi submit` {own}")
      for option, own in (("-N=3", "--nodes"), ("-N3", "--nodes"), ("-n7", "--ranks"), ("-HN3", "--nodes"),
                          ("--nod=3", "--nodes"), ("--no-requeue", "--restarts 0"), ("--no-req", "--restarts 0"))),
    ({"restarts": -1}, "--restarts -1: should be 0 or more"), ({"at_once": -1}, "--at-once -1: should be 0 or more"),
    ({"options": ("-a=1-9%2",)}, "give `fedmpi submit` --array, and --at-once; `fedmpi sweep` has --at-once"),
    ({"options": ("--ntasks=3",)}, "give `fedmpi submit` --ranks; `fedmpi sweep` has --ranks"),
    ({"options": ("-J=x",)}, "`fedmpi sweep` names the job after"), ({"options": ("-N=2",)}, "gives each run one node"),
    *(({"options": (option,)}, f"--option={option}: the job would look there for .* here; submit from that folder")
      for option in ("--chdir=/x", "--chd=/x", "-D=/x", "-Dx", "-QDx")),
    ({"chain": -1}, "--chain -1"), ({"gpus": 10**7}, "--gpus 10000000: should be 0 or more, and at most 1,000,000"),
    ({"array": ((),) * 10001}, "10,001 runs; an array has at most 10,000: divide")], ids=str)
def test_a_job_that_cannot_be_is_refused(asked, message):
    with pytest.raises(BadInput, match=message):
        script.JobScript(**asked)
    script.JobScript(nodes=1, ranks=1, cpus=1, signal="")
    script.JobScript(options=("--nodelist=n1", "--time-min=5", "-onN", "-p=N", "-Wp=n", "--ntasks-per-core=1"))
    # Ranks follow from the GPUs.
    script.JobScript(nodes=3, ranks=2, gpus=1)


def test_a_file_of_runs_is_read_as_a_shell_would(tmp_path):
    (tmp_path / "runs.txt").write_text("# nothing\n\n")
    with pytest.raises(BadInput, match="the file names no run; write the settings of one on each line"):
        submit.expand_array([str(tmp_path / "runs.txt")])
    (tmp_path / "two.txt").write_text("a=1\nb=2\n")
    assert submit.expand_array(["s=1,2", str(tmp_path / "two.txt")]) == (
        ("s=1", "a=1"), ("s=1", "b=2"), ("s=2", "a=1"), ("s=2", "b=2"))
    for line, words in ((r"d=/x#1 m=a", ("d=/x#1", "m=a")), ("a=1 #b=2", ("a=1",)), ("a=1 # don't", ("a=1",)),
                        ("'a=x #y' b='#'#c # d", ("a=x #y", "b=##c")), (r"a=b\ #c d", ("a=b #c", "d")),
                        (r'"a=\" #b" # "', ('a=" #b',)), ("'a' '#b'", ("a", "#b"))):
        (tmp_path / "two.txt").write_text(f"{line}\n  # more\n")
        assert submit.expand_array([str(tmp_path / "two.txt")]) == (words,)
    (tmp_path / "two.txt").write_text("a='b # c\n")
    with pytest.raises(BadInput, match="No closing quotation"):
        submit.expand_array([str(tmp_path / "two.txt")])
    assert submit.expand_array([]) == () and submit.expand_array(["p=a=b"]) == (("p=a=b",),)


def test_without_sbatch_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="sbatch is not on this machine"):
        slurm_sbatch.submit_script(script.JobScript())


def test_of_many_federations_that_are_missing_a_few_are_named(tmp_path):
    (tmp_path / "runs.txt").write_text("".join(f"seed={i} data.cache={tmp_path}\n" for i in range(30)))
    done = CliRunner().invoke(app, ["submit", CONFIG, "--dry-run", "--array", str(tmp_path / "runs.txt")])
    *named, more = done.stderr.splitlines()
    assert done.exit_code == 0 and len(named) == 5 and more == "25 more federations are not prepared yet either"
