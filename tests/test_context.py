"""What a message says of the clients at work."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmpi.context import RankContext
from fedmpi.errors import GivenUp
from fedmpi.session import explain_failure


@pytest.mark.parametrize("client, said", [
    (4, "client 4"), ([4], "client 4"), ([4, 2], "one of the clients 4, 2"),
    ([4, 2, 7, 9], "one of the clients 4, 2, 7, 9"),
    ([4, 2, 7, 9, 1], "one of the clients 4, 2, 7 and 2 others"),
    ([*range(1000)], "one of the clients 0, 1, 2 and 997 others")])
def test_clients_at_work_are_named_however_many_are_trained_at_once(client, said):
    context = RankContext(client=client, round=6)
    world = SimpleNamespace(rank=0, size=1, host="node", on_failure=[])
    assert explain_failure(world, context, GivenUp("too late"))[0] == (
        f"fedmpi: {said}, round 7 (rank 0 of 1 on node): too late")
