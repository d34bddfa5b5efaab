"""Divide the samples of one pool among the clients.

A partition is a frozen dataclass of settings with a `title` and

    assign(labels, clients, rng) -> parts, groups

`labels` (n,) are the classes of the samples. `parts` has one array of sample indices per client: no index occurs twice,
and no client is without samples. `groups` (clients,) numbers the planted groups, or is None; `group_names` may name
them. With `official = True`, `labels` are the clients of the samples, and the official train and test parts stay,
unless its `comes_split` is False. A function `list_inputs()` may return texts that change with what it reads, and
`name_clients()` the clients' names. With `counts_samples = True` the numbers of the samples matter, so that none may be
left out before."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedmpi.data.allocation import (
    assign_blocks,
    deal_classes,
    divide_by_dirichlet,
    divide_total,
    draw_classes,
    draw_labels_of_client,
    list_samples_by_class,
    redraw_until_large,
    refuse_scarce_class,
    refuse_too_few_samples,
    refuse_too_many_classes,
    refuse_uncovered,
    share_classes,
)
from fedmpi.data.flower import Flower
from fedmpi.data.given_partitions import Indices, Natural
from fedmpi.errors import BadInput
from fedmpi.settings import DrawCount, Ge, Gt, Le

Concentration = Annotated[float, Gt(0), "concentration: .1 is strongly skewed, 100 nearly iid"]
SharesOfClass = Annotated[bool, "equal shares of a class; otherwise one is up to ten times another"]
# So often one cluster is divided before all clusters are drawn again.
INNER_TRIES = 64


@dataclass(frozen=True)
class Iid:
    """Every client's samples are drawn alike from the whole pool."""
    title = "iid"
    balanced: Annotated[bool, "equal shares; otherwise one is up to ten times another"] = True

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Shuffle the pool and cut it into one piece per client. Raises BadInput."""
        refuse_too_few_samples(labels, clients)
        amounts = divide_total(len(labels), clients, None if self.balanced else rng)
        return np.split(rng.permutation(len(labels)), amounts.cumsum()[:-1]), None


@dataclass(frozen=True)
class Dirichlet:
    """Every class is divided among the clients in proportions drawn from Dir(beta)."""
    title = "dirichlet"
    beta: Concentration = .1
    procedure: Annotated[Literal["capped", "plain"],
                         "capped: whoever holds n/N samples gets none of the classes that follow"] = "capped"
    smallest: Annotated[int | None, Ge(1),
                        "redraw until all clients have this; default: capped min(40, n/N/2), plain 2"] = None
    tries: Annotated[DrawCount, "draws before giving up"] = 10_000

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Draw proportions until every client has enough samples. Raises BadInput if no try gives them."""
        refuse_too_few_samples(labels, clients, self.smallest)
        members = list_samples_by_class(labels)
        wanted = self.wanted(len(labels), clients)
        amounts, best = redraw_until_large(np.array([len(m) for m in members]), clients, self.beta, wanted, self.tries,
                                           rng, self.procedure == "capped")
        if amounts is None:
            raise BadInput(
                f"data.partition: dirichlet(beta={self.beta:g}, {self.procedure}) was drawn {self.tries} times "
                f"for {clients} clients and {len(labels)} samples, and the smallest client never had {wanted} "
                f"samples (best draw: {best}); raise data.partition.beta or data.partition.tries, or lower "
                "data.clients or data.partition.smallest")
        return deal_classes(members, amounts, rng), None

    def wanted(self, samples: int, clients: int) -> int:
        """Return how many samples every client must have: `smallest`, or the default of the procedure."""
        if self.smallest is not None:
            return self.smallest
        usual = min(40, samples / clients / 2) if self.procedure == "capped" else min(2, samples // clients)
        return max(1, int(np.ceil(usual)))


@dataclass(frozen=True)
class Pathological:
    """Clients form consecutive blocks, the planted groups; all clients of a block hold the same few classes.

    There are as few blocks as can hold all classes. If the numbers do not divide evenly, the last block takes the first
    classes again, and the blocks differ by one client."""
    title = "pathological"
    classes_per_client: Annotated[int, Ge(1), "classes that every client holds"] = 2
    balanced: SharesOfClass = False

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
        """Divide every class among the clients of the blocks that hold it. Raises BadInput."""
        refuse_too_few_samples(labels, clients)
        groups, held = self.blocks(len(list_samples_by_class(labels)), clients)
        return share_classes(labels, held[groups], rng, self.balanced), groups

    def blocks(self, classes: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the block of each client, (clients,), and whether a block holds a class, (blocks, classes)."""
        each = self.classes_per_client
        refuse_too_many_classes("classes_per_client", each, classes)
        refuse_uncovered("classes_per_client", each, classes, clients)
        count = -(-classes // each)
        held = np.zeros((count, classes), bool)
        np.put_along_axis(held, np.arange(count * each).reshape(count, each) % classes, True, 1)
        return assign_blocks(clients, count), held


@dataclass(frozen=True)
class NClass:
    """Every client holds n classes drawn at random, and an equal share of each (LCFed; Fed-CAM: client-wise n-class).

    All classes are drawn equally often, within one, as with McMahan's shards: the whole pool is used."""
    title = "n_class"
    n: Annotated[int, Ge(1), "classes that every client holds"] = 2
    balanced: SharesOfClass = True

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Draw the classes of every client and divide each among its holders. Raises BadInput."""
        refuse_too_few_samples(labels, clients)
        classes = len(list_samples_by_class(labels))
        refuse_too_many_classes("n", self.n, classes)
        refuse_uncovered("n", self.n, classes, clients)
        return share_classes(labels, draw_classes(classes, [self.n] * clients, rng), rng, self.balanced), None


@dataclass(frozen=True)
class ClientDirichlet:
    """Every client draws its own mix of classes, and all hold equally many samples (Hsu et al., 2019; Fed-CAM:
    client-wise Dirichlet).

    The mixes come from a Dirichlet distribution with the parameters alpha * number of classes * share of a class in the
    pool: alpha each if all classes are equally large (alpha * number of classes in Hsu et al.'s notation). A class that
    has run out is left out of the mixes of the clients that draw later; the clients draw in random order."""
    title = "client_dirichlet"
    alpha: Concentration = .1
    amount: Annotated[int | None, Ge(1), "samples of every client; default: n/N"] = None

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], None]:
        """Fill the clients one after another in random order. Raises BadInput if the pool is too small."""
        refuse_too_few_samples(labels, clients, self.amount, "amount")
        members, most = list_samples_by_class(labels), len(labels) // clients
        left = np.array([len(m) for m in members])
        parameters, amounts = self.alpha * left / left.mean(), np.zeros((clients, len(left)), np.int64)
        for i in rng.permutation(clients):
            amounts[i] = draw_labels_of_client(left, rng.dirichlet(parameters), self.amount or most, rng)
            left = left - amounts[i]
        return deal_classes(members, amounts.T, rng), None


@dataclass(frozen=True)
class ClusterDirichlet:
    """Classes go to clusters by Dir(alpha), a cluster's to its clients by Dir(alpha_in) (Fed-CAM: (.1, 10)).

    The planted groups are the clusters: about N/k consecutive clients each. Their numbers of samples differ widely."""
    title = "cluster_dirichlet"
    alpha: Annotated[float, Gt(0), "concentration between clusters: .1 is strongly skewed"] = .1
    alpha_in: Annotated[float, Gt(0), "concentration between the clients of a cluster"] = 10.
    clusters: Annotated[int, Ge(1), "number of clusters"] = 10
    smallest: Annotated[int | None, Ge(1), "redraw until all clients have this; default: min(10, n/N/2)"] = None
    tries: Annotated[DrawCount, "draws before giving up"] = 1_000

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
        """Draw until every client has enough samples. Raises BadInput if no try gives them."""
        refuse_too_few_samples(labels, clients, self.smallest)
        groups = assign_blocks(clients, self.clusters)
        members = list_samples_by_class(labels)
        least = self.smallest or max(1, min(10, len(labels) // clients // 2))
        sizes = np.array([len(m) for m in members])
        for _ in range(self.tries):
            amounts = self.draw(sizes, np.bincount(groups), least, rng)
            if amounts is not None:
                return deal_classes(members, amounts, rng), groups
        raise BadInput(
            f"data.partition: cluster_dirichlet(alpha={self.alpha:g}, alpha_in={self.alpha_in:g}) was drawn "
            f"{self.tries} times for {clients} clients in {self.clusters} clusters and {len(labels)} samples, and "
            f"never had every client {least} samples; raise data.partition.alpha, alpha_in or tries, or lower "
            "data.clients, data.partition.clusters or data.partition.smallest")

    def draw(self, sizes: np.ndarray, clients: np.ndarray, least: int, rng: np.random.Generator) -> np.ndarray | None:
        """Divide the classes among the clusters, which have `clients` (clusters,), and then inside each cluster.
        Return amounts (classes, N), or None if no division gave every client `least` samples."""
        outer = divide_by_dirichlet(sizes, self.clusters, self.alpha, 1, rng)[0]
        room = outer.sum(0) / clients
        inner = {}
        # The smallest cluster comes first, because it is the one that most likely fails.
        for k in np.argsort(room):
            inner[k] = None if room[k] < least else redraw_until_large(
                outer[:, k], clients[k], self.alpha_in, least, INNER_TRIES, rng)[0]
            if inner[k] is None:
                return None
        return np.concatenate([inner[k] for k in range(self.clusters)], 1)


@dataclass(frozen=True)
class ClusterNClass:
    """Every cluster draws a few classes, every client some of its cluster's (Fed-CAM: cluster-wise n-class (3, 2)).

    The planted groups are the clusters: about N/k consecutive clients each. Classes are drawn equally often,
    within one, and divided equally among the clients that hold them."""
    title = "cluster_n_class"
    classes_per_cluster: Annotated[int, Ge(1), "classes of every cluster"] = 3
    classes_per_client: Annotated[int, Ge(1), "classes of its cluster that a client holds"] = 2
    clusters: Annotated[int, Ge(1), "number of clusters"] = 10

    def __post_init__(self) -> None:
        if self.classes_per_client > self.classes_per_cluster:
            raise ValueError(f"classes_per_client = {self.classes_per_client}: a cluster has only "
                             f"classes_per_cluster = {self.classes_per_cluster}; lower it")

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
        """Draw the classes of clusters, then of clients, and divide each class. Raises BadInput."""
        refuse_too_few_samples(labels, clients)
        classes, each = len(list_samples_by_class(labels)), self.classes_per_cluster
        groups = assign_blocks(clients, self.clusters)
        refuse_too_many_classes("classes_per_cluster", each, classes)
        refuse_uncovered("classes_per_cluster", each, classes, self.clusters, "clusters", "data.partition.clusters")
        refuse_uncovered("classes_per_client", self.classes_per_client, each, clients // self.clusters,
                         "clients in a cluster", "data.clients", self.clusters)
        held = np.zeros((clients, classes), bool)
        for k, row in enumerate(draw_classes(classes, [each] * self.clusters, rng)):
            mine = np.flatnonzero(groups == k)
            held[np.ix_(mine, row)] = draw_classes(each, [self.classes_per_client] * len(mine), rng)
        return share_classes(labels, held, rng), groups


@dataclass(frozen=True)
class FewShot:
    """Some clients hold fewer classes than the others, and of each class all hold the same amount (FedCPS: non-iid_1).

    The few-shot clients are drawn at random; they are the planted group 1, all others group 0. Classes are drawn
    equally often, within one. Samples beyond the common amount are left out."""
    title = "few_shot"
    group_names = ("other", "few-shot")
    gamma: Annotated[float, Ge(0), Le(1), "share of few-shot clients, rounded; at least one unless 0"] = .1
    classes: Annotated[int, Ge(1), "classes that a client holds"] = 5
    few_classes: Annotated[int, Ge(1), "classes that a few-shot client holds"] = 2
    amount: Annotated[int | None, Ge(1), "samples of a class at each holder; default: what the scarcest allows"] = None

    def __post_init__(self) -> None:
        if self.few_classes > self.classes:
            raise ValueError(f"few_classes = {self.few_classes}: few-shot clients would hold more than the others, "
                             f"classes = {self.classes}; lower it")

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
        """Draw the few-shot clients and the classes of every client. Raises BadInput."""
        refuse_too_few_samples(labels, clients)
        members = list_samples_by_class(labels)
        refuse_too_many_classes("classes", self.classes, len(members))
        self.refuse_lost_classes(len(members), clients)
        groups = np.zeros(clients, np.int64)
        groups[rng.permutation(clients)[:self.few(clients)]] = 1
        held = draw_classes(len(members), np.where(groups, self.few_classes, self.classes), rng)
        return deal_classes(members, held.T * self.common(labels, members, held.sum(0)), rng), groups

    def few(self, clients: int) -> int:
        """Return how many of the clients are few-shot clients."""
        return max(1, int(self.gamma * clients + .5)) if self.gamma else 0

    def refuse_lost_classes(self, classes: int, clients: int) -> None:
        """Raise BadInput if the clients hold too few of the classes that there are to hold all of them together."""
        held = [self.few(n) * self.few_classes + (n - self.few(n)) * self.classes for n in range(clients + classes + 1)]
        if held[clients] < classes:
            enough = next(n for n, together in enumerate(held) if together >= classes)
            raise BadInput(f"data.partition: {clients} clients, {self.few(clients)} of them few-shot, with "
                           f"{self.classes} or {self.few_classes} of {classes} classes each leave classes that nobody "
                           f"holds; set data.clients to {enough} or more, or raise data.partition.classes or "
                           "few_classes")

    def common(self, labels: np.ndarray, members: list[np.ndarray], holders: np.ndarray) -> int:
        """Return the amount of every class at each of its `holders` (classes,). Raises BadInput."""
        for indices, count in zip(members, holders, strict=True):
            refuse_scarce_class(labels, indices, count)
        most = min(len(indices) // count for indices, count in zip(members, holders, strict=True))
        if self.amount is not None and self.amount > most:
            raise BadInput(f"data.partition.amount = {self.amount}: the scarcest class has {most} samples for each of "
                           "its clients; lower it, or data.clients")
        return self.amount or most


BUILT_IN = {"iid": Iid, "dirichlet": Dirichlet, "client_dirichlet": ClientDirichlet, "pathological": Pathological,
            "n_class": NClass, "cluster_dirichlet": ClusterDirichlet, "cluster_n_class": ClusterNClass,
            "few_shot": FewShot, "natural": Natural, "indices": Indices, "flower": Flower}
