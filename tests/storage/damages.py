"""Damages of files such as disks, networks and mistakes cause."""
from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from fedmpi.storage.seal import DamagedFile


def flip(data: bytearray, at: int, chance: random.Random):
    data[at] ^= 1 << chance.randrange(8)


def cut(data: bytearray, at: int, chance: random.Random):
    del data[at:]


def blank(data: bytearray, at: int, chance: random.Random):
    size = min(chance.choice([4, 64, 512, 4096]), len(data) - at)
    data[at:at + size] = bytes([chance.choice([0, 255])]) * size


def insert(data: bytearray, at: int, chance: random.Random):
    data[at:at] = chance.randbytes(8)


def extend(data: bytearray, at: int, chance: random.Random):
    data += chance.randbytes(chance.choice([1, 4096]))


def swap(data: bytearray, at: int, chance: random.Random):
    other = chance.randrange(len(data) - 8)
    at = min(at, len(data) - 8)
    data[at:at + 8], data[other:other + 8] = data[other:other + 8], data[at:at + 8]


def swap_blocks(data: bytearray, at: int, chance: random.Random):
    """Exchange two blocks of a file, as a faulty file system may do."""
    at, other = (place // 4096 * 4096 for place in (at, chance.randrange(len(data))))
    size = min(4096, len(data) - max(at, other))
    data[at:at + size], data[other:other + size] = data[other:other + size], data[at:at + size]


def repeat_block(data: bytearray, at: int, chance: random.Random):
    at, other = (place // 4096 * 4096 for place in (at, chance.randrange(len(data))))
    size = min(4096, len(data) - max(at, other))
    data[at:at + size] = data[other:other + size]


DAMAGE = (flip, cut, blank, insert, extend, swap, swap_blocks, repeat_block)


def damage_at_random(path: Path, count: int, read: Callable[[], object], first: int = 0) -> tuple[int, int]:
    """Damage a file in `count` ways; `read` must raise DamagedFile, or return what it returns for the intact file.

    Return how often the file was refused by its name, and how often a byte was changed. The file is restored at the
    end."""
    whole, good, refused, changed = path.read_bytes(), read(), 0, 0
    for seed in range(first, first + count):
        chance, data = random.Random(seed), bytearray(whole)
        damage = DAMAGE[seed % len(DAMAGE)]
        # Every other time hit the first bytes, which describe all others.
        damage(data, chance.randrange(len(data) if seed // len(DAMAGE) % 2 else min(len(data), 8192)), chance)
        path.write_bytes(data)
        changed += data != whole
        try:
            assert read() == good, f"seed {seed}: {damage.__name__}"
        except DamagedFile as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    path.write_bytes(whole)
    return refused, changed
