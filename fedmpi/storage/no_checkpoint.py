"""What a start may do in a folder whose rounds are not all in a checkpoint: go on, if that overwrites no result."""
from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedmpi.errors import AlreadyFinished, BadInput
from fedmpi.json_values import JsonObject
from fedmpi.storage.changed_settings import describe_other_settings
from fedmpi.storage.run_status import read_metrics, read_result, read_settings


def refuse_lost_rounds(folder: Path, config: JsonObject, saved: int) -> None:
    """Raise AlreadyFinished if the run is finished, and BadInput if a start from round 1 would overwrite a result, or
    rounds of a run with other settings.

    Args:
        folder: a run folder.
        config: the resolved configuration of the start.
        saved: the round of its newest good checkpoint, 0 if there is none."""
    if saved:
        return refuse_older_checkpoint(folder, config, saved)
    result = read_result(folder)
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
        refuse_finished(folder, result, there, config)
        raise BadInput(f"{folder} has a result of round {result['rounds']}, but no checkpoint from which it could "
                       "go on; start a new run with another --out")


def refuse_older_checkpoint(folder: Path, config: JsonObject, saved: int) -> None:
    """Raise AlreadyFinished if the run is finished, and ended after the round of its newest good checkpoint."""
    # What is damaged does not matter where there is a checkpoint: it is written again.
    with suppress(BadInput):
        result = read_result(folder)
        if result and result["rounds"] > saved:
            refuse_finished(folder, result, read_settings(folder), config)


def refuse_finished(folder: Path, result: JsonObject, there: JsonObject, config: JsonObject) -> None:
    """Raise AlreadyFinished if a result has all rounds that a start asks for, or ended early by the same rule."""
    ended_early = result.get("ended") == "stop" and there.get("stop") == config["stop"]
    if ended_early or result["rounds"] >= config["rounds"]:
        raise AlreadyFinished(f"{folder} is finished already, in round {result['rounds']}", folder)
