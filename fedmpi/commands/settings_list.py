"""All settings of a configuration, as the classes of fedmpi.config declare them: by section, or found by a word."""
from __future__ import annotations

import inspect
from itertools import groupby

from fedmpi import registry
from fedmpi.commands.catalogue import KIND_COLUMNS, format_setting_rows
from fedmpi.config.schema import SECTIONS, Config
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.settings_table import describe_settings
from fedmpi.text import wrap_paragraphs

ELSEWHERE = ("A method, a network, a partition or a data set may have settings of its own: "
             "`fedmpi methods NAME`, `models NAME`, `partitions NAME` and `datasets NAME` list them.")


def list_all_settings() -> list[JsonObject]:
    """List all settings: those of the run as a whole (section ""), then section by section.

    Each is what `describe_settings` says of it, under its dotted name, and the `section`."""
    rows = [row | {"section": ""} for row in describe_settings(Config) if row["name"] not in SECTIONS]
    for section, cls in SECTIONS.items():
        rows += [row | {"name": f"{section}.{row['name']}", "section": section} for row in describe_settings(cls)]
    return rows


def find_settings(word: str | None) -> list[JsonObject]:
    """List the settings of a section, or else those whose name or meaning has a word; all of them without a word.

    Raises BadInput if there are none."""
    rows = list_all_settings()
    if word is None:
        return rows
    if word in SECTIONS:
        return [row for row in rows if row["section"] == word]
    found = [row for row in rows if fold(word) in fold(f"{row['name']} {row['help']}")]
    if not found:
        kinds = [kind for kind in KIND_COLUMNS if word in registry.list_available(kind)]
        where = [f"`fedmpi {kind} {word}` lists those of this {kind[:-1]}" for kind in kinds]
        raise BadInput(f"no setting has {word!r} in its name or its meaning; `fedmpi settings` lists all"
                       f"{''.join(f', {text}' for text in where)}")
    return found


def fold(text: str) -> str:
    """Return a text in which `learning_rate` and `Learning rate` are the same."""
    return text.casefold().replace("_", " ")


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
