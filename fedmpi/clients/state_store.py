"""The private states (Mine) of the clients that one rank hosts. A client that never wrote holds the first state.

States beyond a bound go to a scratch file of this rank, the least recently used first. It is a plain file of
fixed-size records and not HDF5: nobody else reads it, and HDF5 crashes the process when a disk is full."""
from __future__ import annotations

import hashlib
import os
import tempfile
from collections import OrderedDict
from functools import cached_property

import numpy as np
import torch

from fedmpi.errors import FedmpiError
from fedmpi.storage import checkpoint

PIECE_BYTES = 64 << 20      # bytes of states that are brought to the host at once


class StateStore:
    """Rows of `Mine` by client. What a client reads is its own: rows are never shared between clients."""

    def __init__(self, first, memory: float = float("inf"), scratch: str | None = None):
        self.first, self.memory = first, memory
        self._rows = OrderedDict()      # in memory, least recently used first
        self._spill = Spill(first, scratch)
        self._size = max(1, sum(v.numel() * v.element_size() for v in first))

    def read(self, client: int):
        if client in self._rows:
            self._rows.move_to_end(client)
            return self._rows[client]
        return self._spill.read(client) if client in self._spill.places else self.first

    def write(self, client: int, mine) -> None:
        if not mine:      # a method whose clients keep nothing has an empty Mine
            return
        self._rows[client] = mine
        self._rows.move_to_end(client)
        while len(self._rows) > 1 and len(self._rows) * self._size > self.memory:
            self._spill.write(*self._rows.popitem(last=False))

    def give(self, client: int):
        """Return a client's row, and forget it."""
        mine = self.read(client)
        self._rows.pop(client, None)
        self._spill.forget(client)
        return mine

    def touched(self, clients) -> np.ndarray:
        """Say which clients have a row of their own, (n,) bool."""
        return np.array([c in self._rows or c in self._spill.places for c in clients], bool)

    def stacked(self, clients) -> dict[str, np.ndarray]:
        """Return the rows of clients as arrays (n, ...) by field."""
        if len(clients) and any(v.is_cuda for v in self.first):      # one copy for a field, not one for each client
            columns = zip(*(self.read(int(c)) for c in clients), strict=True)
            return {name: as_numpy(torch.stack(column))
                    for name, column in zip(self.first._fields, columns, strict=True)}
        return {name: np.stack([as_numpy(getattr(self.read(int(c)), name)) for c in clients])
                if len(clients) else np.empty((0, *value.shape), as_numpy(value).dtype)
                for name, value in self.first._asdict().items()}

    def restore(self, client: int, row: dict[str, np.ndarray]) -> None:
        self.write(client, type(self.first)(*(
            torch.from_numpy(np.array(row[name])).to(value.device)
            for name, value in self.first._asdict().items())))

    def restore_from(self, path: str, ids: np.ndarray, clients: list[int]) -> None:
        """Read the rows of clients from a checkpoint file that holds those of `ids`, neighbours together.

        The file is opened and verified once; then the time is proportional to the rows that are read."""
        places, saved = np.flatnonzero(np.isin(ids, clients)), checkpoint.Checkpoint(path)
        for run in filter(len, np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)):
            fields = saved.read_rows(run[0], run[-1] + 1)
            for i, place in enumerate(run):
                self.restore(int(ids[place]), {name: rows[i] for name, rows in fields.items()})

    def digest(self, client: int) -> np.ndarray:
        """Return the sha256 of a client's state, (32,) uint8."""
        mine = self.read(client)
        return np.frombuffer(self._first_digest if mine is self.first else digest_of(mine), np.uint8)

    def digests(self, clients) -> np.ndarray:
        """Return the same of several clients, (n, 32) uint8."""
        if not any(v.is_cuda for v in self.first):
            return np.array([self.digest(c) for c in clients], np.uint8).reshape(-1, 32)
        own, found = [c for c, touched in zip(clients, self.touched(clients), strict=True) if touched], {}
        at_once = max(1, PIECE_BYTES // self._size)
        for begin in range(0, len(own), at_once):
            some = own[begin:begin + at_once]
            columns = self.stacked(some).values()
            found |= {c: digest_of(type(self.first)(*(column[i] for column in columns))) for i, c in enumerate(some)}
        return np.frombuffer(b"".join(found.get(c, self._first_digest) for c in clients), np.uint8).reshape(-1, 32)

    @cached_property
    def _first_digest(self) -> bytes:
        return digest_of(self.first)      # once, not for every client that never took part


class Spill:
    """Records of a fixed size in an unnamed scratch file, which vanishes with the process however it ends."""

    def __init__(self, first, folder: str | None):
        self.first, self.folder = first, folder
        self.shapes = [(v.dtype, v.shape, v.numel() * v.element_size()) for v in first]
        self.size = sum(size for _, _, size in self.shapes)
        self.places: dict[int, int] = {}      # client -> record
        self.free: list[int] = []             # records of clients that are here no more

    @property
    def place(self) -> str:
        return f"scratch space in {self.folder or tempfile.gettempdir()}"

    @cached_property
    def file(self):
        return tempfile.TemporaryFile(dir=self.folder, prefix="fedmpi-states-")

    def write(self, client: int, mine) -> None:
        record = memoryview(b"".join(np.ascontiguousarray(as_numpy(v)).tobytes() for v in mine))
        if client not in self.places:
            self.places[client] = self.free.pop() if self.free else len(self.places)
        at = self.places[client] * self.size
        try:
            while record:      # one call moves 2 GiB at most
                written = os.pwrite(self.file.fileno(), record, at)
                record, at = record[written:], at + written
        except OSError as error:
            raise FedmpiError(f"the state of client {client} cannot be written to {self.place}: {error.strerror}; "
                              "raise state.memory, or set state.scratch to a folder with more space") from None

    def forget(self, client: int) -> None:
        if client in self.places:
            self.free.append(self.places.pop(client))

    def read(self, client: int):
        record, begin, got = bytearray(self.size), self.places[client] * self.size, 0
        while got < self.size:
            moved = os.preadv(self.file.fileno(), [memoryview(record)[got:]], begin + got)
            if not moved:
                raise FedmpiError(f"the {self.place} does not give back the state of client {client}; set "
                                  "state.scratch to a folder on another disk")
            got += moved
        values, at = [], 0
        for like, (dtype, shape, size) in zip(self.first, self.shapes, strict=True):
            part = record[at:at + size]
            flat = torch.frombuffer(part, dtype=dtype) if size else torch.empty(0, dtype=dtype)
            values.append(flat.reshape(shape).to(like.device))
            at += size
        return type(self.first)(*values)


def digest_of(state) -> bytes:
    """Return the sha256 of a NamedTuple of tensors: names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, value in state._asdict().items():
        array = np.asarray(as_numpy(value) if isinstance(value, torch.Tensor) else value)
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.digest()


def digest_of_run(shared, rows: np.ndarray) -> str:
    """Return the digest of a whole run: of the server's state, and of every client's, (N, 32) uint8."""
    total = hashlib.sha256(digest_of(shared))
    total.update(np.ascontiguousarray(rows).data)
    return total.hexdigest()


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
