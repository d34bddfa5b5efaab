"""The doctor reports no problem on a sound machine, and names the problems of others."""
from __future__ import annotations

import errno
import hashlib
import os
import sys

import numpy as np
import pytest

from fedmpi.comm.transport import Solo
from fedmpi.commands import doctor, doctor_checks
from tests import forked

pytestmark = pytest.mark.slow("jobs of several ranks")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Be a single process without an MPI library, with a wide terminal."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def lines(capsys):
    """Make `lines()` return what was printed, by the first word of each line."""
    return lambda: {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}


def rank(**facts) -> dict:
    return {"host": "n1", "device": "cpu", "device_problem": "", "cores": [0, 1], "threads": 1, "versions": "fedmpi 1",
            **facts}


def test_one_process_without_an_mpi_library_is_well(tmp_path, lines):
    assert doctor.doctor_command(str(tmp_path)) == 0
    said = lines()
    assert "1 rank, MPI library none" in said["launch"] and said["all"] == "all is well"
    for check in ("versions", "launch", "hosts", "folder", "disk", "data"):
        assert said[check].endswith(": ok")
    assert "digits" in said["data"]
    assert not list(tmp_path.iterdir())


def test_three_ranks_are_well(tmp_path):
    job = forked.command(3, "doctor", "--folder", tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    out = " ".join(job.stdout.split())
    for fact in ("3 ranks, MPI library", "CUDA-aware: ", "1 host: ok", " 0-2 cpu",
                 "a file of rank 0 read by the others: ok", "broadcast of 4 MiB float32", "reduce of 4 MiB int64",
                 "all is well"):
        assert fact in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("aware, words", [(True, "yes"), (False, "no"), (None, "it does not tell")])
def test_the_library_says_whether_it_takes_gpu_memory(aware, words):
    world = Solo()
    world.library, world.cuda_aware = "Some MPI 1.0", aware
    assert f"MPI library Some MPI 1.0, CUDA-aware: {words}: ok" in str([*doctor.check_ranks(world, [rank()])][1])


def test_nobody_has_to_read_all_of_it(tmp_path):
    """In `fedmpi doctor | head -1` the reader leaves after the first line."""
    out, into = os.pipe()
    pid = os.fork()
    # the process that prints
    if not pid:
        os.close(out)
        os.dup2(into, 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        os._exit(doctor.doctor_command(str(tmp_path)))
    os.close(into)
    with os.fdopen(out) as reader:
        first = reader.readline()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and first.startswith("versions ")


def test_packages_that_may_be_missing():
    assert doctor.read_package_version("numpy",
                                       "none") == np.__version__ and doctor.read_package_version("no-such-package",
                                                                                                 "none") == "none"


def test_a_folder_that_cannot_be_written_is_a_problem_on_all_ranks(tmp_path):
    (tmp_path / "file").touch()
    job = forked.command(2, "doctor", "--folder", tmp_path / "file" / "runs")
    assert job.returncode == 1
    assert "problem: nothing can be written there (Not a directory); run where" in " ".join(job.stdout.split())
    assert "1 problem" in job.stdout and "Traceback" not in job.stdout + job.stderr


def test_a_folder_that_does_not_exist_yet_is_not_made(tmp_path, lines):
    assert doctor.doctor_command(str(tmp_path / "runs" / "new")) == 0
    assert "which does not exist yet" in lines()["folder"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failure, words", [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
    (OSError(errno.EIO, os.strerror(errno.EIO)), "Input/output error")])
def test_a_disk_that_fails_is_a_problem(tmp_path, lines, monkeypatch, failure, words):
    def sync(path):
        raise failure
    monkeypatch.setattr(doctor_checks, "sync", sync)
    assert doctor.doctor_command(str(tmp_path)) == 1
    assert f"problem: an HDF5 file cannot be written there ({words}); free some space" in lines()["folder"]
    assert not list(tmp_path.iterdir())


def test_a_disk_that_forgets_is_a_problem(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(doctor_checks, "is_intact", lambda path: False)
    assert doctor.doctor_command(str(tmp_path)) == 1
    assert "the disk does not give back what was written" in lines()["folder"]


def test_a_full_disk_is_a_problem(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 70)
    assert doctor.doctor_command(str(tmp_path)) == 1
    assert "problem: a full disk ends a run; free some space" in lines()["disk"]


def test_a_launcher_of_another_library_is_a_problem_that_one_process_tells(tmp_path, lines, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    for number, told in (("0", True), ("1", False)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", number)
        assert doctor.doctor_command(str(tmp_path)) == 1
        assert ("problem: Open MPI's mpirun started 3 processes" in lines().get("launch", "")) == told


def test_an_unforeseen_error_ends_the_job(tmp_path, monkeypatch):
    class Ended(Exception):
        """Takes the place of the end of the process."""

    def fail(self, message, code, tell=True):
        raise Ended(message, code)
    monkeypatch.setattr(doctor, "check_disk", lambda world, folder: 1 / 0)
    monkeypatch.setattr(Solo, "fail", fail)
    with pytest.raises(Ended, match="rank 0 of 1.*ZeroDivisionError"):
        doctor.doctor_command(str(tmp_path))


def test_ranks_with_other_versions_are_named():
    ranks = [rank(), rank(host="n2", versions="fedmpi 2"), rank(host="n3", versions="fedmpi 3")]
    versions, launched, hosts = doctor.check_ranks(Solo(), ranks)
    assert versions == ("versions", "fedmpi 1", "rank 1 on n2 has fedmpi 2; install the same on all nodes", "")
    assert launched == ("launch", "1 rank, MPI library none (one process)", "", "") and hosts.facts == "3 hosts"
    alike = [*doctor.check_ranks(Solo(), [rank(), rank()])]
    assert [check.problem for check in alike] == ["", "", ""] and alike[2].facts == "1 host"
    world = Solo()
    world.size, world.library, world.thread_level, world.cuda_aware = 2, "An  MPI\n4", "multiple", False
    assert [*doctor.check_ranks(world, alike and [rank()])][1].facts == (
        "2 ranks, MPI library An MPI 4, thread level multiple, CUDA-aware: no")
    world.rank = 1
    assert [*doctor.check_ranks(world, [])] == []


@pytest.mark.parametrize("cores, ill", [
    ([[0, 1]] * 3, False), ([[0], [0], [1]], False), ([[1], [0], [0]], True), ([[0]], False), ([[0], [0]], False)])
def test_working_ranks_bound_to_one_core_are_a_problem(cores, ill, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert ("bound to core" in doctor.find_devices_problem([rank(cores=c) for c in cores])) == ill


def test_a_broken_device_is_a_problem():
    assert "rank 1 on n1: no driver" in doctor.find_devices_problem([rank(), rank(device_problem="no driver")])


def test_a_device_that_cannot_compute_is_found(monkeypatch):
    import torch

    def ones(*shape, device):
        raise RuntimeError("CUDA error: no kernel image is available\nand twenty lines more")
    monkeypatch.setattr(torch, "ones", ones)
    assert doctor.describe_device(torch.device("cuda:1")) == (
        "cuda:1", "CUDA error: no kernel image is available; check nvidia-smi on this host, or set device=cpu")


def test_hosts_are_listed_with_their_ranks_and_devices():
    ranks = [rank(), *(rank(device=f"cuda:{i} H") for i in range(2)), rank(host="n2"), rank(host="n2"), rank()]
    rows = [" ".join(line.split()) for line in doctor.format_hosts(ranks).splitlines()[2:]]
    assert rows == ["n1 0 5 cpu 2 1", "n1 1 cuda:0 H 2 1", "n1 2 cuda:1 H 2 1", "n2 3-4 cpu 2 1"]


@pytest.mark.parametrize("numbers, text", [([0], "0"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0 2-3 7"), ([], "")])
def test_spans(numbers, text):
    assert doctor.format_spans(numbers) == text


def fill(root, *paths: str, text: str = "x") -> None:
    """Write files below a folder."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize("name, files, found", [
    ("digits", "", True), ("mnist", "", False), ("arrays", "", False), ("tiny_imagenet", "", False),
    ("tiny_imagenet", "tiny-imagenet-200/train/a tiny-imagenet-200/val/images/b", False),
    ("tiny_imagenet", "tiny-imagenet-200/train/a tiny-imagenet-200/val/images/b tiny-imagenet-200/val/"
     "val_annotations.txt", True), ("ag_news", "ag_news_csv/train.csv", False),
    ("ag_news", "ag_news_csv/test.csv ag_news_csv/train.csv", True), ("femnist", "", False),
    ("femnist", "femnist/all_data/all_data_0.json", True), ("shakespeare", "shakespeare/train/a.json", True),
    # what a download that has failed leaves
    ("mnist", "MNIST/raw/train-images-idx3-ubyte.gz", False), ("mnist", "mnist.npz", False),
    ("cifar10", "cifar-10-python.tar.gz", False), ("cifar100", "cifar-100-python/train", False),
    ("pathmnist", "pathmnist.npz", False)])
def test_data_sets_that_need_no_network(tmp_path, name, files, found):
    fill(tmp_path, *files.split())
    assert doctor.is_present(name, tmp_path) == found
    # An empty file holds no data.
    fill(tmp_path, *files.split(), text="")
    assert doctor.is_present(name, tmp_path) == (found and not files)


def test_an_npz_with_all_arrays_is_a_data_set(tmp_path):
    arrays = {"x_train": np.zeros((3, 4)), "y_train": np.arange(3)}
    np.savez(tmp_path / "mnist.npz", **arrays)
    np.savez(tmp_path / "cifar10.npz", x_train=arrays["x_train"])
    assert doctor.is_present("mnist", tmp_path) and not doctor.is_present("cifar10", tmp_path)
    (tmp_path / "mnist.npz").write_bytes((tmp_path / "mnist.npz").read_bytes()[:-40])
    assert not doctor.is_present("mnist", tmp_path)


@pytest.fixture
def mnist(tmp_path):
    """Four small files in the place of torchvision's; return their folder."""
    for part in ("train", "t10k"):
        for what, shape in (("images-idx3", (2, 4, 4)), ("labels-idx1", (2,))):
            head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            (tmp_path / "MNIST" / "raw").mkdir(parents=True, exist_ok=True)
            (tmp_path / "MNIST" / "raw" / f"{part}-{what}-ubyte").write_bytes(head + bytes(int(np.prod(shape))))
    return tmp_path / "MNIST" / "raw"


def test_unpacked_files_of_a_download_are_read(tmp_path, mnist):
    assert doctor.is_present("mnist", tmp_path) and not doctor.is_present("fashion_mnist", tmp_path)
    path = mnist / "t10k-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not doctor.is_present("mnist", tmp_path)
    path.write_bytes(whole)
    (mnist / "train-labels-idx1-ubyte").unlink()
    assert not doctor.is_present("mnist", tmp_path)


def test_whole_archives_need_no_download(tmp_path, mnist, monkeypatch):
    from torchvision.datasets import MNIST
    archives = [mnist / f"{path.name}.gz" for path in mnist.iterdir()]
    fill(mnist, *(path.name for path in archives))
    monkeypatch.setattr(MNIST, "resources", [(path.name, hashlib.md5(b"x").hexdigest()) for path in archives])
    archives[0].with_suffix("").unlink()
    assert doctor.is_present("mnist", tmp_path)
    archives[1].write_text("cut off")
    assert not doctor.is_present("mnist", tmp_path)
    # Archives are not unpacked again over files that are there, damaged or not.
    archives[1].write_text("x")
    archives[0].with_suffix("").write_text("damaged")
    assert not doctor.is_present("mnist", tmp_path)


def test_a_trial_file_is_known_by_its_contents(tmp_path):
    path = tmp_path / "trial.h5"
    assert not doctor_checks.is_intact(path)
    whole, flush = doctor_checks.write_trial_file(path)
    assert doctor_checks.is_intact(path) and 0 < flush < whole
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert not doctor_checks.is_intact(path)
    path.write_bytes(b"not HDF5")
    assert not doctor_checks.is_intact(path)


def test_collectives_are_repeated_only_while_they_are_quick(monkeypatch):
    assert doctor_checks.measure_collectives(Solo())[2]
    slow = []
    monkeypatch.setattr(doctor_checks, "time_collective", lambda world, act: slow.append(5.) or 5.)
    assert doctor_checks.measure_median_seconds(Solo(), None) == 5. and len(slow) == 1


def test_a_collective_takes_the_time_after_all_have_come(monkeypatch):
    times, calls = iter([100., 103.5]), []
    monkeypatch.setattr(doctor_checks.time, "perf_counter", lambda: calls.append("time") or next(times))
    world = Solo()
    world.barrier = lambda: calls.append("barrier")
    assert doctor_checks.time_collective(world, lambda: calls.append("act")) == 3.5
    assert calls == ["barrier", "time", "act", "time"]


def test_wrong_sums_are_noticed():
    class Wrong(Solo):
        def reduce(self, buffer):
            return buffer + 1
    assert not doctor_checks.measure_collectives(Wrong())[2]
