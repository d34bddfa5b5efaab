"""Decide which client holds which samples, and which of them it trains on, validates on and is tested on.

Legend of shapes: n samples, N clients."""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedmpi.config import schema
from fedmpi.data.labels import list_labels
from fedmpi.data.own_sources import require_names
from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import describe_definition, is_built_in

# Keeps the draw of the new clients apart from others of the seed. (With seed 0 it is also the stream of `thin_samples`,
# which draws other things: a trailing 0 does not count for NumPy.)
NEW_CLIENTS_STREAM = 2


class Assignment(NamedTuple):
    """Which samples of the pool each client holds, and in which part.

    order: the indices of the samples, (n,), client by client; inside a client train, validation and test follow each
    other. An index counts through x_train and then x_test. counts: how many samples each client has in each part,
    (N, 3). groups: the planted group of each client, (N,), or None. group_names: the names of the groups, or None.
    new_clients: the numbers that the partition gave to the new clients, ascending; here they are the last clients.
    client_names: the names of the clients, N of them, or None."""
    order: np.ndarray
    counts: np.ndarray
    groups: np.ndarray | None
    group_names: list[str] | None
    new_clients: list[int]
    client_names: list[str] | None = None


def assign_samples(pool: Dataset, data: schema.Data, seed: int) -> Assignment:
    """Divide the samples of the pool among the clients, and each client's samples into train, validation and test.

    Raises BadInput if the partition cannot divide this pool or gives an invalid division."""
    official = getattr(data.partition, "official", False)
    if getattr(data.partition, "counts_samples", False) and data.fraction != 1:
        raise BadInput(f"data.fraction = {data.fraction:g}: {name_partition(data)} "
                       "numbers the samples of the whole data set; set data.fraction = 1, or leave samples out of the "
                       "file")
    if hasattr(data.partition, "refuse_other_length"):
        data.partition.refuse_other_length(len(pool.y_train), len(pool.y_test))
    told = find_sample_holders(pool) if official else list_labels(pool, np.concatenate([pool.y_train, pool.y_test]))
    parts, groups = call_partition(data, told, np.random.default_rng((0, seed)))
    names = find_client_names(pool, data)
    shuffled = [np.random.default_rng((1, i, seed)).permutation(part) for i, part in enumerate(parts)]
    if data.comes_split:
        refuse_no_tests(pool, data)
        shuffled, counts = keep_given_split(shuffled, len(pool.y_train), names)
    else:
        counts = np.array([split_samples(len(part), data.split) for part in parts])
    new = draw_new_clients(data, seed)
    order = np.concatenate([np.setdiff1d(np.arange(len(parts)), new), new])
    return Assignment(np.concatenate([shuffled[i] for i in order]), counts[order],
                      None if groups is None else groups[order], find_group_names(data, groups), new.tolist(),
                      [names[i] for i in order] if names else None)


def name_partition(data: schema.Data) -> str:
    """Return the setting that chooses the partition, as messages begin with it."""
    return f"data.partition = {schema.find_name(data.partition)}"


def list_training_samples(dealt: Assignment) -> np.ndarray:
    """Return the samples (m,) on which clients train, ascending; they count as in `order`. New clients, which are the
    last ones, train nobody else's model: none of theirs counts."""
    trains = np.arange(len(dealt.counts)) < len(dealt.counts) - len(dealt.new_clients)
    trained = np.outer(trains, [True, False, False]).ravel().repeat(dealt.counts.ravel())
    return np.sort(dealt.order[trained])


def refuse_no_tests(pool: Dataset, data: schema.Data) -> None:
    """Raise BadInput if the data come in files that name no test part, of which the user may not be aware."""
    if pool.about is not None and not len(pool.y_test):
        raise BadInput(f"{name_partition(data)}: the data have no test part, and parts "
                       "are taken as they are; set data.partition.split = drawn, by which data.split divides each "
                       "client's samples, or give a test part")


def find_client_names(pool: Dataset, data: schema.Data) -> list[str] | None:
    """Return the names of the clients, if the partition or, with its own clients, the data set gives them.

    Raises BadInput unless there is a text for each client."""
    function = getattr(type(data.partition), "name_clients", None)
    if function is not None:
        where = name_partition(data)
        with blame_own_code(where, always=not is_built_in(type(data.partition))):
            names = data.partition.name_clients()
        where += f": {describe_definition(function)}what its name_clients() returns"
    else:
        names = (pool.about or {}).get("client_names") if getattr(data.partition, "official", False) else None
        where = f"data.name = {data.name}: the `client_names` in its `about`"
    return require_names(names, data.clients, where, most=data.clients)


def find_group_names(data: schema.Data, groups: np.ndarray | None) -> list[str] | None:
    """Return the names that the partition gives to the planted groups (N,), if it names them. Raises BadInput if a
    group has none."""
    if groups is None:
        return None
    names = getattr(data.partition, "group_names", None)
    return require_names(names, int(groups.max()) + 1, f"{name_partition(data)}: its group_names")


def draw_new_clients(data: schema.Data, seed: int) -> np.ndarray:
    """Return the numbers of the clients that are never trained, (data.new_clients,) ascending."""
    rng = np.random.default_rng((NEW_CLIENTS_STREAM, seed))
    return np.sort(rng.choice(data.clients, data.new_clients, replace=False)).astype(np.int64)


def call_partition(data: schema.Data, labels: np.ndarray,
                   rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Return the sample indices of each client, each (n,) int64, and the planted group of each client (N,) or None.

    Raises BadInput if the partition returns anything else, and FaultyCode if it fails."""
    own = not is_built_in(type(data.partition))
    where, n = name_partition(data), data.clients
    with blame_own_code(where, always=own):
        given = data.partition.assign(labels, n, rng)
        where += f": {describe_definition(type(data.partition).assign) if own else ''}its assign() must "
        if not isinstance(given, tuple) or len(given) != 2:
            raise BadInput(f"{where}return a pair (sample indices of each client, groups or None), not a "
                           f"{type(given).__name__}")
        parts, groups = given
        if isinstance(parts, Iterator) or not hasattr(parts, "__len__"):
            raise BadInput(f"{where}return the sample indices of all clients as a list of arrays, not a "
                           f"{type(parts).__name__}")
        parts = [np.asarray(part) for part in parts]
        if fault := find_fault(parts, n, len(labels)):
            raise BadInput(f"{where}give each of {n} clients at least one sample, and no sample twice; {fault}")
        # Sums of small types overflow, and mixed ones become floats.
        parts = [part.astype(np.int64, copy=False) for part in parts]
        return parts, None if groups is None else check_groups(np.asarray(groups), n, where)


def check_groups(groups: np.ndarray, clients: int, where: str) -> np.ndarray:
    """Return the planted group of each client (N,) int64. Raises BadInput, whose message begins with `where`, unless
    they are numbers from 0, one for each client."""
    if groups.shape != (clients,) or groups.dtype.kind not in "iu" or groups.min() < 0:
        raise BadInput(f"{where}give the group of each of {clients} clients as an integer from 0, or None; it gives "
                       f"{groups.dtype} {groups.shape}" + (f" from {groups.min()}" if groups.dtype.kind == "i" else ""))
    return groups.astype(np.int64)


def find_sample_holders(pool: Dataset) -> np.ndarray:
    """Return the client of each sample, (n,), that the data set itself gives. Raises BadInput if it gives none."""
    if pool.client_train is None:
        raise BadInput("data.partition = natural: the data set does not say who holds its samples; add client_train "
                       "and client_test to its .npz, set data.client to the column that does, set data.client_folders "
                       "= true for folders of pictures by client, or choose another partition")
    return np.concatenate([pool.client_train, pool.client_test])


def keep_given_split(parts: list[np.ndarray], train: int,
                     names: list[str] | None = None) -> tuple[list[np.ndarray], np.ndarray]:
    """Divide every client's samples as the data set does: the first `train` samples of the pool are for training.

    Returns each client's sample indices, those for training first, and the counts (N, 3) of train, validation (0) and
    test. Raises BadInput if a client has no training sample."""
    trained = [part < train for part in parts]
    counts = np.array([(mine.sum(), 0, (~mine).sum()) for mine in trained])
    if not counts[:, 0].all():
        client = int(np.argmin(counts[:, 0]))
        raise BadInput(f"data.partition: client {client}{f' ({names[client]})' if names else ''} has no training "
                       "samples; every client needs one in the training part (client_train); with data.partition.split "
                       "= drawn, data.split divides the samples of both parts")
    return [np.concatenate([part[mine], part[~mine]]) for part, mine in zip(parts, trained, strict=True)], counts


def find_fault(parts: list[np.ndarray], clients: int, samples: int) -> str:
    """Return what is wrong with the sample indices of the clients; "" if each client holds at least one sample, and all
    indices are valid and occur only once."""
    if len(parts) != clients:
        return f"it gives {len(parts)} parts"
    for client, part in enumerate(parts):
        if not part.size:
            return f"client {client} gets none"
        if part.ndim != 1 or part.dtype.kind not in "iu":
            return f"client {client} gets {part.dtype} {part.shape} in place of integers (n,)"
        if part.min() < 0 or part.max() >= samples:
            return f"client {client} gets indices from {part.min()} to {part.max()}, and there are {samples} samples"
    held = np.sort(np.concatenate([part.astype(np.int64, copy=False) for part in parts]))
    twice = held[1:][np.diff(held) == 0]
    return f"sample {twice[0]} is given twice" if len(twice) else ""


def split_samples(samples: int, shares: tuple[float, ...]) -> tuple[int, int, int]:
    """Return how many of a client's samples are for train (at least 1), validation and test; `shares` are two
    (without validation) or three."""
    # 1e-9 is added because .6 * 5 must not become 2 if it is stored as 2.9999...
    edges = np.floor(np.cumsum(shares)[:-1] * samples + 1e-9).astype(int)
    train = max(1, int(edges[0]))
    test = samples - max(train, int(edges[-1]))
    return train, samples - train - test, test
