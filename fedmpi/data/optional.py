"""Libraries that are not installed with fedmpi itself: one line says which extra brings what is missing."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.errors import BadInput


@contextmanager
def require_extra(extra: str, needs: str) -> Iterator[None]:
    """Turn an import that fails into BadInput.

    Args:
        extra: the extra of fedmpi that installs what is imported.
        needs: what needs what, the start of the message."""
    try:
        yield
    except ImportError as error:
        raise BadInput(f"{needs}, which cannot be imported ({' '.join(str(error).split())}): pip install "
                       f"'fedmpi[{extra}]'") from None
