"""Folders that Hugging Face's package datasets has written: save_to_disk, and Parquet files of each part."""
from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.given_partitions import Natural
from fedmpi.errors import BadInput

SIZES = {"train": 10, "validation": 2, "test": 4}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with the same data set in three layouts, and its pictures, features and texts by part."""
    pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    folder, rng = tmp_path_factory.mktemp("hugging"), np.random.default_rng(0)
    features = datasets.Features({
        "image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ant", "never"]),
        "matrix": datasets.Array2D((2, 3), "float32"), "size": datasets.Value("int64"),
        "text": datasets.Value("string"), "owner": datasets.Value("string")})
    parts, kept = {}, {}
    for name, n in SIZES.items():
        pixels = rng.integers(0, 256, (n, 8, 6, 3), dtype=np.uint8)
        matrix = rng.normal(size=(n, 2, 3)).astype(np.float32)
        kept[name] = pixels, np.column_stack([matrix.reshape(n, 6), np.arange(n)])
        images = [datasets.Image().encode_example(picture) for picture in pixels]
        parts[name] = datasets.Dataset.from_dict({
            "image": images, "label": [i % 2 for i in range(n)], "matrix": matrix.tolist(), "size": list(range(n)),
            "text": [f"{name} {i % 3}" for i in range(n)], "owner": ["mia", "ben"] * (n // 2)}, features=features)
    datasets.DatasetDict(parts).save_to_disk(folder / "disk")
    parts["train"].save_to_disk(folder / "one", num_shards=3)
    (folder / "hub" / "data").mkdir(parents=True)
    for name, part in parts.items():
        part.to_parquet(folder / "hub" / "data" / f"{name}-00000-of-00001.parquet")
    return folder, kept


def load(folder, **data):
    found = resolve({"data": {"name": "huggingface", "file": str(folder), "label": "label", "partition": "natural",
                              **data}}).data
    return sources.load_source(found.name, folder, found.file, found.source)


@pytest.mark.parametrize("layout", ["disk", "hub", "one"])
def test_pictures_features_and_texts_of_each_layout(written, layout):
    folder, kept = written
    train = [kept[name] for name in (["train"] if layout == "one" else ["train", "validation"])]
    pool = load(folder / layout, image="image", client="owner")
    np.testing.assert_array_equal(pool.x_train, np.concatenate([pixels for pixels, _ in train]))
    assert pool.y_train.tolist() == [i % 2 for i in range(10)] + ([] if layout == "one" else [0, 1])
    assert pool.about["class_names"] == ["zebra", "ant", "never"] and pool.about["client_names"] == ["ben", "mia"]
    assert pool.client_train[:4].tolist() == [1, 0, 1, 0] and len(pool.y_test) == (0 if layout == "one" else 4)
    pool = load(folder / layout, features=["matrix", "size"])
    np.testing.assert_array_equal(pool.x_train, np.concatenate([x for _, x in train]).astype(np.float32))
    pytest.importorskip("tokenizers")
    pool = load(folder / layout, text="text", length=3)
    assert pool.x_train.shape == (10 if layout == "one" else 12, 3) and len(set(pool.x_train[:10, 1])) == 3


def test_a_part_without_rows_has_no_lists(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    columns = pyarrow.schema([("v", pyarrow.list_(pyarrow.float32())), ("label", pyarrow.int64())])
    for part, lists in (("train", [[1., 2.], [3., 4.]]), ("test", [])):
        (tmp_path / part).mkdir()
        with pyarrow.OSFile(str(tmp_path / part / "0.arrow"), "wb") as file, pyarrow.ipc.new_stream(
                file, columns) as stream:
            stream.write_table(pyarrow.table([lists, list(range(len(lists)))], schema=columns))
            stream.write_batch(pyarrow.RecordBatch.from_pylist([], schema=columns))
        (tmp_path / part / "state.json").write_text('{"_data_files": [{"filename": "0.arrow"}]}')
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    pool = load(tmp_path)
    assert pool.x_train.tolist() == [[1, 2], [3, 4]] and not len(pool.y_test)


def test_parts_are_chosen_by_their_names(written):
    folder, kept = written
    pool = load(folder / "disk", image="image", train_parts=["train"], test_parts=["validation"])
    np.testing.assert_array_equal(pool.x_test, kept["validation"][0])
    with pytest.raises(BadInput, match=r"has the parts train, validation, test, and data.train_parts = \['all'\]"):
        load(folder / "disk", image="image", train_parts=["all"])
    with pytest.raises(BadInput, match="disk: has the parts 'test', 'train', 'validation', and data.test_parts names "
                                       "'tset', which is none of them; correct it"):
        load(folder / "disk", image="image", test_parts=["tset"])
    with pytest.raises(BadInput, match=r"names validation, too, and nothing may .*; set data.train_parts: \[train\]"):
        load(folder / "disk", image="image", test_parts=["validation"])
    assert len(load(folder / "one", image="image").y_test) == 0


def test_a_run_sees_the_names_and_prepares_anew_what_has_changed(written, settings, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(written[0] / "disk", folder)
    source = resolve({"data": {"name": "huggingface", "file": "x", "label": "label", "image": "image",
                               "client": "owner", "partition": "natural"}}).data.source
    data = settings(name="huggingface", file=str(folder), source=source, clients=2, partition=Natural())
    found = Federation(prepare_federation(data, 0))
    assert found.names == {"class_names": ["zebra", "ant", "never"], "client_names": ["ben", "mia"]}
    assert found.classes == 3 and found.counts.tolist() == [[6, 0, 2]] * 2
    shutil.copytree(written[0] / "disk" / "test", folder / "test", dirs_exist_ok=True)
    (folder / "test" / "data-00000-of-00001.arrow").touch()
    assert prepare_federation(data, 0) != found.path


@pytest.mark.parametrize("spoil, said", [
    ("nothing", "holds no dataset_dict.json, no state.json and no Parquet file; give a folder"),
    ("state", "damaged, or not a folder that save_to_disk wrote"), ("arrow", "arrow: damaged, or not a"),
    ("missing", "data-00000-of-00001.arrow: cannot read the data set: "),
    ("unknown", "row 2, column 'label' is missing")])
def test_a_damaged_folder_is_one_line(written, tmp_path, spoil, said):
    folder = tmp_path / "copy"
    shutil.copytree(written[0] / "disk", folder)
    arrow = folder / "train" / "data-00000-of-00001.arrow"
    if spoil == "nothing":
        shutil.rmtree(folder)
    elif spoil == "state":
        (folder / "train" / "state.json").write_text("{")
    elif spoil == "arrow":
        arrow.write_bytes(arrow.read_bytes()[:2000])
    elif spoil == "missing":
        arrow.unlink()
    else:      # Hugging Face's mark of labels that are kept secret
        datasets = pytest.importorskip("datasets")
        features = datasets.Features({"label": datasets.ClassLabel(names=["a"]), "size": datasets.Value("int64")})
        secret = datasets.Dataset.from_dict({"label": [0, -1], "size": [1, 2]}, features=features)
        shutil.rmtree(folder)
        secret.save_to_disk(folder)
    with pytest.raises(BadInput) as error:
        load(folder, **({} if spoil == "unknown" else {"image": "image"}))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_no_file_outside_the_folder_is_read(written, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(written[0] / "one", folder)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"] = [{"filename": "../../secret.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(BadInput, match="copy/secret.arrow: cannot read"):
        load(folder, image="image")


def test_texts_that_claim_to_lie_outside_of_the_file_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.record_batch([pyarrow.array(["up", "down!"]), pyarrow.array([1, 2])], ["label", "size"])
    path = tmp_path / "data.arrow"
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_batch(table)
    true, false = (np.array([0, 2, end], np.int32).tobytes() for end in (7, 10 ** 9))
    assert path.read_bytes().count(true) == 1
    path.write_bytes(path.read_bytes().replace(true, false))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    with pytest.raises(BadInput, match="data.arrow: damaged, or not an Arrow file"):
        load(tmp_path)


def write_labels(path, labels, names=(), **columns):
    """Write a Parquet file, with the names of its classes as the package datasets stores them."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kept = {"huggingface": json.dumps({"info": {"features": {"label": {"names": list(names)}}}})} if names else {}
    table = pyarrow.table({"size": list(range(len(labels))), "label": labels, **columns})
    parquet.write_table(table.replace_schema_metadata(kept), path)


@pytest.mark.parametrize("train, test", [(("down", "up"), ()), ((), ("down", "up"))])
def test_names_of_classes_that_one_file_has_lost_are_missed(tmp_path, train, test):
    for part, names in (("train", train), ("test", test)):
        write_labels(tmp_path / f"{part}.parquet", [0, 1, 0], names)
    lost, kept = ("test", "train") if train else ("train", "test")
    said = f"{lost}.parquet: has no names for the numbers in column 'label', and .*{kept}.parquet has some; write both"
    two = {"name": "parquet", "test_file": f"{tmp_path}/test.parquet"}
    for asked in ((tmp_path,), (tmp_path / "train.parquet", two)):
        with pytest.raises(BadInput, match=said):
            load(asked[0], **dict(*asked[1:]))
    # Clients have names, too, and would be two each.
    with pytest.raises(BadInput, match=said):
        load(tmp_path, label="size", client="label", partition="natural")


def test_texts_in_one_file_are_the_names_of_another_or_none_of_them(tmp_path):
    write_labels(tmp_path / "train.parquet", [1, 0, 0], ["down", "up"])
    write_labels(tmp_path / "test.parquet", ["down", "up"])
    pool = load(tmp_path)
    assert (pool.y_train.tolist(), pool.y_test.tolist()) == ([1, 0, 0], [0, 1])
    write_labels(tmp_path / "test.parquet", ["down", "Up"])
    with pytest.raises(BadInput, match="test.parquet: column 'label' holds 'Up', and the first file names the classes "
                                       "'down', 'up'; correct it, or write all files with the same names"):
        load(tmp_path)


def test_rows_without_a_class_that_are_left_out_leave_the_others_their_names(tmp_path):
    write_labels(tmp_path / "train.parquet", [1, None, 0], ["down", "up"], p=["train", "secret", "test"])
    pool = load(tmp_path, part="p", features=["size"])
    assert pool.about["class_names"] == ["down", "up"] and [*pool.y_train, *pool.y_test] == [1, 0]
