"""What a run would do and need, before it runs: who hosts whom, memory, bytes and steps per round.

Nothing is trained: a client of one blank sample shows what is sent, and the server's own code on such rows shows what
its collectives move. The federation is prepared if it is not there yet."""
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from fedmpi.clients.placement import assign_homes
from fedmpi.comm.transport import Counting
from fedmpi.commands.plan_case import Case, prepare_case
from fedmpi.commands.planned_steps import count_final_steps, find_participant_range, plan_stages
from fedmpi.config.schema import find_name
from fedmpi.data.federation import SAMPLE_PARTS
from fedmpi.json_values import JsonObject
from fedmpi.method import WHOLE, find_kind_of_field, nbytes
from fedmpi.server.round_cost import count_batches_of_round
from fedmpi.server_only import select_sent
from fedmpi.text import GIB, MIB

# Vectors of parameters while one client trains: weights, gradients, result, and momentum or a pull.
VECTORS_OF_ONE_CLIENT = 4
# Bytes of a label, int64.
LABEL_BYTES = 8
# A last batch of an epoch is called short if it has at most so small a share of a whole one.
SHORT_BATCH = 1 / 4


class Rehearsal(NamedTuple):
    """What a round's collectives move, and why that is not known of the server's part (None: it is known)."""
    counted: Counting
    delivered_bytes: int
    failure: str | None

    def totals(self) -> JsonObject:
        """Return bytes to each worker (broadcast), to all clients together (deliver), from each worker (reduce), from
        all together (gather), and of rows that the ranks hand each other for medians (exchange)."""
        known = self.failure is None
        return {"broadcast": self.counted.broadcast_bytes, "deliver": self.delivered_bytes,
                "reduce": self.counted.reduced_bytes if known else None,
                "gather": self.counted.gathered_bytes if known else None,
                "exchange": self.counted.exchanged_bytes if known else None, "failure": self.failure}


def make_plan(config_path: str | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object],
              ranks: int) -> JsonObject:
    """Return the plan of a run on so many ranks as plain values. Raises BadInput."""
    from fedmpi.commands.planned_time import plan_participation
    from fedmpi.preparation import format_settings
    case = prepare_case(config_path, overrides)
    config, federation, method, rehearsal = case.config, case.federation, case.method, rehearse_server(case)
    down, up = method.traffic(case.shared, case.up)
    made = plan_stages(case)
    per_rank = [describe_hosting(case, rank, hosts, rehearsal.counted) for rank,
                hosts in enumerate(list_hosted_clients(case, ranks))]
    counts = federation.counts
    extremes = dict(zip(SAMPLE_PARTS, np.stack([counts.min(0), counts.max(0)], 1).tolist(), strict=True))
    return {"method": method.title, "settings": format_settings(method), "model": find_name(config.model),
            "model_settings": format_settings(config.model), "parameters": method.model.size,
            "head_parameters": method.model.head.size, "data": config.data.name, "federation": str(federation.path),
            "clients": federation.clients, "samples": dict(zip(SAMPLE_PARTS, counts.sum(0).tolist(), strict=True)),
            "train_samples": extremes["train"], "rounds": config.rounds,
            "participants": list(find_participant_range(case)), "participation": plan_participation(case),
            "batch": config.train.batch,
            "steps_per_round": round(count_expected_batches(case, federation.sizes)), "patience": config.stop
            and config.stop.patience, "stages": [asdict(stage) for stage in made], "steps": count_final_steps(made),
            "uncounted_steps": method.describe_uncounted_steps(federation.clients),
            "short_batches": find_short_batches(case),
            "mib_per_client_round": (down + up) / MIB, "mib_down": down / MIB, "mib_up": up / MIB,
            "bytes_per_round": rehearsal.totals(), "reduce": config.server.reduce,
            "evaluation": {"every": config.evaluate.every, "on": config.evaluate.on, "parts": list(config.evaluated_on),
                           "samples_per_client": {part: extremes[part] for part in config.evaluated_on}},
            "checkpoint": {"every": config.checkpoint.every, "minutes": config.checkpoint.minutes,
                           "mib": count_checkpoint_bytes(case) / MIB},
            "engine": config.engine, "engine_on_cpu": case.engine, "device": config.device, "threads": config.threads,
            "movable": not case.mine and method.message_template() is None, "ranks": ranks,
            "server_memory_mib": per_rank[0]["memory_mib"],
            "per_rank": per_rank}


def rehearse_server(case: Case) -> Rehearsal:
    """Run the server's part of a round on rows that are all alike; return what its collectives would move."""
    from fedmpi.clients.checked_method import CheckedMethod
    from fedmpi.comm.orders import UP
    from fedmpi.comm.rows import make_rows
    from fedmpi.server.rehearsal import make_blank_pool
    from fedmpi.server.rounds import send_messages
    from fedmpi.server.sampling import draw_participants
    config, federation = case.config, case.federation
    who = draw_participants(config, 0, federation.sizes, measure=lambda ids: np.zeros(len(ids)))
    pool = make_blank_pool(config, federation, case.method, case.shared, case.mine, case.up)
    counted = pool.world
    assert isinstance(counted, Counting)
    checked = CheckedMethod(case.method, case.mine, case.up, federation.classes)
    send_messages(pool, checked, case.shared, who)
    pool.train(0, who.ids, True, case.shared)
    # A state that stays as it is was sent once, before the first round.
    counted.broadcast_bytes = 0
    try:
        # Rows that are all alike make poor clusters.
        with warnings.catch_warnings(action="ignore"):
            shared = checked.server(case.shared, make_rows(pool, UP, case.up), who)
        counted.broadcast_bytes += sum(field.nbytes for field in pool.list_changed_fields(shared))
    except Exception as error:
        # A server may want rows that differ; the rest of the plan holds.
        return Rehearsal(counted, pool.delivered_bytes, f"{type(error).__name__}: {error}")
    return Rehearsal(counted, pool.delivered_bytes, None)


def list_hosted_clients(case: Case, ranks: int) -> list[np.ndarray]:
    """Return the clients that each rank hosts."""
    config = case.config
    where = assign_homes(case.federation.sizes, ranks, config.server.hosts_clients, config.placement, config.seed)
    return [np.flatnonzero(where == rank) for rank in range(ranks)]


def describe_hosting(case: Case, rank: int, hosts: np.ndarray, counted: Counting) -> JsonObject:
    """Return what a rank hosts, what that takes, and the steps that its expected participants take in a round."""
    work = "worker" if rank else "server + worker"
    of_server = nbytes(case.shared) + 2 * counted.reduced_bytes + counted.gathered_bytes + count_waiting_bytes(case)
    held = estimate_memory(case, hosts) + (0 if rank else of_server)
    return {"rank": rank, "role": work if len(hosts) else ("idle" if rank else "server"), "clients": len(hosts),
            "hosts": hosts.tolist(), "samples": int(case.federation.counts[hosts].sum()),
            "steps": count_expected_batches(case, case.federation.sizes[hosts]),
            "memory_mib": (held + counted.reduced_bytes * bool(len(hosts))) / MIB}


def count_expected_batches(case: Case, sizes: np.ndarray) -> float:
    """Return the expected batches of local training in a round, in all its epochs, of clients of these sizes."""
    share = np.mean(find_participant_range(case)) / case.federation.clients
    return float(count_batches_of_round(sizes, case.config.train).sum() * share)


def find_short_batches(case: Case) -> JsonObject | None:
    """Return how many clients end an epoch with a step on a short batch, and the most samples that it has; None if none
    does, or if clients keep no whole model, which alone depends much on the last step."""
    train, model, mine = case.config.train, case.method.model, case.mine
    keeps = any(find_kind_of_field(model, type(mine), name, rows.shape[-1]) is WHOLE
                for name, rows in mine._asdict().items() if rows.ndim)
    if train.steps or train.drop_last or not keeps:
        return None
    sizes, most = case.federation.sizes, int(SHORT_BATCH * train.batch)
    left = sizes % train.batch
    clients = int(((sizes > train.batch) & (left > 0) & (left <= most)).sum())
    return {"clients": clients, "samples": most} if clients else None


def estimate_memory(case: Case, hosts: np.ndarray) -> int:
    """Return the bytes that a rank holds for its clients: see plan_table.COUNTED."""
    shared = 2 * nbytes(select_sent(case.shared))
    if not len(hosts):
        return shared
    federation, bound = case.federation, case.config.state.memory * GIB
    sample = int(np.prod(federation.shape)) * federation.dtype.itemsize + LABEL_BYTES
    # Clients that keep nothing may train on any rank.
    counts = federation.counts[hosts] if case.mine else federation.counts
    participants = min(len(hosts), find_participant_range(case)[1])
    # All messages arrive before the first participant trains, and lie there until the last one has
    exchanged = nbytes(case.up) + nbytes(case.method.message_template() or ())
    return int(shared + min(bound, counts.sum() * sample) + min(bound, len(hosts) * nbytes(case.mine))
               + participants * exchanged + count_training_bytes(case, participants, bound))


def count_training_bytes(case: Case, participants: int, bound: float) -> int:
    """Return the bytes of parameters that the engine works on at once."""
    from fedmpi.engines import vmap
    from fedmpi.engines.batch_plan import get_optimizer
    from fedmpi.engines.optimizer import count_further_vectors
    vector, optimizer = 4 * case.method.model.size, get_optimizer(case.config.train)
    if case.engine == "loop":
        return (VECTORS_OF_ONE_CLIENT + count_further_vectors(optimizer)) * vector
    each = vmap.count_vectors(optimizer) * vector
    return max(each, min(bound // 4, each * min(participants, vmap.MAX_CLIENTS_AT_ONCE)))


def count_waiting_bytes(case: Case) -> int:
    """Return the bytes of a checkpoint that rank 0 holds while training goes on; 0 if training waits for it."""
    if not case.config.checkpoint.asynchronous:
        return 0
    rows = case.federation.clients * nbytes(case.mine)
    return nbytes(case.shared) + int(min(case.config.state.memory * GIB, rows))


def count_checkpoint_bytes(case: Case) -> int:
    """Return the bytes of a checkpoint in which every client has a state of its own, but for its books."""
    from fedmpi.storage.seal import DIGEST_BYTES, SEAL_BYTES
    row = 8 + nbytes(case.mine) + DIGEST_BYTES * len(case.mine)
    return SEAL_BYTES + nbytes(case.shared) + case.federation.clients * row
