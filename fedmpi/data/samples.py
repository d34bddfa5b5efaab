"""Read the samples of one data set, the pool, from an .npz file, and bring them to fixed types and shapes.

Legend of shapes: n samples, d features, h x w pixels, c channels; N clients, C classes."""
from __future__ import annotations

import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.memory_check import refuse_larger
from fedmpi.storage.seal import Flaw, open_regular

# A larger label is taken for a mistake (an id, a time) and not for a class.
LARGEST_LABEL = 65_535
LARGEST_INT32 = 2**31 - 1
# Beyond so many classes, at least one in SPARSEST must occur: each takes outputs of the network and rows of tables.
MANY_CLASSES, SPARSEST = 1000, 10
MEDMNIST = ("train_images", "train_labels", "val_images", "val_labels", "test_images", "test_labels")


# The arrays of a part that is not there.
NO_SAMPLES = np.empty(0)


class Dataset(NamedTuple):
    """The samples of one data set, as its authors split them; the test part may be left out.

    x: uint8 images (n, h, w, c), float32 features (n, d) or (n, h, w, c), or int32 tokens (n, length);
    y: int64 classes (n,), counted from 0, or float32 targets (n,); client: int64 (n,), the client of each sample, if
    the data set gives it; about: what is kept beside the samples: `class_names`, `client_names` and `feature_names`
    (lists of texts, in the order of the numbers), `tokenizer` (the text of a tokenizer.json) and `padding_id`."""
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray = NO_SAMPLES
    y_test: np.ndarray = NO_SAMPLES
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    about: JsonObject | None = None


# The fields of a Dataset that an .npz file may hold.
ARRAYS = Dataset._fields[:6]


def read_npz(path: Path) -> Dataset:
    """Read the arrays of an .npz file, either with our names or with those of MedMNIST.

    Nothing is unpickled. Raises BadInput if the file is missing, damaged or lacks arrays."""
    with open_npz(path) as (archive, names):
        refuse_bomb(sum(archive.zip.getinfo(f"{k}.npy").file_size for k in names), path)
        arrays = {k: archive[k] for k in names}
        if "train_images" in arrays:
            return join_medmnist(arrays)
    return Dataset(**arrays)


def holds_arrays(path: Path) -> bool:
    """Say whether `read_npz` would find its arrays in a file, which are not read."""
    try:
        with open_npz(path):
            return True
    except BadInput:
        return False


@contextmanager
def open_npz(path: Path) -> Iterator[tuple[np.lib.npyio.NpzFile, list[str]]]:
    """Open an .npz file; yield it and the names of the arrays to read. Raises BadInput, also for errors of reading."""
    try:
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):
                raise BadInput(f"{path}: not an .npz file, or cut short; write it with numpy.savez")
        with np.load(path, allow_pickle=False) as archive:
            yield archive, require_arrays(archive.files, path)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(f"{path}: cannot read the data set: {error.strerror}; set data.file (or data.root) to "
                       "where it lies") from None
    except Flaw as error:
        raise BadInput(f"{path}: cannot read the data set: {error}; set data.file (or data.root) to an .npz "
                       "file") from None
    # A damaged header is evaluated as Python text, which may fail in many ways.
    except (OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError, MemoryError,
            RuntimeError, SyntaxError, tokenize.TokenError, lzma.LZMAError, zipfile.BadZipFile, zlib.error) as error:
        why = " ".join(str(error).split())
        raise BadInput(f"{path}: damaged, or not plain arrays of numbers ({why}); write it again with "
                       "numpy.savez") from None


def refuse_bomb(size: int, path: Path) -> None:
    """Refuse to unpack `size` bytes if the machine has less memory, because a small file may claim any size.

    Raises BadInput."""
    refuse_larger(size, f"{path}: its arrays, unpacked,", "write fewer samples, or smaller types, with numpy.savez")


def require_arrays(names: list[str], path: Path) -> list[str]:
    """Return the names of the arrays that make a pool. Raises BadInput if some are missing, or if others seem to hold
    samples, too."""
    if set(MEDMNIST) <= set(names):
        return list(MEDMNIST)
    found = [k for k in ARRAYS if k in names]
    if [k for k in found if not k.startswith("client")] not in (list(ARRAYS[:2]), list(ARRAYS[:4])):
        raise BadInput(f"{path}: holds {', '.join(names) or 'nothing'}, but must hold "
                       "x_train and y_train, and x_test and y_test both or neither")
    if unread := [k for k in names if k not in ARRAYS and k.lower().startswith(("x_", "y_", "client_"))]:
        raise BadInput(f"{path}: holds {', '.join(unread)}, which would not be used; add such samples to those of "
                       "x_train and y_train (data.split makes a validation part), or leave them out")
    return found


def join_medmnist(arrays: dict[str, np.ndarray]) -> Dataset:
    """Join the training and validation parts of MedMNIST, and bring its labels (n, 1) to (n,)."""
    x = {k: v for k, v in arrays.items() if k.endswith("images")}
    y = {k: v[:, 0] if v.ndim == 2 and v.shape[1] == 1 else v for k, v in arrays.items() if k not in x}
    return Dataset(np.concatenate([x["train_images"], x["val_images"]]),
                   np.concatenate([y["train_labels"], y["val_labels"]]), x["test_images"], y["test_labels"])


def as_dataset(loaded: object, where: str) -> Dataset:
    """Return what a source has loaded as a Dataset. Raises BadInput, whose message begins with `where`, if it is none.
    """
    if isinstance(loaded, tuple | list) and 4 <= len(loaded) <= len(Dataset._fields):
        return Dataset(*loaded)
    kind = type(loaded).__name__ + (f" of {len(loaded)}" if isinstance(loaded, tuple | list) else "")
    raise BadInput(f"{where} must return a Dataset (x_train, y_train, x_test, y_test), not a {kind}")


def check_samples(pool: Dataset, where: str, task: str = "classification") -> Dataset:
    """Bring a pool to the types and shapes that Dataset promises; for `data.task` = regression integers are targets.

    Raises BadInput if that is impossible; its message starts with `where`."""
    train = check_part(pool.x_train, pool.y_train, pool.client_train, where, "train", task)
    if not len(train[1]):
        raise BadInput(f"{where}: x_train has no samples; a data set needs one at least")
    refuse_channels_first(train[0], f"{where}: x_train")
    if np.shape(pool.x_test)[:1] == np.shape(pool.y_test)[:1] == (0,):
        if pool.client_test is not None and len(pool.client_test):
            raise BadInput(f"{where}: client_test names the clients of {len(pool.client_test)} samples, and there are "
                           "no x_test and y_test; add these, or leave client_test out")
        x, y, client = train
        test = x[:0], y[:0], None if client is None else client[:0]
    else:
        test = check_part(pool.x_test, pool.y_test, pool.client_test, where, "test", task)
    (x_train, y_train, client_train), (x_test, y_test, client_test) = train, test
    if (x_test.shape[1:], x_test.dtype) != (x_train.shape[1:], x_train.dtype):
        raise BadInput(f"{where}: samples of x_test are {x_test.dtype} {x_test.shape[1:]}, those of x_train "
                       f"{x_train.dtype} {x_train.shape[1:]}; they must be alike")
    if (client_train is None) != (client_test is None):
        raise BadInput(f"{where}: says for one of x_train and x_test only which client holds each sample; give "
                       "client_train and client_test, or neither")
    if y_train.dtype != y_test.dtype:
        raise BadInput(f"{where}: y_train is {y_train.dtype}, y_test {y_test.dtype}; both must be classes, or targets")
    if y_train.dtype.kind == "i":
        refuse_gaps(np.concatenate([y_train, y_test]), where, named=bool((pool.about or {}).get("class_names")))
    return Dataset(x_train, y_train, x_test, y_test, client_train, client_test, pool.about)


def refuse_channels_first(x: np.ndarray, where: str) -> None:
    """Raise BadInput for images (n, c, h, w), PyTorch's order: a square behind 1 or 3 rows is taken for pixels, and so
    is, in bytes, anything with more than four channels behind 1, 3 or 4 rows."""
    if x.ndim == 4 and x.shape[3] > 4 and (x.shape[1] in (1, 3) and x.shape[2] == x.shape[3]
                                           or x.shape[1] in (1, 3, 4) and x.dtype == np.uint8):
        raise BadInput(f"{where} has shape {x.shape}, which looks like (n, channels, height, width); samples are (n, "
                       "height, width, channels): store x.transpose(0, 2, 3, 1)")


def refuse_gaps(y: np.ndarray, where: str, named: bool = False) -> None:
    """Raise BadInput if nearly all classes from 0 to the largest label y (n,) are without samples, or if these are
    counted from 1; `named` says that the data name their classes, so that they are known to begin with 0."""
    classes, used = int(y.max()) + 1, len(np.unique(y))
    if y.min() == 1 and 2 < classes == used + 1 and not named:
        raise BadInput(f"{where}: y has labels from 1 to {used}, and classes are counted from 0: the network would get "
                       "an output for a class without samples; store y - 1")
    if classes > MANY_CLASSES and classes > SPARSEST * used:
        raise BadInput(f"{where}: y has labels up to {classes - 1}, but only {used} different ones, and the network "
                       f"gets an output for each of {classes} classes; number them without gaps, training and test "
                       "labels together: y = numpy.unique(y, return_inverse=True)[1]")


def check_part(x: np.ndarray, y: np.ndarray, client: np.ndarray | None, where: str, name: str,
               task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Bring the samples, labels and clients of one part to fixed types; `name` is train or test. Raises BadInput."""
    x = convert_samples(np.asarray(x), f"{where}: x_{name}")
    y = convert_labels(np.asarray(y), f"{where}: y_{name}", task)
    if len(x) != len(y):
        raise BadInput(f"{where}: x_{name} has {len(x)} samples, y_{name} {len(y)} labels; give as many")
    if client is not None:
        client = convert_integers(np.asarray(client), f"{where}: client_{name}", "clients", LARGEST_INT32)
        if len(client) != len(x):
            raise BadInput(f"{where}: x_{name} has {len(x)} samples, client_{name} {len(client)}; give as many")
    return x, y, client


def convert_samples(x: np.ndarray, where: str) -> np.ndarray:
    """Bring samples to one of the kinds of Dataset: images, features or tokens.

    Images and features (n, h, w) get one channel. Raises BadInput for other types or shapes and for bad values."""
    kind = "image" if x.dtype == np.uint8 else {"f": "feature", "i": "token", "u": "token"}.get(x.dtype.kind, "")
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
        if x.size and not 0 <= x.min() <= x.max() <= LARGEST_INT32:
            raise BadInput(f"{where} has negative tokens, or some beyond {LARGEST_INT32} (it goes from {x.min()} to "
                           f"{x.max()}); tokens count from 0")
        x = x.astype(np.int32, copy=False)
    return x


def convert_integers(values: np.ndarray, where: str, what: str, most: int) -> np.ndarray:
    """Return integers (n,) as int64. Raises BadInput unless they are integers from 0 to `most`."""
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise BadInput(f"{where} is {values.dtype} {values.shape}; it must be integer {what} (n,)")
    if len(values) and not 0 <= values.min() <= values.max() <= most:
        raise BadInput(f"{where} goes from {values.min()} to {values.max()}; {what} count from 0 and end by {most}")
    return values.astype(np.int64, copy=False)


def convert_labels(y: np.ndarray, where: str, task: str) -> np.ndarray:
    """Return classes (n,) as int64, or targets (n,), which are floats or what `task` makes so, as float32.

    Raises BadInput for others."""
    if task == "regression" and (y.dtype.kind not in "fiu" or y.ndim != 1):
        raise BadInput(f"{where} is {y.dtype} {y.shape}; it must be numbers, targets (n,)"
                       + (f": store {where.split()[-1]}[:, 0]" if y.ndim == 2 and y.shape[1] == 1 else ""))
    if task != "regression" and (y.dtype.kind != "f" or y.ndim != 1):
        return convert_integers(y, where, "classes", LARGEST_LABEL)
    with np.errstate(over="ignore"):
        y = y.astype(np.float32, copy=False)
    if not np.isfinite(y).all():
        raise BadInput(f"{where} has targets that are NaN, infinite or beyond float32; replace them, or leave the "
                       "samples out")
    return y


def refuse_other_task(pool: Dataset, task: str, where: str) -> None:
    """Raise BadInput, whose message holds `where`, if named classes would have to serve as targets, or targets as
    classes."""
    if task == "regression" and (pool.about or {}).get("class_names"):
        raise BadInput(f"data.task = regression: {where} has classes with names, and no numbers to predict; leave "
                       "data.task out")
    if task != "regression" and pool.y_train.dtype.kind == "f":
        raise BadInput(f"{where}: y holds floats, and classes are integers; set data.task = regression if these "
                       "numbers are to be predicted, or store the classes as integers from 0")


def find_vocabulary_size(pool: Dataset) -> int | None:
    """Return how many rows an embedding table needs: the largest token id plus one. None if there are no tokens."""
    if pool.x_train.dtype.kind != "i":
        return None
    return int(max(pool.x_train.max(), pool.x_test.max(initial=0))) + 1


def take_rows(train: np.ndarray, test: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the rows `index` (m,) of train and test together, counted as if they were one array."""
    late = index >= len(train)
    rows = np.empty((len(index), *train.shape[1:]), train.dtype)
    rows[~late], rows[late] = train[index[~late]], test[index[late] - len(train)]
    return rows
