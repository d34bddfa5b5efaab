"""Disks that fill up, turn read-only or vanish in the middle of a run: it stops or goes on, as it was configured."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmpi.__main__ import main
from fedmpi.methods.fedavg import FedAvg
from tests import forked

pytestmark = pytest.mark.slow("runs on a full disk, and their continuations")

FULL = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
# BAD are the rounds, counted from 0, after which nothing can be written.
ROUNDS, BAD = 6, (2, 3)


def mount(*words) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "ballast", "ab", buffering=0) as file:
        while True:
            file.write(bytes(512))


def forbid(disk: Path) -> None:
    """Cover a disk with a read-only view of itself, because it cannot be remounted while the run's log is open."""
    mount("--bind", disk, disk)
    mount("-o", "remount,bind,ro", disk)


def uncover(disk: Path) -> None:
    subprocess.run(["umount", "-l", disk], check=True)


# name -> (what happens to the disk, how it is mended, how the run names the error)
FAULTS = {
    "full": (fill, lambda disk: (disk / "ballast").unlink(missing_ok=True), "No space left on device"),
    "read-only": (forbid, lambda disk: os.access(disk, os.W_OK) or uncover(disk), "Read-only file system"),
    "gone": (lambda disk: disk.rename(f"{disk}-away"),
             lambda disk: Path(f"{disk}-away").exists() and Path(f"{disk}-away").rename(disk), "is gone")}


@dataclass(frozen=True)
class Weather(FedAvg):
    """FedAvg on a machine whose disk fails once, in the first of the BAD rounds, and is mended after the last."""
    fault: str = "full"
    disk: str = ""
    # True: the run is also asked to stop in that round.
    asked: bool = False

    def client(self, shared, mine, data):
        harm, mend, _ = FAULTS[self.fault]
        struck = Path(f"{self.disk}-struck")
        if data.client == 0 and data.local.round == BAD[0] and not struck.exists():
            struck.touch()
            harm(Path(self.disk))
            if self.asked:
                os.kill(os.getpid(), signal.SIGTERM)
        elif data.client == 0 and data.local.round == BAD[-1] + 1:
            mend(Path(self.disk))
        return super().client(shared, mine, data)


@dataclass(frozen=True)
class Expired(FedAvg):
    """FedAvg whose server may not enter a folder any more from the second round on, as after the end of a ticket."""
    folder: str = ""

    def server(self, shared, up, who):
        struck = Path(f"{self.folder}-struck")
        if who.round == 1 and not struck.exists():
            struck.touch()
            Path(self.folder).chmod(0)
            if os.geteuid() == 0:
                # root may enter every folder, and nobody may not
                os.seteuid(65534)
        return super().server(shared, up, who)


@pytest.fixture(params=FAULTS)
def trouble(request, tmp_path):
    """A fault, and the run folder that it affects."""
    if request.param == "gone":
        yield request.param, tmp_path / "run"
        return
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", disk)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk can be mounted by root only, and not in every container: {error}")
    yield request.param, disk
    while disk.is_mount():
        uncover(disk)


def settings(fault: str, folder: Path, failure: str, **more) -> list[str]:
    method = {"name": "tests.server.test_on_disk_error:Weather", "fault": fault, "disk": str(folder)} | more
    return [f"method={method}", f"rounds={ROUNDS}", "engine=loop", "train.participation=1", "checkpoint.keep=9",
            f"checkpoint.failure={failure}"]


@pytest.fixture(scope="module")
def expected(bench):
    """The digest of the same run on a disk that never fails."""
    assert bench.lead("fair", f"rounds={ROUNDS}", "engine=loop", "train.participation=1", "method=fedavg") == 0
    return bench.result("fair")["digest"]


def rounds_saved(bench, folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("round-")) for path in bench.saved(folder)]


def test_told_to_continue_it_warns_and_catches_up(bench, trouble, expected):
    fault, folder = trouble
    done = bench.run(1, folder, *settings(fault, folder, "continue"))
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    assert {line.split(":")[1] for line in warnings[:-1]} == {" round 3", " round 4"}
    assert all(FAULTS[fault][2] in line and str(folder) in line for line in warnings[:-1])
    assert f"refused a checkpoint or a measure {len(warnings) - 1} times, last after round 4" in warnings[-1]
    assert rounds_saved(bench, folder) == [1, 2, 5, 6]
    assert [line["round"] for line in bench.metrics(folder)] == [*range(1, ROUNDS + 1)]
    assert bench.result(folder)["digest"] == expected
    assert bench.result(folder)["rounds_refused_by_disk"] == [3, 4]
    from fedmpi.storage.history import read_history
    assert read_history(folder / "history.h5")["round"].tolist() == [*range(1, ROUNDS + 1)]


@pytest.mark.parametrize("trouble, ranks", [("full", 2), ("gone", 1)], indirect=["trouble"])
def test_told_to_stop_it_stops_and_can_be_continued(bench, trouble, ranks, expected):
    fault, folder = trouble
    done = bench.run(ranks, folder, *settings(fault, folder, "stop"))
    assert done.returncode not in (0, 2, 75) and "Traceback" not in done.stderr + done.stdout
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert FAULTS[fault][2] in message and str(folder) in message
    FAULTS[fault][1](folder)
    assert rounds_saved(bench, folder) == [1, 2]
    done = bench.run(1, folder, *settings(fault, folder, "stop"), "--resume", "auto")
    assert done.returncode == 0, done.stderr
    assert bench.result(folder)["digest"] == expected and "rounds_refused_by_disk" not in bench.result(folder)


def test_asked_to_stop_it_never_claims_to_have_saved(bench, tmp_path):
    done = bench.run(1, tmp_path / "run", *settings("gone", tmp_path / "run", "continue", asked=True))
    assert done.returncode == 1 and "is gone" in done.stderr and "saved after" not in done.stdout


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_folder_that_may_not_be_entered_any_more_ends_all_ranks(bench, tmp_path, expected, ranks):
    around = tmp_path / "around"
    around.mkdir()
    method = {"name": "tests.server.test_on_disk_error:Expired", "folder": str(around)}
    words = [f"method={method}", f"rounds={ROUNDS}", "engine=loop", "train.participation=1"]
    try:
        done = bench.run(ranks, around / "run", *words)
    finally:
        around.chmod(0o755)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    (message,) = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
    assert f"{around / 'run'} cannot be written: Permission denied" in message
    done = bench.run(1, around / "run", *words, "--resume", "auto")
    assert done.returncode == 0 and bench.result(around / "run")["digest"] == expected, done.stderr


@FULL
@pytest.mark.parametrize("ranks, words, code", [
    (1, ["rounds=0"], 2), (3, ["rounds=0"], 2), (1, ["train.lr=1e30", "method.lam=0"], 1),
    (3, ["train.lr=1e30", "method.lam=0"], 1)])
def test_errors_that_cannot_be_printed_end_all_ranks_with_their_code(bench, ranks, words, code):
    out = bench.out(f"mute-{ranks}-{code}")

    def run():
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        sys.argv = ["fedmpi", "run", bench.config, *words, "--out", str(out)]
        main()
    done = forked.call(ranks, run, bench.folder)
    assert (done.returncode, done.stderr) == (code, "")
    assert code == 2 or "lower train.lr" in (out / "log.txt").read_text()


@FULL
def test_a_log_and_an_output_that_are_full_stop_nobody(bench, expected):
    bench.out("silent").mkdir()
    (bench.out("silent") / "log.txt").symlink_to("/dev/full")

    def run(*words):
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        sys.argv = ["fedmpi", "run", bench.config, f"rounds={ROUNDS}", "train.participation=1", "method=fedavg",
                    "--out", str(bench.out("silent")), *words]
        main()
    done = forked.call(1, run, bench.folder)
    assert (done.returncode, done.stderr) == (0, "") and bench.result("silent")["digest"] == expected
    for path in bench.saved("silent"):
        path.unlink()
    # The run is finished, which it says before it has a log.
    done = forked.call(1, lambda: run("--resume", "auto"), bench.folder)
    assert (done.returncode, done.stderr) == (0, "")
