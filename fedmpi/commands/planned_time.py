"""Who will take part in a run and in which simulated time, for `fedmpi plan`: the draws of the run itself, without
its training."""
from __future__ import annotations

import numpy as np

from fedmpi.commands.plan_case import Case
from fedmpi.json_values import JsonObject
from fedmpi.method import Participants
from fedmpi.text import format_duration

# So many rounds are drawn; longer runs are taken to go on alike.
PLANNED_ROUNDS = 1000


def plan_participation(case: Case) -> JsonObject:
    """Return who takes part in the rounds of a planned run, as plain values; {} if all is as by default.

    Losses are not known, so sampling loss draws among its candidates at random here."""
    config, rounds, selector = case.config, min(case.config.rounds, PLANNED_ROUNDS), case.client_selector
    if (config.train.sampling == "uniform" and selector.clock is None and selector.times is None
            and not config.faults.drop):
        return {}
    generator, traffic = np.random.default_rng(config.seed), case.method.traffic(case.shared, case.up)
    first = case.method.warm_up_participants(case.federation.clients, config.seed)
    warm_up = 0. if first is None else selector.time_warm_up(
        Participants(first, case.federation.sizes[first], -1, config.seed, case.federation.clients), traffic)
    seconds, asked, late, lost, taken, facts = [warm_up], 0, 0, 0, 0, []
    # after how many rounds that bring an update each stage ends
    ends = np.cumsum([number for number, _ in case.method.stages(case.shared, config.rounds)])
    # of each participant in time, the part of its steps that it makes
    shares: list[float] = []
    for t in range(rounds):
        stage = min(int(np.searchsorted(ends, taken, side="right")), len(ends) - 1)
        found = selector.select(t, sum(seconds), traffic, stage, lambda ids: generator.random(len(ids)))
        seconds.append(found.seconds)
        arrived = len(config.faults.drop_participants(found.in_time).ids)
        taken += bool(arrived)
        lost += len(found.in_time.ids) - arrived
        asked += len(found.participants.ids)
        late += len(found.participants.ids) - len(found.in_time.ids)
        facts.append(found.facts)
        if "work_share" in found.facts and found.timing is not None:
            shares += found.timing.made[found.timing.in_time].tolist()
    return {"sampling": config.train.sampling, "participants": asked / rounds, "late": late / rounds,
            **({"lost": lost / rounds} if config.faults.drop else {}),
            # rounds in which nobody is available have no candidates
            **{name: float(np.mean([line.get(name, 0) for line in facts])) for name in (
                "available", "candidates", "mib_candidates") if any(name in line for line in facts)},
            **({"work_share": float(np.mean(shares))} if shares else {}),
            **({} if selector.clock is None else {
                "seconds_round": float(np.mean(seconds[1:])),
                "seconds": warm_up + sum(seconds[1:]) / rounds * config.rounds})}


def describe_participation(p: JsonObject) -> str:
    """Say who takes part in a round, as a text."""
    parts = [f"sampling {p['sampling']}"]
    if "candidates" in p:
        parts.append(f"{p['candidates']:.1f} candidates tell their loss ({p['mib_candidates']:.3f} MiB a round beside "
                     "what participants receive)")
    if "available" in p:
        parts.append(f"{p['available']:.1f} clients available")
    parts.append(f"{p['participants']:.1f} participants a round")
    if p["late"]:
        parts.append(f"{p['late']:.1f} of them too late")
    if p.get("lost"):
        parts.append(f"{p['lost']:.1f} of them lost")
    if "work_share" in p:
        parts.append(f"those in time make {p['work_share']:.0%} of their steps")
    return ", ".join(parts)


def describe_condition(p: JsonObject, clients: int) -> str:
    """Return under which condition the numbers of a plan hold that take no account of who was drawn, as the end of a
    sentence; "" if everybody is always there, in time and not lost, and drawn as often as others.

    Args:
        p: what `plan_participation` returned."""
    there = p.get("available", clients) >= clients and not p.get("late") and p.get("work_share", 1) >= 1
    conditions = {"all are available and in time": there, "none is lost": not p.get("lost"),
                  "all are drawn equally often": p.get("sampling", "uniform") == "uniform"
                  or p["participants"] >= clients}
    needed = [condition for condition, holds in conditions.items() if not holds]
    return f", if {', '.join(needed[:-1])}{' and ' * (len(needed) > 1)}{needed[-1]}" if needed else ""


def describe_simulated_time(p: JsonObject) -> str:
    """Say how long rounds and the run take in simulated time, as a text."""
    return (f"a round {format_duration(p['seconds_round'])}, the run {format_duration(p['seconds'])}")
