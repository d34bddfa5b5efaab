"""On the simulated GPU more clients, more chunks and more states cost launches, but no more waits."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.clients.state_store import StateStore
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import Bench
from tests.federations import CPU, Digits, Lab, method, mlp
from tests.pretend import GPU, pretend, runs
from tests.pretend.counts import TORCH

# (engine, clients at once) -> (syncs, launches) of each further client in training and in evaluation
EACH = {("loop", 128): ((0, 34), (0, 14)), ("vmap", 128): ((0, 1), (0, 1)), ("vmap", 2): ((0, 43), (0, 3))}


def spent(how: str, most: int, clients: int) -> list[tuple[int, int]]:
    """Return the (syncs, launches) of training so many equal clients, and of evaluating them, in a second round."""
    engine = runs.engine(how)
    with pretend() as books:
        if how == "vmap":
            engine.most = most
        lab = Lab(method("fedavg", mlp()), Digits((20,) * clients, test=4), engine, device=GPU)
        lab.round(0, evaluates=True)
        marks = [books.now()]
        lab.train(1, evaluates=False)
        marks.append(books.now())
        lab.evaluate(2)
        marks.append(books.now())
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(marks, marks[1:], strict=False)]


@pytest.mark.parametrize("how, most", EACH)
def test_more_clients_do_not_wait_more_often(how, most):
    few, many = spent(how, most, 4), spent(how, most, 8)
    found = tuple(((b[0] - a[0]) / 4, (b[1] - a[1]) / 4) for a, b in zip(few, many, strict=True))
    assert [syncs for syncs, _ in found] == [syncs for syncs, _ in EACH[how, most]]
    if torch.__version__.startswith(TORCH):
        assert found == EACH[how, most]


class Mine(NamedTuple):
    a: torch.Tensor
    n: torch.Tensor


def test_states_are_brought_to_the_host_together():
    """So are states of clients that never wrote one. Digests are those of a CPU."""
    with pretend() as books:
        here, there = (StateStore(Mine(torch.zeros(3, 2, device=d), torch.tensor(0, device=d))) for d in (CPU, GPU))
        for c in (1, 4, 5):
            for store, d in ((here, CPU), (there, GPU)):
                store.write(c, Mine(torch.full((3, 2), float(c), device=d), torch.full((), c, device=d)))
        before = books.count("sync")
        rows, digests = there.stack([1, 2, 5]), there.compute_digests(range(6))
        # one wait for each of the two fields, of rows, of digests and of the first state
        assert books.count("sync") - before == 2 + 2 + 2
        assert all(np.array_equal(rows[name], column) for name, column in here.stack([1, 2, 5]).items())
        assert np.array_equal(digests, here.compute_digests(range(6))) and digests.dtype == np.uint8
        assert there.compute_digests([]).shape == (0, 32)


def test_an_edge_device_s_work_is_counted_beside_training_on_a_gpu(tmp_path, cache):
    """In one process rank 0's model on the CPU and the model on the GPU share their module."""
    import json

    from fedmpi.engines import gpu_card
    from tests.runs import run_alone
    (tmp_path / "c.yaml").write_text(json.dumps({
        "rounds": 2, "method": {"name": "ifca", "k": 2}, "model": {"name": "mlp", "hidden": 8}, "device": "cuda",
        "data": {"clients": 4, "cache": str(cache)}, "train": {"steps": 3}, "edge": {}, "engine": "loop"}))
    before, gpu_card.use_deterministic_kernels = gpu_card.use_deterministic_kernels, lambda: None
    try:
        with pretend():
            assert run_alone(str(tmp_path / "c.yaml"), [], str(tmp_path / "out")) == 0
    finally:
        gpu_card.use_deterministic_kernels = before
    last = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert any(key.startswith("T_comp") for key in last)


def test_an_engine_that_was_told_nothing_times_convolutions_itself(monkeypatch):
    """This happens in a benchmark. In a run, setup.choose_convolutions decides."""
    from fedmpi.engines import convolutions
    told = iter((2., 1.))
    monkeypatch.setattr(convolutions, "time_layer", lambda *layer: next(told))
    with pretend():
        lab = Lab(method("fedavg", runs.cnn()), Digits((5, 5), test=2, image=True), Vmap(), device=GPU)
        lab.train(0)
        assert lab.group.engine.unfolded == ["0"] and lab.group.describe_engine()["convolutions"] == ["0"]


def test_a_model_that_all_clients_share_passes_once_over_what_they_hold():
    """Blocks of 64 samples would be four passes of the network, three of them of one client alone."""
    spent, losses = [], []
    for device, sizes in ((GPU, (60, 5, 5, 5)), (GPU, (200, 5, 5, 5)), (CPU, (200, 5, 5, 5))):
        with pretend() as books:
            bench = Bench(sizes, device=device)
            before = books.launches
            found = bench.run(Vmap(), lambda model, shared, mine, data: data.mean_loss(model, shared))
            spent.append(books.launches - before)
            losses.append([float(found[c]) for c in bench.clients])
    np.testing.assert_allclose(losses[1], losses[2], rtol=1e-5)
    # the losses of a client are summed block by block
    assert spent[1] - spent[0] < 15
