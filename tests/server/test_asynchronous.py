"""Runs with `checkpoint.asynchronous` go on while a checkpoint is written, and leave the same files as without it.

If the order matters, `Slow` holds a write back until the run has done something, so no test depends on seconds."""
from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import h5py
import pytest

import fedmpi
from fedmpi.errors import FedmpiError, StorageError
from fedmpi.methods.fedmhc import FedMHC
from fedmpi.server.rounds import Run
from fedmpi.slurm.deadline import Deadline
from fedmpi.storage import checkpoint
from fedmpi.storage.background import BackgroundWrite
from tests import forked
from tests.server.test_resume import SMALL, assert_same_books, started

pytestmark = pytest.mark.slow("runs that write in the background")

ON = "checkpoint.asynchronous=true"
WORDS = (*SMALL, "method={name: fedmhc, M: 2}", "checkpoint={every: 1, keep: 9}")


@dataclass(frozen=True)
class InPlace(FedMHC):
    """FedMHC whose server keeps its tensors from round 1 on and writes new numbers into them. Its clients may fail."""
    bad_round: int = 99

    def server(self, shared, up, who):
        fresh = [new.clone() for new in super().server(shared, up, who)]
        if not who.round:
            # The first state's fields may share their memory.
            return type(shared)(*fresh)
        for old, new in zip(shared, fresh, strict=True):
            old.copy_(new)
        return shared

    def client(self, shared, mine, data):
        if data.local.round == self.bad_round:
            raise ValueError("this client cannot count")
        return super().client(shared, mine, data)


class Slow:
    """Begins to write a checkpoint only when the run waits for it, or has finished `rounds` more rounds.

    `events` lists in which order checkpoints began, were waited for and ended."""

    def __init__(self, monkeypatch, rounds: int):
        self.events, self.left, self.go = [], rounds, threading.Event()
        write, wait, run_round = checkpoint.write_checkpoint, BackgroundWrite.wait, Run.run_round

        def slow(folder, snapshot, pieces):
            self.events.append(f"begin {snapshot.round}")
            if threading.current_thread() is not threading.main_thread():
                assert self.go.wait(600), "the run never waited for this checkpoint"
                self.go.clear()
            path = write(folder, snapshot, pieces)
            self.events.append(f"end {snapshot.round}")
            return path

        def waited(background):
            self.events.append("wait")
            self.go.set()
            wait(background)

        def counted(run, t):
            run_round(run, t)
            self.events.append(f"round {t + 1}")
            self.left -= 1
            if not self.left:
                self.go.set()
        monkeypatch.setattr(checkpoint, "write_checkpoint", slow)
        monkeypatch.setattr(BackgroundWrite, "wait", waited)
        monkeypatch.setattr(Run, "run_round", counted)


def contents(path) -> dict[str, bytes]:
    """Return what a checkpoint holds except its settings, its times and the checksum of these."""
    with h5py.File(path) as file:
        return {name: value[()].tobytes() for group in ("shared", "mine", "digest") for name, value in
                file[group].items()} | {"ids": file["ids"][()].tobytes()}


@pytest.fixture(scope="module")
def whole(bench):
    """A run that waits for its checkpoints."""
    assert started(bench, "whole", WORDS) == 0
    return bench


def test_a_checkpoint_holds_its_own_round_though_the_next_one_is_over(whole, monkeypatch):
    """Before anything is written, the server writes into its tensors and all rows change."""
    slow = Slow(monkeypatch, 4)
    words = (*WORDS, ON, "method=tests.server.test_asynchronous:InPlace", "method.M=2", "checkpoint.every=3")
    assert started(whole, "in-place", words) == 0
    assert slow.events == ["round 1", "round 2", "round 3", "begin 3", "round 4", "wait", "end 3", "begin 4", "end 4"]
    path = whole.out("in-place") / "checkpoints" / "round-000003.h5"
    assert contents(path) == contents(whole.out("whole") / "checkpoints" / path.name)
    assert [line["round"] for line in checkpoint.read_checkpoint(path).metrics] == [1, 2, 3]
    assert started(whole, "in-place", words, str(path)) == 0
    assert whole.result("in-place")["digest"] == whole.result("whole")["digest"]


def test_all_files_are_those_of_a_run_that_waits(whole):
    assert started(whole, "beside", (*WORDS, ON)) == 0
    assert_same_books(whole, "beside", "whole")
    names = [path.name for path in whole.saved("whole")]
    assert names == [f"round-{t:06d}.h5" for t in (1, 2, 3, 4)] == [path.name for path in whole.saved("beside")]
    for name in names:
        paths = [whole.out(run) / "checkpoints" / name for run in ("beside", "whole")]
        assert contents(paths[0]) == contents(paths[1])
    assert (whole.out("beside") / "log.txt").read_text().count("saved ") == 4


def test_one_is_written_at_a_time_and_the_last_is_waited_for(whole, monkeypatch):
    """The run itself writes the last one, before it says that it has finished."""
    slow = Slow(monkeypatch, 99)
    assert started(whole, "one", (*WORDS, ON)) == 0
    assert slow.events == [
        "round 1", "begin 1", "round 2", "wait", "end 1", "begin 2", "round 3", "wait", "end 2", "begin 3", "round 4",
        "wait", "end 3", "begin 4", "end 4"]


def test_it_is_taken_note_of_as_soon_as_it_is_complete(whole, monkeypatch):
    """The run does not wait until the next checkpoint is due, which would delay the report of an error."""
    seen, run_round = [], Run.run_round

    def waiting(run, t):
        if run.folder_of_test._background:
            run.folder_of_test._background.thread.join()
        run_round(run, t)
        seen.append(run.checkpoints.slowest_s > 0)
    monkeypatch.setattr(Run, "folder_of_test", property(lambda run: run.checkpoints.folder), raising=False)
    monkeypatch.setattr(Run, "run_round", waiting)
    assert started(whole, "soon", (*WORDS, ON, "checkpoint.every=2", "rounds=4")) == 0
    assert seen == [False, False, False, True]


def test_asked_to_stop_it_waits_for_the_write_and_saves_this_round(whole, monkeypatch):
    slow = Slow(monkeypatch, 99)
    words = (*WORDS, ON, "checkpoint.every=2")
    assert started(whole, "stop", words, stop=3) == 75
    assert slow.events[-5:] == ["round 3", "wait", "end 2", "begin 3", "end 3"]
    assert [path.name for path in whole.saved("stop")] == ["round-000002.h5", "round-000003.h5"]
    monkeypatch.undo()
    assert started(whole, "stop", words, "auto") == 0
    assert_same_books(whole, "stop", "whole")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["waits", "trains on"])
@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_a_disk_that_refuses(whole, monkeypatch, failure, asynchronous):
    """The error, and what result.json says of it, are those of a run that waits. A run that may go on saves the next
    round."""
    write, name = checkpoint.write_checkpoint, f"refused-{failure}-{asynchronous}"

    def refuses(folder, snapshot, pieces):
        if snapshot.round == 2:
            raise StorageError("round-000002.h5 cannot be written: No space left on device")
        return write(folder, snapshot, pieces)
    monkeypatch.setattr(checkpoint, "write_checkpoint", refuses)
    words = {"checkpoint.failure": failure, "checkpoint.asynchronous": asynchronous, "checkpoint.keep": 9}

    def run():
        return fedmpi.run(whole.config, out=whole.out(name), quiet=True, rounds=4, **words)
    if failure == "stop":
        with pytest.raises(FedmpiError, match=r"rank 0 of 1 on \S+ round-000002.h5 cannot be written: No sp") as told:
            run()
        assert told.value.code == 1 and [path.name for path in whole.saved(name)] == ["round-000001.h5"]
        assert not (whole.out(name) / "lock").exists()
        assert len(whole.metrics(name)) == (3 if asynchronous else 2)
    else:
        run()
        assert whole.result(name)["rounds_refused_by_disk"] == [2]
        assert [int(path.stem[-6:]) for path in whole.saved(name)] == [1, 3, 4]
        assert "warning: round 2: round-000002.h5 cannot" in (whole.out(name) / "log.txt").read_text()


def test_a_run_that_fails_keeps_the_checkpoint_that_is_being_written(whole, monkeypatch):
    slow = Slow(monkeypatch, 99)
    method = {"name": "tests.server.test_asynchronous:InPlace", "M": 2, "bad_round": 2}
    with pytest.raises(FedmpiError, match="cannot count.*\n.*\n?saved so far: .*round-000002.h5"):
        fedmpi.run(whole.config, out=whole.out("failing"), quiet=True, method=method, rounds=4,
                   **{"checkpoint.asynchronous": True})
    assert slow.events[:6] == ["round 1", "begin 1", "round 2", "wait", "end 1", "begin 2"]
    assert whole.saved("failing")[-1].name == "round-000002.h5"


@pytest.mark.parametrize("ends", ["by a client", "by its program"])
def test_a_run_that_ends_while_the_disk_refuses_says_so(whole, monkeypatch, ends):
    """The write of round 2 fails while round 3 goes on, and nobody asks for it any more."""
    name, method = f"refused {ends}", {"name": "tests.server.test_asynchronous:InPlace", "M": 2}
    write, wait, asked, writes = checkpoint.write_checkpoint, BackgroundWrite.wait, threading.Event(), []

    def refuses(folder, snapshot, pieces):
        if snapshot.round == 2:
            assert asked.wait(600)
            raise StorageError("round-000002.h5 cannot be written: No space left on device")
        return write(folder, snapshot, pieces)

    def waited(background):
        writes.append(background)
        if background is not writes[0]:
            asked.set()
        wait(background)

    def on_round(line):
        if line["round"] == 3:
            raise ZeroDivisionError("enough")
    monkeypatch.setattr(checkpoint, "write_checkpoint", refuses)
    monkeypatch.setattr(BackgroundWrite, "wait", waited)
    options = {"on_round": on_round} if ends == "by its program" else {"method": method | {"bad_round": 2}}
    with pytest.raises((FedmpiError, ZeroDivisionError)) as told:
        fedmpi.run(whole.config, out=whole.out(name), quiet=True, rounds=5, **{"checkpoint.asynchronous": True,
                   "method": method} | options)
    lost = "what was being written is lost, too: round-000002.h5 cannot be written: No space left on device"
    assert (whole.out(name) / "log.txt").read_text().count(lost) == 1
    if ends == "by a client":
        assert f"\n{lost}\nsaved so far: " in str(told.value)
    assert whole.saved(name)[-1].name == "round-000001.h5" and not (whole.out(name) / "lock").exists()


def test_the_first_is_waited_for_if_there_is_a_deadline(ready):
    """The run has to know how long a checkpoint takes; after that it trains on."""
    run, asked = ready(ON, "checkpoint.every=1", "rounds=4", deadline=Deadline(2**40, "the job")), []
    save = run.checkpoints.save
    run.checkpoints.save = lambda while_training=False: (asked.append(while_training), save(while_training))
    assert run.run_rounds() and asked == [False, True, True, False]
    assert run.decision.folder.end_write(wait=True) is None


def test_killed_in_the_middle_of_a_write_it_loses_this_checkpoint_alone(whole):
    """The kernel kills the process when half of round 3 is on the disk."""
    words = (*WORDS, ON)

    def run():
        write = checkpoint.write_checkpoint

        def cut(pieces):
            yield from pieces
            os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.write_checkpoint = lambda folder, snapshot, pieces: write(
            folder, snapshot, cut(pieces) if snapshot.round == 3 else pieces)
        started(whole, "killed", words)
    assert forked.call(1, run, whole.folder).returncode not in (0, 75)
    names = [path.name for path in sorted((whole.out("killed") / "checkpoints").iterdir())]
    assert names == ["round-000001.h5", "round-000002.h5", "round-000003.h5.part"]
    assert started(whole, "killed", words, "auto") == 0
    assert_same_books(whole, "killed", "whole")
    assert not [*(whole.out("killed") / "checkpoints").glob("*.part")]
