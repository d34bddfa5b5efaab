import csv
from pathlib import Path

import numpy as np
import pytest

from fedmpi.assembly import build_method
from fedmpi.config.schema import resolve
from fedmpi.data import ag_news
from fedmpi.data.partitions import Iid
from fedmpi.data.sources import BUILT_IN
from fedmpi.errors import BadInput

ROOT = Path("~/.cache/fedmpi/data").expanduser()


def store(folder, train, test):
    """Write the two CSV files as AG News has them."""
    (folder / "ag_news_csv").mkdir(exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        with open(folder / "ag_news_csv" / f"{name}.csv", "w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return folder


@pytest.mark.parametrize("written, tokens", [
    ("Oil prices ROSE", "oil prices rose"), ("it's 5,000.", "it ' s 5 , 000 ."), ('a "quoted" word', "a quoted word"),
    ("why? no! (AP)", "why ? no ! ( ap )"), ("a;b:c", "a b c"), ("one<br />two", "one two"),
    ("  wide\t gaps ", "wide gaps"), ("#36;10 A&B", "#36 10 a&b"), ("", "")])
def test_basic_english_tokens(written, tokens):
    assert ag_news.split_into_tokens(written) == tokens.split()


def test_the_vocabulary_counts_from_one_by_frequency_and_then_by_the_alphabet():
    assert ag_news.make_vocabulary([["b", "c", "b"], ["a", "c", "b"]]) == {"b": 1, "c": 2, "a": 3}


def test_texts_are_cut_or_padded_with_zero():
    x = ag_news.encode_texts([["a", "b", "unheard"], ["b"] * 9, []], {"a": 1, "b": 2}, 4)
    assert x.dtype == np.int32 and x.tolist() == [[1, 2, 0, 0], [2, 2, 2, 2], [0, 0, 0, 0]]


def test_a_set_has_title_and_description_and_one_vocabulary_for_both_parts(tmp_path):
    store(tmp_path, [(1, "A", "b, a"), (4, "", "b")], [(2, "only here", "b")])
    pool = BUILT_IN["ag_news"]().load(tmp_path)
    # "b" occurs 3 times, "a" twice; ",", "here" and "only" occur once each.
    assert pool.x_train[:, :5].tolist() == [[2, 1, 3, 2, 0], [1, 0, 0, 0, 0]]
    assert pool.x_test[0, :4].tolist() == [5, 4, 1, 0]
    assert pool.x_train.shape == (2, 200) and pool.x_test.dtype == np.int32
    assert pool.y_train.tolist() == [0, 3] and pool.y_test.tolist() == [1]


@pytest.mark.parametrize("rows", [
    [], [(0, "a", "b")], [("x", "a", "b")], [(1,)], [(10**20, "a", "b")], [(1, "a", "b"), ()]], ids=repr)
def test_what_is_no_such_csv_is_refused_with_its_name(tmp_path, rows):
    store(tmp_path, [(1, "a", "b")], rows)
    with pytest.raises(BadInput, match=r"ag_news_csv/test.csv: .*columns class") as error:
        BUILT_IN["ag_news"]().load(tmp_path)
    assert "\n" not in str(error.value)


def test_other_encodings_are_refused(tmp_path):
    store(tmp_path, [(1, "a", "b")], [(1, "a", "b")])
    (tmp_path / "ag_news_csv" / "train.csv").write_bytes(b'"1","caf\xe9","b"')
    with pytest.raises(BadInput, match="train.csv: cannot read the news"):
        BUILT_IN["ag_news"]().load(tmp_path)


def test_more_words_than_the_table_has_rows_are_refused_before_anything_starts(federation, tmp_path):
    store(tmp_path, [(1 + i % 2, "", f"word{i}") for i in range(9)], [(1, "", "word3")])
    f = federation(name="ag_news", root=str(tmp_path), clients=2, partition=Iid())
    assert f.vocabulary == 10
    model = {"name": "fasttext", "vocabulary": 10, "width": 2}
    assert build_method(resolve({"model": model}), f).model.size == 10 * 2 + 6 + 6
    with pytest.raises(BadInput, match="has 9 rows, but the data count .* to 9; set model.vocabulary = 10 or more"):
        build_method(resolve({"model": {**model, "vocabulary": 9}}), f)


def test_ag_news_itself(federation):
    if not (ROOT / "ag_news_csv" / "test.csv").exists():
        pytest.skip(f"{ROOT / 'ag_news_csv'} is not on this machine")
    f = federation(name="ag_news", clients=10)
    assert (f.classes, f.shape, f.dtype) == (4, (200,), np.int32) and f.counts.sum() >= 12_600
    client = f.client(3)
    assert client.x_train.max() < f.vocabulary <= 98_635 and client.x_train.min() == 0
    assert 20 < (client.x_train > 0).sum(1).mean() < 100
