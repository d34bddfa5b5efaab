"""Steps that move only the rows of a batch give the results of steps on the whole table."""
from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.engines import batch_plan, engine_choice, sparse_embedding
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.vmap import Vmap
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.nets import FastText
from tests.federations import Digits, Lab, apart, method

WORDS, LENGTH = 90, 64
LOCAL = batch_plan.LocalTraining(seed=3, round=2, batch=4, epochs=2, steps=None, lr=.3, momentum=0.)


class Texts(Digits):
    """Digits as texts: each grey level of each quarter of the image is a word, and a blank pixel is padding."""

    def __init__(self, *settings, **more):
        super().__init__(*settings, **more)
        self.dtype = np.dtype("int32")
        self.parts = [s._replace(**{k: words(getattr(s, k)) for k in ("x_train", "x_val", "x_test")})
                      for s in self.parts]


def words(x):
    tone = np.rint(x * 16).astype(np.int32)
    return np.where(tone > 0, tone + 17 * (np.arange(LENGTH, dtype=np.int32) // 16), 0).astype(np.int32)


def fasttext(**settings):
    return build_model(
        FastText(**{"vocabulary": WORDS, "width": 6} | settings), (LENGTH,), np.dtype("int32"), 10, seed=5
    )


@pytest.fixture(scope="module")
def model():
    return fasttext()


@pytest.fixture(scope="module")
def data():
    s = Texts((34,)).client(0)
    return LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), client=6, local=LOCAL)


@pytest.fixture
def dense(monkeypatch):
    """Call a function that treats tables as ordinary parameters."""
    def call(function, *args, **settings):
        with monkeypatch.context() as m:
            m.setattr(sparse_embedding, "can_descend_sparsely", lambda *anything: False)
            return function(*args, **settings)
    return call


@pytest.fixture
def counted(monkeypatch):
    """Count the calls of sparse_embedding.descend."""
    calls, original = [], sparse_embedding.descend_sparsely
    monkeypatch.setattr(sparse_embedding, "descend_sparsely", lambda *args: calls.append(1) or original(*args))
    return calls


def centre(model):
    return model.start + .1 * torch.randn(model.size, generator=torch.Generator().manual_seed(2))


def settings_of(name, model):
    c, t = centre(model), model.table
    inner = slice(t.start, t.start + 7)
    return {"plain": {}, "own rate": {"lr": .1}, "phi": {"only": model.phi}, "table": {"only": t},
            "pull": {"pull": [(c, .7, None)]}, "own pull": {"pull": [(c, torch.tensor(.7), None)]},
            "pulls": {"pull": [(c, .7, None), (c[model.phi] * 2, torch.tensor(.4), model.phi), (c[t] + 1, .3, t),
                               (c[model.h], .2, model.h)]},
            "head pull": {"pull": [(c[model.h], .2, model.h)]}, "no pull": {"pull": [(c, 0., None)]},
            "overshoot": {"pull": [(c, 5., None)]}, "phi pull": {"only": model.phi, "pull": [(c, .7, None)]},
            "momentum": {"momentum": .9, "pull": [(c, .1, None)]}, "clip": {"clip": (-.5, .6)},
            "head": {"only": model.h}, "part": {"pull": [(c[inner], .3, inner)]}}[name]


SPARSE = ("plain", "own rate", "phi", "table", "pull", "own pull", "pulls", "head pull", "no pull", "overshoot",
          "phi pull")


@pytest.mark.parametrize("name", [*SPARSE, "momentum", "clip", "head", "part"])
def test_the_rows_of_a_batch_are_enough(name, data, model, dense, counted):
    settings, before = settings_of(name, model), model.start.clone()
    found = data.descend(model, model.start, **settings)
    assert bool(counted) == (name in SPARSE)
    expected = dense(data.descend, model, model.start, **settings)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (found - before).abs().max() > .01 and torch.equal(model.start, before)


class HeadFirst(nn.Module):
    """A network of one's own, whose head is defined before a layer that comes earlier."""
    lookup: str

    def __init__(self):
        super().__init__()
        self.lookup = "table"
        self.table, self.head, self.norm = nn.Embedding(WORDS, 6), nn.Linear(6, 10), nn.LayerNorm(6)

    def forward(self, x):
        return self.head(self.norm(self.table(x).mean(-2)))


def test_layers_may_be_defined_in_any_order(data, dense, counted):
    """A flat vector has the head last; the network without its table has the same order."""
    settings = SimpleNamespace(build=lambda shape, classes: HeadFirst())
    own = build_model(settings, (LENGTH,), np.dtype("int32"), 10, seed=5)
    assert own.names[-2:] == ["head.weight", "head.bias"] and own.behind_table.names == own.names[1:]
    found = data.descend(own, own.start)
    assert counted and (found - own.start).abs().max() > .01
    torch.testing.assert_close(found, dense(data.descend, own, own.start), rtol=0, atol=1e-6)


def test_labels_of_rows_are_smoothed_as_those_of_the_whole_table(data, model, dense, counted):
    smooth = dataclasses.replace(data, local=LOCAL._replace(smoothing=.3))
    found = smooth.descend(model, model.start)
    assert counted and (found - data.descend(model, model.start)).abs().max() > .01
    torch.testing.assert_close(found, dense(smooth.descend, model, model.start), rtol=0, atol=1e-6)


def test_rows_that_no_sample_names_stand_still_or_are_pulled(data, model):
    unused = np.setdiff1d(np.arange(WORDS), np.unique(data.x))
    assert len(unused) > 3
    rows = model.block("table").stop // WORDS
    w = centre(model)
    found = data.descend(model, w)[model.table].view(WORDS, rows)
    assert torch.equal(found[unused], w[model.table].view(WORDS, rows)[unused])
    # Padding has no gradient.
    assert torch.equal(found[0], w[:rows])
    pulled = data.descend(model, w, pull=[(model.start, .5, None)])[model.table].view(WORDS, rows)
    left = (1 - LOCAL.lr * .5) ** len(list(data.batches()))
    target = model.start[model.table].view(WORDS, rows)
    torch.testing.assert_close((pulled - target)[unused], left * (w[model.table].view(WORDS, rows) - target)[unused])


@pytest.mark.parametrize("name, settings", [("fedavg", {}), ("fedmhc", {}), ("fedmhc", {"anchor": "local"}),
                                            ("fedah", {})])
def test_texts_train_the_same_in_both_engines(name, settings, model):
    labs = [Lab(method(name, model, **settings), Texts(), engine, share=.6).go(2) for engine in (Loop(), Vmap())]
    assert apart(labs[0].state(), labs[1].state()) < 1e-5
    np.testing.assert_allclose(*(lab.evaluate(2) for lab in labs), atol=1e-4)


def test_a_client_does_not_depend_on_those_before_it(model):
    lab = Lab(method("fedmhc", model), Texts())
    alone, after = (lab.apply(lab.method.client, ids, 1)[5] for ids in ([5], [2, 6, 5]))
    assert torch.equal(alone[0].theta, after[0].theta) and torch.equal(alone[1].w, after[1].w)


def test_the_whole_vocabulary_is_trained_client_by_client():
    chosen = method("fedavg", build_model(FastText(), (LENGTH,), np.dtype("int32"), 4, seed=0))
    assert (
        engine_choice.choose_by_network(chosen, *chosen.init(2), make_blank_samples((LENGTH,), np.dtype("int32")))[0]
        == "loop"
    )


def test_long_and_short_numbers_are_alike(data, model):
    wide = dataclasses.replace(data, x=data.x.long())
    assert torch.equal(wide.descend(model, model.start), data.descend(model, model.start))
    assert torch.equal(wide.mean_loss(model, model.start), data.mean_loss(model, model.start))
