"""Damaged files, full disks, and jobs that disturb each other."""
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.data.abandoned import read_machine_code
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.partitions import Iid, Pathological
from fedmpi.errors import BadInput
from fedmpi.storage import seal
from tests.storage.damages import damage_at_random


def flip(path, place, bits=0xff):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bits]))


def test_only_the_clients_slice_is_read(federation):
    """A reader of the first client's samples does not notice damage in the last client's; other readers do."""
    f = federation()
    place = f.file.places["x"]
    before = f.client(0)
    flip(f.path, place.offset + place.row_bytes * (int(f.edges[-1]) - 1))
    f = Federation(f.path)
    for old, new in zip(before, f.client(0), strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(BadInput, match="checksum of row 19 of x is wrong; delete it, it is made again") as error:
        f.client(19)
    assert str(f.path) in str(error.value)


# When the format was made, 200 were tried.
DAMAGES = 64


def test_no_damage_goes_unnoticed(federation, arrays, everything):
    f = federation(**arrays(np.arange(60) % 4), clients=4, partition=Pathological())

    def read():
        again = Federation(f.path)
        again.check()
        return everything(again)
    refused, changed = damage_at_random(f.path, DAMAGES, read)
    assert refused == changed > DAMAGES // 2


def rows_of(f: Federation, i: int) -> slice:
    """Return the position of a client's samples in the file, in bytes."""
    place = f.file.places["x"]
    return slice(*(place.offset + place.row_bytes * int(edge) for edge in f.edges[i:i + 2]))


@pytest.mark.parametrize("spoil", ["zeros", "ones", "swapped", "repeated"])
def test_samples_that_another_client_or_nobody_has_are_refused(federation, spoil):
    """HDF5's own checksums of chunks let all of these pass."""
    f = federation(partition=Iid())
    data = bytearray(f.path.read_bytes())
    one, other = rows_of(f, 3), rows_of(f, 4)
    size = min(one.stop - one.start, other.stop - other.start)
    one, other = slice(one.start, one.start + size), slice(other.start, other.start + size)
    first, second = data[one], data[other]
    data[one] = {"zeros": bytes(len(first)), "ones": b"\xff" * len(first)}.get(spoil, second)
    if spoil == "swapped":
        data[other] = first
    f.path.write_bytes(data)
    f = Federation(f.path)
    with pytest.raises(BadInput, match="the checksum of row 3 of x is wrong"):
        f.client(3)
    with pytest.raises(BadInput, match="the checksum of row 3 of x is wrong"):
        f.check()
    f.client(2)


def test_a_file_that_is_cut_off_or_changed_while_it_is_open_is_refused(federation):
    f = federation()
    flip(f.path, rows_of(f, 7).start)
    with pytest.raises(BadInput, match="the checksum of row 7 of x is wrong"):
        f.client(7)
    os.truncate(f.path, rows_of(f, 5).start + 1)
    with pytest.raises(BadInput, match="it is cut off"):
        f.client(5)


def test_a_wrong_fingerprint_is_found_when_all_is_read(federation):
    f = federation()
    with open_writable(f.path) as file:
        about = {key: f.file.about[key] for key in ("key", "fingerprint")}
        seal.put_seal(file, "federation", about | {"fingerprint": "f" * 64}, f.file.about["rows"])
    f = Federation(f.path)
    f.client(0)
    with pytest.raises(BadInput, match="its fingerprint is not that of its contents"):
        f.check()


def test_a_rank_that_sees_another_federation_is_refused(federation):
    one, other = federation(0), federation(1)
    assert Federation(one.path, one.fingerprint).fingerprint == one.fingerprint
    with pytest.raises(BadInput, match="this rank sees another federation than rank 0 does; set data.cache"):
        Federation(other.path, one.fingerprint)
    with pytest.raises(BadInput, match="no federation here that can be read, although rank 0 reads it; set data.cache"):
        Federation(other.path.with_name("none.h5"), one.fingerprint)


@pytest.mark.parametrize("name", ["y", "labels"])
def test_changed_labels_are_noticed_when_they_are_read(federation, name):
    f = federation()
    place = f.file.places[name]
    flip(f.path, place.offset)
    f = Federation(f.path)
    with pytest.raises(BadInput, match=f"the checksum of row 0 of {name} is wrong"):
        f.client(0) if name == "y" else f.label_counts


@pytest.mark.parametrize("name", ["counts", "groups", "json/facts", "digest/x"])
def test_changed_small_data_sets_are_noticed_on_opening(federation, name):
    f = federation(partition=Pathological())
    flip(f.path, f.file.places[name].offset)
    with pytest.raises(BadInput, match="its checksum is wrong"):
        Federation(f.path)


@pytest.mark.parametrize("share", [0, .01, .5, .99])
def test_a_truncated_file_is_noticed(federation, share):
    f = federation()
    os.truncate(f.path, int(share * f.path.stat().st_size))
    with pytest.raises(BadInput, match="the federation cannot be used"):
        Federation(f.path)


def test_newer_foreign_and_missing_files_are_refused(federation, tmp_path):
    f = federation()
    with pytest.MonkeyPatch.context() as future, open_writable(f.path) as file:
        future.setattr(seal, "SEAL_FORMAT", 3)
        seal.put_seal(file, "federation", {}, f.file.about["rows"])
    with pytest.raises(BadInput, match="has format 3, written by fedmpi .*, and this fedmpi reads formats up to 2"):
        Federation(f.path)
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(BadInput, match="never completed"):
        Federation(tmp_path / "foreign.h5")
    with pytest.raises(BadInput, match="there is no federation here"):
        Federation(tmp_path / "none.h5")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_refused_without_waiting(tmp_path, make):
    make(tmp_path / "f.h5")
    with pytest.raises(BadInput, match="f.h5: the federation cannot be used: it is (a folder|not a regular file)"):
        Federation(tmp_path / "f.h5")


def open_writable(path) -> io.FileIO:
    return io.FileIO(path, "r+")


def cut_short(path):
    os.truncate(path, 1000)


def emptied(path):
    path.write_bytes(b"")


def unsealed(path):
    flip(path, 0)


def altered(path):
    # This hits HDF5's own entries or a data set that every rank reads.
    flip(path, path.stat().st_size - 9)


@pytest.mark.parametrize("spoil", [cut_short, emptied, unsealed, altered])
def test_prepare_makes_a_damaged_federation_again(federation, settings, everything, spoil):
    f = federation()
    good = everything(f)
    spoil(f.path)
    assert everything(Federation(prepare_federation(settings(), 0))) == good


PREPARE = """
import sys, time
from fedmpi.config import schema
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.partitions import Dirichlet
data = schema.Data(cache=sys.argv[1], partition=Dirichlet(.5))
time.sleep(max(0, float(sys.argv[2]) - time.time()))
for seed in range(3):
    f = Federation(prepare_federation(data, seed))
    print(f.fingerprint, sum(len(f.client(i).y_train) for i in range(20)))
"""


def test_jobs_that_prepare_at_the_same_time_agree(settings, federation):
    start = str(time.time() + 1)
    jobs = [subprocess.Popen([sys.executable, "-c", PREPARE, settings().cache, start], text=True,
                             stdout=subprocess.PIPE) for _ in range(4)]
    outputs = [job.communicate(timeout=60)[0] for job in jobs]
    expected = "".join(f"{f.fingerprint} {f.sizes.sum()}\n" for f in map(federation, range(3)))
    assert outputs == [expected] * 4
    assert len(os.listdir(settings().cache)) == 3


def test_a_cache_that_cannot_be_written_is_bad_input(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="set data.cache to a folder"):
        prepare_federation(settings(cache=str(tmp_path / "file" / "cache")), 0)


FULL = """
import resource, sys
from fedmpi.config import schema
from fedmpi.data.federation import prepare_federation
from fedmpi.data.partitions import Iid
from fedmpi.errors import BadInput
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    prepare_federation(schema.Data(cache=sys.argv[1], partition=Iid()), 0)
except BadInput as error:
    print(error)
"""


def test_a_full_disk_is_bad_input_and_leaves_nothing_behind(settings):
    job = subprocess.run([sys.executable, "-c", FULL, settings().cache, "100000"], text=True, capture_output=True)
    assert job.returncode == 0 and job.stderr == ""
    assert "File too large; set data.cache" in job.stdout and os.listdir(settings().cache) == []


def leave(folder, name: str, age: float = 0):
    path = folder / name
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_what_killed_preparations_left_is_removed_and_nothing_else(settings):
    """Files of this machine are removed if their process is gone, those of another one after an hour of silence, and
    those of running processes never."""
    folder = prepare_federation(settings(), 0).parent
    here, dead = read_machine_code(), subprocess.Popen(["true"])
    dead.wait()
    gone = [leave(folder, f"a.h5.{here}-{dead.pid}-1a2b3c4d.tmp"), leave(folder, "a.h5.1a2b3c4d.tmp", 3601),
            leave(folder, "a.h5.0a0b0c0d-1-1a2b3c4d.tmp", 3601)]
    stay = [leave(folder, f"a.h5.{here}-{os.getpid()}-1a2b3c4d.tmp", 9999), leave(folder, "a.h5.1a2b3c4d.tmp2", 9999),
            leave(folder, "a.h5.0a0b0c0d-1-2a2b3c4d.tmp", 3590), leave(folder, "b.h5.notes.txt", 9999)]
    prepare_federation(settings(), 0)
    assert not any(path.exists() for path in gone) and all(path.exists() for path in stay)


def test_a_preparation_that_is_killed_leaves_nothing_for_ever(settings):
    job = subprocess.run([sys.executable, "-c", KILLED, settings().cache], text=True, capture_output=True)
    folder = Path(settings().cache)
    assert job.returncode == -signal.SIGKILL and [path.suffix for path in folder.iterdir()] == [".tmp"]
    path = prepare_federation(settings(), 0)
    assert [*folder.iterdir()] == [path]


KILLED = """
import os, signal, sys
from fedmpi.config import schema
from fedmpi.data import federation
from fedmpi.data.partitions import Iid
take, taken = federation.take_rows, []
def take_rows(*given):
    taken.append(1)
    if len(taken) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(*given)
federation.take_rows = take_rows
federation.prepare_federation(schema.Data(cache=sys.argv[1], partition=Iid()), 0)
"""
