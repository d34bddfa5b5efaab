"""What is refused of CSV and Parquet files, with its row, and of the settings that say what their columns hold."""
from __future__ import annotations

import gzip
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

from fedmpi.errors import BadInput
from tests.data.files import load, refusal

pytest.importorskip("pandas")


@pytest.mark.parametrize("text, said", [
    ("", "mine.csv: is empty; it must be a CSV file with a header"),
    ("a,y\n", "mine.csv: has no rows for training; give a file with rows below the header"),
    ("a,y\n1,u\n,v\n", "mine.csv: row 2, column 'a' is missing; fill it in, remove the row, or leave the column out"),
    ("a,y\n1,u\n2\n", "mine.csv: row 2, column 'y' is missing; fill it in, or remove the row"),
    ("a,y\n1,u\n2,\n", "mine.csv: row 2, column 'y' is missing"),
    ("a,y\n1,u\nNA,v\n", "mine.csv: row 2, column 'a' is 'NA', no finite number; correct it, name the columns"),
    ("a,y\n1,u\ninf,v\n", "mine.csv: row 2, column 'a' is 'inf', no finite number"),
    ("a,y\n1,u\n2,v,3\n", "mine.csv: damaged, or not a CSV file with a header, in UTF-8 (Error tokenizing data. C "
     "error: Expected 2 fields in line 3, saw 3"),
    ("a,y\n1,u,5\n2,v,3\n", "Length of header or names does not match length of data"),
    ("a,y,a\n1,u,5\n", "mine.csv: has two columns 'a'; rename one"),
    ("a;y\n1;u\n", "mine.csv: has no column 'y', which data.label names; its columns are 'a;y'"),
    ("a,y\n1,0.25\n2,0.5\n", "mine.csv: data.label = y holds 0.25; classes are whole numbers or texts"),
    ("a,y\n" + "".join(f"1,user{i}\n" for i in range(60)), "mine.csv: data.label = y has 60 different values in 60 "
     "rows; it must be the column of the class, and not of a number or an id"),
    ("a,y\n1,caf\xe9\n".encode("latin1"), "mine.csv: is not UTF-8 (invalid continuation byte at byte 9); convert it"),
    ("a,y\n1,u\n".encode("utf-16"), "(invalid start byte at byte 0); convert it: iconv -f UTF-16 -t UTF-8"),
    (gzip.compress(b"a,y\n1,u\n", mtime=0), "; it is compressed: give it a name that ends with .gz"),
    (b"PK\3\4\xff\xff,\n", "a name that ends with .zip; if it is a workbook of Excel, save it as CSV"),
    (b"a,y\n\0\0,\0\n", "mine.csv: row 1, column "), ("a,y\n1e39,u\n2,v\n", "infinite or beyond float32"),
    (",a,y\n0,1,u\n1,2,v\n", "mine.csv: the column '' is called like the row numbers that pandas writes, and would be "
     "a feature; save the table without them (index=False), or name the features by data.features"),
    ("Unnamed: 0,a,y\n0,1,u\n1,2,v\n", "mine.csv: the column 'Unnamed: 0' is called like the row numbers"),
    ("y\n1\n0\n", "x_train is float32 (2, 0)")])
def test_a_file_that_is_no_table_of_numbers_is_one_line(write, text, said):
    assert said in refusal(name="csv", file=write(text), label="y")


def test_a_compressed_file_of_another_encoding_is_told_to_be_converted(write):
    write(gzip.compress("a,y\n1,caf\xe9\n".encode("latin1")), "mine.csv.gz")
    assert "convert it: iconv -f LATIN1 -t UTF-8" in refusal(name="csv", file="mine.csv.gz", label="y")


@pytest.mark.filterwarnings("error")
def test_what_is_beyond_single_precision_is_refused_without_a_warning(write):
    write("a,y,b\n1e39,1,1\n2,1e39,2\n")
    assert "x_train has values that are NaN, infinite or beyond float32" in refusal(
        name="csv", file="mine.csv", label="y")
    assert "y_train has targets that are NaN, infinite or beyond float32" in refusal(
        name="csv", file="mine.csv", label="y", task="regression", features=["b"])


def test_row_numbers_of_a_filtered_parquet_file_are_a_feature_only_if_they_are_named(write):
    pytest.importorskip("pyarrow")
    import pandas
    frame = pandas.DataFrame({"a": np.arange(6.), "y": [0, 1] * 3})
    frame[~frame.a.isin([1, 4])].to_parquet(write("", "mine.parquet"))
    asked = {"name": "parquet", "file": "mine.parquet", "label": "y"}
    assert "mine.parquet: the column '__index_level_0__' is called like the row numbers" in refusal(**asked)
    for features in (["a"], ["a", "__index_level_0__"]):
        assert load(**asked, features=features).x_train.shape == (4, len(features))


@pytest.mark.parametrize("values, said", [
    ([["a", "b"], ["c", "d"]], "row 1, column 'v' is a list, and neither a text nor a number; write one text for each"),
    ([{"q": "x"}, {"q": "y"}], "row 1, column 'v' is a dict, and neither a text nor a number"),
    ([b"fine", b"caf\xe9"], "row 2, column 'v' is not UTF-8 (unexpected end of data at byte 3); write texts, or bytes"),
    ([b"fine", b" "], None), ([b"fine", b""], "row 2, column 'v' is missing")])
@pytest.mark.parametrize("purpose", ["label", "client", "text"])
def test_what_is_no_text_is_none_by_its_looks_in_python(write, values, said, purpose):
    name = write({"v": values, "y": ["u", "w"], "a": [1, 2]}, "mine.parquet")
    asked = {"name": "parquet", "file": name, "label": "y", purpose: "v"} | (
        {} if purpose == "text" else {"features": ["a"]})
    if said or purpose == "text":      # a text of blanks is no text
        pytest.importorskip("tokenizers")
        assert (said or "row 2, column 'v' is missing") in refusal(**asked)
    else:
        pool = load(**asked)
        assert pool.about[{"label": "class_names", "client": "client_names"}[purpose]] == [" ", "fine"]


def test_texts_may_be_stored_as_bytes(write):
    pytest.importorskip("tokenizers")
    asked = {"name": "parquet", "label": "y", "text": "t", "length": 3}
    pools = [load(**asked, file=write({"t": texts, "y": [0, 1]}, "mine.parquet"))
             for texts in (["na\xefve fun", "fun"], ["na\xefve fun".encode(), b"fun"])]
    assert (pools[0].x_train == pools[1].x_train).all() and pools[0].about == pools[1].about


@pytest.mark.parametrize("setting", ["features", "categories"])
def test_a_list_that_names_no_column_is_named(write, setting):
    given = refusal(name="csv", file=write("a,y\n1,u\n"), label="y", **{setting: ["a", "b"]})
    assert f"mine.csv: has no column 'b', which data.{setting} names; its columns are 'a', 'y'" in given


@pytest.mark.parametrize("parts, setting, said", [
    (["train", "Test"], {}, "column 'p' has the parts 'Test', 'train', and the rows of 'Test' would be left out, for "
     "data.test_parts = ['test'] has 'test' for it; set data.test_parts: [Test]"),
    (["train", "val", "test"], {}, "the rows of 'val' would be left out, for data.train_parts = ['train', "
     "'validation'] has 'validation' for it; set data.train_parts: [train, val]"),
    (["train", "test", "test "], {}, "has 'test' for it; set data.test_parts: [test, test ]"),
    (["a", "A", "test"], {"train_parts": ["a"]}, "the rows of 'A' would be left out, for data.train_parts = ['a'] has"),
    (["train", "val", "test"], {"train_parts": ["train"]}, None), (["train", "unused", "test"], {}, None)])
def test_a_part_of_nearly_the_name_is_not_left_out(write, parts, setting, said):
    write({"a": range(len(parts)), "p": parts, "y": [0, 1, 0][:len(parts)]})
    asked = {"name": "csv", "file": "mine.csv", "label": "y", "part": "p", **setting}
    if said:
        assert said in refusal(**asked)
    else:
        assert len(load(**asked).y_train) == 1


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_rows_that_are_left_out_may_lack_anything(write, kind, task):
    if kind == "csv":
        name = write("a,p,y\n,no,\n1,train,1\n2,test,0\n,no,x\n3,train,0\n")
    else:
        name = write({"a": [None, 1, 2, None, 3], "p": ["no", "train", "test", "no", "train"],
                      "y": [None, 1, 0, None, 0]}, "mine.parquet")
    asked = {"name": kind, "file": name, "label": "y", "part": "p", "task": task}
    pool = load(**asked)
    assert pool.x_train.tolist() == [[1], [3]] and pool.x_test.tolist() == [[2]]
    assert (pool.y_train.tolist(), pool.y_test.tolist()) == ([1, 0], [0])
    # The number of a row is its place in the file.
    assert f"{name}: row 1, column 'y' is missing" in refusal(**asked, train_parts=["no"], test_parts=["train"])
    write("a,p,y\n,no,\n1,train,1\n,test,0\n", "gap.csv")
    assert "gap.csv: row 3, column 'a' is missing" in refusal(**asked | {"name": "csv", "file": "gap.csv"})


def test_rows_are_counted_through_all_blocks(write, monkeypatch):
    monkeypatch.setattr("fedmpi.data.tables.TABLE_BLOCK_ROWS", 2)
    write("a,y\n" + "1,u\n" * 4 + ",u\n")
    assert "mine.csv: row 5, column 'a' is missing" in refusal(name="csv", file="mine.csv", label="y")


@pytest.mark.parametrize("data, said", [
    ({}, "data.label is missing and has no default: set it"),
    ({"lable": "y"}, "data.lable is not a setting of CSV; its settings are label, features,"),
    ({"label": "y", "clientz": "a"}, "data.clientz is not a setting of CSV"),
    ({"label": "y", "part": "p", "test_file": "b.csv"}, "data.test_file = b.csv: data.part = p says already"),
    ({"label": "y", "text": "t", "standardise": True}, "data.text and standardise: samples are texts, pictures"),
    ({"label": "y", "text": "y"}, "data.text = y: two settings name this column; a column has one purpose"),
    ({"label": "y", "image_shape": [4]}, "data.image_shape = [4]: give height and width, and channels"),
    ({"label": "y", "image_shape": [1, 1], "standardise": True}, "data.image_shape and standardise: pixels stay"),
    *(({"label": "y", name: ""}, f"data.{name} is empty; give a name, or leave it out")
      for name in ("label", "text", "image", "client", "part", "tokenizer")),
    ({"label": "y", "image": "p", "size": [8, 0]}, "data.size = [8, 0]: give height and width, of a pixel at least"),
    ({"label": "y", "features": "a"}, "data.features = 'a': should be a list"),
    ({"label": "y", "part": "p", "train_parts": ["x"]}, "a.csv: column 'p' has the parts 'test', 'train', and "
     "data.train_parts names 'x', which is none of them; correct it"),
    ({"label": "y", "part": "p", "test_parts": ["test", "tset"]}, "data.test_parts names 'tset', which is none of"),
    ({"label": "y", "part": "p", "train_parts": ["validation"]}, "a.csv: has no rows for training with p in ['valid"),
    ({"label": "y", "part": "p", "test_parts": ["validation"]}, "data.test_parts = ['validation']: data.train_parts = "
     "['train', 'validation'] names validation, too, and nothing may be for training and for tests; set "
     "data.train_parts: [train]"),
    ({"label": "y", "part": "p", "train_parts": ["test"]}, "data.test_parts = ['test']: data.train_parts = ['test'] "
     "names test, too, and nothing may be for training and for tests; name other parts"),
    ({"label": "y", "test_parts": ["dev"]}, "data.test_parts: it is of use beside data.part only; set data.part, or "
     "leave test_parts out"),
    ({"label": "y", "text": "p", "mode": "L"}, "data.mode: it is of use beside data.image only; set data.image, or"),
    ({"label": "y", "image": "p", "length": 9}, "data.length: it is of use beside data.text only; set data.text, or"),
    ({"label": "y", "text": "p", "tokenizer": "t.json", "vocabulary": 9},
     "data.vocabulary: the ids are those of data.tokenizer; leave one of them out"),
    ({"label": "y", "tokenizer": "t.json"}, "data.tokenizer: it is of use beside data.text only; set data.text, or"),
    *(({"label": "y", "separator": given}, f"data.separator = {given!r}: give one character of ASCII, \\t for a tab")
      for given in ("", "||", "§", "\n")),
    ({"label": "y", "file": None}, "data.file is missing: data.name = csv needs the path of your data"),
    ({"label": "y", "file": "."}, ".: damaged, or not a CSV file with a header, in UTF-8 (it is a folder)"),
    ({"label": "y", "file": "b.csv"}, "b.csv: cannot read the data set: No such file or directory; set data.file"),
    ({"label": "y", "categories": ["p"], "test_file": "c.csv"}, "c.csv: its columns of features are 'b', those of the "
     "file before it 'a'; they must be alike: name some by data.features")])
def test_settings_that_do_not_fit_are_one_line(write, data, said):
    write({"a": [1, 2], "p": ["train", "test"], "y": [0, 1]}, "a.csv")
    write({"b": [1, 2], "p": ["train", "test"], "y": [0, 1]}, "c.csv")
    assert said in refusal(**{"name": "csv", "file": "a.csv", **data})


@pytest.mark.parametrize("name, content", [
    ("a.csv.gz", b"\x1f\x8b no gzip"), ("a.csv.xz", b"no xz"), ("a.csv.zip", b"no zip"), ("a.parquet", b"PAR1 no"),
    ("b.parquet", b"")])
def test_a_damaged_file_is_one_line(write, name, content):
    kind = "parquet" if "parquet" in name else "csv"
    assert f"{name}: damaged, or not a" in refusal(name=kind, file=write(content, name), label="y")


def test_a_missing_library_is_one_line_with_its_extra(write, monkeypatch):
    import sys
    for module, kind, extra in (("pandas", "csv", "pandas"), ("pyarrow", "parquet", "parquet")):
        monkeypatch.setitem(sys.modules, module, None)
        assert f"pip install 'fedmpi[{extra}]'" in refusal(name=kind, file=write("a,y\n1,0\n"), label="y")


def test_a_form_of_compression_that_pandas_lacks_is_one_line(write, monkeypatch):
    import sys
    # What Python of 3.14 and later has by itself.
    for module in ("zstandard", "compression.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    assert "a.csv.zst: cannot be read: " in refusal(name="csv", file=write(b"(\xb5/\xfd", "a.csv.zst"), label="y")


def test_more_than_the_machine_holds_is_refused_while_it_is_read(write, monkeypatch):
    monkeypatch.setattr("fedmpi.memory_check.read_machine_memory", lambda: 2 * 4 * 30)
    monkeypatch.setattr("fedmpi.data.tables.TABLE_BLOCK_ROWS", 10)
    write({"a": np.arange(100), "y": np.arange(100) % 2})
    assert "mine.csv: its samples, read up to row 31 and joined, take" in refusal(name="csv", file="mine.csv",
    label="y")


def test_values_of_categories_that_make_too_many_features_are_refused(write, monkeypatch):
    train = write({"a": range(40), "k": range(40), "l": ["u", "v"] * 20, "y": [0, 1] * 20})
    test = write({"a": range(9), "k": [3] * 9, "l": ["w"] * 9, "y": [1] * 9}, "test.csv")
    asked = {"name": "csv", "file": train, "test_file": test, "label": "y", "categories": ["k", "l"]}
    monkeypatch.setattr("fedmpi.memory_check.read_machine_memory", lambda: 4 * 49 * 44 - 1)
    assert "mine.csv: the features that 43 values of data.categories become take 8.032e-06 GiB" in refusal(**asked)
    monkeypatch.setattr("fedmpi.memory_check.read_machine_memory", lambda: 4 * 49 * 44)
    pool = load(**asked)
    np.testing.assert_array_equal(pool.x_train[:, 1:41], np.eye(40))
    assert pool.x_train[:2, 41:].tolist() == [[1, 0, 0], [0, 1, 0]] and pool.x_train.dtype == np.float32
    assert pool.x_test.sum() == 36 + 18 and pool.x_test[:, 4].all() and pool.x_test[:, 43].all()


def test_texts_and_ids_that_do_not_fit_are_refused(write, monkeypatch):
    pytest.importorskip("tokenizers")
    asked = {"name": "csv", "file": write({"t": ["good film"] * 20, "y": [0, 1] * 10}), "label": "y", "text": "t"}
    monkeypatch.setattr("fedmpi.memory_check.read_machine_memory", lambda: 9 * 20 - 1)
    assert "mine.csv: its samples, read up to row 1 and joined, take" in refusal(**asked, length=2)
    monkeypatch.setattr("fedmpi.memory_check.read_machine_memory", lambda: 9 * 20)
    assert load(**asked, length=2).x_train.shape == (20, 2)
    assert "data.length = 3: the ids of 20 texts take" in refusal(**asked, length=3)


@pytest.mark.parametrize("purpose", ["label", "client", "part", "categories"])
def test_a_long_text_in_another_column_takes_no_memory_for_each_row(write, purpose):
    """As if data.text and another column were mistaken for each other."""
    write({"long": ["x" * 20_000, *(f"text {i}" for i in range(999))], "a": range(1000), "y": [0, 1] * 500})
    asked = {"label": "y", "features": ["a"], purpose: ["long"] if purpose == "categories" else "long"}
    tracemalloc.start()
    try:
        with suppress(BadInput):
            load(name="csv", file="mine.csv", **asked)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_ids_beyond_64_bits_are_not_one(write):
    write({"a": [1, 2, 3], "y": [0, 1, 0], "id": [1e19, 3e19, 1e19]}, "mine.parquet")
    assert load(name="parquet", file="mine.parquet", label="y", client="id").client_train.tolist() == [0, 1, 0]


def test_zeros_at_the_end_of_bytes_do_not_count(write):
    write({"a": [1, 2, 3], "y": [b"up\0\0", b"down", b"up"], "p": [b"train", b"test\0", b"train"]}, "mine.parquet")
    pool = load(name="parquet", file="mine.parquet", label="y", part="p")
    assert pool.about["class_names"] == ["down", "up"] and [*pool.y_train, *pool.y_test] == [1, 1, 0]
