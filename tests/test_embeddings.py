"""Embeddings of the clients for pictures: which rows are kept in which rounds, and that they change no result."""
from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

from fedmpi.comm.orders import MINE
from fedmpi.comm.rows import make_rows
from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.server.metrics import compute_embedding
from tests.federations import Lab, method


def embedded(lab):
    return lab.method.embedding(make_rows(lab.pool, MINE, lab.group.store.first), lab.rows())


@pytest.mark.parametrize("name, whose", [
    ("local", lambda lab, c: lab.mine(c).w), ("fedmhc", lambda lab, c: lab.mine(c).theta),
    ("fedah", lambda lab, c: lab.mine(c).h), ("fedavg", lambda lab, c: lab.group.ups[c].w)])
def test_clients_are_pictured_by_their_heads(mlp, federation, name, whose):
    lab = Lab(method(name, mlp), federation, share=.6).go(2)
    rows = embedded(lab)
    assert list(rows.ids) == (list(lab.who(1).ids) if name == "fedavg" else list(range(8)))
    heads = torch.stack([whose(lab, int(c))[-mlp.head.size:] for c in rows.ids])
    assert torch.equal(rows.gather(), heads)
    torch.testing.assert_close(rows.gram(), heads.double() @ heads.double().T)


def test_a_method_without_heads_has_no_picture(mlp, federation):
    assert embedded(Lab(method("fedsr", mlp), federation).go(1)) is None


def test_a_run_stores_them_in_the_rounds_asked_for(bench):
    assert bench.lead("pictured", "evaluate.every=0", "evaluate.embeddings=[1,3]") == 0
    assert bench.result("pictured")["digest"] == bench.straight(3)
    with h5py.File(bench.out("pictured") / "history.h5") as history:
        assert history["round"][:].tolist() == [1, 3]
        found = history["embedding"][:]
    assert found.shape == (2, 9, 50) and np.isfinite(found).all()
    assert np.abs(found[1]).sum() > np.abs(found[0]).sum() > 0
    # Embeddings are centred.
    np.testing.assert_allclose(found.sum(1), 0, atol=1e-4)


def test_rounds_without_a_picture_are_nan(bench):
    assert bench.lead("once", "evaluate.embeddings=[2]", "method=fedavg") == 0
    with h5py.File(bench.out("once") / "history.h5") as history:
        found, took_part = history["embedding"][:], history["accuracy_after"][:]
    assert np.isnan(found[[0, 2]]).all()
    # Those who sent a head have one.
    assert np.array_equal(np.isfinite(found[1]).all(1), np.isfinite(took_part[1]))


def test_any_number_of_ranks_stores_the_same(bench):
    assert bench.run(3, "three", "evaluate.embeddings=[2]", "engine=loop").returncode == 0
    assert bench.lead("one", "evaluate.embeddings=[2]", "engine=loop") == 0
    found = []
    for name in ("three", "one"):
        with h5py.File(bench.out(name) / "history.h5") as history:
            found.append(history["embedding"][1])
    np.testing.assert_array_equal(*found)


def test_a_restart_continues_with_the_same_pictures(bench):
    assert bench.lead("again", "rounds=2", "evaluate.embeddings=[2]") == 0
    assert bench.lead("again", "evaluate.embeddings=[2,3]", resume="auto") == 0
    with h5py.File(bench.out("again") / "history.h5") as history:
        assert np.isfinite(history["embedding"][:]).all((1, 2)).tolist() == [False, True, True]


def test_bad_rounds():
    with pytest.raises(BadInput, match=r"embeddings = \[0\]: rounds count from 1"):
        resolve({"evaluate": {"embeddings": [0]}})
    assert compute_embedding(torch.zeros(1, 1)).shape == (1, 50)
