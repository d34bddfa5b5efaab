"""Tables of a day with a GPU: for a terminal, about 60 lines, and as Markdown, whole."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.paths import write_text
from fedmpi.report import gpu_day
from fedmpi.report.escapes import escape_markdown
from fedmpi.storage.atomic import report_failed_writes

Key = TypeVar("Key")

# Lines of the tables of a part.
LINES = 60
# Characters of a cell.
CELL_WIDTH = 90
ENGINES = ("loop", "vmap", "graphs")


class Grid(NamedTuple):
    """A table of texts."""
    title: str
    header: list[str]
    rows: list[list[str]]


def format_tables(book: JsonObject, part: str = "") -> str:
    """Return all tables; of a part of the day only its own, shortened so that they have about LINES lines."""
    found = list_grids(book, part)
    free = LINES - 2 - 2 * len(found) if part else sum(len(grid.rows) for grid in found)
    most = next((rows for rows in range(free, 2, -1) if sum(min(rows, len(g.rows)) for g in found) <= free), 2)
    return "\n".join([*describe_machine(book), *(line for grid in found for line in show_grid(grid, most))])


def show_grid(grid: Grid, most: int) -> list[str]:
    """Return the lines of a table with so many rows at most, whose cells are cut."""
    rows = [[cell[:CELL_WIDTH] for cell in row] for row in [grid.header, *grid.rows[:most]]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cut = f" (the first {most} of {len(grid.rows)})" if len(grid.rows) > most else ""
    return [grid.title + cut, *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def day_to_markdown(book: JsonObject) -> str:
    """Return all tables."""
    parts = ["\n".join(f"- {line}" for line in describe_machine(book))]
    for grid in list_grids(book):
        rows = ["| " + " | ".join(" ".join(escape_markdown(cell).split()) for cell in row) + " |" for row in grid.rows]
        parts.append("\n".join([f"**{grid.title}**", "", "| " + " | ".join(grid.header) + " |",
                                "|" + "---|" * len(grid.header), *rows]))
    return "\n\n".join(parts) + "\n"


def describe_machine(book: JsonObject) -> list[str]:
    """Say on what machine this was, and what it can do at most."""
    machine, ceilings = book["machine"], book["ceilings"]
    packages = machine.get("packages", {})
    named = [machine.get("gpu") or f"a {book['device']}", f"PyTorch {packages.get('torch', '?')}",
             f"CUDA {machine.get('cuda') or '-'}", f"cuDNN {machine.get('cudnn') or '-'}",
             f"driver {machine.get('smi', {}).get('driver_version', '-')}",
             f"commit {book['commit'] or '?'}", book["when"]]
    named += ["SMALL: a trial of the steps; the figures say nothing"] * bool(book["small"])
    peaks = ", ".join(f"{name} {value:g}" for name, value in ceilings.items()) or "?"
    return [", ".join(named), f"measured peaks: {peaks}"]


def list_grids(book: JsonObject, part: str = "") -> list[Grid]:
    """Return the tables that have rows, of all parts or of one."""
    if part:
        names = {row["name"] for row in book["steps"] if row["part"] == part}
        book = book | {section: [row for row in book[section] if row["step"] in names] for section in gpu_day.BOOK_ROWS}
    tables = {
        "correctness": (list_correctness, list_same_bits, list_kernels, list_captures, list_mpi, list_gradient_errors),
        "figures": (list_speed, list_round_parts, list_layers, list_candidates, list_sums, list_runs),
        "after": (list_correctness, list_speed, list_runs),
    }
    wanted = tables.get(part, tables["correctness"] + tables["figures"])
    return [grid for grid in (list_failed_steps(book), *(table(book) for table in wanted)) if grid.rows]


def list_failed_steps(book: JsonObject) -> Grid:
    """List the steps that did not end well, and the cases at which one died; the title counts the others."""
    taken = book["steps"]
    bad = [row for row in taken if not row["ok"]]
    rows = [[row["name"], f"{row['seconds']:.0f} s", row["why"]] for row in bad]
    rows += [["lost: " + row["case"], row["step"], row["why"]] for row in book["lost"]]
    total = sum(row["seconds"] for row in taken)
    title = f"{len(taken) - len(bad)} of {len(taken)} steps ended well, {total:.0f} s in all"
    return Grid(title, ["step", "took", "why"], rows or [["-"] * 3] * bool(taken))


def list_correctness(book: JsonObject) -> Grid:
    """Compare with the CPU's loop: the largest difference, and what is too far away or failed."""
    groups = group_rows(book["correct"], lambda row: (find_engine(row), row["precision"], row["model"]))
    rows = []
    for (engine, how, model), members in groups.items():
        known = [row["apart"] for row in members if row["apart"] is not None]
        bad = [f"{row['method']} ({row['error'] or format_value(row['apart'])})" for row in members
               if not row["within"] or row["error"]]
        rows.append([engine, how, model, str(len(members)), format_value(max(known)) if known else "-",
                     ", ".join(bad) or "none"])
    rows.sort(key=lambda row: row[-1] == "none")
    return Grid("as the CPU's loop", ["engine", "precision", "model", "methods", "largest difference", "too far"], rows)


def find_engine(row: JsonObject) -> str:
    """Return the engine of a row; vmap with CUDA graphs counts as `graphs`."""
    return "graphs" if row["graphs"] == "on" else row["engine"]


def list_same_bits(book: JsonObject) -> Grid:
    """Say which ways gave the digest of the same way in this process, in another, and of the plain engine."""
    found, rows = book["bits"]["digests"], []
    for case, digest in found.items():
        if ", new process" in case or case.endswith("again=1") or "exact sum" in case:
            continue
        model, engine = case.split()[:2]
        others = f"{case} again=1", f"{case}, new process", f"{model} {engine}"
        rows.append([case, digest[:12], *(describe_same_digest(found, digest, other) for other in others)])
    rows += [[case, value, "", "", ""] for case, value in found.items() if "exact sum" in case]
    return Grid("bits of whole runs", ["run", "digest", "again", "new process", "as the plain engine"], rows)


def describe_same_digest(found: JsonObject, digest: str, other: str) -> str:
    """Say whether another way gave the same digest."""
    return "-" if other not in found else "same" if found[other] == digest else "differs"


def list_kernels(book: JsonObject) -> Grid:
    """List which kernels give the same bits from run to run, in a batch, and at each place."""
    rows = [[name, *(format_finding(value.get(key)) for key in ("run_to_run", "batch", "position"))]
            for name, value in book["bits"]["kernels"].items()]
    rows.sort(key=lambda row: row[1:] == ["yes"] * 3)
    return Grid("bits of kernels: the same", ["kernel", "in a second run", "beside fewer clients", "at another place"],
                rows)


def format_finding(value: bool | None) -> str:
    """Return a finding as a word."""
    return "?" if value is None else "yes" if value else "NO"


def list_captures(book: JsonObject) -> Grid:
    """List what was recorded as CUDA graphs, and what failed recordings left."""
    found, rows = book["capture"], []
    for name in ("sync", "out_of_memory"):
        if name in found:
            rows.append([f"a recording that fails: {name}", list_values(found[name])])
    rows += [[f"card full, {left}", list_values(what)] for left, what in found.get("full", {}).items()]
    rows += [[f"price, {name}", list_values(what) if isinstance(what, dict) else what]
             for name, what in found.get("price", {}).items()]
    if recorded := found.get("recorded"):
        never = [name for name, counts in recorded.items() if not counts["recorded"]]
        rows.append(["recorded", f"{len(recorded) - len(never)} of {len(recorded)}; never: "
                     + (", ".join(never) or "none")])
    return Grid("CUDA graphs", ["what", "found"], rows)


def list_values(values: JsonObject) -> str:
    """Return `key value, ...` without empty values."""
    return ", ".join(f"{key} {format_value(value)}" for key, value in values.items() if value not in ("", None))


def list_mpi(book: JsonObject) -> Grid:
    """List how ranks on GPUs agreed."""
    groups, rows = group_rows(book["mpi"], lambda row: (row["step"], row["model"], row["engine"])), []
    for (step, model, engine), members in groups.items():
        digests = {row["digest"] for row in members}
        errors = [f"{row['ranks']} ranks: {row['error']}" for row in members if row["error"]]
        ways = ", ".join(f"{row['ranks']}{'' if row['aware'] == 'auto' else ' (' + row['aware'] + ')'}"
                         for row in members)
        verdict = "; ".join(errors) or ("same " + digests.copy().pop()[:12] if len(digests) == 1 else "DIFFER")
        rows.append([step, model, engine, ways, verdict])
    return Grid("digests by ranks", ["step", "model", "engine", "ranks", "digest"], rows)


def list_speed(book: JsonObject) -> Grid:
    """List milliseconds per client step of the bare loop, and how many times as fast as it engines are."""
    groups = group_rows(book["speed"], lambda row: (row["model"], row["shape"], row["precision"], row["step"]))
    rows = []
    for (model, shape, how, step), members in groups.items():
        alone = {row["engine"]: format_value(row["ms_step"]) for row in members if row["engine"].startswith("bare")}
        bare = [alone.get(name, "-") for name in ("bare", "bare, again", "bare, PyTorch's default precision")]
        for clients, some in group_rows(members, lambda row: row["clients"]).items():
            by = {row["engine"]: row for row in some if row["engine"] in ENGINES}
            if by:
                rows.append([f"{model} {shape}" + " (after)" * step.startswith("after"), how, *bare, str(clients),
                             *(compute_speedup(by.get(engine)) for engine in ENGINES)])
    return Grid("milliseconds per client step of a bare loop; times as fast as it",
                ["network", "precision", "bare", "again", "PyTorch's default", "clients", *ENGINES], rows)


def compute_speedup(row: JsonObject | None) -> str:
    """Return how many times as fast as the bare loop an engine is."""
    if row is None:
        return "-"
    return row["error"][:30] or (f"{row['ratio']:.2f} x" if row["ratio"] else format_value(row["ms_step"]) + " ms")


def list_round_parts(book: JsonObject) -> Grid:
    """List the milliseconds of a round by part."""
    ms = book["round"]["ms"]
    rows = [["evaluation" if name == "judge" else name, format_value(value)]
            for name, value in sorted(ms.items(), key=lambda item: -(item[1] or 0))]
    kernels = list(book["round"]["kernels_ms"].items())[:5]
    rows += [[f"kernel {name[:60]}", format_value(value)] for name, value in kernels]
    rows += [[f"wait for the GPU at {place}", str(times)] for place, times in list(book["round"]["syncs"].items())[:5]]
    return Grid("where a round goes (cnn4): ms, without the phases inside", ["phase", "ms"], rows)


def list_gradient_errors(book: JsonObject) -> Grid:
    """List for each precision and way the gradient that is farthest from float64's."""
    groups = group_rows([row for row in book["layers"] if row["step"] == "doubles"],
                     lambda row: (row["precision"], row["way"]))
    rows = []
    for (how, way), members in groups.items():
        worst = max(members, key=lambda row: row["apart"] or 0)
        rows.append([how, way, format_value(worst["apart"]), worst["layer"], worst["error"]])
    return Grid("a step of cnn4 against float64", ["precision", "way", "largest error", "of", "failed"], rows)


def list_layers(book: JsonObject) -> Grid:
    """List the speed of single layers."""
    rows = [[row["layer"], row["way"], row["precision"], str(row["clients"]),
             *map(format_value, (row["ms"], row["tflops"], row["gbs"])), row["error"]]
            for row in book["layers"] if row["step"] != "doubles"]
    return Grid("layers, forward and backward", ["layer", "way", "precision", "clients", "ms", "TFLOP/s",
                                                 "GB/s of weights", "failed"], rows)


def list_candidates(book: JsonObject) -> Grid:
    """List the speed of candidates for the engine."""
    order = sorted(book["candidates"], key=lambda row: (
        row["precision"], -row["clients"], row["ms_step"] is None, row["ms_step"]))
    rows = [[row["name"], row["precision"], str(row["clients"]), *map(format_value, (row["ms_step"], row["apart"])),
             row["error"]] for row in order]
    return Grid("a step of all clients (cnn4), candidates",
                ["way", "precision", "clients", "ms", "apart", "failed"], rows)


def list_sums(book: JsonObject) -> Grid:
    """List the milliseconds of sums, evaluation and MPI."""
    rows = [[row["what"].replace("judging", "evaluation"), str(row["clients"]), format_value(row["ms"]), row["error"]]
            for row in book["sums"]]
    return Grid("sums, evaluation, MPI", ["what", "clients or ranks", "ms", "failed"], rows)


def list_runs(book: JsonObject) -> Grid:
    """List whole runs and their seconds a round."""
    rows = [[row["engine"] + " (after)" * row["step"].startswith("after"),
             *map(str, (row["ranks"], row["every"], row["rounds"])),
             *map(format_value, (row["seconds"], row["train_s"], row["judge_s"])), row["error"]]
            for row in book["runs"]]
    return Grid("whole runs of cnn4", ["engine", "ranks", "evaluated every", "rounds", "seconds in rounds",
                                       "train s (last)", "evaluation s (last)", "failed"], rows)


def group_rows(rows: list[JsonObject], key: Callable[[JsonObject], Key]) -> dict[Key, list[JsonObject]]:
    """Return rows by their key, in the order in which keys first occur."""
    found: dict[Key, list[JsonObject]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def format_value(value: object) -> str:
    """Return a value for a cell."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_day(paths: list[Path], to: Path) -> Path:
    """Write the tables of days with a GPU, joined, as Markdown into a folder; returns the page. Raises BadInput."""
    if others := [path for path in paths if not gpu_day.is_book(path)]:
        raise BadInput(f"{others[0]} is not a {gpu_day.BOOK_NAME}, and runs have no table together with a day with a "
                       "GPU; give them to a report of their own")
    book = read_days(paths)
    with report_failed_writes(to):
        to.mkdir(parents=True, exist_ok=True)
        write_text(to / "README.md", f"# A day with a GPU\n\n{day_to_markdown(book)}")
    return to / "README.md"


def read_days(paths: list[Path]) -> JsonObject:
    """Return the joined book of days with a GPU. Raises BadInput for a value that no such day writes."""
    books = [gpu_day.load_book(path) for path in paths]
    for path, book in zip(paths, books, strict=True):
        try:
            gpu_day.join_books([book])
            day_to_markdown(book)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise BadInput(f"{path}: a value in it is not of the kind that a day with a GPU writes "
                           f"({type(error).__name__}: {error}); give the {gpu_day.BOOK_NAME} as it was written"
                           ) from None
    return gpu_day.join_books(books)
