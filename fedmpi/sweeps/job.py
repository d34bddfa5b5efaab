"""A job file: a table of runs (rows x columns x seeds) and the published numbers beside it.

    title: what is shown                     seeds: [0, 1, 2]
    config: ../configs/mnist.yaml            (beside the job file)
    set: {rounds: 100}                       settings of all runs, as in a configuration
    scales: {small: {rounds: 10}}            smaller variants, chosen with --scale; they may have seeds of their own,
                                             and `columns: {NAME: settings}`: those that they keep, and change
    columns: {beta .1: {data.partition.beta: .1}}
    rows: {FedAvg: fedavg, FedMHC: {method: {name: fedmhc, lam: .1}}}
    measure: accuracy_at_best_validation     the default: on test samples, in the best round on validation samples, for
                                             which `data.split` needs three shares ([.6, .15, .25]);
                                             accuracy_best_on_test: in the best round on test samples, as papers print
    published: {FedAvg: {beta .1: [31.89, .44]}}     a number, or [mean, spread]; accuracies and F1 in percent
    published_rounds: 500                    the rounds behind these numbers, or {ROW: rounds}
    baseline: Local                          the row that all others are compared with; the default is the best one
    also: {f1_mean: {FedAvg: {beta .1: 30}}}         a table of another measure of the same runs

A row that is a bare name is a method; `equal_steps: ROW` in one lets it make as many gradient steps as another row
(`Local, equal steps: {method: local, equal_steps: FedAH}`). `variant_of: ROW` makes it a variant of another row: it has
that row's settings, cells and published numbers; its own settings change that row's, and its own cells that row's cells
(`FedMHC, drop_last: {variant_of: FedMHC, train.drop_last: true}`). The order of rows is compared with the published one
without variants. `cells: {ROW: {COLUMN: settings}}` changes single cells.
Later settings win: set, scale, column, row, the scale's column, cell, seed."""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

from fedmpi import registry
from fedmpi.config import schema
from fedmpi.config.load import format_yaml, parse_yaml, read_yaml, refuse_endless
from fedmpi.config.overrides import flatten_values
from fedmpi.config.schema import Config
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.paths import is_readable, refuse_empty_path
from fedmpi.settings import make_settings, shorten_value
from fedmpi.shipped import find_shipped, name_hint
from fedmpi.storage import changed_settings, run_files, run_status
from fedmpi.storage.folder import refuse_file_of_run
from fedmpi.storage.run_status import AT_BEST_VALIDATION
from fedmpi.sweeps import equal
from fedmpi.sweeps.published import check_published, list_published_rounds
from fedmpi.sweeps.rows import EQUAL, check_rows, expand_method_name, find_other_row, list_sources, refuse_variants
from fedmpi.sweeps.shown_measures import check_measures, refuse_measures_of_other_task, refuse_unasked, refuse_unchosen

# entries of a scale that are not settings of its runs
NARROWS = ("columns", "seeds")
# A restart may change these settings, but they change what a table shows.
SHOWN = ("evaluate", "stop", "edge", "faults")


@dataclass(frozen=True)
class SweepJob:
    """What a job file says; see above."""
    called = "a job"
    title: Annotated[str, "what the runs show"]
    config: Annotated[str, "configuration that all runs start from, beside the job file"]
    rows: Annotated[JsonObject, "methods and their settings, by name"]
    columns: Annotated[dict[str, JsonObject], "settings of each column, by name"]
    set: Annotated[JsonObject, "settings of all runs"]
    scales: Annotated[dict[str, JsonObject], "smaller variants"]
    seeds: Annotated[list[int], "one run of every cell for each"]
    published: Annotated[dict[str, JsonObject], "by row and column; shares in percent"]
    measure: Annotated[str, "key of result.json that the table shows"] = f"accuracy{AT_BEST_VALIDATION}"
    also: Annotated[dict[str, dict[str, JsonObject]],
                    "what is published of further measures, by measure, row and column"] = field(default_factory=dict)
    published_rounds: Annotated[int | dict[str, int],
                                "rounds behind the published numbers, of all rows or by row"] = field(
        default_factory=dict)
    cells: Annotated[dict[str, JsonObject], "settings of single cells, by row and column"] = field(
        default_factory=dict)
    baseline: Annotated[str | None, "row that all others are compared with; null: the best row of a column"] = None


DEFAULTS = {"columns": {"result": {}}, "set": {}, "scales": {}, "seeds": [0], "published": {}}


class PlannedRun(NamedTuple):
    """One run of a job."""
    row: str
    column: str
    seed: int
    config: Path
    # settings as key=value, as on the command line
    overrides: list[str]
    folder: Path
    # all settings, as the overrides leave them
    settings: Config
    accept_changed_code: bool = False

    @property
    def name(self) -> str:
        """Row, column and seed, for the user."""
        return f"{self.row} / {self.column} / seed {self.seed}"

    def words(self) -> list[str]:
        """Return the words behind `fedmpi`."""
        return ["run", str(self.config), *self.overrides, "--out", str(self.folder), "--resume", "auto",
                *(["--accept-changed-code"] if self.accept_changed_code else [])]

    def named_code(self) -> frozenset[str]:
        """Return the names of the classes that this run's settings name, built in or the user's own."""
        settings = self.settings
        return frozenset([settings.data.name, *map(schema.find_name, (
            settings.data.partition, settings.model, settings.method))])

    def outcome(self) -> run_status.Outcome:
        """Return how far it came."""
        return run_status.read_outcome(self.folder, self.settings.rounds)


def plan_job(path: str, scale: str | None, out: str | None,
             measures: Collection[str] | None = None) -> tuple[SweepJob, list[PlannedRun]]:
    """Return a job as a scale narrows it, and its runs.

    Args:
        path: the job file, or the name of one that came with fedmpi
        scale: a smaller variant that the job names
        out: folder of the runs; None: runs/JOB[-SCALE]
        measures: what tables will show in place of the job's `measure` and `also`

    Raises BadInput."""
    refuse_empty_path("--out", out)
    found = str(find_shipped(path, "jobs"))
    job = load_job(found)
    folder = Path(out or f"runs/{Path(path).stem}{'-' + scale if scale else ''}")
    runs = expand(job, found, folder, scale, measures)
    return narrow_job(job, scale), runs


def list_job_words(path: str, scale: str | None, out: str | None) -> list[str]:
    """Return the words that name a job on the command line; arguments as of `plan_job`."""
    return [path, *(["--scale", scale] if scale else []), *(["--out", out] if out else [])]


def load_job(path: str | Path) -> SweepJob:
    """Read a job file. Raises BadInput that names the file and what is wrong in it."""
    refuse_file_of_run(Path(path))
    try:
        values = parse_yaml(read_yaml(Path(path)))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}{name_hint(path, 'jobs')}") from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path}: a job is a mapping with title, config and rows")
    try:
        refuse_endless(values)
        job = make_settings(SweepJob, DEFAULTS | values, "")
        check_job(job)
    except BadInput as error:
        raise BadInput("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None
    return job


def check_job(job: SweepJob) -> None:
    """Refuse a job whose runs would overwrite each other, or whose published numbers belong to no cell."""
    for kind in ("rows", "columns"):
        names: dict[str, str] = {}
        for name in getattr(job, kind):
            if (first := names.setdefault(make_slug(name), name)) != name:
                raise BadInput(f"{kind}: {first!r} and {name!r} would share the folder {make_slug(name)}; rename one")
        if not names:
            raise BadInput(f"{kind} is empty: give one at least")
    check_seeds(job.seeds, "seeds")
    for name, scale in job.scales.items():
        seeds, kept = scale.get("seeds", job.seeds), scale.get("columns", job.columns)
        whole = isinstance(kept, dict) and all(isinstance(settings, dict) for settings in kept.values())
        if not whole or not kept or not set(kept) <= set(job.columns):
            raise BadInput(f"scales.{name}.columns = {kept}: a mapping of some of {', '.join(job.columns)} to settings")
        check_seeds(seeds, f"scales.{name}.seeds")
    check_measures(job.measure, job.also)
    refuse_seeds_elsewhere(job)
    for row, cells in job.cells.items():
        unknown = [row] if row not in job.rows else [c for c in cells if c not in job.columns]
        if unknown:
            raise BadInput(f"cells: {unknown[0]!r} is not among the {'columns' if row in job.rows else 'rows'}")
        if bad := [column for column, settings in cells.items() if not isinstance(settings, dict)]:
            raise BadInput(f"cells.{row}.{bad[0]} = {shorten_value(cells[bad[0]])}: give a mapping of settings")
    check_rows(job.rows)
    for where, published in (("published", job.published), *((f"also.{m}", cells) for m, cells in job.also.items())):
        check_published(published, job.rows, job.columns, where)
        refuse_variants(published, job.rows, where)
    list_published_rounds(job.published_rounds, job.rows)
    if isinstance(job.published_rounds, dict):
        refuse_variants(job.published_rounds, job.rows, "published_rounds")
    if job.baseline is not None and job.baseline not in job.rows:
        raise BadInput(f"baseline = {job.baseline}: name a row of this job; its rows: {', '.join(job.rows)}")


def list_views(job: SweepJob) -> list[SweepJob]:
    """Return the job once for each of its measures."""
    return [job, *(dataclasses.replace(job, measure=m, published=cells) for m, cells in job.also.items())]


def check_seeds(seeds: object, where: str) -> None:
    """Raise BadInput unless `seeds` is a list of different whole numbers."""
    if not (isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)
            and len(set(seeds)) == len(seeds)):
        raise BadInput(f"{where} = {seeds}: give a list of different whole numbers, at least one")


def refuse_seeds_elsewhere(job: SweepJob) -> None:
    """Raise BadInput for a seed among settings: those of `seeds` win, so it would do nothing."""
    places = {"set": job.set, **{f"columns.{name}": given for name, given in job.columns.items()},
              **{f"rows.{name}": given for name, given in job.rows.items()},
              **{f"cells.{row}.{name}": given for row, cells in job.cells.items() for name, given in cells.items()},
              **{f"scales.{name}": given for name, given in job.scales.items()},
              **{f"scales.{scale}.columns.{name}": given for scale, kept in job.scales.items()
                 for name, given in kept.get("columns", {}).items()}}
    for where, settings in places.items():
        if isinstance(settings, dict) and "seed" in settings:
            raise BadInput(f"{where}.seed = {settings['seed']}: the seeds of a job's runs are its `seeds`; set "
                           f"seeds: [{settings['seed']}]")


def narrow_job(job: SweepJob, scale: str | None) -> SweepJob:
    """Return the job with the columns and seeds that a scale keeps; all where there is no such scale."""
    chosen = {} if scale is None else job.scales.get(scale, {})
    kept = {name: job.columns[name] for name in job.columns if name in chosen.get("columns", job.columns)}
    return dataclasses.replace(job, columns=kept, seeds=chosen.get("seeds", job.seeds))


def expand(job: SweepJob, path: str | Path, out: Path, scale: str | None,
           measures: Collection[str] | None = None) -> list[PlannedRun]:
    """Return all runs of a job with their settings checked; `measures` as of `plan_job`. Raises BadInput, also where a
    folder holds another run; one whose settings cannot be read stops only a sweep, see
    `changed_code.refuse_unknown_runs`."""
    if scale is not None and scale not in job.scales:
        raise BadInput(f"{path}: there is no scale {scale!r}; its scales: {', '.join(job.scales) or 'none'}")
    beside, by_name = Path(path).parent / job.config, find_shipped(job.config, "configs")
    source = (by_name if by_name.is_file() and not beside.exists() else beside).resolve()
    runs: list[PlannedRun] = []
    of_scale = {} if scale is None else job.scales[scale]
    job, shown = narrow_job(job, scale), measures or (job.measure, *job.also)
    for seed, column, row in product(job.seeds, job.columns, job.rows):
        other, where = find_other_row(job.rows, row, EQUAL), f"{path}: {row} / {column} / seed {seed}"
        try:
            overrides = list_overrides(job, of_scale, row, column, seed)
            settings = schema.load_config(str(source), overrides, "")
            if other is not None:
                equal_to = schema.load_config(str(source), list_overrides(job, of_scale, other, column, seed), "")
                overrides.append(equal.find_equal_setting(settings, equal_to))
                settings = schema.load_config(str(source), overrides, "")
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        refuse_measures_of_other_task(shown, settings, where)
        refuse_unchosen(shown, settings, where)
        folder = out / make_slug(row) / make_slug(column) / f"seed-{seed}"
        runs.append(PlannedRun(row, column, seed, source, overrides, folder, settings))
    refuse_unasked(shown, [run.settings for run in runs], str(path))
    for run in runs:
        refuse_other(run)
    return runs


def list_overrides(job: SweepJob, of_scale: JsonObject, row: str, column: str, seed: int) -> list[str]:
    """Return what a job sets for a run as key=value, later settings last; `of_scale` is its entry of the scale."""
    sources, of_all = list_sources(job.rows, row), {k: v for k, v in of_scale.items() if k not in NARROWS}
    of_rows = [expand_method_name(job.rows[name]) for name in sources]
    of_cells = [job.cells.get(name, {}).get(column, {}) for name in sources]
    of_column, narrowed = job.columns[column], of_scale.get("columns", {}).get(column, {})
    given = [job.set, of_all, of_column, *of_rows, narrowed, *of_cells, {"seed": seed}]
    return [text for settings in given for text in flatten_to_words(settings)]


def refuse_other(run: PlannedRun) -> None:
    """Raise BadInput if the folder of a run holds a run with other settings. Of settings that cannot be read that is
    not known."""
    if not is_readable(run.folder) or not (run.folder / run_files.CONFIG).exists():
        return
    try:
        there = run_status.read_settings(run.folder)
    except BadInput:
        return
    # Resolved again, for newer settings had their defaults; or as they are, if they name code that this run does not.
    with (suppress(BadInput, ValueError, TypeError, KeyError, AttributeError),
          registry.refuse_own_code(but=run.named_code())):
        there = schema.to_plain(schema.resolve(there))
    if differ := [*changed_settings.find_other_settings(there, schema.to_plain(run.settings), SHOWN)]:
        raise BadInput(f"{run.folder} holds a run with other settings ({', '.join(differ[:8])}"
                       f"{', ...' * (len(differ) > 8)}) than {run.name} of this job; remove it, or give the sweep "
                       "another --out")


def flatten_to_words(settings: JsonObject) -> list[str]:
    """Return settings as key=value texts of the command line. Raises BadInput."""
    return [f"{key}={format_yaml(value, in_one_line=True)}" for key, value in flatten_values(settings)]


def make_slug(name: str) -> str:
    """Return a name as part of a path."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "x"
