"""Data sets and partitions of one's own that name files, classes and inputs in another form than is asked for."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.assignment import assign_samples
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


class Pairs(Iid):
    """Gives samples 2 i and 2 i + 1 of the eight to client i."""
    group_names, names, kinds = None, None, [np.int64]

    def assign(self, labels, clients, rng):
        parts = [np.array([2 * i, 2 * i + 1], self.kinds[i % len(self.kinds)]) for i in range(clients)]
        return parts, np.arange(clients) % 2

    def name_clients(self):
        return self.names() if callable(self.names) else self.names


def assign(partition, about=None, y=Y):
    x = np.ones((len(y), 3), np.float32)
    pool = Dataset(x, y, x[:0], y[:0], np.arange(len(y)) % 4, y[:0], about)
    return assign_samples(pool, resolve({"data": {"partition": partition, "clients": 4, "fraction": 1}}).data, 0)


@pytest.mark.parametrize("names", [["a", "b", "c"], list("abcde"), "abcd", np.array(list("abcd")), [1, 2, 3, 4]])
def test_every_client_has_a_name_or_none(monkeypatch, names):
    said = "must be a list of 4 texts, a name for each, and not a (list|str|ndarray)"
    monkeypatch.setattr(Pairs, "names", names)
    with pytest.raises(BadInput, match=rf"Pairs: \S*test_own_sources.py:\d+: what its name_clients\(\) returns {said}"):
        assign(f"{__name__}:Pairs")
    if not isinstance(names, np.ndarray):
        with pytest.raises(BadInput, match=f"data.name = .*: the `client_names` in its `about` {said}"):
            assign({"name": "natural", "split": "drawn"}, {"client_names": names})


def test_names_of_clients_that_fail_are_named_with_their_partition(monkeypatch):
    monkeypatch.setattr(Pairs, "names", lambda self: [][1])
    with pytest.raises(FaultyCode, match="data.partition = .*Pairs: .*IndexError"):
        assign(f"{__name__}:Pairs")


@pytest.mark.parametrize("names, found", [(None, None), ((), None), (("a", "b"), ["a", "b"]), (["a", "b", "c"], None)])
def test_every_group_has_a_name_or_none(monkeypatch, names, found):
    monkeypatch.setattr(Pairs, "group_names", names)
    monkeypatch.setattr(Pairs, "names", tuple("wxyz"))
    dealt = assign(f"{__name__}:Pairs")
    # A partition may have names for groups that have no client.
    assert dealt.group_names == (found or names or None) and dealt.client_names == list("wxyz")
    for wrong in (["a"], "ab", [1, 2]):
        monkeypatch.setattr(Pairs, "group_names", wrong)
        with pytest.raises(BadInput, match="Pairs: its group_names must be a list of 2 texts"):
            assign(f"{__name__}:Pairs")


@pytest.mark.parametrize("kinds", [[np.uint8], [np.int16], [np.uint64, np.int64]])
def test_samples_may_be_numbered_by_integers_of_any_type(monkeypatch, kinds):
    """Numbers of small types would overflow, and those of mixed ones become floats."""
    monkeypatch.setattr(Pairs, "kinds", kinds)
    monkeypatch.setattr(Pairs, "names", None)
    dealt = assign(f"{__name__}:Pairs")
    assert dealt.order.dtype == np.int64 and sorted(dealt.order.tolist()) == [*range(8)]
