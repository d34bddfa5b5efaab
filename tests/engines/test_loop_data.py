"""Batches, sums, losses and parts of the looped engine's data, against direct computation."""
from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fedmpi.context import RankContext
from fedmpi.engines import batch_plan, loop_data
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.pass_memory import PassMemory
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.engines.result_memory import ResultMemory
from fedmpi.engines.step_counter import StepCounter
from fedmpi.models.build import as_input
from tests.engines.test_loop import LOCAL, centre, module_of, near
from tests.federations import Digits, cnn, mlp


@pytest.fixture(scope="module")
def model():
    return mlp()


@pytest.fixture(scope="module")
def data():
    s = Digits((34,)).client(0)
    return LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), client=6, local=LOCAL)


def test_images_are_scaled_and_channels_first():
    model, s = cnn(), Digits((12,), image=True).client(0)
    data = LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), 0, LOCAL)
    x, _ = next(data.batches())
    assert x.shape == (10, 1, 8, 8) and x.is_contiguous(memory_format=torch.channels_last)
    index = batch_plan.draw_batches(LOCAL, 0, 0, 12).index[0]
    near(x[0, 0], (torch.from_numpy(s.x_train[index[0], :, :, 0]).float() / 255 - .5) / .5)
    module = copy.deepcopy(model.module)
    for p, v in zip(module.parameters(), model.split(model.start), strict=True):
        p.data = v.clone()
    near(data.mean_loss(model, model.start), F.cross_entropy(module(as_input(data.x)), data.y).detach())


# See KNOWN in test_batch_plan.py: seed 1, round 2, client 4, stream 0.
KNOWN = ([0, 1, 7, 4, 11], [9, 5, 8, 10, 6], [2, 3])


@pytest.mark.parametrize("together", [1, 2, 3, 100])
def test_batches_are_those_drawn_however_many_are_gathered_at_once(together, monkeypatch):
    """A client with larger batches than BYTES_GATHERED_AT_ONCE gets the same ones, a few at a time."""
    gathered, local = [], LOCAL._replace(seed=1, batch=5, epochs=1)
    # There are 12 samples of 6 numbers.
    monkeypatch.setattr(loop_data, "BYTES_GATHERED_AT_ONCE", 4 * 6 * 5 * together + 7)
    monkeypatch.setattr(loop_data, "as_input", lambda x: gathered.append(len(x)) or x)
    x, y = torch.arange(72.).view(12, 2, 3), torch.arange(12) + 100
    found = list(LoopData(x, y, 4, local).batches())
    assert [y.tolist() for _, y in found] == [[100 + i for i in batch] for batch in KNOWN]
    assert all(torch.equal(rows, x[batch]) for (rows, _), batch in zip(found, KNOWN, strict=True))
    assert gathered == {1: [5, 5, 5], 2: [10, 5]}.get(together, [15])


def test_a_sample_larger_than_what_is_gathered_is_gathered_alone(monkeypatch):
    monkeypatch.setattr(loop_data, "BYTES_GATHERED_AT_ONCE", 8)
    found = list(LoopData(torch.arange(72.).view(12, 6), torch.arange(12), 4, LOCAL._replace(seed=1, batch=5, epochs=1))
                 .batches())
    assert [y.tolist() for _, y in found] == list(KNOWN)


def test_class_sums_and_what_stands_beside_are_direct_computation(data, model):
    module, other = module_of(model, model.start), centre(model)
    logits = module(data.x).detach()
    expected = torch.stack([logits[data.y == c].sum(0) for c in range(10)])
    torch.testing.assert_close(data.class_sums(model, model.start, 10), expected, rtol=0, atol=2e-6)
    both = logits + module_of(model, other)(data.x).detach()
    near(data.with_added_logits(model, other).mean_loss(model, model.start), F.cross_entropy(both, data.y))
    twice = data.with_added_logits(model, other).with_added_logits(model, other)
    near(twice.mean_loss(model, model.start), F.cross_entropy(2 * both - logits, data.y))


def test_samples_go_forward_in_chunks(data, model, monkeypatch):
    whole, sizes = data.mean_loss(model, model.start), []
    monkeypatch.setattr(loop_data, "SAMPLES_PER_PASS", 8)
    monkeypatch.setattr(loop_data, "run_forward", lambda net, x: sizes.append(len(x)) or net(x))
    near(data.mean_loss(model, model.start), whole)
    assert sizes == [8, 8, 8, 8, 2]


def test_what_a_method_may_ask(data, model):
    assert (data.n, data.lr, data.epochs, data.momentum) == (34, .05, 2, 0.) and int(data.id) == 6
    assert int(dataclasses.replace(data, number=9).id) == 9 and int(dataclasses.replace(data, number=0).id) == 0
    assert data.any_client(torch.tensor(True)) is True and data.any_client(torch.tensor(False)) is False
    assert torch.equal(data.one_by_one(torch.add, torch.ones(2), torch.ones(2)), torch.full((2,), 2.))
    part, rest = data.subset(.5, 3), data.subset(.5, 3, rest=True)
    assert (part.n, rest.n, part.subset(.1, 0).n) == (17, 17, 1)
    assert sorted(map(tuple, torch.cat([part.x, rest.x]).tolist())) == sorted(map(tuple, data.x.tolist()))


def test_each_client_draws_random_numbers_of_its_own():
    """Dropout uses PyTorch's generator, seeded by the hash of (seed, round, client), here (3, 2, client)."""
    known = {0: 8366044720782521663, 1: 8297985345680232977, 7: 1697298855448914201}
    group = SimpleNamespace(get_training_samples=lambda client: (torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)),
                            messages={}, portions={}, passes=PassMemory(), results=ResultMemory(),
                            store=SimpleNamespace(read=lambda client: client), context=RankContext(),
                            counter=StepCounter(), method=SimpleNamespace(model=None))
    drawn = dict(Loop().apply(lambda shared, mine, data: (mine, data.client, shared, torch.rand(3)), known, "s", group,
                              LOCAL))
    for client, number in known.items():
        expected = torch.rand(3, generator=torch.Generator().manual_seed(number))
        assert drawn[client][:3] == (client, client, "s") and torch.equal(drawn[client][3], expected)


def test_a_rehearsal_is_one_step_on_one_sample(model):
    class Counting:
        model = SimpleNamespace(classes=10)

        def message_template(self):
            return "note"

        def client(self, shared, mine, data):
            steps = list(data.batches())
            return shared, mine, data.message, data.n, len(steps), data.local
    found = rehearse_loop(Counting(), 1, 2, torch.zeros(1, 64))
    assert found[:5] == (1, 2, "note", 1, 1) and found[5].steps == 1 and found[5].momentum == 0
