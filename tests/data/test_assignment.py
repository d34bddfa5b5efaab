import numpy as np
import pytest

from fedmpi.data.assignment import find_sample_holders, split_samples
from fedmpi.data.federation import prepare_federation
from fedmpi.data.partitions import Iid, Natural
from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput
from tests.data.test_federation import Told


@pytest.mark.parametrize("samples, shares, counts", [
    (100, (.75, .25), (75, 0, 25)), (10, (.75, .25), (7, 0, 3)), (5, (.6, .2, .2), (3, 1, 1)),
    (10, (.7, .3), (7, 0, 3)), (1, (.75, .25), (1, 0, 0)), (1, (.1, .8, .1), (1, 0, 0)), (2, (.1, .9), (1, 0, 1)),
    (2, (.1, .8, .1), (1, 0, 1)), (5, (.5, .5, 0), (2, 3, 0)), (7, (1, 0), (7, 0, 0)), (100, (.29, .71), (29, 0, 71)),
])
def test_split(samples, shares, counts):
    assert split_samples(samples, shares) == counts


@pytest.mark.parametrize("parts", [(), ((0, 1),), ((0, 1), ()), ((0, 1), (1, 2)), ((0, 1), (2, 99_999)),
                                   ((0, 1), (2, -1)), ((.5, 1.), (2., 3.))])
def test_a_third_partys_partition_is_checked(settings, parts):
    line = Told.assign.__code__.co_firstlineno
    with pytest.raises(BadInput, match=f"data.partition = .*Told: .*test_federation.py:{line}: its assign"):
        prepare_federation(settings(clients=2, partition=Told(parts)), 0)


@pytest.fixture
def natural(settings, tmp_path):
    """Return a function that stores 30 training and 12 test samples, whose values are their indices, with their
    holders, and returns the settings of this federation."""
    def make(train, test, **changes):
        x = np.arange(42.)[:, None]
        np.savez(tmp_path / "theirs.npz", x_train=x[:30], y_train=np.arange(30) % 4, client_train=train,
                 x_test=x[30:], y_test=np.arange(30, 42) % 4, client_test=test)
        return {"name": "arrays", "file": str(tmp_path / "theirs.npz"), "partition": Natural(), **changes}
    return make


def test_a_partition_made_elsewhere_is_reproduced(federation, natural):
    # Clients 3 and 4 have no test samples.
    train, test = np.arange(30) * 7 % 5, np.arange(12) // 4
    f = federation(**natural(train, test, clients=5, split=(.5, .5)))
    assert f.counts.tolist() == [[6, 0, 4], [6, 0, 4], [6, 0, 4], [6, 0, 0], [6, 0, 0]] and f.groups is None
    for i in range(5):
        c = f.client(i)
        assert sorted(c.x_train[:, 0]) == np.flatnonzero(train == i).tolist()
        assert sorted(c.x_test[:, 0] - 30) == np.flatnonzero(test == i).tolist()
        np.testing.assert_array_equal(c.y_train, c.x_train[:, 0] % 4)
        np.testing.assert_array_equal(c.y_test, c.x_test[:, 0] % 4)


def test_a_natural_partition_must_be_told_and_fit(settings, natural, arrays):
    with pytest.raises(BadInput, match="data.clients = 4: the data set numbers 5 clients; set it to 5"):
        prepare_federation(settings(**natural(np.arange(30) % 5, np.arange(12) % 5, clients=4)), 0)
    with pytest.raises(BadInput, match="client 2 has no training samples; every client needs one in the training part"):
        prepare_federation(settings(**natural(np.arange(30) % 2, np.arange(12) % 3, clients=3)), 0)
    with pytest.raises(BadInput, match="client 3 has no samples"):
        prepare_federation(settings(**natural(np.arange(30) % 3, np.full(12, 4), clients=5)), 0)
    with pytest.raises(BadInput, match="does not say who holds its samples; add client_train and client_test"):
        prepare_federation(settings(**arrays(np.arange(60) % 3), partition=Natural()), 0)


@pytest.mark.parametrize("split", ["given", "drawn"])
def test_a_fraction_leaves_no_client_without_samples(federation, natural, split):
    """Clients 1 to 4 have one training sample each, and client 4 a test sample, too."""
    train, test = np.zeros(30, int), np.zeros(12, int)
    train[[5, 12, 20, 29]], test[0] = [1, 2, 3, 4], 4
    found = federation(**natural(train, test, clients=5, fraction=.2, split=(.8, .2)) | {"partition": Natural(split)})
    held = [sorted(int(x[0]) for part in found.client(i)[::2] for x in part) for i in range(5)]
    assert held[1:4] == [[5], [12], [20]] and set(held[4]) <= {29, 30} and found.counts[:, 0].all()
    # A fifth of 30 and of 12 samples is 6 or 8 and 4, by classes; up to 4 were added.
    assert 10 <= sum(map(len, held)) <= 16 and (split == "drawn" or 29 in held[4])


def test_another_partition_ignores_whom_the_set_names(federation, natural):
    f = federation(**natural(np.arange(30) % 5, np.arange(12) % 5, clients=3) | {"partition": Iid()})
    assert f.counts.tolist() == [[10, 0, 4]] * 3


def test_natural_without_clients_names_the_settings_that_say_them():
    with pytest.raises(BadInput, match="set data.client to the column that does, set data.client_folders = true for"):
        find_sample_holders(Dataset(np.ones((2, 1)), np.arange(2)))
