"""Which checkpoints of earlier versions this version can go on from."""
from __future__ import annotations

from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.registry import list_built_in

# Methods that compute something else since 0.1, each with its reason in CHANGELOG.md, "Changed results" of 0.2.
CHANGED_SINCE_0_1 = {
    "cfl", "cgpfl", "fedah", "fedala", "fedamp", "fedbabu", "fedcr", "fedfomo", "fedmhc_ah", "fedrep", "fedsr",
    "fesem_cam", "ifca", "ifca_cam", "pfedcam", "pfedme"}


# Settings that older checkpoints do not have, by dotted path, with the value that stands for what was done then.
ADDED_SETTINGS = {
    "train.optimizer": "sgd", "train.nesterov": False, "train.weight_decay": 0., "train.clip_norm": None,
    "train.schedule": "constant", "train.milestones": [], "train.step_factor": .1, "train.warm_up": 0,
    "train.label_smoothing": 0., "train.augment": [], "train.padding": 4,
    "train.drop_last": False,
    "data.new_clients": 0, "data.task": "classification", "evaluate.measures": [], "model.start": None,
    "train.sampling": "uniform", "train.candidates": None, "availability": None, "stragglers": None}
# Those that runs with data.partition=natural do not have.
ADDED_TO_NATURAL = {"split": "given"}


def add_missing_settings(settings: JsonObject) -> JsonObject:
    """Return the settings of an older run, with the values that stand for what was done then."""
    found = {name: dict(section) if isinstance(section, dict) else section for name, section in settings.items()}
    for path, value in ADDED_SETTINGS.items():
        name, _, setting = path.partition(".")
        section = found.get(name)
        if not setting:
            found.setdefault(name, value)
        # networks of one's own have only the settings that they declare
        elif isinstance(section, dict) and (name != "model" or section.get("name") in list_built_in("models")):
            found[name].setdefault(setting, value)
    data = found.get("data")
    partition = data.get("partition") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(partition, dict) and partition.get("name") == "natural":
        data["partition"] = {**ADDED_TO_NATURAL, **partition}
    return found


def refuse_changed_method(path: object, version: str, config: JsonObject) -> None:
    """Raise BadInput if a checkpoint of that version holds the state of a method that has changed since.

    To go on from it would mix two methods in one run, or take a model for what it was not trained to be."""
    name = config.get("method", {}).get("name")
    if version.startswith("0.1.") and name in CHANGED_SINCE_0_1:
        raise BadInput(f"{path} was written by fedmpi {version}, whose {name} computes something else (CHANGELOG.md "
                       f"says what has changed); use it with fedmpi {version}, or start a new run with another --out")
