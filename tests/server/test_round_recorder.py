"""The numbers in the books against those that are worked out here: from a table in which no two numbers are equal, and
from the models in a run's checkpoints, measured by NumPy and scikit-learn."""
from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score, log_loss

from fedmpi.data.federation import Federation, prepare_federation

pytestmark = pytest.mark.slow("runs whose books are worked out again")

NAN = float("nan")


def line_of(run) -> dict:
    return json.loads((run.recorder.folder.path / "metrics.jsonl").read_text().splitlines()[-1])


def columns_of(run) -> dict[str, np.ndarray]:
    run.recorder.folder.save_history()
    with h5py.File(run.recorder.folder.path / "history.h5") as file:
        return {name: column[-1] for name, column in file.items()}


def table(n: int = 12) -> np.ndarray:
    """Return a table as the ranks fill it: before, after and without what `personal` trains; no two numbers are equal.

    Client 2 was not measured after training, client 3 not without `personal`, and client 4 has no test samples."""
    tested = np.arange(30, 30 + n) * np.array([[1], [1], [1]])
    correct = np.array([np.arange(n) + 3, np.arange(n)[::-1] + 9, 2 * np.arange(n) + 1])
    loss = np.array([np.arange(n) ** 2 + 1., np.arange(n) + 50., 7. * np.arange(n) + 100])
    f1 = np.array([.01 * np.arange(n), .3 + .02 * np.arange(n), .6 + .03 * np.arange(n)])
    rows = np.stack([np.ones((3, n)), correct, tested, loss, f1], -1).transpose(1, 0, 2)
    rows[2, 1], rows[3, 2] = 0, 0
    rows[4, 0] = 1, 0, 0, 0, NAN
    return rows


# All 12 clients except 5.
HONEST = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
# The honest clients with test samples.
BEFORE = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
AFTER = [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]
WITHOUT = [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]


def summed_up(rows) -> dict:
    """Return the summary of measures (n, 4) by its definition."""
    correct, tested, loss, f1 = rows.T
    accuracy = correct / tested
    return {"accuracy_mean": accuracy.sum() / len(rows), "accuracy_weighted": correct.sum() / tested.sum(),
            "accuracy_std": np.sqrt(((accuracy - accuracy.mean()) ** 2).mean()),
            "accuracy_worst_decile": accuracy.min(),      # of ten clients
            "accuracy_variance": ((accuracy - accuracy.mean()) ** 2).mean(),
            "accuracy_gini": np.abs(accuracy[:, None] - accuracy).mean() / (2 * accuracy.mean()),
            "f1_mean": f1.sum() / len(rows), "loss": (loss / tested).sum() / len(rows)}


def test_every_number_of_a_round_stands_in_its_place(ready):
    run, rows = ready("data.clients=12", "attack={kind: noise, share: .1}"), table()
    run.recorder.__dict__["honest"] = np.isin(np.arange(12), HONEST)
    run.state.round, run.state.seconds = 2, 8.
    run.state.clusters.last[:] = [3, 1, -1, 0, 2, 5, 4, 7, 6, 9, 8, 11]
    run.state.clusters.each["lam"] = np.arange(12) / 7
    run.recorder.columns = {"T_comp": np.arange(12) / 3}
    run.recorder.record_round(rows, {"participants": 5, "seconds": 8.})
    line, columns = line_of(run), columns_of(run)
    expected = {"round": 2, "participants": 5, "seconds": 8., "accuracy_mean_attackers": 8 / 35}
    for suffix, part, who in (("", 0, BEFORE), ("_after", 1, AFTER), ("_unadapted", 2, WITHOUT)):
        expected |= {f"{key}{suffix}": value for key, value in summed_up(rows[who, part, 1:]).items()}
    assert line == pytest.approx(expected) and run.state.metrics == [line]
    accuracy = rows[..., 1] / np.where(rows[..., 2], rows[..., 2], NAN)
    assert columns.keys() == {"round", "accuracy", "f1", "loss", "accuracy_after", "accuracy_unadapted", "cluster",
                              "lam", "T_comp"}
    for name, values in {"round": 2, "accuracy": accuracy[:, 0], "accuracy_after": accuracy[:, 1],
                         "accuracy_unadapted": accuracy[:, 2], "f1": rows[:, 0, 4],
                         "loss": rows[:, 0, 3] / np.where(rows[:, 0, 2], rows[:, 0, 2], NAN),
                         "cluster": [3, 1, -1, 0, 2, 5, 4, 7, 6, 9, 8, 11], "lam": np.arange(12) / 7,
                         "T_comp": np.arange(12) / 3}.items():
        np.testing.assert_allclose(columns[name], values, err_msg=name)
    # Columns belong to one round.
    assert run.recorder.columns == {}


def test_what_nobody_was_evaluated_by_is_left_out(ready):
    """There are no keys of measures that a method does not have, and none of attackers if there are none."""
    run, rows = ready("data.clients=12"), table()
    rows[:, 1:] = 0
    run.state.round = 1
    run.recorder.record_round(rows, {})
    assert line_of(run).keys() == {"round", "accuracy_mean", "accuracy_weighted", "accuracy_std",
                                   "accuracy_worst_decile", "accuracy_variance", "accuracy_gini", "f1_mean", "loss"}
    assert np.isnan(columns_of(run)["accuracy_after"]).all() and np.isnan(columns_of(run)["accuracy_unadapted"]).all()


WORDS = ("data={clients: 16, partition: {name: dirichlet, beta: .5}, split: [.5, .3, .2], fraction: .5}",
         "train={batch: 10000, epochs: 6, steps: null, lr: .9, lr_decay: .9, participation: .4}", "model.hidden=8",
         "rounds=3", "evaluate.after_training=all", "checkpoint.every=1", "attack={kind: noise, share: .2, scale: .05}",
         "engine=loop")
# The attackers of 16 clients with seed 2, see test_streams.py.
ATTACKERS = [4, 6, 13]
CUT = np.cumsum([8 * 64, 8, 10 * 8])


def logits(w, x):
    """The network of these runs: 64 inputs, 8 hidden, 10 classes."""
    W1, b1, W2, b2 = w[:CUT[0]], w[CUT[0]:CUT[1]], w[CUT[1]:CUT[2]], w[CUT[2]:]
    return F.relu(x @ W1.view(8, 64).T + b1) @ W2.view(10, 8).T + b2


def trained(w, x, y, lr, steps):
    """Return w trained on full batches, so no draw has an effect."""
    for _ in range(steps):
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(logits(w, x), y), w)
        w = w.detach() - lr * g
    return w


def measures(w, x, y) -> list[float]:
    scores = logits(w, x).double()
    found, loss = scores.argmax(1).numpy(), log_loss(y, scores.softmax(1).numpy(), labels=range(10))
    return [accuracy_score(y, found), len(y), loss, f1_score(y, found, average="macro", zero_division=0)]


def assert_summary(line, suffix, rows):
    """Compare a line with measures (n, 4) of the honest clients: accuracy, samples, loss, F1."""
    accuracy, n, loss, f1 = np.array(rows)[np.setdiff1d(range(16), ATTACKERS)].T
    expected = {"accuracy_mean": accuracy.mean(), "accuracy_weighted": np.average(accuracy, weights=n),
                "accuracy_std": accuracy.std(), "accuracy_worst_decile": np.sort(accuracy)[:2].mean(),
                "f1_mean": f1.mean(), "loss": loss.mean()}
    assert {key: line[key + suffix] for key in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method, on", [("fedavg", "test"), ("fedavg", "validation"), ("per_fedavg", "test")])
def test_the_books_are_what_the_checkpoints_models_give(bench, method, on):
    name = f"books-{method}-{on}"
    assert bench.lead(name, *WORDS, f"method={method}", f"evaluate.on={on}") == 0
    line = bench.metrics(name)[-1]
    with h5py.File(bench.saved(name)[-1]) as last, h5py.File(bench.saved(name)[-2]) as before:
        w, old = torch.from_numpy(last["shared/w"][:]), torch.from_numpy(before["shared/w"][:])
    with h5py.File(bench.out(name) / "history.h5") as file:
        columns = {key: values[-1] for key, values in file.items()}
    from fedmpi.config.schema import load_config
    config = load_config(bench.config, list(WORDS))
    clients = [Federation(prepare_federation(config.data, config.seed)).client(i) for i in range(16)]
    evaluated, after, unadapted = [], [], []
    for c in clients:
        x, y = torch.from_numpy(c.x_train), torch.from_numpy(c.y_train).long()
        held = (c.x_test, c.y_test) if on == "test" else (c.x_val, c.y_val)
        held = torch.from_numpy(held[0]), held[1]
        # at the rate of the last round
        personal = w if method == "fedavg" else trained(w, x, y, .9 ** 3, 1)
        evaluated.append(measures(personal, *held))
        after.append(measures(trained(old, x, y, .9 ** 3, 6), *held))
        unadapted.append(measures(w, *held))
    assert_summary(line, "", evaluated)
    assert_summary(line, *(("_after", after) if method == "fedavg" else ("_unadapted", unadapted)))
    assert line["accuracy_mean_attackers"] == pytest.approx(np.mean([evaluated[i][0] for i in ATTACKERS]))
    table = np.array([evaluated, after, unadapted])
    for key, values in {"accuracy": table[0, :, 0], "f1": table[0, :, 3], "loss": table[0, :, 2],
                        "accuracy_after": table[1, :, 0] if method == "fedavg" else np.full(16, NAN),
                        "accuracy_unadapted": table[2, :, 0] if method != "fedavg" else np.full(16, NAN),
                        "cluster": np.full(16, -1)}.items():
        np.testing.assert_allclose(columns[key], values, atol=1e-6, err_msg=key)


def test_a_run_that_judges_on_validation_never_looks_at_test_labels(bench, monkeypatch):
    """Wrong test labels change nothing on the validation part, but they do on the test part."""
    words = [*WORDS, "method=fedah", "rounds=2", "train.batch=10", "train.epochs=1"]
    true = Federation.client

    def mistaken(self, i):
        c = true(self, i)
        return c._replace(y_test=9 - c.y_test)
    for labels in ("right", "wrong"):
        if labels == "wrong":
            monkeypatch.setattr(Federation, "client", mistaken)
        for on in ("validation", "test"):
            assert bench.lead(f"{labels}-{on}", *words, f"evaluate.on={on}") == 0

    def books(name):
        return [{k: v for k, v in line.items() if k.startswith(("accuracy", "f1", "loss"))}
                for line in bench.metrics(name)]
    assert books("wrong-validation") == books("right-validation") != books("right-test")
    assert books("wrong-test") != books("right-test")
    assert len({bench.result(f"{labels}-{on}")["digest"] for labels in ("right", "wrong")
                for on in ("validation", "test")}) == 1      # training uses neither part


def test_the_result_sums_the_series_up(ready):
    """The best round is the first of equals and never one without measures; the last ten are ten."""
    run = ready("rounds=13")
    mean = [.5, .7, NAN, .7, .1, .2, .3, .4, .5, .6, .5, .4, .3]
    weighted = [.2, .9, NAN, .1, .1, .1, .1, .1, .1, .1, .1, .1, .8]
    run.state.metrics = [{"round": 2 * t + 1, "accuracy_mean": a, "accuracy_weighted": b, "loss": t}
                         for t, (a, b) in enumerate(zip(mean, weighted, strict=True))]
    run.state.round, run.state.seconds = 25, 12.5
    result = run.recorder.result()
    assert (result["accuracy_best_on_test"], result["best_round"]) == (.7, 3)
    assert result["accuracy_weighted_best_on_test"] == .9 and result["ended"] == "rounds"
    # Nobody has a validation part.
    assert not any("validation" in key for key in result) and "chosen_round" not in result
    assert result["accuracy_last_ten"] == pytest.approx(.4)
    assert (result["rounds"], result["seconds"], result["method"], result["ranks"]) == (25, 12.5, "FedMHC", 1)
    assert (result["round"], result["accuracy_mean"], result["loss"]) == (25, .3, 12)
    assert result["engine"] == run.pool.hosted.engine.name and result["engine_why"] == run.state.engine_why
