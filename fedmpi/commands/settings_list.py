"""All settings of a configuration, as the classes of fedmpi.config declare them: by section, or found by a word."""
from __future__ import annotations

import inspect
from itertools import groupby

from fedmpi import registry
from fedmpi.commands.catalogue import KIND_COLUMNS, format_setting_rows
from fedmpi.config.schema import SECTIONS, Config
from fedmpi.errors import BadInput
from fedmpi.hints import VERY_CLOSE, find_close_name, simplify_name
from fedmpi.json_values import JsonObject
from fedmpi.settings_table import describe_settings
from fedmpi.text import wrap_paragraphs

ELSEWHERE = ("A method, a network, a partition or a data set may have settings of its own: "
             "`fedmpi methods NAME`, `models NAME`, `partitions NAME` and `datasets NAME` list them.")

# Words of papers and other programs that stand neither in a setting's name nor in its meaning
OTHER_WORDS = {
    "seed": "random seed", "threads": "OMP_NUM_THREADS", "precision": "mixed precision, amp", "rounds": "global epochs",
    "placement": "load balancing", "data.clients": "num_clients", "data.new_clients": "unseen clients",
    "data.partition": "non-iid, heterogeneity", "data.split": "validation split",
    "train.batch": "batch size, minibatch", "train.schedule": "scheduler, annealing",
    "train.epochs": "local epochs", "train.clip_norm": "gradient clipping",
    "train.augment": "data augmentation", "train.participation": "client fraction, join ratio",
    "train.sampling": "client selection", "evaluate.measures": "metrics", "stop.patience": "early stopping",
    "checkpoint.every": "save interval", "server.aggregation": "robust aggregation", "comm.timeout": "heartbeat, hang",
    "faults.drop": "client dropout", "attack.kind": "byzantine, poisoning, malicious"}
# Where to look for what is not a setting of every run
ELSEWHERE_BY_WORD = {
    "pretrained": "`model.start=FILE` begins a run with weights from a file; `fedmpi models NAME` explains it",
    **dict.fromkeys(("workers", "processes", "numworkers", "ranks"),
                    "the launcher says how many ranks a run has: `mpiexec -n 5 fedmpi run CONFIG`"),
    **dict.fromkeys(("hidden", "layers"), "networks have settings of their own: `fedmpi models NAME`"),
    **dict.fromkeys(("alpha", "beta"), "methods and partitions have settings of their own: `fedmpi methods NAME`, "
                                       "`fedmpi partitions NAME`")}


def list_all_settings() -> list[JsonObject]:
    """List all settings: those of the run as a whole (section ""), then section by section.

    Each is what `describe_settings` says of it, under its dotted name, and the `section`."""
    rows = [row | {"section": ""} for row in describe_settings(Config) if row["name"] not in SECTIONS]
    for section, cls in SECTIONS.items():
        rows += [row | {"name": f"{section}.{row['name']}", "section": section} for row in describe_settings(cls)]
    return rows


def find_settings(word: str | None) -> list[JsonObject]:
    """List the settings of a section, or else those whose name, meaning or OTHER_WORDS have a word; all of them
    without a word. `batch_size`, `Batch size` and `batch-size` are the same word.

    Raises BadInput if there are none."""
    rows = list_all_settings()
    if word is None:
        return rows
    if word in SECTIONS:
        return [row for row in rows if row["section"] == word]
    texts = [simplify_name(f"{row['name']} {row['help']} {OTHER_WORDS.get(str(row['name']), '')}") for row in rows]
    simple = simplify_name(word)
    found = [row for row, text in zip(rows, texts, strict=True) if simple and simple in text]
    if not found:
        raise BadInput(f"no setting has {word!r} in its name or its meaning; `fedmpi settings` lists all"
                       f"{''.join(f', {text}' for text in find_elsewhere(word, rows))}")
    return found


def find_elsewhere(word: str, rows: list[JsonObject]) -> list[str]:
    """Say where a word is explained that no setting has, or which setting has nearly this name; nothing if neither."""
    kinds = [kind for kind in KIND_COLUMNS if word in registry.list_available(kind)]
    where = [f"`fedmpi {kind} {word}` lists those of this {kind[:-1]}" for kind in kinds]
    if simplify_name(word) in ELSEWHERE_BY_WORD:
        where.append(ELSEWHERE_BY_WORD[simplify_name(word)])
    if not where:
        names = {str(row["name"]).rpartition(".")[2]: str(row["name"]) for row in rows}
        close = names.get(find_close_name(word, names, VERY_CLOSE))
        where += [f"did you mean {close}?"] if close else []
    return where


def format_sections(rows: list[JsonObject]) -> str:
    """Return a table for each section, under its name and what it is for."""
    parts = []
    for section, of_section in groupby(rows, key=lambda row: row["section"]):
        parts += [describe_section(section), format_setting_rows([*of_section])]
    return "\n\n".join([*parts, wrap_paragraphs(ELSEWHERE)])


def describe_section(section: str) -> str:
    """Return the name of a section, whether it is left out by default, and what it is for."""
    if not section:
        return "settings of the run as a whole"
    off = " (left out by default)" if getattr(Config, section, ...) is None else ""
    return wrap_paragraphs(f"{section}{off}: {inspect.getdoc(SECTIONS[section])}")
