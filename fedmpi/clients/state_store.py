"""The private states (Mine) of the clients that one rank hosts. A client that never wrote a state has the first one.

States beyond a bound of memory go to a scratch file of this rank, the least recently used (LRU) first. It is a plain
file of records of one size and not HDF5: nobody else reads it, and HDF5 crashes the process when a disk is full."""
from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import BadInput, FedmpiError
from fedmpi.method import State
from fedmpi.storage import checkpoint

# so many bytes of states are copied from a GPU, or read from a file, at once
PIECE_BYTES = 64 << 20


class StateStore:
    """States by client.

    Args:
        first: the first state of every client, a NamedTuple of tensors on the device where states are kept
        memory: bytes of states that are kept in memory at most; at least one state is
        scratch: folder of the scratch file; None: the system's temporary folder"""

    def __init__(self, first: State, memory: float = float("inf"), scratch: str | None = None):
        self.first, self.memory = first, memory
        # states in memory, the least recently used first
        self._rows: OrderedDict[int, State] = OrderedDict()
        self._spill = Spill(first, scratch)
        self._size = max(1, sum(v.numel() * v.element_size() for v in first))

    def read(self, client: int) -> State:
        """Return a client's state."""
        if client in self._rows:
            self._rows.move_to_end(client)
            return self._rows[client]
        return self._spill.read(client) if client in self._spill.places else self.first

    def read_columns(self, client: int, field: int, start: int, stop: int) -> Tensor:
        """Return columns [start, stop) of a field of a client's state, flat, (stop - start,). If the state is in the
        scratch file, the rest of it is not read."""
        if client in self._rows or client not in self._spill.places:
            return self.read(client)[field].reshape(-1)[start:stop]
        return self._spill.read_columns(client, field, start, stop)

    @property
    def at_once(self) -> int:
        """How many whole states are read at once, so that they take PIECE_BYTES."""
        return max(1, PIECE_BYTES // self._size)

    @property
    def spills(self) -> bool:
        """Whether some states are in the scratch file."""
        return bool(self._spill.places)

    def write(self, client: int, mine: State) -> None:
        """Keep a client's new state."""
        # a method whose clients keep nothing has an empty Mine
        if not mine:
            return
        self._rows[client] = mine
        self._rows.move_to_end(client)
        while len(self._rows) > 1 and len(self._rows) * self._size > self.memory:
            self._spill.write(*self._rows.popitem(last=False))

    def pop(self, client: int) -> State:
        """Return a client's state, and forget it."""
        mine = self.read(client)
        self._rows.pop(client, None)
        self._spill.forget(client)
        return mine

    def find_touched(self, clients: Iterable[int]) -> np.ndarray:
        """Say which of these clients have written a state, (n,) bool."""
        return np.array([c in self._rows or c in self._spill.places for c in clients], bool)

    def stack(self, clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the states of clients as arrays (n, ...) by field."""
        # one copy from the GPU for each field, not one for each client
        if len(clients) and any(v.is_cuda for v in self.first):
            columns = zip(*(self.read(int(c)) for c in clients), strict=True)
            return {name: copy_to_numpy(torch.stack(column))
                    for name, column in zip(self.first._fields, columns, strict=True)}
        return {name: np.stack([copy_to_numpy(getattr(self.read(int(c)), name)) for c in clients])
                if len(clients) else np.empty((0, *value.shape), copy_to_numpy(value).dtype)
                for name, value in self.first._asdict().items()}

    def restore(self, client: int, row: dict[str, np.ndarray]) -> None:
        """Keep a state that is given as one array for each field."""
        self.write(client, type(self.first)(*(
            torch.from_numpy(np.array(row[name])).to(value.device)
            for name, value in self.first._asdict().items())))

    def restore_from(self, path: str | Path, ids: np.ndarray, clients: list[int]) -> None:
        """Read the rows of clients from a checkpoint file that holds those of `ids`, neighbours together.

        The file is opened and verified once; then the time is proportional to the rows that are read. Of those, as many
        are in memory as `memory` says, and at most PIECE_BYTES more."""
        places, saved = np.flatnonzero(np.isin(ids, clients)), checkpoint.CheckpointFile(path)
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            for part in (run[i:i + self.at_once] for i in range(0, len(run), self.at_once)):
                fields = saved.read_rows(part[0], part[-1] + 1)
                for i, place in enumerate(part):
                    self.restore(int(ids[place]), {name: rows[i] for name, rows in fields.items()})

    def digest(self, client: int) -> np.ndarray:
        """Return the sha256 of a client's state, (32,) uint8."""
        mine = self.read(client)
        return np.frombuffer(self._first_digest if mine is self.first else compute_digest(mine), np.uint8)

    def compute_digests(self, clients: Sequence[int]) -> np.ndarray:
        """Return the sha256 of each client's state, (n, 32) uint8."""
        if not any(v.is_cuda for v in self.first):
            return np.array([self.digest(c) for c in clients], np.uint8).reshape(-1, 32)
        own = [c for c, touched in zip(clients, self.find_touched(clients), strict=True) if touched]
        found: dict[int, bytes] = {}
        for begin in range(0, len(own), self.at_once):
            some = own[begin:begin + self.at_once]
            columns = self.stack(some).values()
            found |= {c: compute_digest(type(self.first)(*(column[i] for column in columns)))
                      for i, c in enumerate(some)}
        return np.frombuffer(b"".join(found.get(c, self._first_digest) for c in clients), np.uint8).reshape(-1, 32)

    @cached_property
    def _first_digest(self) -> bytes:
        # computed once, not for every client that never took part
        return compute_digest(self.first)


class Spill:
    """Records of one size in an unnamed scratch file, which vanishes with the process however it ends.

    Args:
        first: a state like those that are written
        folder: where the file is; None: the system's temporary folder

    Raises:
        BadInput: if there is no such folder."""

    def __init__(self, first: State, folder: str | None):
        self.first, self.folder = first, folder
        # now, and not at the first state that does not fit in memory, perhaps hours later
        if folder is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
            raise BadInput(f"state.scratch = {folder}: no folder on {socket.gethostname()} in which this process may "
                           "write; make it, or name another one")
        self.shapes = [(v.dtype, v.shape, v.numel() * v.element_size()) for v in first]
        self.size = sum(size for _, _, size in self.shapes)
        # the record of each client, and records of clients that were forgotten
        self.places: dict[int, int] = {}
        self.free: list[int] = []

    @property
    def place(self) -> str:
        """Where the file is, for error messages."""
        return f"scratch space in {self.folder or tempfile.gettempdir()}"

    @cached_property
    def file(self) -> IO[bytes]:
        """The scratch file, made when it is first used."""
        return tempfile.TemporaryFile(dir=self.folder, prefix="fedmpi-states-")

    def write(self, client: int, mine: State) -> None:
        """Write a client's state. Raises FedmpiError if the disk refuses it."""
        record = memoryview(b"".join(np.ascontiguousarray(copy_to_numpy(v)).tobytes() for v in mine))
        if client not in self.places:
            self.places[client] = self.free.pop() if self.free else len(self.places)
        at = self.places[client] * self.size
        try:
            # one call writes at most 2 GiB
            while record:
                written = os.pwrite(self.file.fileno(), record, at)
                record, at = record[written:], at + written
        except OSError as error:
            raise FedmpiError(f"the state of client {client} cannot be written to {self.place}: {error.strerror}; "
                              "raise state.memory, or set state.scratch to a folder with more space") from None

    def forget(self, client: int) -> None:
        """Let another client have this one's record."""
        if client in self.places:
            self.free.append(self.places.pop(client))

    def read(self, client: int) -> State:
        """Return a client's state. Raises FedmpiError if the disk does not give it back."""
        record, values, at = self._read_bytes(client, 0, self.size), [], 0
        for like, (dtype, shape, size) in zip(self.first, self.shapes, strict=True):
            values.append(make_tensor(record[at:at + size], dtype).reshape(shape).to(like.device))
            at += size
        return type(self.first)(*values)

    def read_columns(self, client: int, field: int, start: int, stop: int) -> Tensor:
        """Return columns [start, stop) of a field of a client's state, flat, and read nothing else."""
        like = self.first[field]
        before, width = sum(size for _, _, size in self.shapes[:field]), like.element_size()
        record = self._read_bytes(client, before + start * width, (stop - start) * width)
        return make_tensor(record, like.dtype).to(like.device)

    def _read_bytes(self, client: int, begin: int, size: int) -> bytearray:
        """Return so many bytes of a client's record, from a place in it on."""
        record, begin, got = bytearray(size), self.places[client] * self.size + begin, 0
        while got < size:
            try:
                moved, why = os.preadv(self.file.fileno(), [memoryview(record)[got:]], begin + got), ""
            except OSError as error:
                moved, why = 0, f": {error.strerror}"
            if not moved:
                raise FedmpiError(f"the {self.place} does not give back the state of client {client}{why}; set "
                                  "state.scratch to a folder on another disk")
            got += moved
        return record


def make_tensor(record: bytearray, dtype: torch.dtype) -> Tensor:
    """Return the numbers that some bytes hold, which it shares with them."""
    return torch.frombuffer(record, dtype=dtype) if record else torch.empty(0, dtype=dtype)


def compute_digest(state: State) -> bytes:
    """Return the sha256 of the names, types, shapes and bytes of a NamedTuple of tensors or arrays."""
    total = hashlib.sha256()
    for name, value in state._asdict().items():
        array = np.asarray(copy_to_numpy(value) if isinstance(value, Tensor) else value)
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.digest()


def compute_run_digest(shared: State, rows: np.ndarray) -> str:
    """Return the digest of a whole run, in hexadecimal digits.

    Args:
        shared: the server's state
        rows: the sha256 of every client's state, (N, 32) uint8"""
    total = hashlib.sha256(compute_digest(shared))
    total.update(np.ascontiguousarray(rows).data)
    return total.hexdigest()


def copy_to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array on the host."""
    return tensor.detach().cpu().numpy()
