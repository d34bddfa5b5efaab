"""The cache of federations: what makes another one, what is used again, and how it is written to disk."""
from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedmpi.config import schema
from fedmpi.data import federation as module
from fedmpi.data import sources
from fedmpi.data.federation import Federation, find_federation, make_federation_path, prepare_federation
from fedmpi.data.given_partitions import Indices
from fedmpi.data.partitions import BUILT_IN, Dirichlet, FewShot, Iid, Pathological
from fedmpi.data.samples import Dataset
from fedmpi.data.sources import Arrays
from fedmpi.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Table(Arrays):
    """Arrays with an additional setting."""
    label: str


# Changed settings of `data` that make another federation, by name, and those that do not.
OTHERS = {"name": {"name": "digits", "file": None}, "file": {"file": "b.npz"}, "fraction": {"fraction": .5},
          "clients": {"clients": 3}, "partition": {"partition": Dirichlet()}, "split": {"split": (.8, .2)},
          "new_clients": {"new_clients": 1}, "task": {"task": "regression"}, "source": {"source": Table("class")}}
SAME = {"root": "only where data sets lie", "cache": "only where federations are kept"}
# Two values of each setting of each partition.
SETTINGS = {"balanced": (True, False), "beta": (.1, .2), "procedure": ("capped", "plain"), "smallest": (None, 3),
            "tries": (10, 11), "classes_per_client": (1, 2), "n": (2, 3), "alpha": (.1, .2), "alpha_in": (10., 9.),
            "clusters": (10, 2), "classes_per_cluster": (3, 4), "gamma": (.1, .2), "classes": (5, 6),
            "few_classes": (2, 3), "amount": (None, 7), "split": ("given", "drawn"), "file": ("a.json", "b.json"),
            "partitioner": ("A", "B"), "settings": ({}, {"a": 1})}
# Settings without a default.
NEEDED = {"indices": {"file": "c.json"}, "flower": {"partitioner": "C"}}


def key(data: schema.Data, seed: int = 0) -> str:
    folder, root = module.find_folders(data)
    path, key, _ = make_federation_path(folder, data, seed, root)
    assert path.name.endswith(f"-{data.clients}-{key[:12]}.h5") and path.parent == folder and len(key) == 64
    return key


def test_every_setting_of_the_data_makes_another_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.npz", "b.npz"):
        np.savez(name, x_train=np.zeros((4, 2)), y_train=np.arange(4))
    base = schema.Data(name="arrays", file="a.npz", clients=2, partition=Iid(), root=str(tmp_path))
    assert {*OTHERS, *SAME} == {field.name for field in dataclasses.fields(schema.Data)}
    changed = [dataclasses.replace(base, **settings) for settings in (*OTHERS.values(), {"split": (.75, .05, .2)})]
    keys = [key(base), key(base, seed=1), *map(key, changed)]
    assert len(set(keys)) == len(keys) == 12
    elsewhere = dataclasses.replace(base, **{name: str(tmp_path / name) for name in SAME})
    assert key(elsewhere) == keys[0] and module.find_folders(elsewhere)[0] == tmp_path / "cache"


def test_every_setting_of_a_partition_makes_another_key(tmp_path):
    keys = {key(schema.Data(partition=cls(**NEEDED.get(name, {})))) for name, cls in BUILT_IN.items()}
    assert len(keys) == len(BUILT_IN)
    for name, cls in BUILT_IN.items():
        for field in dataclasses.fields(cls):
            pair = [cls(**NEEDED.get(name, {}) | {field.name: value}) for value in SETTINGS[field.name]]
            assert len({key(schema.Data(partition=partition)) for partition in pair}) == 2, (cls, field.name)


def test_the_format_and_foreign_code_are_part_of_the_key(monkeypatch):
    data = schema.Data(partition=Iid())
    before = key(data)
    monkeypatch.setattr(module, "FEDERATION_FORMAT", module.FEDERATION_FORMAT + 1)
    assert key(data) != before
    monkeypatch.undo()
    assert module.hash_class(Iid) == "" and key(data) == before
    table = schema.resolve({"data": {"name": "csv", "file": "a.csv", "label": "y"}}).data
    as_it_was = key(table)
    monkeypatch.setattr(type(table.source), "reader_format", type(table.source).reader_format + 1)
    assert key(table) != as_it_was and key(data) == before
    assert len(module.hash_class(Mine)) == 64 and key(schema.Data(partition=Mine())) != before


CELL = """
class Mine:
    size = 3

    def load(self, root):
        def scale(x):
            return x * 2
        return scale(self.size) if root in {"a", "b", "c"} else 0
"""


def test_a_class_of_a_notebook_is_told_apart_by_what_it_does(monkeypatch):
    """Such a class has no file. Blank lines before a cell, and where it runs, change nothing."""
    def hash_cell(text: str) -> str:
        monkeypatch.setitem(sys.modules, "cells", cells := ModuleType("cells"))
        exec(compile(text, "a cell", "exec"), vars(cells))
        return module.hash_class(cells.Mine)
    before = hash_cell(CELL)
    assert len(before) == 64 and hash_cell("\n\n" + CELL) == before
    for old, new in (("size = 3", "size = 4"), ("x * 2", "x * 3"), ("x * 2", "x + 2"), ('"c"', '"d"'),
                     ("scale(self.size)", "scale(self.share)")):
        assert hash_cell(CELL.replace(old, new)) != before


@dataclasses.dataclass(frozen=True)
class Mine(Iid):
    """A third party's partition."""


def test_a_file_that_holds_another_federation_is_not_used(settings, everything):
    """Somebody may have renamed the file, or two keys begin alike."""
    mine, other = prepare_federation(settings(), 0), prepare_federation(settings(), 1)
    good, wrong = everything(Federation(mine)), other.read_bytes()
    shutil.copy(other, mine)
    assert prepare_federation(settings(), 0) == mine and everything(Federation(mine)) == good
    assert other.read_bytes() == wrong and sorted(os.listdir(mine.parent)) == sorted([mine.name, other.name])


def test_what_is_there_is_found_and_nothing_is_made(settings):
    assert find_federation(settings(), 0) is None and not Path(settings().cache).exists()
    path = prepare_federation(settings(), 0)
    assert (
        find_federation(settings(), 0).path == path
        and find_federation(settings(), 1) is None
        and find_federation(settings(clients=19), 0) is None
    )
    os.truncate(path, 100)
    assert find_federation(settings(), 0) is None and path.stat().st_size == 100


def test_a_federation_is_on_the_disk_before_it_has_its_name(settings, monkeypatch):
    """It is written beside its place, flushed and renamed, and the folder is flushed: a node that fails leaves all or
    nothing."""
    done, fsync, replace = [], os.fsync, os.replace

    def flush(descriptor):
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def rename(old, new):
        # The file is complete and does not have its name yet.
        Federation(old).check()
        assert not new.exists()
        done.append(("rename", old, new))
        replace(old, new)
    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", rename)
    path = prepare_federation(settings(), 0)
    written = done[0][1]
    assert done == [("fsync", written)] * 2 + [("rename", written, path), ("fsync", path.parent)]
    assert written.parent == path.parent and written.name.startswith(f"{path.name}.") and written.suffix == ".tmp"
    assert os.listdir(path.parent) == [path.name]


def test_a_write_that_fails_leaves_nothing_beside(settings, monkeypatch):
    def fail(*_):
        raise OSError("no more room")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(BadInput, match="cannot write the federation: no more room; set data.cache to a folder"):
        prepare_federation(settings(), 0)
    assert os.listdir(settings().cache) == []


def test_what_was_not_drawn_alike_has_another_fingerprint(settings, arrays):
    """The fingerprint covers what a run reads: samples, labels, their holders, and the planted groups."""
    labels = np.arange(60) % 4
    prints = set()
    for changes in ({"partition": Pathological()}, {"partition": FewShot(.5, 2, 2)}, {"partition": Iid()},
                    {"partition": Iid(), "split": (.5, .5)}):
        prints.add(Federation(prepare_federation(settings(**arrays(labels), clients=4, **changes), 0)).fingerprint)
    prints.add(Federation(prepare_federation(settings(**arrays(labels[::-1]), clients=4, partition=Iid()),
                                             0)).fingerprint)
    assert len(prints) == 5


@pytest.fixture
def replace(monkeypatch):
    """Return a function that says what happens to the files each time after they were read."""
    def replace(*actions):
        load, left = sources.load_source, list(actions)

        def load_then_replace(*words):
            found = load(*words)
            left.pop(0)()
            return found
        monkeypatch.setattr(sources, "load_source", load_then_replace)
        return left
    return replace


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(settings, arrays, replace):
    data = settings(**arrays(np.arange(60) % 4), clients=4, partition=Iid())
    left = replace(lambda: arrays(np.arange(60) % 3), lambda: None)
    f = Federation(prepare_federation(data, 0))
    assert f.classes == 3 and not left and os.listdir(data.cache) == [f.path.name]
    assert prepare_federation(data, 0) == f.path


def test_files_that_change_whenever_they_are_read_are_refused(settings, arrays, replace):
    data = settings(**arrays(np.arange(60) % 4), clients=4, partition=Iid())
    replace(lambda: arrays(np.arange(80) % 3), lambda: arrays(np.arange(90) % 2))
    with pytest.raises(BadInput, match="mine.npz: its files, .* changed while they were read, .*; wait until nothing"):
        prepare_federation(data, 0)
    assert os.listdir(data.cache) == []


def test_a_partition_file_that_is_replaced_while_it_is_read_is_read_again(settings, arrays, replace, tmp_path):
    def give(*clients):
        (tmp_path / "who.json").write_text(str([list(client) for client in clients]))
    give(range(30), range(30, 60))
    data = settings(**arrays(np.arange(60) % 4), clients=2, partition=Indices(str(tmp_path / "who.json")))
    left = replace(lambda: give(range(9), range(9, 60)), lambda: None)
    assert Federation(prepare_federation(data, 0)).counts.sum(1).tolist() == [9, 51] and not left


def test_what_is_downloaded_is_read_once(settings, monkeypatch, replace, tmp_path):
    """Of its files none was there before."""
    monkeypatch.setattr(Fetched, "files", lambda self, root: [tmp_path / "fetched.txt"], raising=False)
    replace(lambda: (tmp_path / "fetched.txt").write_text("here"))
    data = settings(name=f"{__name__}:Fetched", clients=2, partition=Iid())
    path = prepare_federation(data, 0)
    assert Federation(path).key == find_federation(data, 0).key


class Fetched:
    """A third party's data set."""

    def load(self, root):
        return Dataset(np.zeros((8, 2), np.float32), np.arange(8) % 2)


def test_classes_and_words_are_counted_over_both_parts(settings, tmp_path):
    for train, test in ((9, 3), (3, 9)):
        x, y = (np.array([[0, n], [1, 1]]) for n in (train, test))
        np.savez(tmp_path / "a.npz", x_train=x, y_train=np.array([0, train]), x_test=y, y_test=np.array([0, test]))
        f = Federation(prepare_federation(settings(name="arrays", file=str(tmp_path / "a.npz"), clients=2,
                                                   partition=Iid()), 0))
        assert (f.classes, f.vocabulary) == (10, 10)
