"""What happens before a run: rank 0 decides (configuration, folder, federation, checkpoint), and every rank then builds
its parts from these decisions in the same way."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fedmpi import __version__, warm_start
from fedmpi.clients.measures import try_measures
from fedmpi.comm.gpu_probe import probe_gpu_memory
from fedmpi.comm.gpu_staging import refuse_cuda_aware, wants_gpu_direct
from fedmpi.comm.heartbeat import Heartbeat
from fedmpi.comm.mpi_world import World
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.transport import Transport
from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import Config, load_config, resolve, to_plain
from fedmpi.context import RankContext
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines import gpu_card
from fedmpi.errors import BadInput, FaultyCode, FedmpiError
from fedmpi.json_values import JsonObject
from fedmpi.memory_check import refuse_large_method
from fedmpi.method import Method, State
from fedmpi.own_code.changes import (
    CodeChange,
    describe_accepted,
    describe_unknown_code,
    leave_out_measures,
    list_changes,
    refuse_changes,
    refuse_other_code,
)
from fedmpi.own_code.failures import blame_own_code, format_cause
from fedmpi.own_code.fingerprint import Fingerprint
from fedmpi.paths import refuse_wrong_paths
from fedmpi.progress import Progress
from fedmpi.ranks import describe_place, gather_objects
from fedmpi.server import early_stopping
from fedmpi.server.client_selection import ClientSelector, make_client_selector
from fedmpi.storage import changed_settings, checkpoint
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.folder_choice import NEWEST_CHECKPOINT, claim_folder, find_resume_checkpoint, pick_folder
from fedmpi.storage.no_checkpoint import refuse_lost_rounds

# name of the runs of a configuration that is not a file
UNNAMED = "run"


@dataclass
class Decision:
    """What rank 0 decides before the other ranks hear of it."""
    config: Config
    federation: Federation
    method: Method
    # selects participants, and keeps their simulated time
    client_selector: ClientSelector
    folder: RunFolder
    # the checkpoint to continue from, and what it holds
    resume: Path | None
    snapshot: checkpoint.Snapshot | None
    # whether the user wants to continue from the newest checkpoint, if there is one
    wants_newest: bool
    warnings: list[str]
    # what every rank is told
    start: JsonObject
    # the fingerprint of the user's own code, and its changes since the checkpoint that the user accepted
    own_code: Fingerprint = field(default_factory=dict)
    accepted: list[CodeChange] = field(default_factory=list)


@refuse_wrong_paths()
def decide(config_path: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object],
           out: str | None, resume: str | None, world: Transport, accept_changed_code: bool = False) -> Decision:
    """Check all that can be checked, lock the run folder, and return what the run starts from.

    Raises:
        BadInput: if it cannot be run.
        AlreadyFinished: if its folder holds its result, and no checkpoint."""
    name = UNNAMED if isinstance(config_path, Mapping) else config_path
    try:
        with blame_own_code():
            config = load_config(config_path, overrides)
            plain = to_plain(config)
    except FaultyCode as error:
        raise log_early_cause(pick_folder(name, out, resume), error) from error.__cause__
    refuse_cuda_aware(config.comm.cuda_aware, world)
    folder = claim_folder(name, out, resume)
    accepted: list[CodeChange] = []
    try:
        own_code = fingerprint_code(config)
        if world.size == 1:
            gpu_card.choose_device(config, world, world.host, hosts=True)
        with blame_own_code():
            federation = Federation(prepare_federation(config.data, config.seed))
            method = build_method(config, federation, rehearse=True)
            refuse_engine(config, federation, method)
            client_selector = make_client_selector(config, federation, method)
            try_measures(config.evaluate.measures, federation.classes, federation.task)
        path, warnings = find_resume_checkpoint(folder, resume)
        snapshot = checkpoint.read_checkpoint(path, check=resume != NEWEST_CHECKPOINT) if path else None
        if snapshot:
            changed_settings.refuse_other_run(snapshot, plain, federation.fingerprint)
            client_selector.refuse_files(snapshot.extra.get("files", {}))
            warnings += changed_settings.warn_of_other_settings(snapshot, plain)
            if snapshot.round > config.rounds:
                raise BadInput(f"{path} is of round {snapshot.round}, but rounds = {config.rounds}: nothing to do; "
                               f"set rounds to {snapshot.round} or more, or start a new run with another --out")
            accepted, said = accept_code(snapshot, own_code, accept_changed_code, config)
            warnings += said
        if resume == NEWEST_CHECKPOINT:
            refuse_lost_rounds(folder.path, plain, snapshot.round if snapshot else 0)
        warnings += describe_unknown_code(own_code)
    except BaseException as error:
        logged = log_cause(folder, error) if isinstance(error, FaultyCode) else None
        folder.withdraw()
        if logged:
            raise logged from error.__cause__
        raise
    if folder.taken_over:
        warnings.append(folder.taken_over)
    start = {"version": __version__, "config": plain, "federation": str(federation.path),
             "fingerprint": federation.fingerprint, "own_code": own_code}
    return Decision(config, federation, method, client_selector, folder, path, snapshot, resume == NEWEST_CHECKPOINT,
                    warnings, start, own_code, accepted)


def accept_code(snapshot: checkpoint.Snapshot, now: Fingerprint, accept: bool,
                config: Config) -> tuple[list[CodeChange], list[str]]:
    """Return the changes of the user's own code since a checkpoint, other measures apart, and what to say of them.

    Raises BadInput if there are any, and they are not accepted."""
    then, of_then = snapshot.extra.get("own_code"), snapshot.config.get("evaluate", {}).get("measures", ())
    others = list(config.evaluate.measures) != list(of_then)
    needed = fingerprint_code(config, measures=False) if others else now
    if then is None:
        return [], [f"the checkpoint of round {snapshot.round} has no fingerprint of your own code, so it is not known "
                    "whether the code has changed since"] if needed else []
    changes = leave_out_measures(list_changes(then, now, snapshot.round), needed,
                                 others and any(":" in name for name in of_then))
    if not accept:
        refuse_changes(changes, f"the checkpoint of round {snapshot.round}", "put back what it was, start a new run "
                       "with another --out, or accept the change by --accept-changed-code, which result.json will say")
    return changes, describe_accepted(changes)


def log_cause(folder: RunFolder, error: FaultyCode) -> BadInput:
    """Write the traceback of a failure of the user's own code to the run's log, and return an error that says so. If
    the log cannot be written, return the same error."""
    with suppress(FedmpiError):
        progress = Progress(folder.log_path, quiet=True)
        progress.note(f"{error}\n{format_cause(error)}")
        progress.close()
        return error.reword(f"{error} (traceback in {folder.log_path})")
    return error


def log_early_cause(out: Path, error: FaultyCode) -> BadInput:
    """Do what `log_cause` does for a folder `out` that is not locked yet; do nothing if another run holds it."""
    with suppress(FedmpiError):
        folder = RunFolder.claim(out, resume=True)
        try:
            return log_cause(folder, error)
        finally:
            folder.withdraw()
    return error


@dataclass
class Parts:
    """What every rank holds. `method` and `shared` are the server's, on the CPU; `up` shows the fields of an Up."""
    config: Config
    method: Method
    federation: Federation
    pool: RankPool
    shared: State
    up: State
    device: torch.device
    # why this rank copies its GPU's numbers to the host before MPI takes them; "" if it does not
    staged: str = ""
    # where each rank works; known at rank 0
    places: list[JsonObject] = field(default_factory=list)

    def gpus(self) -> list[str]:
        """Return the descriptions of the GPUs that train clients, each once. Rank 0 knows them."""
        return sorted({them["card"] for them in self.places if them["hosts"]} - {""})


def refuse_other_padding(table: int | None, data: int | None) -> None:
    """Raise BadInput if the table of a network keeps the row of one id for padding, and texts are padded with another
    one; None stands for unknown."""
    if table is not None and data is not None and table != data:
        raise BadInput(f"model: its table keeps the row {table} for padding, and data.tokenizer pads texts with the id "
                       f"{data}; take a tokenizer that pads with {table}, or another network")


def build_method(config: Config, federation: Federation, rehearse: bool = False) -> Method:
    """Build the model for the federation's samples and return the method on it. Raises BadInput.

    Args:
        rehearse: try the functions of a method of the user's own first"""
    from fedmpi.clients import newcomers, returned, updates
    from fedmpi.engines import batchnorm, training_options
    from fedmpi.models.build import build_model
    model = build_model(config.model, federation.shape, federation.dtype, federation.classes, config.seed)
    warm_start.load_start(config, model)
    words = getattr(federation, "vocabulary", None)
    if model.table and words and words > model.lookup.num_embeddings:
        raise BadInput(f"model: its table has {model.lookup.num_embeddings} rows, but the data count their words up to "
                       f"{words - 1}; set model.vocabulary = {words} or more")
    if model.table and words:
        refuse_other_padding(model.lookup.padding_idx, federation.names.get("padding_id"))
    refuse_large_method(config.method, model.size, config.train, int(federation.sizes.max()),
                        int(np.prod(federation.shape)))
    returned.refuse_training_settings(config.method, config.train)
    early_stopping.refuse_validation_settings(config, federation)
    training_options.refuse_regression(config, config.method)
    if rehearse:
        from fedmpi.server.rehearsal import refuse_faulty_method
        refuse_faulty_method(config, federation, model)
    method = batchnorm.bind_method(config.method, model)
    training_options.refuse_training_options(config, federation, method)
    updates.refuse_updates(config, method, federation)
    newcomers.refuse_newcomers(config, method)
    return method


def refuse_engine(config: Config, federation: Federation, method: Method) -> None:
    """Raise BadInput if the configured engine cannot train the network. Rank 0 checks this for all ranks."""
    from fedmpi.engines import engine_choice
    from fedmpi.models.build import make_blank_samples
    blank = make_blank_samples(federation.shape, federation.dtype)
    engine_choice.refuse_vmap(config.engine, method, blank, config.data.new_clients)


def assemble_from_start(world: Transport, start: JsonObject, context: RankContext) -> Parts:
    """Build a worker's parts from what rank 0 told (`Decision.start` and its host)."""
    federation, config = Federation(start["federation"], start["fingerprint"]), resolve(start["config"])
    refuse_other_code(fingerprint_code(config), start["own_code"])
    return assemble(world, config, federation, start["host"], context)


def assemble(world: Transport, config: Config, federation: Federation, server_host: str, context: RankContext,
             method: Method | None = None) -> Parts:
    """Build this rank's parts, see `build_parts`; from then on the ranks watch each other."""
    parts = build_parts(world, config, federation, server_host, context, method)
    here = describe_place(world, parts.device, bool((parts.pool.homes == world.rank).any()))
    parts.places = gather_objects(world, here | {"staged": parts.staged, "card": gpu_card.describe_gpu(parts.device)})
    if isinstance(world, World) and config.comm.timeout and world.thread_level == "multiple":
        hosts = [them["host"] for them in parts.places]
        world.heartbeat = Heartbeat(world, config.comm.timeout, hosts or [server_host], context)
    return parts


def build_parts(world: Transport, config: Config, federation: Federation, server_host: str,
                context: RankContext | None = None, method: Method | None = None) -> Parts:
    """Build this rank's parts. They are the same on every rank, except for the clients that it hosts.

    Args:
        server_host: host of rank 0, which needs no GPU if it hosts no clients
        context: what this rank's parts share; None: nobody asks the run to stop
        method: as `build_method` returned it; None: it is built here"""
    from fedmpi.clients import malloc
    from fedmpi.clients.hosted import HostedClients
    from fedmpi.clients.newcomers import list_newcomers
    from fedmpi.clients.placement import assign_homes
    from fedmpi.engines import engine_choice
    from fedmpi.engines.rehearsal import rehearse_loop
    from fedmpi.models import precision
    from fedmpi.models.build import make_blank_samples
    torch.set_num_threads(config.threads)
    malloc.keep_freed_memory()
    precision.set_precision(config.precision)
    where = assign_homes(federation.sizes, world.size, config.server.hosts_clients, config.placement, config.seed)
    hosted = np.flatnonzero(where == world.rank)
    device = gpu_card.choose_device(config, world, server_host, hosts=len(hosted) > 0)
    if device.type == "cuda":
        gpu_card.use_deterministic_kernels()
        torch.cuda.set_device(device)
    method = method or build_method(config, federation)
    shared, mine = method.init(len(where))
    at_work = method.with_model(method.model.to(device)) if device.type != "cpu" else method
    sample = make_blank_samples(federation.shape, federation.dtype)
    up = rehearse_loop(method, shared, mine, sample)[1]
    engine_name, why = ((config.engine, "set") if config.engine != "auto" else
                        engine_choice.choose_by_network(method, shared, mine, sample, config.data.new_clients))
    room = gpu_card.limit_memory(config, device, gpu_card.count_ranks_on_gpu(world, device))
    engine = engine_choice.build_engine(engine_name, config, room)
    group = HostedClients(at_work, shared, mine, engine, federation, hosted, config, device, room, context, why,
                          list_newcomers(where, config.data.new_clients, world.rank), up)
    wanted = wants_gpu_direct(config.comm.cuda_aware, world, device)
    works, staged = probe_gpu_memory(config.comm.cuda_aware, world, device, wanted)
    pool = RankPool(world, group, where, works, RobustMean.from_settings(config.server.aggregation, config.server.trim))
    return Parts(config, method, federation, pool, shared, up, device, staged=staged)
