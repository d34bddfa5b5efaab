"""What a participant's round takes on a device at the edge, where `edge` is set: from what its method would compute."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedmpi.clients.plan import Local
from fedmpi.clients.tally import Work, work
from fedmpi.data.federation import Federation
from fedmpi.method import Method, Participants
from fedmpi.models.build import blank
from fedmpi.server.cost import Edge


@dataclass
class EdgeLedger:
    """Time and energy of clients; what a round computes is worked out once for each number of samples."""
    edge: Edge | None
    method: Method
    federation: Federation
    local: Local
    known: dict[int, Work] = field(default_factory=dict)      # by a client's training samples

    def spent(self, who: Participants, nbytes) -> dict[str, np.ndarray]:
        """Return s and J of each participant (n,), by name; {} without `edge`."""
        if self.edge is None:
            return {}
        trained, passed = zip(*(self.work_of(int(n)) for n in np.asarray(who.sizes)), strict=True)
        return self.edge.spent(trained, passed, nbytes)

    def work_of(self, n: int) -> Work:
        """Return what a round of a client with n samples computes."""
        if n not in self.known:
            shared, mine = self.method.init(len(self.federation.sizes))
            sample = blank(self.federation.shape, self.federation.dtype)
            self.known[n] = work(self.method, shared, mine, sample, n, self.local)
        return self.known[n]
