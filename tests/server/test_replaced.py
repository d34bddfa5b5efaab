"""Somebody replaces files of a run while it runs, by folders, pipes or links.

The run ends at once with one clear line and code 1. When the replacements are gone, it continues from its last good
checkpoint to the same digest."""
from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmpi.methods.fedavg import FedAvg

pytestmark = pytest.mark.slow("runs whose files are replaced")

ROUNDS = 4
# The round, counted from 0, in which something is replaced.
STRUCK = 2
KINDS = {"folder": lambda path: path.mkdir(), "pipe": os.mkfifo, "link": lambda path: path.symlink_to("nowhere"),
         "device": lambda path: path.symlink_to("/dev/full")}


def replace(path: Path, kind: str) -> None:
    """Move a file aside and put something of another kind in its place."""
    if path.exists():
        path.rename(path.with_name(f"{path.name}-aside"))
    KINDS[kind](path)


def mend(path: Path) -> None:
    """Undo what `replace` did."""
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    aside = path.with_name(f"{path.name}-aside")
    if aside.exists():
        aside.rename(path)


@dataclass(frozen=True)
class Struck(FedAvg):
    """FedAvg that replaces a file of the run once, in round STRUCK."""
    file: str = ""
    kind: str = ""

    def client(self, shared, mine, data):
        done = Path(f"{self.file}-struck")
        if data.client == 0 and data.local.round == STRUCK and not done.exists():
            done.touch()
            replace(Path(self.file), self.kind)
        return super().client(shared, mine, data)


def words(folder: Path, name: str, kind: str) -> list[str]:
    method = {"name": "tests.server.test_replaced:Struck", "file": str(folder / name), "kind": kind}
    return [f"method={method}", f"rounds={ROUNDS}", "train.participation=1", "checkpoint.keep=9"]


@pytest.fixture(scope="module")
def expected(bench):
    """The digest of the same run, which nobody disturbs."""
    assert bench.lead("fair", f"rounds={ROUNDS}", "train.participation=1", "method=fedavg") == 0
    return bench.result("fair")["digest"]


# All 20 pairs of these names and kinds behave alike.
@pytest.mark.parametrize("name, kind", [("metrics.jsonl", "pipe"), ("history.h5", "folder"), ("result.json", "device"),
                                        ("checkpoints/round-000003.h5", "pipe"), ("lock", "folder")])
def test_what_is_replaced_ends_the_run_by_name_and_is_not_replaced_again(bench, expected, name, kind):
    out = f"{name.replace('/', '-')}-{kind}"
    folder = bench.out(out)
    done = bench.run(1, out, *words(folder, name, kind))
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    # The run may itself replace what is only written at the end.
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "fedmpi:" in line]
        assert done.returncode == 1 and len(lines) == 1 and str(folder) in lines[0], said
        assert (folder / name).is_symlink() or not (folder / name).is_file() or name == "lock"
        assert f"{folder}/checkpoints/round-00000" in done.stderr
        if os.path.lexists(folder / name):
            mend(folder / name)
        (folder / "lock").unlink(missing_ok=True)
        again = bench.run(1, out, *words(folder, name, kind), "--resume", "auto")
        assert again.returncode == 0, again.stderr
    assert bench.result(out)["digest"] == expected
    shutil.rmtree(folder)
