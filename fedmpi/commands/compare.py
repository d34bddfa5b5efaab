"""Compare two runs: the settings that differ, the measures of rounds that both evaluated, and the digests."""
from __future__ import annotations

from pathlib import Path

from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.errors import BadInput
from fedmpi.storage import run_status
from fedmpi.text import duration, format_columns, pairs, percent

# key in metrics.jsonl, heading, and how a value is written
COMPARED_MEASURES = (
    ("accuracy_mean", "accuracy", percent), ("accuracy_worst_decile", "worst tenth", percent),
    ("f1_mean", "F1", percent), ("loss", "loss", lambda value: "-" if value is None else f"{value:.4f}"))
# rounds in the table, with the last one among them
ROUNDS_SHOWN = 12


def compare_runs(first: Path, second: Path) -> str:
    """Return the comparison of two run folders as text. Raises BadInput if one of them holds no run."""
    if first.resolve() == second.resolve():
        raise BadInput(f"{first} and {second} are the same folder; give two runs")
    settings = [run_status.settings_of_folder(folder) for folder in (first, second)]
    found = [run_status.outcome_of(folder) for folder in (first, second)]
    heading = pairs([("A", f"{first}: {describe_run(found[0])}"), ("B", f"{second}: {describe_run(found[1])}")])
    table = compare_rounds(*(outcome.evaluated for outcome in found))
    return "\n\n".join([heading, compare_settings(settings), table, compare_digests(*found)])


def describe_run(found: run_status.Outcome) -> str:
    """Return how far a run came, and what it reached."""
    if not found.result:
        return f"{found.state}, {found.round} rounds"
    spent, steps = found.result.get("seconds"), steps_to_text(found.result.get("steps_so_far"))
    time = f" in {duration(spent)}" if spent is not None else ""
    return (f"finished, {found.result['rounds']} rounds{time}, {run_status.reached(found.result)}; steps of a client "
            f"{steps}")


def compare_settings(settings: list[dict]) -> str:
    """Return a table of the settings in which two runs differ."""
    differ = run_status.differing(settings)
    if not differ:
        return "no setting differs"
    rows = [[name, *("-" if value is None else value for value in values)] for name, values in differ.items()]
    return format_columns(["setting", "A", "B"], rows)


def compare_rounds(first: list[dict], second: list[dict]) -> str:
    """Return a table of the rounds that both runs evaluated.

    Of many rounds it shows ROUNDS_SHOWN: they are divided into equal parts, and the last of each part is shown."""
    a, b = ({line["round"]: line for line in lines} for lines in (first, second))
    rounds = sorted(a.keys() & b.keys())
    if not rounds:
        return "no round was evaluated by both"
    parts = min(ROUNDS_SHOWN, len(rounds))
    shown = [rounds[len(rounds) * (i + 1) // parts - 1] for i in range(parts)]
    heads = ["round", *(f"{name} {which}" for _, name, _ in COMPARED_MEASURES for which in "AB")]
    rows = [[t, *(form(run[t].get(key)) for key, _, form in COMPARED_MEASURES for run in (a, b))] for t in shown]
    return format_columns(heads, rows, right=tuple(heads))


def compare_digests(first: run_status.Outcome, second: run_status.Outcome) -> str:
    """Say whether two runs ended in the same state."""
    digests = [found.result["digest"][:16] if found.result else None for found in (first, second)]
    if None in digests:
        return "digests: " + ", ".join(f"{name} {d or 'not finished'}" for name, d in zip("AB", digests, strict=True))
    return (f"the same digest, {digests[0]}: every number of the final states agrees" if digests[0] == digests[1] else
            f"different digests: A {digests[0]}, B {digests[1]}")
