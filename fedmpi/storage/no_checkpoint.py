"""What a start may do in a folder whose rounds are not all in a checkpoint: go on, if that overwrites no result."""
from __future__ import annotations

from pathlib import Path

from fedmpi.errors import AlreadyFinished, BadInput
from fedmpi.json_values import JsonObject
from fedmpi.storage.checkpoint import describe_other_settings
from fedmpi.storage.run_status import read_metrics, read_result, read_settings


def refuse_lost_rounds(folder: Path, config: JsonObject, saved: int) -> None:
    """Raise AlreadyFinished if the run is finished, and BadInput if a start from round 1 would overwrite a result, or
    rounds of a run with other settings.

    Args:
        folder: a run folder.
        config: the resolved configuration of the start.
        saved: the round of its newest good checkpoint, 0 if there is none."""
    result = read_result(folder)
    is_done = result is not None and (result.get("ended") == "stop" or result["rounds"] >= config["rounds"])
    if saved and not (result and is_done and result["rounds"] > saved):
        return
    try:
        there = read_settings(folder) if result or read_metrics(folder) else None
    except BadInput:
        if result:
            raise
        return
    if there and (problems := describe_other_settings(there, config, "there")):
        raise BadInput(f"{folder} holds rounds of another run, which has saved no checkpoint:\n  "
                       + "\n  ".join(problems) + "\nset these back, or start a new run with another --out")
    if there and result:
        ended_early = result.get("ended") == "stop" and there.get("stop") == config["stop"]
        if ended_early or result["rounds"] >= config["rounds"]:
            raise AlreadyFinished(f"{folder} is finished already, in round {result['rounds']}", folder)
        raise BadInput(f"{folder} has a result of round {result['rounds']}, but no checkpoint from which it could "
                       "go on; start a new run with another --out")
