"""The initial model of a run from a file (`model.start`), in place of a random one.

A safetensors file holds a state dict of the configured network: each parameter and running statistic under its name in
`network.state_dict()`, in its shape there, as `fedmpi export` writes it. A checkpoint of fedmpi holds a global model if
its method keeps one: the field `w` (d,) of Shared, in the order of models.flat."""
from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedmpi.config.schema import Config, to_plain
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.extras import require_extra
from fedmpi.models.flat import Model
from fedmpi.models.parameters import collect_constants, is_same
from fedmpi.paths import expand_user
from fedmpi.storage import checkpoint
from fedmpi.storage.older_versions import refuse_changed_method

# So many names of a state dict are shown.
SHOWN_NAMES = 3
# State dicts hold it, and no result depends on it.
COUNT_OF_BATCHES = "num_batches_tracked"
EXPORT = ("write a model of that run by `fedmpi export RUN start.safetensors` (--client 3 for a client's), and give "
          "that file")
EXPORT_CLIENT = ("write a client's model of that run by `fedmpi export RUN start.safetensors --client 3`, and give "
                 "that file")


def load_start(config: Config, model: Model) -> None:
    """Let a model start with the weights of the file that `model.start` names, if it names one. Raises BadInput."""
    start = getattr(config.model, "start", None)
    if start is None:
        return
    path, where = expand_user(start, "model.start"), f"model.start = {start}"
    if path.suffix == ".safetensors":
        w = arrange_state(read_state(path, where), model, where)
    elif path.suffix == ".h5":
        w = read_global_model(path, where, config, model)
    else:
        raise BadInput(f"{where}: give a safetensors file (.safetensors) or a checkpoint of fedmpi (.h5)")
    if not w.isfinite().all():
        raise BadInput(f"{where}: some of its numbers are not finite; give another file")
    model.start_with(w)


def read_state(path: Path, where: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name. Raises BadInput."""
    with require_extra("export", f"{where}: safetensors is not installed", why=False):
        from safetensors import SafetensorError
        from safetensors.torch import load
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{where}: cannot read it: {error.strerror}; give another file") from None
    except (SafetensorError, ValueError) as error:
        raise BadInput(f"{where}: no safetensors file ({str(error).splitlines()[0]}); give another file") from None


def arrange_state(state: dict[str, Tensor], model: Model, where: str) -> Tensor:
    """Return a state dict of the network as a flat vector (d,). Raises BadInput for other names, shapes and types."""
    known = {*model.names, *model.module.state_dict()}
    missing = [name for name in model.names if name not in state]
    others = [name for name in state if name not in known and not name.endswith(COUNT_OF_BATCHES)]
    for names, what in ((missing, "has no"), (others, "has other tensors than the network:")):
        if names:
            shown = ", ".join(names[:SHOWN_NAMES]) + ", ..." * (len(names) > SHOWN_NAMES)
            raise BadInput(f"{where}: it {what} {shown}; give a state dict of this network, whose first tensors are "
                           f"{', '.join(model.names[:SHOWN_NAMES])}")
    for name, shape in zip(model.names, model.shapes, strict=True):
        if tuple(state[name].shape) != shape or not state[name].is_floating_point():
            raise BadInput(f"{where}: {name} is {str(state[name].dtype).removeprefix('torch.')} "
                           f"{tuple(state[name].shape)}, but the network's is float32 {shape}; give a file of the same "
                           "network, or change the settings of `model`")
    for name, value in collect_constants(model.module).items():
        if name in state and not is_same(state[name], value):
            raise BadInput(f"{where}: its {name} is another one than the network's, which makes this constant by "
                           "itself; give a file of the same network, or change the settings of `model`")
    w = torch.empty(model.size)
    for view, name in zip(model.split(w), model.names, strict=True):
        view.copy_(state[name])
    return w


def read_global_model(path: Path, where: str, config: Config, model: Model) -> Tensor:
    """Return the global model (d,) of a checkpoint. Raises BadInput if it has none, or one of another network."""
    try:
        snapshot = checkpoint.read_checkpoint(path, check=False)
    except FedmpiError as error:
        raise BadInput(f"{where}: {error}; give another file") from None
    refuse_changed_method(path, snapshot.version, snapshot.config)
    then, now = (dict(section) for section in (snapshot.config["model"], to_plain(config)["model"]))
    differ = [f"{key} is {then.get(key)} there and {now.get(key)} here" for key in {**then, **now}
              if key != "start" and then.get(key) != now.get(key)]
    if differ:
        raise BadInput(f"{where}: its network is another one ({', '.join(differ)}); give a checkpoint of the same "
                       "network")
    if model.buffers and model.policy == "local":
        raise BadInput(f"{where}: with model.running_stats = local its global model has no running "
                       f"statistics; {EXPORT_CLIENT}")
    w = snapshot.shared.get("w")
    if w is None:
        raise BadInput(f"{where}: its method, {snapshot.config['method']['name']}, keeps no global model w of "
                       f"{model.size:,} numbers; {EXPORT}")
    if w.shape != (model.size,):
        raise BadInput(f"{where}: its global model w has {w.size:,} numbers, and this network {model.size:,}: samples "
                       "or classes have another shape there; give a checkpoint of data like these")
    return torch.from_numpy(w.copy())
