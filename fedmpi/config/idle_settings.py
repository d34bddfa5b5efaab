"""Settings that cannot act in a run of so many rounds: they are no error, since `rounds` may be raised, but worth a
line."""
from __future__ import annotations

from fedmpi.config.schema import Config


def list_idle_settings(config: Config) -> list[str]:
    """Return a line for each setting that asks for something after the last round."""
    rounds, every, found = config.rounds, config.evaluate.every, []
    late = [t for t in config.train.milestones if t >= rounds]
    if late:
        found.append(f"train.milestones = {late}: the run has {rounds} rounds, so the rate does not change then")
    late = [t for t in config.evaluate.embeddings if t > rounds]
    if late:
        found.append(f"evaluate.embeddings = {late}: the run has {rounds} rounds, so nothing is stored then")
    if config.stop and every:
        # the first evaluation may be the best one, and the last round ends the run anyhow
        first = every - every * (-config.stop.patience // every)
        if first >= rounds:
            found.append(f"stop.patience = {config.stop.patience} cannot end the run before its last round: with "
                         f"evaluate.every = {every} round {first} is the first that could, and rounds = {rounds}")
    return found
