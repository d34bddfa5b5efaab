"""The names of a report's files, which hold those of rows, columns and measures."""
from __future__ import annotations

import hashlib

from fedmpi.sweeps.job import make_slug

# A file's name holds up to two names, and file systems allow 255 bytes.
LONGEST_PART = 80
PART_DIGEST_DIGITS = 8


def make_file_part(name: str) -> str:
    """Return a name as part of a file's name. A long one is cut, and ends in a hash by which it differs from others."""
    slug = make_slug(name)
    if len(slug) <= LONGEST_PART:
        return slug
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:PART_DIGEST_DIGITS]
    return f"{slug[:LONGEST_PART].rstrip('-.')}-{digest}"
