"""To which part of a data set the Parquet files of a folder belong, by their names and those of their folders."""
from __future__ import annotations

import shutil

import pytest

from tests.data.files import load, refusal

SHARD = "-00000-of-00001"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a function that writes Parquet files, whose features count through all of them, below the folder hub."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)

    def write(*names, rows=4):
        shutil.rmtree("hub", ignore_errors=True)
        for i, name in enumerate(names):
            path = tmp_path / "hub" / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            first = i * rows
            parquet.write_table(pyarrow.table({
                "a": [float(k) for k in range(first, first + rows)], "label": [k % 2 for k in range(rows)]}), path)
    return write


def asked(**data):
    return {"name": "huggingface", "file": "hub", "label": "label", "partition": "iid", **data}


def read_files(**data):
    """Return the numbers of the files, in the order of their writing, whose rows are for training and for tests."""
    pool = load(**asked(**data))
    return [sorted({int(value) // 4 for value in x[:, 0]}) for x in (pool.x_train, pool.x_test)]


@pytest.mark.parametrize("names, found", [
    (["train" + SHARD, "test" + SHARD], [[0], [1]]),
    (["data/train-00000-of-00002-0a1b", "data/train-00001-of-00002-2c3d", "data/test" + SHARD], [[0, 1], [2]]),
    (["train/0000", "train/0001", "test/0000", "unsupervised/0000"], [[0, 1], [2]]),
    (["plain/train/part-0.snappy", "plain/test/part-0.snappy"], [[0], [1]]),
    (["train", "dev", "eval"], [[0, 1], [2]]), (["train_1", "train-2", "Test"], [[0, 1], [2]]),
    (["2019", "2020"], [[0, 1], []]), (["north", "south"], [[0, 1], []]), (["latin/0000", "latin/0001"], [[0, 1], []]),
    # What is no part that a setting names is left out.
    (["train" + SHARD, "test" + SHARD, "extra" + SHARD], [[0], [1]]),
    (["train" + SHARD, "devtest" + SHARD], [[0], []]), (["train" + SHARD, "test_hard" + SHARD], [[0], []]),
    (["train", "test", "eval"], [[0], [1]])])
def test_the_part_of_a_file_is_the_one_it_names(folder, names, found):
    folder(*names)
    assert read_files() == found


@pytest.mark.parametrize("names, setting, found", [
    (["train", "extra", "test"], {"train_parts": ["train", "extra"]}, [[0, 1], [2]]),
    (["train", "extra", "test"], {"test_parts": ["extra"]}, [[0], [1]]),
    (["first", "second", "third"], {"train_parts": ["second"], "test_parts": ["third"]}, [[1], [2]]),
    (["train", "val", "test"], {"train_parts": ["train", "val"]}, [[0, 1], [2]]),
    (["train", "val", "test"], {"train_parts": ["train"], "test_parts": ["validation"]}, [[0], [1]]),
    (["my_train", "my_test"], {"train_parts": ["my_train"], "test_parts": ["my_test"]}, [[0], [1]]),
    (["a/0000", "b/0000"], {"train_parts": ["a", "b"]}, [[0, 1], []])])
def test_settings_name_parts_of_any_name(folder, names, setting, found):
    folder(*names)
    assert read_files(**setting) == found


def test_parts_that_are_left_out_are_said(folder, capfd):
    folder("train" + SHARD, "test" + SHARD, "extra" + SHARD)
    load(**asked())
    assert capfd.readouterr() == ("", "hub: left out are the parts 'extra', which neither data.train_parts nor "
                                      "data.test_parts names\n")
    load(**asked(train_parts=["train", "extra"]))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("names", [["my_train", "my_test"], ["traindata", "testdata"], ["train_sft" + SHARD]])
def test_names_that_only_look_like_a_part_are_not_all_for_training(folder, names):
    folder(*names)
    assert "name those for training" in refusal(**asked())


@pytest.mark.parametrize("names, part, several", [
    (["split/train" + SHARD, "split/test" + SHARD, "unsplit/train" + SHARD], "train", ["split", "unsplit"]),
    (["split/train/0000", "split/test/0000", "unsplit/train/0000"], "train", ["split", "unsplit"]),
    (["train" + SHARD, "a/test" + SHARD, "b/test" + SHARD], "test", ["a", "b"]),
    (["a/dev", "b/val", "b/train"], "validation", ["a", "b"]), (["en/0000", "fr/0000"], "train", ["en", "fr"])])
def test_several_configurations_are_refused(folder, names, part, several):
    folder(*names)
    assert refusal(**asked()) == (
        f"data.file = hub: files of the part {part!r} lie in several folders, as those of several configurations do, "
        f"which may hold the same samples; give one of {', '.join(repr(f'hub/{base}') for base in several)}")
    if part == "train":
        assert read_files(file=f"hub/{several[0]}") == ([[0], [1]] if len(names) == 3 else [[0], []])


def test_other_configurations_may_have_parts_that_are_left_out(folder):
    folder("data/train" + SHARD, "a/extra" + SHARD, "b/extra" + SHARD)
    assert read_files() == [[0], []]


def test_a_saved_dictionary_has_its_parts_by_the_same_names(tmp_path, capfd):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("pyarrow")
    datasets.disable_progress_bars()
    parts = {name: datasets.Dataset.from_dict({"a": [4. * i], "label": [0]})
             for i, name in enumerate(["train", "dev", "eval", "extra"])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    capfd.readouterr()
    assert read_files(file=str(tmp_path / "saved")) == [[0, 1], [2]]
    assert "left out are the parts 'extra'," in capfd.readouterr().err
    assert read_files(file=str(tmp_path / "saved"), train_parts=["train", "extra"]) == [[0, 3], [2]]
