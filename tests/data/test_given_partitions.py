"""Who holds what, as a file or the data say; what Flower's partitioners make of the same labels."""
from __future__ import annotations

import json
import os
import sys
from types import ModuleType

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data.assignment import assign_samples
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.given_partitions import Indices, Natural
from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput

LABELS = np.arange(60) % 4


@pytest.fixture
def prepare(settings, arrays):
    """Return a function that prepares the federation of 60 samples with some settings of `data`."""
    saved = arrays(LABELS)

    def prepare(**data):
        return Federation(prepare_federation(settings(**saved, **data), 0))
    return prepare


def held(federation) -> list[list[int]]:
    """Return the samples of each client in the order of their numbers, which are their first features."""
    clients = [federation.client(i) for i in range(federation.clients)]
    return [sorted(int(x[0]) for part in (c.x_train, c.x_val, c.x_test) for x in part) for c in clients]


@pytest.mark.parametrize("kind", ["names", "list", "npz", "npy"])
def test_a_file_says_who_holds_which_samples(prepare, tmp_path, kind):
    parts = {"north": [3, 1, 2, 59], "south": [10, 4], "west": [20, 21, 22]}
    path = tmp_path / f"clients.{kind if kind.startswith('np') else 'json'}"
    if kind == "npz":
        np.savez(path, **{f"k{9 - i}": part for i, part in enumerate(parts.values())})
    elif kind == "npy":
        client = np.full(60, -1)
        for i, part in enumerate(parts.values()):
            client[part] = i
        np.save(path, client)
    else:
        path.write_text(json.dumps(parts if kind == "names" else list(parts.values())))
    found = prepare(clients=3, partition=Indices(str(path)), split=(.5, .5))
    assert held(found) == [sorted(part) for part in parts.values()]
    assert found.counts.tolist() == [[2, 0, 2], [1, 0, 1], [1, 0, 2]]
    assert found.names == ({"client_names": list(parts)} if kind == "names" else {})
    again = {"clients": 3, "partition": Indices(str(path)), "split": (.5, .5)}
    assert prepare(**again).path == found.path
    os.utime(path, ns=(1, 1))
    assert prepare(**again).path != found.path


def test_numbers_count_through_the_test_part(settings, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.arange(4.)[:, None], y_train=LABELS[:4], x_test=np.arange(4., 6)[:, None],
             y_test=LABELS[:2])
    (tmp_path / "c.json").write_text("[[5, 0], [4, 1, 3]]")
    data = settings(name="arrays", file=str(tmp_path / "a.npz"), clients=2, partition=Indices(str(tmp_path / "c.json")))
    assert held(Federation(prepare_federation(data, 0))) == [[0, 5], [1, 3, 4]]


@pytest.mark.parametrize("text, said", [
    ("[[0, 1], [2, 1]]", "c.json: sample 1 is given twice, to clients 0 and 1; remove it once"),
    ('{"ann": [0], "bob": [7, 3, 7]}', "c.json: sample 7 is given twice, to client bob; remove it once"),
    ("[[0], []]", "client 1 has int64 (0,) in place of the numbers of its samples (n,), at least one"),
    ('{"a": [0], "b": [60]}', "client b has samples from 60 to 60, and the data set has 60, counted from 0"),
    ("[[0], [-1]]", "client 1 has samples from -1 to -1"), ("[[0], [1.5]]", "client 1 has float64 (1,) in place"),
    ("[[0], [true]]", "client 1 has bool (1,)"), ("[[0], [[1]]]", "client 1 has int64 (1, 1)"),
    ("[[0], [[1], 2]]", "damaged, or not the samples of every client"), ("[0, 1]", "it is neither a list of lists nor"),
    ('{"a": [0], "b": [1], "a": [2]}', "(it names 'a' twice)"),
    ("{", "damaged, or not the samples of every client (Expecting"), ("[[0]]", "data.clients = 2: "),
    ("[[0], [1], [2]]", "lists the samples of 3 clients; set it to 3")])
def test_a_file_that_divides_nothing_is_one_line(prepare, tmp_path, text, said):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(BadInput) as error:
        prepare(clients=2, partition=Indices(str(tmp_path / "c.json")))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name, content, said", [
    ("c.txt", b"", "c.txt: should be a .json, .npz or .npy file"),
    ("c.npy", b"no", "c.npy: damaged, or not the samples"),
    ("c.npz", b"no", "c.npz: damaged, or not the samples"), ("c.json", b"\xff", "c.json: damaged, or not the samples"),
    ("none.json", None, "none.json: cannot read it: No such file or directory; set it to where the file lies")])
def test_a_file_that_cannot_be_read_is_one_line(prepare, tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as error:
        prepare(clients=2, partition=Indices(str(tmp_path / name)))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("client", [np.zeros((2, 2), int), np.zeros(60), np.full(60, -2), np.zeros(0, int),
                                    np.array([{}], object)])
def test_an_array_that_names_no_clients_is_one_line(prepare, tmp_path, client):
    np.save(tmp_path / "c.npy", client)
    with pytest.raises(BadInput, match="c.npy: damaged, or not the samples of every client"):
        prepare(clients=2, partition=Indices(str(tmp_path / "c.npy")))


@pytest.mark.parametrize("client, said", [
    (np.r_[np.arange(59), 10**9], "it numbers clients up to 1000000000 and has 60 samples; number the clients"),
    (np.arange(60), "lists the samples of 60 clients; set it to 60"),
    (np.r_[np.zeros(59, int), 2], "lists the samples of 3 clients"),
    (np.full(60, 2**64 - 1, np.uint64), "it numbers clients up to 18446744073709551615")])
def test_clients_of_large_numbers_are_refused_at_once(prepare, tmp_path, client, said):
    np.save(tmp_path / "c.npy", client)
    with pytest.raises(BadInput) as error:
        prepare(clients=2, partition=Indices(str(tmp_path / "c.npy")))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("there", [4, 5, 7])
def test_an_array_has_the_clients_of_all_samples_of_both_parts(settings, tmp_path, there):
    np.savez(tmp_path / "a.npz", x_train=np.ones((4, 1)), y_train=LABELS[:4], x_test=np.ones((2, 1)), y_test=LABELS[:2])
    np.save(tmp_path / "c.npy", np.arange(there) % 2)
    data = settings(name="arrays", file=str(tmp_path / "a.npz"), clients=2, partition=Indices(str(tmp_path / "c.npy")))
    with pytest.raises(BadInput, match=f"c.npy: holds the clients of {there} samples, and the data set has 6: 4 in its "
                                       "training part and 2 in its test part behind them; write the file"):
        prepare_federation(data, 0)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8])
def test_the_samples_of_each_client_stay_in_their_order(tmp_path, kind):
    client = np.random.default_rng(0).integers(0 if kind is np.uint8 else -1, 7, 60).astype(kind)
    np.save(tmp_path / "c.npy", client)
    parts, _ = Indices(str(tmp_path / "c.npy")).assign(np.zeros(60), 7, np.random.default_rng())
    assert [part.tolist() for part in parts] == [np.flatnonzero(client == i).tolist() for i in range(7)]


def test_a_part_of_the_samples_would_have_other_numbers(prepare, tmp_path):
    (tmp_path / "c.json").write_text("[[0], [1]]")
    with pytest.raises(BadInput, match="data.fraction = 0.5: data.partition = indices numbers the samples of the"):
        prepare(clients=2, fraction=.5, partition=Indices(str(tmp_path / "c.json")))


def test_natural_takes_the_clients_as_they_are():
    parts, groups = Natural().assign(np.array([2, 0, 1, 0, 2, 2]), 3, np.random.default_rng())
    assert groups is None and [p.tolist() for p in parts] == [[1, 3], [2], [0, 4, 5]]


def test_natural_clients_divided_anew_use_both_parts_and_have_a_validation_part():
    client = np.arange(40) % 2
    pool = Dataset(np.zeros((30, 1)), LABELS[:30], np.zeros((10, 1)), LABELS[:10], client[:30], client[30:])
    data = resolve({"data": {"clients": 2, "split": [.5, .2, .3], "partition": {"name": "natural", "split": "drawn"}}}
                   ).data
    dealt = assign_samples(pool, data, 0)
    assert data.validates and dealt.counts.tolist() == [[10, 4, 6]] * 2
    assert sorted(dealt.order[:20].tolist()) == list(range(0, 40, 2)) and not (dealt.order[:10] < 30).all()
    given = resolve({"data": {"clients": 2, "split": [.5, .2, .3], "partition": "natural"}}).data
    assert not given.validates and given.partition == Natural()
    assert assign_samples(pool, given, 0).counts.tolist() == [[15, 0, 5]] * 2


# The arguments of each of Flower's partitioners that divides samples by number or by label.
FLOWERS = {"IidPartitioner": {}, "LinearPartitioner": {}, "SquarePartitioner": {}, "ExponentialPartitioner": {},
           "DirichletPartitioner": {"alpha": .5, "min_partition_size": 2}, "ShardPartitioner": {
               "num_shards_per_partition": 2}, "PathologicalPartitioner": {"num_classes_per_partition": 2},
           "SizePartitioner": {"partition_sizes": [10, 20, 25, 5]},
           "InnerDirichletPartitioner": {"partition_sizes": [15] * 4, "alpha": .5}, "NaturalIdPartitioner": {}}


def flower(name, seed=0, clients=4, **settings):
    """Return the samples of each client, as the partition `flower` gives them."""
    partition = {"name": "flower", "partitioner": name, "settings": settings}
    made = resolve({"data": {"clients": clients, "partition": partition}}).data.partition
    parts, groups = made.assign(LABELS, clients, np.random.default_rng(seed))
    assert groups is None
    return [part.tolist() for part in parts]


@pytest.mark.slow("it imports flwr-datasets, and PyTorch and TensorFlow with it if they are there")
@pytest.mark.parametrize("name", FLOWERS)
def test_flowers_partitioners_divide_the_samples_by_the_seed(name):
    pytest.importorskip("flwr_datasets")
    parts = flower(name, **FLOWERS[name])
    # Shards of equal size leave a rest.
    whole = [*range(60)] if name != "ShardPartitioner" else sorted(set(sum(parts, [])))
    assert sorted(sum(parts, [])) == whole and len(whole) >= 56 and min(map(len, parts)) > 0
    assert parts == flower(name, **FLOWERS[name])
    assert parts != flower(name, seed=1, **FLOWERS[name])
    if name in ("PathologicalPartitioner", "NaturalIdPartitioner"):
        assert [len(set(LABELS[part])) for part in parts] == [1 + (name[0] == "P")] * 4


@pytest.mark.slow("it imports flwr-datasets")
@pytest.mark.parametrize("name, settings, said", [
    ("Nothing", {}, "data.partition.partitioner = Nothing: flwr-datasets has "),
    ("VerticalEvenPartitioner", {}, "VerticalEvenPartitioner: flwr-datasets has"),
    ("DirichletPartitioner", {}, "DirichletPartitioner of flwr-datasets: TypeError"),
    ("DirichletPartitioner", {"alpha": .1, "min_partition_size": 50}, "change data.partition.settings or data.clients"),
    ("SizePartitioner", {"partition_sizes": [30, 30]}, "data.clients = 4: SizePartitioner makes 2 partitions")])
def test_what_flower_refuses_is_one_line(name, settings, said):
    pytest.importorskip("flwr_datasets")
    with pytest.raises(BadInput) as error:
        flower(name, **settings)
    assert said in str(error.value) and "\n" not in str(error.value)


class ByLabel:
    """A partitioner with Flower's interface: a client for every label."""

    def __init__(self, num_partitions, partition_by, seed, first=0):
        self.num_partitions, self.by, self.seed, self.first = num_partitions, partition_by, seed, first

    def load_partition(self, i):
        return self.dataset.filter(lambda row: row[self.by] == (i + self.first) % 4)


def test_a_partitioner_is_given_shuffled_labels_and_what_the_run_says(monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    package, module = ModuleType("flwr_datasets"), ModuleType("flwr_datasets.partitioner")
    module.ByLabel, module.__all__, package.partitioner = ByLabel, ["ByLabel"], module
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", module)
    parts = flower("ByLabel", first=1)
    assert [sorted(part) for part in parts] == [[*range(i, 60, 4)] for i in (1, 2, 3, 0)]
    assert all(part != sorted(part) for part in parts) and parts != flower("ByLabel", seed=1, first=1)
    with pytest.raises(BadInput, match="partitioner = Other: flwr-datasets has ByLabel; name one of them"):
        flower("Other")
    with pytest.raises(BadInput, match="ByLabel of flwr-datasets: TypeError: .*second.*; change data.part"):
        flower("ByLabel", second=2)


def test_without_flower_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(BadInput, match=r"IidPartitioner needs flwr-datasets, .*: pip install 'fedmpi\[flower\]'"):
        flower("IidPartitioner")
