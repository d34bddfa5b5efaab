"""Single steps of a run at rank 0: when it evaluates, saves and stops, the reported costs, and which clients move."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.config.schema import resolve
from fedmpi.method import Participants
from fedmpi.server import checkpoint_writer, rounds
from fedmpi.server.checkpoint_writer import CheckpointWriter
from fedmpi.server.client_selection import SelectedClients
from fedmpi.server.rounds import Run
from fedmpi.server.run_state import RunState
from tests.server.test_resume import started

# The size of FedAvg's model in these runs.
BYTES = 4 * (64 * 16 + 16 + 16 * 10 + 10)


def bare(**parts) -> Run:
    """Return a Run that has only the named parts."""
    run = Run(**dict.fromkeys(("config", "checked", "pool", "federation", "progress", "state", "stopping",
                               "pace", "client_selector", "deadline", "disk_errors", "recorder", "checkpoints")))
    vars(run).update(parts)
    return run


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set: the rounds read clock.now."""
    clock = SimpleNamespace(now=1000.)
    for module in (rounds, checkpoint_writer):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


@pytest.mark.parametrize("settings, known, saving, passed, done, due", [
    ({"every": 3}, False, 0, 0, 3, True), ({"every": 3}, False, 0, 0, 4, False), ({"every": 3}, False, 0, 0, 6, True),
    ({"every": 0}, False, 0, 0, 8, False), ({"every": 0}, False, 0, 0, 9, True), ({"every": 4}, False, 0, 0, 9, True),
    ({"every": 0, "minutes": 2}, False, 0, 120, 5, False), ({"every": 0, "minutes": 2}, False, 0, 120.5, 5, True),
    ({"every": 0, "minutes": 0}, False, 0, 1e9, 5, False), ({"every": 0, "minutes": .5}, False, 0, 29, 5, False),
    ({"every": 0, "minutes": .5}, False, 0, 31, 5, True), ({"every": 3, "minutes": 2}, False, 0, 121, 4, True),
    ({"every": 0}, True, 0, 0, 5, True), ({"every": 0}, True, .1, 0, 5, False)])
def test_checkpoints_are_due_by_rounds_minutes_and_once_before_a_deadline(clock, settings, known, saving, passed, done,
                                                                          due):
    writer = CheckpointWriter(resolve({"rounds": 9, "checkpoint": settings}), None, None, None, None,
                              RunState((), None, done), last_begun=clock.now, slowest_s=saving)
    clock.now += passed
    assert writer.is_due(done == 9, known) is due


def test_a_signal_is_a_better_reason_than_a_deadline():
    """Both are checked after every round, because the deadline has to know how long the round took."""
    late, seen = SimpleNamespace(find_reason_to_stop=lambda *spent: seen.append(spent) or "too late"), []
    run = bare(pool=SimpleNamespace(stop_requested=False), stopping=lambda: False, deadline=late,
               checkpoints=SimpleNamespace(slowest_s=7.))
    assert run.find_reason_to_stop(3.) == "too late"
    run.deadline = SimpleNamespace(find_reason_to_stop=lambda *spent: seen.append(spent) or "")
    assert run.find_reason_to_stop(4.) == ""
    run.stopping = lambda: True
    assert run.find_reason_to_stop(5.) == "asked to stop"
    run.stopping, run.pool.stop_requested = lambda: False, True
    assert run.find_reason_to_stop(6.) == "asked to stop"
    run.deadline = late
    assert run.find_reason_to_stop(8.) == "asked to stop"
    assert seen == [(3., 7.), (4., 7.), (5., 7.), (6., 7.), (8., 7.)]


@pytest.fixture
def averaging(ready):
    """Set up FedAvg on ten clients, of which the first has the most samples, with 2 epochs and batches of 10."""
    def averaging(*words):
        return ready("method=fedavg", "data.clients=10", "train.steps=null", "train.epochs=2", *words)
    return averaging


def who(run, ids, t=4) -> Participants:
    ids = np.array(ids, np.int64)
    return Participants(ids, run.federation.sizes[ids], t, 2)


def all_in_time(asked: Participants) -> SelectedClients:
    return SelectedClients(asked, None, 0., {})


def test_the_facts_of_a_round(averaging):
    """Five clients were asked, one was lost, one sent a bad update; the server reports facts of the other three."""
    run = averaging("faults={drop: .3, bad_update: skip}", "edge={cycles: 3.e6, frequency: 2.e9, bandwidth: 1.e6}")
    asked, trained, taken = who(run, [1, 3, 5, 8, 9]), who(run, [1, 3, 5, 9]), who(run, [1, 5, 9])
    taken.log(clusters=[2, 0, 2], k=4, iterations=3)
    taken.log_per_client(lam=[.5, 1.5, 4.])
    run.state.clusters.planted, n = np.arange(10) // 9, run.federation.sizes
    run.state.clusters.last[[1, 4]] = 2
    # columns of a round that was not evaluated
    run.recorder.columns = {"T_comp": np.zeros(10)}
    facts = run.recorder.record_participation(all_in_time(asked), trained, taken, (BYTES, BYTES))
    seconds = 2 * 3e6 * n[[1, 3, 5, 8, 9]].mean() / 2e9
    assert [facts.pop(key) for key in ("cluster_sizes", "cluster_sizes_all", "lost", "bad_updates")] == [
        [1, 0, 2, 0], [1, 0, 3, 0], [8], [3]]
    # Among clients 1, 4, 5 and 9 three pairs are planted, three are found, and one is both.
    assert facts == pytest.approx({
        "iterations": 3, "cluster_changes": 0, "ari": (1 - 1.5) / (3 - 1.5), "purity": 3 / 4, "lam_mean": 2.,
        "participants": 5, "mib_per_client_round": BYTES * 1.8 / 2**20, "T_comp": seconds,
        "E_comp": 1e-28 * 4e18 * 2e9 * seconds, "T_comm": 8 * BYTES * 1.8 / 1e6, "E_comm": .44 * 8 * BYTES * 1.8 / 1e6})
    nan = np.full(10, np.nan)
    # Client 8 sends nothing.
    nan[[1, 3, 5, 8, 9]] = np.array([16, 16, 16, 8, 16]) * BYTES / 1e6
    np.testing.assert_allclose(run.recorder.columns["T_comm"], nan)
    nan[[1, 3, 5, 8, 9]] = 2 * 3e6 * n[[1, 3, 5, 8, 9]] / 2e9
    np.testing.assert_allclose(run.recorder.columns["T_comp"], nan)
    assert run.state.clusters.last.tolist() == [-1, 2, -1, -1, 2, 0, -1, -1, -1, 2]
    # The method's own clusters are not renumbered.
    assert taken.facts["clusters"] == [2, 0, 2]
    assert "round 5: lost clients 8, left out bad updates of clients 3" in run.recorder.folder.log_path.read_text()


def test_without_an_edge_nobody_spends_and_without_faults_nobody_is_missing(averaging):
    run = averaging()
    everybody = who(run, [0, 4])
    facts = run.recorder.record_participation(all_in_time(everybody), everybody, everybody, (BYTES, BYTES))
    assert facts == {"participants": 2, "mib_per_client_round": 2 * BYTES / 2**20}
    assert run.recorder.columns == {}


def test_idle_clients_receive_the_model_beside_the_participants(ready):
    """Two of ten are asked, and one of them is lost: the other eight mix on what the server sends."""
    run = ready("method={name: fedah, mix_everyone: true}", "data.clients=10")
    asked, there = who(run, [0, 4]), who(run, [0])
    facts = run.recorder.record_participation(all_in_time(asked), there, there, (BYTES, BYTES))
    assert facts["mib_idle"] == 8 * BYTES / 2**20 and facts["mib_per_client_round"] == 1.5 * BYTES / 2**20


def test_clients_move_before_the_round_for_the_rounds_that_are_left(averaging, clock):
    run, left, told, orders = averaging("rounds=3"), [], [], []
    moves = [None, (np.array([2, 5, 6]), np.array([0, 0, 0])), None]
    run.pace.plan_moves = lambda rounds: left.append(rounds) or moves[len(left) - 1]
    run.pace.record_moves = lambda *what: told.append(what)
    call = run.pool.call

    def noting(order, *arrays):
        orders.append(order)
        clock.now += .25 * (order == OrderPerformer.move)
        return call(order, *arrays)
    run.pool.call, run.pool.world.barrier = noting, lambda: None
    assert run.run_rounds() and left == [3, 2, 1]
    assert [line["clients_moved"] for line in run.state.metrics] == [0, 3, 0]
    ((homes, clients, seconds),) = told
    assert homes is run.pool.homes and (clients, seconds) == (3, .25)
    move = orders.index(OrderPerformer.move)
    assert orders.count(OrderPerformer.move) == 1 and orders[move + 1] == OrderPerformer.train
    assert "3 clients moved to ranks that are faster or have less to do" in run.recorder.folder.log_path.read_text()


def test_a_round_is_shown_with_the_seconds_that_it_took(averaging, clock):
    run, shown = averaging("rounds=2"), []
    perform = run.run_round

    def slowly(t):
        perform(t)
        clock.now += 2 + t
    run.run_round, run.recorder.show_round = slowly, shown.append
    assert run.run_rounds() and shown == [2, 3]


def test_bytes_and_seconds_are_counted_by_round_and_in_all(averaging, clock):
    run = averaging("rounds=2")
    world, perform = run.pool.world, run.pool._perform

    def counting(order, arrays):
        world.sent, world.received, clock.now = world.sent + 70, world.received + 3, clock.now + 1.5
        return perform(order, arrays)
    run.pool._perform = counting
    world.sent, world.received, run.state.seconds = 1000, 500, 20.
    for t in (0, 1):
        run.run_round(t)
    # Each of the orders train, sum_rows and evaluate counts.
    for line, seconds in zip(run.state.metrics, (24.5, 29.), strict=True):
        assert (line["bytes_sent_by_server"], line["bytes_received_by_server"], line["seconds"]) == (210, 9, seconds)
    assert run.state.round == 2 and run.state.seconds == 29.


@pytest.mark.parametrize("method, entered", [
    ("{name: lcfed, K: 2, D: 2}", False), ("{name: fedgroup, K: 2, first: 4}", True),
    ("{name: fesem_cam, k: 2, warm_up: 1}", True)])
def test_the_round_before_the_first_takes_its_time(averaging, clock, method, entered):
    """Clusters of FedGroup and FeSEM-CAM are entered as those of round 0."""
    run = averaging("rounds=1", f"method={method}")
    perform, done = run.pool._perform, []

    def counting(order, arrays):
        done.append(order)
        clock.now += 2.
        return perform(order, arrays)
    run.pool._perform = counting
    run.warm_up()
    assert run.state.seconds == 2. * len(done) > 0
    before = run.state.seconds
    assert [line["seconds"] for line in run.state.metrics] == [before] * entered
    run.run_round(0)
    assert run.state.metrics[-1]["seconds"] == run.state.seconds == 2. * len(done) > before


def test_the_round_before_the_first_is_minus_one(averaging):
    """So its batches and draws differ from those of every later round."""
    run, asked = averaging("method={name: fedgroup, K: 2, first: 2}", "seed=3"), []
    run.exchange = lambda who, evaluates: asked.append((who, evaluates)) or who
    run.warm_up()
    ((who, evaluates),) = asked
    assert who.ids.tolist() == [2, 4, 5, 8] and (who.round, who.seed, evaluates) == (-1, 3, False)
    assert who.sizes.tolist() == run.federation.sizes[[2, 4, 5, 8]].tolist()


def test_the_slowest_checkpoint_of_this_start_counts(averaging, clock):
    run, saves = averaging("rounds=2"), []
    call = run.pool.call
    run.pool.call = lambda order, *arrays: (saves.append(order == OrderPerformer.gather_touched), setattr(
        clock, "now", clock.now + saves[-1] * (2 if sum(saves) == 1 else 1)), call(order, *arrays))[-1]
    run.checkpoints.save()
    begun = clock.now
    run.checkpoints.save()
    assert run.checkpoints.slowest_s == 2. and run.checkpoints.last_begun == begun == clock.now - 1


@pytest.mark.parametrize("piece, blocks", [(1, 5), (2 * BYTES - 1, 5), (2 * BYTES, 3), (5 * BYTES, 1), (64 << 20, 1)])
def test_rows_are_gathered_a_bounded_number_at_a_time(ready, monkeypatch, piece, blocks):
    run, ids = ready("method=local", "data.clients=10"), np.array([0, 2, 3, 7, 9])
    for i in range(10):
        run.pool.hosted.store.restore(i, {"w": np.full(BYTES // 4, i, np.float32)})
    monkeypatch.setattr(checkpoint_writer, "CHECKPOINT_PIECE_BYTES", piece)
    pieces = [piece["w"] for piece in run.checkpoints.gather_pieces(ids)]
    assert len(pieces) == blocks and np.concatenate(pieces)[:, 0].tolist() == [0, 2, 3, 7, 9]


def test_asked_to_stop_in_the_last_round_a_run_is_finished(bench):
    assert started(bench, "last", ("rounds=2", "method=fedavg"), stop=2) == 0
    assert bench.result("last")["rounds"] == 2 and len(bench.metrics("last")) == 2
    assert started(bench, "only", ("rounds=1", "method=fedavg"), stop=1) == 0


def test_asked_to_stop_before_the_last_round_it_saves_and_says_how_to_go_on(bench, capsys):
    assert started(bench, "early", ("rounds=3", "method=fedavg", "checkpoint.every=0"), stop=2) == 75
    folder = bench.out("early")
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"asked to stop: saved after round 2 of 3 in {folder}; start again with --out {folder} --resume auto")
    assert [path.name for path in bench.saved("early")] == ["round-000002.h5"]
    assert len(bench.metrics("early")) == 2 and not (folder / "result.json").exists()


def test_checkpoints_that_are_kept(bench):
    """The last checkpoints and the best one are kept; seconds of all starts add up."""
    # With this rate the first round is as good as any.
    words = ("method=fedavg", "rounds=6", "checkpoint.keep=3", "train.lr=1e-9")
    assert started(bench, "kept", words) == 0
    kept = [int(path.stem[-6:]) for path in bench.saved("kept")]
    accuracies = [line["accuracy_mean"] for line in bench.metrics("kept")]
    assert kept[-3:] == [4, 5, 6] and len(kept) <= 4 and max(accuracies) in [accuracies[t - 1] for t in kept]
    before = bench.result("kept")["seconds"]
    assert started(bench, "kept", (*words[:1], "rounds=7", *words[3:]), "auto") == 0
    assert bench.result("kept")["seconds"] > before


def test_the_memory_is_that_of_the_largest_rank():
    assert rounds.describe_memory(np.array([[10., 0.], [30.04, 5.], [20., 7.]])) == {
        "memory_mib": 30., "memory_mib_server": 10., "gpu_memory_mib": 7.}


def test_simulated_time_begins_with_the_round_before_the_first(bench):
    assert started(bench, "simulated", ("method={name: fedgroup, K: 2}", "stragglers.step_seconds=.1", "rounds=2")) == 0
    first, second = (line for line in bench.metrics("simulated") if line["round"])
    assert first["simulated_seconds"] > first["simulated_seconds_round"] > 0
    assert second["simulated_seconds"] == pytest.approx(
        first["simulated_seconds"] + second["simulated_seconds_round"])
