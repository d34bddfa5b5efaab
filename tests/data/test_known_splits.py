"""Splits that must never change, because digests of runs and all published tables depend on them.

The parts were drawn once and are literals here. A second program, with plain loops that follow the description of each
partition, gave the same parts from the same random numbers."""
from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedmpi.data.assignment import assign_samples
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.partitions import (
    ClusterDirichlet,
    ClusterNClass,
    Dirichlet,
    FewShot,
    Iid,
    NClass,
    Pathological,
)
from fedmpi.data.samples import Dataset
from fedmpi.data.thinning import thin_samples

# 12 samples of class 1, 8 of class 4, 5 of class 6.
LABELS = np.array([int(label) for label in "4116114644116141411664114"])

KNOWN = [
    (Iid(), 4, [[13, 12, 15, 23, 0, 17], [3, 22, 8, 9, 18, 6], [1, 10, 2, 11, 20, 16, 14], [4, 7, 5, 21, 19, 24]],
     None),
    (Iid(balanced=False), 4, [[5, 21, 3], [17, 19, 4, 12], [22, 10, 20, 24, 0, 23, 15, 11, 13, 8],
                              [9, 18, 6, 1, 2, 7, 16, 14]], None),
    (Dirichlet(.4), 4, [[4, 21, 14, 12], [6, 16, 24, 0, 8, 9], [18, 1, 15, 3, 19, 7, 20],
                        [23, 22, 17, 10, 11, 2, 13, 5]], None),
    (Dirichlet(.4, "plain"), 4, [[21, 14, 12, 3], [4, 18, 1, 15, 23, 22, 17, 10, 11, 2, 6, 16, 24, 0, 19], [8, 9, 7],
                                 [13, 5, 20]], None),
    (Dirichlet(.4, "plain", smallest=5), 4, [[4, 18, 1, 21, 14], [6, 16, 24, 0, 8, 9], [15, 23, 22, 17, 12],
                                             [10, 11, 2, 13, 5, 3, 19, 7, 20]], None),
    (Pathological(), 4, [[13, 11, 16, 8, 9], [5, 10, 6, 21, 14, 24, 0], [23, 2, 15, 1, 19, 12, 20],
                         [22, 17, 18, 4, 3, 7]], [0, 0, 1, 1]),
    (Pathological(balanced=True), 5, [[23, 15, 16, 14, 0], [4, 22, 1, 9, 24], [2, 10, 8, 21, 6],
                                      [13, 18, 11, 20, 12, 3], [5, 17, 7, 19]], [0, 0, 0, 1, 1]),
    (NClass(), 4, [[4, 13, 15, 2, 0, 14, 6], [5, 23, 11, 10, 9, 21], [17, 1, 18, 22, 3, 20, 12], [8, 24, 16, 19, 7]],
     None),
    (NClass(balanced=False), 4, [[1, 23, 2, 22, 8, 9, 16], [10, 17, 5, 13, 18, 0, 14, 24], [15, 4, 11, 3],
                                 [21, 6, 20, 19, 7, 12]], None),
    (ClusterDirichlet(1., 5., 2), 4, [[13, 22, 1, 8, 19], [16, 9, 20, 3], [4, 17, 2, 21, 24, 7],
                                      [10, 18, 15, 5, 23, 11, 0, 6, 14, 12]], [0, 0, 1, 1]),
    (ClusterDirichlet(.5, 1., 2, smallest=4), 4, [[13, 15, 1, 10, 18, 11, 12, 19, 7], [22, 23, 2, 4, 21, 9, 20, 3],
                                                  [16, 6, 8, 0], [5, 17, 24, 14]], [0, 0, 1, 1]),
    (ClusterNClass(2, 1, 2), 5, [[1, 10, 13, 18], [22, 17, 15, 4], [0, 24, 21, 8, 6, 16, 14, 9], [11, 5, 2, 23],
                                 [12, 19, 7, 3, 20]], [0, 0, 0, 1, 1]),
    (FewShot(.5, 2, 1), 4, [[4, 15, 3, 20], [0, 14, 12, 19], [6, 9], [18, 13]], [0, 0, 1, 1]),
    (FewShot(.3, 3, amount=1), 4, [[4, 0, 3], [15, 14, 20], [18, 6, 12], [13, 9]], [0, 0, 0, 1]),
]


@pytest.mark.parametrize("partition, clients, parts, groups", KNOWN, ids=[repr(row[0]) for row in KNOWN])
def test_the_parts_of_a_seed_are_known(partition, clients, parts, groups):
    found, planted = partition.assign(LABELS, clients, np.random.default_rng(3))
    assert [part.tolist() for part in found] == parts
    assert groups is None and planted is None or planted.tolist() == groups
    held = sum(parts, [])
    assert len(set(held)) == len(held) and (isinstance(partition, FewShot) or len(held) == len(LABELS))


def marked(n: int, first: int, labels) -> tuple[np.ndarray, np.ndarray]:
    """Return samples whose values are their indices, and labels."""
    return np.arange(first, first + n)[:, None].astype(np.int32), np.array(labels[:n])


def test_who_trains_on_what_is_known():
    """The partition is drawn from (0, seed); the order in which client i's samples are split, from (1, i, seed)."""
    from fedmpi.config import schema
    pool = Dataset(*marked(8, 0, LABELS), *marked(4, 8, LABELS))
    for seed, order in ((0, [5, 9, 7, 2, 11, 4, 3, 8, 0, 10, 6, 1]), (5, [5, 1, 3, 0, 4, 6, 11, 2, 10, 8, 9, 7])):
        dealt = assign_samples(pool, schema.Data(clients=2, partition=Iid(), split=(.5, .2, .3)), seed)
        assert dealt.order.tolist() == order and dealt.counts.tolist() == [[3, 1, 2], [3, 1, 2]], seed
        parts = np.split(np.random.default_rng((0, seed)).permutation(12), 2)
        again = [np.random.default_rng((1, i, seed)).permutation(part) for i, part in enumerate(parts)]
        assert np.concatenate(again).tolist() == order
        assert dealt.groups is None and dealt.group_names is None


def test_a_share_of_both_parts_is_drawn_from_streams_of_their_own():
    """Training and test part are alike, so a common stream would keep the same places of both."""
    x, y = marked(25, 0, LABELS)
    who = np.arange(25) % 3
    kept = thin_samples(Dataset(x, y, x, y, who, who), .4, 6)
    train, test = kept.x_train[:, 0].tolist(), kept.x_test[:, 0].tolist()
    # .4 of 12, 8 and 5 samples are kept, in their order.
    assert train == [1, 2, 3, 5, 8, 9, 12, 13, 14, 18] and test == [0, 3, 5, 10, 12, 13, 16, 17, 23, 24]
    for places, labels, clients in ((train, kept.y_train, kept.client_train), (test, kept.y_test, kept.client_test)):
        assert labels.tolist() == y[places].tolist() and clients.tolist() == who[places].tolist()
        assert np.bincount(labels)[[1, 4, 6]].tolist() == [5, 3, 2]
    assert thin_samples(kept, 1, 6) is kept
    # At least one sample of each class is kept, and an empty part stays empty.
    least = thin_samples(Dataset(x, y, x[:0], y[:0]), .01, 6)
    assert sorted(least.y_train.tolist()) == [1, 4, 6] and len(least.x_test) == len(least.y_test) == 0
    assert least.client_train is None


def absorbed(whole, values):
    whole.update(f"{values.dtype.str}{values.shape}".encode() + values.tobytes())


def test_the_fingerprint_of_a_federation_is_known(settings, tmp_path):
    x, y = np.arange(50).reshape(25, 2), LABELS
    np.savez(tmp_path / "a.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    data = settings(name="arrays", file=str(tmp_path / "a.npz"), clients=4, partition=Pathological(), split=(.5, .5))
    f = Federation(prepare_federation(data, 1))
    assert (f.fingerprint, f.sizes.tolist(), f.groups.tolist()) == (
        "cbd490ada59f3e88d5e40593c1c31076119b488de4d7ff697f6fa6fbbfb74bc2", [3, 4, 3, 2], [0, 0, 1, 1])
    # The fingerprint covers x in the clients' order, the clients' sizes, the groups and the labels.
    clients = [f.client(i) for i in range(4)]
    mine, labels = (np.concatenate([part for c in clients for part in c[k::2]]) for k in (0, 1))
    whole = hashlib.sha256(f"<i4{mine.shape}".encode() + mine.tobytes())
    for values in (f.counts, f.groups, labels):
        absorbed(whole, values)
    assert whole.hexdigest() == f.fingerprint


def test_a_federation_of_digits_is_known(federation):
    f = federation()
    assert f.sizes.tolist() == [67, 81, 54, 83, 86, 83, 75, 72, 75, 36, 30, 93, 42, 54, 73, 78, 72, 46, 72, 67]
    assert f.fingerprint == "1e587da9c257b4c2dd837dc717f3e4034e9b38fee861e4b7064fe5c6144f0c12"


class Watched(np.ndarray):
    """Labels that count the passes over them."""
    passes = 0

    def __array_ufunc__(self, function, method, *given, **more):
        Watched.passes += 1
        return getattr(function, method)(*(np.asarray(value) for value in given), **more)


def test_labels_are_not_read_once_for_each_class():
    y = np.arange(600) % 200
    y = y.view(Watched)
    kept = thin_samples(Dataset(np.arange(600.)[:, None], y, np.empty((0, 1)), y[:0]), .5, 6)
    assert Watched.passes < 20 and np.bincount(kept.y_train).tolist() == [2] * 200 and not len(kept.y_test)
