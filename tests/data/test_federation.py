import linecache
import operator
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.partitions import Dirichlet, FewShot, Iid, Pathological
from fedmpi.data.samples import Dataset, read_npz
from fedmpi.data.sources import BUILT_IN
from fedmpi.errors import BadInput

ROOT = Path("~/.cache/fedmpi/data").expanduser()


def test_a_federation_holds_every_sample_once(federation):
    f, pool = federation(), BUILT_IN["digits"]().load(ROOT)
    assert (f.clients, f.classes, f.shape, f.dtype, f.name) == (20, 10, (64,), np.float32, "digits")
    clients = [f.client(i) for i in range(20)]
    x = np.concatenate([part for c in clients for part in c[::2]])
    y = np.concatenate([part for c in clients for part in c[1::2]])
    rows = [np.column_stack([a, b]) for a, b in ((x, y), (pool.x_train, pool.y_train))]
    np.testing.assert_array_equal(*(r[np.lexsort(r.T)] for r in rows))


def test_counts_sizes_and_labels_are_those_of_the_samples(federation):
    f = federation(split=(.6, .2, .2))
    for i in range(f.clients):
        c = f.client(i)
        assert [len(part) for part in c[::2]] == [len(part) for part in c[1::2]] == f.counts[i].tolist()
        for part, y in enumerate(c[1::2]):
            np.testing.assert_array_equal(f.label_counts[i, part], np.bincount(y, minlength=10))
    np.testing.assert_array_equal(f.sizes, f.counts[:, 0])
    share = f.counts / f.counts.sum(1, keepdims=True)
    assert np.abs(share - [.6, .2, .2]).max() < .05


def test_a_share_of_the_data_set_has_all_its_classes_in_their_proportions(settings, tmp_path):
    y = np.repeat([0, 1, 2], [40, 20, 1])
    np.savez(tmp_path / "a.npz", x_train=np.arange(61.)[:, None], y_train=y)
    drawn = []
    for seed in (0, 1):
        data = settings(name="arrays", file=str(tmp_path / "a.npz"), clients=2, partition=Iid(), fraction=.25)
        f = Federation(prepare_federation(data, seed))
        assert f.label_counts.sum((0, 1)).tolist() == [10, 5, 1] and f.classes == 3
        parts = [f.client(i) for i in range(2)]
        pairs = [(int(x[0]), int(k)) for c in parts for part in (0, 4)
                 for x, k in zip(c[part], c[part + 1], strict=True)]
        assert all(y[x] == k for x, k in pairs)
        drawn.append(sorted(pairs))
    assert drawn[0] != drawn[1]


def test_samples_of_a_single_class_are_refused(settings, tmp_path):
    """A network with one output would take them for numbers to predict."""
    file = tmp_path / "one.npz"
    np.savez(file, x_train=np.ones((20, 3), np.float32), y_train=np.zeros(20, int))
    with pytest.raises(BadInput, match="data.name = arrays: all samples are of class 0, so there is nothing to learn"):
        prepare_federation(settings(name="arrays", file=str(file), clients=2, partition=Iid()), 0)
    numbers = settings(name="arrays", file=str(file), clients=2, partition=Iid(), task="regression")
    assert Federation(prepare_federation(numbers, 0)).classes == 1


def test_the_official_test_part_is_merged_in(settings, tmp_path):
    x = np.arange(50, dtype=np.uint8).repeat(12).reshape(50, 2, 2, 3)
    np.savez(tmp_path / "a.npz", x_train=x[:30], y_train=np.arange(30) % 3, x_test=x[30:], y_test=np.arange(20) % 5)
    f = Federation(prepare_federation(settings(name="arrays", file=str(tmp_path / "a.npz"), clients=4, partition=Iid()),
                                      0))
    clients = [f.client(i) for i in range(4)]
    pairs = [(int(x[0, 0, 0]), int(y)) for c in clients for k in (0, 2, 4) for x, y in zip(c[k], c[k + 1], strict=True)]
    assert sorted(pairs) == [(i, i % 3) for i in range(30)] + [(30 + i, i % 5) for i in range(20)]
    assert f.classes == 5 and f.dtype == np.uint8 and f.shape == (2, 2, 3)


def test_a_text_set_keeps_its_integers_and_says_how_many_words_it_has(settings, tmp_path):
    x = np.arange(200).reshape(40, 5)
    np.savez(tmp_path / "a.npz", x_train=x[:30], y_train=np.arange(30) % 3, x_test=x[30:], y_test=np.arange(10))
    f = Federation(prepare_federation(settings(name="arrays", file=str(tmp_path / "a.npz"), clients=2, partition=Iid()),
                                      0))
    assert (f.dtype, f.shape, f.vocabulary, f.classes) == (np.int32, (5,), 200, 10)
    assert f.client(0).x_train.dtype == np.int32 and f.client(1).y_train.dtype == np.int64


def test_who_is_few_shot_is_known(federation):
    f = federation(partition=FewShot(.3))
    few = (f.label_counts.sum(1) > 0).sum(1) == 2
    assert f.group_names == ["other", "few-shot"] and few.sum() == 6
    np.testing.assert_array_equal(f.groups == f.group_names.index("few-shot"), few)
    assert federation(partition=Pathological(2)).group_names is federation().vocabulary is None


def test_a_file_that_no_one_reads_is_refused_even_when_the_federation_is_there(settings):
    prepare_federation(settings(), 0)
    with pytest.raises(BadInput, match="data.file = none.npz: digits has no use for it; leave it out"):
        prepare_federation(settings(file="none.npz"), 0)


def test_what_a_download_brought_is_part_of_the_key(settings, tmp_path, monkeypatch):
    """Otherwise the second run would not find the first one's federation, and prepare it again."""
    def fetch(self, root):
        np.savez(root / "tissuemnist.npz", x_train=np.zeros((9, 28, 28), np.uint8), y_train=np.arange(9) % 3)
        return read_npz(root / "tissuemnist.npz")
    monkeypatch.setattr(BUILT_IN["tissuemnist"], "fetch", fetch)
    data = settings(name="tissuemnist", root=str(tmp_path), clients=3, partition=Iid())
    first = prepare_federation(data, 0)
    assert prepare_federation(data, 0) == first and os.listdir(first.parent) == [first.name]


def test_planted_groups_are_kept(federation):
    f = federation(partition=Pathological(2))
    np.testing.assert_array_equal(f.groups, np.repeat(np.arange(5), 4))
    assert ((f.label_counts.sum(1) > 0).sum(1) == 2).all()
    assert federation().groups is None


def test_a_client_with_one_sample_trains_on_it(federation, arrays):
    f = federation(**arrays(np.arange(6) % 2), clients=6, partition=Iid())
    assert f.counts.tolist() == [[1, 0, 0]] * 6
    assert f.client(5).x_train.shape == (1, 4) and f.client(5).x_test.shape == (0, 4)


def test_seed_and_settings_decide_the_contents(federation, settings, everything):
    first = everything(federation())
    os.unlink(prepare_federation(settings(), 0))
    assert everything(federation()) == first
    others = [federation(1), federation(partition=Dirichlet(.6)), federation(clients=19), federation(split=(.7, .3))]
    assert len({first[1], *(f.fingerprint for f in others)}) == 5
    assert len({f.path for f in others}) == 4


def test_a_clients_samples_are_shuffled_before_they_are_split(federation, arrays):
    f = federation(**arrays(np.arange(400) // 399), clients=1, partition=Told((tuple(range(400)),)))
    train = f.client(0).x_train[:, 0]
    assert abs(train.mean() - 200) < 30 and (np.diff(train) < 0).any()


def test_a_prepared_federation_is_used_again(settings):
    path = prepare_federation(settings(), 0)
    # The access time is left out: the second call reads the file.
    identity = operator.attrgetter("st_ino", "st_size", "st_mtime_ns")
    before = identity(path.stat())
    assert prepare_federation(settings(), 0) == path and identity(path.stat()) == before
    assert path.name.startswith("digits-dirichlet-20-") and len(path.stem.rpartition("-")[2]) == 12
    assert os.listdir(path.parent) == [path.name]


def test_a_changed_source_makes_another_federation(settings, arrays):
    first = prepare_federation(settings(**arrays(np.arange(60) % 3), clients=3), 0)
    second = prepare_federation(settings(**arrays(np.arange(61) % 3), clients=3), 0)
    assert first != second and Federation(second).counts.sum() == 61


def test_the_default_cache_lies_under_the_root(settings, tmp_path):
    assert prepare_federation(settings(cache=None, root=str(tmp_path)), 0).parent == tmp_path / "federations"


def test_a_client_that_is_not_there(federation):
    for i in (-1, 20):
        with pytest.raises(IndexError, match="of 20"):
            federation().client(i)


@dataclass(frozen=True)
class Told:
    """A third party's partition that returns given parts."""
    parts: tuple = ()
    title = "told"

    def assign(self, labels, clients, rng):
        return [np.array(part) for part in self.parts], None


def test_a_third_partys_partition_may_leave_samples_out(federation):
    f = federation(clients=2, partition=Told(((3, 1, 2), (7,))))
    assert f.counts.sum(1).tolist() == [3, 1] and f.settings["partition"]["name"].endswith(":Told")


THEIRS = """
class Small:
    def load(self, root, file):
        return [[1.], [2.]], LABELS, [], []
"""


def test_a_third_partys_data_set_is_made_again_when_its_code_changes(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Bytecode is compared with its source by whole seconds.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    data, paths = settings(name="theirs:Small", clients=2, partition=Iid()), []
    for labels in ("[0, 1]", "[0, 12]", "[0, .5]"):
        (tmp_path / "theirs.py").write_text(THEIRS.replace("LABELS", labels))
        sys.modules.pop("theirs", None)
        linecache.clearcache()
        if labels == "[0, .5]":
            with pytest.raises(BadInput, match="data.name = theirs:Small: y holds floats, and classes are integers"):
                prepare_federation(data, 0)
        else:
            paths.append(prepare_federation(data, 0))
    assert paths[0] != paths[1] and paths[0].name.startswith("theirs_Small-iid-2-")
    assert [Federation(path).classes for path in paths] == [2, 13]


def test_a_large_set_as_in_the_papers(federation):
    if not (ROOT / "cifar100.npz").exists():
        pytest.skip(f"{ROOT / 'cifar100.npz'} is not on this machine")
    f = federation(name="cifar100", partition=Dirichlet(.1))
    assert (f.counts.sum(), f.shape, f.classes, f.dtype) == (60_000, (32, 32, 3), 100, np.uint8)
    assert len(f.client(7).x_train) == f.sizes[7]


class Named:
    """A data set that names its classes, none or more than its samples have, or too few."""
    names = ()

    def load(self, root):
        return Dataset(np.ones((4, 2)), [0, 2, 2, 1], about={"class_names": list(self.names)})


@pytest.mark.parametrize("names, classes", [("", 3), ("abc", 3), ("abcde", 5)])
def test_classes_without_samples_count_if_the_data_set_names_them(federation, monkeypatch, names, classes):
    monkeypatch.setattr(Named, "names", names)
    f = federation(name=f"{__name__}:Named", clients=2, partition=Iid())
    assert f.classes == classes and f.label_counts.sum((0, 1)).tolist() == [1, 1, 2] + [0] * (classes - 3)


def test_classes_without_names_beside_others_with_names_are_refused(federation, monkeypatch):
    monkeypatch.setattr(Named, "names", "a")
    with pytest.raises(BadInput, match="class_names that are a list of 1, and y has labels up to 2; give a list of 3"):
        federation(name=f"{__name__}:Named", clients=2, partition=Iid())
