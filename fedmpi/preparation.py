"""What rank 0 does before the first round: it makes its Run, fresh or from a checkpoint, times what is to be chosen on
a GPU, and says what is about to run."""
from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from fedmpi import __version__
from fedmpi.assembly import Parts
from fedmpi.clients.checked_method import CheckedMethod
from fedmpi.clients.placement import Pace
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.config.idle_settings import list_idle_settings, list_settings_of_statistics
from fedmpi.config.schema import to_plain
from fedmpi.context import RoundCallback
from fedmpi.data.client_table import format_client_table
from fedmpi.data.federation import SAMPLE_PARTS
from fedmpi.decision import Decision
from fedmpi.engines import convolutions
from fedmpi.method import Method, nbytes
from fedmpi.progress import Progress
from fedmpi.ranks import format_hosts, list_warnings
from fedmpi.server.checkpoint_writer import CheckpointWriter
from fedmpi.server.metrics import ClusterTracker
from fedmpi.server.on_disk_error import DiskErrorPolicy
from fedmpi.server.round_recorder import RoundRecorder
from fedmpi.server.rounds import Run
from fedmpi.server.run_state import RunState
from fedmpi.settings import list_setting_names
from fedmpi.storage import changed_settings
from fedmpi.storage.checkpoint import Snapshot
from fedmpi.storage.lock import TIME_FORMAT
from fedmpi.storage.run_status import list_evaluated
from fedmpi.text import count_words, format_range, format_spans, shorten_list


def prepare_run(parts: Parts, decision: Decision, progress: Progress, stop: Callable[[], bool],
                on_round: RoundCallback = None) -> Run:
    """Make rank 0's Run, fresh or restored from the checkpoint, ready for its next round; see Run for the arguments."""
    clients = format_client_table(parts.federation)
    run = make_run(parts, decision, progress, stop, on_round)
    announce_run(run, parts, decision)
    if decision.snapshot and decision.resume:
        run.checkpoints.restore(decision.resume.resolve(), decision.snapshot)
        progress.say(f"continuing after round {run.state.round} from {decision.resume}")
        decision.warnings += changed_settings.warn_of_another_gpu(decision.snapshot, run.recorder.gpus)
    elif decision.wants_newest:
        progress.say(f"no checkpoint in {decision.folder.path} yet: starting with round 1")
    decision.folder.store_config(to_plain(parts.config))
    decision.folder.store_clients(clients)
    choose_engine(run, decision.snapshot)
    choose_convolutions(run, decision.snapshot)
    coupled = depends_on_neighbours(run)
    if decision.snapshot and coupled:
        decision.warnings += changed_settings.warn_of_other_chunks(decision.snapshot, to_plain(parts.config))
    # sums in single precision depend on which clients a rank trains
    run.pace.measured = not coupled and parts.config.server.reduce == "exact"
    begin_records(run, decision)
    return run


def make_run(parts: Parts, decision: Decision, progress: Progress, stop: Callable[[], bool],
             on_round: RoundCallback) -> Run:
    """Return rank 0's Run before its first round."""
    config, pool, federation, folder = parts.config, parts.pool, parts.federation, decision.folder
    state = RunState(parts.shared, ClusterTracker(len(federation.sizes), federation.groups, federation.group_names),
                     own_code=decision.own_code, engine_why=parts.engine_why)
    if decision.snapshot:
        before = decision.snapshot.extra.get("accepted_code_changes", [])
        state.accepted_code_changes = [*before, *decision.accepted]
    first, gpus, selector = pool.hosted.store.first, parts.gpus(), decision.client_selector
    # what is addressed to a client goes to its home
    movable = not first and parts.method.message_template() is None
    pace = Pace(pool.homes, movable=movable, row=nbytes(first),
                sizes=federation.sizes if config.placement == "balanced" else None)
    checked = CheckedMethod(parts.method, first, parts.up, federation.classes)
    disk_errors = DiskErrorPolicy(config.checkpoint.failure, progress)
    recorder = RoundRecorder(
        config=config, checked=checked, pool=pool, federation=federation, folder=folder, progress=progress, state=state,
        disk_errors=disk_errors, client_selector=selector, gpus=gpus)
    checkpoints = CheckpointWriter(
        config=config, pool=pool, federation=federation, folder=folder, progress=progress, state=state, gpus=gpus,
        facts=selector.describe_files())
    return Run(config=config, checked=checked, pool=pool, federation=federation, progress=progress, state=state,
               stopping=stop, pace=pace, client_selector=selector, deadline=decision.deadline, disk_errors=disk_errors,
               recorder=recorder, checkpoints=checkpoints, on_round=on_round)


def begin_records(run: Run, decision: Decision) -> None:
    """Let the run's files end with the round that it continues from: metrics, history, later checkpoints, and the
    result, if another one will replace it. Say all warnings."""
    folder, metrics = decision.folder, run.state.metrics
    if decision.resume:
        run.checkpoints.keep_base(decision.resume)
    # The result of rounds that are given up; a failure before the next checkpoint would leave it beside older files.
    if folder.list_later_checkpoints(run.state.round):
        folder.remove_result()
    folder.rewrite_metrics(metrics)
    known = decision.snapshot.extra.get("history", "") if decision.snapshot else ""
    # A round that was evaluated after its checkpoint, as the last one, is evaluated again. A run without a checkpoint
    # repeats the round before the first one, too, whose row is that of round 0.
    kept = max((line["round"] for line in list_evaluated(metrics)), default=-1)
    aside = folder.set_later_checkpoints_aside(run.state.round, decision.resume)
    for warning in filter(None, [*decision.warnings, aside, folder.truncate_history(kept, known)]):
        run.progress.say(f"warning: {warning}")
    # A run with nothing left to do keeps its result until the next one replaces it, and other writes come first: a full
    # disk costs no result.
    if not run.is_over:
        folder.remove_result()


def choose_engine(run: Run, snapshot: Snapshot | None) -> None:
    """Choose the engine for `engine: auto`. On a GPU both engines are timed once, and the choice is kept with the run;
    a restart takes it over, unless the run moves between a GPU and CPUs, or its user had set an engine before."""
    pool, config = run.pool, run.config
    if config.engine != "auto":
        return
    if snapshot and snapshot.config.get("engine", "auto") == "auto" and (
            bool(snapshot.extra.get("gpus", run.recorder.gpus)) == bool(run.recorder.gpus)):
        run.state.engine_why = snapshot.extra.get("engine_why", run.state.engine_why)
        if snapshot.extra["engine"] != pool.hosted.engine.name:
            run.progress.say(f"engine {snapshot.extra['engine']}, as in the checkpoint")
            pool.call(OrderPerformer.use_engine, np.frombuffer(snapshot.extra["engine"].encode(), np.uint8))
    elif pool.call(OrderPerformer.gather_reports).on_gpu.any():
        loop, vmap = pool.call(OrderPerformer.time_engines, *pool.list_changed_fields(run.state.shared)).sum(0)
        name = "vmap" if vmap < loop else "loop"
        run.state.engine_why = f"{loop:.3f} s for loop, {vmap:.3f} s for vmap on the first clients"
        run.progress.say(f"engine {name}: {run.state.engine_why}")
        pool.call(OrderPerformer.use_engine, np.frombuffer(name.encode(), np.uint8))


def choose_convolutions(run: Run, snapshot: Snapshot | None) -> None:
    """Choose how engine `vmap` computes each convolution on a GPU. Both ways are timed once, all ranks take the faster
    one, and the choice is kept with the run; a restart takes it over. So neither ranks nor restarts differ in their
    last bits."""
    pool, names = run.pool, convolutions.list_convolutions(run.checked.method.model)
    if pool.hosted.engine.name != "vmap" or not run.recorder.gpus or not names:
        return
    kept = snapshot.extra.get("convolutions") if snapshot else None
    if kept is None:
        grouped, unfolded = pool.call(OrderPerformer.time_convolutions).sum(0)
        kept = [name for name, a, b in zip(names, grouped, unfolded, strict=True) if b < a]
        run.progress.say(f"convolutions as products of patches: {', '.join(kept) or 'none'}")
    pool.call(OrderPerformer.use_convolutions, np.array([name in kept for name in names]))


def depends_on_neighbours(run: Run) -> bool:
    """Say whether the last bits of a client may depend on the clients that are trained beside it."""
    return run.pool.hosted.engine.name == "vmap" and bool(run.recorder.gpus or run.checked.method.model.convolves)


def announce_run(run: Run, parts: Parts, decision: Decision) -> None:
    """Say what is about to run, where, and with what."""
    world, config, sizes = parts.pool.world, parts.config, parts.federation.sizes
    counts = np.bincount(parts.pool.homes, minlength=world.size)
    hosts, idle = counts[counts > 0], int((counts[1:] == 0).sum())
    run.progress.say(
        f"fedmpi {__version__}: {parts.method.title} {format_settings(parts.method)} on {config.data.name}, "
        f"{len(sizes)} clients ({format_range(sizes)} training samples), {describe_newcomers(parts)}"
        f"{parts.method.model.size:,} parameters")
    if features := parts.federation.names.get("feature_names"):
        run.progress.say(f"{count_words(len(features), 'feature')}: {shorten_list(features)}")
    run.progress.say(
        f"{count_words(world.size, 'rank')} (MPI: {world.library}): "
        + ("rank 0 alone" if world.size == 1 else f"{len(hosts)} host {format_range(hosts)} clients each")
        + (f", {idle} idle" if idle else "")
        + f"; engine {run.pool.hosted.engine.name} ({run.state.engine_why}), "
        + (f"device {parts.device}, " if world.size == 1 else "")
        + f"{config.precision}, {count_words(config.threads, 'thread')} a rank; "
        f"pid {os.getpid()} on {world.host}; run folder {decision.folder.path}")
    if world.size > 1:
        run.progress.say(format_hosts(parts.places))
    for line in run.client_selector.describe_clients():
        run.progress.say(line)
    if config.attack:
        attack = format_spans(np.flatnonzero(~run.recorder.honest).tolist())
        run.progress.say(f"attack: {config.attack.kind} of clients {attack}; accuracies are the honest clients'")
    unwatched = [f"comm.timeout is off: it needs an MPI of thread level multiple, and this one has {world.thread_level}"
                 ] if world.size > 1 and config.comm.timeout and not world.heartbeat else []
    staged = [f"rank {r} on {them['host']} hands its GPU's numbers to MPI by way of the host: {them['staged']}"
              for r, them in enumerate(parts.places) if them.get("staged")]
    odd = list_missing_samples(parts) + parts.method.list_oddities(config.rounds) + list_idle_settings(config)
    odd += list_settings_of_statistics(config, bool(parts.method.model.buffers))
    for oddity in filter(None, [*list_warnings(parts.places), *unwatched, *staged, *odd, run.deadline.unknown]):
        run.progress.say(f"warning: {oddity}")
    if run.deadline.known:
        run.progress.say(f"stops by itself in time for the end of {run.deadline.what}, {format_time(run.deadline.end)}")


def list_missing_samples(parts: Parts) -> list[str]:
    """Return a line if no client has samples on which it could be evaluated."""
    part = parts.config.evaluate.on
    if parts.federation.counts[:, SAMPLE_PARTS.index(part)].any():
        return []
    return [f"no client has {part} samples, so nothing will be measured; give the data a {part} part, or set "
            "data.partition and data.split so that clients get one"]


def describe_newcomers(parts: Parts) -> str:
    """Return how many new clients there are and how they are served, "" if there are none."""
    m = parts.config.data.new_clients
    return f"{count_words(m, 'new client')} (served by {parts.method.serves_newcomers}), " if m else ""


def format_time(moment: float) -> str:
    """Return a moment (seconds since 1970) as local date and time."""
    return time.strftime(TIME_FORMAT, time.localtime(moment))


def format_settings(method: Method) -> str:
    """Return the settings of a method, or of a network, as "name=value ..."; a file `start` only if there is one."""
    values = {name: getattr(method, name) for name in list_setting_names(type(method))}
    return " ".join(f"{name}={value}" for name, value in values.items()
                    if value != () and (name, value) != ("start", None))

