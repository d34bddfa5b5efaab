"""When rank 0 writes checkpoints of a run, what they hold, and how a run continues from one."""
from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fedmpi.clients.state_store import copy_to_numpy
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.rank_pool import RankPool
from fedmpi.config.schema import Config, to_plain
from fedmpi.data.federation import Federation
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.method import State, nbytes
from fedmpi.progress import Progress
from fedmpi.server.run_state import RunState
from fedmpi.storage import checkpoint
from fedmpi.storage.background import BackgroundWrite
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.listing import name_checkpoint
from fedmpi.text import GIB

# Bytes of client rows gathered at once for a checkpoint.
CHECKPOINT_PIECE_BYTES = 64 << 20


@dataclass
class CheckpointWriter:
    """Writes and reads the checkpoints of a run at rank 0."""
    config: Config
    pool: RankPool
    federation: Federation
    folder: RunFolder
    progress: Progress
    state: RunState
    # GPUs at work, see engines/gpu_card.py
    gpus: list[str] = field(default_factory=list)
    # what else every checkpoint holds
    facts: JsonObject = field(default_factory=dict)
    # when the last checkpoint of this start was begun, or the start itself
    last_begun: float = field(default_factory=time.perf_counter)
    # seconds that the slowest checkpoint of this start took
    slowest_s: float = 0.
    # round of the last checkpoint that was begun
    last_round: int = 0

    def is_due(self, over: bool, has_deadline: bool) -> bool:
        """Return whether to save after this round: as `checkpoint` says, at the end, and once early if there is a
        deadline, to know how long it takes."""
        every, minutes, done = self.config.checkpoint.every, self.config.checkpoint.minutes, self.state.round
        return bool(every and done % every == 0 or over
                    or minutes and time.perf_counter() - self.last_begun > 60 * minutes
                    or has_deadline and not self.slowest_s)

    def save(self, while_training: bool = False) -> None:
        """Write a checkpoint: the server's state, and the clients' rows as they stream in from their homes.

        Args:
            while_training: return as soon as the rows are here, if `checkpoint.asynchronous` allows that. The rest is
                done in a thread until `collect` waits for it. Everything that it writes is a copy."""
        begin, state = time.perf_counter(), self.state
        self.last_begun, self.last_round = begin, state.round
        ids = np.flatnonzero(self.pool.call(OrderPerformer.gather_touched)).astype(np.int64)
        shared = {name: copy_to_numpy(value).copy() for name, value in zip(state.fields, state.shared, strict=True)}
        extra = {**self.facts, "history": self.folder.history.chain, "gpus": self.gpus}
        snapshot = checkpoint.Snapshot(
            state.round, shared, ids, to_plain(self.config), self.federation.fingerprint, state.score(),
            list(state.metrics), extra | state.describe() | self.pool.hosted.describe_engine())
        self.folder.save_history()

        def write(pieces: Iterable[dict[str, np.ndarray]]) -> Path:
            path = checkpoint.write_checkpoint(self.folder.checkpoints, snapshot, pieces)
            checkpoint.delete_old_checkpoints(self.folder.checkpoints, self.config.checkpoint.keep, path)
            return path
        if while_training and self.config.checkpoint.asynchronous:
            pieces = max(1, int(self.config.state.memory * GIB) // CHECKPOINT_PIECE_BYTES)
            background = BackgroundWrite(write, pieces)
            self.folder.begin_write(background)
            background.feed(self.gather_pieces(ids))
        else:
            path = write(self.gather_pieces(ids))
            self.note_saved(path, time.perf_counter() - begin)

    def collect(self, wait: bool) -> None:
        """Take note of the checkpoint that was written while training went on, if there is one and it is complete.

        Args:
            wait: wait until it is.
        Raises:
            StorageError: if it could not be written."""
        if written := self.folder.end_write(wait):
            self.note_saved(*written)

    def note_saved(self, path: Path, seconds: float) -> None:
        """Note in the log that a checkpoint is complete, and how long it took."""
        self.slowest_s = max(self.slowest_s, seconds)
        self.progress.note(f"saved {path}")

    def gather_pieces(self, ids: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows of clients `ids` by field, a bounded number of bytes at a time."""
        per_client = max(1, nbytes(self.pool.hosted.store.first))
        at_once = max(1, CHECKPOINT_PIECE_BYTES // per_client)
        for start in range(0, len(ids), at_once):
            yield self.pool.call(OrderPerformer.gather_states, ids[start:start + at_once])

    def restore(self, path: Path, snapshot: checkpoint.Snapshot) -> None:
        """Continue from a checkpoint; every rank reads its own clients' rows from the file."""
        shared = restore_shared(path, snapshot, self.state.shared, self.pool.hosted.store.first)
        self.state.restore(snapshot, shared)
        self.pool.call(OrderPerformer.restore, np.frombuffer(os.fsencode(path), np.uint8), snapshot.ids)

    def keep_base(self, path: Path) -> None:
        """Copy the checkpoint from which the run goes on to its place among those of the run, if it lies elsewhere or
        has another name: `--resume auto` would not find it after a kill before the first save."""
        own = self.folder.checkpoints / name_checkpoint(self.state.round)
        if os.path.realpath(path) != os.path.realpath(own):
            self.folder.check_lock()
            checkpoint.copy_checkpoint(path, own)
            self.progress.note(f"copied {path} to {own}")


def restore_shared(path: Path, snapshot: checkpoint.Snapshot, shared: State, mine: State) -> State:
    """Return the server's state of a checkpoint. Raises BadInput unless it and the clients' rows have the fields and
    shapes of the first Shared and Mine of the method as it is now."""
    then = {"the server's state": {k: v.shape for k, v in snapshot.shared.items()}}
    now = {"the server's state": read_shapes(shared), "a client's state": read_shapes(mine)}
    if len(snapshot.ids):
        then["a client's state"] = checkpoint.read_row_shapes(path)
    for what in then:
        refuse_other_fields(path, what, then[what], now[what])
    return type(shared)(*(torch.from_numpy(snapshot.shared[name]) for name in now["the server's state"]))


def read_shapes(state: State) -> dict[str, tuple[int, ...]]:
    """Return the shape of each field of a NamedTuple of tensors."""
    return {name: tuple(v.shape) for name, v in zip(getattr(type(state), "_fields", ()), state, strict=True)}


def refuse_other_fields(path: Path, what: str, then: dict[str, tuple[int, ...]],
                        now: dict[str, tuple[int, ...]]) -> None:
    """Raise BadInput if a state in a checkpoint has other fields than the method has now, or of other shapes: its own
    code, or that of its network, was changed."""
    if then != now:
        differ = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        listed = ", ".join(f"{name} {then.get(name, 'missing')} there and {now.get(name, 'missing')} now"
                           for name in differ)
        raise BadInput(f"{path} cannot be used with the code as it is now: {what} has other fields ({listed}); put "
                       "the code back, or start a new run with another --out")
