"""What happens before the first round: rank 0's decisions (configuration, folder, federation, checkpoint), and the
parts that every rank then builds from them in the same way."""
from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedmpi import __version__
from fedmpi.comm.gpu_probe import probe_gpu_memory
from fedmpi.comm.gpu_staging import refuse_cuda_aware, straight
from fedmpi.comm.heartbeat import Heartbeat
from fedmpi.comm.mpi_world import World
from fedmpi.comm.transport import Transport
from fedmpi.config.schema import Config, load_config, resolve, to_plain
from fedmpi.context import RankContext
from fedmpi.data.federation import Federation, prepare
from fedmpi.errors import BadInput
from fedmpi.ranks import describe_place, gather_objects, hosts_table, oddities
from fedmpi.server import selection
from fedmpi.settings import setting_names
from fedmpi.storage import checkpoint
from fedmpi.storage.folder import RunFolder, default_folder
from fedmpi.text import spans


@dataclass
class Decision:
    """What rank 0 settled before the other ranks hear of it."""
    config: Config
    folder: RunFolder
    resume: Path | None                      # the checkpoint to continue from
    snapshot: checkpoint.Snapshot | None
    warnings: list[str]
    start: dict                              # what every rank is told


def decide(config_path, overrides, out, resume, world) -> Decision:
    """Check all that can be checked before anything starts. Raises BadInput."""
    config = load_config(config_path, overrides)
    refuse_cuda_aware(config.comm.cuda_aware, world)
    folder = RunFolder.claim(out or default_folder(config_path, bool(resume)), bool(resume))
    try:
        federation_path = prepare(config.data, config.seed)
        federation = Federation(federation_path)
        refuse_engine(config, federation, bind(config, federation))
        path, warnings = chosen_checkpoint(folder, resume)
        snapshot = checkpoint.read_checkpoint(path, check=resume != "auto") if path else None
        if snapshot:
            checkpoint.check_same(snapshot, to_plain(config), federation.fingerprint)
            warnings += checkpoint.in_last_bits(snapshot, to_plain(config))
            if snapshot.round > config.rounds:
                raise BadInput(f"{path} is of round {snapshot.round}, but rounds = {config.rounds}: nothing to do; "
                               "raise rounds, or start a new run with another --out")
    except BaseException:
        folder.withdraw()
        raise
    if folder.taken_over:
        warnings.append(folder.taken_over)
    start = {"version": __version__, "config": to_plain(config), "federation": str(federation_path)}
    return Decision(config, folder, path, snapshot, warnings, start)


def chosen_checkpoint(folder: RunFolder, resume: str | None) -> tuple[Path | None, list[str]]:
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
    """What every rank holds."""
    config: Config
    method: object
    federation: Federation
    crew: object
    shared: tuple
    up: tuple
    device: object
    staged: str = ""                                      # why this rank's GPU memory goes to MPI by way of the host
    places: list[dict] = field(default_factory=list)      # where each rank works, at rank 0

    def gpus(self) -> list[str]:
        """Return what is known of the GPUs at work, each once (rank 0)."""
        return sorted({them["card"] for them in self.places if them["hosts"]} - {""})


def bind(config: Config, federation: Federation):
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
    method = batchnorm.bind(config.method, model)
    updates.refuse_updates(config, method, federation)
    return method


def refuse_engine(config: Config, federation: Federation, method) -> None:
    """Raise BadInput where an engine is asked for that cannot train the network: once, for all ranks build the same."""
    from fedmpi.engines import engine_choice
    from fedmpi.models.build import blank_samples
    engine_choice.refuse_vmap(config.engine, method, blank_samples(federation.shape, federation.dtype))


def assemble(world: Transport, start: dict, context: RankContext) -> Parts:
    """Build this rank's parts from what rank 0 told; from then on ranks watch each other."""
    from fedmpi.engines import gpu_card
    config = resolve(start["config"])
    parts = build_parts(world, config, Federation(start["federation"]), start["host"], context)
    here = describe_place(world, parts.device, bool((parts.crew.homes == world.rank).any()))
    parts.places = gather_objects(world, here | {"staged": parts.staged, "card": gpu_card.describe_gpu(parts.device)})
    if isinstance(world, World) and config.comm.timeout and world.thread_level == "multiple":
        hosts = [them["host"] for them in parts.places]
        world.heartbeat = Heartbeat(world, config.comm.timeout, hosts or [start["host"]], context)
    return parts


def build_parts(world: Transport, config: Config, federation, server_host: str,
                context: RankContext | None = None) -> Parts:
    """Build this rank's parts, the same on every rank but for the clients it hosts."""
    import torch

    from fedmpi.clients import malloc
    from fedmpi.clients.hosted import HostedClients
    from fedmpi.clients.placement import homes
    from fedmpi.comm.orders import RankPool
    from fedmpi.engines import engine_choice, gpu_card
    from fedmpi.engines.loop import rehearse_loop
    from fedmpi.models import precision
    from fedmpi.models.build import blank_samples
    torch.set_num_threads(config.threads)
    malloc.keep()
    precision.use(config.precision)
    where = homes(federation.sizes, world.size, config.server.hosts_clients, config.placement, config.seed)
    hosted = np.flatnonzero(where == world.rank)
    device = choose_device(config, world, server_host, hosts=len(hosted) > 0)
    if device.type == "cuda":
        gpu_card.in_one_order()
        torch.cuda.set_device(device)
    method = bind(config, federation)
    shared, mine = method.init(len(where))
    at_work = method.with_model(method.model.to(device)) if device.type != "cpu" else method
    sample = blank_samples(federation.shape, federation.dtype)
    up = rehearse_loop(method, shared, mine, sample)[1]
    name, why = config.engine, "set"
    if name == "auto":
        name, why = engine_choice.by_network(method, shared, mine, sample)
    room = gpu_card.room(config, device, gpu_card.sharing(world, device))
    group = HostedClients(at_work, shared, mine, engine_choice.engine(name, config, room), federation, hosted, config,
                          device, room, context, why)
    meant = straight(config.comm.cuda_aware, world, device)
    works, staged = probe_gpu_memory(config.comm.cuda_aware, world, device, meant)
    crew = RankPool(world, group, where, gpu_direct=works)
    return Parts(config, method, federation, crew, shared, up, device, staged=staged)


def choose_device(config: Config, world, server_host: str, hosts: bool):
    """Give each rank that hosts clients a GPU of its node in turn; the server computes on the CPU."""
    import torch
    if config.device == "cpu" or not hosts or not torch.cuda.is_available():
        if config.device == "cuda" and hosts:
            raise BadInput(f"device = cuda, but PyTorch sees no GPU on {world.host}; set device=cpu or auto")
        return torch.device("cpu")
    beside_server = world.host == server_host and not config.server.hosts_clients and world.size > 1
    return torch.device("cuda", (world.local_rank - beside_server) % torch.cuda.device_count())


def prepare_run(parts: Parts, decision: Decision, progress, stop, deadline):
    """Make rank 0's Run: fresh, or restored from the checkpoint."""
    from fedmpi.clients.placement import Pace
    from fedmpi.method import nbytes
    from fedmpi.server.metrics import Groups
    from fedmpi.server.on_disk_error import Storage
    from fedmpi.server.rounds import Run, RunState
    folder, federation = decision.folder, parts.federation
    state = RunState(parts.shared, Groups(len(federation.sizes), federation.groups, federation.group_names))
    first = parts.crew.group.store.first
    pace = Pace(parts.crew.homes, movable=not first, row=nbytes(first),
                sizes=federation.sizes if parts.config.placement == "balanced" else None)
    run = Run(parts.config, parts.method, parts.crew, federation, folder, progress, state, parts.up, stop, pace,
              deadline, Storage(parts.config.checkpoint.failure, progress), gpus=parts.gpus())
    introduce(run, parts, decision)
    folder.start_again()
    folder.store_config(to_plain(parts.config))
    if decision.snapshot:
        run.restore(decision.resume.resolve(), decision.snapshot)
        progress.say(f"continuing after round {state.round} from {decision.resume}")
        decision.warnings += checkpoint.on_another_gpu(decision.snapshot, run.gpus)
    settle_engine(run, decision.snapshot)
    settle_convolutions(run, decision.snapshot)
    run.pace.measured = not follows_chunks(run)
    folder.rewrite_metrics(state.metrics)
    for warning in filter(None, [*decision.warnings, folder.truncate_history(state.round)]):
        progress.say(f"warning: {warning}")
    return run


def settle_engine(run, snapshot) -> None:
    """On a GPU with `engine: auto`: time both engines once, keep the choice with the run; a restart takes it over."""
    from fedmpi.clients.hosted import ON_GPU
    from fedmpi.comm.orders import Order
    crew, config = run.crew, run.config
    if config.engine != "auto":
        return
    if snapshot:
        crew.group.why = snapshot.books.get("engine_why", crew.group.why)
        if snapshot.books["engine"] != crew.group.engine.name:
            crew.call(Order.ENGINE, np.frombuffer(snapshot.books["engine"].encode(), np.uint8))
    elif crew.call(Order.TIMES)[:, ON_GPU].any():
        loop, vmap = crew.call(Order.PROBE, *crew.news(run.state.shared)).sum(0)
        name = "vmap" if vmap < loop else "loop"
        crew.group.why = f"{loop:.3f} s for loop, {vmap:.3f} s for vmap on the first clients"
        run.progress.say(f"engine {name}: {crew.group.why}")
        crew.call(Order.ENGINE, np.frombuffer(name.encode(), np.uint8))


def settle_convolutions(run, snapshot) -> None:
    """On a GPU with engine `vmap`: time both ways of every convolution once, let all ranks take the faster one and keep
    the choice with the run; a restart takes it over. So neither ranks nor restarts differ in their last bits."""
    from fedmpi.comm.orders import Order
    from fedmpi.engines import convolutions
    crew, names = run.crew, convolutions.list_convolutions(run.method.model)
    if crew.group.engine.name != "vmap" or not run.gpus or not names:
        return
    kept = snapshot and snapshot.books.get("convolutions")
    if kept is None:
        grouped, unfolded = crew.call(Order.PROBE_LAYERS).sum(0)
        kept = [name for name, a, b in zip(names, grouped, unfolded, strict=True) if b < a]
        run.progress.say(f"convolutions as products of patches: {', '.join(kept) or 'none'}")
    crew.call(Order.LAYERS, np.array([name in kept for name in names]))


def follows_chunks(run) -> bool:
    """Say whether a client's last bits may follow the clients that it is trained beside."""
    return run.crew.group.engine.name == "vmap" and bool(run.gpus or run.method.model.convolves)


def introduce(run, parts: Parts, decision: Decision) -> None:
    """Say what is about to run, where, and with what."""
    world, config, sizes = parts.crew.world, parts.config, parts.federation.sizes
    counts = np.bincount(parts.crew.homes, minlength=world.size)
    hosts, idle = counts[counts > 0], int((counts[1:] == 0).sum())
    run.progress.say(
        f"fedmpi {__version__}: {parts.method.title} {settings_of_method(parts.method)} on {config.data.name}, "
        f"{len(sizes)} clients ({between(sizes)} training samples), {parts.method.model.size:,} parameters")
    run.progress.say(
        f"{world.size} rank{'s' * (world.size > 1)} (MPI: {world.library}): "
        + ("rank 0 alone" if world.size == 1 else f"{len(hosts)} host {between(hosts)} clients each")
        + (f", {idle} idle" if idle else "") + f"; engine {run.crew.group.engine.name} ({run.crew.group.why}), "
        + (f"device {parts.device}, " if world.size == 1 else "")
        + f"{config.precision}, {config.threads} thread{'s' * (config.threads > 1)} a rank; "
        f"pid {os.getpid()} on {world.host}; run folder {decision.folder.path}")
    if world.size > 1:
        run.progress.say(hosts_table(parts.places))
    if config.attack:
        run.progress.say(f"attack: {config.attack.kind} of clients {spans(np.flatnonzero(~run.honest).tolist())}; "
                         "accuracies are the honest clients'")
    unwatched = [f"comm.timeout is off: it needs an MPI of thread level multiple, and this one has {world.thread_level}"
                 ] if world.size > 1 and config.comm.timeout and not world.heartbeat else []
    staged = [f"rank {r} on {them['host']} hands its GPU's numbers to MPI by way of the host: {them['staged']}"
              for r, them in enumerate(parts.places) if them.get("staged")]
    for oddity in oddities(parts.places) + unwatched + staged:
        run.progress.say(f"warning: {oddity}")
    if run.deadline.known:
        run.progress.say(f"stops by itself in time for the end of {run.deadline.what}, {clock(run.deadline.end)}")


def clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def between(counts: np.ndarray) -> str:
    return f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"


def settings_of_method(method) -> str:
    values = {name: getattr(method, name) for name in setting_names(type(method))}
    return " ".join(f"{name}={value}" for name, value in values.items() if value != ())

