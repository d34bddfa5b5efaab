"""Targets in place of classes (`data.task = regression`), from the data to every place that shows errors."""
from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, mean_squared_error

import fedmpi
from fedmpi.assembly import build_method
from fedmpi.commands.compare import compare_runs
from fedmpi.commands.status import read_status, show_status
from fedmpi.config.schema import Data, resolve
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines.batch_plan import get_local_training
from fedmpi.engines.dry_run import count_round_work
from fedmpi.engines.engine_choice import find_vmap_obstacle
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg, Up
from fedmpi.models.build import make_blank_samples
from fedmpi.models.losses import attach_logits, compute_loss
from fedmpi.report import results, significance, tables
from fedmpi.report.figures.accuracy import draw_accuracy_by_client, draw_accuracy_by_round
from fedmpi.server.early_stopping import explain_early_stop, find_best_validation_line, list_series
from fedmpi.storage.history import read_history
from fedmpi.storage.run_status import read_outcome
from tests import forked
from tests.own_code.modules import write
from tests.runs import Bench, run_alone

pytestmark = pytest.mark.slow("runs of all kinds of methods on targets")

ROUNDS = 4


class Regression(Bench):
    """Runs on the diabetes data of scikit-learn, 442 patients with 10 features, on 9 clients, 2 of them new."""

    def __post_init__(self):
        x, y = load_diabetes(return_X_y=True)
        self.x, self.y = (x / x.std(0)).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
        np.savez(self.folder / "diabetes.npz", x_train=self.x, y_train=self.y)
        data = {"name": "arrays", "file": str(self.folder / "diabetes.npz"), "task": "regression", "clients": 9,
                "new_clients": 2, "split": [.6, .2, .2], "partition": {"name": "dirichlet", "beta": .5},
                "cache": str(self.cache)}
        self.values = {"rounds": ROUNDS, "seed": 3, "data": data, "model": {"name": "mlp", "hidden": 8},
                       "engine": "loop", "method": "fedavg", "train": {"lr": .02, "batch": 10, "participation": .7},
                       "checkpoint": {"every": 1, "keep": 9}}
        self.config = self.write("c.yaml", self.values)

    def federation(self) -> Federation:
        config = resolve(self.values)
        return Federation(prepare_federation(config.data, config.seed))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache):
    bench = Regression(tmp_path_factory.mktemp("regression"), cache)
    assert bench.lead("fedavg") == bench.lead("local", "method=local") == 0
    return bench


def test_the_loss_is_the_squared_error():
    outputs, y, added = torch.tensor([[1.], [2.], [-3.]]), torch.tensor([.5, 2., 1.]), torch.tensor([[.5], [1.], [2.]])
    assert compute_loss(outputs, y, "none").tolist() == [.25, 0., 16.]
    assert compute_loss(outputs, y).item() == pytest.approx(16.25 / 3)
    both = attach_logits(y, added)
    assert compute_loss(outputs, both, "none").tolist() == [1., 1., 4.]
    assert compute_loss(outputs, attach_logits(both, added), "none").tolist() == [2.25, 4., 0.]
    # labels of a single class have no loss, whatever is added
    assert compute_loss(outputs, attach_logits(torch.zeros(3, dtype=torch.int64), added), "none").tolist() == [0.] * 3


def test_samples_are_divided_by_bins_of_targets(runs):
    found = runs.federation()
    assert (found.classes, found.task.name, found.label_counts.shape) == (1, "regression", (7, 3, 10))
    edges = np.quantile(runs.y, np.arange(.1, .95, .1))
    for i in range(7):
        samples = found.client(i)
        assert samples.y_train.dtype == np.float32
        bins = np.array([(edges <= value).sum() for value in samples.y_train])
        assert found.label_counts[i, 0].tolist() == np.bincount(bins, minlength=10).tolist()
    # Dirichlet .5 is skewed: some client lacks some bin
    assert (found.label_counts.sum(1) == 0).any()
    every = np.concatenate([part for i in range(9) for part in found.client(i)[1::2]])
    assert sorted(every.tolist()) == sorted(runs.y.tolist())


def test_errors_are_scikit_learns(runs):
    """The global model is measured on the test samples of every client and of the new ones."""
    found, model = runs.federation(), fedmpi.load_result(runs.out("fedavg")).model()
    clients = [found.client(i) for i in range(9)]
    predicted = [(s.y_test, model(torch.from_numpy(s.x_test)).detach().numpy()[:, 0]) for s in clients]
    squared = [mean_squared_error(*pair) for pair in predicted]
    absolute = [mean_absolute_error(*pair) for pair in predicted]
    result, history = runs.result("fedavg"), read_history(runs.out("fedavg") / "history.h5")
    np.testing.assert_allclose(history["mse"][-1], squared[:7], rtol=1e-5)
    np.testing.assert_allclose(history["mae"][-1], absolute[:7], rtol=1e-5)
    assert result["mse_mean"] == pytest.approx(np.mean(squared[:7]), rel=1e-5)
    assert result["mae_mean"] == pytest.approx(np.mean(absolute[:7]), rel=1e-5)
    assert result["mse_worst_decile"] == pytest.approx(max(squared[:7]), rel=1e-5)
    assert result["loss"] == result["mse_mean"] and "accuracy_mean" not in result
    assert result["mse_new_clients"] == pytest.approx(np.mean(squared[7:]), rel=1e-5)
    assert result["mae_new_clients"] == pytest.approx(np.mean(absolute[7:]), rel=1e-5)
    sizes = [len(s.y_test) for s in clients[:7]]
    assert result["mse_weighted"] == pytest.approx(np.average(squared[:7], weights=sizes), rel=1e-5)


def test_training_lowers_them(runs):
    first, *_, last = runs.metrics("fedavg")
    assert last["mse_mean"] < first["mse_mean"] < 2
    # a constant prediction, the mean, has an error of 1 over all samples
    assert runs.metrics("local")[-1]["mse_mean"] < 1


def test_engines_agree_and_ranks_have_the_same_bits(runs):
    assert runs.lead("vmap", "engine=vmap") == 0
    for line, other in zip(runs.metrics("fedavg"), runs.metrics("vmap"), strict=True):
        assert line["mse_mean"] == pytest.approx(other["mse_mean"], rel=1e-5)
    assert runs.run(3, "ranks").returncode == 0
    assert runs.result("ranks")["digest"] == runs.result("fedavg")["digest"]


def test_resumed_is_straight_through(runs):
    assert runs.lead("resumed", "rounds=2") == 0
    assert runs.lead("resumed", resume="auto") == 0
    assert runs.result("resumed")["digest"] == runs.result("fedavg")["digest"]
    # the best of the checkpoints is that of the smallest validation error
    assert runs.lead("best", "rounds=4", "checkpoint.keep=1", "method=local", "train.lr=.3") == 0
    best = min(runs.metrics("best"), key=lambda line: line["mse_mean_validation"])["round"]
    assert {path.stem for path in runs.saved("best")} == {f"round-{best:06d}", "round-000004"}


@pytest.mark.parametrize("name, words", [
    ("fedmhc", "method={name: fedmhc, M: 2}"), ("fedah", "method=fedah"), ("ifca_cam", "method={name: ifca_cam, k: 2}"),
    ("fedala", "method=fedala"), ("fedcps", "method={name: fedcps, layers: 1}"), ("fedfomo", "method=fedfomo")])
def test_methods_learn_targets(runs, name, words):
    """The methods use mixed heads, added outputs, losses of their own, or variances of gradients."""
    assert runs.lead(name, words, "data.new_clients=0") == 0
    assert runs.lead(f"{name}-vmap", words, "data.new_clients=0", "engine=vmap") == 0
    first, *_, last = runs.metrics(name)
    assert last["mse_mean"] < first["mse_mean"] or last["mse_mean"] < 1
    assert last["mse_mean"] == pytest.approx(runs.metrics(f"{name}-vmap")[-1]["mse_mean"], rel=1e-4)


@pytest.mark.parametrize("words, said", [
    (["method=fedcr"], "data.task = regression: FedCR needs the classes of samples; take another method"),
    (["method=fedsr"], "FedSR needs the classes"),
    (["train.label_smoothing=.1"], "there are no labels to smooth"),
    (["evaluate.measures=[auc]"], "auc is a measure of predicted classes"),
    (["evaluate.measures=['mine_of_errors:mse']"], "mine_of_errors:mse is measured anyway, as mse"),
    (["data.task=classification"], "y holds floats, and classes are integers; set data.task = regression if"),
    (["data.task=both"], "data.task")])
def test_what_cannot_be(runs, words, said, capsys, monkeypatch):
    write(runs.folder, {"mine_of_errors.py": "def mse(outputs, y):\n    return 0.\n"})
    monkeypatch.chdir(runs.folder)
    assert run_alone(runs.config, words, runs.out("refused")) == 2
    assert said in capsys.readouterr().err
    assert not runs.out("refused").exists()


class Huber(FedAvg):
    """FedAvg with a loss that takes float targets alone."""

    def client(self, shared, mine, data):
        return mine, Up(data.descend(lambda w, x, y: F.huber_loss(self.model(w, x)[:, 0], y, reduction="none"),
                                     shared.w))


def test_a_method_is_tried_on_targets(runs):
    train = runs.values["train"] | {"nesterov": True, "momentum": .9}
    config, federation = resolve(runs.values | {"method": f"{__name__}:Huber", "train": train}), runs.federation()
    method = build_method(config, federation, rehearse=True)
    blank = make_blank_samples(federation.shape, federation.dtype)
    assert find_vmap_obstacle(method, *method.init(7), blank) is None
    assert rehearse_loop(method, *method.init(7), blank)[1].w.shape == (method.model.size,)
    assert count_round_work(method, *method.init(7), blank, 20, get_local_training(config, 0)).trained == 20


def test_a_measure_of_ones_own_is_given_outputs_and_targets(runs, monkeypatch):
    text = ("def worst(outputs, y):\n    assert outputs.shape == (len(y), 1) and y.is_floating_point()\n"
            "    return (outputs[:, 0] - y).abs().max()\n")
    write(runs.folder, {"mine_of_targets.py": text})
    monkeypatch.chdir(runs.folder)
    assert runs.lead("own", "evaluate.measures=['mine_of_targets:worst']") == 0
    assert runs.result("own")["worst_mean"] > runs.result("own")["mae_mean"]


def test_integers_serve_as_targets_and_labels_need_integers(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    for name, y in (("counts", np.arange(40)), ("nan", np.where(np.arange(40) == 7, np.nan, 1.)),
                    ("pairs", np.ones((40, 2)))):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y)

    def prepare(name):
        data = Data(name="arrays", file=str(tmp_path / f"{name}.npz"), cache=str(tmp_path), clients=4,
                    task="regression", partition=resolve({"data": {"partition": "iid"}}).data.partition)
        return Federation(prepare_federation(data, 0))
    found = prepare("counts")
    assert found.task.name == "regression" and found.client(0).y_train.dtype == np.float32
    with pytest.raises(BadInput, match="y_train has targets that are NaN, infinite or beyond float32"):
        prepare("nan")
    with pytest.raises(BadInput, match="float64 .40, 2.; it must be numbers, targets .n,.$"):
        prepare("pairs")


def test_the_smallest_error_is_the_best():
    lines = [{"round": t, "mse_mean": a, "mse_weighted": a, "mae_mean": 1., "mse_mean_validation": v}
             for t, a, v in ((1, .9, .8), (2, .5, .3), (3, .4, .6), (4, .45, .7))]
    assert find_best_validation_line(lines)["round"] == 2
    config = resolve({"rounds": 9, "data": {"task": "regression", "split": [.6, .2, .2]}, "stop": {"patience": 2}})
    found = list_series(config, lines)
    assert (found["mse_best_on_test"], found["best_round"]) == (.4, 3)
    assert (found["mse_at_best_validation"], found["chosen_round"], found["mse_weighted_best_on_test"]) == (.5, 2, .4)
    assert explain_early_stop(config, lines[:3], 3) == ""
    assert "none since round 2 was better" in explain_early_stop(config, lines, 4)


def test_it_is_shown_as_an_error(runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    fedavg, local = runs.result("fedavg"), runs.result("local")
    assert str(read_outcome(runs.out("fedavg"))).startswith(f"squared error {fedavg['mse_mean']:.4g} after 4 rounds")
    found = fedmpi.load_result(runs.out("fedavg"))
    assert found.mse == fedavg["mse_mean"] and np.isnan(found.accuracy) and "squared error" in repr(found)
    assert found.clients()["mse"].notna().all()
    text = compare_runs(runs.out("fedavg"), runs.out("local"))
    assert "MSE A" in text and f"{fedavg['mse_worst_decile']:.3f}" in text and "accuracy" not in text.split("MSE A")[1]
    last = [runs.metrics(name)[-1] for name in ("fedavg", "local")]
    for title, key, unit in (("Gini coefficient of squared errors, %", "mse_gini", 100),
                             ("variance of squared errors", "mse_variance", 1)):
        (row,) = re.findall(rf"^{title} +(\S+) +(\S+)$", text, re.M)
        assert [float(value) for value in row] == pytest.approx([unit * line[key] for line in last], rel=.01)
    shown = show_status(read_status([("a", runs.out("fedavg")), ("b", runs.out("local"))]))
    assert "accuracy or error" in shown and f"{local['mse_mean']:.4g}" in shown


def test_reports_show_it(runs):
    found = results.collect_folder_results([runs.out("fedavg"), runs.out("local")])
    assert found.task.name == "regression" and list(found.measures)[0] == "mse_at_best_validation"
    table = tables.make_tables(found)[0]
    values = {row: runs.result(row.lower())["mse_at_best_validation"] for row in ("FedAvg", "Local")}
    best = min(values, key=values.get)
    assert table.is_best(best, "result") and table.texts(best, "result")[0] == f"{values[best]:.4g}"
    (axes,) = draw_accuracy_by_round(found, "result").axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    np.testing.assert_allclose(drawn["FedAvg"], [line["mse_mean"] for line in runs.metrics("fedavg")])
    assert axes.get_ylabel() == "test squared error, mean over clients"
    assert draw_accuracy_by_client(found, "result").axes[0].get_xlabel() == "test squared error of a client"
    test = significance.compare_column(found, "result")
    means = {name: np.nanmean(read_history(runs.out(name) / "history.h5")["mse"][-1]) for name in ("fedavg", "local")}
    assert test.heads[0] == "less error"
    assert test.reference.lower() == min(means, key=means.get)
    assert test.tests[0].difference == pytest.approx(min(means.values()) - max(means.values()), abs=1e-6)


@pytest.mark.slow("the runs of a sweep are processes of their own")
def test_the_plan_and_a_sweep_know_it(runs):
    assert forked.command(1, "plan", runs.config, cwd=runs.folder).returncode == 0
    job = runs.write("job.yaml", {"title": "Errors", "config": runs.config, "measure": "mse_at_best_validation",
                                  "rows": {"FedAvg": "fedavg", "Local": "local"}, "columns": {"diabetes": {}},
                                  "seeds": [3]})
    table = fedmpi.sweep(job, out=runs.out("sweep"))
    assert table["mse_mean"].tolist() == [runs.result(name)["mse_mean"] for name in ("fedavg", "local")]
    assert json.loads((runs.out("fedavg") / "result.json").read_text())["steps"]
