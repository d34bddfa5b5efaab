"""What happens before a run, once rank 0 has decided (decision.py): every rank builds its parts in the same way."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from fedmpi import warm_start
from fedmpi.comm.gpu_probe import probe_gpu_memory
from fedmpi.comm.gpu_staging import wants_gpu_direct
from fedmpi.comm.heartbeat import Heartbeat
from fedmpi.comm.mpi_world import World
from fedmpi.comm.rank_pool import RankPool
from fedmpi.comm.robust import RobustMean
from fedmpi.comm.transport import Transport
from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import Config, resolve
from fedmpi.context import RankContext
from fedmpi.data.federation import Federation
from fedmpi.engines import gpu_card
from fedmpi.errors import BadInput
from fedmpi.json_values import JsonObject
from fedmpi.memory_check import refuse_large_method
from fedmpi.method import Method, State
from fedmpi.own_code.changes import refuse_other_code
from fedmpi.ranks import describe_place, gather_objects
from fedmpi.server import early_stopping


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
    # why the engine was chosen
    engine_why: str
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
    hosted_ids = np.flatnonzero(where == world.rank)
    device = gpu_card.choose_device(config, world, server_host, hosts=len(hosted_ids) > 0)
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
    limits = gpu_card.limit_memory(config, device, gpu_card.count_ranks_on_gpu(world, device))
    engine = engine_choice.build_engine(engine_name, config, limits)
    hosted = HostedClients(at_work, shared, mine, engine, federation, hosted_ids, config, device, limits, context,
                           newcomers=list_newcomers(where, config.data.new_clients, world.rank), up=up)
    wanted = wants_gpu_direct(config.comm.cuda_aware, world, device)
    works, staged = probe_gpu_memory(config.comm.cuda_aware, world, device, wanted)
    robust_mean = RobustMean.from_settings(config.server.aggregation, config.server.trim)
    pool = RankPool(world, hosted, where, works, robust_mean)
    return Parts(config, method, federation, pool, shared, up, device, why, staged)
