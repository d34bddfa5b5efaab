"""Pools from CSV and Parquet files, written by pandas: what a column means."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from tests.data.files import load, refusal

pytest.importorskip("pandas")

N = 24
WARDS = {"age": np.arange(N) + .5, "height": np.arange(N) * 2, "smoker": np.arange(N) % 2 == 0,
         "city": np.array(["Rome", "Oslo", "Bonn"])[np.arange(N) % 3],
         "ward": np.array(["west", "east"])[np.arange(N) // 4 % 2],
         "finding": np.array(["flu", "NA", "cold"])[np.arange(N) * 5 % 7 % 3],
         "part": np.array(["train", "validation", "test", "unused"])[np.arange(N) % 4]}
ASKED = {"label": "finding", "client": "ward", "part": "part", "categories": ["city"]}


@pytest.mark.parametrize("name", ["mine.csv", "mine.csv.gz", "mine.csv.xz", "mine.parquet"])
@pytest.mark.parametrize("rows", [7, 50_000])
def test_columns_become_features_classes_and_clients_with_their_names(write, monkeypatch, name, rows):
    for module in ("tables", "arrow_tables"):
        monkeypatch.setattr(f"fedmpi.data.{module}.TABLE_BLOCK_ROWS", rows)
    kind = "parquet" if name.endswith("parquet") else "csv"
    pool = load(name=kind, file=write(WARDS, name), **ASKED)
    assert pool.about["class_names"] == ["NA", "cold", "flu"] and pool.about["client_names"] == ["east", "west"]
    assert pool.about["feature_names"] == ["age", "height", "smoker", "city=Bonn", "city=Oslo", "city=Rome"]
    train, test = np.isin(WARDS["part"], ["train", "validation"]), WARDS["part"] == "test"
    city = np.stack([WARDS["city"] == name for name in ("Bonn", "Oslo", "Rome")], 1)
    x = np.column_stack([WARDS["age"], WARDS["height"], WARDS["smoker"], city]).astype(np.float32)
    for which, mine in (("train", train), ("test", test)):
        np.testing.assert_array_equal(getattr(pool, f"x_{which}"), x[mine])
        y = np.searchsorted(["NA", "cold", "flu"], WARDS["finding"][mine])
        assert getattr(pool, f"y_{which}").tolist() == y.tolist()
        assert getattr(pool, f"client_{which}").tolist() == (WARDS["ward"][mine] == "west").astype(int).tolist()


def test_a_second_file_is_the_test_part_whatever_the_order_of_its_columns(write):
    write({"a": [1, 2], "b": [3, 4], "y": [300, 7]})
    write({"y": [7, 12], "b": [5, 6], "a": [7, 8]}, "test.csv")
    asked = {"name": "csv", "file": "mine.csv", "test_file": "test.csv", "label": "y"}
    pool, source = load(**asked), resolve({"data": asked}).data.source
    assert pool.x_test.tolist() == [[7, 5], [8, 6]] and pool.x_train.tolist() == [[1, 3], [2, 4]]
    # whole numbers are sorted by size, over both files
    assert pool.about["class_names"] == ["7", "12", "300"] and (pool.y_train.tolist(), pool.y_test.tolist()) == (
        [2, 0], [0, 1])
    key = sources.make_source_key("csv", Path(), "mine.csv", source)
    write({"y": [7], "b": [5], "a": [7]}, "test.csv")
    assert sources.make_source_key("csv", Path(), "mine.csv", source) != key


@pytest.mark.parametrize("partition, more", [
    ("natural", {}), ("natural", {"new_clients": 1}), ("iid", {}), ("iid", {"split": [.5, .25, .25]}),
    ({"name": "natural", "split": "drawn"}, {"fraction": .5})])
def test_standardise_counts_the_samples_on_which_clients_train(write, tmp_path, partition, more):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, (40, 3)) * [1, 1000, 0]
    write({"a": x[:, 0], "b": x[:, 1], "constant": x[:, 2], "note": ["text"] * 40, "y": np.arange(40) % 2,
           "part": ["train"] * 30 + ["test"] * 10, "owner": np.arange(40) % 4})
    asked = {"name": "csv", "file": "mine.csv", "label": "y", "part": "part", "client": "owner", "cache": str(tmp_path),
             "features": ["b", "a", "constant"], "clients": 4, "partition": partition, **more}
    found, plain = (Federation(prepare_federation(resolve({"data": asked | {"standardise": each}}).data, 0))
                    for each in (True, False))
    everybody = range(4)
    train = np.concatenate([plain.client(i).x_train for i in everybody[:4 - more.get("new_clients", 0)]])
    mean, deviation = train[:, :2].mean(0), train[:, :2].std(0)
    if partition == "natural" and not more:
        assert sorted(train[:, 0].tolist()) == sorted(x[:30, 1].astype(np.float32).tolist())
    for i in everybody:
        for values, before in zip(found.client(i)[::2], plain.client(i)[::2], strict=True):
            np.testing.assert_allclose(values[:, :2], (before[:, :2] - mean) / deviation, 1e-4, 1e-5)
            assert not values[:, 2].any()
    assert found.names["feature_names"] == ["b", "a", "constant"]


def test_standardising_keeps_differences_that_single_precision_would_merge(write, tmp_path):
    """Single precision keeps two of 100 seconds since 1970 apart."""
    seconds = 1_600_000_000 + np.arange(100)
    write({"time": seconds, "a": np.arange(100) / 7, "y": np.arange(100) % 2})
    asked = {"name": "csv", "file": "mine.csv", "label": "y", "clients": 1, "partition": "iid", "cache": str(tmp_path)}
    found = Federation(prepare_federation(resolve({"data": asked | {"standardise": True}}).data, 0)).client(0)
    assert len(np.unique(np.concatenate([found.x_train, found.x_test])[:, 0])) == 100
    # Both columns rise evenly, so that they are the same once they are standardised.
    np.testing.assert_allclose(found.x_train[:, 0], found.x_train[:, 1], rtol=0, atol=1e-6)
    for name, values in (("time", seconds), ("day", 20240100 + np.arange(100))):
        write({name: values, "y": np.arange(100) % 2}, "other.csv")
        said = refusal(name="csv", file="other.csv", label="y")
        assert f"other.csv: the column '{name}' has numbers such as {values[0]}, of which features in single" in said
        assert "of 100 different ones; set data.standardise: true, or store" in said
    write({"id": np.arange(100) * 1_000_003 + 16_000_000, "y": np.arange(100) % 2}, "other.csv")
    assert len(np.unique(load(name="csv", file="other.csv", label="y").x_train)) == 100


def test_a_training_part_that_the_data_give_is_standardised_as_it_always_was(write, tmp_path):
    write(WARDS)
    asked = {"name": "csv", "file": "mine.csv", "label": "finding", "part": "part", "client": "ward", "clients": 2,
             "features": ["age", "height"], "partition": "natural", "standardise": True, "cache": str(tmp_path)}
    assert Federation(prepare_federation(resolve({"data": asked}).data, 0)).fingerprint.startswith("4670d9feb7091926")


def test_what_leaves_the_range_of_float32_is_refused(write, tmp_path):
    write({"a": [0., 1e-30, 1e30], "y": [0, 1, 1], "part": ["train", "train", "test"], "owner": [0, 0, 0]})
    with pytest.raises(BadInput, match="x_test has values that are NaN, infinite or beyond float32"):
        prepare_federation(resolve({"data": {
            "name": "csv", "file": "mine.csv", "label": "y", "part": "part", "client": "owner", "clients": 1,
            "partition": "natural", "standardise": True, "cache": str(tmp_path)}}).data, 0)


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_with_regression_the_labels_are_numbers_as_they_stand(write, name):
    write({"a": [1, 2, 3], "price": [700, 20, 20.5], "part": ["train", "test", "train"]}, name)
    asked = {"name": "parquet" if "parquet" in name else "csv", "file": name, "label": "price", "part": "part"}
    pool = load(**asked, task="regression")
    assert (pool.y_train.tolist(), pool.y_test.tolist()) == ([700, 20.5], [20]) and pool.y_train.dtype == np.float32
    assert pool.x_train.tolist() == [[1], [3]] and pool.about == {"feature_names": ["a"]}
    assert "data.label = price holds 20.5; classes are whole numbers or texts; set data.task = regression" in refusal(
        **asked)
    write({"a": [1, 2], "price": ["cheap", 3], "part": ["train", "test"]}, "texts.csv")
    source = resolve({"data": {"name": "csv", "label": "price", "part": "part"}}).data.source
    with pytest.raises(BadInput, match="texts.csv: row 1, column 'price' is 'cheap', no finite number"):
        sources.load_source("csv", Path("unused"), "texts.csv", source, "regression")


def test_a_whole_number_is_one_class_client_or_category_however_it_is_spelt(write):
    write("a,y,c,k\n1,2,10.0,1.\n2,2.0,9,1\n3,10,10,01\n4,x.0,9.00,-1.0\n", "test.csv")
    write("a,y,c,k\n1,10.0,10.0,1.0\n", "mine.csv")
    pool = load(name="csv", file="mine.csv", test_file="test.csv", label="y", client="c", categories=["k"])
    assert pool.about["class_names"] == ["2", "10", "x.0"] and pool.about["client_names"] == ["9", "10"]
    assert (pool.y_train.tolist(), pool.y_test.tolist(), pool.client_test.tolist()) == (
        [1], [0, 0, 1, 2], [1, 0, 1, 0])
    assert pool.about["feature_names"] == ["a", "k=-1", "k=01", "k=1"]
    assert pool.x_test[:, 1:].tolist() == [[0, 0, 1], [0, 0, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("content, more", [
    ("a,y\n1,cat\n2, cat\n", {}), ("a,y,k\n1,0,cat\n2,1, cat\n", {"categories": ["k"]}),
    ("a,y,k\n1,0,cat\n2,1, cat\n", {"client": "k"})])
def test_names_that_differ_in_blanks_only_are_refused(write, content, more):
    column = "k" if more else "y"
    assert refusal(name="csv", file=write(content), label="y", **more) == (
        f"mine.csv: column {column!r} holds ' cat' and 'cat', which differ in blanks only; write one of them in all "
        "rows")


def test_blanks_around_all_names_leave_their_order(write):
    pool = load(name="csv", file=write("a,y\n1, cat\n2,ant\n"), label="y")
    assert pool.about["class_names"] == [" cat", "ant"] and pool.y_train.tolist() == [0, 1]


def test_lists_of_numbers_are_no_targets(write):
    asked = {"name": "parquet", "file": "a.parquet", "label": "y", "task": "regression"}
    write({"a": [1., 2.], "y": [[3., 4.], [5., 6.]]}, "a.parquet")
    assert refusal(**asked).startswith("a.parquet: column 'y' holds 2 numbers in each row, and data.label takes a "
                                       "column of one; write each number to a column of its own")
    write({"a": [1., 2.], "y": [[3.], [5.]]}, "a.parquet")
    assert load(**asked).y_train.tolist() == [3, 5]


def test_pixels_in_columns_become_pictures(write):
    pixels = np.arange(48).reshape(4, 12) * 5
    write({f"p{i}": pixels[:, i] for i in range(12)} | {"digit": [3, 1, 3, 1]})
    pool = load(name="csv", file="mine.csv", label="digit", image_shape=[2, 3, 2])
    np.testing.assert_array_equal(pool.x_train, pixels.reshape(4, 2, 3, 2).astype(np.uint8))
    assert pool.x_train.dtype == np.uint8 and load(
        name="csv", file="mine.csv", label="digit", image_shape=[3, 4]).x_train.shape == (4, 3, 4, 1)
    assert "rows have 12 features, and data.image_shape = [4, 4] takes 16 pixels" in refusal(
        name="csv", file="mine.csv", label="digit", image_shape=[4, 4])
    write({"a": [.5, 300], "digit": [0, 1]})
    assert "features go from 0.5 to 300, and data.image_shape takes whole numbers" in refusal(
        name="csv", file="mine.csv", label="digit", image_shape=[1, 1])


def test_a_column_of_paths_or_of_bytes_holds_pictures(write, tmp_path):
    from PIL import Image
    x = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    (tmp_path / "pictures").mkdir()
    for i, pixels in enumerate(x):
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    names = [f"pictures/{i}.png" for i in range(3)]
    write({"picture": names, "y": list("aba")})
    asked = {"label": "y", "image": "picture"}
    np.testing.assert_array_equal(load(name="csv", file="mine.csv", **asked).x_train, x)
    assert load(name="csv", file="mine.csv", **asked, size=[2, 2], mode="L").x_train.shape == (3, 2, 2, 1)
    Image.fromarray(x[0]).resize((9, 9)).save(tmp_path / "pictures" / "1.png")
    assert refusal(name="csv", file="mine.csv", **asked).startswith(
        "mine.csv: row 2, column 'picture': is 9 x 9 pixels, and mine.csv: row 1, column 'picture' is 5 x 4; set "
        "data.size")
    content = [(tmp_path / name).read_bytes() for name in (names[0], names[2])]
    write({"picture": content, "y": list("aa")}, "p.parquet")
    np.testing.assert_array_equal(load(name="parquet", file="p.parquet", **asked).x_train, x[[0, 2]])


def test_pictures_come_in_blocks_of_which_one_may_hold_nothing_of_a_part(write, tmp_path, monkeypatch):
    from PIL import Image
    monkeypatch.setattr("fedmpi.data.tables.TABLE_BLOCK_ROWS", 2)
    x = np.random.default_rng(0).integers(0, 256, (5, 5, 4, 3), dtype=np.uint8)
    for i, pixels in enumerate(x):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    write({"picture": [f"{i}.png" for i in range(5)], "y": list("ababa"), "part": ["train"] * 3 + ["test"] * 2})
    asked = {"name": "csv", "file": "mine.csv", "label": "y", "image": "picture", "part": "part"}
    found = load(**asked)
    np.testing.assert_array_equal(found.x_train, x[:3])
    np.testing.assert_array_equal(found.x_test, x[3:])
    Image.fromarray(x[0]).resize((9, 9)).save(tmp_path / "2.png")
    assert refusal(**asked).startswith(
        "mine.csv: row 3, column 'picture': is 9 x 9 pixels, and those before it are 5 x 4; set data.size")


def test_a_home_of_nobody_is_one_line(write):
    write({"a": [1, 2], "y": [0, 1]})
    assert "there is no user of this name" in refusal(
        name="csv", file="mine.csv", label="y", test_file="~nobody9/x.csv")


def test_lists_of_numbers_in_parquet_are_as_many_features(write):
    write({"v": [[1., 2.], [3., 4.]], "k": [5, 6], "y": [True, False]}, "a.parquet")
    pool = load(name="parquet", file="a.parquet", label="y")
    assert pool.x_train.tolist() == [[1, 2, 5], [3, 4, 6]] and pool.about["class_names"] == ["False", "True"]
    assert pool.about["feature_names"] == ["v[0]", "v[1]", "k"]
    write({"v": [[1., 2.], [3.]], "y": [1, 0]}, "a.parquet")
    assert "row 2, column 'v' has a list of another length" in refusal(name="parquet", file="a.parquet", label="y")


def test_lists_of_another_length_in_a_later_block_are_one_line(write, monkeypatch):
    monkeypatch.setattr("fedmpi.data.arrow_tables.TABLE_BLOCK_ROWS", 2)
    write({"k": [5, 6, 7], "v": [[1., 2.], [3., 4.], [5., 6., 7.]], "y": [1, 0, 1]}, "a.parquet")
    assert "a.parquet: row 3, column 'v' has a list of 3 numbers, the rows before it lists of 2" in refusal(
        name="parquet", file="a.parquet", label="y")


WORDS = {"review": ["Good film!", "a bad, BAD film", "good"], "stars": ["up", "down", "up"]}


def test_texts_become_ids_of_the_words_of_the_training_part(write):
    tokenizers = pytest.importorskip("tokenizers")
    write(WORDS)
    write({"review": ["an awful film !", "good good good good"], "stars": ["down", "up"]}, "test.csv")
    pool = load(name="csv", file="mine.csv", test_file="test.csv", label="stars", text="review", length=4)
    # 0 is padding and 1 unknown; "bad", "film" and "good" occur twice, "!", "," and "a" once
    assert pool.x_train.tolist() == [[4, 3, 5, 0], [7, 2, 6, 2], [4, 0, 0, 0]] and pool.x_train.dtype == np.int32
    assert pool.x_test.tolist() == [[1, 1, 3, 5], [4, 4, 4, 4]]
    kept = tokenizers.Tokenizer.from_str(pool.about["tokenizer"])
    assert kept.encode("Good film, a Bad good one").ids == [4, 3, 6, 7, 2, 4, 1]
    few = load(name="csv", file="mine.csv", label="stars", text="review", length=4, vocabulary=4)
    assert few.x_train.tolist() == [[1, 3, 1, 0], [1, 2, 1, 2], [1, 0, 0, 0]]
    write({"review": ["good", " "], "stars": ["up", "down"]})
    assert "row 2, column 'review' is missing" in refusal(name="csv", file="mine.csv", label="stars", text="review")


@pytest.mark.parametrize("separator", ["\t", r"\t"])
def test_a_tab_may_be_written_as_in_python(write, separator):
    pool = load(name="csv", file=write("a\tb\ty\n1\t2 3\tu\n4\t5 6\tv\n"), label="y", features=["a"],
                separator=separator)
    assert pool.x_train.tolist() == [[1], [4]] and pool.about["class_names"] == ["u", "v"]


def test_a_class_may_be_called_like_a_number_that_is_not_finite(write):
    pool = load(name="csv", file=write("a,y\n1,inf\n2,low\n3,-inf\n4,nan\n"), label="y")
    assert pool.about["class_names"] == ["-inf", "inf", "low", "nan"]
