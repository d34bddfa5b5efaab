"""Public data sets from tiny files in their authors' formats, which the tests write byte by byte."""
from __future__ import annotations

import gzip
import io
import pickle
import socket
import struct
import tarfile

import numpy as np
import pytest

from fedmpi.data import downloads, sources
from fedmpi.errors import BadInput


def gz(folder, name: str, magic: int, values):
    """Write an idx file: magic number, the length of each axis, bytes, all big-endian."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = struct.pack(f">{1 + values.ndim}i", magic, *values.shape) + values.astype(np.uint8).tobytes()
    (folder / f"{name}.gz").write_bytes(gzip.compress(whole))


def digits(n: int, first: int):
    """Return images that differ in each row and column, and labels whose first one differs in each part."""
    pixels = np.arange(28)[:, None] * 3 + np.arange(28) + np.arange(n)[:, None, None] + first
    return pixels.astype(np.uint8), (np.arange(n) * 3 + first) % 10


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_idx_files_are_read_part_by_part(tmp_path, monkeypatch, capfd, name, folder):
    import torchvision
    cls = getattr(torchvision.datasets, folder)
    # Torchvision's checksums are those of other files.
    monkeypatch.setattr(cls, "resources", [(file, None) for file, _ in cls.resources])
    parts = {"train": digits(7, 0), "t10k": digits(4, 50)}
    for part, (x, y) in parts.items():
        gz(tmp_path / folder / "raw", f"{part}-images-idx3-ubyte", 2051, x)
        gz(tmp_path / folder / "raw", f"{part}-labels-idx1-ubyte", 2049, y)
    pool = sources.load_source(name, tmp_path)
    for (x, y), (read_x, read_y) in zip(parts.values(), (pool[:2], pool[2:4]), strict=True):
        np.testing.assert_array_equal(read_x, x[..., None])
        assert read_x.dtype == np.uint8 and read_y.dtype == np.int64 and read_y.tolist() == y.tolist()
    assert capfd.readouterr() == ("", "") and pool.client_train is None
    # The two sets do not read each other's files.
    other = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}[name]
    (tmp_path / {"mnist": "FashionMNIST", "fashion_mnist": "MNIST"}[name]).write_text("")
    with pytest.raises(BadInput, match=f"data.name = {other}: neither found"):
        sources.load_source(other, tmp_path)


@pytest.mark.parametrize("content, why", [
    (struct.pack(">4i", 20, 2, 28, 28) + bytes(99), "a file is damaged"), (b"", "invalid literal")])
def test_a_damaged_idx_file_is_one_line(tmp_path, content, why):
    """torchvision checks what it downloads, but not files that exist already."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").write_bytes(content)
    with pytest.raises(BadInput, match=rf"data.name = mnist: the unpacked files in {raw} are damaged \(.*{why}.*\); "
                                       "remove train-images-idx3-ubyte, .*, t10k-labels-idx1-ubyte there: "):
        sources.load_source("mnist", tmp_path)


def batch(n: int, first: int, labels: dict) -> bytes:
    """Return a batch of CIFAR: rows of 1,024 red, 1,024 green and 1,024 blue bytes, each plane row by row."""
    # Red is the row.
    red = np.arange(1024) // 32 + first
    # Green is the column, blue is constant.
    green, blue = np.arange(1024) % 32, np.arange(1024) * 0 + 200
    rows = np.tile(np.concatenate([red, green, blue]), (n, 1)).astype(np.uint8)
    # The last blue byte distinguishes images.
    rows[:, -1] = np.arange(n) + first
    return pickle.dumps({"data": rows, **labels}, protocol=2)


def packed(path, files: dict[str, bytes]):
    """Write a .tar.gz like a downloaded one."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Return a function that writes the archive of CIFAR-10 or CIFAR-100, with two images a batch."""
    import torchvision

    def write(loader: str):
        cls = getattr(torchvision.datasets, loader)
        monkeypatch.setattr(cls, "tgz_md5", None)
        for some in ("train_list", "test_list"):
            monkeypatch.setattr(cls, some, [[file, None] for file, *_ in getattr(cls, some)])
        monkeypatch.setattr(cls, "meta", cls.meta | {"md5": None})
        files = {f"{cls.base_folder}/{cls.meta['filename']}": pickle.dumps({cls.meta["key"]: []}, protocol=2)}
        for i, (file, _) in enumerate(cls.train_list + cls.test_list):
            fine = [(10 * i + k) % (10 if loader == "CIFAR10" else 100) for k in (3, 4)]
            labels = {"labels": fine} if loader == "CIFAR10" else {"coarse_labels": [1, 2], "fine_labels": fine}
            files[f"{cls.base_folder}/{file}"] = batch(2, 10 * i, labels)
        packed(tmp_path / cls.filename, files)
        return tmp_path
    return write


@pytest.mark.parametrize("name, loader, train, test", [
    ("cifar10", "CIFAR10", [3, 4] * 5, [3, 4]), ("cifar100", "CIFAR100", [3, 4], [13, 14])])
def test_batches_of_cifar_are_read_in_order_with_their_fine_labels(cifar, capfd, name, loader, train, test):
    pool = sources.load_source(name, cifar(loader))
    assert pool.y_train.tolist() == train and pool.y_test.tolist() == test
    assert pool.x_train.shape == (len(train), 32, 32, 3) and pool.x_test.shape == (2, 32, 32, 3)
    assert pool.x_train.dtype == np.uint8 and pool.y_train.dtype == pool.y_test.dtype == np.int64
    first = np.arange(len(train)) // 2 * 10
    assert pool.x_train[:, 31, 31, 2].tolist() == (first + np.arange(len(train)) % 2).tolist()
    assert pool.x_test[:, 31, 31, 2].tolist() == [10 * len(train) // 2, 10 * len(train) // 2 + 1]
    # The red, green and blue values of every image at row 5 and column 7.
    assert pool.x_train[:, 5, 7].tolist() == [[5 + f, 7, 200] for f in first.tolist()]
    assert capfd.readouterr() == ("", "")


def test_a_download_gives_up_a_silent_mirror_and_leaves_nothing_changed(tmp_path, request):
    before = socket.getdefaulttimeout()
    request.addfinalizer(lambda: socket.setdefaulttimeout(before))
    socket.setdefaulttimeout(77)
    with pytest.raises(OSError), downloads.prepare_download(tmp_path / "a" / "root", "x"):
        assert socket.getdefaulttimeout() == 20
        raise OSError
    assert socket.getdefaulttimeout() == 77 and (tmp_path / "a" / "root" / ".x.lock").exists()
