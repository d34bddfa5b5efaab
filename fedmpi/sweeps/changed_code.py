"""Finished runs of a sweep whose own code was changed since: they are other runs, unless the user accepts them."""
from __future__ import annotations

from fedmpi.config.own_parts import fingerprint_code
from fedmpi.own_code.changes import list_changes, refuse_changes
from fedmpi.sweeps.job import PlannedRun


def mark_runs(runs: list[PlannedRun], accept: bool) -> list[PlannedRun]:
    """Return the runs with the user's word on changed code, which those that are not finished are started with.

    Raises BadInput if a finished run was made with other code, and that is not accepted."""
    for run in [] if accept else runs:
        result = run.outcome().result
        if result and isinstance(result.get("own_code"), dict):
            changes = list_changes(result["own_code"], fingerprint_code(run.settings), result["rounds"])
            refuse_changes(changes, f"{run.folder} was finished, the run {run.name} of this job",
                           "put back what it was, remove that folder, give the sweep another --out, or accept the "
                           "change by --accept-changed-code")
    return [run._replace(accept_changed_code=accept) for run in runs]
