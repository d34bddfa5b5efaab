"""The last round of a run that turns out to be the last one only when the run goes on from where it was saved."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmpi.server.rounds import Run


def judge_last_round(run: Run) -> None:
    """Judge the clients after the last round if it was not evaluated, and enter the round again with its measures.

    When it was trained another was to be the last one: `rounds`, or the patience of `stop`, was lowered since. Measures
    right after local training (`_after`) cannot be had any more. Nothing is done in a run that was judged last."""
    state = run.state
    facts = next((line for line in state.metrics[-1:] if line["round"] == state.round), {})
    if "accuracy_mean" in facts:
        return
    table, times = run.pool.judge(state.round, state.shared)
    made = state.steps.note(times, 1, len(table))      # of judging alone
    state.metrics = [line for line in state.metrics if line["round"] != state.round]
    run.books.folder.behind = True      # metrics.jsonl is written anew: it has the line without measures
    run.books.enter(table, facts | made | {"steps": facts.get("steps", {}) | made["steps"], "seconds": state.seconds})
    run.progress.note(f"round {state.round} was not evaluated, and is the last one now: judged")
    with run.storage.tried(state.round):
        run.checkpoints.save()
