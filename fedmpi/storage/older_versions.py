"""Which checkpoints of earlier versions this version can go on from."""
from __future__ import annotations

from fedmpi.errors import BadInput

# Methods that compute something else since 0.1, each with its reason in CHANGELOG.md, "Changed results" of 0.2.
CHANGED_SINCE_0_1 = {
    "cfl", "cgpfl", "fedah", "fedala", "fedamp", "fedbabu", "fedcr", "fedfomo", "fedmhc_ah", "fedrep", "fedsr",
    "fesem_cam", "ifca", "ifca_cam", "pfedcam", "pfedme"}


def refuse_changed_method(path: object, version: str, config: dict) -> None:
    """Raise BadInput if a checkpoint of that version holds the state of a method that has changed since.

    To go on from it would mix two methods in one run, or take a model for what it was not trained to be."""
    name = config.get("method", {}).get("name")
    if version.startswith("0.1.") and name in CHANGED_SINCE_0_1:
        raise BadInput(f"{path} was written by fedmpi {version}, whose {name} computes something else (CHANGELOG.md "
                       f"says what has changed); use it with fedmpi {version}, or start a new run with another --out")
