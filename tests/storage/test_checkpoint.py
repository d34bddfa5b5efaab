"""Checkpoints on real files: what is written comes back bit by bit, or is refused with a reason."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.storage.changed_settings import refuse_other_run, warn_of_other_settings
from fedmpi.storage.checkpoint import (
    CheckpointFile,
    DamagedFile,
    Snapshot,
    delete_old_checkpoints,
    find_newest,
    read_checkpoint,
    write_checkpoint,
)
from fedmpi.storage.hdf5_sink import Sink

SHARED = {"w": np.linspace(-1, 1, 301, dtype=np.float32), "assigned": np.array([3, 1, 2]),
          "lr": np.float64(.1), "open": np.array([True, False]), "nothing": np.zeros((0, 4), np.float32)}
IDS = np.array([0, 2, 3, 7, 9])
MINE = {"w": np.arange(5 * 70, dtype=np.float32).reshape(5, 7, 10) / 3, "seen": np.arange(5) ** 9,
        "fresh": np.array([True, False, True, True, False]), "bits": np.arange(5, dtype=np.uint8)}


def snapshot(round: int = 12, **changes) -> Snapshot:
    config = {"seed": 0, "rounds": 20, "train": {"lr": .005, "steps": None},
              "data": {"root": "a", "name": "digits"}}
    metrics = [{"round": 1, "accuracy": float("nan")}, {"round": 2, "name": "é"}]
    given = {"shared": SHARED, "ids": IDS, "config": config, "federation": "f00d", "score": .75,
             "metrics": metrics, "extra": {"seconds": 1.5}}
    return Snapshot(round, **(given | changes))


def pieces(size: int = 2, mine: dict = MINE):
    return ({name: values[at:at + size] for name, values in mine.items()} for at in range(0, len(IDS), size))


def content(path) -> list:
    """Return all that a checkpoint holds in a form that compares bit by bit, with types, shapes and order."""
    found = read_checkpoint(path)
    mine = {f"mine {name}": values for name, values in CheckpointFile(path).read_rows(0, len(IDS)).items()}
    arrays = {**found.shared, "ids": found.ids, **mine}
    plain = {k: v for k, v in vars(found).items() if k not in ("shared", "ids")}
    return [repr(plain), *((k, v.dtype.str, np.shape(v), v.tobytes()) for k, v in arrays.items())]


def run(code: str, *args) -> subprocess.Popen:
    here = Path(__file__).parents[2]
    preamble = f"import sys; sys.path.insert(0, {str(here)!r})\n"
    return subprocess.Popen([sys.executable, "-c", preamble + code, *map(str, args)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everything_comes_back_bit_by_bit(tmp_path, size):
    path = write_checkpoint(tmp_path, snapshot(), pieces(size))
    assert path.name == "round-000012.h5" and [*tmp_path.iterdir()] == [path]
    found = read_checkpoint(path)
    assert repr(replace(found, shared=0, ids=0)) == repr(snapshot(shared=0, ids=0))
    assert [*found.shared] == [*SHARED] and np.array_equal(found.ids, IDS)
    for name, values in SHARED.items():
        assert (found.shared[name].dtype, found.shared[name].tobytes()) == (values.dtype, values.tobytes())
    for name, values in CheckpointFile(path).read_rows(1, 4).items():
        assert (values.dtype, values.shape) == (MINE[name].dtype, MINE[name][1:4].shape)
        assert values.tobytes() == MINE[name][1:4].tobytes()


def test_the_size_of_the_pieces_leaves_no_trace(tmp_path):
    found = [content(write_checkpoint(tmp_path, snapshot(), pieces(size))) for size in (1, 2, 3, 5)]
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("given", [[], [{}], [{}, {}]])
def test_clients_that_keep_nothing(tmp_path, given):
    path = write_checkpoint(tmp_path, snapshot(), given)
    assert CheckpointFile(path).read_rows(0, 5) == {} and np.array_equal(read_checkpoint(path).ids, IDS)


def test_no_client_has_a_row_yet(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(ids=np.array([], int)), [{"w": np.zeros((0, 3), np.float32)}])
    assert CheckpointFile(path).read_rows(0, 0)["w"].shape == (0, 3) and read_checkpoint(path).ids.shape == (0,)


def test_numpy_numbers_in_what_else_is_saved(tmp_path):
    given = snapshot(np.int64(3), score=np.float32(.5), extra={"bytes": np.int64(7)})
    path = write_checkpoint(tmp_path, given, pieces())
    assert (read_checkpoint(path).round, read_checkpoint(path).score, read_checkpoint(path).extra) == (
        3,
        0.5,
        {"bytes": 7},
    )


@pytest.mark.parametrize("changes, given, message", [
    ({}, [*pieces()][:2], "mine/w: 4 rows in 4 pieces were written in place of 5"),
    ({}, [{"w": np.zeros((3, 2))}, {"v": np.zeros((2, 2))}], "pieces .* differ"),
    ({}, [{"w": np.zeros((5, 2)), "v": np.zeros((4, 2))}], "pieces .* differ"),
    ({}, [{"w": np.array([None] * 5)}], "w: .* not object"),
    ({"shared": {"s": np.array(["text"])}}, [], "s: .* not <U4"),
    ({"ids": np.array([1, 1])}, [], "must ascend"),
])
def test_wrong_state_is_not_written(tmp_path, changes, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        write_checkpoint(tmp_path, snapshot(**changes), given)
    assert not [*tmp_path.iterdir()]


def test_rows_checks_the_rows_that_it_returns(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(), pieces())
    data = bytearray(path.read_bytes())
    data[data.index(MINE["w"][3].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    assert np.array_equal(CheckpointFile(path).read_rows(0, 3)["w"], MINE["w"][:3])
    for refusing in (lambda: CheckpointFile(path).read_rows(3, 4), lambda: read_checkpoint(path)):
        with pytest.raises(DamagedFile, match="the checksum of row 3 of w is wrong"):
            refusing()


def test_newest_says_what_it_refused(tmp_path):
    paths = [write_checkpoint(tmp_path, snapshot(round), pieces()) for round in (1, 2, 3, 999999, 1000000)]
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    os.truncate(paths[2], 100)
    paths[3].unlink()
    paths[3].mkdir()
    paths[4].write_text("hello")
    found, refused = find_newest(tmp_path)
    assert found == paths[0] and [path for path, _ in refused] == paths[:0:-1]
    reasons = ["not a finished", "it is a folder", "not a finished", "bytes in place of"]
    for (_, why), expected in zip(refused, reasons, strict=True):
        assert expected in why
    assert find_newest(tmp_path / "absent") == (None, [])
    with pytest.raises(DamagedFile, match="No such file"):
        read_checkpoint(tmp_path / "absent.h5")


def test_prune_keeps_the_last_and_the_first_of_the_best(tmp_path):
    nan = float("nan")
    for round, score in enumerate([nan, .5, .9, .7, .9, nan, .6, nan]):
        write_checkpoint(tmp_path, snapshot(round, score=score), [])
    (tmp_path / "round-000003.h5.part").write_text("half")
    delete_old_checkpoints(tmp_path, keep=2)
    assert sorted(path.name[6:12] for path in tmp_path.iterdir()) == ["000002", "000006", "000007"]


def test_prune_never_deletes_the_only_good_one(tmp_path):
    paths = [write_checkpoint(tmp_path, snapshot(round, score=round / 9), pieces()) for round in (1, 2)]
    data = bytearray(paths[1].read_bytes())
    data[CheckpointFile(paths[1]).about["rows"][0][0]] ^= 1
    paths[1].write_bytes(data)
    delete_old_checkpoints(tmp_path, keep=1)
    assert find_newest(tmp_path)[0] == paths[0]
    write_checkpoint(tmp_path, snapshot(3, score=1), pieces())
    delete_old_checkpoints(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000003.h5"]


KILLED = """
import time, numpy as np
from tests.storage.test_checkpoint import snapshot, write_checkpoint
def pieces():
    for i in range(5):
        yield {"w": np.ones((1, 50000), np.float32)}
        print(i, flush=True)
        time.sleep(60 if i == int(sys.argv[2]) else 0)
write_checkpoint(sys.argv[1], snapshot(2), pieces())
"""


@pytest.mark.parametrize("piece", [0, 4])
def test_a_kill_while_writing_leaves_the_earlier_one(tmp_path, piece):
    old = write_checkpoint(tmp_path, snapshot(1), pieces())
    process = run(KILLED, tmp_path, piece)
    while process.stdout.readline().strip() != str(piece):
        assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
    half = tmp_path / "round-000002.h5.part"
    assert half.exists() and find_newest(tmp_path) == (old, [])
    shutil.copy(half, tmp_path / "round-000003.h5")
    assert find_newest(tmp_path)[0] == old
    delete_old_checkpoints(tmp_path, keep=1)
    assert not half.exists() and old.exists()


FULL = """
import h5py, os, resource
from tests.storage.test_checkpoint import FedmpiError, find_newest, pieces, read_checkpoint, snapshot, write_checkpoint
whole = os.path.getsize(write_checkpoint(sys.argv[1], snapshot(1), pieces()))
for limit in [0, 1, 4095, 4096, *range(4097, whole, 293), whole - 1]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_checkpoint(sys.argv[1], snapshot(2), pieces())
    except FedmpiError as error:
        assert "round-000002.h5 cannot be written: File too large; free" in str(error), error
    else:
        raise SystemExit(f"{limit} of {whole} bytes were enough")
    assert os.listdir(sys.argv[1]) == ["round-000001.h5"]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
assert read_checkpoint(write_checkpoint(sys.argv[1], snapshot(2), pieces())).round == 2
assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_full_disk_costs_no_earlier_checkpoint(tmp_path):
    process = run(FULL, tmp_path)
    said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert find_newest(tmp_path)[0].name == "round-000002.h5"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_hdf5_never_learns_of_a_full_disk():
    with Sink(Path("/dev/full")) as sink:
        assert sink.write(b"HDF5") == 4
        with pytest.raises(OSError, match="No space left"):
            sink.check()


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(FedmpiError, match="absent/round-000012.h5 cannot be written: No such file .*; free"):
        write_checkpoint(tmp_path / "absent", snapshot(), pieces())


def test_a_disk_that_forgets_is_found_out(tmp_path, monkeypatch):
    old = write_checkpoint(tmp_path, snapshot(1), pieces())

    def forgets(descriptor):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 1)

    monkeypatch.setattr(os, "fsync", forgets)
    with pytest.raises(FedmpiError, match="does not give back what was written"):
        write_checkpoint(tmp_path, snapshot(2), pieces())
    assert [*tmp_path.iterdir()] == [old]


def changed(**settings) -> dict:
    return snapshot().config | settings


@pytest.mark.parametrize("config", [
    changed(), changed(rounds=99), changed(device="cuda", threads=8), changed(evaluate={"every": 5}),
    changed(data={"root": "b", "cache": "c", "name": "digits"}), changed(server={"hosts_clients": True})])
def test_settings_that_may_change(config):
    refuse_other_run(snapshot(), config, "f00d")


def test_a_checkpoint_without_a_later_setting_goes_on_with_its_default_alone():
    train = snapshot().config["train"]
    refuse_other_run(snapshot(), changed(train=train | {"optimizer": "sgd", "clip_norm": None}), "f00d")
    with pytest.raises(BadInput, match="train.optimizer is sgd in the checkpoint and adam now"):
        refuse_other_run(snapshot(), changed(train=train | {"optimizer": "adam"}), "f00d")


def test_a_cosine_is_bound_to_the_number_of_rounds():
    train = snapshot().config["train"] | {"schedule": "cosine"}
    then = replace(snapshot(), config=changed(train=train))
    refuse_other_run(then, changed(train=train), "f00d")
    with pytest.raises(BadInput, match="rounds is .* in the checkpoint and 99 now"):
        refuse_other_run(then, changed(train=train, rounds=99), "f00d")


def test_settings_that_may_change_the_last_bits_or_cannot_act_are_warned_of():
    known = changed(threads=1, device="auto", engine="auto", cuda_graphs="auto", evaluate={"measures": []})
    then = replace(snapshot(), config=known)
    (said,) = warn_of_other_settings(then, known | {"threads": 2})
    assert said.startswith("threads is 1 in the checkpoint and 2 now") and warn_of_other_settings(then, known) == []
    last = {"evaluate": {"measures": ["auc"]}, "rounds": then.round}
    assert not warn_of_other_settings(then, known | last)       # the last round is evaluated now
    then = replace(then, metrics=[{"round": 12, "accuracy_mean": .5}])
    (said,) = warn_of_other_settings(then, known | last)
    assert "the last one: nothing is measured any more, so evaluate.measures cannot act; raise rounds" in said
    assert not warn_of_other_settings(then, known | last | {"rounds": then.round + 1})


@pytest.mark.parametrize("config, federation, message", [
    (changed(seed=1), "f00d", "seed is 0 in the checkpoint and 1 now"),
    (changed(train={"lr": .1}), "f00d", "train.lr is 0.005 .* 0.1 now\n  train.steps is None .*not set"),
    (changed(roundsman=1), "f00d", "roundsman is .not set. in the checkpoint and 1 now"),
    (changed(server={"reduce": "exact"}), "f00d", "server.reduce"),
    (changed(), "beef", "federation is f00d in the checkpoint and beef now"),
])
def test_another_run_is_refused(config, federation, message):
    with pytest.raises(BadInput, match=message) as caught:
        refuse_other_run(snapshot(), config, federation)
    assert "of round 12" in str(caught.value) and "another --out" in str(caught.value)
