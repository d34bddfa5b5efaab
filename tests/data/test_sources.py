import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.data import downloads, file_states, public_datasets, sources
from fedmpi.data.sources import BUILT_IN, make_source_key
from fedmpi.errors import BadInput
from tests.data.files import good, save

ROOT = Path("~/.cache/fedmpi/data").expanduser()


def load(path):
    return BUILT_IN["arrays"]().load(Path("unused"), str(path))


def test_every_source_has_a_title_and_a_line_of_description():
    for source in BUILT_IN.values():
        assert source.__doc__ and "\n" not in source.__doc__.partition("\n\n")[0]
    # medmnist finds its classes by their titles, torchvision by `loader`.
    assert {name: source.title for name, source in BUILT_IN.items()} == {
        "digits": "digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
        "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet", "ag_news": "AG News", "pathmnist": "PathMNIST",
        "tissuemnist": "TissueMNIST", "arrays": "arrays", "csv": "CSV", "parquet": "Parquet",
        "huggingface": "Hugging Face folder", "image_folder": "image folder", "femnist": "FEMNIST",
        "shakespeare": "Shakespeare", "leaf": "LEAF"}


def test_digits_are_those_of_scikit_learn(tmp_path, monkeypatch):
    from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    pool = BUILT_IN["digits"]().load(tmp_path)
    assert pool.x_train.dtype == np.float32 and pool.y_train.dtype == np.int64
    np.testing.assert_array_equal(pool.x_train, (x / 16).astype(np.float32))
    np.testing.assert_array_equal(pool.y_train, y)
    assert pool.x_test.shape == (0, 64) and pool.y_test.shape == (0,)
    # If scikit-learn keeps the file elsewhere, its loader is used.
    monkeypatch.setattr(public_datasets.importlib.util, "find_spec", lambda name: SimpleNamespace(
        submodule_search_locations=[str(tmp_path)] if name == "sklearn" else None))
    for old, new in zip(pool, BUILT_IN["digits"]().load(tmp_path), strict=True):
        assert old is new is None or (old.dtype == new.dtype and (old == new).all())


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
    # A file in the place of torchvision's folder makes the download fail, with or without a network.
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


@pytest.mark.parametrize("name, there", [
    ("tiny_imagenet", "tiny-imagenet-200 (train/*/images, val/val_annotations.txt) of "
                      "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    ("ag_news", "ag_news_csv/train.csv and test.csv (columns class from 1, title, description; no header) of "
                "https://s3.amazonaws.com/fast-ai-nlp/ag_news_csv.tgz"),
    ("pathmnist", "pip install 'fedmpi[medmnist]'")])
def test_a_set_that_cannot_be_downloaded_says_what_to_put_there(tmp_path, monkeypatch, name, there):
    # This hides the package, as if it were not installed.
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(BadInput, match=f"data.name = {name}: not found under data.root = {tmp_path}") as error:
        sources.load_source(name, tmp_path)
    assert f"{tmp_path}/{name}.npz" in str(error.value) and there in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name, source in BUILT_IN.items() if not hasattr(source, "example")])
def test_a_file_for_a_set_that_takes_none_is_bad_input(tmp_path, name):
    # The preparation asks for the key first.
    for call in (sources.load_source, make_source_key):
        with pytest.raises(BadInput, match=f"data.file = a.npz: {name} has no use for it; leave it out"):
            call(name, tmp_path, "a.npz")


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


def test_the_key_changes_when_the_file_does(tmp_path):
    path = save(tmp_path, **good())
    key = make_source_key("arrays", tmp_path, str(path))
    assert make_source_key("arrays", tmp_path, str(path)) == key
    save(tmp_path, **good(x_train=np.ones((6, 3), np.float32)))
    assert make_source_key("arrays", tmp_path, str(path)) != key
    assert make_source_key("mnist", tmp_path) == "mnist"
    path.rename(tmp_path / "mnist.npz")
    assert make_source_key("mnist", tmp_path) != "mnist"


def test_the_key_holds_the_place_the_size_and_the_time_of_a_file(tmp_path):
    (tmp_path / "other").mkdir()
    path, other = tmp_path / "mine.npz", tmp_path / "other" / "mine.npz"

    def key(where, content, time):
        where.write_bytes(content)
        os.utime(where, ns=(1, time))
        return make_source_key("arrays", tmp_path, str(where))
    keys = [key(path, b"12", 5), key(path, b"12", 6), key(path, b"123", 5), key(other, b"12", 5)]
    assert keys[0] == f"arrays {path.resolve()} 2 5" and len(set(keys)) == 4
    # A missing file has no state, and a set's own .npz comes before the files that it is made of.
    assert make_source_key("arrays", tmp_path, "none.npz") == "arrays"
    (tmp_path / "ag_news_csv").mkdir()
    for name in ("ag_news_csv/train.csv", "ag_news.npz"):
        (tmp_path / name).write_bytes(b"1")
        os.utime(tmp_path / name, ns=(1, 7))
        assert make_source_key("ag_news", tmp_path) == f"ag_news {tmp_path.resolve() / name} 1 7"


def test_the_key_changes_with_the_files_that_a_set_is_read_from(tmp_path):
    assert make_source_key("ag_news", tmp_path) == "ag_news"
    (tmp_path / "ag_news_csv").mkdir()
    (tmp_path / "ag_news_csv" / "test.csv").write_text('"1","a","b"')
    key = make_source_key("ag_news", tmp_path)
    (tmp_path / "ag_news_csv" / "test.csv").write_text('"1","a","bc"')
    assert len({"ag_news", key, make_source_key("ag_news", tmp_path)}) == 3


class TheirsWithAFile:
    def load(self, root, file):
        return [[float(file)]], [0], [], []


class Theirs:
    def load(self, root):
        return [[1.]], [0], [], []


def test_a_third_partys_set_takes_a_file_if_its_load_does():
    here = __name__
    assert sources.load_source(f"{here}:TheirsWithAFile", ROOT, "7").x_train.tolist() == [[7.]]
    assert sources.load_source(f"{here}:Theirs", ROOT).x_train.tolist() == [[1.]]
    with pytest.raises(BadInput, match="data.file = 7: .*:Theirs has no use for it"):
        sources.load_source(f"{here}:Theirs", ROOT, "7")


@pytest.mark.parametrize("load, given", [
    (lambda root: root, 1), (lambda root, download=True: root, 1), (lambda root, path=None: root, 1),
    (lambda root, task="x": root, 1), (lambda root, file: root, 2), (lambda folder=".", file=None: folder, 2),
    (lambda root, path: root, 2), (lambda root, file=None, size=32: root, 2),
    (lambda root, file=None, *, task="x": root, 2), (lambda root, path, what: root, 3),
    (lambda root, file=None, task="x", more=1: root, 3), (lambda *given: given, 3),
    (lambda root, *given, a=1: root, 3)])
def test_only_parameters_that_are_for_them_get_the_file_and_the_task(load, given):
    assert max([1] + [count for count in (2, 3) if sources.accepts(load, count)]) == given


class TheirsWithADownload:
    def load(self, root, download=True):
        return [[float(download)]], [0], [], []


def test_an_optional_parameter_of_another_name_keeps_its_default():
    assert sources.load_source(f"{__name__}:TheirsWithADownload", ROOT).x_train.tolist() == [[1.]]
    with pytest.raises(BadInput, match="data.file = 7: .*:TheirsWithADownload has no use for it"):
        sources.load_source(f"{__name__}:TheirsWithADownload", ROOT, "7")


def test_a_lock_that_cannot_be_had_is_done_without(tmp_path):
    with downloads.hold_lock(tmp_path / "no such folder" / "lock"):
        pass


def count_up(lock: Path, counter: Path, times: int):
    """Add to a counter in a file, slowly enough for another process to interfere."""
    for _ in range(times):
        with downloads.hold_lock(lock):
            before = int(counter.read_text())
            time.sleep(.001)
            counter.write_text(str(before + 1))


def test_processes_that_download_keep_each_other_out(tmp_path):
    (tmp_path / "counter").write_text("0")
    children = []
    for _ in range(4):
        children.append(os.fork())
        if not children[-1]:
            try:
                count_up(tmp_path / "lock", tmp_path / "counter", 15)
                os._exit(0)
            finally:      # whatever happens, no second pytest goes on
                os._exit(1)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert (tmp_path / "counter").read_text() == "60"


def test_the_states_of_many_files_are_one_line_whatever_their_names_are(tmp_path):
    paths = [tmp_path / os.fsdecode(b"%d\xff" % i) for i in range(file_states.MANY_FILES + 1)]
    for path in paths:
        path.touch()
    (many,), few = file_states.describe_file_states(paths), file_states.describe_file_states(paths[1:])
    assert many.startswith("65 files ") and len(few) == 64
    paths[0].write_text("x")
    assert file_states.describe_file_states(paths) != [many]
