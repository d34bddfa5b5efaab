"""The estimated costs of a sweep, before it starts."""
from __future__ import annotations

import dataclasses
import json
import shlex
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.comm.rank_pool import RankPool
from fedmpi.commands.plan_case import prepare_case
from fedmpi.commands.planned_steps import list_planned_rounds
from fedmpi.config import schema
from fedmpi.errors import BadInput
from fedmpi.sweeps import estimate, job
from fedmpi.sweeps.speed_probe import time_rounds
from tests.sweeps import jobs

ROWS = {"FedAvg": "fedavg", "Ditto": "ditto", "IFCA": {"method": {"name": "ifca", "k": 2}}, "Local": "local"}


@pytest.fixture
def runs(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows=ROWS, columns={"one": {}}, published={})
    return job.expand(job.load_job(path), path, tmp_path / "out", None)


def costs(runs, rate=100.):
    cases = [prepare_case(str(run.config), run.overrides) for run in runs]
    return cases[0], dict(zip(ROWS, (estimate.estimate_cost(r, c, rate) for r, c in zip(runs, cases, strict=True)),
                              strict=True))


def test_steps_and_bytes(runs):
    """Two rounds have six clients with three batches each, and are evaluated, by two methods after training, too."""
    case, found = costs(runs)
    evaluated = 2 * case.federation.counts[:, 2].sum() / 3 / 10
    size = 4 * case.method.model.size
    assert found["FedAvg"].steps == pytest.approx(2 * 6 * 3 + 2 * evaluated)
    # Ditto trains two models.
    assert found["Ditto"].steps == pytest.approx(2 * 2 * 6 * 3 + evaluated)
    # IFCA compares the losses of both models, to train and to be evaluated.
    assert found["IFCA"].steps == pytest.approx(
        2 * 6 * 3 + 2 * evaluated + 2 * 2 * 2 * case.federation.sizes.sum() / 3 / 10)
    assert (found["FedAvg"].down, found["FedAvg"].up) == (2 * 6 * size, 2 * 6 * size)
    assert found["IFCA"].down == 2 * 6 * 2 * size and found["Local"].down == found["Local"].up == 0


SIX = {"data": {"name": "arrays", "clients": 6, "partition": "iid", "split": [.5, .2, .3]}, "rounds": 4,
       "train": {"epochs": 2, "steps": None, "batch": 10}, "evaluate": {"after_training": "off"}}


@pytest.fixture
def six(tmp_path, cache):
    """Return a function that gives a run of six clients with 20 training, 8 validation and 12 test samples each, and
    its case."""
    np.savez(tmp_path / "six.npz", x_train=np.zeros((240, 4), np.float32), y_train=np.arange(240) % 3)

    def six(*settings):
        path = jobs.write(tmp_path, cache, rows={"FedAvg": "fedavg"}, columns={"one": {}}, published={},
                          set={**SIX, "data": SIX["data"] | {"file": str(tmp_path / "six.npz")}})
        run, = job.expand(job.load_job(path), path, tmp_path / "out", None)
        run = run._replace(overrides=[*run.overrides, *settings], settings=schema.load_config(
            str(run.config), [*run.overrides, *settings]))
        return run, prepare_case(str(run.config), run.overrides)
    return six


@pytest.mark.parametrize("settings, trained, evaluated, times, clients", [
    ((), 6 * 4, 6 * 20 / 3 / 10, 4, 6),                              # 2 epochs of 2 batches; 120 samples forward
    (("evaluate.every=2",), 6 * 4, 6 * 20 / 3 / 10, 2, 6),
    (("evaluate.every=3",), 6 * 4, 6 * 20 / 3 / 10, 2, 6),           # after rounds 3 and 4
    (("evaluate.every=0",), 6 * 4, 6 * 20 / 3 / 10, 1, 6),           # only after the last of 4 rounds
    (("evaluate.every=0", "evaluate.embeddings=[2]"), 6 * 4, 6 * 20 / 3 / 10, 2, 6),
    (("evaluate.on=validation",), 6 * 4, 6 * 8 / 3 / 10, 4, 6),
    (("train.batch=5",), 6 * 8, 6 * 20 / 3 / 5, 4, 6),
    (("train.epochs=3",), 6 * 6, 6 * 20 / 3 / 10, 4, 6),
    (("train.steps=7",), 6 * 7, 6 * 20 / 3 / 10, 4, 6),
    (("train.participation=.5",), 3 * 4, 6 * 20 / 3 / 10, 4, 3),     # all are evaluated
    (("train.participation=[.5, 1]",), 4.5 * 4, 6 * 20 / 3 / 10, 4, 4.5),
    (("data.split=[.8, .2]",), 6 * 2 * 3.2, 6 * 8 / 3 / 10, 4, 6)])   # 32 samples: 3.2 batches an epoch
def test_a_round_by_hand(six, settings, trained, evaluated, times, clients):
    run, case = six(*settings)
    part, = list_planned_rounds(case)
    assert estimate.count_steps_of_round(case, part) == pytest.approx(trained)
    assert estimate.count_steps_of_evaluation(case, part) == pytest.approx(evaluated)
    found = estimate.estimate_cost(run, case, 100.)
    # Bytes of an MLP with 4 features, 8 hidden units and 3 classes.
    size = 4 * (4 * 8 + 8 + 8 * 3 + 3)
    assert found == pytest.approx((4, 4 * trained + times * evaluated, 4 * clients * size, 4 * clients * size, 100.))
    run.folder.mkdir(parents=True)
    lines = "".join(json.dumps({"round": t, "accuracy_mean": .1}) + "\n" for t in (1, 3))
    (run.folder / "metrics.jsonl").write_text(lines)
    keep_checkpoint(run.folder, 3)
    # One round is left, and the last one is evaluated.
    assert estimate.estimate_cost(run, case, 100.).steps == pytest.approx(trained + evaluated)
    (run.folder / "metrics.jsonl").write_text(json.dumps({"round": 9, "accuracy_mean": .1}) + "\n")
    keep_checkpoint(run.folder, 9)
    assert estimate.estimate_cost(run, case, 100.)[:4] == (0, 0, 0, 0)


@pytest.mark.parametrize("method, after, clients, trained", [
    ("fedavg", "'off'", 0, 0), ("fedavg", "participants", 3, 0), ("fedavg", "all", 6, 3), ("local", "all", 0, 0)])
def test_what_is_measured_right_after_training_counts(six, method, after, clients, trained):
    """Each of the clients passes its 12 test samples; those of them that do not take part train four batches first."""
    _, case = six(f"method={method}", "train.participation=.5", f"evaluate.after_training={after}")
    part, = list_planned_rounds(case)
    passed = 6 * 20 + clients * 12
    assert estimate.count_steps_of_evaluation(case, part) == pytest.approx(passed / 3 / 10 + trained * 4)


def test_rounds_of_other_work_count_as_many_as_there_are(six):
    """IFCA-CAM trains one model in each of 3 rounds of warm-up, and two in the other round."""
    run, case = six("method={name: ifca_cam, k: 2, warm_up: 3}", "evaluate.every=0")
    warm, both = (estimate.count_steps_of_round(case, part) for part in list_planned_rounds(case))
    evaluated = estimate.count_steps_of_evaluation(case, list_planned_rounds(case)[-1])
    assert estimate.estimate_cost(run, case, 100.).steps == pytest.approx(3 * warm + both + evaluated)
    assert both > 1.9 * warm and evaluated == pytest.approx(6 * (20 + 3 * 20) / 3 / 10)
    write_rounds(run, 2)
    assert estimate.estimate_cost(run, case, 100.).steps == pytest.approx(warm + both + evaluated)


def test_what_clients_do_that_do_not_take_part_counts(six):
    """Each of three clients mixes: an epoch of two batches, and a pass over 20 samples before."""
    made = []
    for mix in ("true", "false"):
        _, case = six(f"method={{name: fedah, mix_everyone: {mix}}}", "train.participation=.5")
        part, = list_planned_rounds(case)
        made.append(estimate.count_steps_of_round(case, part))
    assert made[0] - made[1] == pytest.approx(3 * (2 + 20 / 3 / 10))


@pytest.mark.parametrize("every, times", [(1, 4), (3, 2), (0, 1)])
def test_training_to_be_evaluated_counts(six, every, times):
    """Each time all six clients of FedBABU make seven epochs of two steps, and then pass 20 samples forward."""
    run, case = six("method={name: fedbabu, ft: 7}", f"evaluate.every={every}", "train.participation=.5")
    assert estimate.estimate_cost(run, case, 100.).steps == pytest.approx(4 * 3 * 4 + times * 6 * (14 + 20 / 3 / 10))


@pytest.mark.parametrize("method, clients, trained", [
    ("{name: fesem_cam, k: 2, warm: local, warm_up: 5, warm_steps: 9}", 6, 6 * 45),
    ("{name: fedgroup, K: 2, first: 2}", 4, 4 * 4)])
def test_the_round_before_the_first_counts_until_a_round_is_done(six, method, clients, trained):
    run, case = six(f"method={method}")
    found, (warm_up, *_) = estimate.estimate_cost(run, case, 100.), list_planned_rounds(case)
    assert estimate.count_steps_of_round(case, warm_up) == pytest.approx(trained)
    down, up = case.method.traffic(case.shared, case.up)
    assert found[:4] == pytest.approx((4, found.steps, (4 * 6 + clients) * down, (4 * 6 + clients) * up))
    write_rounds(run, 1)
    later = estimate.estimate_cost(run, case, 100.)
    assert found.steps - trained == pytest.approx(later.steps * 4 / 3) and later.up == 3 * 6 * up


def write_rounds(run, rounds: int):
    """Write the books of a run that has done so many rounds."""
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text(json.dumps({"round": rounds, "accuracy_mean": .1}) + "\n")
    keep_checkpoint(run.folder, rounds)


def keep_checkpoint(folder, round: int):
    """Leave a file in the place of a checkpoint, of which only the name counts here."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"round-{round:06d}.h5").touch()


def test_the_rate_is_that_of_the_second_of_two_rounds(six, monkeypatch):
    made = []

    def time_rounds(federation, settings, participants, rounds):
        train = settings["train"]
        made.append((federation.clients, settings["method"], train["steps"], train["batch"], participants, rounds))
        return [9., 2.]
    monkeypatch.setattr(estimate, "time_rounds", time_rounds)
    _, case = six("method=ditto")
    # Six clients take 10 steps each in 2 s.
    assert estimate.measure_rate(case) == 6 * 10 / 2.
    assert made == [(6, {"name": "fedavg"}, 10, 10, 6, 2)]
    case = dataclasses.replace(case, federation=SimpleNamespace(clients=32))
    assert estimate.measure_rate(case) == 8 * 10 / 2. and made[-1][-2:] == (8, 2)


def test_the_probe_trains_the_participants_of_each_round(six, monkeypatch):
    trained = []
    monkeypatch.setattr(RankPool, "train", watched(
        RankPool.train, lambda _, t, who, evaluates, up: trained.append((t, len(who), evaluates, up.w.clone()))))
    _, case = six()
    seconds = time_rounds(case.federation, schema.to_plain(case.config), participants=4, rounds=3)
    assert len(seconds) == 3 and min(seconds) > 0
    assert [words[:3] for words in trained] == [(0, 4, False), (1, 4, False), (2, 4, False)]
    # The server's step changes the model.
    assert not trained[0][3].equal(trained[1][3]) and not trained[1][3].equal(trained[2][3])


def watched(function, see):
    """Return a function that first passes its arguments to `see`."""
    def call(*words):
        see(*words)
        return function(*words)
    return call


def test_each_network_is_measured_once(tmp_path, cache, monkeypatch, capsys):
    """Rows with the same network and training share a rate; a column with another network has its own."""
    path = jobs.write(tmp_path, cache, rows={"A": "fedavg", "B": "local"}, published={}, columns={
        "one": {}, "wide": {"model": {"name": "mlp", "hidden": 16}}, "long": {"train.steps": 9},
        "more rounds": {"rounds": 7}, "bf16": {"precision": "bf16"}})
    runs = job.expand(job.load_job(path), path, tmp_path / "out", None)
    rates = iter((10., 20., 30., 40.))
    monkeypatch.setattr(estimate, "measure_rate", lambda case: next(rates))
    monkeypatch.setenv("COLUMNS", "200")
    estimate.show_costs(runs, 1, 1, None)
    lines = capsys.readouterr().out.splitlines()
    assert [shlex.split(line) for line in lines[:10]] == [["fedmpi", *run.words()] for run in runs]
    assert [line.split()[-3] for line in lines[13:23]] == ["10", "10", "20", "20", "30", "30", "10", "10", "40", "40"]
    assert lines[23].endswith("with 1 at a time on 1 worker each")
    # Nothing is measured; one rank of four is the server.
    estimate.show_costs(runs, 2, 4, 5.)
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[-3] for line in lines[13:23]} == {"5"}
    assert lines[23].endswith("with 2 at a time on 3 workers each")
    for rate in (0, -1.):
        with pytest.raises(BadInput, match=f"--rate {rate}: should be more than 0 steps a second"):
            estimate.show_costs(runs, 1, 1, rate)


COSTS = [estimate.Cost(3, 7200., 3 * 2**20, 2**19, 100.), estimate.Cost(0, 1234.4, 2**30, 0., 2.)]


def test_the_table_s_figures(monkeypatch):
    """7,200 steps at 100 a second take 72 s, 1,234.4 at 2 a second 617.2 s, together .19 hours of one core."""
    monkeypatch.setenv("COLUMNS", "120")
    runs = [SimpleNamespace(name="first"), SimpleNamespace(name="second")]

    def shown(workers, at_once, cores):
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        return estimate.format_costs(runs, COSTS, workers, at_once).splitlines()
    lines = shown(1, 1, 8)
    assert [line.split() for line in lines[:4:2]] == [
        ["run", "rounds", "steps", "MiB", "down", "MiB", "up", "steps/s", "time"],
        ["first", "3", "7,200", "3.0", "0.5", "100", "72", "s"]]
    assert lines[3].split() == ["second", "0", "1,234", "1,024.0", "0.0", "2", "10", "min"]
    assert lines[4] == ("in all 8,434 steps, 1,027.0 MiB down and 0.5 MiB up; 0.19 hours of one core, about 11 min "
                        "with 1 at a time on 1 worker each")
    assert shown(2, 1, 8)[2].split()[-2:] == ["36", "s"]
    # They are 689.2 s of one core; as many processes work as cores, workers and runs allow.
    for workers, at_once, cores, wall in ((2, 2, 8, "3 min"), (2, 2, 2, "6 min"), (1, 9, 8, "6 min"),
                                          (3, 2, None, "11 min"), (8, 2, 99, "43 s")):
        workers_each = f"{at_once} at a time on {workers} worker{'s' * (workers > 1)} each"
        assert shown(workers, at_once, cores)[4].endswith(f"about {wall} with {workers_each}")
    assert lines[5].startswith("(steps: batches that the clients train on, also before the first round and to be ")


def test_only_what_is_left_is_counted(runs, monkeypatch):
    _, before = costs(runs)
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / "metrics.jsonl").write_text(json.dumps({"round": 1, "accuracy_mean": .1}) + "\n")
    # Without a checkpoint the round is done again.
    assert costs(runs)[1]["FedAvg"] == before["FedAvg"]
    keep_checkpoint(runs[0].folder, 1)
    _, after = costs(runs)
    assert after["FedAvg"].rounds == 1 and after["FedAvg"].steps == pytest.approx(before["FedAvg"].steps / 2)
    assert after["Local"] == before["Local"]
    # The checkpoints may not be looked at, so nothing is known of them.
    with monkeypatch.context() as blind:
        blind.setattr("fedmpi.storage.listing.os.listdir", Mock(side_effect=PermissionError))
        assert costs(runs)[1]["FedAvg"] == before["FedAvg"]
    # It ended early.
    (runs[0].folder / "result.json").write_text(json.dumps(
        {"rounds": 1, "ended": "stop", "digest": "0" * 64, "accuracy_mean": .1}))
    assert costs(runs)[1]["FedAvg"][:4] == (0, 0, 0, 0)


def test_the_table_adds_up(runs):
    _, found = costs(runs)
    text = estimate.format_costs(runs, list(found.values()), workers=1, at_once=1)
    total = sum(cost.steps for cost in found.values())
    assert f"in all {total:,.0f} steps" in text and f"{total / 100 / 3600:.2f} hours of one core" in text
    halved = estimate.format_costs(runs, list(found.values()), workers=2, at_once=1)
    assert halved.splitlines()[2].split()[-2] < text.splitlines()[2].split()[-2]


def test_the_command(tmp_path, cache):
    path = jobs.write(tmp_path, cache, rows={"Local": "local"}, columns={"one": {}}, published={})
    words = ["sweep", path, "--out", str(tmp_path / "out"), "--dry-run"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("fedmpi run ") and lines[2].split() == [
        "run", "rounds", "steps", "MiB", "down", "MiB", "up", "steps/s", "time"]
    # This rate is measured here.
    assert float(lines[4].split()[-3].replace(",", "")) > 0 and not (tmp_path / "out").exists()
    assert CliRunner().invoke(app, [*words, "--rate", "7"]).output.splitlines()[4].split()[-3] == "7"
    refused = CliRunner().invoke(app, [*words, "--rate", "0"])
    assert refused.exit_code == 2 and "--rate 0.0: should be more than 0" in refused.output
