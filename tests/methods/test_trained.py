"""The column "after" measures, for every method, the model that a client has right after its local training."""
from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.federations import Lab, method
from tests.methods.reference import Reference
from tests.methods.table import NAMES, SHOWN

WHOLE = ("fedavg", "fedprox", "fedala", "fedah", "fedmhc_ah", "cfl", "fedgroup", "fesem", "ifca", "pfedcam", "pfedme")
VOTES = ("fedavg_plus", "fedprox_plus")
# The part that stays with the client.
PARTS = {"fedper": "h", "fedrep": "h", "lg_fedavg": "phi"}
CODES = ("fedsr", "fedcr")
# Beside the model that was trained stands g, as the server sent it.
SUMS = ("fesem_cam", "ifca_cam")
# Methods whose clients are evaluated with what they keep, or with nothing that they train.
SAME = set(NAMES) - {*WHOLE, *VOTES, *PARTS, *CODES, *SUMS}


def trained(name: str, sent: dict, mine) -> torch.Tensor:
    """Return the weights of a client after its training, from what it sends and what it keeps."""
    if name in PARTS:
        own = getattr(mine, PARTS[name])
        return torch.cat([own, sent["h"]] if PARTS[name] == "phi" else [sent["phi"], own])
    if name == "fedcr":
        return torch.cat([sent["phi"], mine.h])
    return sent["w"]


def log_probabilities(lab, name: str, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if name in CODES:
        return lab.method.predict(w, x).log_softmax(1)
    network = Reference(lab.method.model, lab.federation, lab.config).network
    with torch.no_grad():
        if name in SUMS:
            return (network(lab.shared.g)(x) + network(w)(x)).log_softmax(1)
        models = w.view(-1, lab.method.model.size)
        return torch.stack([network(one)(x).softmax(1) for one in models]).mean(0).log()


@pytest.fixture
def evaluated(mlp, federation):
    """Train a third round and evaluate it; return the laboratory, the participants, what they sent, and the table."""
    def evaluated(name):
        lab = Lab(method(name, mlp, **SHOWN.get(name, {})), federation, share=.6).go(2)
        ids, rows = lab.train(2, evaluates=True).ids.tolist(), lab.rows()
        sent = {field: getattr(rows, field).gather() for field in rows._fields}
        one_by_one = [{field: value[at] for field, value in sent.items()} for at in range(len(ids))]
        return lab, ids, one_by_one, lab.evaluate(3)
    return evaluated


@pytest.mark.parametrize("name", sorted({*NAMES} - SAME))
def test_the_model_right_after_training_is_evaluated(name, evaluated):
    lab, ids, sent, table = evaluated(name)
    assert np.flatnonzero(table[:, 1, 0]).tolist() == ids
    for client, up in zip(ids, sent, strict=True):
        s = lab.federation.client(client)
        logs = log_probabilities(lab, name, trained(name, up, lab.mine(client)), torch.from_numpy(s.x_test))
        loss = F.nll_loss(logs, torch.from_numpy(s.y_test), reduction="sum")
        assert table[client, 1, 3] == pytest.approx(float(loss), rel=1e-4)
        assert table[client, 1, 1] == int((logs.argmax(1).numpy() == s.y_test).sum())


@pytest.mark.parametrize("name", sorted(SAME))
def test_what_a_client_keeps_is_not_evaluated_twice(name, evaluated):
    assert not evaluated(name)[3][:, 1].any()
