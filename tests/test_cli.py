"""The commands as a user or a script calls them: words, exit codes, and how little they load."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedmpi
from fedmpi.cli import app
from fedmpi.commands import catalogue
from tests import forked

QUICKSTART = str(Path(__file__).parent.parent / "configs" / "quickstart.yaml")
HEAVY = {"torch", "torchvision", "sklearn", "scipy", "matplotlib", "h5py", "numpy", "mpi4py", "pydantic", "yaml"}
KINDS = ("methods", "models", "datasets", "partitions")


@pytest.fixture
def fed(monkeypatch):
    """Make `fed(*words)` call the command in this process; its result has exit_code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def loaded(code: str) -> set[str]:
    """Return the top-level modules that a new process has loaded after `code`."""
    report = f"import sys\n{code}\nprint('\\n' + ' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy():
    assert not HEAVY & loaded("from typer.testing import CliRunner\nfrom fedmpi.cli import app\n"
                              "assert CliRunner().invoke(app, ['--help']).exit_code == 0")


def test_a_rank_starts_without_what_it_may_never_need():
    rare = {"torchvision", "sklearn", "scipy", "matplotlib", "pandas"}

    def begin_anew():
        """Import this package in a fork that has loaded neither it nor the modules that are rarely needed."""
        for name in [name for name in sys.modules if name.partition(".")[0] in rare | {"fedmpi"}]:
            del sys.modules[name]
        for name in ("assembly", "server.rounds", "clients.hosted", "engines.loop", "models.build", "models.nets",
                     "data.sources", "progress"):
            import_module(f"fedmpi.{name}")
        from fedmpi import registry
        for name in registry.list_available("methods"):
            registry.find_class("methods", name)
        print({name.partition(".")[0] for name in sys.modules} & rare)
    done = forked.call(1, begin_anew)
    assert done.stdout == "set()\n", done.stdout + done.stderr


def test_what_a_run_changes_in_pytorch_needs_no_compiler():
    def change_and_restore():
        for name in [name for name in sys.modules if name.startswith("torch._inductor")]:
            del sys.modules[name]
        from fedmpi.engines.gpu_card import use_deterministic_kernels
        from fedmpi.process_state import isolate_computation
        with isolate_computation():
            use_deterministic_kernels()
        print([name for name in sys.modules if name.startswith("torch._inductor")])
    done = forked.call(1, change_and_restore)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_names_load_no_torch(kind):
    assert "torch" not in loaded(f"from fedmpi.commands import catalogue\nassert catalogue.list_names({kind!r})")


def test_version(fed):
    assert fed("--version").stdout == f"fedmpi {fedmpi.__version__}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_lists(fed, kind):
    names = json.loads(fed(kind, "--json").stdout)
    assert names == catalogue.list_names(kind)
    shown = fed(kind)
    assert shown.exit_code == 0 and all(f"\n{name} " in shown.stdout for name in names)


def test_explanations(fed):
    assert fed("methods", "fedah").stdout.startswith("FedAH (fedah)\n\nFedAH, Zhou et al., 2024: a client blends")
    assert json.loads(fed("models", "mlp", "--json").stdout)["settings"][0] == {
        "name": "hidden", "type": "int", "allowed": ">= 1", "default": 64, "required": False,
        "help": "width of the hidden layer"}


@pytest.mark.parametrize("words, message", [
    (["methods", "fedmch"], "fedmpi: method 'fedmch' is not known; .* Did you mean fedmhc?"),
    (["datasets", "minst"], "Did you mean mnist?"),
    (["plan", "none.yaml"], "fedmpi: none.yaml: cannot read the configuration: No such file or directory"),
    (["plan", QUICKSTART, "method.lamda=1"], "fedmpi: command line: method.lamda is not a setting of FedMHC; its "
                                             "settings are M, lam, anchor, mini_batch .did you mean lam?"),
    (["data", QUICKSTART, "data.clients=0"], "command line: data.clients = 0: should be greater than or equal to 1"),
    (["plan", QUICKSTART, "--ranks", "0"], "Invalid value for '--ranks'"),
    (["fly"], "No such command 'fly'")])
def test_bad_input_is_one_message_and_code_2(fed, words, message):
    result = fed(*words)
    assert result.exit_code == 2 and result.stdout == ""
    assert re.search(message, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


def test_plan_prints_json_for_scripts(fed, cache):
    result = fed("plan", QUICKSTART, f"data.cache={cache}", "--ranks", 5, "--json")
    planned = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {"parameters": 4810, "clients": 40, "ranks": 5}.items() <= planned.items()
    assert planned["mib_per_client_round"] == 4 * (2 * 4810 + 3 * 650) / 2**20
    assert planned["steps_per_round"] == sum(rank["steps"] for rank in planned["per_rank"])
    assert len(planned["per_rank"]) == 5


def test_plan_prints_a_table_for_people(fed, cache):
    result = fed("plan", QUICKSTART, f"data.cache={cache}")
    assert result.exit_code == 0
    assert "4,810 parameters" in result.stdout and "server" in result.stdout


def test_data_prepares_the_federation_and_draws_it(fed, tmp_path):
    from matplotlib.image import imread
    result = fed("data", QUICKSTART, f"data.cache={tmp_path / 'cache'}", "--out", tmp_path / "labels.png")
    assert result.exit_code == 0
    federation, = (tmp_path / "cache").glob("*.h5")
    assert str(federation) in result.stdout and str(tmp_path / "labels.png") in result.stdout
    assert imread(tmp_path / "labels.png").shape[2] >= 3


@pytest.mark.parametrize("code", [0, 1, 2, 75])
@pytest.mark.parametrize("words, place", [(["run", "any.yaml"], "fedmpi.session.run_command"),
                                          (["doctor"], "fedmpi.commands.doctor.doctor_command")])
def test_the_work_decides_the_exit_code(fed, monkeypatch, words, place, code):
    monkeypatch.setattr(place, lambda *arguments: code)
    assert fed(*words).exit_code == code
