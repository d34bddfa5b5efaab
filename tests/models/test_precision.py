"""The setting `precision`: bfloat16 products with float32 weights, on any number of ranks, and TF32's switches."""
from __future__ import annotations

import pytest
import torch

from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.vmap import Vmap
from fedmpi.models import precision
from tests.clients import verbs

ENGINES = pytest.mark.parametrize("engine", [Loop(), Vmap(), Vmap(graphs="on")], ids=["loop", "vmap", "graphs"])


@pytest.fixture(autouse=True)
def reset():
    yield
    precision.set_precision("float32")


@pytest.fixture(scope="module", params=[False, True], ids=["mlp", "cnn"])
def clients(request):
    return verbs.Bench(image=request.param)


def apart(one: dict, other: dict) -> float:
    return max(float((one[c] - other[c]).abs().max()) for c in one)


@pytest.mark.slow("six networks, three methods")
@ENGINES
@pytest.mark.parametrize("verb", [verbs.plain, verbs.pull_momentum, verbs.own_loss, verbs.with_features, verbs.scan,
                                  verbs.mean_loss])
def test_half_precision_is_near_single(clients, engine, verb):
    """Parameters change by .1 to 1 here, and bfloat16 has 3 digits."""
    exact = clients.run(engine, verb)
    precision.set_precision("bf16")
    half = clients.run(engine, verb)
    assert all(row.dtype == torch.float32 for row in half.values())
    assert 1e-6 < apart(exact, half) < .03


@ENGINES
def test_each_precision_gives_the_same_bits_again(clients, engine):
    found = []
    for kind in ("float32", "bf16", "bf16", "float32"):
        precision.set_precision(kind)
        found.append(clients.run(engine, verbs.plain))
    exact, half, half_again, exact_again = found
    assert apart(half, half_again) == 0 == apart(exact, exact_again) and apart(exact, half) > 0


def test_chunks_do_not_matter(clients):
    precision.set_precision("bf16")
    few = Vmap()
    few.most = 2
    assert apart(clients.run(Vmap(), verbs.plain), clients.run(few, verbs.plain)) == 0


def test_a_table_is_trained_so_too():
    from fedmpi.models.build import build_model
    from fedmpi.models.nets import FastText
    from tests.models.test_nets import WORDS
    net = build_model(FastText(vocabulary=50, width=4), (6,), WORDS, 3, 0)
    x, y = torch.arange(60, dtype=torch.int32).view(10, 6) % 50, torch.arange(10) % 3

    def train():
        data = LoopData(x, y, 0, verbs.LocalTraining(0, 0, 5, 4, None, .5, 0.))
        return {0: data.descend(net, net.start)}
    exact = train()
    precision.set_precision("bf16")
    assert 1e-6 < apart(exact, train()) < .03


@pytest.mark.parametrize("name, tf32", [("float32", False), ("tf32", True), ("bf16", False)])
def test_the_switches_of_tf32(name, tf32):
    precision.set_precision(name)
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is tf32


@pytest.mark.slow("several whole runs")
def test_runs_in_half_precision(bench, capsys):
    """Bits are the same on one and on two ranks and differ from single precision; a restart keeps the setting."""
    done = bench.run(2, "two", "precision=bf16")
    assert done.returncode == 0 and ", bf16, 1 thread a rank" in done.stdout, done.stderr
    assert bench.lead("one", "precision=bf16") == 0 == bench.lead("exact")
    assert bench.result("one")["digest"] == bench.result("two")["digest"] != bench.result("exact")["digest"]
    assert bench.result("one")["loss"] == pytest.approx(bench.result("exact")["loss"], abs=.02)
    assert bench.lead("one", "rounds=4", resume="auto") == 2
    assert "precision is bf16 in the checkpoint and float32 now" in capsys.readouterr().err
