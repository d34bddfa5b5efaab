"""Trained models as files of their own: the state dict of a plain PyTorch module, as safetensors.

A client's model is worked out from a checkpoint as the run does to evaluate the client, with its data where the method
asks for them: the same weights, bit for bit on the same kind of machine."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch

from fedmpi import __version__, registry
from fedmpi.assembly import build_method
from fedmpi.clients.hosted import HostedClients
from fedmpi.clients.state_store import compute_run_digest
from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import Config, resolve
from fedmpi.data.federation import SAMPLE_PARTS, Federation, prepare_federation
from fedmpi.engines import engine_choice
from fedmpi.errors import BadInput
from fedmpi.extras import require_extra
from fedmpi.method import Method, State
from fedmpi.models import precision
from fedmpi.models.build import as_input, make_blank_samples
from fedmpi.models.flat import Model
from fedmpi.own_code.changes import describe_unknown_code, list_changes, warn_of_changes
from fedmpi.server.checkpoint_writer import restore_shared
from fedmpi.server_only import hide_server_only
from fedmpi.storage import checkpoint, run_files
from fedmpi.storage.atomic import atomic
from fedmpi.storage.older_versions import refuse_changed_method

# Endings of files that torch.load reads.
PICKLED = (".pt", ".pth", ".pkl", ".bin")
IMAGES = "uint8 images (h, w, c) as float (c, h, w): x / 127.5 - 1"


@dataclass(frozen=True)
class TrainedModel:
    """A model of a run as a plain PyTorch network."""
    network: torch.nn.Module
    # whose it is and after which round, for the user
    title: str
    round: int
    # what a file says of it
    facts: dict[str, str]
    # what to say of newer checkpoints that are damaged, and of code that was changed since
    warnings: list[str]


def export_model(run: Path, out: Path, client: int | None, own_code: bool = False) -> str:
    """Write a model as `load_model` finds it; returns what to tell the user. Raises BadInput and StorageError."""
    if out.suffix in PICKLED:
        raise BadInput(f"{out}: fedmpi export writes safetensors, which torch.load does not read; end the name with "
                       ".safetensors, and read the file by safetensors.torch.load_file")
    save = import_writer()
    found = load_model(run, client, own_code)
    state = {name: value.contiguous().clone() for name, value in found.network.state_dict().items()}
    with atomic(out) as part:
        part.write_bytes(sort_facts(save(state, found.facts)))
    return "\n".join([*found.warnings, f"{found.title}: {out}"])


def sort_facts(data: bytes) -> bytes:
    """Return the bytes of a safetensors file whose facts are in the order of their names: the library writes them in
    another order each time, and the same model should give the same file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size:]


def load_model(run: Path, client: int | None, own_code: bool = False) -> TrainedModel:
    """Return a trained model.

    Args:
        run: a run folder, whose newest good checkpoint is taken, or a checkpoint file
        client: the client whose model it is; None: the global model
        own_code: import classes that the run names and that are not built in

    Raises:
        BadInput: if there is no such model, or the run needs code that is not built in, without `own_code`."""
    with allow_own_code(own_code):
        return find_model(run, client)


def load_samples(run: Path, client: int, part: str, own_code: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of a client as its network takes them, and their labels or targets.

    Args:
        run: see `load_model`
        client: the number of the client; new ones follow the others
        part: train, validation or test
        own_code: see `load_model`

    Raises:
        BadInput: if there is no such client or part, or the data have changed since the run."""
    if part not in SAMPLE_PARTS:
        raise BadInput(f"part={part!r}: give {', '.join(SAMPLE_PARTS[:-1])} or {SAMPLE_PARTS[-1]}")
    with allow_own_code(own_code):
        # Samples need no client's row.
        path, _ = choose_checkpoint(run, rows=False)
        snapshot = checkpoint.read_checkpoint(path, check=False)
        with explain_relative_paths(config := resolve(snapshot.config)):
            federation = find_federation_of(path, snapshot, config)
    n = len(federation.sizes) + len(federation.new_clients)
    if not 0 <= client < n:
        raise BadInput(f"client={client}: the run has clients 0 to {n - 1}")
    found, at = federation.client(client), 2 * SAMPLE_PARTS.index(part)
    return as_input(torch.from_numpy(found[at])), torch.from_numpy(found[at + 1])


def allow_own_code(allowed: bool) -> AbstractContextManager[None]:
    """Refuse to import classes that a run names and that are not built in, unless this is allowed."""
    return nullcontext() if allowed else registry.refuse_own_code(remedy="; if you trust the run, give --own-code")


def find_federation_of(path: Path, snapshot: checkpoint.Snapshot, config: Config) -> Federation:
    """Return the federation on which a checkpoint was trained. Raises BadInput if the data have changed since."""
    federation = Federation(prepare_federation(config.data, config.seed))
    refuse_other_samples(federation, snapshot.federation, config, f"{path} was written: its clients held other samples")
    return federation


def refuse_other_samples(federation: Federation, then: str, config: Config, since: str) -> None:
    """Raise BadInput unless the fingerprint of a federation is what it was `then`; `since` says when that was."""
    if federation.fingerprint != then:
        file = config.data.file
        source = f"data.root = {config.data.root}" if file is None else f"data.file = {file}"
        start = f", or change to the folder in which the run was started, not {Path.cwd()}" * is_relative(file)
        raise BadInput(f"the data have changed since {since}; put back what {source} held then{start}")


@contextmanager
def explain_relative_paths(config: Config, others: Mapping[str, str] | None = None) -> Iterator[None]:
    """Name the remedy where something is refused, and a relative path of the run leads nowhere from the current folder:
    the run itself had another one, which it does not keep. `others` are further paths that are used, by setting."""
    try:
        yield
    except BadInput as error:
        given = {"data.file": config.data.file, "data.root": config.data.root,
                 "data.partition.file": getattr(config.data.partition, "file", None),
                 "model.start": getattr(config.model, "start", None),
                 **{f"data.{name}": getattr(config.data.source, name, None) for name in ("test_file", "tokenizer")},
                 **(others or {})}
        lost = [f"{name} = {text}" for name, text in given.items() if is_relative(text) and not Path(text).exists()]
        if not lost:
            raise
        raise BadInput(f"{lost[0]}: not found from {Path.cwd()}, for the run has this path from the folder in which it "
                       "was started; change to that folder (in Python by os.chdir) and try again") from error


def is_relative(text: str | None) -> TypeGuard[str]:
    """Say whether there is a path, and it begins at the current folder."""
    return text is not None and not text.startswith("~") and not Path(text).is_absolute()


def find_model(run: Path, client: int | None) -> TrainedModel:
    """Return a trained model; see `load_model`."""
    path, warnings = choose_checkpoint(run)
    # The clients' rows are verified as they are restored.
    snapshot = checkpoint.read_checkpoint(path, check=False)
    refuse_changed_method(path, snapshot.version, snapshot.config)
    config = resolve(snapshot.config)
    with explain_relative_paths(config):
        own_code = fingerprint_code(config)
        # Checkpoints of version 0.1 do not say what code they had.
        known = snapshot.extra.get("own_code", own_code)
        changes = list_changes(known, own_code, snapshot.round)
        federation = find_federation_of(path, snapshot, config)
    warnings += describe_unknown_code(own_code, "it is used as it is now, and a change since the run is not noticed")
    warnings += warn_of_changes(changes, f"{path} was written")
    method = build_method(config, federation)
    refuse_export(method, client, len(federation.sizes), config.data.new_clients)
    group, shared = restore_state(path, snapshot, config, method, federation)
    w = method.global_model(shared) if client is None else find_personal_weights(group, shared, client, snapshot.round)
    if w is None:
        raise BadInput(f"{method.title} has no global model; export a client's with --client 0 to "
                       f"{len(federation.sizes) - 1}")
    network = build_module(config, method.model, federation, w)
    facts = describe_export(snapshot, method, federation, network) | {"of": "the server" if client is None
                                                                      else f"client {client}",
                                                                      "digest": compute_run_digest(shared,
                                                                                                   group.compute_digests())}
    if changes:
        facts["own_code_changes"] = json.dumps(changes)
    whose = "global model" if client is None else f"model of client {client}"
    return TrainedModel(network, f"{method.title}, {whose} after round {snapshot.round}", snapshot.round, facts,
                        warnings)


def import_writer() -> Callable[..., bytes]:
    """Return what turns tensors and texts into a file's bytes. Raises BadInput if it is not installed."""
    with require_extra("export", "fedmpi export writes safetensors, which is not installed", why=False):
        from safetensors.torch import save
    return save


def choose_checkpoint(run: Path, rows: bool = True) -> tuple[Path, list[str]]:
    """Return the checkpoint to take, and what to say of newer ones that are damaged. Raises BadInput.

    Args:
        rows: verify the clients' rows, too."""
    if run.is_file():
        return run, []
    path, refused = checkpoint.find_newest(run / run_files.CHECKPOINTS, rows)
    said = [f"refused {why}" for _, why in refused]
    if path is None:
        raise BadInput("\n".join([*said, f"{run} holds no {'good ' * bool(said)}checkpoint; give the folder of a run "
                                  "that has saved one, or a checkpoint file"]))
    return path, said


def refuse_export(method: Method, client: int | None, n: int, new: int) -> None:
    """Raise BadInput if a model is not a state dict of the configured network, or there is no such client."""
    if type(method).predict is not Method.predict:
        raise BadInput(f"{method.title} is not evaluated with one network as the configuration has it (but with "
                       f"{method.judged_by}), so there is no state dict to export")
    if client is None and method.model.buffers and method.model.policy == "local":
        raise BadInput("the running statistics of this network stay at the clients (model.running_stats = local), so "
                       "the global model has none; export a client's with --client")
    if client is not None and n <= client < n + new:
        raise BadInput(f"--client {client}: a new client (data.new_clients), of which no model is kept; the run "
                       f"trained clients 0 to {n - 1}")
    if client is not None and not 0 <= client < n:
        raise BadInput(f"--client {client}: the run has clients 0 to {n - 1}")


def restore_state(path: Path, snapshot: checkpoint.Snapshot, config: Config, method: Method, federation: Federation
             ) -> tuple[HostedClients, State]:
    """Return a checkpoint's clients and the server's state, on this process's CPU."""
    torch.set_num_threads(config.threads)
    precision.set_precision(config.precision)
    n = len(federation.sizes)
    shared, mine = method.init(n)
    shared = restore_shared(path, snapshot, shared, mine)
    engine = engine_choice.build_engine(snapshot.extra["engine"], config)
    group = HostedClients(method, shared, mine, engine, federation, range(n), config, torch.device("cpu"))
    group.restore_states(path, snapshot.ids)
    return group, shared


def find_personal_weights(group: HostedClients, shared: State, client: int, round: int) -> torch.Tensor:
    """Return the weights (d,) that a client is evaluated with before this round."""
    (_, w), = group.apply(group.checked.personal, [client], hide_server_only(shared), round, for_evaluation=True)
    return w


def build_module(config: Config, model: Model, federation: Federation, w: torch.Tensor) -> torch.nn.Module:
    """Return the plain network with the weights w (d,)."""
    shape = tuple(as_input(make_blank_samples(federation.shape, federation.dtype)).shape[1:])
    network = config.model.build(shape, federation.classes)
    # w has no counts of batches, and each parameter once, even if it has two names: load_state_dict fills the rest.
    network.load_state_dict(dict(zip(model.names, model.split(w.detach()), strict=True)), strict=False)
    return network


def describe_export(snapshot: checkpoint.Snapshot, method: Method, federation: Federation, network: torch.nn.Module
          ) -> dict[str, str]:
    """Return what a file says of itself."""
    known = {name: json.dumps(snapshot.config[name]) for name in ("model", "method")}
    return known | {
        "fedmpi": __version__, "title": method.title, "judged_by": method.judged_by, "network": str(network),
        "round": str(snapshot.round), "classes": str(federation.classes), "shape": json.dumps(list(federation.shape)),
        "input": IMAGES if federation.dtype == np.uint8 else f"{federation.dtype} as stored"}

