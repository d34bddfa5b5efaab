"""Write a report into a folder: one page that holds everything, the table in other forms, the figures, and how each run
can be repeated."""
from __future__ import annotations

import base64
import json
from pathlib import Path

from fedmpi import __version__
from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.report import figures, tables
from fedmpi.report.figures.style import FIGURE_WIDTH_IN, render
from fedmpi.report.results import Results, Shown
from fedmpi.storage.atomic import writing
from fedmpi.sweeps.job import slug

KEPT_MEASURES = ("accuracy_mean", "accuracy_at_best_validation", "chosen_round", "accuracy_best_on_test", "best_round",
        "accuracy_worst_decile", "f1_mean", "ended", "digest", "seconds", "ranks", "engine", "steps_so_far")
PAGE = "index.html"


def write_report(results: Results, to: Path) -> Path:
    """Write all that is known so far; returns the page. Raises BadInput and FedmpiError."""
    found, shown = [(describe_results(results, table), table) for table in tables.tables_of(results)], []
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
        for picture in figures.draw(results):
            (to / f"{picture.name}.png").write_bytes(render(picture.figure, "png"))
            svg = render(picture.figure, "svg")
            (to / f"{picture.name}.svg").write_bytes(svg)
            broad = picture.figure.get_figwidth() > FIGURE_WIDTH_IN
            shown.append((picture.name, picture.caption, base64.b64encode(svg).decode(), broad))
        (to / "README.md").write_text(
            f"# {results.title}\n\n`{results.command}`\n\n"
            + "".join(f"{what}\n\n{tables.to_markdown(table)}\n" for what, table in found)
            + "".join(f"![{name}]({name}.png)\n" for name, *_ in shown))
        for what, table in found:
            name = "table" if table is found[0][1] else f"table-{slug(table.measure)}"
            (to / f"{name}.csv").write_text(tables.as_csv(table))
            (to / f"{name}.tex").write_text(tables.latex(table, f"{results.title}. {what}"))
        (to / "runs.json").write_text(json.dumps([repeatable(run) for run in results.runs], indent=1) + "\n")
        (to / PAGE).write_text(page(results, found, shown))
    return to / PAGE


def page(results: Results, found: list, shown: list) -> str:
    """Return the page: it loads nothing, so it can be mailed and kept."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    room = Environment(loader=PackageLoader("fedmpi.report", "."), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, lstrip_blocks=True)
    return room.get_template("page.html").render(results=results, tables=found, figures=shown, version=__version__,
                                                  steps_by_kind=steps_to_text)


def describe_results(results: Results, table: tables.Table) -> str:
    """Say what the numbers are, and how far the runs came."""
    rounds = sorted({run.outcome.round for run in results.runs})
    reached = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    seeds = len(results.seeds)
    percent = "Percent: " if tables.unit_of(table.measure) == 100 else ""
    return (f"{percent}{table.measure.replace('_', ' ')}, "
            + (f"mean +- standard deviation over {seeds} seeds" if seeds > 1 else "one seed")
            + f"; {reached} rounds.")


def repeatable(run: Shown) -> dict:
    """Return a run's command and what it gave."""
    found = run.outcome
    result = found.result or {}
    return {"row": run.row, "column": run.column, "seed": run.seed, "state": found.state, "rounds": found.round,
            "command": run.command, **{k: result[k] for k in KEPT_MEASURES if k in result}}
