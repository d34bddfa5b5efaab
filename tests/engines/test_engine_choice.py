"""Which engine `auto` takes on a CPU, and unusual networks, which train the same with all engines that can."""
from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.config.schema import Config
from fedmpi.engines import engine_choice
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg, Up
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.nets import MLP
from fedmpi.preparation import choose_engine
from tests.clients.verbs import VERBS, Bench
from tests.federations import Digits, Lab, TinyCNN, apart, method, mlp, standardised
from tests.methods.table import NAMES, SHOWN, marked


class Given:
    """Settings of a network that a given function makes."""

    def __init__(self, make):
        self.make = make

    def build(self, shape, classes):
        return self.make()


def dropout(p: float = .5):
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 10))


def softmax():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def batchnorm():
    """Return a network whose BatchNorm keeps no running statistics, and takes a single sample by its 16 positions."""
    return nn.Sequential(nn.Unflatten(1, (4, 16)), nn.BatchNorm1d(4, track_running_stats=False), nn.Flatten(),
                         nn.Linear(64, 10))


def model(settings, shape=(64,), dtype="float32"):
    return build_model(settings, shape, np.dtype(dtype), 10, seed=0)


@pytest.mark.parametrize("settings, shape, dtype, expected", [
    (MLP(), (64,), "float32", "vmap"), (MLP(hidden=2000), (64,), "float32", "loop"),
    (TinyCNN(), (8, 8, 1), "uint8", "loop"), (Given(dropout), (64,), "float32", "loop"),
    (Given(softmax), (64,), "float32", "vmap"), (Given(batchnorm), (64,), "float32", "loop")])
def test_the_network_decides(settings, shape, dtype, expected):
    chosen = method("fedmhc", model(settings, shape, dtype))
    shared, mine = chosen.init(2)
    found, why = engine_choice.choose_by_network(chosen, shared, mine, make_blank_samples(shape, np.dtype(dtype)))
    assert found == expected == engine_choice.build_engine(found, Config()).name
    facts = f"{chosen.model.size:,} parameters, with{'out' * (len(shape) == 1)} convolutions"
    if settings.__dict__.get("make") is dropout:
        assert why.startswith("the network cannot be vectorised: vmap: ")
    else:
        assert why == facts


def test_an_engine_that_cannot_train_the_network_is_refused():
    def ask(name, make):
        engine_choice.refuse_vmap(
            name, method("fedmhc", model(Given(make))), make_blank_samples((64,), np.dtype("float32"))
        )
    ask("loop", dropout), ask("auto", dropout), ask("vmap", softmax)
    with pytest.raises(BadInput, match=r"engine = vmap: the network cannot be vectorised .vmap: .*; set engine=loop"):
        ask("vmap", dropout)
    with pytest.raises(BadInput, match="^engine = vmap: it cannot train a network with BatchNorm; set engine=loop"):
        ask("vmap", batchnorm)


@dataclass(frozen=True)
class InPlace(FedAvg):
    """FedAvg whose client changes what it was given, which only works one client after another."""
    title = "In place"

    def client(self, shared, mine, data):
        shared.w.add_(data.descend(self.model, shared.w))
        return mine, Up(shared.w)


def test_a_method_that_cannot_be_vectorised_is_not_blamed_on_its_network():
    blank = make_blank_samples((64,), np.dtype("float32"))

    def build(cls, settings):
        return cls().with_model(model(settings))
    with pytest.raises(BadInput, match=r"^engine = vmap: In place\.client cannot be vectorised \(.*engine=loop$"):
        engine_choice.refuse_vmap("vmap", build(InPlace, MLP()), blank)
    made = build(InPlace, MLP())
    name, why = engine_choice.choose_by_network(made, *made.init(2), blank)
    begin = "In place.client cannot be vectorised: "
    assert name == "loop" and why.startswith(begin) and len(why) > len(begin)
    # The network is the first thing to mend.
    with pytest.raises(BadInput, match="^engine = vmap: the network cannot be vectorised"):
        engine_choice.refuse_vmap("vmap", build(InPlace, Given(dropout)), blank)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_network_that_is_undefined_for_a_blank_sample(verb):
    """What fills up blocks and batches has no part in any result, whatever the network gives for it."""
    bench = Bench(net=standardised())
    found = bench.run(Vmap(), verb)
    for client, expected in bench.run(Loop(), verb).items():
        torch.testing.assert_close(found[client], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", marked(*NAMES))
def test_a_network_of_one_layer(name):
    """Its feature extractor has no parameters."""
    labs = [Lab(method(name, model(Given(softmax)), **SHOWN.get(name, {})), Digits(), engine, share=.6).go(2)
            for engine in (Loop(), Vmap())]
    assert apart(labs[0].state(), labs[1].state()) < 1e-5


@pytest.mark.parametrize("settings", [{}, {"anchor": "local"}])
def test_dropout_does_not_depend_on_who_was_evaluated(settings):
    """Training drops units and evaluation does not, whatever was done before."""
    labs = [Lab(method("fedmhc", model(Given(dropout)), **settings), Digits(), share=.6) for _ in range(3)]
    labs[0].go(3)
    labs[1].go(3, evaluates=True)
    labs[2].method.model.module.eval()
    labs[2].go(3)
    assert labs[0].digest() == labs[1].digest() == labs[2].digest()
    np.testing.assert_array_equal(labs[1].evaluate(3), labs[1].evaluate(3))


@pytest.mark.parametrize("name, settings", [("fedavg", {}), ("fedmhc", {"anchor": "local"})])
def test_dropout_drops(name, settings):
    """It does so in `descend` and in `walk`."""
    nets = model(Given(dropout)), model(Given(lambda: dropout(0.)))
    assert torch.equal(nets[0].start, nets[1].start)
    dropped, whole = (Lab(method(name, net, **settings), Digits((20,) * 4)).go(1) for net in nets)
    assert apart(dropped.state(), whole.state()) > 1e-4


def test_the_probe_times_both_engines():
    lab = Lab(method("fedavg", mlp()), Digits())
    before = lab.digest()
    assert (engine_choice.time_engines(lab.group, lab.shared) > 0).all() and lab.digest() == before


def test_the_probe_trains_a_ranks_first_clients_twice():
    lab, seen = Lab(method("fedavg", mlp()), Digits((4,) * 10)), []

    class Noting(Loop):
        def apply(self, function, clients, *others):
            seen.append(list(clients))
            return super().apply(function, clients, *others)
    assert engine_choice.time_engine(Noting(), lab.group, lab.shared) > 0
    assert seen == [list(range(8))] * 2


@pytest.mark.parametrize("make", [dropout, batchnorm])
def test_the_probe_leaves_to_loop_what_vmap_cannot_train(make):
    lab = Lab(method("fedavg", model(Given(make))), Digits())
    loop, vmap = engine_choice.time_engines(lab.group, lab.shared)
    assert 0 < loop < vmap == np.inf


def test_a_gpu_is_timed_once_and_a_restart_takes_the_choice_over(monkeypatch):
    """The test does all that a run does for it, on a rank that claims to have a GPU."""
    lab, said = Lab(method("fedavg", mlp()), Digits()), []
    run = SimpleNamespace(pool=lab.pool, config=lab.config, state=lab, progress=SimpleNamespace(say=said.append),
                          recorder=SimpleNamespace(gpus=["a GPU"]))
    monkeypatch.setattr(type(lab.group), "trains_on_gpu", True)
    monkeypatch.setattr(engine_choice, "time_engines", lambda group, shared: np.array([2., .5]))
    choose_engine(run, None)
    why = "2.000 s for loop, 0.500 s for vmap on the first clients"
    assert (lab.group.engine.name, lab.engine_why, said) == ("vmap", why, [f"engine vmap: {why}"])

    def resume(kept, gpus, engine="auto"):
        extra = {"engine": kept, "engine_why": f"{kept} was faster", **({} if gpus is None else {"gpus": gpus})}
        choose_engine(run, SimpleNamespace(config={"engine": engine}, extra=extra))
        return lab.group.engine.name, lab.engine_why
    # It chooses anew after a CPU, or after an engine that was set.
    assert resume("loop", []) == resume("loop", ["a GPU"], "loop") == ("vmap", why)
    # Otherwise the engines are never timed again.
    monkeypatch.setattr(engine_choice, "time_engines", None)
    said.clear()
    for kept in ("loop", "vmap"):
        for gpus in (["a GPU"], ["another"], None):
            assert resume(kept, gpus) == (kept, f"{kept} was faster")
    # The first lines of the run, before that, name the engine of a CPU.
    assert said == ["engine loop, as in the checkpoint", "engine vmap, as in the checkpoint"]
    # CPUs go on as the network says, whatever a GPU did or the user had set; lab's engine stands for that.
    monkeypatch.setattr(type(lab.group), "trains_on_gpu", False)
    run.recorder.gpus = []
    for gpus, engine in ((["a GPU"], "auto"), ([], "vmap"), (None, "vmap")):
        lab.group.use_engine("loop")
        assert resume("vmap", gpus, engine)[0] == "loop"


class Sent(NamedTuple):
    w: torch.Tensor


def test_the_probe_trains_each_rank_s_first_clients_twice(monkeypatch):
    """It trains eight clients at most, with their messages; the seconds are those of the second time."""
    lab, seen = Lab(method("fedavg", mlp()), Digits((3,) * 11)), []

    class Engine:
        def apply(self, function, clients, shared, group, local):
            seen.append((clients, {client: int(sent.w) for client, sent in group.messages.items()}, local.round))
            return iter([1, 2])
    clock = iter((10., 20., 50., 53., 60., 60.5, 70., 77.))
    monkeypatch.setattr(engine_choice, "find_vmap_obstacle", lambda *of: None)
    monkeypatch.setattr(engine_choice, "build_engine", lambda name, config, limits: Engine())
    monkeypatch.setattr(engine_choice, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    lab.group.method = SimpleNamespace(message_template=lambda: Sent(torch.tensor(7)), client=None)
    found = lab.group.time_engines()
    assert seen == [(list(range(8)), dict.fromkeys(range(11), 7), 0)] * 4 and lab.group.messages == {}
    assert len(found) == 2 and found.dtype == float


def test_the_border_between_the_engines(monkeypatch):
    """Up to SMALL parameters many clients are trained at once, and one by one above; 64 hidden units have 4,810."""
    chosen = method("fedavg", model(MLP(hidden=64)))
    for border, expected in ((4810, "vmap"), (4809, "loop")):
        monkeypatch.setattr(engine_choice, "SMALL_NETWORK", border)
        assert engine_choice.choose_by_network(
            chosen, *chosen.init(2), make_blank_samples((64,), np.dtype("float32"))
        ) == (expected, "4,810 parameters, without convolutions")
    monkeypatch.undo()
    assert engine_choice.build_engine("vmap", Config()).memory == 2 * 2 ** 30 and engine_choice.SMALL_NETWORK == 100_000
