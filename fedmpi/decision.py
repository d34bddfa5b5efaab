"""What rank 0 decides before the other ranks hear of a run: configuration, folder, federation, checkpoint."""
from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedmpi import __version__
from fedmpi.assembly import build_method, refuse_engine
from fedmpi.clients.measures import try_measures
from fedmpi.comm.gpu_staging import refuse_cuda_aware
from fedmpi.comm.transport import Transport
from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import Config, load_config, to_plain
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines import gpu_card
from fedmpi.errors import BadInput, FaultyCode, FedmpiError
from fedmpi.json_values import JsonObject
from fedmpi.method import Method
from fedmpi.own_code.changes import (
    CodeChange,
    describe_accepted,
    describe_unknown_code,
    leave_out_measures,
    list_changes,
    refuse_changes,
)
from fedmpi.own_code.failures import blame_own_code, format_cause
from fedmpi.own_code.fingerprint import Fingerprint
from fedmpi.paths import refuse_wrong_paths
from fedmpi.progress import Progress
from fedmpi.run_request import RunRequest
from fedmpi.server.client_selection import ClientSelector, make_client_selector
from fedmpi.slurm.deadline import Deadline, find_deadline
from fedmpi.storage import changed_settings, checkpoint
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.folder_choice import NEWEST_CHECKPOINT, claim_folder, find_resume_checkpoint, pick_folder
from fedmpi.storage.no_checkpoint import refuse_lost_rounds


@dataclass
class Decision:
    """What rank 0 decides before the other ranks hear of it."""
    config: Config
    federation: Federation
    method: Method
    # selects participants, and keeps their simulated time
    client_selector: ClientSelector
    folder: RunFolder
    # what every rank is told
    start: JsonObject
    # when this start of the run has to stop
    deadline: Deadline
    # the fingerprint of the user's own code, and its changes since the checkpoint that the user accepted
    own_code: Fingerprint
    accepted: list[CodeChange] = field(default_factory=list)
    # the checkpoint to continue from, and what it holds
    resume: Path | None = None
    snapshot: checkpoint.Snapshot | None = None
    # whether the user wants to continue from the newest checkpoint, if there is one
    wants_newest: bool = False
    warnings: list[str] = field(default_factory=list)


@refuse_wrong_paths()
def decide(request: RunRequest, world: Transport) -> Decision:
    """Check all that can be checked, lock the run folder, and return what the run starts from.

    Raises:
        BadInput: if it cannot be run.
        AlreadyFinished: if its folder holds its result, and no checkpoint."""
    deadline = find_deadline(request.time_limit)
    config, plain = read_configuration(request)
    refuse_cuda_aware(config.comm.cuda_aware, world)
    folder = claim_folder(request.source, request.out, request.resume)
    try:
        decision = decide_in_folder(folder, config, plain, world, deadline)
        find_start(decision, request)
    except BaseException as error:
        logged = log_cause(folder, error) if isinstance(error, FaultyCode) else None
        folder.withdraw()
        if logged:
            raise logged from error.__cause__
        raise
    if folder.taken_over:
        decision.warnings.append(folder.taken_over)
    return decision


def read_configuration(request: RunRequest) -> tuple[Config, JsonObject]:
    """Return the configuration, and the same as plain values. Raises BadInput; if the user's own code fails, its
    traceback is in the run's log."""
    try:
        with blame_own_code():
            config = load_config(request.config, request.overrides)
            return config, to_plain(config)
    except FaultyCode as error:
        raise log_early_cause(pick_folder(request.source, request.out, request.resume), error) from error.__cause__


def decide_in_folder(folder: RunFolder, config: Config, plain: JsonObject, world: Transport,
                     deadline: Deadline) -> Decision:
    """Prepare the federation, and return the decision for a run from its beginning. Raises BadInput if the
    configuration does not suit the federation, the method or the machine.

    Args:
        plain: the configuration as plain values"""
    own_code = fingerprint_code(config)
    if world.size == 1:
        gpu_card.choose_device(config, world, world.host, hosts=True)
    with blame_own_code():
        federation = Federation(prepare_federation(config.data, config.seed))
        method = build_method(config, federation, rehearse=True)
        refuse_engine(config, federation, method)
        client_selector = make_client_selector(config, federation, method)
        try_measures(config.evaluate.measures, federation.classes, federation.task)
    start = {"version": __version__, "config": plain, "federation": str(federation.path),
             "fingerprint": federation.fingerprint, "own_code": own_code}
    return Decision(config, federation, method, client_selector, folder, start, deadline, own_code)


def find_start(decision: Decision, request: RunRequest) -> None:
    """Enter into a decision the checkpoint to continue from, if there is one, and what the user is warned of. Raises
    BadInput if the run cannot continue from it, or if rounds would be lost."""
    plain = decision.start["config"]
    decision.wants_newest = request.resume == NEWEST_CHECKPOINT
    decision.resume, decision.warnings = find_resume_checkpoint(decision.folder, request.resume)
    if decision.resume:
        decision.snapshot = checkpoint.read_checkpoint(decision.resume, check=not decision.wants_newest)
    snapshot, rounds = decision.snapshot, decision.config.rounds
    if snapshot:
        changed_settings.refuse_other_run(snapshot, plain, decision.federation.fingerprint)
        decision.client_selector.refuse_files(snapshot.extra.get("files", {}))
        decision.warnings += changed_settings.warn_of_other_settings(snapshot, plain)
        if snapshot.round > rounds:
            raise BadInput(f"{decision.resume} is of round {snapshot.round}, but rounds = {rounds}: nothing to do; "
                           f"set rounds to {snapshot.round} or more, or start a new run with another --out")
        decision.accepted, said = accept_code(snapshot, decision.own_code, request.accept_changed_code, decision.config)
        decision.warnings += said
    if decision.wants_newest:
        refuse_lost_rounds(decision.folder.path, plain, snapshot.round if snapshot else 0)
    decision.warnings += describe_unknown_code(decision.own_code)


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
    return changes, describe_accepted(changes) + describe_unknown_code({k: v for k, v in then.items() if k not in now})


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
