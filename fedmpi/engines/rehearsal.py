"""A client's function on one blank sample: it shows what a method's client keeps and sends."""
from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.loop_data import LoopData
from fedmpi.method import Method, State
from fedmpi.models.flat import Model
from fedmpi.server_only import hide_server_only, refuse_server_only

# one step on one sample
REHEARSAL_TRAINING = LocalTraining(seed=0, round=0, batch=1, epochs=1, steps=1, lr=1e-3, momentum=0.)


def make_blank_message(method: Method, device: torch.device) -> State | None:
    """Return a method's message as its author's code makes it, on a device; None if it addresses none."""
    template = method.message_template()
    return None if template is None else type(template)(*(field.to(device) for field in template))


def make_blank_labels(model: Model, device: torch.device, n: int = 1) -> Tensor:
    """Return labels of blank samples, (n,): zeros, which are targets in float32 if the network has a single output."""
    return torch.zeros(n, dtype=torch.float32 if model.classes == 1 else torch.int64, device=device)


def rehearse_loop(method: Method, shared: State, mine: State, blank: Tensor) -> tuple[State, State]:
    """Run a client on one blank sample (1, ...) for one step; return what it keeps and sends, (Mine, Up).

    Raises BadInput if it uses what is SERVER_ONLY, or declares what it keeps or sends as that."""
    data = LoopData(blank, make_blank_labels(method.model, blank.device), 0, REHEARSAL_TRAINING,
                    message=method.message_template(), model=method.model)
    found = method.client(hide_server_only(shared), mine, data)
    refuse_server_only(*found, data.message or ())
    return found
