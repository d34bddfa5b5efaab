"""The server's state of a checkpoint is taken only if server and clients still have the fields that it holds."""
from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch

from fedmpi.errors import BadInput
from fedmpi.server.checkpoint_writer import restore_shared
from fedmpi.storage.checkpoint import Snapshot, write_checkpoint

SHARED = namedtuple("Shared", "w lr")(torch.zeros(4), torch.tensor(0.))
MINE = namedtuple("Mine", "v")(torch.zeros(3))


@pytest.fixture(params=[2, 0])
def saved(request, tmp_path):
    """Return the path of a checkpoint with the rows of some clients, or of none, and what it holds."""
    n, config = request.param, {"seed": 0, "rounds": 2}
    snapshot = Snapshot(1, {"w": np.arange(4.), "lr": np.array(.5)}, np.arange(n), config, "f00d", .5, [], {})
    return write_checkpoint(tmp_path, snapshot, [{"v": np.ones((n, 3))}] if n else []), snapshot


def test_fields_that_are_still_the_same_are_restored(saved):
    found = restore_shared(*saved, SHARED, MINE)
    assert type(found) is type(SHARED) and found.w.tolist() == [0, 1, 2, 3] and found.lr == .5


@pytest.mark.parametrize("shared, listed", [
    (namedtuple("Shared", "w")(torch.zeros(4)), r"lr \(\) there and missing now"),
    (namedtuple("Shared", "w lr m")(*SHARED, torch.zeros(2)), r"m missing there and \(2,\) now"),
    (SHARED._replace(w=torch.zeros(5)), r"w \(4,\) there and \(5,\) now")])
def test_another_state_of_the_server_is_refused(saved, shared, listed):
    said = rf"round-000001.h5 cannot be used with the code as it is now: the server's state has other.* \({listed}\)"
    with pytest.raises(BadInput, match=said):
        restore_shared(*saved, shared, MINE)


@pytest.mark.parametrize("mine", [namedtuple("Mine", "u")(torch.zeros(3)), namedtuple("Mine", "v")(torch.zeros(2)), ()])
def test_another_state_of_a_client_is_refused_if_the_checkpoint_holds_one(saved, mine):
    path, snapshot = saved
    if len(snapshot.ids):
        with pytest.raises(BadInput, match="now: a client's state has other fields .*or start a new run with"):
            restore_shared(path, snapshot, SHARED, mine)
    else:
        assert restore_shared(path, snapshot, SHARED, mine).lr == .5
