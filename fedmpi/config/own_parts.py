"""The parts of a configuration that may be the user's own code, and the fingerprint of that code and of the file with
the initial weights."""
from __future__ import annotations

import hashlib

from fedmpi import registry
from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.models.nets import Custom
from fedmpi.own_code.fingerprint import Fingerprint
from fedmpi.own_code.without_file import hash_all_own_code
from fedmpi.paths import expand_user

# Stands for the file with the initial weights among the modules of a fingerprint.
START_FILE = "model.start"


def list_own_parts(config: Config, measures: bool = True) -> list[object]:
    """Return the classes and functions that a configuration names, built-in ones among them, and names of modules;
    those of `evaluate.measures` only if asked for."""
    named = config.evaluate.measures if measures else ()
    parts: list[object] = [type(config.method), type(config.data.partition), type(config.model),
                           registry.find_class("datasets", config.data.name)]
    path = config.model.path if isinstance(config.model, Custom) else ""
    if path:
        parts.append(registry.find_class("models", path))
    parts += [registry.find_class_of_setting("measures", name, "evaluate.measures") for name in named]
    for name in (config.data.name, path, *named):
        if ":" in name:
            parts.append(name.partition(":")[0])
    return parts


def fingerprint_code(config: Config, measures: bool = True) -> Fingerprint:
    """Return the fingerprint of all code of the user's own that a configuration names, and of the file `model.start`;
    {} if it names none. Raises BadInput if that file cannot be read.

    Args:
        measures: whether the functions of `evaluate.measures`, which change no result, count."""
    start = getattr(config.model, "start", None)
    found = hash_all_own_code(list_own_parts(config, measures))
    return found | ({} if start is None else {START_FILE: hash_start(start)})


def hash_start(start: str) -> str:
    """Return the sha256 of the file with the initial weights. Raises BadInput if it cannot be read."""
    path = expand_user(start, "model.start")
    if path.exists() and not path.is_file():
        raise BadInput(f"model.start = {start}: it is not a file; give a safetensors file or a checkpoint of fedmpi")
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"model.start = {start}: cannot read it: {error.strerror}; give another file") from None
