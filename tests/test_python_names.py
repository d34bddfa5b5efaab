"""The other names of `import fedmpi`: plan, sweep, list_methods; bad keywords, and what the import loads."""
from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import fedmpi
from fedmpi import result
from fedmpi.errors import BadInput
from fedmpi.process_state import isolate_computation
from fedmpi.sweeps.local import Sweep
from tests import forked
from tests.launch import ROOT
from tests.report import made
from tests.runs import run_alone


@pytest.fixture
def config(bench):
    return json.loads(open(bench.config).read())


def test_a_plan_is_that_of_the_command(bench, config):
    from fedmpi.commands.plan import make_plan
    before = torch.get_rng_state().tolist()
    planned = fedmpi.plan(config=config, ranks=2, rounds=7)
    assert planned == make_plan(bench.config, ["rounds=7"], 2) and planned["rounds"] == 7
    assert torch.get_rng_state().tolist() == before


def test_a_sweep_runs_a_job_and_returns_a_row_for_each_run(bench, config, monkeypatch):
    pytest.importorskip("pandas")
    job = {"title": "t", "config": "c.yaml", "rows": {"Local": "local", "FedAvg": "fedavg"}, "seeds": [0, 1],
           "measure": "accuracy_best_on_test", "set": {"rounds": 1}}
    ended = []

    class InThisProcess(Sweep):
        """The sweep, whose runs take place one after another in this process."""

        def go(self):
            signal.signal(signal.SIGTERM, self.stop)
            ended.extend(run_alone(run.config, run.overrides, run.folder) for run in self.waiting)
            return 0
    monkeypatch.setattr("fedmpi.sweeps.local.Sweep", InThisProcess)
    before = signal.getsignal(signal.SIGTERM)
    table = fedmpi.sweep(bench.write("job.yaml", job), out=bench.out("sweep"))
    assert signal.getsignal(signal.SIGTERM) is before and ended == [0] * 4
    assert table[["row", "column", "seed"]].values.tolist() == [
        ["Local", "result", 0], ["FedAvg", "result", 0], ["Local", "result", 1], ["FedAvg", "result", 1]]
    for row in table.itertuples():
        assert fedmpi.load_result(row.folder).accuracy == row.accuracy_mean
    assert "cluster_sizes" not in table


def test_methods_are_listed_with_those_of_plug_ins():
    names = fedmpi.list_methods()
    assert {"fedavg", "fedmhc", "fedah", "lcfed"} <= set(names) and names == fedmpi.list_methods()


@pytest.mark.parametrize("keywords, message", [
    ({"rounds": 0}, "rounds = 0: should be greater than or equal to 1"),
    ({"train": {"learning_rate": 1}}, "train.learning_rate is not a setting of train"),
    ({"train": {"lr": {1, 2}}}, "train.lr = {1, 2}: should be made of finite numbers"),
    ({"train": {"": 1}}, "train.'' is not the name of a setting"), ({"data": {3: 1}}, "data.3 is not the name of"),
    ({"method": "fedawg"}, "method 'fedawg' is not known"), ({"method": {"name": int}}, "method: builtins:int")])
def test_bad_keywords_are_named(bench, keywords, message):
    with pytest.raises(BadInput) as error:
        fedmpi.run(bench.config, out=bench.out("bad"), **keywords)
    assert message in str(error.value) and not bench.out("bad").exists()


def test_a_missing_pandas_is_said_with_its_remedy(bench, monkeypatch):
    found = fedmpi.run(bench.config, out=bench.out("bare"), quiet=True, rounds=1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (lambda: found.metrics, found.clients, found.clusters, result.require_pandas):
        with pytest.raises(BadInput, match=r"pandas is not installed: pip install 'fedmpi\[pandas\]'"):
            ask()
    assert found.accuracy == bench.result("bare")["accuracy_mean"]


def test_metrics_that_cannot_be_read_are_one_message(tmp_path):
    found = fedmpi.load_result(made.run(tmp_path / "a", result={"method": "FedAvg"}))
    with pytest.raises(BadInput, match="metrics.jsonl is missing or damaged in its first line; `values` has"):
        found.metrics  # noqa: B018


def test_the_public_names_are_what_the_stub_says_and_hide_no_submodule():
    stub = (ROOT / "fedmpi/__init__.pyi").read_text()
    assert sorted(fedmpi.__all__) == fedmpi.__all__ and set(fedmpi.__all__) <= set(dir(fedmpi))
    for name in fedmpi.__all__:
        assert getattr(fedmpi, name).__name__ == name and f" import {name} as {name}\n" in stub
        assert not (ROOT / "fedmpi" / f"{name}.py").exists() and not (ROOT / "fedmpi" / name).is_dir()
    assert eval(stub.partition("__all__ = ")[2]) == fedmpi.__all__ and (ROOT / "fedmpi/py.typed").exists()
    with pytest.raises(AttributeError, match="module 'fedmpi' has no attribute 'runs'"):
        fedmpi.runs  # noqa: B018


@pytest.mark.slow("a new process")
def test_the_import_loads_neither_torch_nor_mpi_nor_anything_else():
    code = ("import sys; before = set(sys.modules); import fedmpi; "
            "print({m.partition('.')[0] for m in set(sys.modules) - before} - {*sys.stdlib_module_names})")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "{'fedmpi'}\n"


def test_a_run_of_one_process_loads_no_mpi(bench, config):
    def begin_anew():
        """Run in a fork that has loaded neither this package nor MPI."""
        for name in [name for name in sys.modules if name.partition(".")[0] in ("fedmpi", "mpi4py")]:
            del sys.modules[name]
        import fedmpi
        fedmpi.run(config | {"rounds": 1, "method": "local"}, out=str(bench.out("alone")), quiet=True)
        print("mpi4py" in sys.modules)
    done = forked.call(1, begin_anew)
    assert done.stdout == "False\n", done.stderr


def test_a_launcher_is_known_by_its_variables(monkeypatch):
    from fedmpi.comm.launcher import is_inside_launcher
    for name in [name for name in os.environ if name.startswith(("PMI", "OMPI", "SLURM"))]:
        monkeypatch.delenv(name)
    assert not is_inside_launcher()
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "0")
        assert is_inside_launcher()
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert is_inside_launcher()


@pytest.mark.parametrize("call, name", [
    (lambda: fedmpi.sweep("digits", at_once=0), "at_once"), (lambda: fedmpi.sweep("digits", ranks=0), "ranks"),
    (lambda: fedmpi.plan("quickstart", ranks=0), "ranks")])
def test_no_runs_at_a_time_and_no_ranks_are_refused(call, name):
    """A sweep of no runs at a time would wait for ever."""
    with pytest.raises(fedmpi.BadInput, match=f"^{name} = 0: give a whole number from 1 to 1,000,000$"):
        call()


@pytest.mark.parametrize("call, said", [
    (lambda: fedmpi.plan("quickstart", ranks=2.5), "ranks = 2.5: give a whole number from 1 to 1,000,000"),
    (lambda: fedmpi.sweep("digits", at_once="2"), "at_once = '2': give a whole number from 1 to 1,000,000"),
    (lambda: fedmpi.plan("quickstart", ranks=10 ** 9), "ranks = 1000000000: give a whole number from 1 to 1,000,000"),
    (lambda: fedmpi.sweep(3), "job=3: give the path of a job file"),
    (lambda: fedmpi.sweep("digits", out=3), "out=3: give a path"),
    (lambda: fedmpi.sweep("digits", scale=3), "scale=3: give the name of one of the job.s scales as text"),
    (lambda: fedmpi.load_result(7), "folder=7: give the folder of a run"),
    (lambda: fedmpi.load_result(None), "folder=None: give the folder of a run"),
    (lambda: fedmpi.Result(None), "folder=None: give the folder of a run")])
def test_arguments_of_a_wrong_type_are_refused(call, said):
    with pytest.raises(fedmpi.BadInput, match=f"^{said}$"):
        call()


async def tell_later(line):
    """A function that only makes a coroutine."""


def yield_lines(line):
    yield line


class Teller:
    """An object that is called as an `async` function."""

    async def __call__(self, line):
        yield line


@pytest.mark.parametrize("function", [tell_later, yield_lines, functools.partial(yield_lines), Teller()])
def test_a_function_of_which_a_call_runs_nothing_is_refused(function, tmp_path):
    with pytest.raises(BadInput, match="^on_round=.* a call of it only makes a coroutine or a generator, which nobody "
                                       r"runs; give a plain function \(def, without async and yield\)$"):
        fedmpi.run("quickstart", out=tmp_path / "run", on_round=function)
    assert not (tmp_path / "run").exists()


def test_threads_of_one_process_compute_one_after_another():
    """They share PyTorch's settings and random generators. Within a thread a run may start another one."""
    inside = threading.Event()

    def compute():
        with isolate_computation():
            inside.set()
    with isolate_computation(), isolate_computation():
        thread = threading.Thread(target=compute)
        thread.start()
        assert not inside.wait(.3)
    assert inside.wait(60)
    thread.join()
