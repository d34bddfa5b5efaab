"""Load the samples of a federation and decide who holds them, and tell whether the files stayed as they were."""
from __future__ import annotations

from pathlib import Path

from fedmpi.config import schema
from fedmpi.data import sources
from fedmpi.data.assignment import Assignment, assign_samples, list_training_samples
from fedmpi.data.columns import Columns
from fedmpi.data.feature_scale import standardise_features
from fedmpi.data.samples import Dataset, check_samples, refuse_other_task
from fedmpi.data.thinning import find_needed_holders, thin_samples
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject


def load_and_assign(data: schema.Data, seed: int, root: Path) -> tuple[Dataset, Assignment]:
    """Return the samples that these settings ask for, and who holds them. Raises BadInput."""
    pool = sources.load_source(data.name, root, data.file, data.source, data.task)
    refuse_other_task(pool, data.task, f"data.name = {data.name}")
    pool = thin_samples(pool, data.fraction, seed, find_needed_holders(pool, data))
    dealt = assign_samples(pool, data, seed)
    if isinstance(data.source, Columns) and data.source.standardise:
        pool = standardise_features(pool, list_training_samples(dealt))
        pool = check_samples(pool, f"data.name = {data.name}", data.task)
    return pool, dealt


def were_files_replaced(before: JsonObject, after: JsonObject) -> bool:
    """Say whether files changed while they were read, by the recipes of the federation before and after it. Files of
    which none was there before were downloaded, and not replaced."""
    known = before["source"] != before["name"]
    return known and before["source"] != after["source"] or before.get("inputs") != after.get("inputs")


def make_replaced_error(data: schema.Data) -> BadInput:
    """Return the error of a data set whose files change whenever they are read."""
    where = f"data.file = {data.file}" if data.file else f"data.name = {data.name}"
    return BadInput(f"{where}: its files, or those of data.partition, changed while they were read, and again when "
                    "they were read once more; wait until nothing writes to them, and start again (a file that your "
                    "own class writes while it loads does not belong into its `files`)")
