"""Data sets and partitions of one's own that name files, classes and inputs in another form than is asked for."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.federation import collect_recipe
from fedmpi.data.own_sources import list_inputs
from fedmpi.data.partitions import Iid
from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput, FaultyCode

X, Y = np.ones((8, 3), np.float32), np.arange(8) % 4


class Own:
    """A data set of one's own."""
    title, found, about = "own", None, None

    def load(self, root):
        return Dataset(X, Y, about=self.about)

    def files(self, root):
        return self.found


class Needing(Own):
    def __init__(self, k):
        self.k = k


@pytest.fixture
def own(monkeypatch):
    made = Own()
    monkeypatch.setattr(sources.registry, "find_class_of_setting", lambda kind, name, setting: Own)
    return made


@pytest.mark.parametrize("found, said", [
    ("/etc/hosts", "files() must return a list of paths, not a str; write [path] for a single one"),
    (b"/etc/hosts", "not a bytes"), (Path("/etc/hosts"), "not a PosixPath"), (None, "not a NoneType"), (3, "not a int"),
    ([b"/etc/hosts"], "files() must return a list of paths, not one of a bytes; give texts, or pathlib.Path"),
    ([3], "not one of a int")])
def test_a_single_path_is_no_list_of_paths(own, tmp_path, found, said):
    own.found = found
    with pytest.raises(BadInput) as caught:
        sources.list_data_files("mine:Own", tmp_path, source=own)
    assert said in str(caught.value) and "test_own_sources.py:" in str(caught.value)
    for several in (["/a", Path("/b")], {"/a": 1, "/b": 2}, iter(["/a", "/b"])):
        own.found = several
        assert sources.list_data_files("mine:Own", tmp_path, source=own) == [Path("/a"), Path("/b")]


@pytest.mark.parametrize("about, said", [
    (["a"], "load(): `about` must be a dictionary of lists, texts and numbers"),
    ({"class_names": list("abcd"), "more": np.arange(3)}, "and no arrays; write array.tolist()"),
    ({"class_names": ["a", "b"]}, "class_names that are a list of 2, and y has labels up to 3; give a list of 4 texts"),
    ({"class_names": "abcd"}, "class_names that are a str, and"), ({"class_names": [1, 2, 3, 4]}, "a list of 4 texts")])
def test_names_that_no_file_can_hold_are_refused(own, tmp_path, about, said):
    own.about = about
    with pytest.raises(BadInput) as caught:
        sources.load_source("mine:Own", tmp_path, source=own)
    assert said in str(caught.value) and "test_own_sources.py:" in str(caught.value)


@pytest.mark.parametrize("about", [None, {}, {"class_names": list("abcde")}, {"feature_names": ["a", "b", "c"]}])
def test_names_that_a_file_can_hold_are_kept(own, tmp_path, about):
    own.about = about
    assert sources.load_source("mine:Own", tmp_path, source=own).about == about


def test_a_data_set_that_needs_arguments_is_named_with_its_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sources.registry, "find_class_of_setting", lambda kind, name, setting: Needing)
    with pytest.raises(FaultyCode, match=r"test_own_sources\.py:\d+: TypeError: .*; repair it; it is made without arg"):
        sources.load_source("mine:Needing", tmp_path)


class Inputs(Iid):
    found = ()

    def list_inputs(self):
        return self.found


@pytest.mark.parametrize("found", ["abc", [Path("/tmp")], None, [np.arange(2)]])
def test_inputs_of_a_partition_are_texts_or_numbers(monkeypatch, tmp_path, found):
    monkeypatch.setattr(Inputs, "found", found)
    with pytest.raises(BadInput, match=r"data.partition: \S*test_own_sources.py:\d+: list_inputs\(\) must return a"):
        collect_recipe(resolve({"data": {"partition": f"{__name__}:Inputs"}}).data, 0, tmp_path)


def test_inputs_of_a_partition_count(monkeypatch):
    monkeypatch.setattr(Inputs, "found", ["a", 3])
    assert list_inputs(Inputs()) == ["a", 3] and list_inputs(Iid()) == []
