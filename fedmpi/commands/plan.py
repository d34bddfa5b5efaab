"""What a run would do and need, before it runs: who hosts whom, memory, bytes and steps per round.

Nothing is trained: a client of one blank sample shows what is sent, and the server's own code on such rows shows what
its collectives move. The federation is prepared if it is not there yet."""
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from fedmpi.clients.placement import assign_homes
from fedmpi.comm.transport import Counting
from fedmpi.commands.planned_steps import describe_planned_steps, in_all, stages, taking_part
from fedmpi.config.schema import GIB, Config, load_config, name_of
from fedmpi.data.federation import Federation, prepare
from fedmpi.method import nbytes
from fedmpi.server import round_cost
from fedmpi.text import format_columns, pairs

RANKS_SHOWN = 16           # ranks that the table shows one by one
CLIENTS_SHOWN = 12         # clients of a rank that it lists
VECTORS_OF_ONE_CLIENT = 4  # of parameters, if one client trains: weights, gradients, result, momentum or a pull
LABEL = 8          # bytes, int64
COUNTED = ("MiB of samples as stored and of private states (of each at most the setting state.memory), an Up for every "
           "participant, Shared twice, vectors of training and sums; not activations, nor the libraries")
MOVABLE = ("these clients keep nothing between rounds: participants train on whichever rank has time, hosts only judge "
           "them, and a rank may come to hold the samples of all")


class Rehearsal(NamedTuple):
    """What a round's collectives move, and why that is not known of the server's part (None: it is known)."""
    counted: Counting
    failure: str | None

    def totals(self) -> dict:
        """Return bytes to each worker (broadcast), from each (reduce) and from all together (gather)."""
        known = self.failure is None
        return {"broadcast": self.counted.broadcast_bytes, "reduce": self.counted.reduced_bytes if known else None,
                "gather": self.counted.gathered_bytes if known else None, "failure": self.failure}


@dataclass(frozen=True)
class Case:
    """What is planned: a configuration on its federation, and one client's first state and Up."""
    config: Config
    federation: Federation
    method: object
    shared: tuple
    mine: tuple
    up: tuple
    engine: str       # the one on CPUs, if the configuration leaves it open


def prepared(config_path: str | Mapping, overrides: Sequence[str] | Mapping) -> Case:
    """Read a configuration, prepare its federation and rehearse a client. Raises BadInput."""
    from fedmpi.assembly import bind_method, refuse_engine
    from fedmpi.engines.engine_choice import choose_by_network
    from fedmpi.engines.loop import rehearse_loop
    from fedmpi.models.build import make_blank_samples
    config = load_config(config_path, overrides)
    federation = Federation(prepare(config.data, config.seed))
    method = bind_method(config, federation)
    refuse_engine(config, federation, method)
    shared, mine = method.init(federation.clients)
    sample = make_blank_samples(federation.shape, federation.dtype)
    up = rehearse_loop(method, shared, mine, sample)[1]
    engine = choose_by_network(method, shared, mine, sample)[0] if config.engine == "auto" else config.engine
    return Case(config, federation, method, shared, mine, up, engine)


def make_plan(config_path: str | Mapping, overrides: Sequence[str] | Mapping, ranks: int) -> dict:
    """Return the plan of a run on so many ranks as plain values. Raises BadInput."""
    from fedmpi.preparation import format_settings
    case = prepared(config_path, overrides)
    config, federation, method, rehearsal = case.config, case.federation, case.method, rehearse_server(case)
    down, up = method.traffic(case.shared, case.up)
    made = stages(case)
    per_rank = [hosting(case, rank, hosts, rehearsal.counted) for rank, hosts in enumerate(homes_of(case, ranks))]
    return {
        "method": method.title, "settings": format_settings(method), "model": name_of(config.model),
        "model_settings": format_settings(config.model), "parameters": method.model.size,
        "head_parameters": method.model.head.size,
        "data": config.data.name, "federation": str(federation.path), "clients": federation.clients,
        "samples": dict(zip(("train", "validation", "test"), federation.counts.sum(0).tolist(), strict=True)),
        "train_samples": [int(federation.sizes.min()), int(federation.sizes.max())],
        "rounds": config.rounds, "participants": list(taking_part(case)), "batch": config.train.batch,
        "steps_per_round": expected_batches(case, federation.sizes), "patience": config.stop and config.stop.patience,
        "stages": [asdict(stage) for stage in made], "steps": in_all(made),
        "mib_per_client_round": (down + up) / round_cost.MIB, "mib_down": down / round_cost.MIB,
        "mib_up": up / round_cost.MIB, "bytes_per_round": rehearsal.totals(), "reduce": config.server.reduce,
        "evaluation": {"every": config.evaluate.every, "on": config.evaluate.on, "parts": list(config.judged_on)},
        "checkpoint": {"every": config.checkpoint.every, "mib": checkpoint_bytes(case) / round_cost.MIB},
        "engine": config.engine, "engine_on_cpu": case.engine, "device": config.device, "threads": config.threads,
        "movable": not case.mine, "ranks": ranks, "server_memory_mib": per_rank[0]["memory_mib"], "per_rank": per_rank}


def rehearse_server(case: Case) -> Rehearsal:
    """Run the server's part of a round on rows that are all alike; return what its collectives would move."""
    import torch

    from fedmpi.clients.hosted import HostedClients
    from fedmpi.comm.orders import UP
    from fedmpi.comm.rank_pool import RankPool
    from fedmpi.comm.robust import RobustMean
    from fedmpi.comm.rows import rows_of
    from fedmpi.server.rounds import address
    from fedmpi.server.sampling import participants
    class BlankClients(HostedClients):
        """Clients that all send the same blank Up and train nothing."""
        def train(self, when: int, everybody: np.ndarray, here: np.ndarray, judge: bool) -> None:
            self.ups = dict.fromkeys(here.tolist(), case.up)
    config, federation, counted = case.config, case.federation, Counting()
    who, everybody = participants(config, 0, federation.sizes), range(federation.clients)
    group = BlankClients(case.method, case.shared, case.mine, None, federation, everybody, config, torch.device("cpu"))
    robust = RobustMean.from_settings(config.server.aggregation, config.server.trim)
    pool = RankPool(counted, group, np.zeros(federation.clients, np.int64), robust=robust)
    address(pool, case.method, case.shared, who)
    pool.train(0, who.ids, True, case.shared)
    counted.broadcast_bytes = 0      # a state that stays as it is was sent once, before the first round
    try:
        with warnings.catch_warnings(action="ignore"):      # rows that are all alike make poor clusters
            shared = case.method.server(case.shared, rows_of(pool, UP, case.up), who)
        counted.broadcast_bytes += sum(field.nbytes for field in pool.changed_fields(shared))
    except Exception as error:      # a server may want rows that differ; the rest of the plan holds
        return Rehearsal(counted, f"{type(error).__name__}: {error}")
    return Rehearsal(counted, None)


def homes_of(case: Case, ranks: int) -> list[np.ndarray]:
    """Return the clients that each rank hosts."""
    config = case.config
    where = assign_homes(case.federation.sizes, ranks, config.server.hosts_clients, config.placement, config.seed)
    return [np.flatnonzero(where == rank) for rank in range(ranks)]


def hosting(case: Case, rank: int, hosts: np.ndarray, counted: Counting) -> dict:
    """Return what a rank hosts, what that takes, and the steps that its expected participants take in a round."""
    work = "worker" if rank else "server + worker"
    of_server = nbytes(case.shared) + 2 * counted.reduced_bytes + counted.gathered_bytes
    held = memory(case, hosts) + (0 if rank else of_server)
    return {"rank": rank, "role": work if len(hosts) else ("idle" if rank else "server"), "clients": len(hosts),
            "hosts": hosts.tolist(), "samples": int(case.federation.counts[hosts].sum()),
            "steps": expected_batches(case, case.federation.sizes[hosts]),
            "memory_mib": (held + counted.reduced_bytes * bool(len(hosts))) / round_cost.MIB}


def expected_batches(case: Case, sizes: np.ndarray) -> int:
    """Return the batches of one pass of local training, expected per round, of clients of these sizes."""
    share = np.mean(taking_part(case)) / case.federation.clients
    return round(float(round_cost.batches_per_pass(sizes, case.config.train).sum() * share))


def memory(case: Case, hosts: np.ndarray) -> int:
    """Return the bytes that a rank holds for its clients: see COUNTED."""
    shared = 2 * nbytes(case.shared)
    if not len(hosts):
        return shared
    federation, bound = case.federation, case.config.state.memory * GIB
    sample = int(np.prod(federation.shape)) * federation.dtype.itemsize + LABEL
    counts = federation.counts[hosts] if case.mine else federation.counts      # who keeps nothing trains anywhere
    participants = min(len(hosts), taking_part(case)[1])
    return int(shared + min(bound, counts.sum() * sample) + min(bound, len(hosts) * nbytes(case.mine))
               + participants * nbytes(case.up) + training(case, participants, bound))


def training(case: Case, participants: int, bound: float) -> int:
    """Return the bytes of parameters that the engine works on at once."""
    from fedmpi.engines import vmap
    vector = 4 * case.method.model.size
    if case.engine == "loop":
        return VECTORS_OF_ONE_CLIENT * vector
    each = vmap.VECTORS_PER_CLIENT * vector
    return max(each, min(bound // 4, each * min(participants, vmap.MAX_CLIENTS_AT_ONCE)))


def checkpoint_bytes(case: Case) -> int:
    """Return the bytes of a checkpoint in which every client has a state of its own, but for its books."""
    from fedmpi.storage.seal import DIGEST_BYTES, SEAL_BYTES
    row = 8 + nbytes(case.mine) + DIGEST_BYTES * len(case.mine)
    return SEAL_BYTES + nbytes(case.shared) + case.federation.clients * row


def plan_table(planned: dict) -> str:
    """Return a plan as text, with a row for each rank, or a summary if there are many."""
    p = planned
    ranks = one_by_one(p["per_rank"]) if p["ranks"] <= RANKS_SHOWN else summarised(p["per_rank"])
    return "\n\n".join([pairs([("method", f"{p['method']} {p['settings']}".strip()),
               ("model", model_line(p)), ("data", data_line(p)), ("federation", p["federation"]),
               ("rounds", rounds_line(p)), ("steps", describe_planned_steps(p["stages"], p["rounds"])),
               ("bytes", bytes_line(p)), ("on the wire", wire_line(p)), ("evaluation", evaluation_line(p)),
               ("checkpoint", f"{every(p['checkpoint']['every'])}: {p['checkpoint']['mib']:.3g} MiB"),
               ("engine", engine_line(p))]),
        ranks, pairs([("memory", COUNTED), *balance(p["per_rank"]), *[("hosts", MOVABLE)] * p["movable"]])])


def model_line(p: dict) -> str:
    """Name the network, and say how many parameters it and its head have."""
    return (f"{p['model']} {p['model_settings']}: {p['parameters']:,} parameters, {p['head_parameters']:,} of them in "
            "the head")


def data_line(p: dict) -> str:
    """Say how many samples there are, and the least and the most to train on per client."""
    low, high = p["train_samples"]
    parts = ", ".join(f"{n:,} {part}" for part, n in p["samples"].items() if n)
    return f"{p['data']}, {p['clients']} clients: samples {parts}; {low}-{high} to train on per client"


def rounds_line(p: dict) -> str:
    """Say how many rounds, participants and batches there are."""
    low, high = p["participants"]
    who = f"{low}" if low == high else f"{low}-{high}"
    expected = "" if low == p["clients"] else "about "
    return (f"{p['rounds']}, each with {who} of {p['clients']} clients; local training draws {expected}"
            f"{p['steps_per_round']:,} batches of up to {p['batch']} samples a round")


def bytes_line(p: dict) -> str:
    """Say how many bytes a client receives and sends in a round."""
    return (f"{p['mib_per_client_round']:.3f} MiB per client and round: {p['mib_down']:.3f} down, {p['mib_up']:.3f} up")


def wire_line(p: dict) -> str:
    """Say what a round moves between ranks: the server's tensors once per rank, and sums as they are reduced."""
    if p["ranks"] == 1:
        return "nothing: one rank"
    moved = p["bytes_per_round"]
    text = f"per round, to each rank {mib(moved['broadcast'])} by broadcast"
    if moved["failure"]:
        return f"{text}; back: not known, the server cannot be rehearsed ({moved['failure']})"
    kind = "int64" if p["reduce"] == "exact" else "float32"
    return (f"{text}; back from each {mib(moved['reduce'])} by reduce ({kind}), and {mib(moved['gather'])} in all "
            "client by client")


def mib(nbytes: int) -> str:
    """Return bytes as text in MiB."""
    return f"{nbytes / round_cost.MIB:.3f} MiB"


def evaluation_line(p: dict) -> str:
    """Say how often and on which samples clients are evaluated, and whether the run may end early."""
    parts = " and ".join(f"{p['samples'][part]:,} {part}" for part in p["evaluation"]["parts"])
    ends = f"; the run ends when {p['patience']} rounds bring nothing better on validation" if p["patience"] else ""
    return f"{every(p['evaluation']['every'])}: all clients, {parts} samples{ends}"


def engine_line(p: dict) -> str:
    """Name the engine and the device, and say how many threads a rank has."""
    chosen = f" ({p['engine_on_cpu']} on a CPU)" if p["engine"] == "auto" else ""
    return f"{p['engine']}{chosen}, device {p['device']}, {p['threads']} thread{plural(p['threads'])} a rank"


def every(rounds: int) -> str:
    """Say how often something happens, from the number of rounds between; 0 means at the end only."""
    return {0: "at the end", 1: "every round"}.get(rounds, f"every {rounds} rounds")


def plural(number: int) -> str:
    """Return the ending of a noun after this number."""
    return "" if number == 1 else "s"


def one_by_one(per_rank: list[dict]) -> str:
    """Return a table with a row for each rank."""
    heads = ["rank", "role", "clients", "samples", "steps", "MiB", "hosts"]
    rows = [[r["rank"], r["role"], r["clients"], f"{r['samples']:,}", f"{r['steps']:,}", f"{r['memory_mib']:.2f}",
             some(r["hosts"])] for r in per_rank]
    return format_columns(heads, rows, right=("rank", "clients", "samples", "steps", "MiB"))


def some(clients: list[int]) -> str:
    """Return the first numbers of a rank's clients as text, and how many more there are."""
    more = len(clients) - CLIENTS_SHOWN
    return " ".join(map(str, clients[:CLIENTS_SHOWN])) + (f" and {more} more" if more > 0 else "")


def summarised(per_rank: list[dict]) -> str:
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


def balance(per_rank: list[dict]) -> list[tuple[str, str]]:
    """Say how uneven the ranks' work is, and how many have none."""
    steps = [r["steps"] for r in per_rank if r["clients"]]
    idle = sum(r["role"] == "idle" for r in per_rank)
    uneven = max(steps) / max(1e-9, np.mean(steps))
    lines = [("balance", f"the busiest rank takes {uneven:.2f} x the mean number of steps")]
    return lines + [("idle", f"{idle} ranks: there are more ranks than clients")] * bool(idle)
