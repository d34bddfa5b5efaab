"""Results as a table, in Markdown and CSV: mean and spread over seeds, with the published numbers beside them."""
from __future__ import annotations

import difflib
import statistics
from typing import NamedTuple

from fedmpi import registry
from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.engines.step_counter import KINDS
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.report import steps
from fedmpi.report.escapes import escape_markdown
from fedmpi.report.length import LENGTH_EXPLAINED, Length, find_length, show_length
from fedmpi.report.measure_names import BETTER, COSTS, ERRORS, find_factor, is_named
from fedmpi.report.results import Results
from fedmpi.text import format_csv

PERCENT_FORM, ERROR_FORM = ".2f", ".4g"
# significant digits of a mean
MEAN_DIGITS = 12
VARIANT_EXPLAINED = "variants, which have the published number of another row and do not count in the order"
LONGER = "a finished run has more rounds than the job asks for, so the seeds of a cell may differ in rounds"
UNDEFINED = "a finished run has no number of this measure, and the mean leaves it out"
UNFINISHED, UNSPLIT = "not all seeds are finished", "clusters were never split: FedAvg with a plain mean"


class Cell(NamedTuple):
    """The numbers of one row and column; accuracies and F1 in percent."""
    # the measures of the finished seeds
    values: list[float]
    # seeds that are not finished
    missing: int
    # mean and spread
    published: tuple[float, float | None] | None
    # the method splits clusters, and did so with no seed
    unsplit: bool = False
    # steps behind a client's evaluated model, by kind; None: they were not counted
    steps: dict[str, float] | None = None
    # how its numbers are written, see Python's format()
    form: str = PERCENT_FORM
    # the runs' rounds beside the published ones; None: they are not known
    length: Length | None = None
    # a run has more rounds than are asked for
    longer: bool = False
    # finished seeds whose measure has no number, while others have one
    undefined: int = 0

    @property
    def mean(self) -> float:
        """Mean over seeds, without the noise of floating-point arithmetic, so that means that are equal on paper are
        ties; nan if none is finished."""
        return float(f"{statistics.fmean(self.values):.{MEAN_DIGITS}g}") if self.values else float("nan")

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def texts(self) -> tuple[str, str, str]:
        """Return the measured number, the published one and their difference, as texts."""
        if not self.published:
            return format_number(self.mean, self.spread, self.form), "-", "-"
        difference = format(self.mean - self.published[0], f"+{self.form}") if self.values else "-"
        return (format_number(self.mean, self.spread, self.form),
                format_number(*self.published, self.form), difference)


class Table(NamedTuple):
    """The cells of one measure, and what is known of each column."""
    measure: str
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], Cell]
    # columns with a published number
    compared: set[str]
    # best mean of a column
    best: dict[str, float]
    # by column: Kendall's tau of the order of its rows and the published one, without variants, and the number of rows
    tau: dict[str, tuple[float, int]]
    # the rows that have the published number of another row, and this row
    variants: dict[str, str]

    def is_best(self, row: str, column: str) -> bool:
        """Say whether a cell has the best mean of its column."""
        return self.cells[row, column].mean == self.best.get(column)

    @property
    def incomplete(self) -> bool:
        """Whether seeds of some cell are not finished."""
        return any(cell.missing for cell in self.cells.values())

    @property
    def unsplit(self) -> bool:
        """Whether a method that splits clusters has not done so in some cell."""
        return any(cell.unsplit for cell in self.cells.values())

    @property
    def counted(self) -> set[str]:
        """Return the columns of which some steps are known."""
        return {column for (_, column), cell in self.cells.items() if cell.steps is not None}

    @property
    def kinds(self) -> bool:
        """Say whether steps are of several kinds, so that their sum does not say all."""
        return len({kind for cell in self.cells.values() for kind in cell.steps or ()}) > 1

    @property
    def measured(self) -> set[str]:
        """Return the columns of which some length is known beside the published one."""
        return {column for (_, column), cell in self.cells.items() if cell.length is not None}

    def heads(self, column: str) -> list[str]:
        """Return what a column's places hold."""
        return ["here", *["steps"] * (column in self.counted), *["length"] * (column in self.measured),
                *(["published", "difference"] if column in self.compared else [])]

    def texts(self, row: str, column: str) -> list[str]:
        """Return a cell's text in each of these places."""
        cell = self.cells[row, column]
        measured, *others = cell.texts()
        return [measured, *[steps.show_steps(cell.steps)] * (column in self.counted),
                *[show_length(cell.length)] * (column in self.measured),
                *(others if column in self.compared else [])]

    def notes(self) -> list[str]:
        """Return the lines below the table."""
        told = [f"{row} (of {base})" for row, base in self.variants.items()]
        names = {(row, column): row if column == "result" else f"{row} ({column})" for row, column in self.cells}
        longer = [names[place] for place, cell in self.cells.items() if cell.longer]
        without = [names[place] for place, cell in self.cells.items() if cell.undefined]
        return [*steps.list_notes(self), *[LENGTH_EXPLAINED] * bool(self.measured),
                *[f"‡ {LONGER}: {', '.join(longer)}"] * bool(longer),
                *[f"§ {UNDEFINED}: {', '.join(without)}"] * bool(without),
                *[f"{VARIANT_EXPLAINED}: {', '.join(told)}"] * bool(told)]


def make_tables(results: Results) -> list[Table]:
    """Return a table of each measure; only the first one must have numbers. Raises BadInput, see `make_table`."""
    return [make_table(results, measure, published, i > 0)
            for i, (measure, published) in enumerate(results.measures.items())]


def make_table(results: Results, measure: str, published: JsonObject, may_lack: bool = False) -> Table:
    """Return the table of one measure.

    Raises BadInput if all runs are finished and none has it, unless all `may_lack` it, or if it is not a number."""
    cells = {}
    done = [run.outcome.result for run in results.runs if run.outcome.result]
    refuse_unknown_measure(measure, done, may_lack or len(done) < len(results.runs))
    form = choose_form(measure, [result[measure] for result in done if result.get(measure) is not None])
    for row in results.rows:
        for column in results.columns:
            runs = results.of(row, column)
            found = [run.outcome.result for run in runs]
            values = [find_factor(measure) * r[measure] for r in found if r and r.get(measure) is not None]
            missing = found.count(None)
            # A finished run may lack the measure, since not every method has it.
            clusters = [r["clusters_found"] for r in found if r and "clusters_found" in r]
            known = split_published((published.get(row) or {}).get(column))
            cells[row, column] = Cell(values, missing, known, bool(clusters) and max(clusters) == 1,
                                      steps.compute_mean_steps_of_cell(found), form,
                                      find_length(found, results.published_rounds.get(row)) if known else None,
                                      any(run.is_longer for run in runs),
                                      len(found) - missing - len(values) if values else 0)
    return fill_table(measure, results.rows, results.columns, cells, {
        row: base for row, base in results.variants.items() if row in published})


def choose_form(measure: str, values: list[float]) -> str:
    """Return how a measure is shown: errors, and others of which all values are small, with four significant digits,
    and the rest, as shares in percent, with two places."""
    small = find_factor(measure) == 1 and not is_named(measure, BETTER) and max(map(abs, values), default=1) < 1
    return ERROR_FORM if small or is_named(measure, ERRORS) else PERCENT_FORM


def refuse_unknown_measure(measure: str, found: list[JsonObject], more: bool = False) -> None:
    """Raise BadInput if no run can have a measure, or if it is not a number.

    Args:
        found: the results of the finished runs.
        more: whether it is a further one, or other runs are not finished, which may have it: not every method has every
            measure."""
    if found and not more and not any(measure in result for result in found):
        near, further = difflib.get_close_matches(measure, set().union(*found), 3), measure.rpartition("_")[0]
        raise BadInput(f"measure {measure!r}: no finished run has it in its result.json" + (
            f"; it is taken if evaluate.measures names {further}" if further in registry.list_available("measures") else
            f"; did you mean {' or '.join(near)}?" if near else ""))
    if any(isinstance(result.get(measure), list | dict | str) for result in found):
        raise BadInput(f"measure {measure!r}: it is not a number, which a table needs"
                       + (", and every table shows the steps" if measure.startswith("steps") else ""))


def fill_table(measure: str, rows: list[str], columns: list[str], cells: dict[tuple[str, str], Cell],
               variants: dict[str, str] | None = None) -> Table:
    """Return the table of these cells, with the best of each column and the agreement with what is published.

    Args:
        variants: the rows that have the published number of another row, and this row."""
    variants = variants or {}
    wanted = (None if "_undefined" in measure else min if is_named(measure, COSTS) else
              max if is_named(measure, BETTER) else None)
    by_column = {column: [cells[row, column] for row in rows] for column in columns}
    best = {c: wanted(cell.mean for cell in of if cell.values) for c, of in by_column.items()
            if wanted and any(cell.values for cell in of)}
    compared = {c for c, of in by_column.items() if any(cell.published for cell in of)}
    ordered = {c: [cells[row, c] for row in rows if row not in variants] for c in columns}
    return Table(measure, rows, columns, cells, compared, best,
                 {c: tau for c, of in ordered.items() if (tau := compute_kendall_agreement(of)) is not None}, variants)


def split_published(value: float | list[float] | None) -> tuple[float, float | None] | None:
    """Return a published number as mean and spread."""
    if value is None:
        return None
    return (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)


def format_number(mean: float, spread: float | None, form: str = PERCENT_FORM) -> str:
    """Return a mean, with its spread if there is one, as text."""
    if mean != mean:
        return "-"
    return format(mean, form) + (f" ± {spread:{form}}" if spread is not None else "")


def compute_kendall_agreement(cells: list[Cell]) -> tuple[float, int] | None:
    """Return how well the order of rows agrees with the published one, Kendall's tau (1: the same, -1: reversed), and
    how many rows there are; None for fewer than three, or where all are equal."""
    both = [(cell.mean, cell.published[0]) for cell in cells if cell.values and cell.published]
    if len(both) < 3:
        return None
    from scipy.stats import kendalltau
    tau = float(kendalltau(*zip(*both, strict=True)).statistic)
    return None if tau != tau else (tau, len(both))


def table_to_markdown(table: Table, by_kind: bool = True) -> str:
    """Return the table as Markdown: the best of each column in bold, then the agreement of the order of rows.

    Args:
        by_kind: append the steps by kind, which are the same for every measure of the same runs."""
    heads = [h for c in table.columns for h in (escape_markdown(c), *table.heads(c)[1:])]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    for row in table.rows:
        line = []
        for c in table.columns:
            measured, *others = table.texts(row, c)
            line.append((f"**{measured}**" if table.is_best(row, c) else measured)
                        + (" *" if table.cells[row, c].missing else "")
                        + (" †" if table.cells[row, c].unsplit else "")
                        + (" ‡" if table.cells[row, c].longer else "")
                        + (" §" if table.cells[row, c].undefined else ""))
            line += others
        lines.append(f"| {escape_markdown(row)} | " + " | ".join(line) + " |")
    lines += [line for note in table.notes() for line in ("", escape_markdown(note))]
    if table.incomplete:
        lines += ["", f"\\* {UNFINISHED}"]
    if table.unsplit:
        lines += ["", f"† {UNSPLIT}"]
    lines += [f"\n{escape_markdown(c)}: order of {n} rows against the published one, Kendall's tau {tau:.2f}"
              for c, (tau, n) in table.tau.items()]
    return "\n".join(lines) + "\n" + (f"\n{steps_to_markdown(table)}" if by_kind and table.kinds else "")


def steps_to_markdown(table: Table) -> str:
    """Return the steps by kind of every row as Markdown."""
    columns = [c for c in table.columns if c in table.counted]
    lines = ["| steps by kind | " + " | ".join(map(escape_markdown, columns)) + " |", "|---|" + "---|" * len(columns)]
    lines += [
        f"| {escape_markdown(row)} | " + " | ".join(steps_to_text(table.cells[row, c].steps) for c in columns) + " |"
        for row in table.rows
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Return one line per row and column."""
    lines: list[list[object]] = [["row", "column", "mean", "std", "seeds", "published", "published_std", "steps",
                                  *(f"steps_{kind}" for kind in KINDS), "rounds", "published_rounds"]]
    for (row, column), cell in table.cells.items():
        published = ["" if value is None else value for value in cell.published or (None, None)]
        length = ["", ""] if cell.length is None else [steps.format_for_csv(cell.length.made), cell.length.published]
        lines.append([row, column, *map(steps.format_for_csv, (cell.mean, cell.spread)), len(cell.values),
                      *published, *steps.list_csv_steps(cell.steps), *length])
    return format_csv(lines)
