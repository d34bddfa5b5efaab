"""A plan as text: what the command `fedmpi plan` prints of what commands/plan.py finds out."""
from __future__ import annotations

import numpy as np

from fedmpi.commands.planned_steps import describe_planned_steps
from fedmpi.commands.planned_time import describe_condition, describe_participation, describe_simulated_time
from fedmpi.json_values import JsonObject
from fedmpi.text import MIB, count_words, format_columns, format_pairs, format_range

# the table shows so many ranks one by one
RANKS_SHOWN = 16
# so many clients of a rank are listed
CLIENTS_SHOWN = 12
COUNTED = ("MiB of samples as stored and private states (each at most state.memory), each participant's Up and "
           "message, Shared twice, vectors of training and sums, at rank 0 a checkpoint written in the background; not "
           "libraries, activations, nor up to 512 MiB left by evaluation")
MOVABLE = ("these clients keep nothing between rounds: participants train on whichever rank has time, hosts only "
           "evaluate them, and a rank may come to hold the samples of all")


def format_plan(planned: JsonObject) -> str:
    """Return a plan as text, with a row for each rank, or a summary if there are many."""
    p, condition = planned, describe_condition(planned["participation"], planned["clients"])
    ranks = list_ranks(p["per_rank"]) if p["ranks"] <= RANKS_SHOWN else summarise_ranks(p["per_rank"])
    return "\n\n".join([format_pairs([("method", f"{p['method']} {p['settings']}".strip()),
                                      ("model", describe_model(p)), ("data", describe_data(p)),
                                      ("federation", p["federation"]), ("rounds", describe_rounds(p) + condition),
                                      *list_participation(p["participation"]),
                                      ("steps", describe_planned_steps(p["stages"], p["rounds"], condition)
                                       + f"; not counted: {p['uncounted_steps']}" * bool(p["uncounted_steps"])),
                                      *list_short_batches(p),
                                      ("bytes", describe_bytes(p)), ("on the wire", describe_wire(p)),
                                      ("evaluation", describe_evaluation(p)),
                                      ("checkpoint", describe_checkpoints(p["checkpoint"])),
                                      ("engine", describe_engine(p))]), ranks,
                        format_pairs([("memory", COUNTED), *describe_balance(p["per_rank"], condition),
                                      *[("hosts", MOVABLE)] * p["movable"]])])


def describe_model(p: JsonObject) -> str:
    """Name the network, and say how many parameters it and its head have."""
    return (f"{p['model']} {p['model_settings']}: {p['parameters']:,} parameters, {p['head_parameters']:,} of them in "
            "the head")


def describe_data(p: JsonObject) -> str:
    """Say how many samples there are, and the least and the most to train on per client."""
    parts = ", ".join(f"{n:,} {part}" for part, n in p["samples"].items() if n)
    return (f"{p['data']}, {p['clients']} clients: samples {parts}; {format_range(p['train_samples'])} to train on "
            "per client")


def describe_rounds(p: JsonObject) -> str:
    """Say how many rounds, participants and batches there are."""
    expected = "" if p["participants"][0] == p["clients"] else "about "
    return (f"{p['rounds']}, each with {format_range(p['participants'])} of {p['clients']} clients; local training "
            f"draws {expected}{p['steps_per_round']:,} batches of up to {p['batch']} samples a round")


def list_short_batches(p: JsonObject) -> list[tuple[str, str]]:
    """Return the line on clients whose epochs end with a step on few samples; none if there are none."""
    short = p["short_batches"]
    if not short:
        return []
    few = count_words(short["samples"], "sample")
    return [("last batch", f"{short['clients']} of {p['clients']} clients end every epoch with a step on at most "
             f"{few}; a model that is evaluated right after local training depends much on them, and "
             "train.drop_last=true leaves such batches out")]


def list_participation(p: JsonObject) -> list[tuple[str, str]]:
    """Return the lines on who takes part and in which simulated time; none if all is as by default."""
    lines = [("taking part", describe_participation(p))] if p else []
    return lines + ([("simulated", describe_simulated_time(p))] if "seconds" in p else [])


def describe_bytes(p: JsonObject) -> str:
    """Say how many bytes a client receives and sends in a round."""
    return (f"{p['mib_per_client_round']:.3f} MiB per client and round: {p['mib_down']:.3f} down, {p['mib_up']:.3f} up")


def describe_wire(p: JsonObject) -> str:
    """Say what a round moves between ranks: the server's tensors once per rank, and sums as they are reduced."""
    if p["ranks"] == 1:
        return "nothing: one rank"
    moved = p["bytes_per_round"]
    text = f"per round, to each rank {format_mib(moved['broadcast'])} by broadcast"
    if moved["deliver"]:
        text += f", and {format_mib(moved['deliver'])} in all to single clients"
    if moved["failure"]:
        return f"{text}; back: not known, the server cannot be rehearsed ({moved['failure']})"
    kind = "int64" if p["reduce"] == "exact" else "float32"
    if moved["exchange"]:
        text += f", and {format_mib(moved['exchange'])} of rows between the ranks, for medians or trimmed means"
    return (f"{text}; back from each {format_mib(moved['reduce'])} by reduce ({kind}), and "
            f"{format_mib(moved['gather'])} in all client by client")


def format_mib(nbytes: int) -> str:
    """Return bytes as text in MiB."""
    return f"{nbytes / MIB:.3f} MiB"


def describe_evaluation(p: JsonObject) -> str:
    """Say how often and on which samples clients are evaluated, the least and the most of a client, and whether the run
    may end early."""
    evaluation = p["evaluation"]
    parts = " and ".join(f"{p['samples'][part]:,} {part} samples ({format_range(low_and_high)} per client)"
                         for part, low_and_high in evaluation["samples_per_client"].items())
    ends = f"; the run ends when {p['patience']} rounds bring nothing better on validation" if p["patience"] else ""
    return f"{describe_interval(evaluation['every'])}: all clients, {parts}{ends}"


def describe_engine(p: JsonObject) -> str:
    """Name the engine and the device, and say how many threads a rank has."""
    chosen = f" ({p['engine_on_cpu']} on a CPU)" if p["engine"] == "auto" else ""
    return f"{p['engine']}{chosen}, device {p['device']}, {count_words(p['threads'], 'thread')} a rank"


def describe_checkpoints(checkpoint: JsonObject) -> str:
    """Say how often a checkpoint is written, and how large it is."""
    minutes = checkpoint["minutes"] if checkpoint["every"] != 1 else 0
    return (describe_interval(checkpoint["every"]) + f" and {minutes:g} min after the last one" * (minutes > 0)
            + f": {checkpoint['mib']:.3g} MiB")


def describe_interval(rounds: int) -> str:
    """Say how often something happens, from the number of rounds between; 0 means at the end only."""
    return {0: "at the end", 1: "every round"}.get(rounds, f"every {rounds} rounds")


def list_ranks(per_rank: list[JsonObject]) -> str:
    """Return a table with a row for each rank."""
    heads = ["rank", "role", "clients", "samples", "steps", "MiB", "hosts"]
    rows = [[r["rank"], r["role"], r["clients"], f"{r['samples']:,}", f"{r['steps']:,.0f}", f"{r['memory_mib']:.2f}",
             list_clients(r["hosts"])] for r in per_rank]
    return format_columns(heads, rows, right=("rank", "clients", "samples", "steps", "MiB"))


def list_clients(clients: list[int]) -> str:
    """Return the first numbers of a rank's clients as text, and how many more there are."""
    more = len(clients) - CLIENTS_SHOWN
    return " ".join(map(str, clients[:CLIENTS_SHOWN])) + (f" and {more} more" if more > 0 else "")


def summarise_ranks(per_rank: list[JsonObject]) -> str:
    """Return a table of the least, the median and the most of the ranks that host clients."""
    at_work = [r for r in per_rank if r["clients"]]
    rows = []
    for head, key, form in (("clients", "clients", ",.0f"), ("samples", "samples", ",.0f"), ("steps", "steps", ",.0f"),
                            ("MiB", "memory_mib", ",.2f")):
        values = [r[key] for r in at_work]
        rows.append([head, *(format(float(v), form) for v in (min(values), np.median(values), max(values)))])
    heads = [f"{len(at_work)} ranks with clients", "least", "median", "most"]
    server = f"rank 0 is the server: {per_rank[0]['memory_mib']:.2f} MiB"
    return f"{format_columns(heads, rows, right=tuple(heads[1:]))}\n\n{server}"


def describe_balance(per_rank: list[JsonObject], condition: str = "") -> list[tuple[str, str]]:
    """Say how uneven the ranks' work is, and how many have none.

    Args:
        condition: under which the ranks make these steps, see planned_time.describe_condition."""
    steps = [r["steps"] for r in per_rank if r["clients"]]
    idle = sum(r["role"] == "idle" for r in per_rank)
    uneven = max(steps) / max(1e-9, np.mean(steps))
    lines = [("balance", f"the busiest rank takes {uneven:.2f} x the mean number of steps{condition}")]
    if condition:
        lines.insert(0, ("steps", f"of a rank in a round{condition}"))
    return lines + [("idle", f"{idle} ranks: there are more ranks than clients")] * bool(idle)
