"""What a round costs a client: the ledger of what it would send and receive (logical), in exact bytes, and the time and
energy of a device at the edge."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedmpi.settings import Gt

MIB = 2 ** 20
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


def nbytes(state) -> int:
    """Return the bytes of a NamedTuple of tensors."""
    return sum(v.numel() * v.element_size() for v in state)


def printed(total: int, model: int, head: int) -> float:
    """Return bytes of a round in MB as FedMHC's table II prints them: the sizes of a model and of a head are rounded to
    two decimals first, a MB is 2^20 bytes. Labels and the like, less than 1 % of a head, do not show. Raises ValueError
    where other things travel."""
    models, rest = divmod(total, model)
    heads, rest = divmod(rest, head)
    if rest > head / 100:
        raise ValueError(f"{rest} of {total} bytes are neither models of {model} nor heads of {head}")
    return round(models * round(model / MIB, 2) + heads * round(head / MIB, 2), 2)


def steps(sizes: np.ndarray, train) -> np.ndarray:
    """Return the batches of one pass of each client's local training, (n,)."""
    return np.full(len(sizes), train.steps) if train.steps else train.epochs * -(-np.asarray(sizes) // train.batch)
