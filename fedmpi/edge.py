"""A device at the edge: the time and the energy that it takes to train and to send (FedCPS, table 4)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedmpi.settings import Gt

FORWARD = 1 / 3      # of a sample's cycles go into the forward pass


@dataclass(frozen=True)
class Edge:
    """A device at the edge, as in FedCPS's table 4. That paper gives no constants: these have its ratios of energy to
    time (about .1 W for computing, .44 W for sending)."""
    title = "edge"
    cycles: Annotated[float, Gt(0), "CPU cycles to train on one sample, forward and backward"] = 1e7
    frequency: Annotated[float, Gt(0), "CPU cycles per second"] = 1e9
    kappa: Annotated[float, Gt(0), "effective capacitance: a cycle takes kappa * frequency^2 J"] = 1e-28
    bandwidth: Annotated[float, Gt(0), "bits per second, either way"] = 1e7
    power: Annotated[float, Gt(0), "W while bits are sent or received"] = .44

    def spent(self, trained, passed, nbytes) -> dict[str, np.ndarray]:
        """Return s and J of clients that train on so many samples, pass so many through and move so many bytes."""
        cycles = self.cycles * (np.asarray(trained) + FORWARD * np.asarray(passed))
        seconds = 8 * np.asarray(nbytes) / self.bandwidth + np.zeros_like(cycles)
        return {"T_comp": cycles / self.frequency, "T_comm": seconds,
                "E_comp": self.kappa * self.frequency ** 2 * cycles, "E_comm": self.power * seconds}
