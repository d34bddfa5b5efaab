"""What a run prints, word by word: who takes part, each round, and how it ended."""
from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from fedmpi import __version__
from fedmpi.comm.heartbeat import Heartbeat
from fedmpi.methods.ifca_cam import IFCACAM
from fedmpi.preparation import announce_run, format_time
from fedmpi.server import rounds
from fedmpi.server.run_state import RunState
from fedmpi.session import finish_run
from fedmpi.slurm.deadline import Deadline
from fedmpi.storage import checkpoint
from fedmpi.storage.folder_choice import find_resume_checkpoint


class Said:
    """A progress that keeps its texts."""

    def __init__(self):
        self.lines, self.rounds, self.notes = [], [], []

    def say(self, text):
        self.lines += text.splitlines()

    def round(self, text):
        self.rounds.append(text)

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def quiet(ready):
    """Set up a run whose texts are kept."""
    def quiet(*words, **how):
        run = ready(*words, **how)
        run.progress = run.recorder.progress = Said()
        return run
    return quiet


def test_a_round_is_shown_with_the_best_one_and_the_time_left(quiet):
    run, shown = quiet("rounds=1000"), []
    run.state.round = 7
    run.recorder.show_round(.25)
    run.state.metrics = [{"round": 1, "accuracy_mean": .25, "accuracy_worst_decile": .75},
                         {"round": 3, "accuracy_mean": .75, "accuracy_worst_decile": .5},
                         {"round": 5, "accuracy_mean": .75, "accuracy_worst_decile": .25},
                         {"round": 7, "accuracy_mean": .5, "accuracy_worst_decile": .125}]
    run.recorder.show_round(1.5)
    run.state.round = 1000
    run.recorder.show_round(100.)
    shown = run.progress.rounds
    assert shown == ["round    7/1000  0.25 s a round, 4 min left",
                     "round    7/1000  accuracy 50.00 % (worst tenth 12.50 %, best 75.00 % in round 3)  1.50 s a "
                     "round, 25 min left",
                     "round 1000/1000  accuracy 50.00 % in round 7 (worst tenth 12.50 %, best 75.00 % in round 3)  "
                     "100.00 s a round, 0.0 s left"]


def finished(run, honest: int):
    run.recorder.__dict__["honest"] = np.arange(9) < honest
    run.state = run.recorder.state = run.checkpoints.state = RunState(run.state.shared, run.state.clusters, 40, 75., [
        {"round": 20, "accuracy_mean": .875, "accuracy_weighted": .5, "accuracy_worst_decile": .5},
        {"round": 40, "accuracy_mean": .8125, "accuracy_weighted": .5, "accuracy_worst_decile": .25}])
    assert finish_run(run) == 0
    return run.progress.lines


def test_the_last_lines_of_a_run(quiet):
    run = quiet()
    first, last = finished(run, 9)
    assert first == ("FedMHC: accuracy 81.25 % mean over 9 clients, 25.00 % in the worst tenth, best 87.50 % in round "
                     "20; 40 rounds in 75 s on 1 rank")
    assert last == f"digest {run.recorder.result()['digest'][:16]}  results in {run.recorder.folder.path}"
    assert (run.recorder.folder.path / "result.json").exists()


@pytest.mark.parametrize("honest, said", [(9, "mean over 7 clients, "), (4, "mean over 3 honest clients, ")])
def test_the_last_line_counts_the_clients_of_the_mean(quiet, honest, said):
    """Clients without a sample of the evaluated part are in none."""
    run = quiet()
    run.recorder.federation.counts = run.recorder.federation.counts.copy()
    run.recorder.federation.counts[[1, 4], 2] = 0
    assert said in finished(run, honest)[0]


def test_the_last_lines_name_honest_clients_ranks_and_a_disk_that_refused(quiet):
    run = quiet("checkpoint.failure=continue")
    run.pool.world.size, call = 3, run.pool.call
    run.pool.call = lambda order, *arrays: setattr(run.pool.world, "size", 1) or (
        call(order, *arrays), setattr(run.pool.world, "size", 3))[0]
    run.disk_errors.refused = [4, 2, 4]
    first, _, warning = finished(run, 7)
    assert "mean over 7 honest clients, " in first and first.endswith("40 rounds in 75 s on 3 ranks")
    assert warning == ("warning: the disk refused a checkpoint or a measure 3 times, last after round 4; log.txt says "
                       "which")
    assert '"rounds_refused_by_disk": [\n  2,\n  4\n ]' in (run.recorder.folder.path / "result.json").read_text()


def introduced(run, homes, deadline=None, **world):
    """Return the introduction of a run as if it had other ranks."""
    run.deadline = deadline or Deadline()
    host = {"host": "n1", "device": "cpu", "cores": [0, 1], "threads": 1, "hosts": True, "gpu": None}
    world = SimpleNamespace(**{"size": 1, "library": "a library", "host": "n1", "thread_level": "funneled",
                               "heartbeat": None} | world)
    places = [host | {"hosts": bool(r)} for r in range(world.size)]
    parts = dataclasses.replace(run.parts, pool=SimpleNamespace(world=world, homes=np.array(homes)), places=places)
    run.progress.lines = []
    announce_run(run, parts, run.decision)
    return run.progress.lines


def test_a_run_introduces_itself(quiet):
    run = quiet("comm.timeout=60", "threads=1", "engine=auto")
    first, second = introduced(run, [0] * 9)
    sizes = run.federation.sizes
    assert first == (f"fedmpi {__version__}: FedMHC M=3 lam=0.1 anchor=global mini_batch=0 on digits, 9 clients "
                     f"({sizes.min()}-{sizes.max()} training samples), 1,210 parameters")
    assert re.fullmatch(r"1 rank \(MPI: a library\): rank 0 alone; engine vmap \(1,210 parameters, without convolutions"
                        r"\), device cpu, float32, 1 thread a rank; pid \d+ on n1; run folder "
                        + re.escape(str(run.recorder.folder.path)), second)


def test_a_run_in_which_the_method_is_another_one_says_so(quiet):
    run = quiet()
    run.parts.method = IFCACAM(model=run.parts.method.model, warm_up=run.config.rounds)
    assert introduced(run, [0] * 9)[-1].startswith(f"warning: method.warm_up = {run.config.rounds}: in all rounds")


class Plain(nn.Sequential):
    """A network without BatchNorm."""

    def __init__(self):
        super().__init__(nn.Linear(64, 4), nn.Linear(4, 10))


def test_whose_statistics_says_nothing_of_a_network_without_any(quiet):
    network = "{name: 'tests.server.test_words:Plain'%s}"
    said = introduced(quiet("model=" + network % ", running_stats: average"), [0] * 9)
    assert said[-1] == "warning: model.running_stats = average changes nothing: this network has no BatchNorm"
    assert not any("warning" in line for line in introduced(quiet("model=" + network % ""), [0] * 9))


@pytest.mark.parametrize("on, column", [("test", 2), ("validation", 1)])
def test_a_run_that_can_measure_nothing_says_so(quiet, on, column):
    """A data set without a test part is such, if its parts are taken as they are (partition natural)."""
    run = quiet()
    run.parts.config = dataclasses.replace(run.config, evaluate=dataclasses.replace(run.config.evaluate, on=on))
    counts = run.federation.counts
    counts[:, 1:] = 5
    counts[1:, column] = 0
    assert not any("warning" in line for line in introduced(run, [0] * 9))
    counts[0, column] = 0
    assert introduced(run, [0] * 9)[-1].startswith(f"warning: no client has {on} samples, so nothing will be measured")


def test_ranks_that_host_unevenly_idle_or_are_not_watched_are_named(quiet):
    run = quiet("comm.timeout=60", "precision=bf16", "engine=auto")
    run.parts.config = dataclasses.replace(run.parts.config, threads=2)
    said = introduced(run, [1, 1, 1, 2, 2, 1, 2, 4, 4], size=5)
    assert said[1].startswith("5 ranks (MPI: a library): 3 host 2-4 clients each, 1 idle; engine vmap (")
    assert "without convolutions), bf16, 2 threads a rank; pid " in said[1]
    assert [line.split() for line in said[2:-1]][::2] == [["host", "ranks", "device", "cores", "threads"],
                                                         ["n1", "0-4", "cpu", "2", "1"]]
    assert said[-1] == ("warning: comm.timeout is off: it needs an MPI of thread level multiple, and this one has "
                        "funneled")
    assert "4 host 2 clients each; " in introduced(run, [1, 1, 2, 2, 3, 3, 4, 4], size=5, heartbeat=Heartbeat)[1]
    assert not any("comm.timeout" in line for line in introduced(run, [1] * 9, size=2, heartbeat=Heartbeat))
    run.parts.config = dataclasses.replace(run.parts.config, comm=dataclasses.replace(run.config.comm, timeout=0.))
    assert not any("comm.timeout" in line for line in introduced(run, [1] * 9, size=2))


def test_attackers_and_the_end_of_the_time_are_named(quiet):
    run = quiet("attack={kind: noise, share: .3}")
    run.recorder.__dict__["honest"] = np.array([1, 0, 0, 0, 1, 1, 1, 0, 1], bool)
    said = introduced(run, [0] * 9, Deadline(1e9, "Slurm job 7"))
    assert said[2:] == ["attack: noise of clients 1-3 7; accuracies are the honest clients'",
                        f"stops by itself in time for the end of Slurm job 7, {format_time(1e9)}"]
    assert format_time(1e9)[:10] in ("2001-09-08", "2001-09-09") and len(format_time(0)) == 19


def test_which_checkpoint_a_run_goes_on_from(tmp_path):
    folder = SimpleNamespace(checkpoints=tmp_path)
    assert find_resume_checkpoint(folder, None) == (None, [])
    # Nothing was saved yet, so the run begins from the start.
    assert find_resume_checkpoint(folder, "auto") == (None, [])
    assert find_resume_checkpoint(folder, "some.h5") == (Path("some.h5"), [])
    with pytest.raises(rounds.FedmpiError, match=f"--resume {tmp_path} is a folder: give a checkpoint file, or --out "
                                                 f"{tmp_path} --resume auto") as error:
        find_resume_checkpoint(folder, str(tmp_path))
    assert error.value.code == 2
    good = checkpoint.write_checkpoint(tmp_path, checkpoint.Snapshot(3, {}, np.empty(0, int), {}, "f", .5, [], {}), [])
    bad = tmp_path / "round-000004.h5"
    bad.write_bytes(b"no checkpoint")
    path, (warning,) = find_resume_checkpoint(folder, "auto")
    assert path == good and warning.startswith(f"refused {bad}") and warning.count(str(bad)) == 1
    good.unlink()
    with pytest.raises(rounds.FedmpiError, match="no checkpoint in .* can be used; start a new run with another --out"):
        find_resume_checkpoint(folder, "auto")


def test_a_restart_keeps_the_engine_that_the_run_began_with(bench, monkeypatch):
    """A new choice by timing could change digests, so the saved engine counts, with its reason."""
    from fedmpi.engines import engine_choice
    words = ("method=fedavg", "data.clients=4", "engine=auto")
    assert bench.lead("engine", *words, "rounds=1") == bench.lead("whole", *words, "rounds=2") == 0
    monkeypatch.setattr(engine_choice, "choose_by_network", lambda *parts: ("loop", "another reason"))
    assert bench.lead("engine", *words, "rounds=2", resume="auto") == 0
    found, expected = bench.result("engine"), bench.result("whole")
    assert (found["engine"], found["engine_why"]) == ("vmap", "1,210 parameters, without convolutions")
    assert found["digest"] == expected["digest"]
