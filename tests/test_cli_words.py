"""Every word, option and default of the command line reaches the function that does the work."""
from __future__ import annotations

import importlib
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

import fedmpi
from fedmpi import __version__, errors
from fedmpi.cli import app
from fedmpi.run_request import RunRequest
from tests.sweeps import jobs

COMMANDS = ["run", "init", "plan", "data", "methods", "models", "datasets", "partitions", "settings", "submit",
            "status", "summary", "sweep", "report", "compare", "export", "tensorboard", "wandb", "mlflow", "doctor",
            "verify"]
SUBMIT = dict.fromkeys(["nodes", "ranks", "gpus", "gpu_request", "cpus", "time", "signal", "name", "out", "command",
                        "launcher", "mpi", "setup", "restarts", "chain", "partition", "account", "at_once",
                        "accept_changed_code"])
ARRAY = {"profile": None, "options": [], "ranks": None, "time": None, "gpus": None, "cpus": None, "mpi": None,
         "setup": None, "partition": None, "account": None, "at_once": None}
A, B, C = Path("a"), Path("b"), Path("c")


@pytest.fixture
def called(monkeypatch):
    """Make `called(function, *words, gives=..., code=0)` run a command with that function, `module:name`, replaced;
    returns the arguments of its call, positional and by name, and what was printed."""
    def called(function: str, *words, gives=0, code=0):
        module, _, name = function.partition(":")
        calls = []
        monkeypatch.setattr(importlib.import_module(module), name,
                            lambda *given, **named: calls.append((given, named)) or gives)
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == code, done.output
        (given, named), = calls
        return given, named, done
    return called


def test_these_are_the_commands_and_each_has_help(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    group = typer.main.get_command(app)
    assert [name for name, command in group.commands.items() if not command.hidden] == COMMANDS
    said = CliRunner().invoke(app, ["--help"])
    assert said.exit_code == 0 and CliRunner().invoke(app, ["-h"]).stdout == said.stdout
    for name in COMMANDS:
        assert f" {name} " in said.stdout
        of_one = CliRunner().invoke(app, [name, "-h"])
        assert of_one.exit_code == 0 and f" {name} [OPTIONS]" in of_one.stdout
        assert group.commands[name].help.splitlines()[0][:40] in of_one.stdout
    # Without a command the help is printed.
    assert CliRunner().invoke(app, []).exit_code == 2
    assert "Usage:" in CliRunner().invoke(app, []).output


@pytest.mark.parametrize("words, wanted", [
    (["c.yaml"], ("c.yaml", [], None, None, None, None, False)),
    (["c.yaml", "a=1", "b=2", "--out", "o", "--resume", "auto", "--time-limit", "90", "--ranks", "3",
      "--accept-changed-code"], ("c.yaml", ["a=1", "b=2"], "o", "auto", "90", 3, True))])
def test_run(called, words, wanted):
    assert called("fedmpi.session:run_command", "run", *words, gives=75, code=75)[:2] == ((RunRequest(*wanted),), {})


@pytest.mark.parametrize("words, wanted", [
    (["c.yaml"], ("c.yaml", [], 3)), (["c.yaml", "a=1", "--ranks", "1", "--json"], ("c.yaml", ["a=1"], 1))])
def test_plan(called, monkeypatch, words, wanted):
    monkeypatch.setattr("fedmpi.commands.plan_table.format_plan", lambda planned: f"a table of {planned}")
    given, _, done = called("fedmpi.commands.plan:make_plan", "plan", *words, gives={"x": 1})
    assert given == wanted and done.stdout == ('{"x": 1}\n' if "--json" in words else "a table of {'x': 1}\n")


@pytest.mark.parametrize("words, wanted", [
    ([], (".",)), (["--folder", "f"], ("f",))])
def test_doctor(called, words, wanted):
    assert called("fedmpi.commands.doctor:doctor_command", "doctor", *words, gives=1, code=1)[:2] == (wanted, {})


@pytest.mark.parametrize("words, wanted", [
    (["traffic"], "traffic"), (["engines", "a=1 2", "--json", "j"], "engines 'a=1 2' --json j"), (["-h"], "-h")])
def test_bench_names_the_command_that_took_its_place(words, wanted):
    done = CliRunner().invoke(app, ["bench", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == ("fedmpi: the benchmarks are not part of the installed package; run in a checkout: "
                           f"python -m benchmarks {wanted}\n")


@pytest.mark.parametrize("function, words, wanted", [
    ("fedmpi.commands.summary:summarise_runs", ["summary", "a"], ("a",)),
    ("fedmpi.commands.compare:compare_runs", ["compare", "a", "b"], (A, B)),
    ("fedmpi.commands.export:export_model", ["export", "a", "b"], (A, B, None, False)),
    ("fedmpi.commands.export:export_model", ["export", "a", "b", "--client", "0", "--own-code"], (A, B, 0, True)),
    ("fedmpi.commands.tensorboard:write_events", ["tensorboard", "b", "a", "c"], ([B, A, C],)),
    ("fedmpi.commands.wandb:write_offline_runs", ["wandb", "b", "a"], ([B, A],)),
    ("fedmpi.commands.mlflow:write_to_store", ["mlflow", "b"], ([B], "mlruns")),
    ("fedmpi.commands.mlflow:write_to_store", ["mlflow", "b", "a", "--to", "c"], ([B, A], "c")),
    ("fedmpi.commands.catalogue:list_kind", ["models"], ("models",)),
    ("fedmpi.commands.catalogue:explain", ["datasets", "x"], ("datasets", "x"))])
def test_commands_that_print_what_their_function_returns(called, function, words, wanted):
    given, named, done = called(function, *words, gives="said")
    assert (given, named) == (wanted, {}) and done.stdout == "said\n" and done.stderr == ""


@pytest.mark.parametrize("kind", ["methods", "models", "datasets", "partitions"])
def test_lists_and_entries_as_json(called, kind):
    assert called("fedmpi.commands.catalogue:list_names", kind, "--json", gives=["x"])[2].stdout == '["x"]\n'
    given, _, done = called("fedmpi.commands.catalogue:describe_entry", kind, "x", "--json", gives={"p": A})
    assert given == (kind, "x") and done.stdout == '{"p": "a"}\n'


@pytest.mark.parametrize("words, wanted, array, more, rest", [
    ([], {}, [], [], (None, True, False)), (["--ranks", "5"], {"ranks": 5}, [], [], (None, True, False)),
    (["--nodes", "2", "--ntasks", "5", "--gpus", "4", "--cpus", "3", "--time", "02:00:00", "--name", "n", "--out", "o",
      "--command", "c", "--mpi", "", "--setup", "s", "--restarts", "0", "--signal", "", "--partition", "p",
      "--account", "me", "--option=--mem=8G", "--option=-x", "--array", "seed=1,2", "--array", "f", "--at-once", "2",
      "--chain", "3",
      "--launcher", "ibrun", "--gpu-request", "gres", "--profile", "x.yaml", "--no-prepare", "--dry-run",
      "--accept-changed-code"],
     {"nodes": 2, "ranks": 5, "gpus": 4, "cpus": 3, "time": "02:00:00", "name": "n", "out": "o", "command": "c",
      "mpi": "", "setup": "s", "restarts": 0, "signal": "", "chain": 3, "launcher": "ibrun", "gpu_request": "gres",
      "partition": "p", "account": "me", "at_once": 2, "accept_changed_code": True},
     ["seed=1,2", "f"], ["--mem=8G", "-x"], ("x.yaml", False, True))])
def test_submit(called, words, wanted, array, more, rest):
    given, named, _ = called("fedmpi.commands.submit:submit_command", "submit", "c.yaml", "k=v", *words)
    assert given == ("c.yaml", ["k=v"], array, more, *rest) and named == SUBMIT | wanted


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The path of a job of six runs, two of them in its scale `one`; with its folder as the current one."""
    monkeypatch.chdir(tmp_path)
    path = jobs.write(tmp_path, tmp_path / "cache", rows={"a": "fedavg", "b": "local"}, published={}, seeds=[0, 1],
                      columns={"x": {}}, scales={"one": {"seeds": [3]}})
    return Path(path).name


@pytest.mark.parametrize("words, at_once, ranks", [([], 1, 1), (["--local", "3", "--ranks", "2"], 3, 2)])
def test_sweep(called, job, words, at_once, ranks):
    sweep = SimpleNamespace(go=lambda: 75)
    (runs, *given), _, _ = called("fedmpi.sweeps.local:Sweep", "sweep", job, *words, gives=sweep, code=75)
    assert given == [at_once, ranks, ["accuracy_best_on_test"]] and [run.seed for run in runs] == [0, 0, 1, 1]
    assert str(runs[0].folder) == "runs/job/a/x/seed-0"


@pytest.mark.parametrize("words, seeds, folder", [
    (["--scale", "one"], [3, 3], "runs/job-one/a/x/seed-3"), (["--out", "o"], [0, 0, 1, 1], "o/a/x/seed-0"),
    (["--scale", "one", "--out", "o"], [3, 3], "o/a/x/seed-3")])
def test_sweeps_of_a_scale_and_in_a_folder(called, job, words, seeds, folder):
    given, _, done = called(
        "fedmpi.sweeps.estimate:show_costs",
        "sweep",
        job,
        *words,
        "--dry-run",
        "--rate",
        "2.5",
        "--local",
        "4",
        "--ranks",
        "3",
        gives=None,
    )
    assert given[1:] == (4, 3, 2.5) and [run.seed for run in given[0]] == seeds
    assert str(given[0][0].folder) == folder and done.stdout == ""


@pytest.mark.parametrize("words, dry, wanted", [
    ([], False, {}), (["--dry-run"], True, {}),
    (["--ranks", "3", "--time", "1-0", "--gpus", "2", "--cpus", "4", "--mpi", "pmix", "--option=-x", "--option=-y",
      "--setup", "s", "--partition", "p", "--account", "me", "--at-once", "5"], False,
     {"ranks": 3, "time": "1-0", "gpus": 2, "cpus": 4, "mpi": "pmix", "options": ["-x", "-y"], "setup": "s",
      "partition": "p", "account": "me", "at_once": 5}),
    (["--profile", "jsc-like", "--out", "o p"], False,
     {"profile": "jsc-like", "follow": "fedmpi status job.yaml --out 'o p'"})])
def test_sweep_as_an_array(called, job, words, dry, wanted):
    given, named, done = called("fedmpi.sweeps.array:submit_runs", "sweep", job, "--slurm", *words, gives="told")
    assert len(given[0]) == 4 and given[1:] == (dry,) and done.stdout == "told\n"
    assert named == ARRAY | {"follow": "fedmpi status job.yaml"} | wanted


@pytest.mark.parametrize("words, command, to", [
    ([], "fedmpi sweep job.yaml", "runs/job/report"),
    (["--scale", "one"], "fedmpi sweep job.yaml --scale one", "runs/job-one/report"),
    (["--out", "o p"], "fedmpi sweep job.yaml --out 'o p'", "o p/report"),
    (["--to", "there"], "fedmpi sweep job.yaml", "there")])
def test_report_of_a_job(called, job, words, command, to):
    (shown, folder, for_print), _, done = called("fedmpi.report.write:write_report", "report", job, *words,
                                                 gives="page")
    assert not for_print and (shown.command, folder) == (command, Path(to))
    there = shlex.join(["fedmpi", "status", "job.yaml", *(words if "--to" not in words else [])])
    assert done.stdout == (f"report page\nno run is finished yet ({len(shown.runs)} waiting), so the tables have no "
                           f"numbers; `{command}` makes them, and `{there}` says how far each is\n")
    assert shown.seeds == ([3] if "one" in words else [0, 1]) and len(shown.runs) == 2 * len(shown.seeds)


def test_report_of_folders(called, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"method: {{name: local}}\nrounds: 3\nseed: {ord(name)}\n")
    # One folder is given twice.
    words = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]
    (shown, folder, _), _, _ = called("fedmpi.report.write:write_report", "report", *words)
    assert folder == Path("report") and [run.folder for run in shown.runs] == words[:2] and shown.seeds == [97, 98]
    (shown, folder, for_print), _, _ = called("fedmpi.report.write:write_report", "report", tmp_path / "a", "--to", "x",
                                              "--print")
    assert for_print
    assert folder == Path("x") and [run.folder for run in shown.runs] == words[:1]


@pytest.mark.parametrize("out, picture", [([], "f/x.png"), (["--out", "p.png"], "p.png")])
def test_data(called, monkeypatch, out, picture):
    prepared = []
    monkeypatch.setattr("fedmpi.config.schema.load_config", lambda *given: SimpleNamespace(data=given, seed=5))
    monkeypatch.setattr("fedmpi.data.federation.prepare_federation",
                        lambda *given, check: prepared.append((*given, check)) or Path("f/x.h5"))
    monkeypatch.setattr("fedmpi.data.federation.Federation", lambda path: f"federation {path}")
    given, _, done = called("fedmpi.data.label_plot:write_label_plot", "data", "c.yaml", "a=1", *out)
    assert prepared == [(("c.yaml", ["a=1"]), 5, True)] and given == ("federation f/x.h5", Path(picture))
    assert done.stdout == f"federation f/x.h5\nlabel distribution {picture}\n"


@pytest.mark.parametrize("words, option", [
    (["data", "quickstart", "--out", ""], "--out"), (["mlflow", "a", "--to", ""], "--to"),
    (["report", "a", "--to", ""], "--to")])
def test_an_empty_path_is_not_taken_for_none(words, option):
    """A store of MLflow was made in the folder in which the command ran."""
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr) == (2, f'fedmpi: {option} "" is no path; give one, or leave {option} out\n')


@pytest.mark.parametrize("error, code", [
    (errors.FedmpiError, 1), (errors.BadInput, 2), (errors.StorageError, 1), (errors.GivenUp, 75)])
def test_an_error_is_one_message_with_its_own_code(monkeypatch, error, code):
    def fail(*given):
        raise error("what, where, remedy")
    monkeypatch.setattr("fedmpi.commands.summary.summarise_runs", fail)
    done = CliRunner().invoke(app, ["summary", "a"])
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", "fedmpi: what, where, remedy\n")


@pytest.mark.parametrize("words, message", [
    (["plan", "c", "--ranks", "0"], "'--ranks'"), (["submit", "c", "--gpus", "-1"], "'--gpus'"),
    (["submit", "c", "--restarts", "-1"], "'--restarts'"), (["sweep", "j", "--local", "0"], "'--local'"),
    (["sweep", "j", "--ranks", "0"], "'--ranks'"), (["sweep", "j", "--cpus", "0"], "'--cpus'"),
    (["sweep", "j", "--gpus", "-1"], "'--gpus'"), (["compare", "a"], "Missing argument"),
    (["report"], "Missing argument"), (["run", "c", "--rank", "1"], "No such option"),
    (["export", "a", "b", "--client", "x"], "'--client'"), (["fly"], "No such command 'fly'")])
def test_words_that_cannot_be_meant(words, message):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split()) and done.stdout == ""


def test_the_entry_point(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmpi", "--version"])
    # as `python -m fedmpi` does
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(Path(fedmpi.__file__).with_name("__main__.py")), run_name="__main__")
    assert end.value.code == 0 and capsys.readouterr().out == f"fedmpi {__version__}\n"
