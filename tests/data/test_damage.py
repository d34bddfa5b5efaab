"""Damaged files, full disks, and jobs that get in each other's way."""
import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from fedmpi.data.federation import FEDERATION_FORMAT, Federation, prepare
from fedmpi.data.partitions import Pathological
from fedmpi.errors import BadInput


def flip(path, place, bits=0xff):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bits]))


def test_only_the_clients_slice_is_read(federation):
    """Damage in the last client's chunk goes unseen by the first client's reader, and only by that one."""
    f = federation()
    with h5py.File(f.path) as file:
        place = file["x"].id.get_chunk_info_by_coord((int(f.edges[-1]) - 1, 0)).byte_offset
    before = f.client(0)
    flip(f.path, place)
    f = Federation(f.path)
    for old, new in zip(before, f.client(0), strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(BadInput, match="delete it, it is made again from the source") as error:
        f.client(19)
    assert str(f.path) in str(error.value)


def test_no_flipped_byte_goes_unnoticed(federation, arrays, everything):
    f = federation(**arrays(np.arange(60) % 4), clients=4, partition=Pathological())
    whole, good, noticed = f.path.read_bytes(), everything(f), 0
    places = range(0, len(whole), 29)
    for place in places:
        flip(f.path, place, 0xff if place % 2 else 1 << place % 8)
        try:
            assert everything(Federation(f.path)) == good, place     # a byte that nothing uses
        except BadInput:
            noticed += 1
        f.path.write_bytes(whole)
    assert noticed > .8 * len(places)


@pytest.mark.parametrize("name", ["y", "counts", "labels", "groups"])
def test_changed_small_data_sets_are_noticed_on_opening(federation, name):
    f = federation(partition=Pathological())
    with h5py.File(f.path, "r+") as file:
        file[name][0] += 1
    with pytest.raises(BadInput, match="checksum"):
        Federation(f.path)


@pytest.mark.parametrize("share", [0, .01, .5, .99])
def test_a_truncated_file_is_noticed(federation, share):
    f = federation()
    os.truncate(f.path, int(share * f.path.stat().st_size))
    with pytest.raises(BadInput, match="the federation cannot be used"):
        Federation(f.path)


def test_incomplete_old_foreign_and_missing_files_are_refused(federation, tmp_path):
    path = federation().path
    with h5py.File(path, "r+") as file:
        facts = bytes(file.attrs["facts"])
        file.attrs["facts"] = np.bytes_(facts.replace(b'{"format": %d' % FEDERATION_FORMAT, b'{"format": 0'))
    with pytest.raises(BadInput, match=f"has format 0, this version of fedmpi reads {FEDERATION_FORMAT}"):
        Federation(path)
    with h5py.File(path, "r+") as file:
        del file.attrs["complete"]
    with pytest.raises(BadInput, match="never completed"):
        Federation(path)
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(BadInput, match="never completed"):
        Federation(tmp_path / "foreign.h5")
    with pytest.raises(BadInput, match="there is no federation here"):
        Federation(tmp_path / "none.h5")


def cut_short(path):
    os.truncate(path, 1000)


def emptied(path):
    path.write_bytes(b"")


def uncompleted(path):
    with h5py.File(path, "r+") as file:
        file.attrs["complete"] = False


def altered(path):
    with h5py.File(path, "r+") as file:
        file["y"][:] = 0


@pytest.mark.parametrize("spoil", [cut_short, emptied, uncompleted, altered])
def test_prepare_makes_a_damaged_federation_again(federation, settings, everything, spoil):
    f = federation()
    good = everything(f)
    spoil(f.path)
    assert everything(Federation(prepare(settings(), 0))) == good


PREPARE = """
import sys, time
from fedmpi.config import schema
from fedmpi.data.federation import Federation, prepare
from fedmpi.data.partitions import Dirichlet
data = schema.Data(cache=sys.argv[1], partition=Dirichlet(.5))
time.sleep(max(0, float(sys.argv[2]) - time.time()))
for seed in range(3):
    f = Federation(prepare(data, seed))
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
        prepare(settings(cache=str(tmp_path / "file" / "cache")), 0)


FULL = """
import resource, sys
from fedmpi.config import schema
from fedmpi.data.federation import prepare
from fedmpi.data.partitions import Iid
from fedmpi.errors import BadInput
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    prepare(schema.Data(cache=sys.argv[1], partition=Iid()), 0)
except BadInput as error:
    print(error)
"""


def test_a_full_disk_is_bad_input_and_leaves_nothing_behind(settings):
    job = subprocess.run([sys.executable, "-c", FULL, settings().cache, "100000"], text=True, capture_output=True)
    assert job.returncode == 0 and job.stderr == ""
    assert "File too large; set data.cache" in job.stdout and os.listdir(settings().cache) == []
