"""Compare two runs: the settings that differ, the measures of rounds that both evaluated, and the digests.

A second table compares the fairness among clients, and the further measures of `evaluate.measures`."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.own_code.fingerprint import shorten_hash
from fedmpi.storage import run_status
from fedmpi.task import CLASSIFICATION, REGRESSION, find_task
from fedmpi.text import format_columns, format_duration, format_pairs

# key in metrics.jsonl, heading, and the number that a value is multiplied by, by task
COMPARED_MEASURES = {
    CLASSIFICATION: (("accuracy_mean", "acc.", 100), ("accuracy_worst_decile", "worst", 100), ("f1_mean", "F1", 100),
                     ("loss", "loss", 1)),
    REGRESSION: (("mse_mean", "MSE", 1), ("mse_worst_decile", "worst", 1), ("mae_mean", "MAE", 1))}
COMPARED_UNITS = {
    CLASSIFICATION: "accuracy (mean and worst tenth of the clients) and F1 in %",
    REGRESSION: "MSE: squared error (mean and worst tenth of the clients); MAE: absolute error"}
# The same of the second table; further measures follow. A variance of percentages is 10^4 times that of shares.
FAIRNESS = (("accuracy_gini", "Gini coefficient of accuracies, %", 100),
            ("accuracy_variance", "variance of accuracies (%^2)", 10_000),
            ("mse_gini", "Gini coefficient of squared errors, %", 100),
            ("mse_variance", "variance of squared errors", 1))
NEWCOMERS_MEASURES = (("accuracy_new_clients", "accuracy of new clients, %", 100),
                      ("f1_new_clients", "F1 of new clients, %", 100),
                      ("mse_new_clients", "squared error of new clients", 1),
                      ("mae_new_clients", "absolute error of new clients", 1),
                      ("loss_new_clients", "loss of new clients", 1))
NO_COMMON_ROUND = "no round was evaluated by both"
# rounds in the table, with the last one among them
ROUNDS_SHOWN = 12


def compare_runs(first: Path, second: Path) -> str:
    """Return the comparison of two run folders as text. Raises BadInput if one of them holds no run."""
    if first.resolve() == second.resolve():
        raise BadInput(f"{first} and {second} are the same folder; give two runs")
    found = [run_status.read_outcome(folder) for folder in (first, second)]
    settings = [run_status.read_settings(folder) | read_hashes(outcome) | samples
                for folder, outcome, samples in zip((first, second), found, read_sample_hashes(found), strict=True)]
    heading = format_pairs([("A", f"{first}: {describe_outcome(found[0])}"),
                            ("B", f"{second}: {describe_outcome(found[1])}")])
    tasks = [find_task(outcome.evaluated[-1]) for outcome in found if outcome.evaluated]
    if len(set(tasks)) == 2:
        raise BadInput(f"{first} and {second}: one has learned classes and the other numbers, so no table can hold "
                       "both; look at each with `fedmpi report`")
    task = tasks[0] if tasks else CLASSIFICATION
    table = compare_rounds(found[0].evaluated, found[1].evaluated, COMPARED_MEASURES[task])
    accepted = [f"{name}: {line}" for name, outcome in zip("AB", found, strict=True)
                for line in run_status.list_accepted_changes(outcome)]
    asked = [name for values in settings for name in run_status.list_further_measures(values)]
    more = compare_further(found[0].evaluated, found[1].evaluated, list(dict.fromkeys(asked)))
    legend = [COMPARED_UNITS[task], *describe_evaluated_parts(settings)] if table != NO_COMMON_ROUND else []
    tables = [table, *legend, *more]
    return "\n\n".join([heading, compare_settings(settings), *accepted, *tables, compare_digests(*found)])


def read_hashes(found: run_status.Outcome) -> JsonObject:
    """Return the hashes of a finished run's own code and of its files of who takes part, shortened, as if they were
    settings; {} if it has none."""
    known = {title: (found.result or {}).get(key) for title, key in (("own code", "own_code"), ("content of", "files"))}
    return {title: {name: shorten_hash(value) for name, value in hashes.items()}
            for title, hashes in known.items() if isinstance(hashes, dict)}


def read_sample_hashes(found: list[run_status.Outcome]) -> list[JsonObject]:
    """Return the hashes of both runs' samples, shortened, as if they were settings; {} if not both are known."""
    known = [(outcome.result or {}).get("federation") for outcome in found]
    return [{"samples of the clients": shorten_hash(value)} if all(known) else {} for value in known]


def describe_outcome(found: run_status.Outcome) -> str:
    """Return how far a run came, and what it reached."""
    if not found.result:
        return f"{found.state}, {found.round} rounds"
    spent, steps = found.result.get("seconds"), steps_to_text(found.result.get("steps_so_far"))
    time = f" in {format_duration(spent)}" if spent is not None else ""
    return (f"finished, {found.result['rounds']} rounds{time}, {run_status.describe_best(found.result)}; steps of "
            f"a client {steps}")


def compare_settings(settings: list[JsonObject]) -> str:
    """Return a table of the settings in which two runs differ."""
    differ = run_status.find_differences(settings)
    if not differ:
        return "no setting differs"
    rows = [[name, *("-" if value is None else value for value in values)] for name, values in differ.items()]
    return format_columns(["setting", "A", "B"], rows)


def describe_evaluated_parts(settings: list[JsonObject]) -> list[str]:
    """Return a sentence that says on which samples each run was evaluated; [] if it is the same part."""
    parts = run_status.find_differences(settings).get("evaluate.on", [None])
    if None in parts:
        return []
    return [f"measured on different samples: A on {parts[0]} samples, B on {parts[1]} samples of each client"]


def compare_rounds(first: list[JsonObject], second: list[JsonObject],
                   measures: Sequence[tuple[str, str, int]] = COMPARED_MEASURES[CLASSIFICATION]) -> str:
    """Return a table of these measures in the rounds that both runs evaluated.

    Of many rounds it shows ROUNDS_SHOWN: they are divided into equal parts, and the last of each part is shown."""
    a, b = ({line["round"]: line for line in lines} for lines in (first, second))
    rounds = sorted(a.keys() & b.keys())
    if not rounds:
        return NO_COMMON_ROUND
    parts = min(ROUNDS_SHOWN, len(rounds))
    shown = [rounds[len(rounds) * (i + 1) // parts - 1] for i in range(parts)]
    heads = ["round", *(f"{name} {which}" for _, name, _ in measures for which in "AB")]
    rows = [[t, *(format_scaled(run[t].get(key), unit) for key, _, unit in measures for run in (a, b))]
            for t in shown]
    return format_columns(heads, rows, right=tuple(heads))


def compare_further(first: list[JsonObject], second: list[JsonObject], names: list[str]) -> list[str]:
    """Return a table of fairness, further measures and new clients in the last round that both runs evaluated; [] if
    there is none.

    Args:
        names: the further measures of either run."""
    a, b = ({line["round"]: line for line in lines} for lines in (first, second))
    rounds = a.keys() & b.keys()
    runs = [lines[max(rounds)] for lines in (a, b)] if rounds else []
    wanted = [*FAIRNESS, *((f"{name}_mean", f"{name}, mean of the clients", 1) for name in names), *NEWCOMERS_MEASURES,
              *((f"{name}_new_clients", f"{name} of new clients", 1) for name in names)]
    rows = [[text, *(format_scaled(run.get(key), unit) for run in runs)] for key, text, unit in wanted
            if any(run.get(key) is not None for run in runs)]
    return [format_columns([f"round {max(rounds)}", "A", "B"], rows, right=("A", "B"))] if rows else []


def format_scaled(value: float | None, unit: int) -> str:
    """Return a value times its unit as text, in few columns; shares get two digits after the point, others three, or
    four digits if they are below 1."""
    if value is None:
        return "-"
    return f"{unit * value:{'.2f' if unit == 100 else '.3f' if abs(unit * value) >= 1 else '.4g'}}"


def compare_digests(first: run_status.Outcome, second: run_status.Outcome) -> str:
    """Say whether two runs ended in the same state."""
    digests = [found.result["digest"][:16] if found.result else None for found in (first, second)]
    if None in digests:
        return "digests: " + ", ".join(f"{name} {d or 'not finished'}" for name, d in zip("AB", digests, strict=True))
    return (f"the same digest, {digests[0]}: every number of the final states agrees" if digests[0] == digests[1] else
            f"different digests: A {digests[0]}, B {digests[1]}")
