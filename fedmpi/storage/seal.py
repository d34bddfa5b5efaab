"""The seal of a file: its first 4096 bytes, written last, by which any damaged byte is found. See storage.sealed.

It is one line of text with a checksum of what follows, then JSON padded with blanks: the format, the kind of file, its
size, the regions that hold rows (which have checksums of their own) and a checksum of all other bytes.
"""
from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedmpi import __version__
from fedmpi.errors import BadInput, StorageError
from fedmpi.json_values import JsonObject
from fedmpi.storage.atomic import describe_reason

# Format 1 sealed checkpoints only, in the same way.
SEAL_FORMAT = 2
SEAL_BYTES = 4096
# Bytes that are read and hashed at once.
HASH_BLOCK_BYTES = 16 << 20
DIGEST_BYTES = 16
# What a network file system, a crowded machine or a missing right says of files that are whole
PASSING_ERRORS = (errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN,
                  errno.ENOMEM, errno.EMFILE, errno.ENFILE)
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
REFUSALS = {
    "checkpoint": "{path} cannot be used as a checkpoint: {why}; resume from another one",
    "federation": "{path}: the federation cannot be used: {why}; delete it, it is made again from the source",
    "history": "{path} cannot be read as a history: {why}; `--resume auto` puts it aside",
}


class DamagedFile(BadInput):
    """A file cannot be used. The message names it and the reason; `why` is the reason alone."""

    why = ""


class Flaw(Exception):
    """Why a file cannot be used; `refuse_damage` makes it a DamagedFile that names the file."""


@contextmanager
def refuse_damage(path: Path | str, kind: str) -> Iterator[None]:
    """Turn every error into DamagedFile: on bad files h5py raises errors of a dozen classes. One that will pass is a
    StorageError, so that nobody gives up a file that is whole."""
    try:
        yield
    except (DamagedFile, StorageError):
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno in PASSING_ERRORS:
            raise StorageError(f"{path} cannot be read now ({describe_reason(error)}), though it may be whole; "
                               + suggest_remedy(error)) from error
        why = str(error) if isinstance(error, Flaw) else describe_reason(error)
        # HDF5 goes on with times and addresses
        why = why.partition(": time =")[0]
        damaged = DamagedFile(REFUSALS[kind].format(path=path, why=why))
        damaged.why = why
        raise damaged from error


def suggest_remedy(error: Exception) -> str:
    """Return what to do about one of PASSING_ERRORS, or a lack of memory."""
    return ("give this user the right to read it" if isinstance(error, PermissionError) else
            "start again once its file system and this machine are well")


@contextmanager
def report_faulty_disk(path: Path) -> Iterator[None]:
    """Raise StorageError if a file that was just written, and is to become `path`, reads back damaged."""
    try:
        yield
    except DamagedFile as error:
        raise StorageError(f"{path}: the disk does not give back what was written: {error.why}; check the disk, or "
                           "give the run another --out") from error


def open_regular(path: Path | str) -> io.FileIO:
    """Open a regular file for reading. Raises Flaw for anything else, without waiting for a pipe or a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Flaw("it is a folder" if os.path.isdir(path) else "it is not a regular file")
    return io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def is_plain_hdf5(path: Path | str) -> bool:
    """Say whether a file is HDF5 without a seal, as fedmpi 0.1 wrote federations and histories.

    HDF5 says in its first bytes how long it believes what stands before it to be: so a sealed file that has lost its
    seal, or two blocks of which were exchanged, does not pass for one of 0.1."""
    with open_regular(path) as file:
        head = read_bytes(file, 0, min(os.fstat(file.fileno()).st_size, 36))
    if not head.startswith(HDF5_SIGNATURE) or len(head) < 36:
        return False
    base = {0: 24, 1: 28}.get(head[8], 12)
    return head[base:base + 8] == bytes(8)


def put_seal(file: io.FileIO, kind: str, about: JsonObject, regions: Sequence[Sequence[int]]) -> None:
    """Seal a file that is open for writing; `regions` of rows are ascending [offset, bytes]."""
    size = os.fstat(file.fileno()).st_size
    entries = {"format": SEAL_FORMAT, "kind": kind, "fedmpi": __version__, **about, "size": size, "rows": regions,
               "digest": digest_outside(regions, file, size)}
    magic = make_magic(kind)
    body = f"\n{json.dumps(entries)}\n".encode().ljust(SEAL_BYTES - len(magic) - 2 * DIGEST_BYTES)
    if len(magic) + 2 * DIGEST_BYTES + len(body) > SEAL_BYTES:
        raise ValueError(f"{len(regions)} fields per client are too many for the seal of a {kind}")
    write_bytes(file, 0, np.frombuffer(magic + hexdigest(body) + body, np.uint8))


def read_seal(file: io.FileIO, kind: str) -> JsonObject:
    """Return the entries of a seal that is whole, of a known format and true of the file's size. Raises Flaw."""
    size, magic = os.fstat(file.fileno()).st_size, make_magic(kind)
    head = bytes(read_bytes(file, 0, min(size, SEAL_BYTES)))
    if len(head) < SEAL_BYTES or not head.startswith(magic):
        raise Flaw(f"it is not a finished {kind}")
    start = len(magic) + 2 * DIGEST_BYTES
    if hexdigest(head[start:]) != head[len(magic):start]:
        raise Flaw(f"the checksum of its first {SEAL_BYTES} bytes is wrong")
    entries = json.loads(head[start:])
    if entries["format"] > SEAL_FORMAT:
        raise Flaw(f"it has format {entries['format']}, written by fedmpi {entries['fedmpi']}, and this "
                   f"fedmpi reads formats up to {SEAL_FORMAT}: upgrade it")
    if size != entries["size"]:
        raise Flaw(f"it has {size} bytes in place of {entries['size']}")
    return entries


def make_magic(kind: str) -> bytes:
    """Return the first bytes of a sealed file of this kind."""
    return f"fedmpi {kind} ".encode()


def digest_outside(regions: Sequence[Sequence[int]], file: io.FileIO, size: int) -> str:
    """Return the checksum of all bytes after the seal that no region holds. Raises Flaw if the file is cut off."""
    total, at = hashlib.blake2b(digest_size=DIGEST_BYTES), SEAL_BYTES
    for start, length in [*regions, [size, 0]]:
        while at < start:
            block = read_bytes(file, at, min(start - at, HASH_BLOCK_BYTES))
            total.update(block)
            at += len(block)
        at = start + length
    return total.hexdigest()


def digest_pieces(label: str, first: int, rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return a checksum for each piece rows[edges[i]:edges[i + 1]], (pieces, 16) uint8.

    It covers what the piece is, too: its name, its place `first` + i, its type and its shape."""
    out = np.empty((len(edges) - 1, DIGEST_BYTES), np.uint8)
    code, shape = rows.dtype.str, rows.shape[1:]
    # bytes and not numbers: a number has lost the odd bits of a damaged boolean
    data = memoryview(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
    row = rows.dtype.itemsize * math.prod(shape)
    for i, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        digest = hashlib.blake2b(f"{label} {first + i} {code} {(stop - start, *shape)}".encode(),
                                 digest_size=DIGEST_BYTES)
        digest.update(data[start * row:stop * row])
        out[i] = np.frombuffer(digest.digest(), np.uint8)
    return out


def hexdigest(data: bytes) -> bytes:
    """Return a checksum as hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest().encode()


def read_bytes(file: io.FileIO, offset: int, count: int) -> bytearray:
    """Return `count` bytes. Raises Flaw if the file ends before."""
    data, got = bytearray(count), 0
    while got < count:
        moved = os.preadv(file.fileno(), [memoryview(data)[got:]], offset + got)
        if not moved:
            raise Flaw("it is cut off")
        got += moved
    return data


def write_bytes(file: io.FileIO, offset: int, values: np.ndarray) -> None:
    """Write an array's bytes at a place of the file. Raises OSError."""
    data = memoryview(values.reshape(-1).view(np.uint8))
    while data:
        written = os.pwrite(file.fileno(), data[:HASH_BLOCK_BYTES], offset)
        data, offset = data[written:], offset + written
