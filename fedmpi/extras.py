"""Libraries that are not installed with fedmpi itself: one line says which extra brings what is missing."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.errors import BadInput


@contextmanager
def require_extra(extra: str, needs: str, why: bool = True) -> Iterator[None]:
    """Turn an import that fails into BadInput.

    Args:
        extra: the extra of fedmpi that installs what is imported.
        needs: what needs what, the start of the message.
        why: add the error of the import, because a library may be there and not fit."""
    try:
        yield
    except ImportError as error:
        reason = f", which cannot be imported ({' '.join(str(error).split())})" if why else ""
        raise BadInput(f"{needs}{reason}: pip install 'fedmpi[{extra}]'") from None


@contextmanager
def require_extra_of_command(name: str) -> Iterator[None]:
    """Turn an import that fails into BadInput for a command whose extra has its name."""
    with require_extra(name, f"fedmpi {name} needs a package that is not installed", why=False):
        yield
