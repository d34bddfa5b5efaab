"""Two runs side by side: the settings that differ, the measures at the rounds that both evaluated, the digests."""
from __future__ import annotations

from pathlib import Path

from fedmpi.commands.planned_steps import steps_to_text
from fedmpi.errors import BadInput
from fedmpi.storage import run_status
from fedmpi.text import duration, format_columns, pairs, percent

COMPARED_MEASURES = (("accuracy_mean", "accuracy", percent), ("accuracy_worst_decile", "worst tenth", percent),
            ("f1_mean", "F1", percent), ("loss", "loss", lambda value: "-" if value is None else f"{value:.4f}"))
ROUNDS_SHOWN = 12      # rounds that are shown, the last among them


def compare_runs(first: Path, second: Path) -> str:
    """Return the comparison of two run folders. Raises BadInput where one holds no run."""
    if first.resolve() == second.resolve():
        raise BadInput(f"{first} and {second} are the same folder; give two runs")
    settings = [run_status.settings_of_folder(folder) for folder in (first, second)]
    found = [run_status.outcome_of(folder) for folder in (first, second)]
    return "\n\n".join([pairs([("A", f"{first}: {became(found[0])}"), ("B", f"{second}: {became(found[1])}")]),
                        differences(settings), side_by_side(*(o.evaluated for o in found)), digests(*found)])


def became(found: run_status.Outcome) -> str:
    if not found.result:
        return f"{found.state}, {found.round} rounds"
    spent = found.result.get("seconds")
    return (
        f"finished, {found.result['rounds']} rounds"
        + (f" in {duration(spent)}" if spent is not None else "")
        + f", {run_status.reached(found.result)}; steps of a client {steps_to_text(found.result.get('steps_so_far'))}"
    )


def differences(settings: list[dict]) -> str:
    differ = run_status.differing(settings)
    if not differ:
        return "no setting differs"
    return format_columns(["setting", "A", "B"], [[name, *("-" if v is None else v for v in values)]
                                           for name, values in differ.items()])


def side_by_side(first: list[dict], second: list[dict]) -> str:
    """Return a table of the rounds that both evaluated; of many the last of equal parts."""
    a, b = ({line["round"]: line for line in lines} for lines in (first, second))
    rounds = sorted(a.keys() & b.keys())
    if not rounds:
        return "no round was evaluated by both"
    shown = [
        rounds[len(rounds) * (i + 1) // min(ROUNDS_SHOWN, len(rounds)) - 1]
        for i in range(min(ROUNDS_SHOWN, len(rounds)))
    ]
    heads = ["round", *(f"{name} {which}" for _, name, _ in COMPARED_MEASURES for which in "AB")]
    rows = [[t, *(form(run[t].get(key)) for key, _, form in COMPARED_MEASURES for run in (a, b))] for t in shown]
    return format_columns(heads, rows, right=tuple(heads))


def digests(first: run_status.Outcome, second: run_status.Outcome) -> str:
    digests = [found.result["digest"][:16] if found.result else None for found in (first, second)]
    if None in digests:
        return "digests: " + ", ".join(f"{name} {d or 'not finished'}" for name, d in zip("AB", digests, strict=True))
    return (f"the same digest, {digests[0]}: every number of the final states agrees" if digests[0] == digests[1] else
            f"different digests: A {digests[0]}, B {digests[1]}")
