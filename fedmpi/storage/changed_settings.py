"""How a start differs from the run that it continues: which settings may change, which are refused, and what a change
may do to the last bits."""
from __future__ import annotations

import json
from collections.abc import Iterable

from fedmpi.errors import BadInput
from fedmpi.json_values import Json, JsonObject, flatten_settings
from fedmpi.storage.checkpoint import Snapshot, checkpoint_json
from fedmpi.storage.older_versions import add_missing_settings, refuse_changed_method
from fedmpi.storage.run_status import is_evaluated

# What may change between a checkpoint and its continuation, because it does not change results.
CHANGEABLE_SETTINGS = (
    "rounds", "stop", "evaluate.every", "evaluate.after_training", "evaluate.embeddings", "evaluate.measures", "edge",
    "checkpoint", "server.hosts_clients", "faults.bad_update", "placement", "threads", "device", "engine",
    "cuda_graphs", "comm", "state", "data.root", "data.cache")
# Those of them that may change the last bits.
ROUNDING_FIELDS = ("threads", "device", "engine", "cuda_graphs")
HOSTING_FIELDS = ("placement", "server.hosts_clients")
CHUNK_FIELDS = (*HOSTING_FIELDS, "state.memory")
ABSENT = object()


def refuse_other_run(snapshot: Snapshot, config: JsonObject, federation: str) -> None:
    """Raise BadInput when a checkpoint cannot continue as this run: other settings or another federation."""
    refuse_changed_method(f"the checkpoint of round {snapshot.round}", snapshot.version, snapshot.config)
    problems = describe_other_settings(snapshot.config, config, "in the checkpoint")
    if snapshot.federation != federation:
        problems.append(f"the federation is {snapshot.federation} in the checkpoint and {federation} now: "
                        "its clients hold other samples")
    if problems:
        raise BadInput(f"the checkpoint of round {snapshot.round} belongs to another run:\n  "
                       + "\n  ".join(problems) + "\nset these back, or start a new run with another --out")


def describe_other_settings(there: JsonObject, config: JsonObject, where: str) -> list[str]:
    """Return a line for each of `find_other_settings`; `where` says where the settings `there` are."""
    return [f"{key} is {then} {where} and {now} now" for key, (then, now) in find_other_settings(there, config).items()]


def find_other_settings(there: JsonObject, config: JsonObject, fixed: tuple[str, ...] = ()) -> dict[str, list[Json]]:
    """Return each setting with which a run cannot continue another one that has it otherwise, with both values.

    Args:
        there: the settings of the other run.
        fixed: settings and sections that may not differ, beside those that change results."""
    then, now = (flatten_settings(add_missing_settings(json.loads(checkpoint_json(c))), keep_empty=True)
                 for c in (there, config))
    # a cosine ends with the last round, so that the rates of all rounds depend on their number
    if now.get("train.schedule") == "cosine":
        fixed += ("rounds",)
    # bandwidth, and perhaps cycles, decide who is in time
    if depends_on_time(now):
        fixed += ("edge",)
    return {key: [then.get(key, "(not set)"), now.get(key, "(not set)")] for key in {**then, **now}
            if (is_among(key, fixed) or not is_free(key)) and then.get(key, ABSENT) != now.get(key, ABSENT)}


def warn_of_other_settings(snapshot: Snapshot, config: JsonObject) -> list[str]:
    """Return a warning for each setting that differs, and with which sums inside a training step may be rounded
    otherwise, and one if settings of `evaluate` differ, but no round is left to measure."""
    then, now = (flatten_settings(c, keep_empty=True) for c in (snapshot.config, config))
    # sums in single precision depend on which clients a rank hosts
    fields = ROUNDING_FIELDS + HOSTING_FIELDS * (now.get("server.reduce") == "float32")
    warnings = warn_of_rounding(then, now, fields)
    if any(is_among(key, ["edge"]) and then.get(key) != now.get(key) for key in {**then, **now}):
        warnings.append(f"edge differs from that of the checkpoint (round {snapshot.round}): simulated_seconds counts "
                        "the rounds so far as they were timed then, or not at all")
    idle = [key for key, value in now.items() if is_among(key, ["evaluate"]) and then.get(key, value) != value]
    # a last round that was not evaluated is evaluated now
    if idle and snapshot.round == config["rounds"] and any(map(is_evaluated, snapshot.metrics[-1:])):
        warnings.append(f"the checkpoint is of round {snapshot.round}, the last one: nothing is measured any more, so "
                        f"{', '.join(idle)} cannot act; raise rounds, or start a new run with another --out")
    return warnings


def warn_of_other_chunks(snapshot: Snapshot, config: JsonObject) -> list[str]:
    """Return a warning for each setting that differs and decides which clients `vmap` trains side by side, for a run
    whose last bits depend on that."""
    then, now = (flatten_settings(c, keep_empty=True) for c in (snapshot.config, config))
    # the others were named already
    return warn_of_rounding(then, now, CHUNK_FIELDS[-1:] if now["server.reduce"] == "float32" else CHUNK_FIELDS)


def warn_of_rounding(then: JsonObject, now: JsonObject, fields: tuple[str, ...]) -> list[str]:
    """Return a warning for each of some settings, by dotted name, that differs and may change the last bits."""
    return [f"{key} is {then.get(key)} in the checkpoint and {now[key]} now: the last bits may differ, and with them "
            "the digest" for key in fields if then.get(key) != now[key]]


def warn_of_another_gpu(snapshot: Snapshot, gpus: list[str]) -> list[str]:
    """Return a warning if a checkpoint was written by other GPUs, drivers or libraries than those at work now."""
    then = snapshot.extra.get("gpus", gpus)
    return [] if then == gpus else [
        f"the checkpoint was written on {'; '.join(then) or 'CPUs'}, and this run is on {'; '.join(gpus) or 'CPUs'}: "
        "the last bits may differ, and with them the digest"]


def depends_on_time(config: dict[str, object]) -> bool:
    """Say whether simulated time decides who takes part, or how much work a client does.

    Args:
        config: the settings by dotted path."""
    return config.get("stragglers.deadline") is not None or config.get("availability.unit") == "seconds"


def is_free(key: str) -> bool:
    """Say whether a setting, given by its dotted path, may change between a checkpoint and its continuation."""
    return is_among(key, CHANGEABLE_SETTINGS)


def is_among(key: str, names: Iterable[str]) -> bool:
    """Say whether a setting, given by its dotted path, is one of `names`, or lies in a section that is."""
    return any(key == name or key.startswith(name + ".") for name in names)
