"""The measures of runs, finished or not, in a store of MLflow, made from metrics.jsonl.

A run folder is found again by its path and the settings with which the run can be continued, and only rounds that
MLflow does not have yet are added: a run that was stopped and resumed has every round once, and another run that took
the folder's place is an entry of its own. Of the last round there, which may have been evaluated since, and of the next
one, which may be there in part if the last export was interrupted, only missing measures are added."""
from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.commands.tensorboard import find_start_time, list_scalars
from fedmpi.errors import BadInput
from fedmpi.extras import require_extra_of_command
from fedmpi.json_values import JsonObject, flatten_settings
from fedmpi.paths import refuse_empty_path
from fedmpi.storage import run_status
from fedmpi.storage.atomic import report_failed_writes
from fedmpi.storage.changed_settings import is_free

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

EXPERIMENT = "fedmpi"
# By this tag, a sha256 of its path and its fixed settings, a run folder is found again; the next one holds the last
# round that was written.
FOLDER_TAG, ROUND_TAG = "fedmpi.folder", "fedmpi.round"
# MLflow takes so many measures and so many settings at once, and values of so many characters.
METRICS_AT_ONCE, PARAMETERS_AT_ONCE, MAX_VALUE = 1000, 100, 500


def write_to_store(folders: list[Path], to: str) -> str:
    """Write run folders to a store; returns what to tell the user. Raises BadInput and StorageError.

    Args:
        to: a folder, or the address of a tracking server or a data base."""
    refuse_empty_path("--to", to)
    address = to if "://" in to else Path(to).resolve().as_uri()
    for folder in folders:
        # This refuses a folder that is not a run.
        run_status.read_settings(folder)
    client = open_store(address)
    with refuse_address(address), report_failed_writes(Path(to)):
        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
        for folder in folders:
            add_rounds(client, experiment, folder)
    return f"mlflow ui --backend-store-uri {address}"


def open_store(address: str) -> MlflowClient:
    """Return what writes to the store. Raises BadInput where MLflow is not installed, or refuses the address."""
    # MLflow 3 has stopped developing folders of files, and asks for this
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    with require_extra_of_command("mlflow"):
        from mlflow.tracking import MlflowClient
    with refuse_address(address):
        return MlflowClient(tracking_uri=address)


@contextmanager
def refuse_address(address: str) -> Iterator[None]:
    """Raise BadInput where MLflow refuses a store: its address, a server that does not answer, a deleted experiment."""
    from mlflow.exceptions import MlflowException
    try:
        yield
    except (MlflowException, ImportError, OSError) as error:
        raise BadInput(f"--to {address}: MLflow cannot use it ({str(error).splitlines()[0]}); give another folder or "
                       "address") from None


def add_rounds(client: MlflowClient, experiment: str, folder: Path) -> None:
    """Write the rounds of a run folder that the store does not have."""
    from mlflow.entities import Metric, Param
    settings = flatten_settings(run_status.read_settings(folder))
    place = identify_run(folder, settings)
    found = client.search_runs([experiment], f"tags.`{FOLDER_TAG}` = '{place}'", max_results=1)
    begin, outcome = find_start_time(folder), run_status.read_outcome(folder)
    if found:
        run, last = found[0].info.run_id, int(found[0].data.tags[ROUND_TAG])
    else:
        run = client.create_run(experiment, int(1000 * begin), {FOLDER_TAG: place, ROUND_TAG: "0"},
                                folder.resolve().name).info.run_id
        last = 0
        parameters = [Param(name, str(value)[:MAX_VALUE]) for name, value in settings.items()]
        for at in range(0, len(parameters), PARAMETERS_AT_ONCE):
            client.log_batch(run, params=parameters[at:at + PARAMETERS_AT_ONCE])
    lines = [line for line in run_status.read_metrics(folder) if line["round"] >= last]
    unsure = [line["round"] for line in lines[:1 + (lines[0]["round"] == last)]] if found and lines else []
    for line in lines:
        now = int(1000 * (begin + (line.get("seconds") or 0.)))
        metrics = [Metric(name.replace("/", "."), float(value), now, line["round"])
                   for name, value in list_scalars(line).items()]
        if line["round"] in unsure:
            metrics = [metric for metric in metrics if not is_stored(client, run, metric)]
        for at in range(0, len(metrics), METRICS_AT_ONCE):
            client.log_batch(run, metrics=metrics[at:at + METRICS_AT_ONCE])
        client.set_tag(run, ROUND_TAG, str(line["round"]))
    if outcome.result:
        client.set_tag(run, "digest", outcome.result["digest"])
        client.set_terminated(run, "FINISHED")


def identify_run(folder: Path, settings: JsonObject) -> str:
    """Return a sha256 of a folder's path and of the settings, by dotted name, that a continued run may not change."""
    total = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape"))
    total.update(repr(sorted((name, value) for name, value in settings.items() if not is_free(name))).encode())
    return total.hexdigest()


def is_stored(client: MlflowClient, run: str, metric: Metric) -> bool:
    """Say whether the store has this measure of this round."""
    return any(point.step == metric.step for point in client.get_metric_history(run, metric.key))
