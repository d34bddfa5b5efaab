"""A small MPI over socket pairs for ranks that are forked on one machine: the parts of mpi4py.MPI that fedmpi uses.

tests/forked.py starts such ranks, and tests/comm/test_ranks.py compares their results with those of a real MPI library.
Messages between two ranks keep their order. Every communicator has a number, under which a rank finds its messages.
Collectives are messages with tags of their own. The receiver buffers all messages, so no send can deadlock."""
from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import deque

import numpy as np

HEAD = struct.Struct("<iiiq")      # communicator, tag, source, bytes
ANY = -1
COLLECTIVE = 1 << 20      # tags from here on belong to collectives; user code stays below
WAIT_S = .01              # longest sleep of a blocking call; a message that arrives ends it
NAP_S = .0005             # between two tests of a request
PATIENCE_S = .002         # longest time for which such a test waits for a message
CHUNK_BYTES = 1 << 18     # read or written at once


class Status:
    """Who sent a message, and how long it is."""
    source, tag, nbytes = ANY, ANY, 0

    def Get_count(self, kind) -> int:
        return self.nbytes


class Post:
    """The connections of this rank, and the messages that have arrived: by communicator, in the order of arrival.

    Any thread may read for all threads. `lock` is held only for moments, never while a thread waits."""

    def __init__(self, rank: int, sockets: dict):
        self.rank, self.sockets, self.lock = rank, sockets, threading.RLock()
        self.sending = {peer: threading.Lock() for peer in sockets}
        self.boxes, self.partial = {}, {peer: bytearray() for peer in sockets}
        self.peers, self.ready = {end.fileno(): peer for peer, end in sockets.items()}, select.poll()
        for end in sockets.values():
            end.setblocking(False)
            self.ready.register(end, select.POLLIN)

    def pump(self) -> None:
        """Read everything that has arrived in the sockets."""
        with self.lock:
            for number, _ in self.ready.poll(0):
                peer = self.peers[number]
                try:
                    data = self.sockets[peer].recv(CHUNK_BYTES)
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    data = b""
                if not data:      # the rank has ended
                    self.ready.unregister(number)
                    del self.sockets[peer]
                self.partial[peer] += data
                self._sort(self.partial[peer])

    def _sort(self, buffer: bytearray) -> None:
        at = 0
        while len(buffer) - at >= HEAD.size:
            comm, tag, source, size = HEAD.unpack_from(buffer, at)
            if len(buffer) - at < HEAD.size + size:
                break
            self.box(comm).append((source, tag, bytes(buffer[at + HEAD.size:at + HEAD.size + size])))
            at += HEAD.size + size
        del buffer[:at]

    def box(self, comm: int) -> deque:
        """Return the messages that have arrived for a communicator."""
        return self.boxes.setdefault(comm, deque())

    def send(self, comm: int, tag: int, data: bytes, peer: int) -> None:
        """Send a message to another rank or to this one. A rank that has ended gets nothing."""
        if peer == self.rank:
            with self.lock:
                return self.box(comm).append((peer, tag, data))
        rest = memoryview(HEAD.pack(comm, tag, self.rank, len(data)) + data)
        with self.sending[peer]:
            while rest and peer in self.sockets:
                try:
                    rest = rest[self.sockets[peer].send(rest[:CHUNK_BYTES]):]
                except BlockingIOError:      # the other rank may be sending to this one
                    self.pump()
                    select.select([], [self.sockets[peer]], [], WAIT_S)
                except (BrokenPipeError, ConnectionResetError, KeyError):
                    return

    def rest(self, seconds: float = PATIENCE_S) -> None:
        """Sleep for a moment or until something arrives; this is cheaper than to look again and again."""
        with contextlib.suppress(ValueError, OSError):      # another thread may close a connection; only pump polls
            select.select(list(self.sockets.values()), [], [], seconds)

    def take(self, comm: int, source: int, tags, remove: bool = True):
        """Return the first message from `source` (or ANY) whose tag fulfils `tags`; None if there is none."""
        self.pump()
        with self.lock:
            box = self.box(comm)
            for i, message in enumerate(box):
                if message[0] in (source, message[0] if source == ANY else source) and tags(message[1]):
                    if remove:
                        del box[i]
                    return message
        return None

    def wait(self, comm: int, source: int, tags, remove: bool = True):
        """Return what `take` returns as soon as there is such a message."""
        while (message := self.take(comm, source, tags, remove)) is None:
            self.rest(WAIT_S)
        return message


def mesh(size: int) -> list[dict]:
    """Connect every two of `size` ranks; return for each rank its sockets by the number of the other rank."""
    ends = [{} for _ in range(size)]
    for a in range(size):
        for b in range(a + 1, size):
            ends[a][b], ends[b][a] = socket.socketpair()
    return ends


def flat(buffer) -> np.ndarray:
    """Return the bytes of an array, or of a tensor on the CPU, as an array that shares its memory."""
    array = buffer if isinstance(buffer, np.ndarray) else buffer.detach().numpy()
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8)


def exactly(tag: int):
    """Return a function that is true for one tag."""
    return lambda found: found == tag


def any_tag(tag: int):
    """Return a function that is true for one tag or, if it is ANY, for all tags of user code."""
    return (lambda found: found < COLLECTIVE) if tag == ANY else exactly(tag)


class Request:
    """A call that is under way. `step()` advances it and says whether it is done; `rest()` sleeps for a moment."""

    def __init__(self, step, rest=None):
        self.step, self.rest, self.done = step, rest, False

    def Test(self) -> bool:
        self.done = self.done or bool(self.step())
        if not self.done and self.rest:
            self.rest()
            self.done = bool(self.step())
        return self.done

    @staticmethod
    def Waitall(requests) -> None:
        for request in requests:
            while not request.Test():
                time.sleep(NAP_S)


class Comm:
    """A communicator of all ranks."""

    def __init__(self, post: Post, size: int, number: int, abort):
        self.post, self.rank, self.size, self.number, self._abort = post, post.rank, size, number, abort
        self.begun = 0      # collectives so far, each of which has a tag of its own

    def Dup(self) -> Comm:
        return Comm(self.post, self.size, self.number + 1, self._abort)

    def Split_type(self, kind) -> Comm:
        return self      # all ranks are on this machine

    def Free(self) -> None:
        """Do nothing: there is nothing to free."""

    def Abort(self, code: int) -> None:
        self._abort(code)

    def Send(self, buffer, dest: int, tag: int = 0) -> None:
        self.post.send(self.number, tag, flat(buffer).tobytes(), dest)

    def Isend(self, buffer, dest: int, tag: int = 0) -> Request:
        self.Send(buffer, dest, tag)
        return Request(lambda: True)

    def Recv(self, buffer, source: int, tag: int = ANY) -> None:
        self._put(buffer, self.post.wait(self.number, source, any_tag(tag)))

    def Iprobe(self, source: int = ANY, tag: int = ANY, status: Status | None = None) -> bool:
        return self._told(status, self.post.take(self.number, source, any_tag(tag), remove=False))

    def Probe(self, source: int = ANY, tag: int = ANY, status: Status | None = None) -> bool:
        return self._told(status, self.post.wait(self.number, source, any_tag(tag), remove=False))

    @staticmethod
    def _told(status, message) -> bool:
        if message and status is not None:
            status.source, status.tag, status.nbytes = message[0], message[1], len(message[2])
        return message is not None

    @staticmethod
    def _put(buffer, message) -> None:
        room = flat(buffer)
        assert len(message[2]) == room.size, f"{len(message[2])} bytes came where {room.size} were expected"
        room[:] = np.frombuffer(message[2], np.uint8)

    def _tag(self) -> int:
        self.begun += 1
        return COLLECTIVE + self.begun

    def Ibcast(self, buffer, root: int) -> Request:
        tag = self._tag()
        if self.rank == root:
            for peer in range(self.size):
                if peer != root:
                    self.Send(buffer, peer, tag)
            return Request(lambda: True)

        def arrived() -> bool:
            message = self.post.take(self.number, root, exactly(tag))
            if message:
                self._put(buffer, message)
            return message is not None
        return Request(arrived, self.post.rest)

    def Bcast(self, buffer, root: int) -> None:
        if self.rank == root:
            self.Ibcast(buffer, root)
        else:
            self._put(buffer, self.post.wait(self.number, root, exactly(self._tag())))

    def Ibarrier(self) -> Request:
        """Every rank tells rank 0 that it has arrived, and rank 0 then tells every rank that all have."""
        tag, nothing, missing = self._tag(), np.empty(0, np.uint8), set(range(1, self.size))
        if self.rank:
            self.Send(nothing, 0, tag)
            return Request(lambda: self.post.take(self.number, 0, exactly(tag)) is not None, self.post.rest)

        def complete() -> bool:
            while missing and (message := self.post.take(self.number, ANY, exactly(tag))):
                missing.remove(message[0])
                if not missing:
                    for peer in range(1, self.size):
                        self.Send(nothing, peer, tag)
            return not missing
        return Request(complete, self.post.rest)

    def Reduce(self, send, receive, operation, root: int) -> None:
        tag = self._tag()
        if self.rank != root:
            return self.Send(send, root, tag)
        total = receive if isinstance(receive, np.ndarray) else receive.numpy()
        for _ in range(self.size - 1):
            data = self.post.wait(self.number, ANY, exactly(tag))[2]
            total += np.frombuffer(data, total.dtype).reshape(total.shape)

    def Alltoallv(self, send, receive) -> None:
        (out, counts), (got, sizes), tag = send, receive, self._tag()
        starts, places = np.cumsum([0, *counts]), np.cumsum([0, *sizes])
        for peer in range(self.size):
            self.Send(out[starts[peer]:starts[peer + 1]], peer, tag)
        for peer in range(self.size):
            self._put(got[places[peer]:places[peer + 1]], self.post.wait(self.number, peer, exactly(tag)))


class SocketMPI:
    """Takes the place of the module mpi4py.MPI in a forked rank."""
    IN_PLACE, SUM, BYTE, COMM_TYPE_SHARED = "in place", "sum", 1, "shared"
    Status, Request = Status, Request

    def __init__(self, rank: int, size: int, sockets: dict, abort=os._exit):
        self.COMM_WORLD = Comm(Post(rank, sockets), size, 0, abort)

    @staticmethod
    def Query_thread() -> int:
        return 3      # MPI_THREAD_MULTIPLE: any thread may call

    @staticmethod
    def Get_library_version() -> str:
        return "sockets of the tests\n"

    def Finalize(self) -> None:
        """Nothing to finalise."""


class Package:
    """Takes the place of the package mpi4py in a forked rank."""

    class rc:      # noqa: N801  (as mpi4py spells it)
        thread_level = "multiple"

    def __init__(self, mpi: SocketMPI):
        self.MPI = mpi
