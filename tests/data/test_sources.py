import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmpi.data import sources
from fedmpi.data.sources import BUILT_IN, Pool, checked, source_key
from fedmpi.errors import BadInput

ROOT = Path("~/.cache/fedmpi/data").expanduser()


def save(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return path


def good(**changes):
    arrays = {"x_train": np.zeros((6, 3), np.float32), "y_train": np.arange(6)}
    return {**arrays, **changes}


def load(path):
    return BUILT_IN["arrays"]().load(Path("unused"), str(path))


def test_every_source_has_a_title_and_a_line_of_description():
    for source in BUILT_IN.values():
        assert source.title and source.__doc__ and "\n" not in source.__doc__


def test_digits_are_those_of_scikit_learn(tmp_path):
    from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    pool = BUILT_IN["digits"]().load(tmp_path)
    assert pool.x_train.dtype == np.float32 and pool.y_train.dtype == np.int64
    np.testing.assert_array_equal(pool.x_train, (x / 16).astype(np.float32))
    np.testing.assert_array_equal(pool.y_train, y)
    assert pool.x_test.shape == (0, 64) and pool.y_test.shape == (0,)


def test_digits_do_not_import_what_costs_seconds(tmp_path):
    program = ("import sys; from pathlib import Path; from fedmpi.data.sources import BUILT_IN; "
               "BUILT_IN['digits']().load(Path('.')); print({'torch', 'torchvision', 'sklearn'} & set(sys.modules))")
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_like_sets_are_read_in_silence(name, folder, capfd):
    if not (ROOT / folder / "raw" / "train-images-idx3-ubyte.gz").exists():
        pytest.skip(f"{ROOT / folder / 'raw'} is not on this machine")
    pool = BUILT_IN[name]().load(ROOT)
    assert pool.x_train.shape == (60000, 28, 28, 1) and pool.x_test.shape == (10000, 28, 28, 1)
    assert pool.x_train.dtype == np.uint8 and pool.y_test.dtype == np.int64
    assert set(pool.y_train) == set(range(10)) and pool.x_train.max() == 255
    assert capfd.readouterr() == ("", "")


def test_an_npz_under_the_root_is_used_before_anything_else(tmp_path):
    np.savez(tmp_path / "cifar10.npz", x_train=np.full((4, 32, 32, 3), 7, np.uint8), y_train=[0, 1, 2, 3],
             x_test=np.zeros((2, 32, 32, 3), np.uint8), y_test=np.array([4, 5], np.uint8))
    pool = BUILT_IN["cifar10"]().load(tmp_path)
    assert (pool.x_train == 7).all() and pool.y_test.tolist() == [4, 5] and pool.y_test.dtype == np.int64


def test_a_missing_set_names_the_file_to_put_and_the_place(tmp_path):
    # a file where torchvision's folder should be makes the download fail, with or without a network
    (tmp_path / "MNIST").write_text("")
    with pytest.raises(BadInput) as error:
        BUILT_IN["mnist"]().load(tmp_path)
    message = str(error.value)
    assert f"{tmp_path}/mnist.npz" in message and "x_train, y_train" in message and "data.root" in message
    assert f"{tmp_path}/MNIST/raw/" in message and "\n" not in message


def test_a_root_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="data.root"):
        BUILT_IN["cifar10"]().load(tmp_path / "file" / "root")


def test_a_file_for_a_set_that_takes_none_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="data.file = a.npz: digits has no use for it"):
        BUILT_IN["digits"]().load(tmp_path, "a.npz")


@pytest.mark.parametrize("x, dtype, shape", [
    (np.zeros((6, 5, 4), np.uint8), np.uint8, (5, 4, 1)),
    (np.zeros((6, 5, 4, 3), np.uint8), np.uint8, (5, 4, 3)),
    (np.zeros((6, 5), np.float64), np.float32, (5,)),
    (np.zeros((6, 5), np.float16), np.float32, (5,)),
    (np.zeros((6, 5), ">f4"), np.float32, (5,)),
    (np.zeros((6, 5, 4, 3), np.float32), np.float32, (5, 4, 3)),
    (np.zeros((6, 5), np.int32), np.int64, (5,)),
    (np.zeros((6, 5), np.uint16), np.int64, (5,)),
])
def test_arrays_are_brought_to_the_promised_types(tmp_path, x, dtype, shape):
    pool = load(save(tmp_path, **good(x_train=x)))
    assert pool.x_train.dtype == dtype == pool.x_test.dtype
    assert pool.x_train.shape == (6, *shape) and pool.x_test.shape == (0, *shape)


def test_arrays_keep_their_values_and_ignore_other_keys(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    pool = load(save(tmp_path, **good(x_train=x, x_test=x[:2], y_test=np.array([1, 0]), comment=np.arange(2))))
    np.testing.assert_array_equal(pool.x_train, x)
    np.testing.assert_array_equal(pool.x_test, x[:2])
    assert pool.y_train.tolist() == list(range(6)) and pool.y_test.tolist() == [1, 0]


OBJECTS = np.array([{}, 1, 2, 3, 4, 5], object)
BAD_ARRAYS = {
    "float labels": (good(y_train=np.zeros(6)), "y_train is float64"),
    "one-hot labels": (good(y_train=np.eye(6, dtype=int)), r"y_train is int64 \(6, 6\)"),
    "bool labels": (good(y_train=np.zeros(6, bool)), "y_train is bool"),
    "negative labels": (good(y_train=np.arange(6) - 1), "y_train goes from -1 to 4"),
    "absurd labels": (good(y_train=np.arange(6) + 10**9), "classes count from 0"),
    "lengths": (good(y_train=np.arange(5)), "6 samples, y_train 5 labels"),
    "NaN": (good(x_train=np.full((6, 3), np.nan)), "NaN"),
    "infinite": (good(x_train=np.full((6, 3), -np.inf)), "infinite"),
    "beyond float32": (good(x_train=np.full((6, 3), 1e300)), "beyond float32"),
    "no samples": (good(x_train=np.zeros((0, 3)), y_train=np.zeros(0, int)), "no samples"),
    "nothing in a sample": (good(x_train=np.zeros((6, 0))), "x_train is float64"),
    "complex": (good(x_train=np.zeros((6, 3), complex)), "x_train is complex128"),
    "text": (good(x_train=np.array([["a"]] * 6)), "x_train is <U1"),
    "bool": (good(x_train=np.zeros((6, 3), bool)), "x_train is bool"),
    "flat": (good(x_train=np.zeros(6)), r"x_train is float64 \(6,\)"),
    "flat bytes": (good(x_train=np.zeros((6, 3), np.uint8)), "uint8 images"),
    "scalar": (good(x_train=np.float32(1)), r"x_train is float32 \(\)"),
    "five axes": (good(x_train=np.zeros((6, 1, 1, 1, 1))), r"\(6, 1, 1, 1, 1\)"),
    "negative tokens": (good(x_train=np.full((6, 3), -1)), "negative tokens"),
    "tokens with three axes": (good(x_train=np.zeros((6, 3, 3), int)), "integer tokens"),
    "another test shape": (good(x_test=np.zeros((2, 4), np.float32), y_test=np.arange(2)), "must be alike"),
    "another test type": (good(x_test=np.zeros((2, 3), int), y_test=np.arange(2)), "must be alike"),
    "test labels only": (good(y_test=np.arange(2)), "both or neither"),
    "no labels": ({"x_train": np.zeros((6, 3))}, "holds x_train, but must hold"),
    "other names": ({"data": np.zeros(3)}, "holds data, but must hold"),
    "nothing": ({}, "holds nothing"),
    "pickled": (good(x_train=OBJECTS), "not plain arrays of numbers"),
    "pickled labels": (good(y_train=OBJECTS), "not plain arrays of numbers"),
}


@pytest.mark.parametrize("arrays, message", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_refused_with_their_file_and_reason(tmp_path, arrays, message):
    path = save(tmp_path, **arrays)
    with pytest.raises(BadInput, match=message) as error:
        load(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_pickle_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    with pytest.raises(BadInput):
        load(save(tmp_path, **good(x_train=np.array([Trap()] * 6, object))))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip at all", b"\x93NUMPY\x01\x00"])
def test_what_is_not_an_npz_is_refused(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not an .npz file"):
        load(path)


def test_a_damaged_npz_is_refused_wherever_it_is_damaged(tmp_path):
    path = save(tmp_path, **good())
    whole = path.read_bytes()
    inside = whole.index(np.arange(6).tobytes())        # the labels
    for broken in (whole[:inside] + b"\xff" + whole[inside + 1:], whole[:-10], whole[:inside]):
        path.write_bytes(broken)
        with pytest.raises(BadInput, match="damaged|cut short"):
            load(path)


def test_a_missing_file_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="data.file is missing"):
        BUILT_IN["arrays"]().load(tmp_path, None)
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(BadInput, match=f"{path}: cannot read the data set"):
            load(path)


def test_a_relative_path_starts_at_the_working_folder(tmp_path, monkeypatch):
    save(tmp_path, **good())
    monkeypatch.chdir(tmp_path)
    assert len(load("mine.npz").y_train) == 6


def test_a_third_partys_pool_may_be_lists_with_an_empty_test_part():
    pool = checked(Pool([[0.0], [1.0]], [0, 1], [], []), "data.name = theirs")
    assert pool.x_train.shape == (2, 1) and pool.x_test.shape == (0, 1)
    with pytest.raises(BadInput, match="data.name = theirs: y_train"):
        checked(Pool([[0.0]], [.5], [], []), "data.name = theirs")


def test_the_key_changes_when_the_file_does(tmp_path):
    path = save(tmp_path, **good())
    key = source_key("arrays", tmp_path, str(path))
    assert source_key("arrays", tmp_path, str(path)) == key
    save(tmp_path, **good(x_train=np.ones((6, 3), np.float32)))
    assert source_key("arrays", tmp_path, str(path)) != key
    assert source_key("mnist", tmp_path) == "mnist"
    path.rename(tmp_path / "mnist.npz")
    assert source_key("mnist", tmp_path) != "mnist"


def test_a_lock_that_cannot_be_had_is_done_without(tmp_path):
    with sources.alone(tmp_path / "no such folder" / "lock"):
        pass
