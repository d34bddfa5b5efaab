"""Write a report into a folder: one page that holds everything, the table in other forms, the figures, and how each run
can be repeated."""
from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedmpi import __version__
from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.json_values import JsonObject
from fedmpi.own_code.changes import list_code_differences
from fedmpi.paths import write_text
from fedmpi.report import figures, latex, significance, tables
from fedmpi.report.escapes import escape_markdown
from fedmpi.report.figures.style import FIGURE_WIDTH_IN, FORMS, FORMS_FOR_PRINT, render
from fedmpi.report.file_names import make_file_part
from fedmpi.report.measure_names import find_factor
from fedmpi.report.results import ReportRun, Results
from fedmpi.storage.atomic import report_failed_writes
from fedmpi.storage.run_status import list_accepted_changes

KEPT_MEASURES = ("accuracy_mean", "accuracy_at_best_validation", "chosen_round", "accuracy_best_on_test", "best_round",
                 "accuracy_worst_decile", "accuracy_variance", "accuracy_gini", "accuracy_new_clients", "new_clients",
                 "f1_mean", "mse_mean", "mse_at_best_validation", "mse_best_on_test", "mse_worst_decile",
                 "mse_variance", "mse_gini", "mse_new_clients", "mae_mean", "ended", "digest", "seconds", "ranks",
                 "engine", "steps_so_far", "federation", "files", "own_code", "accepted_code_changes")
PAGE = "index.html"
# what the numbers of a table are, and the table
Described = tuple[str, tables.Table]


class PageFigure(NamedTuple):
    """A figure of the page."""
    name: str
    caption: str
    # the SVG in base64
    svg: str
    # whether it takes the whole width
    broad: bool


def write_report(results: Results, to: Path, for_print: bool = False) -> Path:
    """Write all that is known so far: tables and the page at once, figures as they come. Return the page.

    Raises BadInput and FedmpiError.

    Args:
        for_print: also write figures as PDF files, and PNG files of 300 dpi"""
    found = [(describe_results(results, table), table) for table in tables.make_tables(results)]
    comparisons = [one for column in results.columns if (one := significance.compare_column(results, column))]
    shown: list[PageFigure] = []
    with report_failed_writes(to):
        to.mkdir(parents=True, exist_ok=True)
        write_tables(results, found, to)
        write_pages(results, found, comparisons, shown, to)
        for picture in figures.draw_figures(results):
            files = render(picture.figure, FORMS_FOR_PRINT if for_print else FORMS)
            for form, data in files.items():
                (to / f"{picture.name}.{form}").write_bytes(data)
            broad = picture.figure.get_figwidth() > FIGURE_WIDTH_IN
            shown.append(PageFigure(picture.name, picture.caption, base64.b64encode(files["svg"]).decode(), broad))
        write_pages(results, found, comparisons, shown, to)
    return to / PAGE


def write_tables(results: Results, found: list[Described], to: Path) -> None:
    """Write the tables as CSV and LaTeX, and how each run is repeated."""
    for what, table in found:
        name = "table" if table is found[0][1] else f"table-{make_file_part(table.measure)}"
        write_text(to / f"{name}.csv", tables.to_csv(table))
        write_text(to / f"{name}.tex", latex.to_latex(table, f"{results.title}. {what}"))
    kept = dict.fromkeys([*KEPT_MEASURES, *results.measures])
    write_text(to / "runs.json", json.dumps([describe_repetition(run, kept) for run in results.runs], indent=1) + "\n")


def write_pages(results: Results, found: list[Described], comparisons: list[significance.Comparison],
                shown: list[PageFigure], to: Path) -> None:
    """Write the page and its Markdown, with the figures that are there."""
    tests = significance.tests_to_markdown(comparisons)
    remarks = "".join(f"{escape_markdown(line)}\n\n" for line in list_remarks(results))
    write_text(to / "README.md", f"# {escape_markdown(results.title)}\n\n`{results.command}`\n\n"
               + "".join(f"{what}\n\n{tables.table_to_markdown(table, by_kind=not i)}\n"
                         for i, (what, table) in enumerate(found))
               + (f"{tests}\n" if tests else "") + remarks
               + "".join(f"![{one.name}]({one.name}.png)\n" for one in shown))
    write_text(to / PAGE, render_page(results, found, comparisons, shown))


def render_page(results: Results, found: list[Described], comparisons: list[significance.Comparison],
                shown: list[PageFigure]) -> str:
    """Return the page: it loads nothing, so it can be mailed and kept."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(loader=PackageLoader("fedmpi.report", "."), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").render(
        results=results, tables=found, figures=shown, version=__version__, steps_by_kind=steps_to_text,
        remarks=list_remarks(results), comparisons=comparisons, meaning=significance.explain_tests(comparisons))


def list_remarks(results: Results) -> list[str]:
    """Return a line for each change of the user's own code that a run accepted between two starts, one for each row
    whose runs differ in such code, those of `list_sample_differences`, and one for all finished runs of which a file is
    missing or damaged."""
    changes = [f"{run.name}, seed {run.seed}: {line}" for run in results.runs
               for line in list_accepted_changes(run.outcome)]
    finished = [run for run in results.runs if run.outcome.result]
    short = [run for run in finished if run.outcome.round < (run.outcome.result or {}).get("rounds", 0)]
    changes += [f"{row}: {line}" for row in results.rows for line in list_code_differences(
        {f"{run.name}, seed {run.seed}": (run.outcome.result or {}).get("own_code")
         for run in results.runs if run.row == row})]
    changes += significance.list_sample_differences(results.runs)
    return changes + [f"{lack}: " + "; ".join(f"{run.name}, seed {run.seed}" for run in runs) for lack, runs in (
        ("metrics.jsonl cannot be read to its end, and curves end there", short),
        ("history.h5 is missing or damaged, and tests and figures leave out the clients",
         [run for run in finished if not run.history]),
        ("config.yaml cannot be read, and tests and figures leave out the clients",
         [run for run in finished if run.history and run.last_measures is None])) if runs]


def describe_results(results: Results, table: tables.Table) -> str:
    """Say what the numbers are, of how many seeds they are, and how many rounds the runs behind them have.

    While no run is finished, there are no numbers, and the rounds say how far the runs came. Nor are there any while
    the finished runs are of methods that lack the measure."""
    finished = [run.outcome.result for run in results.runs if run.outcome.result]
    rounds: list[int] = sorted({result.get("rounds") or result.get("round") or 0 for result in finished}
                               or {run.outcome.round for run in results.runs})
    reached = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    counts = sorted({len(cell.values) for cell in table.cells.values() if cell.values}) or [0]
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if not any(counts):
        lack = (f"no finished run has a number of it; {reached} rounds" if finished else
                f"no run is finished yet; {reached} rounds so far")
        return f"{table.measure.replace('_', ' ').capitalize()}: {lack}."
    percent = {100: "Percent: ", 10_000: "Percent squared: "}.get(find_factor(table.measure), "")
    return (f"{percent}{table.measure.replace('_', ' ')}, "
            + (f"mean ± standard deviation over {seeds} seeds" if counts[-1] > 1 else "one seed")
            + f"; {reached} {'round' if reached == '1' else 'rounds'}.")


def describe_repetition(run: ReportRun, kept: Iterable[str]) -> JsonObject:
    """Return a run's command and what it gave: the keys `kept` of its result."""
    found = run.outcome
    result = found.result or {}
    return {"row": run.row, "column": run.column, "seed": run.seed, "state": found.state, "rounds": found.round,
            "command": run.command, **{k: result[k] for k in kept if k in result}}
