"""What a sweep would cost: local steps, bytes that clients move, and time at a rate that is given or measured."""
from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.commands.plan_case import Case, prepare_case
from fedmpi.commands.planned_steps import PlannedRounds, average_by_size, list_planned_rounds
from fedmpi.config.schema import to_plain
from fedmpi.data.federation import SAMPLE_PARTS
from fedmpi.edge import FORWARD_SHARE
from fedmpi.engines.batch_plan import get_local_training
from fedmpi.engines.dry_run import count_round_work
from fedmpi.errors import BadInput, StorageError
from fedmpi.method import State
from fedmpi.models.build import make_blank_samples
from fedmpi.storage.listing import find_saved_round
from fedmpi.sweeps.job import PlannedRun
from fedmpi.sweeps.speed_probe import time_rounds
from fedmpi.text import MIB, count_words, format_columns, format_duration, printable

# A rate measured with these settings and samples of one shape serves for all runs that have them.
RATE_SETTINGS = ("model", "train", "engine", "threads", "precision", "device", "cuda_graphs")
# What is timed: rounds of FedAvg, of so many clients that make so many steps each.
TIMED_STEPS = 10
TIMED_CLIENTS = 8
NOTE = ("steps: batches that the clients train on, also before the first round and to be evaluated; samples that only "
        "go forward, as in evaluation, count a third; all are taken for available, in time and not lost; "
        "those of a head on features computed before count as whole ones, so such a run is faster than this says; "
        "not counted: models before they adapt to be evaluated, what new clients train, and the losses by which "
        "sampling=loss chooses; "
        "down and up: of all clients, as in the first round; time: at that rate, the server's work left out")


class Cost(NamedTuple):
    """What the rounds cost that a run still has to do."""
    rounds: int
    steps: float
    # bytes that all clients receive
    down: float
    up: float
    # steps a second of one process
    rate: float


def show_costs(runs: list[PlannedRun], at_once: int, ranks: int, rate: float | None) -> None:
    """Print the command and the cost of every run. Raises BadInput."""
    if rate is not None and not rate > 0:
        raise BadInput(f"--rate {rate}: should be more than 0 steps a second")
    for run in runs:
        print(printable("fedmpi " + shlex.join(run.words())))
    rates, costs = {}, []
    for run in runs:
        case = prepare_case(str(run.config), run.overrides)
        settings = to_plain(run.settings)
        key = repr([case.federation.shape, case.federation.classes, *(settings[name] for name in RATE_SETTINGS)])
        if key not in rates:
            rates[key] = rate or measure_rate(case)
        costs.append(estimate_cost(run, case, rates[key]))
    print("\n" + printable(format_costs(runs, costs, workers=max(1, ranks - 1), at_once=at_once)))


def estimate_cost(run: PlannedRun, case: Case, rate: float) -> Cost:
    """Return what the rounds cost that a run still has to do, with the one before the first if it is not done."""
    # A run that ended early has no rounds left.
    found, rounds = run.outcome(), run.settings.rounds
    # A run that is not under way goes on from its newest checkpoint.
    kept = found.round
    if not found.alive:
        kept = 0
        with suppress(StorageError):
            kept = find_saved_round(run.folder) or 0
    done = rounds if found.result else min(kept, rounds)
    steps, trained, begin = 0., 0., 0
    for part in list_planned_rounds(case):
        # The round before the first one is done again if no other one is.
        left = range(max(begin, done), begin + part.rounds) if part.rounds else range(not done)
        evaluated = sum(map(case.config.evaluates, left)) if part.rounds else 0
        steps += len(left) * count_steps_of_round(case, part) + evaluated * count_steps_of_evaluation(case, part)
        trained += len(left) * part.participants
        begin += part.rounds
    down, up = case.method.traffic(case.shared, case.up)
    return Cost(rounds - done, steps, trained * down, trained * up, rate)


def count_steps_of_round(case: Case, part: PlannedRounds) -> float:
    """Return the steps that the clients make in a round, those among them that do not take part, too."""
    method = case.method
    samples = part.participants * count_mean_samples(case, part, method.client)
    if part.rounds and method.idles:
        samples += (case.federation.clients - part.participants) * count_mean_samples(case, part, method.idle)
    return samples / case.config.train.batch


def count_steps_of_evaluation(case: Case, part: PlannedRounds) -> float:
    """Return the steps that it takes to evaluate all clients, and to measure some or all of them right after their
    training: what they train for it, and forward passes."""
    federation = case.federation
    parts = [SAMPLE_PARTS.index(part) for part in case.config.evaluated_on]
    evaluated = part._replace(sizes=federation.sizes, round=0)
    samples = federation.clients * count_mean_samples(case, evaluated, case.method.personal)
    passed = float(federation.counts[:, parts].sum())
    after = case.config.evaluate.after_training
    checked = CheckedMethod(case.method, case.mine, case.up, federation.classes)
    if after != "off" and checked.may_differ_after_training:
        measured = federation.clients if after == "all" else part.participants
        samples += (measured - part.participants) * count_mean_samples(case, evaluated, case.method.client)
        # the first part alone
        passed += float(federation.counts[:, parts[0]].sum()) * measured / federation.clients
    return (samples + FORWARD_SHARE * passed) / case.config.train.batch


def count_mean_samples(case: Case, part: PlannedRounds, function: Callable[..., State]) -> float:
    """Return the samples that a client trains on in a function of the method (client, idle, personal), mean over the
    clients of a round; those that only go forward count by FORWARD_SHARE."""
    local = get_local_training(case.config, part.round, function == case.method.personal)
    sample = make_blank_samples(case.federation.shape, case.federation.dtype)

    def count_samples_of(n: int) -> dict[str, float]:
        work = count_round_work(case.method, part.shared, case.mine, sample, n, local, function)
        return {"all": work.trained + FORWARD_SHARE * work.passed}
    return average_by_size(part.sizes, count_samples_of)["all"]


def measure_rate(case: Case) -> float:
    """Return the steps a second of one process on this network and these data: the second of two short rounds."""
    settings = to_plain(case.config) | {"method": {"name": "fedavg"}}
    settings["train"] = settings["train"] | {"steps": TIMED_STEPS}
    clients = min(TIMED_CLIENTS, case.federation.clients)
    _, seconds = time_rounds(case.federation, settings, clients, rounds=2)
    return clients * TIMED_STEPS / seconds


def format_costs(runs: list[PlannedRun], costs: list[Cost], workers: int, at_once: int) -> str:
    """Return the costs as a table, with their sum."""
    rows = [[run.name, c.rounds, f"{c.steps:,.0f}", f"{c.down / MIB:,.1f}", f"{c.up / MIB:,.1f}", f"{c.rate:,.0f}",
             format_duration(c.steps / c.rate / workers)] for run, c in zip(runs, costs, strict=True)]
    seconds = sum(c.steps / c.rate for c in costs)
    busy = min(workers * at_once, os.cpu_count() or 1, max(1, len(runs)) * workers)
    total = (f"in all {sum(c.steps for c in costs):,.0f} steps, {sum(c.down for c in costs) / MIB:,.1f} MiB down and "
             f"{sum(c.up for c in costs) / MIB:,.1f} MiB up; {seconds / 3600:.2f} hours of one core, about "
             f"{format_duration(seconds / busy)} with {at_once} at a time on {count_words(workers, 'worker')} "
             f"each")
    heads = ["run", "rounds", "steps", "MiB down", "MiB up", "steps/s", "time"]
    return f"{format_columns(heads, rows, right=tuple(heads[1:]))}\n{total}\n({NOTE})"
