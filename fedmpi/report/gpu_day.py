"""The file that a day with a GPU leaves (benchmarks/gpu_day.py): gpu_day.json, what it must hold, and how several are
joined."""
from __future__ import annotations

import json
from pathlib import Path

from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.storage.seal import Flaw, open_regular

SCHEMA = 1
BOOK_NAME = "gpu_day.json"
# With this begins the `why` of a step for which no time was left.
SKIPPED = "skipped: "
BOOK_HEAD = ("schema", "when", "commit", "device", "small")

# section -> keys of each of its rows, beside `step`, the step that wrote it
BOOK_ROWS = {
    "steps": ("name", "part", "ok", "seconds", "why"),
    "lost": ("case", "why"),
    "correct": ("method", "model", "engine", "graphs", "precision", "apart", "within", "finite", "error"),
    "mpi": ("ranks", "model", "engine", "aware", "digest", "seconds", "error"),
    "speed": ("model", "shape", "clients", "precision", "engine", "ms_step", "spread", "bare_ms", "ratio", "error"),
    "layers": ("layer", "clients", "way", "precision", "ms", "tflops", "gbs", "apart", "error"),
    "candidates": ("name", "clients", "precision", "ms_step", "apart", "error"),
    "sums": ("what", "clients", "ms", "error"),
    "runs": ("ranks", "engine", "every", "seconds", "train_s", "judge_s", "rounds", "error")}
# section that is one mapping -> the mappings that it always has
FACTS: dict[str, tuple[str, ...]] = {
    "machine": (), "ceilings": (), "bits": ("digests", "kernels"), "capture": (),
    "round": ("ms", "kernels_ms", "syncs")}
# sections that only the step of the same name writes, so that its later facts take the place of its earlier ones
FACTS_OF_ONE_STEP = ("round",)


def make_blank_book(**head: object) -> JsonObject:
    """Return a book without notes; `head` has the keys of BOOK_HEAD but for `schema`."""
    return {"schema": SCHEMA, **head, **{name: [] for name in BOOK_ROWS},
            **{name: {part: {} for part in parts} for name, parts in FACTS.items()}}


def is_book(path: Path) -> bool:
    """Say whether a path is a book by its name, or a folder that has one."""
    return path.match("*gpu_day*.json") or (path / BOOK_NAME).is_file()


def load_book(path: Path) -> JsonObject:
    """Read a book, or that in a folder. Raises BadInput if there is none."""
    path = path / BOOK_NAME if path.is_dir() else path
    try:
        with open_regular(path) as file:
            book = json.loads(file.read())
    except (OSError, Flaw) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{path}: cannot be read: {why}; give a {BOOK_NAME}, or a folder that has it") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON: {error}; give a {BOOK_NAME}") from None
    if problems := check_book(book):
        raise BadInput(f"{path}: is not a {BOOK_NAME} of this version: {problems[0]}"
                       + (f", and {len(problems) - 1} more like this" if problems[1:] else ""))
    return book


def check_book(book: object) -> list[str]:
    """Return what keeps a value from being a book."""
    if not isinstance(book, dict) or book.get("schema") != SCHEMA:
        return [f"schema is {book.get('schema') if isinstance(book, dict) else None!r}, not {SCHEMA}"]
    wanted = [*BOOK_HEAD, *BOOK_ROWS, *FACTS]
    found = [f"{name} is missing" for name in wanted if name not in book]
    found += [f"{name} is not known" for name in book if name not in wanted]
    found += [f"{name} is not a list of rows" for name in BOOK_ROWS if not is_list_of_rows(book.get(name, []))]
    found += [f"{name} is not a mapping" for name in FACTS if not isinstance(book.get(name, {}), dict)]
    if found:
        return found
    for section, keys in BOOK_ROWS.items():
        for i, row in enumerate(book[section]):
            found += [f"{section}[{i}] has no {key}" for key in ("step", *keys) if key not in row]
    return found + [f"{section}.{part} is missing" for section, parts in FACTS.items()
                    for part in parts if part not in book[section]]


def is_list_of_rows(value: object) -> bool:
    """Say whether a value of JSON is a list of mappings."""
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def strike_step(book: JsonObject, step: str) -> None:
    """Strike the rows of a step that is taken again."""
    for section in BOOK_ROWS:
        book[section] = [row for row in book[section] if row["step"] != step]


def merge_facts(into: JsonObject, values: JsonObject) -> None:
    """Merge facts into a section, mappings in it too."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge_facts(into[key], value)
        else:
            into[key] = value


def join_books(books: list[JsonObject]) -> JsonObject:
    """Return one book of several, of the parts of a day say: a step's later rows take the place of its earlier ones,
    unless it was skipped later."""
    whole = make_blank_book(**{key: books[-1][key] for key in BOOK_HEAD[1:]})
    for book in books:
        known = {row["step"] for row in whole["steps"]}
        stay = {row["step"] for row in book["steps"] if row["step"] in known and row["why"].startswith(SKIPPED)}
        for step in {row["step"] for section in BOOK_ROWS for row in book[section]} - stay:
            strike_step(whole, step)
        for section in BOOK_ROWS:
            whole[section] += [row for row in book[section] if row["step"] not in stay]
        for section in FACTS:
            if section in FACTS_OF_ONE_STEP:
                # Kernels of two profiles are not put into one list.
                whole[section] |= {part: found for part, found in book[section].items()
                                   if found or part not in whole[section]}
            else:
                merge_facts(whole[section], book[section])
    return whole
