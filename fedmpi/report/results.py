"""The results that a report shows: runs of a job or of run folders, in rows and columns, one for each seed."""
from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmpi import registry
from fedmpi.config import schema
from fedmpi.config.evaluation import NEW_CLIENTS_ENDING
from fedmpi.errors import BadInput, StorageError
from fedmpi.faults import choose_attackers, read_attack
from fedmpi.json_values import JsonObject, flatten_settings
from fedmpi.storage import run_files, run_status
from fedmpi.storage.changed_settings import is_among, is_free
from fedmpi.storage.history import read_history
from fedmpi.storage.run_status import AT_BEST_VALIDATION, BEST_ON
from fedmpi.storage.seal import DamagedFile
from fedmpi.sweeps.job import SHOWN, PlannedRun, SweepJob, list_views
from fedmpi.sweeps.published import list_published_rounds
from fedmpi.sweeps.rows import find_variants, share_with_variants
from fedmpi.task import CLASSIFICATION, REGRESSION, Task, find_task

if TYPE_CHECKING:
    from fedmpi.data.federation import Federation

# Settings that do not tell runs apart, beside those with which a run can be continued and that change no table.
ASIDE = ("seed", "engine", "evaluate.measures")
METHOD = "method."
# settings of the data that change no client's samples
WHERE_DATA_LIE = ("data.root", "data.cache")
# So many runs are named where some are refused or left out.
MOST_NAMED = 5


@dataclass
class ReportRun:
    """One run of a report. Its files are read when they are asked for."""
    row: str
    column: str
    seed: int
    folder: Path
    # the rounds that were asked for
    rounds: int = 0
    # the command that repeats the run
    command: str = ""
    # classes that the user's job names, which may be imported
    own_code: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Row and column of the run, for titles."""
        return self.row if self.column == "result" else f"{self.row}, {self.column}"

    @cached_property
    def outcome(self) -> run_status.Outcome:
        """How far the run came, and what it reached."""
        return run_status.read_outcome(self.folder, self.rounds)

    @property
    def is_longer(self) -> bool:
        """Whether it was finished with more rounds than are asked for: its job's `rounds` were lowered since."""
        result = self.outcome.result
        return result is not None and 0 < self.rounds < result["rounds"]

    @cached_property
    def history(self) -> dict[str, np.ndarray]:
        """Every measure by round and client, see `history.read_history`; {} if the file is missing, damaged, or cannot
        be read now."""
        try:
            return read_history(self.folder / run_files.HISTORY)
        except (DamagedFile, StorageError):
            return {}

    @property
    def task(self) -> Task | None:
        """What it learns; None before anything was measured."""
        lines = self.outcome.evaluated
        return find_task(lines[-1]) if lines else None

    @cached_property
    def settings(self) -> JsonObject | None:
        """The contents of its config.yaml; None if that cannot be read."""
        try:
            return run_status.read_settings(self.folder)
        except BadInput:
            return None

    @property
    def evaluated_part(self) -> str:
        """The part of the samples that its rounds are evaluated on, "test" or "validation" (`evaluate.on`)."""
        return str(flatten_settings(self.settings or {}).get("evaluate.on", "test"))

    @cached_property
    def data_settings(self) -> JsonObject:
        """The settings that say which samples each client has; {} if they cannot be read."""
        return {name: value for name, value in flatten_settings(self.settings or {}).items()
                if name.startswith("data.") and name not in WHERE_DATA_LIE}

    @cached_property
    def last_measures(self) -> np.ndarray | None:
        """The clients' accuracies, or errors, (clients,) at the end of a finished run; nan for attackers and clients
        without test samples. None if the run is not finished, or its history or settings cannot be read."""
        rounds = self.history.get(find_task(self.history).measure, ())
        if not self.outcome.result or not len(rounds) or self.settings is None:
            return None
        values = np.array(rounds[-1], float)
        try:
            attack = read_attack(self.settings)
            values[choose_attackers(attack, len(values), self.seed)] = np.nan
        except BadInput:
            return None
        return values

    @cached_property
    def federation(self) -> Federation | None:
        """Its federation; None if that is not on this machine."""
        from fedmpi.data.federation import find_federation
        if self.settings is None:
            return None
        with registry.refuse_own_code(but=self.own_code):
            try:
                settings = schema.resolve(self.settings)
                return find_federation(settings.data, settings.seed)
            # The run is of another version of fedmpi, names code that is not built in, or has written nothing yet.
            except BadInput:
                return None


@dataclass
class Results:
    """The runs of a report, and how they are arranged."""
    title: str
    # the command that makes the runs
    command: str
    rows: list[str]
    columns: list[str]
    seeds: list[int]
    runs: list[ReportRun]
    # what was published of each measure that has a table, by row and column; shares in percent
    measures: dict[str, JsonObject] = field(default_factory=lambda: {f"accuracy{BEST_ON}test": {}})
    # the rounds behind the published numbers, by row
    published_rounds: dict[str, int] = field(default_factory=dict)
    # the row that all others are compared with; None: the best row of a column
    baseline: str | None = None
    # the rows that change another row and have its published numbers, and this row
    variants: dict[str, str] = field(default_factory=dict)
    # folders of runs that are not finished and left out, and the finished run of the same settings and seed of each
    left_out: dict[Path, Path] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """What the runs have learned."""
        return find_shown_task(self.runs)

    @property
    def evaluated(self) -> str:
        """What the runs are compared by, in words, such as "test accuracy"."""
        samples = sorted({run.evaluated_part for run in self.runs if run.outcome.lines}) or ["test"]
        return f"{' or '.join(samples)} {self.task.title}"

    def of(self, row: str, column: str) -> list[ReportRun]:
        """Return the runs of a row and column, one for each seed."""
        return [run for run in self.runs if (run.row, run.column) == (row, column)]

    def list_drawn(self, row: str, column: str) -> list[ReportRun]:
        """Return the runs of a row and column whose rounds are drawn: the finished ones, or all if none is finished.

        A seed that failed early would cut the curves of all others, which are drawn over common rounds."""
        found = self.of(row, column)
        return [run for run in found if run.outcome.result] or found

    def list_examples(self) -> list[ReportRun]:
        """Return a run of each row and column, whose clients are drawn: of the first seed that is finished, or of the
        first one if none is."""
        found = [self.list_drawn(row, column) for column in self.columns for row in self.rows]
        return [min(runs, key=lambda run: self.seeds.index(run.seed)) for runs in found if runs]


def collect_job_results(job: SweepJob, runs: list[PlannedRun], command: str) -> Results:
    """Return the results of a job's runs; `command` makes them."""
    shown = [ReportRun(r.row, r.column, r.seed, r.folder, r.settings.rounds,
                       "fedmpi " + shlex.join(["run", os.path.relpath(r.config), *r.overrides]), r.named_code())
             for r in runs]
    return Results(job.title, command, list(job.rows), list(job.columns), job.seeds, shown,
                   {view.measure: share_with_variants(view.published, job.rows) for view in list_views(job)},
                   share_with_variants(list_published_rounds(job.published_rounds, job.rows), job.rows), job.baseline,
                   find_variants(job.rows))


def collect_folder_results(folders: list[Path]) -> Results:
    """Return the results of run folders: methods with their settings are rows, other settings that differ are columns.
    Of runs of the same settings and seed, the one that is finished is shown, if only one is.

    Raises:
        BadInput: if a folder holds no run, or of several runs of the same settings and seed none or more than one is
            finished."""
    several = [run_status.read_settings(folder) for folder in folders]
    runs = place_runs(folders, several)
    left_out = find_unfinished_attempts(runs)
    runs = [run for run in runs if run.folder not in left_out]
    return Results("Results of fedmpi", "fedmpi report " + shlex.join(str(run.folder) for run in runs),
                   list(dict.fromkeys(run.row for run in runs)), list(dict.fromkeys(run.column for run in runs)),
                   sorted({run.seed for run in runs}), runs,
                   {measure: {} for measure in [choose_measure(runs), *list_further(runs, several)]}, left_out=left_out)


def place_runs(folders: list[Path], several: list[JsonObject]) -> list[ReportRun]:
    """Return the runs of folders, whose settings are `several`, in rows and columns by these settings."""
    flat = [flatten_settings(settings) for settings in several]
    differ = [name for name in run_status.find_differences(several) if not is_aside(name)]
    alike: dict[str, list[JsonObject]] = {}
    for values in flat:
        alike.setdefault(str(values.get("method.name")), []).append(values)
    within = {method: run_status.find_differences(group) for method, group in alike.items()}
    runs = []
    for folder, values in zip(folders, flat, strict=True):
        in_method = within[str(values.get("method.name"))]
        own = [name for name in differ if name.startswith(METHOD) and name in in_method]
        row = find_title(values.get("method.name", "?")) + (f" ({list_settings(values, own, METHOD)})" if own else "")
        column = list_settings(values, [name for name in differ if not name.startswith(METHOD)]) or "result"
        again = shlex.join(["fedmpi", "run", str(folder / run_files.CONFIG)])
        runs.append(ReportRun(row, column, values.get("seed", 0), folder, 0, again))
    return runs


def find_unfinished_attempts(runs: list[ReportRun]) -> dict[Path, Path]:
    """Return the folders of runs that are not finished while one of the same row, column and seed is, and the folder of
    the latter. Raises BadInput, which names the runs, where none or several are finished."""
    places: dict[tuple[str, str, int], dict[Path, ReportRun]] = {}
    for run in runs:
        places.setdefault((run.row, run.column, run.seed), {})[run.folder] = run
    groups = [list(group.values()) for group in places.values() if len(group) > 1]
    finished = [[run for run in group if run.outcome.result] for group in groups]
    unclear = [group for group, done in zip(groups, finished, strict=True) if len(done) != 1]
    if unclear:
        named = "; ".join(" and ".join(name_some([str(run.folder) for run in group])) for group in unclear[:MOST_NAMED])
        more = f"; and {len(unclear) - MOST_NAMED} more such groups" * (len(unclear) > MOST_NAMED)
        raise BadInput(f"{named}{more}: runs of the same settings and seed, of which none or several are finished; "
                       f"give one of {'them' if len(unclear) == 1 else 'each group'}")
    return {run.folder: done.folder for group, (done,) in zip(groups, finished, strict=True) for run in group
            if run is not done}


def name_some(names: list[str]) -> list[str]:
    """Return the first names of a list, and how many more there are."""
    return names[:MOST_NAMED] + [f"{len(names) - MOST_NAMED} more"] * (len(names) > MOST_NAMED)


def choose_measure(runs: list[ReportRun]) -> str:
    """Return the measure to show: that in the round chosen on validation samples, if all finished runs have it."""
    found = [run.outcome.result for run in runs if run.outcome.result]
    task = find_shown_task(runs)
    names = [AT_BEST_VALIDATION] * bool(found) + [f"{BEST_ON}{on}" for on in ("test", "validation")]
    keys = (f"{task.measure}{ending}" for ending in names)
    return next((key for key in keys if all(key in result for result in found)), task.key)


def find_shown_task(runs: list[ReportRun]) -> Task:
    """Return what the runs have learned; that of the first one of which something is known."""
    return next((run.task for run in runs if run.task), CLASSIFICATION)


def refuse_mixed_tasks(runs: list[ReportRun]) -> None:
    """Raise BadInput if some of the runs have learned classes and others numbers: no table can hold both."""
    folders = {run.task: run.folder for run in reversed(runs) if run.task}
    if len(folders) == 2:
        raise BadInput(f"{folders[CLASSIFICATION]} has learned classes and {folders[REGRESSION]} numbers, so no table "
                       "can hold both; report them apart, as folders of runs")


def list_further(runs: list[ReportRun], settings: list[JsonObject]) -> list[str]:
    """Return the further measures that a finished run has, as keys of result.json, and the accuracy of new clients."""
    names = dict.fromkeys(f"{name}_mean" for values in settings for name in run_status.list_further_measures(values))
    names[f"{find_shown_task(runs).measure}{NEW_CLIENTS_ENDING}"] = None
    return [name for name in names if any(name in (run.outcome.result or {}) for run in runs)]


def is_aside(name: str) -> bool:
    """Say whether a setting does not tell runs apart: it changes neither results nor what a table shows of them."""
    return is_among(name, ASIDE) or is_free(name) and not is_among(name, ("rounds", *SHOWN))


def list_settings(values: JsonObject, names: list[str], without: str = "") -> str:
    """Return `setting=value, ...` of those that a run has, each name without the prefix `without`."""
    return ", ".join(f"{name.removeprefix(without)}={values[name]}" for name in names if name in values)


def find_title(method: str) -> str:
    """Return the title of a built-in method; of another one its name, for it is not imported here."""
    with registry.refuse_own_code():
        try:
            return str(getattr(registry.find_class("methods", method), "title", method))
        except BadInput:
            return method
