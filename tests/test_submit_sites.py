"""What sites need of `fedmpi submit`: profiles, launchers, ways to ask for GPUs, chains, data that are there."""
from __future__ import annotations

import json
import os
import re

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands import submit
from fedmpi.errors import BadInput
from fedmpi.slurm import profiles, quoting
from fedmpi.slurm.script import JobScript, list_directives, render_script
from tests.launch import ROOT
from tests.runs import CONFIG


@pytest.fixture
def config(tmp_path, monkeypatch, cache):
    """A configuration in the current folder, whose federation is not prepared."""
    monkeypatch.chdir(tmp_path)
    data = CONFIG["data"] | {"cache": str(tmp_path / "federations")}
    (tmp_path / "c.yaml").write_text(json.dumps(CONFIG | {"data": data}))
    return "c.yaml"


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Put a fake sbatch into the path; it numbers jobs from 101 on and writes down its words. Return their reader."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(
        f'#!/bin/bash\nprintf "<%s>" "$@" >>{tmp_path}/asked\necho >>{tmp_path}/asked\n'
        f'n=$((100 + $(wc -l <{tmp_path}/asked)))\n'
        '[ "$n" -le "${LAST:-999}" ] || { echo no >&2; exit 1; }\necho $n\n')
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    asked = tmp_path / "asked"
    # Each call submits a script of its own, by a name that nobody knows before.
    own_name = re.compile(r"(?<=\.sbatch)\.[0-9a-f]{12}(?=>)")
    return lambda: own_name.sub("", asked.read_text()).splitlines() if asked.exists() else []


def called(*words):
    return CliRunner().invoke(app, ["submit", *words])


@pytest.mark.parametrize("name", profiles.list_profiles())
def test_a_profile_that_comes_along_makes_a_script(config, name):
    job = submit.build_job(config, [], [], [], name, gpus=2)
    text, site = render_script(job), profiles.load_profile(name)
    assert site.description and site.tested and site.untested == (name in ("cray-pmi", "jsc-like", "tacc-like"))
    assert name in str(submit_help()) and f"`{name}`" in (ROOT / "slurm" / "README.md").read_text()
    launchers = {"generic": "srun --mpi=pmi2 --kill", "one-node": "mpiexec)", "cray-pmi": "(srun --kill-on-bad-exit=1)",
                 "tacc-like": "(ibrun)", "jsc-like": "(srun --kill-on-bad-exit=1)"}
    gpus = {"generic": "--gpus-per-node=2", "one-node": "--gres=gpu:2", "cray-pmi": "--gpus-per-node=2",
            "tacc-like": "--ntasks=3", "jsc-like": "--gres=gpu:2"}
    assert launchers[name] in text and f"\n#SBATCH {gpus[name]}\n" in text
    assert ("scontrol requeue" in text) == (name != "tacc-like")


def submit_help() -> list[str]:
    from typer.main import get_command
    return [parameter.help for parameter in get_command(app).commands["submit"].params if parameter.name == "profile"]


def test_the_generic_profile_is_the_default(config):
    assert submit.build_job(config, [], [], []) == submit.build_job(config, [], [], [], "generic")


def test_the_command_line_counts_more_than_a_profile(config, tmp_path):
    (tmp_path / "site.yaml").write_text(
        "tested: here\nnodes: 3\nntasks: 7\ntime: '02:00'\noption: [--qos=long]\nmpi: ''\ncommand: a 'b c'\nchain: 2\n")
    job = submit.build_job(config, [], [], ["--mem=1G"], "./site.yaml", ranks=8)
    assert (job.nodes, job.ranks, job.time, job.mpi, job.chain) == (3, 8, "02:00", "", 2)
    assert job.options == ("--qos=long", "--mem=1G") and job.command == ("a", "b c")
    assert submit.build_job(config, [], [], [], "site.yaml", nodes=2, mpi="x").mpi == "x"


@pytest.mark.parametrize("name", ["ranks", "ntasks"])
def test_a_profile_gives_the_ranks_by_either_name(name, config, tmp_path):
    (tmp_path / "site.yaml").write_text(f"nodes: 3\n{name}: 7\n")
    assert submit.build_job(config, [], [], [], "./site.yaml").ranks == 7


@pytest.mark.parametrize("text, message", [
    ("nodess: 3", "nodess is not an option of a profile; .* (did you mean nodes?)"),
    ("nodes: two", "should be a whole"), ("ranks: two", "ranks should be a whole number"),
    ("ranks: 4\nntasks: 4", "ranks and ntasks are two names of one option; leave ntasks out"),
    ("time: 12:00:00", "time should be a text; put it into quotes"), ("- a", "is not a profile: write option: value"),
    ("nodes: true", "nodes should be a whole number"), ("option: --qos=x", "option should be a list of texts"),
    ("option: [3]", "a list of texts"), ("command: a 'b", "No closing quotation"), ("a: [", "cannot be read"),
    ("launcher: !!python/object/apply:os.getcwd []", "cannot be read"), ("1: 2", "1 is not an option")])
def test_a_profile_that_says_what_none_can_say_is_refused(tmp_path, text, message):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(BadInput, match=message.replace("(", r"\(").replace("?", r"\?").replace(")", r"\)")):
        profiles.load_profile(str(tmp_path / "p.yaml"))


@pytest.mark.parametrize("name, message", [
    ("mine", "there are cray-pmi, generic, jsc-like, one-node, tacc-like; or give the path"),
    ("no/such", "cannot be read: .*No such file"), ("/dev/zero", "is not a plain file"), ("./", "is not a plain file")])
def test_a_profile_that_is_not_there_is_refused(name, message):
    with pytest.raises(BadInput, match=message):
        profiles.load_profile(name)


def test_a_profile_is_not_larger_than_one_can_be(tmp_path):
    (tmp_path / "p.yaml").write_text("#" * 100_001)
    with pytest.raises(BadInput, match="larger than 100,000 bytes"):
        profiles.load_profile(str(tmp_path / "p.yaml"))


@pytest.mark.parametrize("option, quoted", [
    ("--mem=8G", "--mem=8G"), ("--exclusive", "--exclusive"), ("-x=n[1-3]", "-x=n[1-3]"),
    ("--dependency=afterok:1?afterany:2", '--dependency="afterok:1?afterany:2"'),
    ("--constraint=a*2&!b", '--constraint="a*2&!b"'), ("--comment=two words", '--comment="two words"'),
    ("--comment=a\"b\\c'#$(d)", "--comment=\"a\\\"b\\\\c'#$(d)\""), ("--comment=", '--comment=""')])
def test_options_are_quoted_for_sbatch(option, quoted):
    assert quoting.quote_for_sbatch(option) == quoted


@pytest.mark.parametrize("launcher, words", [
    ("srun", "srun --mpi=pmi2 --kill-on-bad-exit=1"), ("/bin/srun", "/bin/srun --mpi=pmi2 --kill-on-bad-exit=1"),
    ("srun ", "srun --mpi=pmi2 --kill-on-bad-exit=1"),
    ("'/my slurm/srun'", "'/my slurm/srun' --mpi=pmi2 --kill-on-bad-exit=1"),
    ("ibrun", "ibrun"), ("jsrun -n{ranks} {nodes}{x}", "jsrun -n\"$ranks\" \"$nodes\"'{x}'"),
    ("a '' ;b$c", "a '' ';b$c'")])
def test_a_launcher_is_given_by_its_words(launcher, words):
    assert f"\nlauncher=({words})\n" in render_script(JobScript(launcher=launcher))


def test_an_environment_may_lie_below_a_folder_with_a_space(config, tmp_path, monkeypatch):
    """The launcher mpiexec is that beside Python, if there is one."""
    (tmp_path / "my env").mkdir()
    (tmp_path / "my env" / "mpiexec").touch()
    monkeypatch.setattr("sys.executable", f"{tmp_path}/my env/python")
    job = submit.build_job(config, [], [], [], launcher="mpiexec")
    assert f"\nlauncher=('{tmp_path}/my env/mpiexec')\n" in render_script(job)


def test_of_two_options_for_sbatch_the_command_line_s_comes_last(config, tmp_path):
    """sbatch takes the later one."""
    (tmp_path / "p.yaml").write_text("partition: p\noption: [--partition=short, --qos=a]\n")
    job = submit.build_job(config, [], [], ["--partition=mine"], "./p.yaml", partition="long", account="new")
    assert job.options == ("--partition=short", "--qos=a", "--partition=long", "--account=new", "--partition=mine")
    assert submit.build_job(config, [], [], [], "./p.yaml").options[-1] == "--partition=p"


def test_more_threads_than_cpus_are_refused_by_what_counts(config):
    """The later of two values, and an array's."""
    for settings, array in ((["threads=4", "threads=1"], []), (["threads=4"], ["threads=1,2"])):
        assert submit.build_job(config, settings, array, [], cpus=2).cpus == 2
    for settings, array in ((["threads= 4"], []), ([], ["threads=1,4"])):
        with pytest.raises(BadInput, match="threads = 4 with 2 CPUs per rank"):
            submit.build_job(config, settings, array, [], cpus=2)


def test_ranks_follow_from_the_gpus_and_how_they_are_asked_for(config):
    def made(**asked):
        return submit.build_job(config, [], [], [], nodes=2, gpus=3, **asked)
    assert (made().planned_ranks, made().settings) == (7, ("device=cuda",))
    assert made(gpu_request="gres").planned_ranks == made(gpu_request="none").planned_ranks == 7
    shared = made(gpu_request="gpus-per-task")
    assert (shared.planned_ranks, shared.settings) == (6, ("device=cuda", "server.hosts_clients=true"))
    assert "--gpus-per-task=1" in list_directives(shared)
    assert "srun --mpi=pmi2 --kill-on-bad-exit=1 --gpus-per-task=1)" in render_script(shared)
    trains = ["server.hosts_clients=true"]
    assert submit.build_job(config, trains, [], [], nodes=2, gpus=3, gpu_request="gres").planned_ranks == 6
    assert submit.build_job(config, trains, [], [], gpus=3, gpu_request="gpus-per-task").settings == (
        "device=cuda", "server.hosts_clients=true")
    # One of the runs has a server apart.
    mixed = submit.build_job(config, trains, ["server.hosts_clients=true,false"], [], nodes=2, gpus=3)
    assert mixed.planned_ranks == 7
    # What the user says comes last and counts.
    assert submit.build_job(config, ["device=cpu"], [], [], gpus=3).settings == ("device=cpu",)


def test_a_chain_is_submitted_job_by_job(config, sbatch):
    done = called(config, "--chain", "3", "--name", "mine")
    assert done.exit_code == 0, done.output
    assert done.stdout == "101,102,103\n" and "squeue --jobs 101,102,103 shows it" in done.stderr
    assert sbatch() == ["<--parsable><runs/mine.sbatch><><2>",
                        "<--parsable><--dependency=afterany:101><runs/mine.sbatch><101><1>",
                        "<--parsable><--dependency=afterany:102><runs/mine.sbatch><101><0>"]


def test_a_chain_that_is_cut_off_names_its_jobs(config, sbatch, monkeypatch):
    monkeypatch.setenv("LAST", "102")
    done = called(config, "--chain", "3", "--name", "mine")
    assert done.exit_code == 1 and done.stderr.endswith(
        "fedmpi: sbatch refused runs/mine.sbatch: no (submitted before: scancel 101 102)\n")


def test_a_folder_may_end_with_a_slash():
    assert JobScript(out="a b//").out == "a b" and "\nout='a b'\n" in render_script(JobScript(out="a b/"))


def test_an_array_is_not_longer_than_one_can_be(config):
    """Its runs are counted before they are made: these would be 10^12."""
    numbers = ",".join(map(str, range(1000)))
    words = [word for key in ("seed", "rounds", "threads", "train.batch") for word in ("--array", f"{key}={numbers}")]
    done = called(config, *words, "--dry-run")
    assert done.exit_code == 2 and "--array: 1,000,000,000,000 runs; an array has at most 10,000" in done.stderr


def test_the_settings_of_an_array_are_not_joined_run_by_run():
    """That would take as long as the square of their number."""
    class Words(tuple):
        def __radd__(self, other):
            raise AssertionError("joined")
    assert "0) settings+=(a=1 b=2)" in render_script(JobScript(array=(Words(("a=1", "b=2")), Words(("a=2",)))))
    with pytest.raises(BadInput, match="the setting .*control characters"):
        JobScript(array=(Words(("a=1",)), Words(("a=2", "b=\n"))))


def test_data_are_prepared_before_a_job_is_submitted(config, sbatch, tmp_path):
    done = called(config, "--array", "method=fedavg,local", "--array", "seed=0,1")
    # There is one federation for each seed.
    assert done.exit_code == 0 and done.stderr.count("federation ") == 2
    assert len(list((tmp_path / "federations").glob("*.h5"))) == 2 and len(sbatch()) == 1
    assert "federation " not in called(config, "seed=1").stderr


def test_data_need_not_be_prepared(config, sbatch, tmp_path):
    assert "prepare" not in called(config, "--no-prepare", "--dry-run").stderr
    assert called(config, "--no-prepare").exit_code == 0
    assert not (tmp_path / "federations").exists() and len(sbatch()) == 1


def test_missing_data_are_refused_before_anything_waits(config, sbatch, tmp_path):
    words = ("data.name=tiny_imagenet", f"data.root={tmp_path}/none", "data.clients=3", "data.partition=dirichlet")
    done = called(config, *words)
    assert done.exit_code == 2 and "data.name = tiny_imagenet: not found under data.root" in done.stderr
    assert sbatch() == []
    done = called(config, *words, "--dry-run")
    assert done.exit_code == 0 and done.stdout.startswith("#!/bin/bash\n")
    assert "the federation of data.name=tiny_imagenet seed=2 is not prepared yet" in done.stderr


def test_without_sbatch_nothing_is_prepared(config, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = called(config)
    assert done.exit_code == 2 and "sbatch is not on this machine" in done.stderr
    assert not (tmp_path / "federations").exists()


@pytest.mark.parametrize("asked, said", [
    ({"mpi": "pmix", "launcher": "mpiexec"}, "--mpi pmix: an option of the launcher srun, and this one is .*mpiexec; "),
    ({"mpi": "pmix", "launcher": "srun --exclusive"}, "this one is srun --exclusive; leave --mpi out, or write what"),
    ({"mpi": "pmix", "profile": "one-node"}, "--mpi pmix: an option of the launcher srun, and this one is "),
    ({"gpu_request": "gres"}, "--gpu-request gres: of use with GPUs alone; add --gpus, or leave --gpu-request out")])
def test_options_that_would_do_nothing_are_refused(config, asked, said):
    with pytest.raises(BadInput, match=said):
        submit.build_job(config, [], [], [], **asked)
    for fine in ({"mpi": "pmix"}, {"mpi": "", "launcher": "mpiexec"}, {"gpu_request": "gres", "gpus": 1}):
        assert submit.build_job(config, [], [], [], **fine)


def test_an_untested_profile_says_so(config, sbatch, tmp_path):
    done = called(config, "--profile", "jsc-like")
    assert "profile jsc-like was not tested: written from what such sites document." in done.stderr
    assert "not tested" not in called(config, "--profile", "one-node").stderr
    nowhere = "p.yaml was not tested: it does not say where\n"
    for tested, said in (("", nowhere), ("tested: no\n", nowhere), ("tested:\n", nowhere), ("tested: yes\n", ""),
                         ("tested: No; not yet\n", "p.yaml was not tested: not yet\n"),
                         ("tested: north cluster, May\n", "")):
        (tmp_path / "p.yaml").write_text(f"description: ours\n{tested}")
        stderr = called(config, "--profile", "p.yaml", "--dry-run").stderr
        assert stderr.endswith(said) if said else "not tested" not in stderr


@pytest.mark.parametrize("words, idle", [
    (("--ranks", "10"), ""), (("--ranks", "12"), "2 of 12 ranks"), (("server.hosts_clients=true", "--ranks", "9"), ""),
    (("server.hosts_clients=true", "--ranks", "10"), "1 of 10 ranks"), (("--ranks", "1", "data.clients=1"), ""),
    (("--gpus", "4", "--nodes", "3"), "3 of 13 ranks"), (("--ranks", "12", "--array", "data.clients=4,11"), "")])
def test_ranks_that_no_client_needs_are_told(config, words, idle):
    """The configuration has nine clients; of an array the run with most decides."""
    said = called(config, "--dry-run", *words).stderr
    assert f"{idle} will be idle: there are 9 clients" in said if idle else "idle" not in said


@pytest.mark.parametrize("path, name", [("a&b.yaml", "a_b"), (".yaml", "_yaml"), ("é.yaml", "_"), ("x.y.yaml", "x_y")])
def test_a_name_follows_from_any_path(config, tmp_path, path, name):
    (tmp_path / path).write_text((tmp_path / config).read_text())
    assert submit.build_job(path, [], [], []).name == name
