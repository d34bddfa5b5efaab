"""A file that is written in a thread of its own, while the main thread goes on with its work."""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

Block = TypeVar("Block")


class Abandoned(Exception):
    """The remaining blocks will not come, so the file is not written."""


class BackgroundWrite(Generic[Block]):
    """A write that goes on in a thread: `feed` hands it the blocks, and `result` waits for its end.

    The thread talks to no other rank. Hashing and writing large blocks leave Python's lock to the main thread.

    Args:
        write: writes the blocks that it is given to a file, and returns the file's path.
        waiting: number of blocks that may wait to be written; then `feed` waits for the disk."""

    def __init__(self, write: Callable[[Iterator[Block]], Path], waiting: int):
        self.write = write
        # a block, or why there are no more: None after the last one, Abandoned if it will not come
        self.blocks: queue.Queue[Block | Abandoned | None] = queue.Queue(waiting)
        # whether this thread took the end of the blocks, and whether the main thread has given it
        self.took_end = self.gave_end = False
        self.path: Path | None = None
        self.error: BaseException | None = None
        # seconds that the write took, feeding included
        self.seconds, self.begin = 0., time.perf_counter()
        # Not the thread's own end: to Python 3.11 a thread is not alive once Ctrl-C ended a `join` of it.
        self.ended = threading.Event()
        # Python waits for this thread before it exits.
        self.thread = threading.Thread(target=self.run, name="fedmpi-writer")
        self.thread.start()

    def run(self) -> None:
        """Write all blocks and keep the path or the error (the thread)."""
        try:
            self.path = self.write(self.take())
        except BaseException as error:
            self.error = error
            # The main thread must not wait for room.
            while not self.took_end:
                self.next_block()
        finally:
            self.seconds = time.perf_counter() - self.begin
            self.ended.set()

    def take(self) -> Iterator[Block]:
        """Yield the blocks. Raises Abandoned if some are missing."""
        while not self.took_end:
            block = self.next_block()
            if isinstance(block, Abandoned):
                raise block
            if block is not None:
                yield block

    def next_block(self) -> Block | Abandoned | None:
        """Take a block, or the end of all."""
        block = self.blocks.get()
        self.took_end = block is None or isinstance(block, Abandoned)
        return block

    def feed(self, blocks: Iterable[Block]) -> None:
        """Hand over all blocks. If they end with an error, nothing is written."""
        try:
            for block in blocks:
                if self.gave_end:
                    raise Abandoned("nobody writes this block any more")
                self.blocks.put(block)
            self.end(None)
        finally:
            self.end(Abandoned("the blocks ended with an error"))

    def end(self, how: Abandoned | None) -> None:
        """Hand over the end of the blocks, unless that was done."""
        if not self.gave_end:
            self.gave_end = True
            self.blocks.put(how)

    @property
    def done(self) -> bool:
        """Whether the write has ended, well or not."""
        return self.ended.is_set()

    def wait(self) -> None:
        """Wait for the end of the write; if it has not all blocks yet, it is abandoned."""
        self.end(Abandoned("the run ended before the last block"))
        self.ended.wait()

    def describe_loss(self) -> str:
        """Return what to tell the user of a write that failed by itself, "" of any other."""
        if self.error is None or isinstance(self.error, Abandoned):
            return ""
        return f"what was being written is lost, too: {self.error}"

    def result(self) -> Path:
        """Wait for the end of the write and return the path. Raises the error of the write."""
        self.wait()
        if self.path is None:
            raise self.error or Abandoned()
        return self.path
