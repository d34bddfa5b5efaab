"""What `fedmpi report` writes, by what it is given: a job, folders of runs, or the book of a day with a GPU."""
from __future__ import annotations

import shlex
from pathlib import Path

from fedmpi.commands.status import find_runs
from fedmpi.errors import BadInput
from fedmpi.paths import refuse_empty_path
from fedmpi.report import gpu_day, gpu_tables, results, write
from fedmpi.report.results import MOST_NAMED
from fedmpi.shipped import is_job_file, refuse_job_options
from fedmpi.storage.run_status import STATES, read_settings


def report_paths(paths: list[str], scale: str | None, out: str | None, to: str | None, for_print: bool,
                 measures: list[str] | None = None) -> str:
    """Write the report of a job file, of folders of runs or of gpu_day.json. Return what to tell the user: where its
    page is, and how many runs are not finished. Raises BadInput, for example for runs that learned different things.

    Args:
        scale: a smaller variant of the job.
        out: the folder of the job's runs.
        to: the folder to write to.
        for_print: figures for papers, too.
        measures: what the tables show, names in result.json; None: what the job names, or the accuracy of the best
            round."""
    refuse_empty_path("--to", to)
    folders, left_out = [*map(Path, dict.fromkeys(paths))], list[Path]()
    is_book = any(map(gpu_day.is_book, folders))
    is_job = not is_book and is_job_file(paths)
    if not is_job:
        refuse_job_options(scale, out, "; --to says where the report goes")
    if is_book:
        if measures:
            raise BadInput(f"--measure {measures[0]}: the tables of a day with a GPU are always the same; leave it out")
        if for_print:
            raise BadInput("--print: the report of a day with a GPU has no figures; leave it out")
        return f"report {gpu_tables.write_day(folders, Path(to or 'report'))}"
    if is_job:
        from fedmpi.sweeps.job import list_job_words, plan_job
        job, runs = plan_job(paths[0], scale, out, measures)
        words = list_job_words(paths[0], scale, out)
        shown = results.collect_job_results(job, runs, shlex.join(["fedmpi", "sweep", *words]))
        remedy, folder = f"`{shown.command}` makes them", Path(to) if to else runs[0].folder.parents[2] / "report"
    else:
        folders, left_out = list_given_runs(paths)
        shown = results.collect_folder_results(folders)
        words = [str(run.folder) for run in shown.runs]
        shown.command += "".join(f" --measure {shlex.quote(measure)}" for measure in measures or ())
        remedy, folder = "continue them with --resume auto", Path(to or "report")
    results.refuse_mixed_tasks(shown.runs)
    if measures:
        shown.measures = {measure: shown.measures.get(measure, {}) for measure in measures}
    page = write.write_report(shown, folder, for_print)
    return "\n".join(filter(None, [f"report {page}", describe_unfinished(shown.runs, remedy, words),
                                  describe_left_out(left_out), describe_attempts(shown.left_out)]))


def list_given_runs(paths: list[str]) -> tuple[list[Path], list[Path]]:
    """Return the run folders at or below some paths, and those below them that are left out, since their settings
    cannot be read. What a sweep printed, FOLDER.txt beside a folder that is given, is none: `seed-*` of a shell names
    both. Raises BadInput."""
    given = {str(Path(path)) for path in paths}
    found = [folder for _, folder in find_runs([
        path for path in paths if not (path.endswith(".txt") and str(Path(path.removesuffix(".txt"))) in given)])]
    shown = [folder for folder in found if str(folder) in given or has_settings(folder)]
    return shown or found, [folder for folder in found if shown and folder not in shown]


def has_settings(folder: Path) -> bool:
    """Say whether the settings of a run can be read: a start that was refused early has left none."""
    try:
        return bool(read_settings(folder))
    except BadInput:
        return False


def describe_left_out(folders: list[Path]) -> str:
    """Say which runs a report leaves out since their settings cannot be read, "" if there are none."""
    if not folders:
        return ""
    words = shlex.join(["fedmpi", "status", *map(str, folders[:MOST_NAMED])])
    more = f", and of {len(folders) - MOST_NAMED} more" * (len(folders) > MOST_NAMED)
    return (f"left out: {', '.join(map(str, folders[:MOST_NAMED]))}{more}, whose settings cannot be read; `{words}` "
            "says what is known of them")


def describe_attempts(left_out: dict[Path, Path]) -> str:
    """Say which runs a report leaves out since another one of the same settings and seed is finished, "" if none."""
    if not left_out:
        return ""
    named = results.name_some([f"{folder} (for {done})" for folder, done in left_out.items()])
    return (f"left out: {', '.join(named)}; not finished, while the runs in brackets, of the same settings and seed, "
            "are")


def describe_unfinished(runs: list[results.ReportRun], remedy: str, words: list[str]) -> str:
    """Say how many runs have no result yet and what to do about it, "" if all have one.

    Args:
        remedy: how they are finished.
        words: what `fedmpi status` is to be given."""
    states = [run.outcome.state for run in runs]
    left = ", ".join(f"{states.count(state)} {state}" for state in STATES[1:] if state in states)
    if not left:
        return ""
    done = states.count("finished")
    so_far = (f"{done} of {len(runs)} runs finished ({left}), and the tables show only these" if done else
              f"no run is finished yet ({left}), so the tables have no numbers")
    return f"{so_far}; {remedy}, and `{shlex.join(['fedmpi', 'status', *words])}` says how far each is"
