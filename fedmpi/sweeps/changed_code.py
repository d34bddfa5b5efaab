"""Finished runs of a sweep whose data were changed since, or the user's own code: they are other runs. Code that was
changed may be accepted; other samples or another file of who takes part may not, since the runs of a table must have
the same. Nor may a run whose settings cannot be read: it is not known which run it is."""
from __future__ import annotations

import json
from contextlib import suppress
from typing import TypeAlias

from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import to_plain
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.own_code.changes import list_changes, refuse_changes
from fedmpi.paths import is_readable
from fedmpi.server.client_files import hash_client_files, list_client_files
from fedmpi.storage import run_files, run_status
from fedmpi.sweeps.job import PlannedRun

# A run, and what is in its result.json; None: it is not finished.
RunResult: TypeAlias = tuple[PlannedRun, JsonObject | None]


def mark_runs(runs: list[PlannedRun], accept: bool) -> list[PlannedRun]:
    """Return the runs with the user's word on changed code, which those that are not finished are started with.

    Raises BadInput if a finished run was made with other code, and that is not accepted, or on other data, or if the
    settings of a run cannot be read."""
    refuse_unknown_runs(runs)
    known = [(run, run.outcome().result) for run in runs]
    for run, result in [] if accept else known:
        if result and isinstance(result.get("own_code"), dict):
            changes = list_changes(result["own_code"], fingerprint_code(run.settings), result["rounds"])
            refuse_changes(changes, f"{run.folder} was finished, the run {run.name} of this job",
                           "put back what it was, remove that folder, give the sweep another --out, or accept the "
                           "change by --accept-changed-code")
    refuse_changed_data(known)
    refuse_changed_files(known)
    return [run._replace(accept_changed_code=accept) for run in runs]


def refuse_unknown_runs(runs: list[PlannedRun]) -> None:
    """Raise BadInput if a folder of these runs holds a run whose settings cannot be read."""
    for run in runs:
        if not is_readable(run.folder) or not (run.folder / run_files.CONFIG).exists():
            continue
        try:
            run_status.read_settings(run.folder)
        except BadInput as error:
            raise BadInput(f"{run.folder}: it is not known whether {run.name} of this job is in this folder "
                           f"({str(error).partition(';')[0]}); look at it, or give the sweep another --out") from None


def refuse_changed_data(outcomes: list[RunResult]) -> None:
    """Raise BadInput if a finished run had other samples than its data settings and seed give now, as after a file of
    data was replaced, and runs of the same data set are left: other seeds and columns would get the new samples. The
    data are prepared here if they are not yet; where they cannot be, the finished runs are believed."""
    known = [(run, result, list_data_settings(run)) for run, result in outcomes]
    left = {data: run for run, result, data in known if not result}
    read = {list_source_settings(run) for run, result in outcomes if not result}
    now: dict[str, str | None] = {}
    for run, result, data in known:
        then = (result or {}).get("federation")
        if not isinstance(then, str) or list_source_settings(run) not in read:
            continue
        if data not in now:
            now[data] = None
            with suppress(BadInput):
                now[data] = Federation(prepare_federation(run.settings.data, run.settings.seed)).fingerprint
        if now[data] not in (None, then):
            other = left[data].name if data in left else "it"
            raise BadInput(f"{run.folder} was finished, the run {run.name} of this job, on other samples than "
                           f"{other} would get now: the data, or code that divides them, have changed since; "
                           "put back what it was, remove that folder, or give the sweep another --out")


def refuse_changed_files(known: list[RunResult]) -> None:
    """Raise BadInput if a finished run had another file of who takes part than runs that are still to be made would
    read now."""
    now: dict[tuple[str, str], str] = {}
    for run in [run for run, result in known if not result]:
        # A file that cannot be read fails in its run, which says why.
        with suppress(BadInput):
            hashes = hash_client_files(run.settings)
            now |= {(name, file): hashes[name] for name, file in list_client_files(run.settings).items()}
    for run, result in known:
        then = (result or {}).get("files")
        if not isinstance(then, dict):
            continue
        for name, file in list_client_files(run.settings).items():
            if now.get((name, file), then.get(name)) != then.get(name):
                raise BadInput(f"{run.folder} was finished, the run {run.name} of this job, with another {name} = "
                               f"{file} than the runs that are left would read now; put back what it was, remove that "
                               "folder, or give the sweep another --out")


def list_source_settings(run: PlannedRun) -> str:
    """Return what says which data set a run's samples are from."""
    data = run.settings.data
    return repr((data.name, data.root, data.file, data.source))


def list_data_settings(run: PlannedRun) -> str:
    """Return all that the samples of a run's clients depend on, but for files and code."""
    return json.dumps([to_plain(run.settings)["data"], run.settings.seed], sort_keys=True)
