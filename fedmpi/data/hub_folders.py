"""The parts of a data set in a folder of Parquet files, which the names of files and folders give, as on Hugging
Face's Hub."""
from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path, PurePath

from fedmpi.data.part_names import PART_WORDS
from fedmpi.errors import BadInput
from fedmpi.text import shorten_list

# The Hub's names of files without their ending; older ones end with a part of a checksum.
SHARD = re.compile(r"(.+?)-\d+-of-\d+(-[0-9a-f]+)?")
# The number at the end of train-0 and train_1.
LAST_NUMBER = re.compile(r"[-_. ]*\d+$")
# Paths, in small letters, which may mean a part in a way that is not known here, such as testdata or my_train_set.
PART_HINT = re.compile(r"(?<![a-z])(train|test|valid)|(train|test)(?![a-z])")


def sort_files_by_part(folder: Path, files: Iterable[Path], chosen: Collection[str]) -> dict[str, list[Path]]:
    """Return the Parquet files of each part; all are for training if no name of a file or folder seems to be a part's.

    Raises BadInput if files of one part lie in several folders: these are configurations, which may hold the same
    samples.

    Args:
        folder: where the data set lies
        files: the Parquet files below it
        chosen: the parts that settings name; others may lie anywhere, because they are left out"""
    paths = [path.relative_to(folder) for path in files]
    places = [locate_part(path) for path in paths]
    if not any(name in chosen or hints_at_part(path) for path, (name, _) in zip(paths, places, strict=True)):
        places = [("train", path.parent) for path in paths]
    called = call_by_part_words([name for name, _ in places], chosen)
    found: dict[str, list[Path]] = {}
    bases: dict[str, set[PurePath]] = {}
    for path, (name, base) in zip(paths, places, strict=True):
        found.setdefault(called[name], []).append(folder / path)
        bases.setdefault(called[name], set()).add(base)
    for name in found:
        if name in chosen and len(bases[name]) > 1:
            several = shorten_list(str(folder / base) for base in sorted(bases[name]))
            raise BadInput(f"data.file = {folder}: files of the part {name!r} lie in several folders, as those of "
                           f"several configurations do, which may hold the same samples; give one of {several}")
    return found


def locate_part(path: PurePath) -> tuple[str, PurePath]:
    """Return the name of the part to which a file belongs, and the folder of the data set's configuration.

    NAME-00000-of-00001.parquet and NAME.parquet belong to the part NAME, but for files that a folder like `train`
    holds; the name of a folder also stands for files that are only numbered.

    Args:
        path: the file, from the folder of the data set"""
    shard = SHARD.fullmatch(path.stem)
    name = shard[1] if shard else path.stem
    plain = name if shard else LAST_NUMBER.sub("", name)
    if plain.lower() in PART_WORDS:
        return plain, path.parent
    for folder in path.parents:
        if folder.name.lower() in PART_WORDS:
            return folder.name, folder.parent
    if name.isdigit() and path.parent.name:
        return path.parent.name, path.parent.parent
    return name, path.parent


def hints_at_part(path: PurePath) -> bool:
    """Say whether a word of a path may be the name of a part."""
    text = str(path).lower()
    return bool(PART_HINT.search(text)) or not PART_WORDS.keys().isdisjoint(re.split(r"[^a-z]+", text))


def call_by_part_words(names: Collection[str], chosen: Collection[str]) -> dict[str, str]:
    """Return what each part is called: `validation` for `val`, and so on, unless a setting names `val`, or there are
    both."""
    words = {name: PART_WORDS.get(name.lower(), name) for name in names}
    return {name: name if name in chosen or word in names else word for name, word in words.items()}
