"""The user's own code is part of a run: changed code is refused at a resume, on other ranks and in a sweep, by name."""
from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedmpi
from fedmpi.cli import app
from fedmpi.commands.export import load_model
from fedmpi.errors import BadInput
from fedmpi.own_code import fingerprint
from fedmpi.report import write as write_report
from fedmpi.report.results import collect_job_results
from fedmpi.storage.checkpoint import CheckpointFile, read_checkpoint, write_checkpoint
from fedmpi.storage.listing import list_checkpoints
from fedmpi.sweeps import changed_code, job
from tests import forked
from tests.own_code.modules import forget, write
from tests.runs import CONFIG, run_alone
from tests.sweeps import jobs
from tests.test_exits import Alone, Ended

pytestmark = pytest.mark.slow("runs whose code changes, and their continuations")

METHOD = """
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from torch import Tensor
from fedmpi.method import WHOLE
from fedmpi.methods.fedavg import FedAvg
import mine_helper

@dataclass(frozen=True)
class Own(FedAvg):
    def server(self, shared, up, who):
        return mine_helper.twice(super().server(shared, up, who))
"""
HELPER = "def twice(x):\n    return x\n"
NETWORK = """
from torch import nn

class Own(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
"""
PARTITION = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Own:
    title = "own"
    def assign(self, labels, clients, rng):
        return np.array_split(np.arange(len(labels)), clients), None
"""
DATA = """
import numpy as np
from fedmpi.data.samples import Dataset

class Own:
    title = "own"
    def load(self, root):
        y = np.arange(300) % 10
        return Dataset(np.eye(64, dtype=np.float32)[y], y, np.empty(0), np.empty(0))
"""
FILES = {"mine_method.py": METHOD, "mine_helper.py": HELPER, "mine_net.py": NETWORK, "mine_split.py": PARTITION,
         "mine_data.py": DATA}
SETTINGS = ("method=mine_method:Own", "model=mine_net:Own", "data.partition=mine_split:Own", "data.name=mine_data:Own",
            "data.fraction=1.0")
MODULES = {name.removesuffix(".py") for name in FILES}


@pytest.fixture
def run(place, cache, capsys):
    """A function that runs a configuration with the user's modules; returns the exit code and what is said."""
    config = place / "c.json"
    config.write_text(json.dumps(CONFIG | {"data": CONFIG["data"] | {"cache": str(cache)}, "method": "fedavg"}))

    def run(*words: str, resume="auto", accept=False, out="run") -> tuple[int, str]:
        capsys.readouterr()
        try:
            code = run_alone(config, words, place / out, resume, world=Alone(), accept_changed_code=accept)
        except Ended as end:
            return end.args[1], end.args[0]
        said = capsys.readouterr()
        return code, said.out + said.err
    return run


def result(place: Path, out="run") -> dict:
    return json.loads((place / out / "result.json").read_text())


def test_the_run_and_each_checkpoint_hold_the_hash_of_every_file(run, place):
    write(place, FILES)
    assert (said := run(*SETTINGS, "rounds=1"))[0] == 0, said
    code = result(place)["own_code"]
    assert set(code) == MODULES and all(re.fullmatch("[0-9a-f]{64}", value) for value in code.values())
    assert read_checkpoint(list_checkpoints(place / "run" / "checkpoints")[0]).extra["own_code"] == code
    assert "own_code" not in (place / "run" / "config.yaml").read_text()
    assert run("rounds=1", out="built_in")[0] == 0 and "own_code" not in result(place, "built_in")


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused_by_name_until_it_is_accepted(run, place, name):
    write(place, FILES)
    assert (said := run(*SETTINGS, "rounds=1"))[0] == 0, said
    before = result(place)["own_code"]
    write(place, {name: FILES[name] + "# more\n"})
    code, said = run(*SETTINGS, "rounds=2")
    now = fingerprint.hash_file(place / name)
    module = name.removesuffix(".py")
    assert code == 2 and said.count("\n") == 1
    # A helper that was not imported yet has no file name in this process, but its module's name.
    assert f"{module}.py (was {before[module][:12]}, is {now[:12]})" in said
    assert "own code has changed since the checkpoint of round 1: " in said and "--accept-changed-code" in said
    code, said = run(*SETTINGS, "rounds=2", accept=True)
    assert code == 0 and "own code changed after round 1 and was accepted: " + module in said
    assert "own code changed after round 1" in (place / "run" / "log.txt").read_text()
    change = {"after_round": 1, "module": module, "then": before[module], "now": now}
    assert result(place)["accepted_code_changes"] == [change] and result(place)["own_code"][module] == now
    # What was accepted once stays in the books, and the new code is that of the run from then on.
    assert run(*SETTINGS, "rounds=3")[0] == 0
    assert result(place)["accepted_code_changes"] == [change]


def test_a_folder_may_be_moved_and_a_resumed_run_equals_a_straight_one(run, place, monkeypatch):
    write(place, FILES)
    assert run(*SETTINGS, "rounds=2", out="straight")[0] == run(*SETTINGS, "rounds=1")[0] == 0
    (place / "elsewhere").mkdir()
    for name in FILES:
        shutil.move(place / name, place / "elsewhere" / name)
    forget()
    monkeypatch.syspath_prepend(str(place / "elsewhere"))
    assert run(*SETTINGS, "rounds=2")[0] == 0
    assert result(place)["digest"] == result(place, "straight")["digest"]
    assert result(place)["own_code"] == result(place, "straight")["own_code"]


def test_a_checkpoint_without_a_fingerprint_continues_with_a_line_that_says_so(run, place):
    write(place, FILES)
    assert (said := run(*SETTINGS, "rounds=1"))[0] == 0, said
    path = list_checkpoints(place / "run" / "checkpoints")[0]
    snapshot, saved = read_checkpoint(path), CheckpointFile(path)
    del snapshot.extra["own_code"]
    write_checkpoint(path.parent, snapshot, [saved.read_rows(0, len(snapshot.ids))])
    assert "own_code_changes" not in load_model(place / "run", None, own_code=True).facts
    code, said = run(*SETTINGS, "rounds=2")
    assert code == 0 and said.count("the checkpoint of round 1 has no fingerprint of your own code") == 1
    assert "own code" not in run("rounds=1", out="old")[1] + run("rounds=2", out="old")[1]


def test_an_accepted_change_that_does_not_fit_the_state_is_one_line(run, place):
    write(place, FILES)
    assert (said := run(*SETTINGS, "rounds=1"))[0] == 0, said
    write(place, {"mine_net.py": NETWORK.replace("width=8", "width=9")})
    code, said = run(*SETTINGS, "rounds=2", accept=True)
    unfit = "used with the code as it is now: the server's state has other fields (w (610,) there and (685,) now)"
    # The advice to continue would be that to do the same again.
    assert code == 2 and unfit in said and "saved so far" not in said
    # Nor is it taken for a model of the code as it is now.
    for words in ((), ("--client", "0")):
        done = CliRunner().invoke(app, ["export", "run", "x.safetensors", "--own-code", *words])
        assert done.exit_code == 2 and unfit in done.output and not (place / "x.safetensors").exists(), done.output


def test_the_command_and_python_accept_it_too(place, cache):
    write(place, FILES)
    settings = CONFIG | {"data": {"cache": str(cache), "clients": 3}, "method": "mine_method:Own", "engine": "loop"}
    fedmpi.run(settings, out="run", rounds=1, quiet=True)
    shutil.copytree("run", "other")
    write(place, {"mine_helper.py": HELPER + "\n"})
    with pytest.raises(BadInput, match=r"mine_helper(.py)? \(was .*change by accept_changed_code=True, which"):
        fedmpi.run(settings, out="run", rounds=2, resume="auto", quiet=True)
    fedmpi.run(settings, out="run", rounds=2, resume="auto", quiet=True, accept_changed_code=True)
    assert len(result(place)["accepted_code_changes"]) == 1
    text = CliRunner().invoke(app, ["submit", "run/config.yaml", "--accept-changed-code", "--dry-run"]).output
    assert '--resume auto --ranks "$ranks" --accept-changed-code &' in text
    text = CliRunner().invoke(app, ["submit", "run/config.yaml", "--dry-run"]).output
    assert '--resume auto --ranks "$ranks" &' in text
    shown = CliRunner().invoke(app, ["compare", "run", "other"], env={"COLUMNS": "200"}).output
    assert "A: own code changed after round 1 and was accepted: mine_helper" in shown
    assert re.search(r"own code.mine_helper +[0-9a-f]{12} +[0-9a-f]{12}\n", shown)


def test_a_report_names_seeds_that_were_trained_with_other_code(place, cache):
    """Only code of the same row counts: the row FedAvg has none, and both its seeds are alike."""
    write(place, FILES)
    path = jobs.write(place, cache, rows={"Own": "mine_method:Own", "FedAvg": "fedavg"}, columns={"one": {}},
                      published={}, seeds=[0, 1])
    read, planned = job.plan_job(path, None, str(place / "out"))
    for seed in (0, 1):
        for one in (run for run in planned if run.seed == seed):
            assert run_alone(one.config, one.overrides, one.folder) == 0
        if seed == 0:
            assert write_report.list_remarks(collect_job_results(read, planned, "c")) == []
            write(place, {"mine_helper.py": HELPER + "\n"})
    (said,) = write_report.list_remarks(collect_job_results(read, planned, "c"))
    assert re.fullmatch(r"Own: own code differs between finished runs: mine_helper is [0-9a-f]{12} "
                        r"\(Own, one, seed 0\) and [0-9a-f]{12} \(Own, one, seed 1\)", said)


def test_a_sweep_takes_changed_code_for_another_run(place, cache, monkeypatch):
    write(place, FILES)
    path = jobs.write(place, cache, rows={"Own": "mine_method:Own"}, columns={"one": {}}, published={})
    (planned,) = job.plan_job(path, None, str(place / "out"))[1]
    assert run_alone(planned.config, planned.overrides, planned.folder) == 0
    assert changed_code.mark_runs([planned], False) == [planned]
    write(place, {"mine_helper.py": HELPER + "\n"})
    with pytest.raises(BadInput, match=r"own code has changed since .*seed-0 was finished.*mine_helper.*; put back"):
        changed_code.mark_runs(job.plan_job(path, None, str(place / "out"))[1], False)
    done = CliRunner().invoke(app, ["sweep", path, "--out", str(place / "out"), "--dry-run"])
    assert done.exit_code == 2 and done.output.count("\n") == 1
    (marked,) = changed_code.mark_runs([planned], True)
    assert marked.words()[-1] == "--accept-changed-code" and "--accept-changed-code" not in planned.words()
    # A report only reads: it shows the run as it was.
    change = {"after_round": 1, "module": "mine_helper", "then": "1" * 64, "now": "2" * 64}
    made = json.loads((planned.folder / "result.json").read_text())
    (planned.folder / "result.json").write_text(json.dumps(made | {"accepted_code_changes": [change]}))
    # Figures take seconds.
    monkeypatch.setattr("fedmpi.report.write.figures.draw_figures", lambda results: [])
    done = CliRunner().invoke(app, ["report", path, "--out", str(place / "out"), "--to", str(place / "page")])
    assert done.exit_code == 0, done.output
    for name in ("index.html", "README.md"):
        assert "own code changed after round 1 and was accepted: mine_helper (from 111111111111 to 222222222222)" in (
            place / "page" / name).read_text()


def test_a_rank_with_another_copy_of_a_file_is_named_before_round_1(place, bench):
    write(place, {"mine_method.py": METHOD, "mine_helper.py": HELPER})
    old = place / "old"
    write(old, {"mine_method.py": METHOD, "mine_helper.py": HELPER + "# old\n"})

    def start():
        if os.environ["PMI_RANK"] == "1":
            os.chdir(old)
            sys.path.remove(str(place))
        sys.argv = ["fedmpi", "run", bench.config, "method=mine_method:Own", "--out", str(place / "run")]
        app()
    done = forked.call(3, start, place)
    assert done.returncode == 2 and "round 1" not in done.stdout
    first = done.stderr.splitlines()[0]
    assert re.match(r"fedmpi: rank 1 of 3 on \S+: own code is another one than rank 0's: mine_helper", first), first
    assert "is " + fingerprint.hash_file(old / "mine_helper.py")[:12] in first


def test_code_that_fails_on_one_rank_ends_all_of_them(place, bench):
    write(place, {"mine_method.py": METHOD.replace("mine_helper", "os") + """
    def client(self, shared, mine, data):
        if os.environ.get("PMI_RANK") == "2" and os.path.exists("begun"):
            raise SystemExit(0)
        open("begun", "w").close() if os.environ.get("PMI_RANK") == "1" else None
        return super().client(shared, mine, data)

    def server(self, shared, up, who):
        open("begun", "w").close()
        return FedAvg.server(self, shared, up, who)
"""})
    done = forked.command(3, "run", bench.config, "method=mine_method:Own", "--out", place / "run", cwd=place)
    assert done.returncode in (1, 2) and "mine_method.py:16: SystemExit: 0; repair it" in done.stderr.splitlines()[0]
    assert "rank 2 of 3 on" in done.stderr and "Traceback" in (place / "run" / "log.txt").read_text()


def test_export_and_verify_name_code_that_was_changed_since(run, place):
    write(place, FILES)
    assert run(*SETTINGS, "rounds=1", resume=None)[0] == 0

    def command(*words):
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, done.output
    out, named = str(place / "x.safetensors"), "own code has changed since "
    for words in (["export", "run", out, "--own-code"], ["verify", "run"]):
        code, said = command(*words)
        assert code == 0 and named not in said, said
    assert fedmpi.load_result("run", own_code=True).model() is not None
    write(place, {"mine_helper.py": HELPER + "# more\n"})
    code, said = command("export", "run", out, "--own-code")
    assert code == 0 and f"{named}run/checkpoints/round-000001.h5 was written: mine_helper" in said
    from safetensors import safe_open
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["own_code_changes"])[0]["module"] == "mine_helper"
    with pytest.warns(UserWarning, match=f"{named}.*mine_helper"):
        fedmpi.load_result("run", own_code=True).model()
    code, said = command("verify", "run")
    assert code == 0 and said.startswith(f"warning: {named}run was finished: mine_helper") and "the same digest" in said
    write(place, {"mine_helper.py": "def twice(x):\n    return type(x)(x.w * 2)\n"})
    code, said = command("verify", "run")
    assert code == 1 and f"{named}run was finished: mine_helper" in said and "WRONG" in said
