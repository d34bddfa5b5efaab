"""How a run ends: the exit code, who prints what, and signals. fedmpi.errors promises the codes."""
from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from fedmpi import errors, session, stop_signals
from fedmpi.comm.transport import Solo
from fedmpi.context import RankContext
from fedmpi.errors import BadInput, FedmpiError, GivenUp, StorageError
from fedmpi.methods.fedavg import FedAvg
from fedmpi.process_state import restore_signals
from fedmpi.run_request import RunRequest
from fedmpi.session import explain_failure, run_command
from fedmpi.stop_signals import StopFlag
from tests.runs import run_alone


def test_the_exit_codes_that_scripts_rely_on():
    assert (errors.FINISHED, errors.FAILED, errors.BAD_INPUT, errors.SAVED) == (0, 1, 2, 75)
    codes = {error: error("x").code for error in (FedmpiError, StorageError, GivenUp, BadInput)}
    assert list(codes.values()) == [1, 1, 75, 2] and all(issubclass(e, FedmpiError) for e in codes)


@pytest.fixture
def stop(monkeypatch):
    """A Stop whose clock the test sets, and whose second Ctrl-C raises SystemExit in place of ending the tests."""
    before = {number: signal.getsignal(number) for number in stop_signals.SIGNALS}

    def leave(code):
        raise SystemExit(code)
    now = SimpleNamespace(monotonic=lambda: now.seconds, seconds=50., perf_counter=None)
    monkeypatch.setattr(stop_signals, "time", now)
    monkeypatch.setattr(stop_signals.os, "_exit", leave)
    stop = StopFlag()
    with restore_signals(*stop_signals.SIGNALS):
        # nohup, under which tests may run, ignores it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        stop.install()
        stop.now = now
        yield stop
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP])
def test_every_signal_asks_to_stop_once(stop, number):
    assert not stop() and stop.waits() == 0
    os.kill(os.getpid(), number)
    assert stop()
    stop.now.seconds = 53.
    # A second request; the first one counts.
    os.kill(os.getpid(), signal.SIGTERM)
    stop.now.seconds = 60.
    assert stop() and stop.waits() == 10.


def test_what_nohup_has_ignored_stays_ignored(stop):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop.install()
    os.kill(os.getpid(), signal.SIGHUP)
    assert not stop()


def test_a_second_ctrl_c_ends_the_run_at_once(stop):
    os.kill(os.getpid(), signal.SIGINT)
    assert stop()
    with pytest.raises(SystemExit) as end:
        os.kill(os.getpid(), signal.SIGINT)
    assert end.value.code == 130


def test_ctrl_c_after_another_signal_ends_the_run_at_once_and_no_other_does(stop):
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    with pytest.raises(SystemExit) as end:
        os.kill(os.getpid(), signal.SIGINT)
    assert end.value.code == 130


def here(rank=0, client=None, when=0) -> tuple:
    """Return a rank's world and context."""
    return SimpleNamespace(rank=rank, size=4, host="n3", on_failure=None), RankContext(client=client, round=when)


@pytest.mark.parametrize("here, error, words, code", [
    (here(), BadInput("so"), "fedmpi: so", 2), (here(2), BadInput("so"), "fedmpi: rank 2 of 4 on n3: so", 2),
    (here(client=5, when=6), FedmpiError("so"), "fedmpi: client 5, round 7 (rank 0 of 4 on n3): so", 1),
    (here(3, client=0), GivenUp("so"), "fedmpi: client 0, round 1 (rank 3 of 4 on n3): so", 75),
    (here(1), StorageError("so"), "fedmpi: rank 1 of 4 on n3: so", 1)])
def test_last_words_say_who_failed_at_what(here, error, words, code):
    assert explain_failure(*here, error) == (words, code)


def test_last_words_after_ctrl_c_are_a_line_without_a_traceback():
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert explain_failure(*here(1), KeyboardInterrupt()) == ("fedmpi: interrupted by Ctrl-C", 130)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_last_words_of_an_unexpected_error_bring_its_traceback():
    words, code = explain_failure(*here(1, client=8, when=1), ValueError("one\ntwo"))
    first, _, more = words.partition("\n")
    assert code == 1 and first == "fedmpi: client 8, round 2 (rank 1 of 4 on n3): ValueError: one two"
    assert "ValueError: one\ntwo" in more


class Ended(BaseException):
    """The message and the exit code of a process."""


class Alone(Solo):
    """A world of a single process that survives its failure."""
    on_failure, closed = None, None

    def fail(self, message, code):
        raise Ended(message, code)

    def close(self, code=0):
        self.closed = code


@dataclass(frozen=True)
class Breaking(FedAvg):
    """FedAvg with a server that fails in the second round."""
    how: str = "Exception"

    def server(self, shared, up, who):
        if who.round == 1:
            raise {"Exception": ValueError, "FedmpiError": FedmpiError, "GivenUp": GivenUp, "BadInput": BadInput}[
                self.how]("as it was told")
        return super().server(shared, up, who)


@pytest.mark.parametrize("how, code", [("Exception", 1), ("FedmpiError", 1), ("GivenUp", 75), ("BadInput", 1)])
def test_a_run_that_fails_says_so_once_and_how_to_go_on(bench, how, code):
    folder = bench.out(f"breaking-{how}")
    with pytest.raises(Ended) as end:
        run_alone(bench.config, [f"method={{name: 'tests.test_exits:Breaking', how: {how}}}"], folder, world=Alone())
    words, found = end.value.args
    assert found == code and "Traceback" not in words
    first, *trace, saved = words.splitlines()
    assert first.startswith("fedmpi: rank 0 of 1 on ")
    own = ": ValueError: as it was told; repair it (--resume then needs --accept-changed-code)"
    assert first.endswith(own if how == "Exception" else "as it was told") and trace == (
        [f"(traceback in {folder / 'log.txt'})"] if how == "Exception" else [])
    kept = folder / "checkpoints" / "round-000001.h5"
    assert saved == f"saved so far: {kept}; continue with --out {folder} --resume auto"
    log = (folder / "log.txt").read_text()
    assert "as it was told" in log and ("Traceback" in log) is (how == "Exception")
    # The next start need not wait.
    assert not (folder / "lock").exists()


def test_a_run_that_fails_before_anything_was_saved_names_no_checkpoint(bench):
    with pytest.raises(Ended) as end:
        run_alone(bench.config, ["method=tests.test_exits:Breaking", "checkpoint.every=0"], bench.out("nothing"),
                  world=Alone())
    assert "saved so far" not in end.value.args[0] and end.value.args[0].endswith("log.txt)")


@dataclass(frozen=True)
class Losing(FedAvg):
    """FedAvg whose federation file loses its end in the second round."""
    file: str = ""

    def server(self, shared, up, who):
        if who.round == 1:
            os.truncate(self.file, os.path.getsize(self.file) // 2)
        return super().server(shared, up, who)


def test_a_read_error_after_the_first_round_is_a_failure_and_no_bad_input(bench):
    """A job script starts such a run again, and lets one that was refused be."""
    from fedmpi.config.schema import load_config
    from fedmpi.data.federation import prepare_federation
    config = load_config(bench.config, words := [f"data.cache={bench.out('losing-cache')}"])
    file = prepare_federation(config.data, config.seed)
    # samples are read anew in every round
    words += [f"method={{name: 'tests.test_exits:Losing', file: {file}}}", "state.memory=0.000001"]
    with pytest.raises(Ended) as end:
        run_alone(bench.config, words, bench.out("losing"), world=Alone())
    assert end.value.args[1] == 1 and f"{file}: the federation cannot be used" in end.value.args[0]


def test_what_is_refused_leaves_no_folder_and_one_line(bench, capsys):
    world = Alone()
    assert run_alone(bench.config, ["rounds=0"], bench.out("zero"), world=world) == 2
    out, error = capsys.readouterr()
    assert (out, error) == ("", "fedmpi: command line: rounds = 0: should be greater than or equal to 1\n")
    assert not bench.out("zero").exists()


def test_evaluation_on_validation_needs_a_validation_part(bench, capsys):
    words, out = ["evaluate.on=validation", "data.split=[.7, 0, .3]"], str(bench.out("unvalidated"))
    assert run_alone(bench.config, words, out, world=Alone()) == 2
    assert capsys.readouterr().err == ("fedmpi: evaluate.on = validation, but data.split has no validation share: give "
                                       "three shares\n")
    # The folder that the run had claimed is gone, too.
    assert not bench.out("unvalidated").exists()


@pytest.fixture
def mains(monkeypatch):
    """Call main() in a world of this process; return its code and the world."""
    before = {number: signal.getsignal(number) for number in stop_signals.SIGNALS}

    def mains(*words):
        world = Alone()
        monkeypatch.setattr(session, "open_world", lambda: world)
        return run_command(RunRequest(*words)), world
    yield mains
    for number, handler in before.items():
        signal.signal(number, handler)


def test_main_finishes_stops_and_refuses_with_its_codes(bench, mains, capsys):
    words = (bench.config, ["method=fedavg", "data.clients=4"], str(bench.out("main")), None)
    code, world = mains(*words)
    assert (code, world.closed) == (0, 0)
    assert bench.result("main")["rounds"] == 3
    code, world = mains(*words)
    assert (code, world.closed) == (2, 2) and "already holds a run" in capsys.readouterr().err
    words = (bench.config, ["method=tests.test_exits:Asking"], str(bench.out("asking")), None)
    code, world = mains(*words)
    assert (code, world.closed) == (75, 75)
    assert [path.name for path in bench.saved("asking")][-1] == "round-000002.h5"
    code, world = mains(*words[:3], "auto")
    assert (code, world.closed) == (0, 0) and bench.result("asking")["rounds"] == 3


@dataclass(frozen=True)
class Asking(FedAvg):
    """FedAvg that is asked to stop in the second round."""

    def server(self, shared, up, who):
        if who.round == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().server(shared, up, who)


def test_without_a_world_one_process_speaks(mains, monkeypatch, capsys):
    def none():
        raise BadInput("no launcher")
    for speaks, said in ((True, "fedmpi: no launcher\n"), (False, "")):
        monkeypatch.setattr(session, "open_world", none)
        monkeypatch.setattr(session, "reports_refusal", lambda answer=speaks: answer)
        assert run_command(RunRequest("c.yaml")) == 2 and capsys.readouterr().err == said


def test_a_worker_logs_for_a_rank_0_that_hangs_only_where_it_sees_the_log(tmp_path):
    assert session.note_for_rank_0(tmp_path, "fedmpi: no") == "fedmpi: no" and not [*tmp_path.iterdir()]
    log, saved = tmp_path / "log.txt", tmp_path / "checkpoints"
    log.write_text("before\n")
    saved.mkdir()
    for name in ("round-000009.h5", "round-000010.h5"):
        (saved / name).touch()
    (saved / "round-000011.h5").mkdir()
    said = session.note_for_rank_0(tmp_path, "fedmpi: no\nlook")
    assert said == (f"fedmpi: no\nlook\nsaved so far: {saved}/round-000010.h5; continue with --out {tmp_path} --resume "
                    "auto")
    lines = log.read_text().splitlines()
    assert lines[0] == "before" and [line[19:] for line in lines[1:]] == ["  fedmpi: no", "  look"]
    said = session.note_for_rank_0(tmp_path, "fedmpi: no\nTraceback (most recent call last):\n  x")
    assert said.startswith(f"fedmpi: no\n(traceback in {log})\nsaved so far: ") and "Traceback (" in log.read_text()
