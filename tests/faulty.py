"""A method of which some clients fail; configurations name it as `tests.faulty:Wild`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedmpi.methods.ditto import Ditto, Mine


class Up(NamedTuple):
    """What a participant sends."""
    w: torch.Tensor


@dataclass(frozen=True)
class Wild(Ditto):
    """Ditto with one client (or with -1 all clients) whose update is bad, or whose update the method ignores."""
    bad: Literal["sent: nan", "sent: inf", "sent: large", "kept: nan", "ignored"] = "ignored"
    client_number: int = 5

    def client(self, shared, mine, data):
        new, up = super().client(shared, mine, data)
        hit = (data.id == self.client_number) | (self.client_number < 0)
        if self.bad == "ignored":
            return Mine(torch.where(hit, mine.v, new.v)), Up(up.w)
        where, value = self.bad.split(": ")
        value = 6e5 if value == "large" else float(value)
        spoilt = torch.where(hit & (torch.arange(len(up.w)) == 3), value, new.v if where == "kept" else up.w)
        return (Mine(spoilt), Up(up.w)) if where == "kept" else (new, Up(spoilt))

    def server(self, shared, up, who):
        if self.bad == "ignored":
            who.sizes = np.where(who.ids == self.client_number, 0, who.sizes)
        # A run may end here because of the bad update.
        new = super().server(shared, up, who)
        assert self.bad == "ignored" or (len(who.ids) == len(up.w.ids) and self.client_number not in who.ids)
        return new
