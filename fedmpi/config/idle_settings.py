"""Settings that cannot act in a run: those that ask for something after its last round, and those that belong to a
value that another setting does not have. They are not errors, since a table may vary the other setting or raise
`rounds`, but worth a line. So is train.epochs beside train.steps."""
from __future__ import annotations

import operator

from fedmpi.config.schema import Config

# setting -> another one, and the value of the other one to which it belongs
BELONGS_TO = {"train.step_factor": ("train.schedule", "step"), "train.padding": ("train.augment", "crop"),
              "server.trim": ("server.aggregation", "trimmed_mean")}


def list_idle_settings(config: Config) -> list[str]:
    """Return a line for each setting that cannot act in a run with this configuration."""
    return list_late_settings(config) + list_settings_without_owner(config)


def list_settings_without_owner(config: Config) -> list[str]:
    """Return a line for each setting that is not at its default, and belongs to a value that is not chosen."""
    found, usual = [], Config()
    for setting, (owner, value) in BELONGS_TO.items():
        given, chosen = operator.attrgetter(setting, owner)(config)
        values = chosen if isinstance(chosen, tuple) else (chosen,)
        if given != operator.attrgetter(setting)(usual) and value not in values:
            found.append(f"{setting} = {given} changes nothing: it belongs to {owner}={value}")
    steps, epochs = config.train.steps, config.train.epochs
    if steps is not None and epochs != usual.train.epochs:
        found.append(f"train.epochs = {epochs} sets no local steps, since train.steps = {steps} does; it only scales a "
                     "method's other passes, such as head_epochs (train.steps = null: epochs count)")
    if config.attack and config.attack.kind == "label_flip" and config.attack.scale != type(config.attack).scale:
        found.append(f"attack.scale = {config.attack.scale} changes nothing: kind label_flip has no strength")
    share, how = config.train.participation, config.train.sampling
    if how != usual.train.sampling and (share[0] if isinstance(share, tuple) else share) == 1:
        cost = "; each makes a forward pass to tell its loss, for nothing" if how == "loss" else ""
        found.append(f"train.sampling = {how} chooses nobody: with train.participation = 1 all clients that are "
                     f"available take part{cost}")
    return found


def list_settings_of_statistics(config: Config, has_statistics: bool) -> list[str]:
    """Return a line if the configuration says whose running statistics are, and the network keeps none."""
    given = getattr(config.model, "running_stats", None)
    if has_statistics or given is None or given == getattr(type(config.model), "running_stats", given):
        return []
    return [f"model.running_stats = {given} changes nothing: this network has no BatchNorm"]


def list_late_settings(config: Config) -> list[str]:
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
