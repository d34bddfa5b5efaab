"""The costs of a round: FedMHC's table II from the bytes of real models, FedCPS's edge model from its formulas."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import traffic
from fedmpi.comm.transport import Solo
from fedmpi.config.schema import resolve
from fedmpi.edge import Edge
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.dry_run import DryRunData, RoundWork, count_round_work
from fedmpi.errors import BadInput
from fedmpi.method import Participants
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.nets import CNN4
from fedmpi.server.edge_cost import EdgeLedger
from fedmpi.server.round_cost import count_printed_bytes
from fedmpi.text import MIB
from tests.clients.verbs import VERBS
from tests.federations import method

# FedMHC's table II: MB per client and round, as printed; clustered methods have four clusters.
TABLE = {
    "FedAvg": (7.06, 85.66, 43.44, 86.06), "FeSEM": (17.65, 214.15, 108.6, 215.15),
    "IFCA": (17.65, 214.15, 108.6, 215.15), "pFedCAM": (17.65, 214.15, 108.6, 215.15),
    "FedMHC": (7.66, 86.26, 44.61, 87.23)}
COLUMNS = ("CIFAR-100 cnn4", "CIFAR-100 resnet18", "Tiny-ImageNet cnn4", "Tiny-ImageNet resnet18")
EXACT = {"fedavg": 7.055, "fedmhc": 7.642, "fesem": 17.637, "ifca": 17.637, "pfedcam": 17.637}


@pytest.mark.slow("builds the networks of a paper")
def test_table_two():
    found = traffic.measure(Solo())
    assert {row["method"]: tuple(row[c] for c in COLUMNS) for row in found["rows"]} == TABLE
    assert found["ratio"] == 7.66 / 17.65


def test_the_ledger_keeps_exact_bytes():
    model = build_model(CNN4(), (32, 32, 3), np.dtype("uint8"), 100, 0)
    found = {name: traffic.ledger(name, model, (32, 32, 3), 4) / MIB for name in traffic.METHODS}
    assert {name: round(mib, 3) for name, mib in found.items()} == EXACT


def test_the_printed_table_rounds_sizes_first():
    # It would be 108.61 if sizes were not rounded first.
    assert count_printed_bytes(5 * 22_778_400, 22_778_400, 410_400) == 108.6
    # The bytes of labels are too few to show.
    assert count_printed_bytes(2 * 22_778_400 + 800, 22_778_400, 410_400) == 43.44
    with pytest.raises(ValueError, match="30000 of .* bytes are neither models"):
        count_printed_bytes(22_778_400 + 30_000, 22_778_400, 410_400)


def test_the_edge_model_is_its_formulas():
    edge = Edge(cycles=3e6, frequency=2e9, kappa=1e-27, bandwidth=4e6, power=.5)
    spent = edge.compute_cost([100, 7], [30, 0], 1_000_000)
    # A forward pass costs a third of a step.
    cycles = 3e6 * np.array([110, 7])
    np.testing.assert_allclose(spent["T_comp"], cycles / 2e9)
    np.testing.assert_allclose(spent["E_comp"], 1e-27 * 4e18 * cycles)
    np.testing.assert_allclose(spent["T_comm"], [2., 2.])
    np.testing.assert_allclose(spent["E_comm"], [1., 1.])


def local(**settings):
    return LocalTraining(**{"seed": 0, "round": 0, "batch": 10, "epochs": 2, "steps": None, "lr": .1, "momentum": 0.}
                 | settings)


@pytest.mark.parametrize("n, settings, samples", [
    (25, {}, 50), (3, {}, 6), (25, {"steps": 1}, 10), (25, {"steps": 3}, 25), (25, {"steps": 4}, 35),
    (3, {"steps": 5}, 15), (25, {"drop_last": True}, 40), (3, {"drop_last": True}, 6), (20, {"drop_last": True}, 40),
    (25, {"drop_last": True, "steps": 3}, 30)])
def test_the_samples_of_local_training(mlp, n, settings, samples):
    once = method("local", mlp)
    work = count_round_work(once, *once.init(1), make_blank_samples((64,), "float32"), n, local(**settings))
    steps = settings.get("steps") or 2 * (max(1, n // 10) if settings.get("drop_last") else -(-n // 10))
    assert work == (samples, 0, (steps,), 0)


@pytest.mark.parametrize("name, settings, trained, passed", [
    ("fedavg", {}, 40, 0), ("fedmhc", {"M": 3}, 80, 4 * 20), ("fedmhc", {"M": 2, "anchor": "local"}, 80, 3 * 20),
    ("fedah", {}, 20 + 20 + 40, 20), ("fedsr", {}, 40, 0), ("fedcr", {}, 40, 20)])
def test_the_work_of_a_method_is_what_its_client_asks_for(mlp, name, settings, trained, passed):
    of = method(name, mlp, **settings)
    work = count_round_work(of, *of.init(8), make_blank_samples((64,), "float32"), 20, local())
    assert work[:2] == (trained, passed) and sum(work.steps) == trained / 10 and work.batches == passed / 10


def test_a_blank_sample_goes_forward_once_for_clients_of_all_sizes():
    """The method is IFCA, which passes its samples through each of its networks."""
    of = method("ifca", build_model(CNN4(), (32, 32, 3), np.dtype("uint8"), 10, 0), k=3)
    passes = []
    of.model.module.register_forward_hook(lambda *_: passes.append(1))
    shared, mine = of.init(8)
    works = [count_round_work(of, shared, mine, make_blank_samples((32, 32, 3), "uint8"), n, local())
             for n in (20, 40, 12)]
    assert [work.passed for work in works] == [3 * 20, 3 * 40, 3 * 12] and len(passes) == 1
    # Each pass over 12 samples takes a short batch.
    assert [work.batches for work in works] == [3 * 2, 3 * 4, 3 * 2]


def test_the_tally_knows_every_verb(mlp):
    """No verb reads more than the one blank sample, and samples are counted for any number of them."""
    shared = mlp.start
    mine = SimpleNamespace(w=mlp.start, s=torch.tensor(.5))
    for verb in VERBS.values():
        spent = []
        for n in (20, 40):
            data = DryRunData(
                make_blank_samples((64,), "float32"), torch.zeros(1, dtype=torch.int64), 3, local(), count=n
            )
            verb(mlp, shared, mine, data)
            spent.append(np.array(data.spent[:2]))
        # passes_steps takes a fixed number of steps.
        twice = 1 if verb.__name__ == "passes_steps" else 2
        np.testing.assert_array_equal(twice * spent[0], spent[1], verb.__name__)


def test_passes_over_the_batches_of_a_training_are_as_many(mlp):
    data = DryRunData(make_blank_samples((64,), "float32"), torch.zeros(1, dtype=torch.int64), 3, local(), count=25)

    def step(state, batch):
        return state[0] + 0 * batch.mean(lambda w, x, y: x, state[0]).sum(),
    data.scan(step, (mlp.start,))
    assert data.spent == [0, 50, 6]


def test_who_told_its_loss_has_computed_it(mlp):
    """FedAvg is evaluated by the server's model; FedBABU adapts it for that, and tells the loss before."""
    federation, who = SimpleNamespace(sizes=np.full(4, 12), shape=(64,), dtype="float32"), Participants(
        np.arange(2), np.full(2, 12), 0, 0)
    for name in ("fedavg", "fedbabu", "ditto"):
        ledger = EdgeLedger(Edge(cycles=3., frequency=1.), method(name, mlp), federation, local(), rounds=6)
        alone, told = (ledger.compute_cost(who, 0, told_losses=told)["T_comp"] for told in (False, True))
        np.testing.assert_allclose(told - alone, [12, 12])
        assert ledger.count_loss_work(12) == RoundWork(0, 12, (), 2)


@pytest.mark.parametrize("name, settings, works", [
    # a mix of one epoch of 12 samples in two batches; its training passes them with the models that are mixed
    ("fedah", {}, [RoundWork(12, 12 + 12, (2,), 4)]), ("pfedcam", {}, [RoundWork(12, 12, (2,), 2)]),
    # its first stage evaluates g alone, and the second one passes g and the five clusters, too
    ("ifca_cam", {"warm_up": 2, "k": 5}, [RoundWork(0, 12, (), 2), RoundWork(0, 12 + 6 * 12, (), 14)])])
def test_what_it_takes_to_tell_a_loss_is_that_of_the_stage(mlp, name, settings, works):
    federation, who = SimpleNamespace(sizes=np.full(4, 12), shape=(64,), dtype="float32"), Participants(
        np.arange(2), np.full(2, 12), 0, 0)
    ledger = EdgeLedger(Edge(cycles=3., frequency=1.), method(name, mlp, **settings), federation, local(), rounds=6)
    for stage, work in enumerate(works):
        ledger.stage = stage
        assert ledger.count_loss_work(12) == work
        alone, told = (ledger.compute_cost(who, 0, made=.5, told_losses=told)["T_comp"] for told in (False, True))
        np.testing.assert_allclose(told - alone, 3 * work.trained + work.passed)


def test_bad_edges():
    for setting in ({"cycles": 0}, {"power": -1.}, {"bandwidth": "fast"}):
        with pytest.raises(BadInput, match=f"edge.{next(iter(setting))} = .*should be"):
            resolve({"edge": setting})
    assert resolve({"edge": None}).edge is None and resolve({"edge": {}}).edge == Edge()


def test_a_run_reports_time_and_energy_at_the_edge(bench):
    assert bench.lead("edge", "edge.cycles=1e6", "train.steps=null", "train.epochs=2", "method=fedavg") == 0
    assert bench.lead("no-edge", "train.steps=null", "train.epochs=2", "method=fedavg") == 0
    line, result = bench.metrics("edge")[-1], bench.result("edge")
    assert result["digest"] == bench.result("no-edge")["digest"] and "T_comp" not in bench.result("no-edge")
    edge = Edge(cycles=1e6)
    seconds = line["mib_per_client_round"] * MIB * 8 / edge.bandwidth
    assert line["T_comm"] == pytest.approx(seconds) and line["E_comm"] == pytest.approx(seconds * edge.power)
    import h5py
    with h5py.File(bench.out("edge") / "history.h5") as history:
        column = history["T_comp"][-1]
        took_part = np.isfinite(column)
    assert took_part.sum() == line["participants"] == 6
    assert np.mean(column[took_part]) == pytest.approx(line["T_comp"]) == result["T_comp"]
    samples = column[took_part] * edge.frequency / edge.cycles / 2
    # Numbers of samples are whole.
    np.testing.assert_allclose(samples, np.round(samples), atol=1e-6)
    assert line["E_comp"] == pytest.approx(edge.kappa * edge.frequency ** 3 * line["T_comp"])


@pytest.mark.parametrize("name, settings, before, warming, after", [
    ("fedavg", {}, 40, 40, 40), ("ifca_cam", {"k": 3, "warm_up": 4}, None, 40, 80),
    ("fesem_cam", {"k": 3, "warm_up": 4, "warm_steps": 7}, 280, 80, 80),
    ("ifca_cam", {"k": 3, "warm_up": 0}, None, 80, 80)])
def test_the_edge_computes_what_the_round_asks_for(mlp, name, settings, before, warming, after):
    """A client with 20 samples trains 2 epochs. These are its samples in the warm-up round, rounds 0-3, and later."""
    federation = SimpleNamespace(sizes=np.full(8, 20), shape=(64,), dtype="float32")
    of = method(name, mlp, **settings)
    ledger, shared = EdgeLedger(Edge(cycles=3., frequency=1.), of, federation, local(), rounds=6), of.init(8)[0]

    def samples(t):
        if "round" in shared._fields:
            ledger.stage = of.stage_of(shared._replace(round=torch.tensor(t)))
        cycles = ledger.compute_cost(Participants(np.arange(2), np.full(2, 20), t, 0), 0)["T_comp"]
        passed = ledger.list_works(Participants(np.arange(2), np.full(2, 20), t, 0))[0].passed
        return (cycles - passed) / 3
    for t, expected in ((0, warming), (3, warming), (4, after), (5, after), (9, after), (-1, before)):
        if expected is not None:
            np.testing.assert_allclose(samples(t), [expected] * 2)


def test_a_runs_computing_time_is_that_of_an_ordinary_round(bench):
    """IFCA-CAM trains one model in rounds of warm-up and two later; FeSEM-CAM warms up in round 0 of the books."""
    words = ("edge={cycles: 1.e6}", "rounds=4")
    assert bench.lead("edge-ifca", *words, "method={name: ifca_cam, k: 2, warm_up: 2}") == 0
    assert bench.lead("edge-fesem", *words, "method={name: fesem_cam, k: 2, warm_up: 30, warm_steps: 9}") == 0
    names = ("edge-ifca", "edge-fesem")
    ifca, fesem = ({line["round"]: line["T_comp"] for line in bench.metrics(name)} for name in names)
    assert [bench.result(name)["T_comp"] for name in names] == [ifca[4], fesem[4]]
    # Participants differ from round to round, hence the margin.
    assert max(ifca[1], ifca[2]) * 1.5 < min(ifca[3], ifca[4])
    # Round 0 has 270 steps of one model, the others have 5 of two.
    assert fesem[0] > 15 * max(fesem[t] for t in (1, 2, 3, 4))
