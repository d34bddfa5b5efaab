"""A device at the edge: the time and the energy that it takes to train and to send (FedCPS, table 4)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from fedmpi.settings import Gt

# Part of a sample's cycles that the forward pass takes.
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Edge:
    """A device at the edge, as in FedCPS's table 4.

    The paper gives no constants. These have its ratios of energy to time: about 0.1 W to compute, 0.44 W to send."""
    title = "edge"
    cycles: Annotated[float, Gt(0), "CPU cycles to train on one sample, forward and backward"] = 1e7
    frequency: Annotated[float, Gt(0), "CPU cycles per second"] = 1e9
    kappa: Annotated[float, Gt(0), "effective capacitance: a cycle takes kappa * frequency^2 J"] = 1e-28
    bandwidth: Annotated[float, Gt(0), "bits per second, either way"] = 1e7
    power: Annotated[float, Gt(0), "W while bits are sent or received"] = .44

    def compute_cost(self, trained: ArrayLike, passed: ArrayLike, nbytes: ArrayLike) -> dict[str, np.ndarray]:
        """Return the seconds and joules of clients by name, (n,) each.

        Args:
            trained: samples that each client trains on, (n,).
            passed: samples that it only passes forward, (n,).
            nbytes: bytes that it sends and receives, (n,) or one number."""
        cycles = self.cycles * (np.asarray(trained) + FORWARD_SHARE * np.asarray(passed))
        seconds = 8 * np.asarray(nbytes) / self.bandwidth + np.zeros_like(cycles)
        return {"T_comp": cycles / self.frequency, "T_comm": seconds,
                "E_comp": self.kappa * self.frequency ** 2 * cycles, "E_comm": self.power * seconds}
