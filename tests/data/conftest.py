from pathlib import Path

import numpy as np
import pytest

from fedmpi.config import schema
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.partitions import Dirichlet


@pytest.fixture
def settings(tmp_path):
    """Return a function that makes the `data` settings of a test: digits, 20 clients, cached in its folder."""
    def make(**changes):
        return schema.Data(**{"cache": str(tmp_path / "cache"), "partition": Dirichlet(.5), **changes})
    return make


@pytest.fixture
def arrays(tmp_path):
    """Return a function that saves labelled samples, whose first feature is their index, for `name: arrays`."""
    def save(labels, width=4):
        x = np.random.default_rng(0).normal(size=(len(labels), width))
        x[:, 0] = np.arange(len(labels))
        np.savez(tmp_path / "mine.npz", x_train=x, y_train=labels)
        return {"name": "arrays", "file": str(tmp_path / "mine.npz")}
    return save


@pytest.fixture
def federation(settings):
    """Return a function that prepares and opens the federation of some `data` settings."""
    def make(seed=0, **changes):
        return Federation(prepare_federation(settings(**changes), seed))
    return make


@pytest.fixture
def everything():
    """Return a function that collects all contents of a federation as plain values that can be compared."""
    def collect(f):
        clients = [[part.tolist() for part in f.client(i)] for i in range(f.clients)]
        groups = None if f.groups is None else f.groups.tolist()
        return (f.name, f.fingerprint, f.settings, f.classes, f.shape, str(f.dtype), f.counts.tolist(),
                f.label_counts.tolist(), groups, clients)
    return collect


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a text or a table to a file in the working folder, and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(content, name="mine.csv"):
        if isinstance(content, bytes):
            Path(name).write_bytes(content)
        elif isinstance(content, str):
            Path(name).write_text(content, encoding="utf-8")
        elif name.endswith(".parquet"):
            pytest.importorskip("pyarrow")
            pytest.importorskip("pandas").DataFrame(content).to_parquet(name)
        else:
            pytest.importorskip("pandas").DataFrame(content).to_csv(name, index=False)
        return name
    return write
