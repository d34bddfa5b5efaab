"""The seal of a checkpoint: its first 4096 bytes, written last, by which any damaged byte is found.

It is one line of text with a checksum of what follows, then JSON padded with blanks: the format, the file's
size, the regions that hold the clients' rows (these have checksums of their own) and a checksum of all other
bytes. HDF5 leaves room for it (a "user block"), and no file is given to HDF5 before its seal agrees: the
library may crash on damaged ones.
"""
from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

from fedmpi.errors import BadInput

SEAL_FORMAT = 1
SEAL = 4096
HASH_BLOCK_BYTES = 16 * 2**20         # bytes read at once
DIGEST = 16                # bytes of a checksum
MAGIC = b"fedmpi checkpoint "
SEAL_HEAD = len(MAGIC) + 2 * DIGEST


class Damaged(BadInput):
    """A file that cannot be used as a checkpoint."""


def put_seal(path: Path, about: dict, regions: list[list[int]]):
    """Seal a file; `about` must hold `fedmpi`, its version. `regions` are ascending [offset, bytes]."""
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        digest = digest_outside(regions, file, size)
        entries = {"format": SEAL_FORMAT, **about, "size": size, "rows": regions, "digest": digest}
        body = f"\n{json.dumps(entries)}\n".encode().ljust(SEAL - SEAL_HEAD)
        if SEAL_HEAD + len(body) > SEAL:
            raise ValueError(f"{len(regions)} fields per client are too many for the seal of a checkpoint")
        file.seek(0)
        file.write(MAGIC + checksum(body) + body)


def read_seal(path: Path) -> dict:
    """Return the entries of a seal that is whole, of a known format and true of the file's size."""
    with open(path, "rb") as file:
        head, size = file.read(SEAL), os.fstat(file.fileno()).st_size
    if len(head) < SEAL or not head.startswith(MAGIC):
        raise Damaged("it is not a finished checkpoint")
    if checksum(head[SEAL_HEAD:]) != head[len(MAGIC):SEAL_HEAD]:
        raise Damaged(f"the checksum of its first {SEAL} bytes is wrong")
    entries = json.loads(head[SEAL_HEAD:])
    if entries["format"] > SEAL_FORMAT:
        raise Damaged(f"it has format {entries['format']}, written by fedmpi {entries['fedmpi']}, and this "
                      f"fedmpi reads formats up to {SEAL_FORMAT}: upgrade it")
    if size != entries["size"]:
        raise Damaged(f"it has {size} bytes in place of {entries['size']}")
    return entries


def check_seal(path: Path):
    """Raise Damaged unless the seal and all bytes outside the clients' rows are as they were written."""
    entries = read_seal(path)
    with open(path, "rb") as file:
        if digest_outside(entries["rows"], file, entries["size"]) != entries["digest"]:
            raise Damaged("its checksum is wrong")


def digest_outside(regions: list[list[int]], file: BinaryIO, size: int) -> str:
    """Return the checksum of all bytes after the seal that no region holds."""
    total, at = hashlib.blake2b(digest_size=DIGEST), SEAL
    for start, length in [*regions, [size, 0]]:
        file.seek(at)
        while at < start:
            block = file.read(min(start - at, HASH_BLOCK_BYTES))
            if not block:
                raise Damaged("it is cut off")
            total.update(block)
            at += len(block)
        at = start + length
    return total.hexdigest()


def checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).hexdigest().encode()
