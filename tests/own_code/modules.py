"""Modules of a user: written into a folder of their own, and imported from there."""
from __future__ import annotations

import importlib
import sys
from pathlib import Path


def forget() -> None:
    """Let the next import of a module whose name begins with `mine` read its file again."""
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("mine")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, files: dict[str, str]) -> None:
    """Write modules, by their paths in the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    forget()
