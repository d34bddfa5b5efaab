"""The measures of runs, finished or not, as offline runs of Weights & Biases: RUN/wandb/, made from metrics.jsonl.

All is written again each time, under the same id, and takes the place of what was there: a run that was stopped and
resumed has every round once. Nothing is sent; `wandb sync` does that."""
from __future__ import annotations

import re
import shlex
import shutil
import uuid
from pathlib import Path
from types import ModuleType

from fedmpi.commands.tensorboard import list_scalars
from fedmpi.extras import require_extra_of_command
from fedmpi.storage import run_status
from fedmpi.storage.atomic import report_failed_writes

PROJECT = "fedmpi"
# Weights & Biases puts a folder of this name into the folder that it is given, and one like this for a run into that.
WANDB_FOLDER, OFFLINE_RUNS = "wandb", "offline-run-*"
# The key of a run in its folder's name, behind the time; a second run of the same second has a number behind the key.
RUN_KEY = re.compile(r"-\d+_\d+-(\w+)(?:-\d+)?$")


def write_offline_runs(folders: list[Path]) -> str:
    """Write the offline runs of run folders; returns what to tell the user. Raises BadInput and StorageError."""
    library, written = import_wandb(), []
    for folder in folders:
        # This refuses a folder that is not a run.
        run_status.read_settings(folder)
        with report_failed_writes(folder / WANDB_FOLDER):
            written.append(replace_offline_run(library, folder))
    # the library writes in a process of its own, whose files are complete when it has ended
    library.teardown()
    return f"wandb sync {shlex.join(map(str, written))}"


def import_wandb() -> ModuleType:
    """Return the library. Raises BadInput where it is not installed."""
    with require_extra_of_command("wandb"):
        import wandb
    return wandb


def replace_offline_run(library: ModuleType, folder: Path) -> Path:
    """Write a step per round in place of the offline run that a run folder holds. Return the new one."""
    old = sorted((folder / WANDB_FOLDER).glob(OFFLINE_RUNS))
    found = RUN_KEY.search(old[-1].name) if old else None
    key = found[1] if found else uuid.uuid4().hex[:8]
    outcome = run_status.read_outcome(folder)
    # neither this program's output nor its machine are the run's
    quiet = library.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True, save_code=False)
    run = library.init(mode="offline", project=PROJECT, id=key, name=folder.resolve().name, dir=str(folder),
                       config=run_status.read_settings(folder), settings=quiet)
    to = Path(run.dir).parent
    for line in run_status.read_metrics(folder):
        run.log(list_scalars(line), step=line["round"])
    run.summary.update(outcome.result or {})
    run.finish()
    for path in old:
        if path.resolve() != to.resolve():
            shutil.rmtree(path)
    return to
