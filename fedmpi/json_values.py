"""Values that JSON and YAML can hold, such as configurations, results and the records of a run."""
from __future__ import annotations

import json
from typing import Any, TypeAlias

# Any: texts, numbers, lists and mappings, as deep as they may be. Only the code that reads a key knows what it holds.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Json]


def fits_json(value: object) -> bool:
    """Say whether a file can hold a value as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def flatten_settings(settings: JsonObject, prefix: str = "", keep_empty: bool = False) -> JsonObject:
    """Return nested settings as one mapping from dotted names.

    Args:
        prefix: what all names begin with.
        keep_empty: a section without settings is kept under its own name; otherwise it is left out."""
    found: JsonObject = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        whole = not isinstance(value, dict) or keep_empty and not value
        found |= {name: value} if whole else flatten_settings(value, f"{name}.", keep_empty)
    return found
