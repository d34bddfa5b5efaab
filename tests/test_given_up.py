"""A round that is given up because somebody waits too long for its end, in a Python program."""
from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import pytest

import fedmpi
from fedmpi.errors import GivenUp
from fedmpi.methods.fedavg import FedAvg


@dataclass(frozen=True)
class InterruptedClient(FedAvg):
    """FedAvg of which a client hears a signal while it trains, in the second round if nothing else is said."""
    signal: int = 0
    when: int = 1

    def client(self, shared, mine, data):
        if data.local.round == self.when and data.client == 0:
            os.kill(os.getpid(), self.signal)
        return super().client(shared, mine, data)


@pytest.mark.parametrize("number, error", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, GivenUp)])
def test_a_round_that_is_given_up_is_the_same_exception(bench, number, error):
    out = bench.out(f"given-up-{number}")
    with pytest.raises(error, match=r"\(checkpoint.grace\): the round is given up"):
        fedmpi.run(bench.config, out=out, quiet=True, method={"name": InterruptedClient, "signal": int(number)},
                   engine="loop", train={"participation": 1}, checkpoint={"grace": 0})
    assert [path.name for path in bench.saved(out.name)] == ["round-000001.h5"] and not (out / "lock").exists()


@pytest.mark.parametrize("settings, when, again", [
    ({}, 0, "nothing is saved yet; start again with out=.*, resume='auto', which begins anew$"),
    ({"checkpoint": {"every": 0, "grace": 0}}, 1, "nothing is saved yet; start again with "),
    ({}, 1, "saved so far: .*round-000001.h5; continue with out=.*, resume='auto'$")])
def test_a_round_that_is_given_up_says_whether_anything_is_saved(bench, settings, when, again):
    out = bench.out(f"given-up-{when}-{len(settings)}")
    with pytest.raises(GivenUp, match=rf"the round is given up\n{again}"):
        fedmpi.run(bench.config, out=out, quiet=True, engine="loop", train={"participation": 1},
                   **{"checkpoint": {"grace": 0}, **settings},
                   method={"name": InterruptedClient, "signal": int(signal.SIGTERM), "when": when})
    assert bool(bench.saved(out.name)) == ("saved so far" in again)
