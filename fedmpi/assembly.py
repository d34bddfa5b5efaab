"""What happens before a run: rank 0 decides (configuration, folder, federation, checkpoint), and every rank then builds
its parts from these decisions in the same way."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fedmpi import __version__
from fedmpi.comm.gpu_probe import probe_gpu_memory
from fedmpi.comm.gpu_staging import refuse_cuda_aware, wants_gpu_direct
from fedmpi.comm.heartbeat import Heartbeat
from fedmpi.comm.mpi_world import World
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.transport import Transport
from fedmpi.config.schema import Config, load_config, resolve, to_plain
from fedmpi.context import RankContext
from fedmpi.data.federation import Federation, prepare
from fedmpi.errors import BadInput
from fedmpi.method import Method
from fedmpi.ranks import describe_place, gather_objects
from fedmpi.server import selection
from fedmpi.storage import checkpoint
from fedmpi.storage.folder import RunFolder, default_folder

# name of the runs of a configuration that is no file
UNNAMED = "run"


@dataclass
class Decision:
    """What rank 0 decides before the other ranks hear of it."""
    config: Config
    federation: Federation
    folder: RunFolder
    # the checkpoint to continue from, and what it holds
    resume: Path | None
    snapshot: checkpoint.Snapshot | None
    warnings: list[str]
    # what every rank is told
    start: dict


def decide(config_path: str | Path | Mapping, overrides: Sequence[str] | Mapping, out: str | None, resume: str | None,
           world: Transport) -> Decision:
    """Check all that can be checked before anything starts. Raises BadInput."""
    config = load_config(config_path, overrides)
    plain = to_plain(config)
    refuse_cuda_aware(config.comm.cuda_aware, world)
    name = UNNAMED if isinstance(config_path, Mapping) else config_path
    folder = RunFolder.claim(out or default_folder(name, bool(resume)), bool(resume))
    try:
        federation = Federation(prepare(config.data, config.seed))
        refuse_engine(config, federation, bind_method(config, federation))
        path, warnings = find_resume_checkpoint(folder, resume)
        snapshot = checkpoint.read_checkpoint(path, check=resume != "auto") if path else None
        if snapshot:
            checkpoint.check_same(snapshot, plain, federation.fingerprint)
            warnings += checkpoint.in_last_bits(snapshot, plain)
            if snapshot.round > config.rounds:
                raise BadInput(f"{path} is of round {snapshot.round}, but rounds = {config.rounds}: nothing to do; "
                               "raise rounds, or start a new run with another --out")
    except BaseException:
        folder.withdraw()
        raise
    if folder.taken_over:
        warnings.append(folder.taken_over)
    start = {"version": __version__, "config": plain, "federation": str(federation.path),
             "fingerprint": federation.fingerprint}
    return Decision(config, federation, folder, path, snapshot, warnings, start)


def find_resume_checkpoint(folder: RunFolder, resume: str | None) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to continue from, and what to tell the user of those that were refused."""
    if resume is None:
        return None, []
    if resume != "auto":
        path = Path(resume)
        if path.is_dir():
            raise BadInput(f"--resume {resume} is a folder: give a checkpoint file, or --out {resume} --resume auto")
        return path, []
    path, refused = checkpoint.newest(folder.checkpoints)
    warnings = [f"refused {why}" if str(bad) in why else f"refused {bad}: {why}" for bad, why in refused]
    if refused and path is None:
        raise BadInput("\n".join(warnings) + f"\nno checkpoint in {folder.checkpoints} can be used; start a new run "
                       "with another --out")
    return path, warnings


@dataclass
class Parts:
    """What every rank holds. `method` and `shared` are the server's, on the CPU; `up` shows the fields of an Up."""
    config: Config
    method: Method
    federation: Federation
    pool: RankPool
    shared: tuple
    up: tuple
    device: torch.device
    # why this rank copies its GPU's numbers to the host before MPI takes them; "" if it does not
    staged: str = ""
    # where each rank works; known at rank 0
    places: list[dict] = field(default_factory=list)

    def gpus(self) -> list[str]:
        """Return the descriptions of the GPUs that train clients, each once. Rank 0 knows them."""
        return sorted({them["card"] for them in self.places if them["hosts"]} - {""})


def bind_method(config: Config, federation: Federation) -> Method:
    """Build the model for the federation's samples and return the method on it. Raises BadInput."""
    from fedmpi.clients import updates
    from fedmpi.engines import batchnorm
    from fedmpi.models.build import build_model
    model = build_model(config.model, federation.shape, federation.dtype, federation.classes, config.seed)
    words = getattr(federation, "vocabulary", None)
    if model.table and words and words > model.lookup.num_embeddings:
        raise BadInput(f"model: its table has {model.lookup.num_embeddings} rows, but the data count their words up to "
                       f"{words - 1}; set model.vocabulary = {words} or more")
    config.method.check(config.train)
    selection.refuse_selection(config, federation)
    method = batchnorm.bind_method(config.method, model)
    updates.refuse_updates(config, method, federation)
    return method


def refuse_engine(config: Config, federation: Federation, method: Method) -> None:
    """Raise BadInput if the configured engine cannot train the network. Rank 0 checks this for all ranks."""
    from fedmpi.engines import engine_choice
    from fedmpi.models.build import make_blank_samples
    engine_choice.refuse_vmap(config.engine, method, make_blank_samples(federation.shape, federation.dtype))


def assemble_from_start(world: Transport, start: dict, context: RankContext) -> Parts:
    """Build a worker's parts from what rank 0 told (`Decision.start` and its host)."""
    federation = Federation(start["federation"], start["fingerprint"])
    return assemble(world, resolve(start["config"]), federation, start["host"], context)


def assemble(world: Transport, config: Config, federation: Federation, server_host: str, context: RankContext) -> Parts:
    """Build this rank's parts; from then on the ranks watch each other."""
    from fedmpi.engines import gpu_card
    parts = build_parts(world, config, federation, server_host, context)
    here = describe_place(world, parts.device, bool((parts.pool.homes == world.rank).any()))
    parts.places = gather_objects(world, here | {"staged": parts.staged, "card": gpu_card.describe_gpu(parts.device)})
    if isinstance(world, World) and config.comm.timeout and world.thread_level == "multiple":
        hosts = [them["host"] for them in parts.places]
        world.heartbeat = Heartbeat(world, config.comm.timeout, hosts or [server_host], context)
    return parts


def build_parts(world: Transport, config: Config, federation: Federation, server_host: str,
                context: RankContext | None = None) -> Parts:
    """Build this rank's parts. They are the same on every rank, except for the clients that it hosts.

    Args:
        server_host: host of rank 0, which needs no GPU if it hosts no clients
        context: what this rank's parts share; None: nobody asks the run to stop"""
    from fedmpi.clients import malloc
    from fedmpi.clients.hosted import HostedClients
    from fedmpi.clients.placement import assign_homes
    from fedmpi.engines import engine_choice, gpu_card
    from fedmpi.engines.loop import rehearse_loop
    from fedmpi.models import precision
    from fedmpi.models.build import make_blank_samples
    torch.set_num_threads(config.threads)
    malloc.keep()
    precision.set_precision(config.precision)
    where = assign_homes(federation.sizes, world.size, config.server.hosts_clients, config.placement, config.seed)
    hosted = np.flatnonzero(where == world.rank)
    device = choose_device(config, world, server_host, hosts=len(hosted) > 0)
    if device.type == "cuda":
        gpu_card.use_deterministic_kernels()
        torch.cuda.set_device(device)
    method = bind_method(config, federation)
    shared, mine = method.init(len(where))
    at_work = method.with_model(method.model.to(device)) if device.type != "cpu" else method
    sample = make_blank_samples(federation.shape, federation.dtype)
    up = rehearse_loop(method, shared, mine, sample)[1]
    name, why = config.engine, "set"
    if name == "auto":
        name, why = engine_choice.choose_by_network(method, shared, mine, sample)
    room = gpu_card.limit_memory(config, device, gpu_card.count_ranks_on_gpu(world, device))
    engine = engine_choice.build_engine(name, config, room)
    group = HostedClients(at_work, shared, mine, engine, federation, hosted, config, device, room, context, why)
    wanted = wants_gpu_direct(config.comm.cuda_aware, world, device)
    works, staged = probe_gpu_memory(config.comm.cuda_aware, world, device, wanted)
    robust = RobustMean.from_settings(config.server.aggregation, config.server.trim)
    pool = RankPool(world, group, where, works, robust)
    return Parts(config, method, federation, pool, shared, up, device, staged=staged)


def choose_device(config: Config, world: Transport, server_host: str, hosts: bool) -> torch.device:
    """Return the device on which this rank trains. Ranks that host clients take the GPUs of their node in turn; the
    server computes on the CPU.

    Args:
        server_host: host of rank 0
        hosts: this rank hosts clients"""
    if config.device == "cpu" or not hosts or not torch.cuda.is_available():
        if config.device == "cuda" and hosts:
            raise BadInput(f"device = cuda, but PyTorch sees no GPU on {world.host}; set device=cpu or auto")
        return torch.device("cpu")
    beside_server = world.host == server_host and not config.server.hosts_clients and world.size > 1
    return torch.device("cuda", (world.local_rank - beside_server) % torch.cuda.device_count())
