"""Weights & Biases offline and MLflow in a folder, read back by their own libraries: every measure of every round,
once, whatever happened to the run. Nothing is sent."""
from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.commands import mlflow as to_mlflow
from fedmpi.commands import wandb as to_wandb
from fedmpi.commands.tensorboard import list_scalars
from fedmpi.errors import BadInput
from fedmpi.json_values import flatten_settings
from fedmpi.storage import run_status
from tests.report import made

LINES = [{"round": 1, "accuracy_mean": .25, "seconds": 2., "cluster_sizes": [3, 4], "loss": None},
         {"round": 2, "accuracy_mean": .5, "seconds": 3., "steps": {"main": 7}}, {"round": 5, "accuracy_mean": .75,
                                                                                 "seconds": 9.}]


def write(*words, code=0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def expected(lines) -> list[tuple]:
    return sorted((line["round"], name, value) for line in lines for name, value in list_scalars(line).items())


def cut(run, rounds: int) -> None:
    """Leave so many lines of metrics.jsonl."""
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES[:rounds]))


def read_records(data: bytes) -> list[bytes]:
    """Return the records of a log as LevelDB writes them: blocks of 32 KiB of pieces with a header of 7 bytes, which
    says the length and whether a record is whole (1), begins (2), goes on (3) or ends (4). The first 7 bytes name the
    format."""
    at, records = 7, []
    while at + 7 <= len(data):
        left = 2 ** 15 - at % 2 ** 15
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        piece = data[at + 7:at + 7 + length]
        records += [piece] if kind in (1, 2) else []
        if kind in (3, 4):
            records[-1] += piece
        at += 7 + length
    return records


def read_offline_run(path) -> tuple[str, list[tuple]]:
    """Return id and points of an offline run, in the library's own messages."""
    from wandb.proto import wandb_internal_pb2
    file, = path.glob("*.wandb")
    points, key = [], ""
    for data in read_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        key = record.run.run_id or key
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            points += [(record.history.step.num or items["_step"], name, value) for name, value in items.items()
                       if not name.startswith("_")]
    return key, sorted(points)


def test_an_offline_run_has_every_round_once(tmp_path):
    pytest.importorskip("wandb", reason="there is no wandb here: pip install 'fedmpi[wandb]'")
    run = made.run(tmp_path / "a b", lines=LINES)
    keys = set()
    for rounds in (2, 3, 3):
        cut(run, rounds)
        said = write("wandb", run)
        path, = (run / "wandb").glob("offline-run-*")
        # older versions say more
        assert said.endswith(f"wandb sync '{path}'\n")
        # the library's own process may be slow to end
        for _ in range(100):
            key, points = read_offline_run(path)
            if len(points) >= len(expected(LINES[:rounds])):
                break
            time.sleep(.2)
        assert points == expected(LINES[:rounds]) and key == to_wandb.RUN_KEY.search(path.name)[1]
        keys.add(key)
    assert len(keys) == 1


def test_a_store_of_mlflow_gets_what_is_new(tmp_path):
    pytest.importorskip("mlflow", reason="there is no mlflow here: pip install 'fedmpi[mlflow]'")
    from mlflow.tracking import MlflowClient
    first, second = (made.run(tmp_path / name, lines=LINES) for name in ("it's a", "b"))
    store = tmp_path / "the store"
    for rounds in (2, 3, 3):
        cut(first, rounds)
        assert write("mlflow", first, second, "--to", store) == f"mlflow ui --backend-store-uri {store.as_uri()}\n"
        client = MlflowClient(store.as_uri())
        runs = client.search_runs([client.get_experiment_by_name("fedmpi").experiment_id])
        assert sorted(run.info.run_name for run in runs) == ["b", "it's a"]
        for run in runs:
            points = [(m.step, name, m.value) for name in run.data.metrics
                      for m in client.get_metric_history(run.info.run_id, name)]
            lines = LINES[:rounds if run.info.run_name != "b" else 3]
            assert sorted(points) == sorted((t, name.replace("/", "."), v) for t, name, v in expected(lines))
            assert run.data.params["seed"] == "0" and run.data.tags["fedmpi.round"] == str(lines[-1]["round"])
    said = write("mlflow", first, "--to", "nothing://x", code=2)
    assert "--to nothing://x: MLflow cannot use it (" in said


def test_a_store_that_mlflow_refuses_later_is_bad_input(tmp_path, monkeypatch):
    """No server answers there, or the experiment was deleted."""
    pytest.importorskip("mlflow", reason="there is no mlflow here: pip install 'fedmpi[mlflow]'")
    from mlflow.tracking import MlflowClient
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run, store = made.run(tmp_path / "run", lines=LINES), tmp_path / "store"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        said = write("mlflow", run, "--to", address, code=2)
    assert f"--to {address}: MLflow cannot use it (API request to " in said
    write("mlflow", run, "--to", store)
    client = MlflowClient(store.as_uri())
    client.delete_experiment(client.get_experiment_by_name("fedmpi").experiment_id)
    said = write("mlflow", run, "--to", store, code=2)
    assert f"--to {store.as_uri()}: MLflow cannot use it (Could not create run under non-active experiment" in said


@pytest.mark.parametrize("refused", ["get_experiment_by_name", "search_runs"])
def test_where_mlflow_refuses_its_first_line_is_told(tmp_path, store, monkeypatch, refused):
    class Refusal(Exception):
        pass

    def refuse(*given, **more):
        raise Refusal("no server answers\nthere")
    store.get_experiment_by_name = lambda name: SimpleNamespace(experiment_id="e")
    setattr(store, refused, refuse)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", SimpleNamespace(MlflowException=Refusal))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=lambda tracking_uri: store))
    said = write("mlflow", made.run(tmp_path / "run", lines=LINES), "--to", "http://x", code=2)
    assert said == ("fedmpi: --to http://x: MLflow cannot use it (no server answers); give another folder or "
                    "address\n")


class Store:
    """Keeps what MLflow would keep of one run, and may fail when so many more tags have been set."""

    def __init__(self):
        self.points, self.parameters, self.tags, self.tags_left, self.ended = [], [], {}, None, []

    def search_runs(self, experiments, query, max_results):
        found = SimpleNamespace(info=SimpleNamespace(run_id="r"), data=SimpleNamespace(tags=self.tags))
        return [found] * (f"'{self.tags.get(to_mlflow.FOLDER_TAG)}'" in query)

    def create_run(self, experiment, begin, tags, name):
        self.tags |= tags
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run, metrics=(), params=()):
        self.points += metrics
        self.parameters += params

    def get_metric_history(self, run, key):
        return [point for point in self.points if point.key == key]

    def set_tag(self, run, name, value):
        if self.tags_left == 0:
            raise OSError("no space left on device")
        self.tags_left = self.tags_left and self.tags_left - 1
        self.tags[name] = value

    def set_terminated(self, run, status):
        self.ended.append(status)

    def list_points(self):
        return sorted((point.step, point.key, point.value) for point in self.points)


@pytest.fixture
def store(monkeypatch):
    entities = SimpleNamespace(Metric=namedtuple("Metric", "key value timestamp step"),
                               Param=namedtuple("Param", "key value"))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(entities=entities))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return Store()


def test_an_interrupted_export_to_mlflow_writes_no_round_twice(tmp_path, store):
    """The measures of round 2 were written, and the note that they were was not."""
    run = made.run(tmp_path / "run", lines=LINES)
    store.tags_left = 1
    with pytest.raises(OSError, match="no space"):
        to_mlflow.add_rounds(store, "e", run)
    assert store.tags[to_mlflow.ROUND_TAG] == "1" and {point.step for point in store.points} == {1, 2}
    store.tags_left = None
    for _ in range(2):
        to_mlflow.add_rounds(store, "e", run)
        assert store.list_points() == sorted((t, name.replace("/", "."), v) for t, name, v in expected(LINES))
        assert store.tags[to_mlflow.ROUND_TAG] == "5"


def test_measures_of_a_last_round_that_was_evaluated_later_reach_mlflow(tmp_path, store):
    run, late = made.run(tmp_path / "run", lines=LINES), {**LINES[1], "f1_mean": .5}
    cut(run, 2)
    to_mlflow.add_rounds(store, "e", run)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (LINES[0], late)))
    to_mlflow.add_rounds(store, "e", run)
    assert store.list_points() == sorted((t, name.replace("/", "."), v) for t, name, v in expected([LINES[0], late]))


def test_a_run_in_the_place_of_another_one_is_an_entry_of_its_own(tmp_path, store):
    """Settings that a continued run may change make no other run of it."""
    tags = []
    for settings in ({"rounds": 3, "train": {"lr": .1}}, {"rounds": 9, "train": {"lr": .1}}, {"train": {"lr": .2}}):
        run = made.run(tmp_path / "run", settings=settings, lines=LINES)
        to_mlflow.add_rounds(store, "e", run)
        tags.append(store.tags[to_mlflow.FOLDER_TAG])
        shutil.rmtree(run)
    assert tags[0] == tags[1] != tags[2] and [point.step for point in store.points].count(5) == 4
    other = made.run(tmp_path / "other", settings={"train": {"lr": .2}}, lines=LINES)
    to_mlflow.add_rounds(store, "e", other)
    assert store.tags[to_mlflow.FOLDER_TAG] not in tags


@pytest.mark.parametrize("tracker, library", [("wandb", "wandb"), ("mlflow", "mlflow.tracking")])
def test_a_missing_library_is_bad_input(tmp_path, monkeypatch, tracker, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BadInput, match=rf"fedmpi {tracker} needs a package that is not installed: pip install "
                                       rf"'fedmpi\[{tracker}\]'"):
        to_wandb.import_wandb() if tracker == "wandb" else to_mlflow.open_store("file:///x")


def test_what_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", sys)
    for tracker in ("wandb", "mlflow"):
        assert "is not the folder of a run" in write(tracker, tmp_path / "none", code=2)


def test_everything_reaches_mlflow_in_pieces(tmp_path, store, monkeypatch):
    monkeypatch.setattr(to_mlflow, "METRICS_AT_ONCE", 2)
    monkeypatch.setattr(to_mlflow, "PARAMETERS_AT_ONCE", 2)
    run = made.run(tmp_path / "run", settings={"rounds": 5, "train": {"lr": .1}}, lines=LINES, result={"rounds": 5})
    to_mlflow.add_rounds(store, "e", run)
    assert store.list_points() == sorted((t, name.replace("/", "."), v) for t, name, v in expected(LINES))
    assert [point.key for point in store.parameters] == [*flatten_settings(run_status.read_settings(run))]
    begin = to_mlflow.find_start_time(run)
    assert {point.timestamp for point in store.points if point.step == 2} == {int(1000 * (begin + 3.))}
    assert store.ended == ["FINISHED"] and store.tags["digest"] == "d" * 64
