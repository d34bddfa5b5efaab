"""fedmpi from Python: the same results as the command, errors that are raised, and a process that is left as it was."""
from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedmpi
from fedmpi.errors import BadInput, FedmpiError, GivenUp
from fedmpi.methods.fedavg import FedAvg
from fedmpi.models import precision
from fedmpi.models.seeding import read_plain_generators
from fedmpi.stop_signals import SIGNALS

pytestmark = pytest.mark.slow("runs from Python")


@dataclass(frozen=True)
class Interrupted(FedAvg):
    """FedAvg whose server sends signals to its own process in the second round, as a user or a scheduler would."""
    signals: tuple[int, ...] = ()
    fails: bool = False

    def server(self, shared, up, who):
        if who.round == 1:
            for number in self.signals:
                os.kill(os.getpid(), number)
            if self.fails:
                raise ZeroDivisionError("as the test asks")
        return super().server(shared, up, who)


@pytest.fixture
def config(bench):
    return json.loads(open(bench.config).read())


def test_the_result_is_that_of_the_command_from_a_file_and_from_a_mapping(bench, config, tmp_path, capsys):
    found = fedmpi.run(bench.config, out=bench.out("python"))
    said = capsys.readouterr().out
    assert f"digest {found.digest[:16]}" in said and found.digest == bench.straight(3)
    capsys.readouterr()
    again = fedmpi.run(config | {"rounds": 5}, out=tmp_path / "again", quiet=True, rounds=3)
    assert again.digest == found.digest and capsys.readouterr().out == ""
    assert (tmp_path / "again" / "log.txt").read_text().count("round ") >= 3


def test_keywords_set_what_the_command_line_sets(bench, config):
    words = ["train.lr=.1", "train.steps=2", "method=fedprox", "method.mu=.5", "data.clients=4", "rounds=1"]
    assert bench.lead("words", *words) == 0
    keywords = {"train": {"lr": .1, "steps": np.int64(2)}, "method": {"name": "fedprox", "mu": .5}, "rounds": 1}
    found = fedmpi.run(config=config, out=bench.out("keywords"), quiet=True, **keywords, **{"data.clients": 4})
    assert found.digest == bench.result("words")["digest"] and found.config["train"]["lr"] == .1
    by_class = fedmpi.run(config | {"method": {"name": FedAvg}}, out=bench.out("class"), quiet=True, rounds=1)
    assert by_class.config["method"]["name"] == "fedavg"


def test_what_a_result_offers(bench):
    pandas = pytest.importorskip("pandas")
    found = fedmpi.run(bench.config, out=bench.out("offered"), quiet=True)
    written, lines = bench.result("offered"), bench.metrics("offered")
    assert (found.accuracy, found.digest) == (written["accuracy_mean"], written["digest"])
    assert found.metrics.index.tolist() == [1, 2, 3] and found.metrics.index.name == "round"
    assert found.metrics["accuracy_mean"].tolist() == [line["accuracy_mean"] for line in lines]
    clients = found.clients()
    assert clients.index.tolist() == list(range(9)) and clients.index.name == "client"
    assert clients["accuracy"].mean() == pytest.approx(found.accuracy, rel=1e-12)
    assert found.clients(1)["accuracy"].mean() == pytest.approx(lines[0]["accuracy_mean"], rel=1e-12)
    clusters = found.clusters()
    assert clusters.shape == (3, 9) and clusters.loc[3].equals(clients["cluster"].rename(3))
    assert clusters.dtypes.unique().tolist() == [pandas.Int64Dtype()] and clusters.loc[3].dropna().isin(range(3)).all()
    with pytest.raises(BadInput, match="^round 9 was not evaluated; these were: 1, 2, 3$"):
        found.clients(9)
    axes, = found.plot().axes
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert axes.lines[0].get_ydata() == pytest.approx([100 * line["accuracy_mean"] for line in lines])
    loaded = fedmpi.load_result(bench.out("offered"))
    assert loaded.digest == found.digest and repr(loaded) == repr(found) and "FedMHC: accuracy" in repr(found)


def count_large(logits, labels):
    """A measure that only this module has."""
    return float((logits > 0).double().mean())


def test_a_measure_is_given_as_a_function(bench, config):
    found = fedmpi.run(config, out=bench.out("measure"), quiet=True, rounds=1, method=FedAvg,
                       evaluate={"measures": [count_large]})
    assert found.config["evaluate"]["measures"] == ["tests.test_python_api:count_large"]
    assert 0 <= found.values["count_large_mean"] <= 1
    with pytest.raises(BadInput, match="should be module:function"):
        fedmpi.run(config, out=bench.out("local"), quiet=True, evaluate={"measures": [lambda a, b: 1.]})


@pytest.mark.parametrize("given, said", [
    ({"time_limit": 1.5}, "time_limit=1.5: give whole minutes, or a text such as '01:30:00'"),
    ({"time_limit": True}, "time_limit=True: give whole minutes"),
    ({"time_limit": 0}, "time_limit=0 is not a time: give minutes"),
    ({"resume": True}, "resume=True: give 'auto', or the path of a checkpoint"), ({"out": 3}, "out=3: give a path"),
    ({"on_round": 3}, "on_round=3: give a function"), ({"ranks": 3}, "ranks=3: a run has the ranks that its program "),
    ({"config": None}, "config=None: give the path of a YAML file, or a mapping of settings"),
    ({"config": ["rounds"]}, r"config=\['rounds'\]: give the path of a YAML file")])
def test_arguments_of_another_type_are_refused_with_their_name(config, given, said):
    words = {"config": config} | given
    with pytest.raises(BadInput, match=f"^{said}"):
        fedmpi.run(words.pop("config"), quiet=True, **words)


def test_a_number_is_a_limit_in_minutes(bench, config):
    found = fedmpi.run(config, out=bench.out("limit"), quiet=True, rounds=1, time_limit=10)
    assert "stops by itself in time for the end of --time-limit 10, " in (found.folder / "log.txt").read_text()


def test_a_method_without_clusters_has_no_columns_of_them(bench):
    pytest.importorskip("pandas")
    found = fedmpi.run(bench.config, out=bench.out("unclustered"), quiet=True, rounds=1, method="fedavg")
    assert "cluster" not in found.clients() and found.clusters().shape == (1, 0)


def test_a_clients_model_is_the_one_that_it_was_evaluated_by(bench, config):
    from fedmpi.config.schema import load_config
    from fedmpi.data.federation import Federation, prepare_federation
    found, settings = fedmpi.run(config, out=bench.out("models"), quiet=True), load_config(config)
    samples = Federation(prepare_federation(settings.data, settings.seed)).client(7)
    # pandas makes floats of the numbers in a row of a table
    assert found.model(client=7.).state_dict().keys() == found.model(client=np.int64(7)).state_dict().keys()
    for wrong in (7.5, "7", float("nan")):
        with pytest.raises(BadInput, match="give the number of a client, or None for the server's model"):
            found.model(client=wrong)
    network = found.model(client=7)
    assert type(network) is torch.nn.Sequential and not network.training
    with torch.no_grad():
        right = (network(torch.from_numpy(samples.x_test)).argmax(1).numpy() == samples.y_test).mean()
    history = found.history["accuracy"][-1]
    assert right == pytest.approx(history[7], abs=1e-12)
    with pytest.raises(BadInput, match="^client=9: the run has clients 0 to 8"):
        found.model(client=9)
    with pytest.raises(BadInput, match="has no global model"):
        found.model()
    average = fedmpi.run(config, out=bench.out("average"), quiet=True, method="fedavg", rounds=1)
    assert average.model().state_dict().keys() == network.state_dict().keys()


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_samples_go_into_the_clients_own_network(bench, config, part):
    """On the validation and test samples of a client its network has the accuracy that the run has found. Client 8 is
    a new one, which has samples and no model of its own."""
    found = fedmpi.run(config, out=bench.out(f"samples-{part}"), quiet=True, rounds=2, method="fedmhc",
                       data={"split": [.5, .2, .3], "new_clients": 1})
    accuracy = found.history["accuracy_validation" if part == "validation" else "accuracy"][-1]
    for client in range(8):
        x, y = found.samples(client, part)
        share = (found.model(client)(x).argmax(1) == y).float().mean().item() if len(y) else float("nan")
        assert len(x) == len(y) and x.dtype == torch.float32
        assert part == "train" or share == pytest.approx(accuracy[client], nan_ok=True)
    assert len(found.samples(8, part)[1])
    for wrong, said in ((9, "^client=9: the run has clients 0 to 8$"), (None, "^client=None: "), (.5, "^client=0.5: ")):
        with pytest.raises(BadInput, match=said):
            found.samples(wrong, part)
    with pytest.raises(BadInput, match="^part='tests': give train, validation or test"):
        found.samples(0, "tests")


def state_of_process() -> list:
    return [*(signal.getsignal(number) for number in SIGNALS), torch.get_num_threads(), precision.is_autocasting(),
            torch.get_rng_state().tolist(), read_plain_generators(),
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark,
            torch.utils.deterministic.fill_uninitialized_memory]


def test_what_a_gpu_needs_is_put_back_too(monkeypatch):
    from fedmpi.engines.gpu_card import use_deterministic_kernels
    from fedmpi.process_state import isolate_computation
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = state_of_process()
    with isolate_computation():
        use_deterministic_kernels()
        assert state_of_process() != before
    assert state_of_process() == before


def test_several_runs_in_one_process_and_errors_between_them_leave_it_as_it_was(bench, config, capsys):
    before = state_of_process()
    other = {"threads": 2, "precision": "bf16", "method": "fedavg", "rounds": 1}
    first = fedmpi.run(config, out=bench.out("first"), quiet=True, **other)
    assert state_of_process() == before
    with pytest.raises(BadInput, match="^rounds = 0: should be greater than or equal to 1$"):
        fedmpi.run(config, out=bench.out("refused"), rounds=0)
    assert not bench.out("refused").exists()
    with pytest.raises(FedmpiError, match=r"^client \d, round 1 .*lower train.lr") as error:
        fedmpi.run(config, out=bench.out("diverged"), quiet=True, method="fedavg", train={"lr": 1e30})
    assert type(error.value) is FedmpiError and not (bench.out("diverged") / "lock").exists()
    own = {"name": Interrupted, "fails": True}
    with pytest.raises(FedmpiError, match="as the test asks") as error:
        fedmpi.run(config, out=bench.out("fails"), quiet=True, method=own)
    assert isinstance(error.value.__context__, ZeroDivisionError) and "continue with out=" in str(error.value)
    assert state_of_process() == before
    assert capsys.readouterr() == ("", "")
    again = fedmpi.run(config, out=bench.out("second"), quiet=True, **other)
    assert again.digest == first.digest and state_of_process() == before


@pytest.mark.parametrize("signals, error", [
    ((signal.SIGINT,), KeyboardInterrupt), ((signal.SIGTERM,), GivenUp), ((signal.SIGUSR1,), GivenUp)])
def test_a_run_that_is_stopped_is_saved_and_goes_on(bench, config, signals, error):
    before, out = state_of_process(), bench.out(f"stopped-{signals[0]}")
    own = {"name": Interrupted, "signals": [int(number) for number in signals]}
    with pytest.raises(error, match="saved: continue with out=.*resume='auto'"):
        fedmpi.run(config, out=out, quiet=True, method=own)
    assert state_of_process() == before and not (out / "result.json").exists()
    with pytest.raises(BadInput, match="is unfinished, after 2 rounds: it has no result yet"):
        fedmpi.load_result(out)
    resumed = fedmpi.run(config, out=out, quiet=True, method=own, resume="auto")
    plain = fedmpi.run(config, out=bench.out(f"plain-{signals[0]}"), quiet=True, method="fedavg")
    assert resumed.digest == plain.digest


def test_ctrl_c_in_the_last_round_leaves_the_result(bench, config):
    own = {"name": Interrupted, "signals": [int(signal.SIGINT)]}
    found = fedmpi.run(config, out=bench.out("late-interrupt"), quiet=True, method=own, rounds=2)
    assert found.digest == bench.result("late-interrupt")["digest"]


def test_a_second_ctrl_c_leaves_at_once(bench, config):
    own = {"name": Interrupted, "signals": [int(signal.SIGINT)] * 2}
    with pytest.raises(KeyboardInterrupt):
        fedmpi.run(config, out=bench.out("impatient"), quiet=True, method=own)
    assert [path.name for path in bench.saved("impatient")] == ["round-000001.h5"]
    assert not (bench.out("impatient") / "lock").exists()


def test_every_round_is_told_and_changes_nothing(bench, config):
    told = []
    found = fedmpi.run(config, out=bench.out("told"), quiet=True, on_round=told.append)
    assert told == bench.metrics("told") and [line["round"] for line in told] == [1, 2, 3]
    assert found.digest == bench.straight(3)


class Pruned(Exception):
    """What the function of a program raises that wants no more rounds."""


@pytest.mark.parametrize("kind", [Pruned, SystemExit, KeyboardInterrupt])
def test_an_exception_of_the_callers_function_ends_the_run_and_reaches_the_caller(bench, config, kind):
    def prune(line: dict) -> None:
        line.clear()
        told.append(line)
        if len(told) == 2:
            raise kind("enough")
    told, out = [], bench.out(f"pruned-{kind.__name__}")
    with pytest.raises(kind, match="^enough$"):
        fedmpi.run(config, out=out, quiet=True, on_round=prune, checkpoint={"every": 1})
    assert len(told) == 2 and not (out / "lock").exists() and not (out / "result.json").exists()
    said = f"the caller's on_round ended the run after round 2: {kind.__name__}('enough')"
    assert said in (out / "log.txt").read_text()
    assert [path.name for path in bench.saved(out)] == ["round-000001.h5"]
    assert fedmpi.run(config, out=out, quiet=True, resume="auto").digest == bench.straight(3)


def test_a_run_in_another_thread_hears_no_signals_but_runs(bench, config):
    found = []
    thread = threading.Thread(target=lambda: found.append(fedmpi.run(config, out=bench.out("thread"), quiet=True)))
    thread.start()
    thread.join()
    assert found[0].digest == bench.straight(3)


def test_a_sweep_in_another_thread_hears_no_signals_but_runs(bench, tmp_path):
    (tmp_path / "j.yaml").write_text(f"title: t\nconfig: {bench.config}\nmeasure: accuracy_mean\ncolumns: {{a: {{}}}}\n"
                                     "rows: {FedAvg: fedavg}\n")
    found = []
    thread = threading.Thread(target=lambda: found.append(fedmpi.sweep(tmp_path / "j.yaml", out=tmp_path / "out")))
    thread.start()
    thread.join()
    assert found[0]["row"].tolist() == ["FedAvg"]


def test_a_run_without_its_history_says_what_is_left(bench, config):
    found = fedmpi.run(config, out=bench.out("lost-history"), quiet=True)
    (bench.out("lost-history") / "history.h5").unlink()
    with pytest.raises(BadInput, match="history.h5 is missing, and with it the measures of single clients; `values` "):
        fedmpi.load_result(found.folder).clients()


def test_the_clients_of_a_round_are_those_of_that_round(bench):
    found = fedmpi.run(bench.config, out=bench.out("every-second"), quiet=True, rounds=4, evaluate={"every": 2})
    means = {line["round"]: line["accuracy_mean"] for line in bench.metrics("every-second") if "accuracy_mean" in line}
    for t in (2, 4):
        assert found.clients(t)["accuracy"].mean() == pytest.approx(means[t], rel=1e-12)
    assert means[2] != means[4]
