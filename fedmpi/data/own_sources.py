"""Refuse what a user's own data set or partition gives beside samples and their division, before it is used.

Messages name the function's file and line."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedmpi.data.samples import Dataset
from fedmpi.errors import BadInput
from fedmpi.json_values import fits_json
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import describe_definition, is_built_in


def list_paths(found: object, where: str) -> list[Path]:
    """Return the paths that the function `files` of a data set returned. Raises BadInput, whose message begins with
    `where`, for a single path, whose letters would count as paths, and for what holds other things."""
    wanted = f"{where}files() must return a list of paths"
    if isinstance(found, str | bytes | Path) or not isinstance(found, Iterable):
        raise BadInput(f"{wanted}, not a {type(found).__name__}; write [path] for a single one")
    paths = list(found)
    for path in paths:
        if not isinstance(path, str | Path):
            raise BadInput(f"{wanted}, not one of a {type(path).__name__}; give texts, or pathlib.Path")
    return list(map(Path, paths))


def list_inputs(partition: object) -> list[str]:
    """Return what a partition says by `list_inputs` on which it depends beside its settings; [] if it does not.

    Raises BadInput for what no file can hold."""
    function = getattr(partition, "list_inputs", None)
    if function is None:
        return []
    where = f"data.partition: {describe_definition(function)}list_inputs()"
    with blame_own_code(where, always=not is_built_in(type(partition))):
        found: list[str] = function()
    if not isinstance(found, list) or not fits_json(found):
        raise BadInput(f"{where} must return a list of texts or numbers, such as [describe_file_state(path)] of "
                       "fedmpi.data.file_states; write str(path) for the name of a file")
    return found


def refuse_wrong_about(about: object, where: str) -> None:
    """Raise BadInput, whose message begins with `where`, if the names beside the samples are not a dictionary that a
    file can hold."""
    if about is not None and (not isinstance(about, dict) or not fits_json(about)):
        raise BadInput(f"{where}: `about` must be a dictionary of lists, texts and numbers, such as {{'class_names': "
                       "['cat', 'dog']}, and no arrays; write array.tolist()")


def refuse_few_names(pool: Dataset, where: str) -> None:
    """Raise BadInput, whose message begins with `where`, if classes have names, and some of them have none."""
    if not (names := (pool.about or {}).get("class_names")) or pool.y_train.dtype.kind == "f":
        return
    classes = int(max(pool.y_train.max(), pool.y_test.max(initial=0))) + 1
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) < classes:
        given = f"{type(names).__name__}{f' of {len(names)}' if isinstance(names, list) else ''}"
        raise BadInput(f"{where}: `about` has class_names that are a {given}, and y has labels up to {classes - 1}; "
                       f"give a list of {classes} texts, one for each class, or leave them out")


def require_names(names: object, least: int, where: str, most: int | None = None) -> list[str] | None:
    """Return the names of clients or groups as a list, None if there are none. Raises BadInput, whose message begins
    with `where`, unless they are a list or tuple of at least `least` texts, and at most `most` if that is given."""
    if names is None:
        return None
    count = ""
    if isinstance(names, list | tuple):
        texts = [name for name in names if isinstance(name, str)]
        if not names or len(texts) == len(names) and least <= len(texts) <= (most or len(texts)):
            return texts or None
        count = f" of {len(names)}"
    raise BadInput(f"{where} must be a list of {least} texts, a name for each, and not a {type(names).__name__}"
                   f"{count}; correct it, or leave it out")
