"""MedMNIST's files: downloaded once, and again after a download that was cut short."""
from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmpi.data import downloads, sources
from fedmpi.data.sources import BUILT_IN
from fedmpi.errors import BadInput

MEDMNIST = """
import os, numpy as np
INFO = {"tissuemnist": {"url": "https://example.org/tissuemnist.npz"}}
class TissueMNIST:
    def __init__(self, split, root, download):
        print("Downloading")
        x, y = np.arange(10, dtype=np.uint8).repeat(784).reshape(10, 28, 28), np.arange(10)[:, None] % 8
        parts = {"train": slice(0, 6), "val": slice(6, 8), "test": slice(8, 10)}
        ACTION
"""
STORE = """np.savez(os.path.join(root, "tissuemnist.npz"), **{f"{k}_images": x[p] for k, p in parts.items()},
                 **{f"{k}_labels": y[p].astype(np.uint8) for k, p in parts.items()})"""


@pytest.fixture
def medmnist(tmp_path, monkeypatch):
    """Return a function that installs a stand-in for the package medmnist, which performs an action as its download."""
    def install(action):
        (tmp_path / "medmnist.py").write_text(MEDMNIST.replace("ACTION", action))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "medmnist", raising=False)
    yield install
    sys.modules.pop("medmnist", None)


def test_medmnist_is_downloaded_once_and_its_validation_part_is_for_training(tmp_path, medmnist, capfd):
    medmnist(STORE)
    pool = sources.load_source("tissuemnist", tmp_path / "root")
    assert pool.x_train.shape == (8, 28, 28, 1) and pool.x_train[:, 0, 0, 0].tolist() == list(range(8))
    assert pool.y_train.tolist() == list(range(8)) and pool.y_test.tolist() == [0, 1] and pool.y_test.dtype == np.int64
    assert pool.x_test[:, 3, 3, 0].tolist() == [8, 9] and capfd.readouterr() == ("", "")
    medmnist("raise RuntimeError")
    assert len(sources.load_source("tissuemnist", tmp_path / "root").y_train) == 8


def test_a_medmnist_file_that_was_cut_short_is_downloaded_again(tmp_path, medmnist, monkeypatch):
    """As after a download that was killed, or while another process is at it."""
    root = tmp_path / "root"
    medmnist(STORE)
    sources.load_source("tissuemnist", root)
    whole = (root / "tissuemnist.npz").read_bytes()
    (root / "tissuemnist.npz").write_bytes(whole[:len(whole) // 2])
    assert not BUILT_IN["tissuemnist"]().is_here(root)
    assert len(sources.load_source("tissuemnist", root).y_train) == 8
    # one hears of the file if it cannot be downloaded again
    (root / "tissuemnist.npz").write_bytes(whole[:len(whole) // 2])
    medmnist("raise RuntimeError")
    with pytest.raises(BadInput, match="tissuemnist.npz: not an .npz file, or cut short"):
        sources.load_source("tissuemnist", root)
    (root / "tissuemnist.npz").unlink()
    os.mkfifo(root / "tissuemnist.npz")
    with pytest.raises(BadInput, match="it is not a regular file"):
        sources.load_source("tissuemnist", root)
    # without the package, too
    (root / "tissuemnist.npz").unlink()
    (root / "tissuemnist.npz").write_bytes(whole[:len(whole) // 2])
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(BadInput, match="tissuemnist.npz: not an .npz file, or cut short"):
        sources.load_source("tissuemnist", root)


def test_a_medmnist_download_that_fails_is_one_line(tmp_path, medmnist):
    medmnist('raise RuntimeError("a page\\nof advice")')
    with pytest.raises(BadInput, match="nor downloaded .from https://example.org/tissuemnist.npz.") as error:
        sources.load_source("tissuemnist", tmp_path / "root")
    assert f"{tmp_path}/root/tissuemnist.npz (as the package medmnist writes it" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_stopped_a_medmnist_download_is_said(tmp_path, medmnist):
    direct = 'raise OSError(28, "No space left on device")'
    for action in (direct, f"""
        try:
            {direct}
        except OSError:
            raise RuntimeError("a page of advice")"""):
        medmnist(action)
        with pytest.raises(BadInput, match="nor downloaded .from https://example.org/tissuemnist.npz: .Errno 28. No "
                                           "space left on device.; put there"):
            sources.load_source("tissuemnist", tmp_path / "root")
    # The folder comes first.
    if os.path.exists("/proc/self"):
        with pytest.raises(BadInput, match="nor downloaded .{11}No such file or directory: '/proc/new'.; put there"):
            sources.load_source("tissuemnist", Path("/proc/new"))


HELD = """import fcntl
        file = open(os.path.join(root, ".tissuemnist.lock"), "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        else:
            raise RuntimeError("anybody may come in")
        """


def test_a_download_is_alone_with_its_set(tmp_path, medmnist):
    medmnist(HELD + STORE)
    sources.load_source("tissuemnist", tmp_path / "root")
    # The lock has been released.
    with downloads.hold_lock(tmp_path / "root" / ".tissuemnist.lock"):
        pass
