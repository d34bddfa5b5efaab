"""Check a command line of fedmpi without running it."""
from __future__ import annotations

import typer

from benchmarks import command
from benchmarks.__main__ import read_words
from fedmpi.cli import app
from fedmpi.config.schema import load_config
from fedmpi.sweeps import job
from tests.docs.pages import OPEN

# Stands for a word that the reader replaces, see pages.calls.
PLACE = "1"


def check(words: list[str]) -> None:
    """Raise an error if the words of a command (see pages.calls) name a setting, option or file that does not exist."""
    if words[0] == "benchmarks":
        given = read_words(words[1:])
        if given.name != PLACE:
            command.find_benchmark(given.name, given.settings)
        return
    group = typer.main.get_command(app)
    with group.make_context("fedmpi", list(words)) as context:
        name, chosen, rest = group.resolve_command(context, list(words))
        # A running text may give the bare name of a command.
        if not rest:
            return
        found = chosen.make_context(name, rest, parent=context).params
    if PLACE in (found.get("config"), found.get("path"), *(found.get("paths") or [])):
        return
    if "config" in found:
        load_config(found["config"], [text for text in found["overrides"] or [] if not text.endswith(f"={OPEN}")])
    for path in [found.get("path"), *(found.get("paths") or [])]:
        if path and path.endswith(".yaml"):
            read = job.load_job(path)
            assert found.get("scale") in (None, *read.scales), found["scale"]
