"""Runs that are killed, asked to stop, or fail: they end, say why once, and can be continued anywhere."""
from __future__ import annotations

import re
import sys
import time

import pytest

from fedmpi.storage.lock import is_run_alive
from fedmpi.storage.run_status import read_outcome
from tests import launch
from tests.runs import gone, kill, wait_for

pytestmark = pytest.mark.slow("jobs that are killed, hang or wait")

LONG = "rounds=100000"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")


def continued(bench, name: str, ranks: int) -> str:
    """Continue a run for two rounds more than it has saved, on another number of ranks; returns its digest."""
    rounds = int(bench.saved(name)[-1].stem.removeprefix("round-")) + 2
    done = bench.run(ranks, name, f"rounds={rounds}", "--resume", "auto")
    assert done.returncode == 0, done.stderr
    assert f"continuing after round {rounds - 2}" in done.stdout
    assert [line["round"] for line in bench.metrics(name)] == list(range(1, rounds + 1))
    assert bench.result(name)["digest"] == bench.straight(rounds)
    return bench.result(name)["digest"]


@linux
@pytest.mark.parametrize("rank, ranks_then", [(2, 1), (0, 2)], ids=["worker", "server"])
def test_a_killed_rank_ends_the_job_and_nothing_is_lost(bench, warm, rank, ranks_then):
    job = bench.start(3, f"killed-{rank}", LONG, python=warm)
    wait_for(job, "round      4/")
    kill(job, rank)
    assert launch.finish(job).returncode not in (0, 75)
    assert gone(job)
    found = read_outcome(bench.out(f"killed-{rank}"))
    # The launcher ends rank 0 as it likes if a worker was killed.
    assert found.state == "killed" and "that process is gone; it was killed without a word" in found.said
    continued(bench, f"killed-{rank}", ranks_then)


def test_asked_to_stop_it_saves_and_says_so(bench, warm):
    job = bench.start(2, "stopped", LONG, python=warm)
    wait_for(job, "round      3/")
    job.send_signal(launch.choose_stop_signal())
    done = launch.finish(job)
    assert done.returncode == 75 and done.stdout.splitlines()[-1].startswith("asked to stop: saved after round")
    found = read_outcome(bench.out("stopped"))
    assert (found.state, found.said) == ("unfinished", done.stdout.splitlines()[-1])
    continued(bench, "stopped", 3)


FAILING = '''
from dataclasses import dataclass

from fedmpi.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Failing(FedAvg):
    def client(self, shared, mine, data):
        if data.client == 5 and data.local.round == 1:
            raise ValueError("this client cannot count")
        return super().client(shared, mine, data)
'''


def test_a_failing_worker_is_named_once(bench, warm):
    bench.out("failing.py").write_text(FAILING)
    done = bench.mpirun(2, "failing", "method=failing:Failing", "train.participation=1", "engine=loop",
                        python=warm)
    assert done.returncode not in (0, 2, 75)
    message = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert len(message) == 1 and "Traceback" not in done.stderr + done.stdout
    assert "client 5, round 2" in message[0] and "ValueError: this client cannot count" in message[0]
    assert "(rank 1 of 2" in message[0]
    found = read_outcome(bench.out("failing"))
    assert (found.state, found.said) == ("failed", message[0])
    log = (bench.out("failing") / "log.txt").read_text()
    assert "Traceback" in log and "cannot count" in log
    # The message names the checkpoint to continue from.
    assert bench.saved("failing") and str(bench.saved("failing")[-1]) in done.stderr


BUSY = FAILING.replace("from dataclasses", "import time\nfrom dataclasses").replace("Failing", "Busy").replace(
    "        if data.client == 5", """        from mpi4py import MPI
        if data.local.round == 1 and MPI.COMM_WORLD.rank == 0:
            time.sleep(3600)
        if MPI.COMM_WORLD.rank == 1""")


def test_a_worker_that_fails_ends_the_job_of_a_rank_0_that_trains(bench, warm):
    """Rank 0 hosts clients, and one of its own takes an hour: its heartbeat finds what the worker says."""
    bench.out("busy.py").write_text(BUSY)
    done = bench.mpirun(2, "busy", "method=busy:Busy", "train.participation=1", "engine=loop",
                        "server.hosts_clients=true", python=warm)
    assert done.returncode not in (0, 2, 75)
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert ", round 2 (rank 1 of 2" in message and "ValueError: this client cannot count" in message
    found = read_outcome(bench.out("busy"))
    assert (found.state, found.said) == ("failed", message)
    assert "Traceback" in (bench.out("busy") / "log.txt").read_text() and "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("ranks, method, field", [
    (1, "fedavg", "w"), (2, "{name: fedmhc, lam: 0}", "theta"), (3, "fedavg", "w")])
def test_an_update_that_is_not_finite_names_the_client(bench, ranks, method, field):
    done = bench.run(ranks, f"wild-{ranks}", f"method={method}", "train.lr=1e9")
    assert done.returncode not in (0, 75)
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert "client " in message and "round 1" in message and "lower train.lr" in message
    assert f"update of {field} has" in message and "faults.bad_update=skip" in message
    # The rank is the one that hosts the client.
    assert any(f"(rank {r} of {ranks}" in message for r in range(1, ranks)) or ranks == 1
    assert "Traceback" not in done.stderr + done.stdout


STOPPING = '''
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from fedmpi.methods.fedmhc import FedMHC


@dataclass(frozen=True)
class Stopping(FedMHC):
    """In the third round the process that trains client 0 is stopped by the system, once."""

    def client(self, shared, mine, data):
        if data.client == 0 and data.local.round == 2 and not Path("hung-once").exists():
            Path("hung-once").touch()
            time.sleep(2)      # long enough to be told
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().client(shared, mine, data)
'''


@linux
def test_a_rank_that_hangs_is_named_and_nothing_is_lost(bench, warm):
    bench.out("stopping.py").write_text(STOPPING)
    words = ("method=stopping:Stopping", "method.M=3", "train.participation=1", "engine=loop", "rounds=4")
    done = bench.mpirun(3, "hung", *words, "comm.timeout=6", python=warm)
    assert done.returncode not in (0, 2, 75)
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert re.match(r"fedmpi: rank [12] of 3 on \S+ made no progress for 6 s \(comm.timeout\) and gave its last sign "
                    r"of life \d+ s ago; last known: client 0, round 3, order train; rank 0 waits in round \d, order ",
                    message)
    assert str(bench.saved("hung")[-1]) in done.stderr and gone(bench.jobs[-1])
    again = bench.run(1, "hung", *words, "--resume", "auto")
    assert again.returncode == 0 and "continuing after round 2" in again.stdout, again.stderr
    assert bench.lead("unhung", "train.participation=1", "engine=loop", "rounds=4") == 0
    assert bench.result("hung")["digest"] == bench.result("unhung")["digest"]


MUTE = '''
import os
import signal
from dataclasses import dataclass

from fedmpi.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Mute(FedAvg):
    """The server is stopped by the system in the second round."""

    def server(self, shared, up, who):
        if who.round == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().server(shared, up, who)
'''


@linux
def test_a_server_that_hangs_is_named_by_a_worker(bench, warm):
    bench.out("mute.py").write_text(MUTE)
    done = bench.mpirun(2, "mute", "method=mute:Mute", LONG, "comm.timeout=6", python=warm)
    assert done.returncode not in (0, 2, 75) and gone(bench.jobs[-1])
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert message.startswith("fedmpi: rank 0 of 2 on ") and "; rank 1 " in message
    folder = bench.out("mute").resolve()
    # A process that ends loses its environment, by which `gone` finds it, a little earlier.
    for _ in range(100):
        if is_run_alive(folder):
            time.sleep(.1)
    found = read_outcome(folder)
    assert (found.state, found.said) == ("failed", message)
    assert (f"\nsaved so far: {folder}/checkpoints/round-000001.h5; continue with --out {folder} --resume auto\n"
            in done.stderr)


SLOW = '''
import os
import signal
from dataclasses import dataclass

from fedmpi.methods.fedmhc import FedMHC


@dataclass(frozen=True)
class Slow(FedMHC):
    """In the third round of the first start the processes that train clients 0 and 1 are asked to stop."""

    def client(self, shared, mine, data):
        if data.client < 2 and data.local.round == 2 and not os.path.exists("asked"):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().client(shared, mine, data)
'''


ASKED_AT_RANK_0 = '''
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from fedmpi.methods.fedavg import FedAvg


@dataclass(frozen=True)
class AskedAtRank0(FedAvg):
    """In the third round client 0 asks rank 0 to stop and trains for half a minute; rank 0 hosts no client."""

    def client(self, shared, mine, data):
        if data.client == 0 and data.local.round == 2:
            os.kill(int(Path("pid").read_text()), signal.SIGUSR1)
            time.sleep(30)
        return super().client(shared, mine, data)

    def server(self, shared, up, who):
        if who.round == 0:
            Path("pid").write_text(str(os.getpid()))
        return super().server(shared, up, who)
'''


@pytest.mark.parametrize("skips", ["stop", "skip"])
def test_rank_0_gives_up_a_round_for_which_it_waits_too_long(bench, skips):
    bench.out("asked_at_0.py").write_text(ASKED_AT_RANK_0)
    name = f"asked-{skips}"
    done = bench.run(3, name, "method=asked_at_0:AskedAtRank0", "train.participation=1", "engine=loop",
                     f"faults.bad_update={skips}", "checkpoint.grace=0")
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert done.returncode == 75 and message.startswith("fedmpi: rank 0 of 3 on ") and "Traceback" not in done.stderr
    assert message.endswith(": asked to stop more than 0 s ago (checkpoint.grace): the round is given up")
    assert bench.saved(name)[-1].name == "round-000002.h5"
    found = read_outcome(bench.out(name))
    assert (found.state, found.said) == ("unfinished", message)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_round_that_would_take_too_long_is_given_up(bench, ranks):
    bench.out("slow.py").write_text(SLOW)
    name, asked = f"slow-{ranks}", bench.out("asked")
    asked.unlink(missing_ok=True)
    words = ("method=slow:Slow", "method.M=3", "train.participation=1", "engine=loop")
    done = bench.run(ranks, name, *words, "checkpoint.grace=0")
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert done.returncode == 75 and "asked to stop more than 0 s ago" in message and ", round 3 (rank " in message
    assert [path.name for path in bench.saved(name)][-1] == "round-000002.h5" and "Traceback" not in done.stderr
    found = read_outcome(bench.out(name))
    assert (found.state, found.said) == ("unfinished", message)
    asked.touch()
    again = bench.run(1, name, *words, "--resume", "auto")
    assert again.returncode == 0 and "continuing after round 2" in again.stdout, again.stderr
    assert bench.lead("whole", "train.participation=1", "engine=loop", resume="auto") == 0
    assert bench.result(name)["digest"] == bench.result("whole")["digest"]
