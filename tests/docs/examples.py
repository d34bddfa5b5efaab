"""Write the Python files that the pages name into a folder, for mypy: `python -m tests.docs.examples FOLDER`."""
from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.docs.pages import PAGES, blocks


def write_examples(folder: Path) -> list[Path]:
    """Write each file that a page has as a block `python FILE`, and return their paths. The folder is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python" and block.about:
                path = folder / Path(block.about).name
                path.write_text(block.text)
                found.append(path)
    return found


if __name__ == "__main__":
    write_examples(Path(sys.argv[1]))
