"""The data sets: one pool of samples each, found on the disk or downloaded once.

A source is a class with a `title`, a one-line docstring and `load(root, file) -> Pool`."""
from __future__ import annotations

import contextlib
import importlib.util
import io
import socket
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmpi.errors import BadInput

LARGEST_LABEL = 65_535      # beyond, a label is taken for a mistake (an id, a time), not for a class
PATIENCE = 20               # seconds before a silent mirror is given up: compute nodes often have no way out


class Pool(NamedTuple):
    """The samples of one data set, as its authors split them; the test part may be empty.

    x: uint8 images (n, h, w, c), float32 features (n, d) or (n, h, w, c), or int64 tokens (n, length);
    y: int64 classes (n,), counted from 0."""
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Arrays:
    """Your own arrays: any .npz with x_train, y_train[, x_test, y_test], named by data.file."""
    title = "arrays"

    def load(self, root: Path, file: str | None = None) -> Pool:
        if file is None:
            raise BadInput("data.file is missing: data.name = arrays needs the path of an .npz file")
        path = Path(file).expanduser()
        return checked(read_npz(path), f"data.file = {path}")


class Named:
    """A public data set: ROOT/<name>.npz where that exists, otherwise what `fetch` finds or downloads."""

    def load(self, root: Path, file: str | None = None) -> Pool:
        if file is not None:
            raise BadInput(f"data.file = {file}: {self.title} has no use for it; leave it out, or set "
                           "data.name = arrays")
        npz = root / f"{self.name}.npz"
        return checked(read_npz(npz) if npz.exists() else self.fetch(root), f"data.name = {self.name}")


class Digits(Named):
    """1,797 handwritten digits, 8 x 8, as 64 features in [0, 1]; inside scikit-learn, no download."""
    title = name = "digits"

    def fetch(self, root: Path) -> Pool:
        # read past scikit-learn, whose import costs seconds
        package = importlib.util.find_spec("sklearn").submodule_search_locations[0]
        file = Path(package) / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            table = np.loadtxt(file, delimiter=",", dtype=np.float32)
            x, y = table[:, :-1], table[:, -1]
        else:
            from sklearn.datasets import load_digits
            x, y = load_digits(return_X_y=True)
        x, y = (x / 16).astype(np.float32), y.astype(np.int64)
        return Pool(x, y, x[:0], y[:0])


class Torchvision(Named):
    """A data set that torchvision's class `loader` reads and, when it is not under ROOT, downloads."""

    def fetch(self, root: Path) -> Pool:
        import torchvision
        loader = getattr(torchvision.datasets, self.loader)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with alone(root / f".{self.name}.lock"), quiet():
                train, test = (loader(root, train=part, download=True) for part in (True, False))
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise BadInput(
                f"data.name = {self.name}: neither found under data.root = {root} nor downloaded "
                f"({' '.join(str(error).split())}); put there {root / self.name}.npz (arrays x_train, "
                f"y_train, x_test, y_test) or {root / self.archive}") from None
        return Pool(*(np.asarray(a) for a in (train.data, train.targets, test.data, test.targets)))


class Mnist(Torchvision):
    """70,000 handwritten digits, 28 x 28 x 1, 10 classes."""
    title, name, loader = "MNIST", "mnist", "MNIST"
    archive = "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"


class FashionMnist(Torchvision):
    """70,000 pictures of clothes, 28 x 28 x 1, 10 classes."""
    title, name, loader = "Fashion-MNIST", "fashion_mnist", "FashionMNIST"
    archive = "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"


class Cifar10(Torchvision):
    """60,000 photographs, 32 x 32 x 3, 10 classes."""
    title, name, loader = "CIFAR-10", "cifar10", "CIFAR10"
    archive = "cifar-10-python.tar.gz"


class Cifar100(Torchvision):
    """60,000 photographs, 32 x 32 x 3, 100 classes."""
    title, name, loader = "CIFAR-100", "cifar100", "CIFAR100"
    archive = "cifar-100-python.tar.gz"


BUILT_IN = {"digits": Digits, "mnist": Mnist, "fashion_mnist": FashionMnist, "cifar10": Cifar10,
            "cifar100": Cifar100, "arrays": Arrays}


def source_key(name: str, root: Path, file: str | None = None) -> str:
    """Return a text that changes with the source: size and time of its .npz, or its name if it has none."""
    path = Path(file).expanduser() if file else root / f"{name}.npz"
    try:
        found = path.stat()
    except OSError:
        return name
    return f"{name} {path.resolve()} {found.st_size} {found.st_mtime_ns}"


@contextlib.contextmanager
def alone(lock: Path):
    """Keep other processes out: jobs that start together would unpack the same archive over one another."""
    import fcntl
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):      # no permission to write, or a file system without locks
            fcntl.flock(stack.enter_context(open(lock, "w")), fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def quiet():
    """Swallow what a download prints, and let it time out."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)


def read_npz(path: Path) -> Pool:
    """Read the arrays of an .npz file without unpickling anything. Raises BadInput."""
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise BadInput(f"{path}: not an .npz file, or cut short; write it with numpy.savez")
        with np.load(path, allow_pickle=False) as archive:
            keys = [k for k in Pool._fields if k in archive.files]
            if keys not in (list(Pool._fields[:2]), list(Pool._fields)):
                raise BadInput(f"{path}: holds {', '.join(archive.files) or 'nothing'}, but must hold "
                               "x_train and y_train, and x_test and y_test both or neither")
            arrays = [archive[k] for k in keys]
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(f"{path}: cannot read the data set: {error.strerror}; set data.file (or data.root) to "
                       "where it lies") from None
    except (OSError, EOFError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{path}: damaged, or not plain arrays of numbers ({error}); write it again with "
                       "numpy.savez") from None
    return Pool(*arrays, *[np.empty(0)] * (4 - len(arrays)))


def checked(pool: Pool, where: str) -> Pool:
    """Bring a pool to the types and shapes that Pool promises. Raises BadInput that starts with `where`."""
    x_train, y_train = part(pool.x_train, pool.y_train, where, "train")
    if not len(y_train):
        raise BadInput(f"{where}: x_train has no samples")
    if not len(pool.x_test) and not len(pool.y_test):
        return Pool(x_train, y_train, x_train[:0], y_train[:0])
    x_test, y_test = part(pool.x_test, pool.y_test, where, "test")
    if (x_test.shape[1:], x_test.dtype) != (x_train.shape[1:], x_train.dtype):
        raise BadInput(f"{where}: samples of x_test are {x_test.dtype} {x_test.shape[1:]}, those of x_train "
                       f"{x_train.dtype} {x_train.shape[1:]}; they must be alike")
    return Pool(x_train, y_train, x_test, y_test)


def part(x, y, where: str, name: str):
    x, y = samples(np.asarray(x), f"{where}: x_{name}"), classes(np.asarray(y), f"{where}: y_{name}")
    if len(x) != len(y):
        raise BadInput(f"{where}: x_{name} has {len(x)} samples, y_{name} {len(y)} labels; give as many")
    return x, y


def samples(x, where: str):
    kind = "image" if x.dtype == np.uint8 else {"f": "feature", "i": "token", "u": "token"}.get(x.dtype.kind)
    if x.ndim == 3 and kind in ("image", "feature"):
        x = x[..., None]
    if x.ndim not in {"image": (4,), "feature": (2, 4), "token": (2,)}.get(kind, ()) or 0 in x.shape[1:]:
        raise BadInput(f"{where} is {x.dtype} {x.shape}; it must be uint8 images (n, h, w[, c]), float "
                       "features (n, d) or (n, h, w[, c]), or integer tokens (n, length)")
    if kind == "feature":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise BadInput(f"{where} has values that are NaN, infinite or beyond float32; replace them")
    if kind == "token":
        x = x.astype(np.int64, copy=False)
        if x.size and x.min() < 0:
            raise BadInput(f"{where} has negative tokens; tokens count from 0")
    return x


def classes(y, where: str):
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise BadInput(f"{where} is {y.dtype} {y.shape}; it must be integer classes (n,)")
    if len(y) and not 0 <= y.min() <= y.max() <= LARGEST_LABEL:
        raise BadInput(f"{where} goes from {y.min()} to {y.max()}; classes count from 0 and end by "
                       f"{LARGEST_LABEL}")
    return y.astype(np.int64, copy=False)
