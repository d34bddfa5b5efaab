"""The evaluation of a last round that was not known to be the last one when it was trained."""
from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.storage.run_status import is_evaluated

if TYPE_CHECKING:
    from fedmpi.server.rounds import Run


def evaluate_last_round(run: Run) -> None:
    """Measure the clients after the last round if it was not evaluated, and record the round again with its measures.

    This happens if `rounds`, or the patience of `stop`, was lowered before the run was continued. Measures right after
    local training (`_after`) are lost then. If the last round was evaluated, nothing is done."""
    state = run.state
    facts = next((line for line in state.metrics[-1:] if line["round"] == state.round), {})
    if is_evaluated(facts):
        return
    table, reports = run.pool.evaluate(state.round, state.shared)
    # of evaluation alone
    made = state.steps.add_round(reports.steps, 1, len(run.federation.sizes))
    state.metrics = [line for line in state.metrics if line["round"] != state.round]
    # metrics.jsonl holds the line without measures.
    run.recorder.folder.request_metrics_rewrite()
    steps = facts.get("steps", {}) | made["steps"]
    run.recorder.record_round(table, facts | made | {"steps": steps, "seconds": state.seconds})
    run.progress.note(f"round {state.round} is the last one now, and was not evaluated: evaluated now")
    with run.disk_errors.handled(state.round):
        run.checkpoints.save()
