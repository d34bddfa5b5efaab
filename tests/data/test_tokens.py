"""Tokenizers of the user's own, and the id with which they pad short texts."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedmpi.assembly import build_method
from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from tests.data.files import load, refusal
from tests.data.test_tables import WORDS

tokenizers = pytest.importorskip("tokenizers")


def save(vocabulary, unknown="<unk>", special=(), **padding):
    """Write own.json, a tokenizer of these words."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unknown))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(list(special))
    if padding:
        made.enable_padding(**padding)
    made.save("own.json")


@pytest.fixture
def asked(write):
    """Return the settings of texts that own.json makes to ids."""
    return {"name": "csv", "file": write(WORDS), "label": "stars", "text": "review", "length": 3,
            "tokenizer": "own.json"}


def test_a_tokenizer_of_ones_own_is_used_with_its_padding(write, asked):
    save(["<unk>", "good", "film", "<pad>"])
    pool = load(**asked)
    assert pool.x_train.tolist() == [[0, 2, 0], [0, 0, 0], [1, 3, 3]] and pool.about["padding_id"] == 3
    assert json.loads(pool.about["tokenizer"])["model"]["vocab"]["film"] == 2
    source = resolve({"data": asked}).data.source
    key = sources.make_source_key("csv", Path(), "mine.csv", source)
    write("{}", "own.json")
    assert sources.make_source_key("csv", Path(), "mine.csv", source) != key
    assert "data.tokenizer = own.json: cannot read it" in refusal(**asked)


@pytest.mark.parametrize("vocabulary, settings, last, padding", [
    (["good", "film", "<blank>", "<unk>"], {"pad_id": 2, "pad_token": "<blank>", "length": 9}, [0, 2, 2], 2),
    (["good", "<pad>", "<blank>", "<unk>"], {"pad_id": 2, "pad_token": "<blank>", "direction": "left"}, [2, 2, 0], 2),
    (["good", "<pad>", "<unk>"], {"pad_id": 1, "pad_token": "<pad>", "direction": "left", "length": 9}, [1, 1, 0], 1),
    (["<unk>", "good"], {}, [1, 0, 0], 0), (["<s>", "good", "<unk>"], {"special": ["<s>"]}, [1, 0, 0], 0)])
def test_the_file_says_how_it_pads_or_0_is_no_word(asked, vocabulary, settings, last, padding):
    save(vocabulary, **settings)
    pool = load(**asked)
    assert pool.x_train[2].tolist() == last and pool.about["padding_id"] == padding


def test_a_word_does_not_stand_for_padding(asked):
    save(["good", "film", "<unk>"])
    assert refusal(**asked) == (
        "data.tokenizer = own.json: has no padding, and 0, which would stand for it, is the id of 'good'; let "
        "Tokenizer.enable_padding name a token for it, and save the file again")


def test_a_table_that_keeps_another_row_for_padding_is_refused(asked, settings):
    def prepare():
        data = resolve({"data": {**asked, "partition": "iid", "clients": 2}}).data
        return Federation(prepare_federation(settings(
            name="csv", file=data.file, source=data.source, clients=2, partition=data.partition), 0))
    config = resolve({"model": {"name": "fasttext", "vocabulary": 9, "width": 2}})
    save(["<unk>", "good", "film", "<pad>"])
    with pytest.raises(BadInput, match="model: its table keeps the row 0 for padding, and data.tokenizer pads texts "
                                       "with the id 3; take a tokenizer that pads with 0, or another network"):
        build_method(config, prepare())
    save(["<pad>", "good", "film", "<unk>"])
    assert build_method(config, prepare()).model.size


def test_texts_are_encoded_batch_by_batch(asked, monkeypatch):
    save(["<unk>", "good", "film", "<pad>"])
    whole = load(**asked).x_train.tolist()
    monkeypatch.setattr("fedmpi.data.tokens.BATCH_TEXTS", 2)
    assert load(**asked).x_train.tolist() == whole == [[0, 2, 0], [0, 0, 0], [1, 3, 3]]
