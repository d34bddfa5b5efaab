"""Files of fedmpi 0.1 are read: `first_format.tar.xz` holds a run of two rounds and its federation, as 0.1 left it."""
from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from fedmpi.storage.checkpoint import Checkpoint, list_checkpoints, read_checkpoint
from tests.runs import run_alone

ARCHIVE = Path(__file__).parent / "first_format.tar.xz"


@pytest.fixture
def old(tmp_path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def go(folder: Path, out: Path, *overrides: str, resume: str | None = None) -> int:
    words = (*overrides, f"data.cache={folder / 'federations'}")
    return run_alone(str(folder / "run" / "config.yaml"), words, out, resume)


def test_its_checkpoints_are_read(old):
    newest, before = list_checkpoints(old / "run" / "checkpoints")
    assert Checkpoint(newest).about["format"] == Checkpoint(before).about["format"] == 1
    found = read_checkpoint(newest)
    assert found.round == 2 and len(found.metrics) == 2 and set(found.shared) == {"phi", "heads"}
    rows = Checkpoint(newest).read_rows(0, len(found.ids))
    assert len(found.ids) == 6 and all(len(values) == 6 for values in rows.values())


def test_its_runs_continue_to_the_digest_of_a_run_of_today(old, tmp_path):
    assert go(old, old / "run", "rounds=3", resume="auto") == 0
    new = tmp_path / "new"
    shutil.copytree(old / "run", new / "run")
    assert go(new, new / "out", "rounds=3") == 0
    digests = [json.loads((out / "result.json").read_text())["digest"] for out in (old / "run", new / "out")]
    assert digests[0] == digests[1]
