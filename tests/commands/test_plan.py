"""A plan against closed forms, and against the bytes that a run moves and writes."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedmpi.clients.measures import CLIENT_MEASURES
from fedmpi.commands import plan
from fedmpi.commands.plan_table import format_plan
from fedmpi.config.schema import load_config
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines import vmap
from fedmpi.errors import BadInput
from fedmpi.text import MIB
from tests import forked

TWENTY = Path(__file__).with_name("twenty_clients.yaml")
HEAD = 64 * 10 + 10
# Parameters of its network.
SIZE = 64 * 64 + 64 + HEAD


@pytest.fixture
def planned(cache, monkeypatch):
    """Make `planned(*overrides, ranks=3, config=TWENTY)` return a plan."""
    monkeypatch.setenv("COLUMNS", "120")

    def planned(*overrides, ranks=3, config=TWENTY):
        return plan.make_plan(str(config), [f"data.cache={cache}", *overrides], ranks)
    return planned


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A configuration whose samples are shaped as those of CIFAR-100."""
    folder, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    labels = np.arange(300) % 100
    np.savez(folder / "like.npz", x_train=rng.integers(0, 256, (300, 32, 32, 3), np.uint8), y_train=labels)
    path = folder / "like.yaml"
    path.write_text(yaml.safe_dump({"model": "cnn4", "data": {
        "name": "arrays", "file": str(folder / "like.npz"), "clients": 5, "partition": "iid"}}))
    return path


@pytest.mark.parametrize("method, numbers", [
    ("fedmhc", 2 * SIZE + 3 * HEAD), ("fedavg", 2 * SIZE), ("fedah", 2 * SIZE), ("local", 0)])
def test_bytes_of_a_client_are_exact(planned, method, numbers):
    p = planned(f"method={method}")
    assert p["parameters"] == SIZE and p["head_parameters"] == HEAD
    assert p["mib_per_client_round"] == 4 * numbers / MIB
    assert p["mib_down"] + p["mib_up"] == p["mib_per_client_round"]


@pytest.mark.parametrize("method, mib", [("fedavg", "7.055"), ("fedmhc", "7.642")])
def test_bytes_agree_with_the_paper_for_cifar100(planned, photographs, method, mib):
    p = planned(f"method={method}", config=photographs)
    assert p["parameters"] == 924_708
    assert f"{p['mib_per_client_round']:.3f}" == mib


def test_steps_are_the_batches_of_all_participants(planned, cache):
    config = load_config(TWENTY, [f"data.cache={cache}"])
    batches = [-(-n // 10) for n in Federation(prepare_federation(config.data, config.seed)).sizes]
    assert planned()["steps_per_round"] == sum(batches)
    assert planned("train.epochs=3")["steps_per_round"] == 3 * sum(batches)
    whole = [max(1, n // 10) for n in Federation(prepare_federation(config.data, config.seed)).sizes]
    assert planned("train.drop_last=true")["steps_per_round"] == sum(whole) < sum(batches)
    assert planned("train.steps=4")["steps_per_round"] == 4 * 20
    assert planned("train.steps=4", "train.participation=0.5")["steps_per_round"] == 4 * 10
    assert planned("train.steps=4", "train.participation=[0.5, 1]")["steps_per_round"] == 4 * 15


def test_clients_whose_epochs_end_with_a_step_on_few_samples_are_counted(planned, cache):
    """At most a quarter of a batch. One with a single batch, or none left over, has no short one."""
    config = load_config(TWENTY, [f"data.cache={cache}"])
    sizes = Federation(prepare_federation(config.data, config.seed)).sizes
    few = {batch: sum(n > batch and 0 < n % batch <= batch / 4 for n in sizes)
           for batch in (10, 8, 4 * min(sizes))}
    assert 0 < few[10] < 20 and 0 < few[8] < 20
    assert planned()["short_batches"] == {"clients": few[10], "samples": 2}
    assert planned("train.batch=8", "method=ditto")["short_batches"] == {"clients": few[8], "samples": 2}
    wide = planned(f"train.batch={4 * min(sizes)}")["short_batches"]
    assert (wide or {"clients": 0})["clients"] == few[4 * min(sizes)]
    # Nothing depends on the last step of a client that keeps no model of its own.
    for told in (["method=fedavg"], ["method=fedper"], ["train.drop_last=true"], ["train.steps=4"], ["train.batch=1"],
                 [f"train.batch={max(sizes)}"]):
        assert planned(*told)["short_batches"] is None, told


@pytest.mark.parametrize("share, expected", [
    ("1", [20, 20]), ("0.1", [2, 2]), ("0.001", [1, 1]), ("[0.1, 1]", [2, 20])])
def test_participants(planned, share, expected):
    assert planned(f"train.participation={share}")["participants"] == expected


@pytest.mark.parametrize("ranks, hosts, roles", [
    (1, "false", ["server + worker"]), (3, "false", ["server", "worker", "worker"]),
    (2, "true", ["server + worker", "worker"]), (23, "false", ["server"] + 20 * ["worker"] + 2 * ["idle"])])
def test_every_client_has_one_home(planned, ranks, hosts, roles):
    p = planned(f"server.hosts_clients={hosts}", ranks=ranks)
    assert [r["role"] for r in p["per_rank"]] == roles
    assert sorted(sum((r["hosts"] for r in p["per_rank"]), [])) == list(range(20))
    assert sum(r["samples"] for r in p["per_rank"]) == 1797
    assert sum(r["steps"] for r in p["per_rank"]) == p["steps_per_round"]


@pytest.mark.parametrize("engine, vectors, optimizer", [
    ("loop", 4, "sgd"), ("vmap", 20 * vmap.VECTORS_PER_CLIENT, "sgd"), ("loop", 4 + 4, "adam"),
    ("vmap", 20 * (vmap.VECTORS_PER_CLIENT + 4), "adamw")])
def test_memory_is_the_sum_of_what_is_counted(planned, engine, vectors, optimizer):
    p = planned(f"engine={engine}", f"train.optimizer={optimizer}", ranks=1)
    shared, mine, up, sums = 4 * (SIZE + 3 * HEAD), 4 * SIZE, 4 * SIZE, p["bytes_per_round"]["reduce"]
    samples, training = 1797 * (4 * 64 + 8), vectors * 4 * SIZE
    server = shared + 2 * sums + p["bytes_per_round"]["gather"]
    assert p["server_memory_mib"] * MIB == pytest.approx(
        server + 2 * shared + samples + 20 * (mine + up) + training + sums)


def test_memory_of_a_worker(planned):
    """Half of the clients take part; engine loop has four vectors; a worker holds a sum, but no books."""
    p = planned("engine=loop", "train.participation=.25", "server.hosts_clients=false", ranks=3)
    shared, row = 4 * (SIZE + 3 * HEAD), 4 * SIZE
    for rank in p["per_rank"][1:]:
        hosted = rank["clients"]
        # All five participants may be on this rank.
        assert hosted > 5
        federation = Federation(p["federation"])
        samples = int(federation.counts[rank["hosts"]].sum()) * (4 * 64 + 8)
        assert rank["memory_mib"] * MIB == pytest.approx(
            2 * shared + samples + hosted * row + 5 * row + 4 * row + p["bytes_per_round"]["reduce"])
        assert rank["samples"] * (4 * 64 + 8) == samples
    server = p["per_rank"][0]["memory_mib"] * MIB
    assert server == pytest.approx(3 * shared + 2 * p["bytes_per_round"]["reduce"] + p["bytes_per_round"]["gather"])


@pytest.mark.parametrize("settings, shared, kept, sent, received", [
    ("name: fedfomo, M: 2", 400, 2 * SIZE, 3, 2 * SIZE), ("name: fedfomo, M: 5", 400, 2 * SIZE, 6, 5 * SIZE),
    ("name: fedamp", 0, SIZE, 0, SIZE)])
def test_messages_wait_in_the_memory_of_a_worker(planned, settings, shared, kept, sent, received):
    """A client of FedFomo is sent M models and tells M + 1 weights; one of FedAMP is sent one, and tells nothing."""
    p = planned("engine=loop", f"method={{{settings}}}", "server.hosts_clients=false", ranks=3)
    for rank in p["per_rank"][1:]:
        numbers = 2 * shared + rank["clients"] * (kept + sent + received) + 4 * SIZE
        assert rank["memory_mib"] * MIB == pytest.approx(
            rank["samples"] * (4 * 64 + 8) + 4 * numbers + p["bytes_per_round"]["reduce"])


def test_values_of_the_configuration(planned):
    p = planned()
    assert (p["method"], p["model"], p["data"], p["clients"], p["ranks"]) == ("FedMHC", "mlp", "digits", 20, 3)
    assert p["settings"].startswith("M=4 lam=0.1 ") and p["model_settings"] == "hidden=64" and p["rounds"] == 40
    assert sum(p["samples"].values()) == 1797 and p["samples"]["validation"] == 0 and p["batch"] == 10
    assert list(p["samples"]) == ["train", "validation", "test"] and p["samples"]["train"] > p["samples"]["test"]
    sizes = Federation(p["federation"]).sizes
    assert p["train_samples"] == [min(sizes), max(sizes)] and p["samples"]["train"] == sum(sizes)
    assert p["mib_up"] * MIB == 4 * SIZE and p["mib_down"] * MIB == 4 * (SIZE + 3 * HEAD)
    assert (p["device"], p["threads"], p["movable"], p["reduce"]) == ("auto", 1, False, "exact")
    assert p["server_memory_mib"] == p["per_rank"][0]["memory_mib"]


def test_the_samples_that_a_client_is_evaluated_on(planned):
    p = planned("data.split=[0.5, 0.3, 0.2]")
    _, validation, test = Federation(p["federation"]).counts.T.tolist()
    assert p["evaluation"]["parts"] == ["test", "validation"]
    assert p["evaluation"]["samples_per_client"] == {"test": [min(test), max(test)],
                                                     "validation": [min(validation), max(validation)]}


@pytest.mark.parametrize("asked, chosen, words", [
    ("auto", "vmap", "auto (vmap on a CPU), device auto, 1 thread a rank"), ("loop", "loop", "loop, device auto")])
def test_the_engine_is_the_one_of_a_run(planned, asked, chosen, words):
    p = planned(f"engine={asked}")
    assert (p["engine"], p["engine_on_cpu"]) == (asked, chosen)
    assert words in format_plan(p)


def test_samples_and_states_stay_within_the_bound(planned):
    # In GiB; this is 1/4 MiB.
    bound = 2**-12
    free, bounded = (planned("engine=loop", more, ranks=1) for more in ("seed=0", f"state.memory={bound}"))
    saved = 1797 * (4 * 64 + 8) + 20 * 4 * SIZE - 2 * bound * 2**30
    assert free["server_memory_mib"] - bounded["server_memory_mib"] == pytest.approx(saved / MIB)


def test_a_checkpoint_beside_training_lies_in_rank_0s_memory(planned):
    """It holds the server's state and all rows, of which at most state.memory wait to be written."""
    shared, rows, on = 4 * (SIZE + 3 * HEAD), 20 * 4 * SIZE, "checkpoint.asynchronous=true"
    for bound, waiting in ((8, rows), (2**-13, 2**17)):
        waits, trains_on = (planned("engine=loop", f"state.memory={bound}", *more) for more in ((), (on,)))
        assert (trains_on["server_memory_mib"] - waits["server_memory_mib"]) * MIB == pytest.approx(shared + waiting)
        assert trains_on["per_rank"][1:] == waits["per_rank"][1:]


def test_clients_that_keep_nothing_may_train_on_any_rank(planned):
    stays, moves = planned(), planned("method=fedavg")
    assert not stays["movable"] and moves["movable"]
    assert "whichever rank has time" in " ".join(format_plan(moves).split())
    assert all(r["memory_mib"] * MIB > 1797 * (4 * 64 + 8) for r in moves["per_rank"][1:])


def test_partial_participation_and_a_small_engine_need_less(planned):
    full = planned("engine=vmap", ranks=1)["server_memory_mib"]
    assert planned("engine=loop", ranks=1)["server_memory_mib"] < full
    assert planned("engine=vmap", "train.participation=0.1", ranks=1)["server_memory_mib"] < full


def test_a_run_moves_and_writes_what_was_planned(planned, cache, tmp_path):
    p, out = planned(), tmp_path / "run"
    job = forked.command(3, "run", TWENTY, f"data.cache={cache}", "rounds=2", "--out", out)
    assert job.returncode == 0, job.stdout + job.stderr
    line, moved = json.loads((out / "metrics.jsonl").read_text().splitlines()[1]), p["bytes_per_round"]
    # Bytes of small orders that the plan does not count.
    books = 1000
    assert line["bytes_sent_by_server"] == pytest.approx(2 * moved["broadcast"], abs=books)
    assert line["bytes_received_by_server"] == pytest.approx(
        moved["reduce"] + moved["gather"] + 20 * 3 * (1 + len(CLIENT_MEASURES)) * 8, abs=books
    )  # and how all were evaluated
    assert line["mib_per_client_round"] == p["mib_per_client_round"]
    written = (out / "checkpoints" / "round-000002.h5").stat().st_size
    # The tolerance is for the books in the checkpoint.
    assert written == pytest.approx(p["checkpoint"]["mib"] * MIB, abs=20_000)


def test_float32_sums_are_half_the_bytes(planned):
    exact, half = planned()["bytes_per_round"], planned("server.reduce=float32")["bytes_per_round"]
    assert exact["reduce"] == 8 * (SIZE - HEAD) == 2 * half["reduce"]
    assert exact["gather"] == half["gather"] == 20 * HEAD * 4


@pytest.mark.parametrize("method", ["fedavg", "tests.server.test_state_check:LateLog"])
def test_medians_are_planned_with_whole_models(planned, method):
    """A method of one's own is rehearsed on them, too."""
    mean, p = planned(f"method={method}"), planned(f"method={method}", "server.aggregation=median")
    assert p["bytes_per_round"]["broadcast"] == mean["bytes_per_round"]["broadcast"]
    assert p["bytes_per_round"]["exchange"] == 20 * SIZE * 4 and not mean["bytes_per_round"]["exchange"]
    assert "MiB of rows between the ranks, for medians or trimmed means; back" in " ".join(format_plan(p).split())


def test_rows_of_the_server_s_own_for_single_clients_are_counted(planned):
    assert planned()["bytes_per_round"]["deliver"] == 0
    p = planned("method=tests.server.test_state_check:LateMessages")
    assert p["bytes_per_round"]["deliver"] == 20 * SIZE * 4
    assert "by broadcast, and 0.367 MiB in all to single clients; back" in " ".join(format_plan(p).split())


def test_a_server_that_cannot_be_rehearsed_leaves_the_rest_of_the_plan(planned, monkeypatch):
    from fedmpi.methods.fedavg import FedAvg
    monkeypatch.setattr(FedAvg, "server", lambda self, shared, up, who: 1 / 0)
    p = planned("method=fedavg")
    moved = p["bytes_per_round"]
    assert moved["failure"] == "ZeroDivisionError: division by zero" and moved["reduce"] is moved["gather"] is None
    assert "not known, the server cannot be rehearsed (ZeroDivisionError" in " ".join(format_plan(p).split())


def test_nothing_is_trained_and_nothing_but_the_federation_is_written(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned(f"data.cache={tmp_path / 'cache'}")
    assert [f.parent.name for f in tmp_path.rglob("*") if f.is_file()] == ["cache"]


@pytest.mark.parametrize("ranks", [1, 3, 16, 17, 64])
@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_reads_at_any_size(planned, monkeypatch, ranks, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    p = planned(ranks=ranks)
    text = format_plan(p)
    assert max(len(line) for line in text.splitlines() if p["federation"] not in line) <= columns
    assert len(text.splitlines()) < 45
    assert "FedMHC" in text and "4,810 parameters" in text and "0.044 MiB" in text
    assert ("median" in text) == (ranks > 16)
    assert ("idle" in text) == (ranks > 21)


def test_what_is_wrong_is_bad_input(planned, tmp_path):
    with pytest.raises(BadInput, match="command line: method.lamda is not a setting of FedMHC"):
        planned("method.lamda=1")
    with pytest.raises(BadInput, match="cannot read the configuration"):
        planned(config=tmp_path / "none.yaml")


def test_more_ranks_than_any_cluster_has_are_refused(bench):
    from typer.testing import CliRunner

    from fedmpi.cli import app
    done = CliRunner().invoke(app, ["plan", bench.config, "--ranks", "900000000000"])
    assert done.exit_code == 2 and "Invalid value for '--ranks'" in done.output
