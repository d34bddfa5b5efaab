"""The vectorised engine gives the results of the looped one, and the comparison would notice if it did not."""
from __future__ import annotations

import pytest
import torch

from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.cohort import Cohort
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.padding import pad_samples
from fedmpi.engines.rehearsal import REHEARSAL_TRAINING
from fedmpi.engines.step_counter import PARTICIPANTS
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from tests.clients.normed import model_of
from tests.clients.verbs import VERBS, Bench, plain, pull, scan

LOCALS = {"epochs": {}, "steps": {"epochs": 1, "steps": 4}, "momentum": {"momentum": .9}, "batch": {"batch": 4},
          "drop_last": {"batch": 4, "drop_last": True}}


@pytest.fixture(scope="module", params=["mlp", "cnn"])
def bench(request):
    return Bench(image=request.param == "cnn")


@pytest.fixture(scope="module")
def results(bench):
    """The results of a verb for every client, by engine; computed once."""
    found = {}

    def get(engine, verb):
        if (engine, verb) not in found:
            found[engine, verb] = bench.run({"loop": Loop, "vmap": Vmap}[engine](), verb)
        return found[engine, verb]
    return get


@pytest.fixture(scope="module")
def inputs(bench):
    """The weights that all runs begin with, copied before the first run."""
    return [bench.shared.clone(), *(bench.store.read(c).w.clone() for c in bench.clients)]


def difference(bench, one, other, verb, **local) -> float:
    """Return the largest difference over clients between the results of two engines."""
    return apart(bench.run(one, verb, **local), bench.run(other, verb, **local))


def apart(a: dict[int, torch.Tensor], b: dict[int, torch.Tensor]) -> float:
    """Return the largest difference over clients between two results."""
    assert a.keys() == b.keys()
    return max(float((a[c] - b[c]).abs().max()) for c in a)


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_vectorised_is_looped(results, verb):
    assert apart(results("loop", verb), results("vmap", verb)) < 1e-5


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
def test_vectorised_is_looped_whatever_the_local_training(bench, local):
    for verb in (plain, pull, scan):
        assert difference(bench, Loop(), Vmap(), verb, **local) < 1e-5


@pytest.mark.slow("every verb, cut into chunks")
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_chunks_do_not_matter(bench, results, verb):
    """No bit changes for networks that `auto` trains in this way, since chunks depend on the clients that a rank hosts.

    Without the largest client, the others are cut into chunks of three and one. So the client of 11 samples, which has
    two batches, has another place in its chunk than among all five."""
    exactly = not any(len(shape) == 4 for shape in bench.model.shapes)
    engine, whole = Vmap(), results("vmap", verb)
    engine.most = 3
    chunks = bench.run(engine, verb, clients=bench.clients[1:])
    assert apart(chunks, {c: whole[c] for c in chunks}) <= (0 if exactly else 1e-5)


def test_little_memory_makes_small_chunks(bench):
    engine = Vmap(memory=1)
    assert difference(bench, Loop(), engine, plain) < 1e-5
    # Clients are trained one after another.
    assert not isinstance(bench.context.client, list)
    bench.run(Vmap(), plain)
    assert sorted(bench.context.client) == bench.clients


def test_samples_are_asked_for_once_a_round(monkeypatch):
    """They may lie on the disk. In the first round sizes have to be known."""
    engine, bench, asked = Vmap(), Bench(), []
    real = bench.get_training_samples
    monkeypatch.setattr(bench, "get_training_samples", lambda client: asked.append(client) or real(client))
    for times in (3, 2, 2):
        asked.clear()
        bench.run(engine, plain)
        assert sorted(asked) == sorted(bench.clients * (times - 1) + [0])
    assert engine.sizes == {0: 57, 1: 1, 2: 11, 3: 3, 4: 10}


class Crowded(Vmap):
    """An engine on a device that has room for so many clients; it keeps how many it was asked to take."""
    room, asked = 2, ()

    def _together(self, function, clients, *rest):
        self.asked = (*self.asked, len(clients))
        if len(clients) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super()._together(function, clients, *rest)


def test_out_of_memory_halves_the_chunks():
    """The engine goes from 9 clients at once to 4 and to 2, permanently; no client is left out or trained twice."""
    engine, bench = Crowded(), Bench((57, 1, 11, 3, 10, 4, 5, 6, 7))
    found = list(engine.apply(lambda shared, mine, data: mine.w * data.n, bench.clients, bench.shared, bench,
                              REHEARSAL_TRAINING))
    assert [client for client, _ in found] == [0, 2, 4, 8, 7, 6, 5, 3, 1] and engine.most == 2
    assert engine.asked == (9, 4, 2, 2, 2, 2, 1)
    assert difference(bench, Vmap(), engine, plain) == 0
    engine.room, engine.asked = 0, ()
    with pytest.raises(torch.OutOfMemoryError):
        bench.run(engine, plain)
    assert engine.asked == (2, 1)


class Late(Crowded):
    """An engine that finds its memory short only after the clients have trained."""

    def _together(self, function, clients, *rest):
        room, self.room = self.room, len(clients)
        found, self.room = super()._together(function, clients, *rest), room
        if len(clients) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found


@pytest.mark.parametrize("verb", [plain, scan])
def test_steps_of_clients_that_are_trained_again_count_once(bench, verb):
    counted = []
    for engine in (Vmap(), Late()):
        bench.counter.begin(PARTICIPANTS)
        bench.run(engine, verb)
        bench.counter.begin(None)
        counted.append(bench.counter.take().tolist())
    assert engine.asked == (5, 2, 2, 1) and counted[0] == counted[1] and any(counted[0])


def test_chunks_are_as_many_clients_as_fit(bench):
    """The largest comes first, and all count as large as it, with a batch, of 10 samples also for those that have
    fewer, and ten vectors of parameters. A sample is 64 numbers."""
    bytes_of = [4 * 64 * (n + 10) + 10 * 4 * bench.model.size for n in (57, 11, 10, 3, 1)]
    # Bytes become floats.
    if len(bench.model.shapes[0]) == 4:
        assert bench.get_training_samples(0)[0].dtype == torch.uint8
    for memory, expected in ((2 * bytes_of[0], (2, 3 if 2 * bytes_of[0] >= 3 * bytes_of[2] else 2)),
                             (2 * bytes_of[0] - 1, (1,)), (5 * bytes_of[0], (5,))):
        engine = Crowded(memory=memory)
        engine.room = 9
        bench.run(engine, plain)
        assert engine.asked[:len(expected)] == expected and sum(engine.asked) == 5


def test_steps_have_weights_and_clients_that_still_have_a_batch():
    """Clients have 7, 5 and 2 samples in batches of 3, for two epochs; a client that is done drops out."""
    sizes, local = (7, 5, 2), LocalTraining(1, 2, 3, 2, None, .1, 0.)
    rows = [torch.zeros(n, 1) for n in sizes]
    cohort = Cohort(pad_samples(rows), pad_samples([torch.arange(n) for n in sizes]), sizes, (4, 9, 11), local)
    index, weight, active = cohort.plans()
    assert index.shape == weight.shape == (6, 3, 3) and active == [3, 3, 2, 2, 1, 1]
    counts = [[3, 3, 2], [3, 2, 2], [1, 3, 0], [3, 2, 0], [3, 0, 0], [1, 0, 0]]
    expected = [[[1 / c] * c + [0] * (3 - c) if c else [0] * 3 for c in step] for step in counts]
    torch.testing.assert_close(weight, torch.tensor(expected))
    # see KNOWN in test_batch_plan.py: 7 samples of client 4
    assert index[:3, 0].flatten()[:7].tolist() == [1, 0, 6, 5, 2, 4, 3]
    assert index[3:, 0].flatten()[:7].tolist() == [0, 1, 2, 4, 3, 6, 5]
    for k, (t, (here, x, y, w)) in zip(active, enumerate(cohort.batches()), strict=True):
        assert here == k and x.shape == (k, 3, 1) and torch.equal(w, weight[t, :k]) and torch.equal(y, index[t, :k])


def test_padding_is_whole_blocks_of_a_client_s_own_first_sample():
    for n, length in ((1, 64), (64, 64), (65, 128)):
        rows = (torch.arange(2. * n).view(n, 2) + 5, torch.tensor([[3., 4.]]), torch.empty(0, 2))
        found = pad_samples(rows)
        assert found.shape == (3, length, 2) and torch.equal(found[0, :n], rows[0])
        assert (found[0, n:] == rows[0][0]).all() and (found[1] == rows[1]).all() and not found[2].any()


def test_a_network_with_batchnorm_is_refused():
    with pytest.raises(BadInput, match="engine = vmap: it cannot train a network with BatchNorm"):
        Bench(image=True, net=model_of()).run(Vmap(), plain)


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_a_block_without_a_whole_parameter_is_refused(bench, engine):
    def stuck(model, shared, mine, data):
        return data.descend(model, mine.w, only=slice(1, 3))
    with pytest.raises(BadInput, match="holds no parameter of the network"):
        bench.run(engine, stuck)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_verbs_do_different_things(bench, results, engine):
    found = (results(engine, verb) for verb in VERBS.values())
    seen = {tuple(w for c in bench.clients for w in result[c].flatten()[-5:].tolist()) for result in found}
    assert len(seen) == len(VERBS)


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_a_client_does_not_depend_on_those_before_it(bench, engine):
    for verb in (plain, scan):
        together, alone = bench.run(engine, verb), bench.run(engine, verb, clients=[2])
        assert (together[2] - alone[2]).abs().max() < (1e-9 if engine.name == "loop" else 1e-5)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_results_and_inputs_are_kept_apart(bench, inputs, results, engine):
    for verb in VERBS.values():
        results(engine, verb)
    after = [bench.shared, *(bench.store.read(c).w for c in bench.clients)]
    assert all(torch.equal(one, other) for one, other in zip(after, inputs, strict=True))


def test_no_clients_no_work(bench):
    assert bench.run(Loop(), plain, clients=[]) == bench.run(Vmap(), plain, clients=[]) == {}


class Altered(Loop):
    """A looped engine with another class of data."""
    data = LoopData

    def apply(self, function, clients, shared, group, local):
        for client in clients:
            yield client, function(shared, group.store.read(client),
                                   self.data(*group.get_training_samples(client), client, local))


class DropsShortBatch(Altered):
    class data(LoopData):
        def batches(self):
            return (b for b in super().batches() if len(b[1]) == self.local.batch)


class MeanOverPadding(Altered):
    """Divides a short batch's loss by the full batch size."""
    class data(LoopData):
        def batches(self):
            for x, y in super().batches():
                short = self.local.batch - len(y)
                yield torch.cat([x, x[:1].repeat(short, *[1] * (x.ndim - 1))]), torch.cat([y, y[:1].repeat(short)])


class IgnoresPull(Altered):
    class data(LoopData):
        def descend(self, net, w, pull=(), **settings):
            return super().descend(net, w, **settings)


class Leaks(Loop):
    """Starts each client from the state of the previous one."""

    def apply(self, function, clients, shared, group, local):
        left = None
        for client in clients:
            mine = group.store.read(client)
            data = LoopData(*group.get_training_samples(client), client, local)
            left = function(shared, mine if left is None else mine._replace(w=left), data)
            yield client, left


class SameBatches(Altered):
    """Draws every client's batches with the first client's number."""

    def apply(self, function, clients, shared, group, local):
        for client in clients:
            data = LoopData(*group.get_training_samples(client), clients[0], local)
            yield client, function(shared, group.store.read(client), data)


@pytest.mark.parametrize("broken, verb", [(DropsShortBatch, plain), (MeanOverPadding, plain), (IgnoresPull, pull),
                                          (Leaks, plain), (SameBatches, plain)])
def test_broken_engines_are_caught(bench, broken, verb):
    assert difference(bench, Altered(), Vmap(), verb) < 1e-5
    assert difference(bench, broken(), Vmap(), verb) > 1e-4
    assert difference(bench, broken(), Loop(), verb) > 1e-4
