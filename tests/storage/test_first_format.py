"""Files of fedmpi 0.1 are read: `first_format.tar.xz` holds a run of two rounds and its federation, as 0.1 left it."""
from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedmpi.data.federation import Federation
from fedmpi.storage.checkpoint import CheckpointFile, read_checkpoint
from fedmpi.storage.history import History, read_history
from fedmpi.storage.listing import list_checkpoints
from fedmpi.storage.seal import is_plain_hdf5
from tests.runs import run_alone
from tests.storage.damages import damage_at_random

ARCHIVE = Path(__file__).parent / "first_format.tar.xz"


@pytest.fixture
def old(tmp_path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


# The settings of the run, by their new names.
CONFIG = {"data": {"clients": 6, "fraction": .1, "partition": {"name": "pathological", "classes_per_client": 3}},
          "model": {"name": "mlp", "hidden": 4}, "method": {"name": "fedmhc", "M": 2, "lam": 2},
          "train": {"lr": .1, "batch": 10, "epochs": 1}, "checkpoint": {"every": 1}}


def go(federations: Path, out: Path, resume: str | None = None) -> dict:
    config = out.with_name("c.yaml")
    config.write_text(json.dumps(CONFIG))
    assert run_alone(str(config), ("rounds=3", f"data.cache={federations}"), out, resume) == 0
    return json.loads((out / "result.json").read_text())


def test_its_checkpoints_are_read(old):
    newest, before = list_checkpoints(old / "run" / "checkpoints")
    assert CheckpointFile(newest).about["format"] == CheckpointFile(before).about["format"] == 1
    found = read_checkpoint(newest)
    assert found.round == 2 and len(found.metrics) == 2 and set(found.shared) == {"phi", "heads"}
    rows = CheckpointFile(newest).read_rows(0, len(found.ids))
    assert len(found.ids) == 6 and all(len(values) == 6 for values in rows.values())


def test_its_history_is_read_and_goes_on(old):
    path = old / "run" / "history.h5"
    before = read_history(path)
    assert before["round"].tolist() == [1, 2] and before["accuracy"].shape == (2, 6)
    lines = [json.loads(line) for line in (old / "run" / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(before["accuracy"].mean(1), [line["accuracy_mean"] for line in lines])
    history = History(path)
    history.append(3, {"accuracy": np.ones(6)})
    history.save()
    after = read_history(path)
    assert after["round"].tolist() == [1, 2, 3] and not is_plain_hdf5(path)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name][:2], values)


def read_last_state(run: Path) -> dict[str, np.ndarray]:
    """Return the server's state and the clients' rows in the newest checkpoint of a run."""
    path = list_checkpoints(run / "checkpoints")[0]
    found = read_checkpoint(path)
    assert found.round == 3
    return found.shared | CheckpointFile(path).read_rows(0, len(found.ids))


def test_its_runs_and_federations_lead_to_where_a_run_of_today_does(old):
    """The run of 0.1 was made on another machine, which may compute other last bits."""
    federation, = (old / "federations").iterdir()
    before = federation.read_bytes()
    resumed = go(old / "federations", old / "run", resume="auto")
    assert federation.read_bytes() == before
    new = go(old / "new", old / "again")
    assert resumed["accuracy_mean"] == pytest.approx(new["accuracy_mean"], abs=.05)
    states = read_last_state(old / "run"), read_last_state(old / "again")
    assert states[0].keys() == states[1].keys() and len(states[0]) > 2
    for name, values in states[0].items():
        np.testing.assert_allclose(values, states[1][name], atol=1e-5, err_msg=name)
    today, = (old / "new").iterdir()
    assert today.name == federation.name and Federation(today).fingerprint == Federation(federation).fingerprint
    for i in range(6):
        for one, other in zip(Federation(today).client(i), Federation(federation).client(i), strict=True):
            np.testing.assert_array_equal(one, other)


def test_damage_of_a_federation_of_0_1_is_found_when_it_is_opened(old):
    path, = (old / "federations").iterdir()

    def read():
        f = Federation(path)
        return [repr(part.tolist()) for i in range(f.clients) for part in f.client(i)] + [f.label_counts.tolist()]
    refused, changed = damage_at_random(path, 40, read)
    assert 20 < refused <= changed


@pytest.mark.parametrize("version, base", [(0, 24), (1, 28), (2, 12), (3, 12)])
def test_a_plain_file_says_that_nothing_stands_before_it(tmp_path, version, base):
    """HDF5's versions of the superblock have the base address in different places. A byte of it tells whether a file
    was cut out of a longer one; the bytes before it say other things."""
    path = tmp_path / "plain.h5"
    for at, plain in [(None, True), (base, False), (base + 7, False), (base - 1, True)]:
        head = bytearray(b"\x89HDF\r\n\x1a\n" + bytes([version]) + bytes(27))
        if at is not None:
            head[at] = 1
        path.write_bytes(head)
        assert is_plain_hdf5(path) is plain
    path.write_bytes(head[:-1])
    assert not is_plain_hdf5(path)
