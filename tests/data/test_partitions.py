import numpy as np
import pytest

from fedmpi import settings
from fedmpi.data.partitions import (
    BUILT_IN,
    ClusterDirichlet,
    ClusterNClass,
    Dirichlet,
    FewShot,
    Iid,
    Natural,
    NClass,
    Pathological,
)
from fedmpi.errors import BadInput

TEN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))
HUNDRED = np.random.default_rng(1).permutation(np.repeat(np.arange(100), 60))
UNEVEN = np.random.default_rng(2).choice(7, 2000, p=[.4, .3, .1, .1, .05, .03, .02])
GAPS = np.repeat([3, 5, 11], [100, 50, 70])       # classes that do not occur

ALL = [Iid(), Iid(balanced=False), Dirichlet(.5), Dirichlet(.5, "plain"), Dirichlet(.5, smallest=9),
       Pathological(2), Pathological(2, balanced=True), Pathological(3), NClass(2), NClass(2, balanced=False),
       NClass(3), ClusterDirichlet(.5, clusters=3), ClusterDirichlet(.5, 1., 5, 4), ClusterNClass(3, 3, 5),
       ClusterNClass(3, 3, 4)]


def assign(partition, labels, clients, seed=0):
    return partition.assign(labels, clients, np.random.default_rng(seed))


def table(parts, labels):
    """Samples per client and class (N, C)."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("labels", [TEN, UNEVEN, GAPS], ids=["ten", "uneven", "gaps"])
@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_every_sample_has_one_holder_and_every_client_a_sample(partition, labels):
    for clients in (5, 8):
        parts, groups = assign(partition, labels, clients)
        assert len(parts) == clients and min(map(len, parts)) > 0
        assert groups is None or (len(groups) == clients and set(groups) == set(range(groups.max() + 1)))
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_the_seed_decides(partition):
    first, second, other = (np.concatenate(assign(partition, TEN, 10, seed)[0]) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("partition", [Iid(), Iid(False), Dirichlet(5.), Pathological(10), NClass(10),
                                       ClusterDirichlet(clusters=1), ClusterNClass(10, 10, 1),
                                       FewShot(0., 10)], ids=repr)
def test_one_client_holds_everything(partition):
    parts, _ = assign(partition, TEN, 1)
    assert len(parts[0]) == len(TEN)


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(), Pathological(), NClass(), ClusterDirichlet(),
                                       ClusterNClass(), FewShot()], ids=repr)
def test_more_clients_than_samples_is_bad_input(partition):
    with pytest.raises(BadInput, match="data.clients = 3001: the data set has only 3000 samples"):
        assign(partition, TEN, 3001)


def test_settings_are_listed_and_checked():
    for cls in BUILT_IN.values():
        assert cls.title and cls.__doc__ and all(settings.list_helps(cls).values())
    with pytest.raises(BadInput, match="data.partition.beta = 0"):
        settings.make_settings(Dirichlet, {"beta": 0.0}, "data.partition")


def test_iid_shares():
    even, _ = assign(Iid(), TEN, 7)
    assert {len(p) for p in even} == {len(TEN) // 7, len(TEN) // 7 + 1}
    uneven, _ = assign(Iid(balanced=False), TEN, 7)
    sizes = np.array([len(p) for p in uneven])
    assert sizes.max() > 1.5 * sizes.min() and sizes.max() <= 11 * sizes.min()
    assert np.abs(table(even, TEN) / 43 - 1).max() < .5     # every class at every client


def test_dirichlet_capped_gives_nothing_to_those_who_have_their_share():
    parts, groups = assign(Dirichlet(.3), HUNDRED, 20)
    held = table(parts, HUNDRED).cumsum(1)
    full = held[:, :-1] >= len(HUNDRED) / 20
    assert groups is None and full.any() and not np.diff(held)[full].any()
    plain = table(assign(Dirichlet(.3, "plain"), HUNDRED, 20)[0], HUNDRED).cumsum(1)
    assert np.diff(plain)[plain[:, :-1] >= len(HUNDRED) / 20].any()


@pytest.mark.parametrize("clients, wanted", [(10, 40), (50, 30), (100, 15)])
def test_dirichlet_capped_leaves_no_client_below_the_papers_minimum(clients, wanted):
    for seed in range(5):
        assert min(map(len, assign(Dirichlet(.7), TEN, clients, seed)[0])) >= wanted


def test_dirichlet_redraws_until_the_smallest_is_large_enough():
    smallest = [min(map(len, assign(Dirichlet(.3, "plain", s), TEN, 10)[0])) for s in (None, 60, 120)]
    assert smallest[0] >= 2 and smallest[1] >= 60 and smallest[2] >= 120
    with pytest.raises(BadInput) as error:
        assign(Dirichlet(.05, smallest=299, tries=100), TEN, 10)
    message = str(error.value)
    for piece in ("data.partition", "beta=0.05", "10 clients", "3000 samples", "299", "100 times", "raise", "lower"):
        assert piece in message


class Counting:
    """A generator that counts its calls of `dirichlet`, and all tries that these draw."""
    def __init__(self):
        self.original, self.calls, self.tries = np.random.default_rng(0), 0, 0

    def __getattr__(self, name):
        return getattr(self.original, name)

    def dirichlet(self, alpha, size):
        self.calls, self.tries = self.calls + 1, self.tries + size[0]
        return self.original.dirichlet(alpha, size)


@pytest.mark.parametrize("tries", [1000, 100])
def test_dirichlet_gives_up_after_its_tries_of_which_many_are_drawn_at_once(tries):
    rng = Counting()
    with pytest.raises(BadInput, match="best draw: 0"):
        Dirichlet(1e-4, tries=tries).assign(TEN, 50, rng)
    assert rng.tries == tries and rng.calls == -(-tries // 64)


def test_dirichlet_leaves_no_client_of_the_digits_with_few_samples():
    labels = np.repeat(np.arange(10), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    for seed in range(5):
        assert min(map(len, assign(Dirichlet(), labels, 20, seed)[0])) >= 40


def test_dirichlet_with_more_clients_than_samples_of_a_class_reaches_them_all():
    parts, _ = assign(Dirichlet(1000., "plain"), HUNDRED, 200)      # 60 samples of a class, 200 clients
    assert min(map(len, parts)) >= 10


@pytest.mark.parametrize("labels, each, blocks, block", [(TEN, 2, 5, 4), (HUNDRED, 10, 10, 2)])
def test_pathological_plants_the_groups_of_the_papers(labels, each, blocks, block):
    parts, groups = assign(Pathological(each), labels, 20)
    np.testing.assert_array_equal(groups, np.repeat(np.arange(blocks), block))
    classes = [frozenset(labels[part]) for part in parts]
    assert all(len(c) == each for c in classes)
    assert len(set(classes)) == blocks and frozenset.union(*classes) == set(labels)
    assert all((classes[i] == classes[j]) == (groups[i] == groups[j]) for i in range(20) for j in range(20))


@pytest.mark.parametrize("clients", [4, 7, 20, 33])
@pytest.mark.parametrize("each", [3, 4, 7, 9, 10])
def test_pathological_when_the_numbers_do_not_divide(clients, each):
    parts, groups = assign(Pathological(each), TEN, clients)
    classes = [tuple(np.unique(TEN[part])) for part in parts]
    assert all(len(c) == each for c in classes) and len(np.concatenate(parts)) == len(TEN)
    assert len(set(classes)) == groups.max() + 1 == -(-10 // each)
    assert (np.diff(groups) >= 0).all() and np.ptp(np.bincount(groups)) <= 1
    assert all(len({classes[i] for i in np.flatnonzero(groups == g)}) == 1 for g in groups)


def test_pathological_shares_equal_or_drawn():
    even = table(assign(Pathological(2, balanced=True), TEN, 20)[0], TEN)
    assert set(even[even > 0]) == {75}
    drawn = table(assign(Pathological(2), TEN, 20)[0], TEN)
    assert drawn[drawn > 0].std() > 10 and drawn[drawn > 0].min() >= 300 * .1 / 3.1


def test_pathological_says_what_cannot_be():
    with pytest.raises(BadInput, match="classes_per_client = 11: the data set has 10 classes"):
        assign(Pathological(11), TEN, 20)
    with pytest.raises(BadInput, match="data.clients to 5 or more, or data.partition.classes_per_client to 3"):
        assign(Pathological(2), TEN, 4)
    few = np.repeat([0, 1], [50, 3])
    with pytest.raises(BadInput, match="class 1 has 3 samples for 5 clients"):
        assign(Pathological(2), few, 5)


@pytest.mark.parametrize("clients", [5, 7, 20])
def test_n_class_gives_every_client_n_classes_in_equal_shares(clients):
    parts, groups = assign(NClass(2), TEN, clients)
    held = table(parts, TEN)
    assert groups is None and ((held > 0).sum(1) == 2).all() and np.ptp((held > 0).sum(0)) <= 1
    for k in range(10):
        assert np.ptp(held[held[:, k] > 0, k]) <= 1


@pytest.mark.parametrize("clients, each", [(20, [4] * 5), (17, [4, 3, 4, 3, 3])])
def test_cluster_dirichlet_clusters_differ_and_clients_of_one_are_alike(clients, each):
    parts, groups = assign(ClusterDirichlet(.1, 100., 5), TEN, clients)
    np.testing.assert_array_equal(groups, np.repeat(np.arange(5), each))
    share = table(parts, TEN) / np.array([len(p) for p in parts])[:, None]
    apart = np.abs(share[:, None] - share).sum(2)
    inside = groups[:, None] == groups
    assert apart[inside].max() < .8 and apart[inside].mean() < .3 and apart[~inside].mean() > 1


def test_cluster_dirichlet_follows_both_of_its_concentrations():
    labels = np.repeat(np.arange(10), 2000)
    parts, groups = assign(ClusterDirichlet(100., .5, 4), labels, 20)
    held = table(parts, labels).reshape(4, 5, 10)
    outer = held.sum(1)
    # E[sum of squared shares] for 4 clusters by Dir(100), and for 5 clients by Dir(.5).
    assert ((outer / 2000) ** 2).sum(0).mean() == pytest.approx(101 / 401, rel=.02)
    assert ((held / outer[:, None]) ** 2).sum(1).mean() == pytest.approx(1.5 / 3.5, rel=.15)


def test_cluster_dirichlet_leaves_no_client_below_its_minimum():
    for clients, smallest, wanted in ((20, None, 10), (200, None, 7), (20, 40, 40)):
        parts, _ = assign(ClusterDirichlet(.5, clusters=4, smallest=smallest), TEN, clients)
        assert min(map(len, parts)) >= wanted


def test_cluster_dirichlet_gives_up_with_a_clear_error():
    """It divides no cluster among its clients if some cluster has too few samples."""
    rng = Counting()
    with pytest.raises(BadInput) as error:
        ClusterDirichlet(smallest=149).assign(TEN, 20, rng)
    assert rng.calls == rng.tries == 1000
    message = str(error.value)
    for piece in ("cluster_dirichlet(alpha=0.1, alpha_in=10)", "1000 times", "20 clients in 10 clusters",
                  "3000 samples", "149", "raise data.partition.alpha", "lower data.clients"):
        assert piece in message


@pytest.mark.parametrize("clients, clusters", [(20, 5), (33, 10), (8, 4)])
def test_cluster_n_class_plants_clusters_of_few_classes(clients, clusters):
    parts, groups = assign(ClusterNClass(3, 2, clusters), TEN, clients)
    assert np.ptp(np.bincount(groups)) <= 1 and groups.max() + 1 == clusters and (np.diff(groups) >= 0).all()
    held = table(parts, TEN) > 0
    assert (held.sum(1) == 2).all() and held.any(0).all()
    assert all(held[groups == g].any(0).sum() == 3 for g in range(clusters))
    assert len({held[groups == g].any(0).tobytes() for g in range(clusters)}) > clusters / 2


@pytest.mark.parametrize("labels, clients, gamma, classes, few, count", [
    (TEN, 20, .3, 5, 2, 6), (HUNDRED, 40, .1, 15, 5, 4), (TEN, 7, .01, 3, 3, 1), (TEN, 9, 0., 5, 2, 0),
    (TEN, 4, 1., 5, 4, 4), (UNEVEN, 10, .5, 4, 1, 5)])
def test_few_shot_plants_who_is_few_shot(labels, clients, gamma, classes, few, count):
    parts, groups = assign(FewShot(gamma, classes, few), labels, clients)
    assert FewShot.group_names[1] == "few-shot" and (groups == 1).sum() == count
    held = table(parts, labels)
    np.testing.assert_array_equal((held > 0).sum(1), np.where(groups, few, classes))
    assert len(set(held[held > 0])) == 1 and np.ptp((held > 0).sum(0)) <= 1
    holders = (held > 0).sum(0)
    assert held.max() == min(np.bincount(labels)[holders > 0] // holders[holders > 0])
    assert len(set(np.concatenate(parts))) == held.sum()


def test_the_share_of_few_shot_clients_is_rounded():
    asked = ((.3, 5), (.3, 4), (.25, 10), (.01, 7), (0., 9), (1., 4))      # 1.5, 1.2, 2.5 of them; 1 unless gamma is 0
    assert [FewShot(gamma).few(clients) for gamma, clients in asked] == [2, 1, 3, 1, 0, 4]


def test_few_shot_clients_are_drawn_at_random():
    assert len({assign(FewShot(.3), TEN, 20, seed)[1].tobytes() for seed in range(5)}) == 5


def test_few_shot_may_be_given_the_amount():
    parts, groups = assign(FewShot(.3, amount=7), TEN, 20)
    assert [len(p) for p in parts] == np.where(groups, 14, 35).tolist()
    with pytest.raises(BadInput, match="data.partition.amount = 40: the scarcest class has 3. samples for each"):
        assign(FewShot(.3, amount=40), TEN, 20)


@pytest.mark.parametrize("partition, clients, message", [
    (Natural(), 20, "data.clients = 20: the data set numbers 10 clients; set it to 10"),
    (NClass(11), 20, "data.partition.n = 11: the data set has 10 classes"),
    (NClass(2), 4, "4 clients with 2 of 10 classes each leave .* data.clients to 5 or more, or data.partition.n to 3"),
    (ClusterDirichlet(clusters=21), 20, "data.partition.clusters = 21: there are 20 clients"),
    (ClusterNClass(11, 2), 20, "classes_per_cluster = 11: the data set has 10 classes"),
    (ClusterNClass(3, 2, 3), 20, "3 clusters with 3 of 10 classes each .* data.partition.clusters to 4 or more, or "
                                 "data.partition.classes_per_cluster to 4"),
    (ClusterNClass(3, 1, 5), 14, "2 clients in a cluster with 1 of 3 classes each .* data.clients to 15 or more, or "
                                 "data.partition.classes_per_client to 2"),
    (ClusterNClass(3, 2, 21), 20, "data.partition.clusters = 21"),
    (FewShot(.1, 11), 20, "data.partition.classes = 11: the data set has 10 classes"),
    (FewShot(), 1, "1 clients, 1 of them few-shot, with 5 or 2 of 10 classes each leave classes that nobody holds; "
                   "set data.clients to 3 or more, or raise data.partition.classes or few_classes"),
    (FewShot(.9, 5, 1), 5, "5 clients, 5 of them few-shot, .* data.clients to 6 or more"),
    (FewShot(.1, 5), 1000, "class . has 300 samples for .* clients"),
    (NClass(5), 1000, "class . has 300 samples for 500 clients"),
    (ClusterNClass(9, 9), 1000, "class . has 300 samples for .* clients")], ids=repr)
def test_what_cannot_be_is_refused_with_a_remedy(partition, clients, message):
    with pytest.raises(BadInput, match=message) as error:
        assign(partition, TEN, clients)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cls, values, message", [
    (FewShot, {"few_classes": 6}, "few_classes = 6: few-shot clients would hold more"),
    (FewShot, {"gamma": 1.5}, "data.partition.gamma = 1.5"), (NClass, {"n": 0}, "data.partition.n = 0"),
    (ClusterNClass, {"classes_per_client": 4}, "classes_per_client = 4: a cluster has only classes_per_cluster = 3")])
def test_settings_that_contradict_are_refused(cls, values, message):
    with pytest.raises(BadInput, match=message):
        settings.make_settings(cls, values, "data.partition")
