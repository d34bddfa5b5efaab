"""The samples of the clients at work on this rank: read from the federation when first used, kept on the device while
they fit in a bound, the least recently used dropped first. So start-up and memory do not grow with all clients."""
from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from fedmpi.comm.gpu_staging import sent


class SampleCache:
    """Samples by client, as tensors (x_train, y_train, x_val, y_val, x_test, y_test) in stored form."""

    def __init__(self, federation, device: torch.device, memory: float):
        self.federation, self.device, self.memory = federation, device, memory
        self.held = 0      # bytes
        self._kept: OrderedDict[int, dict[str, Tensor]] = OrderedDict()

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client]
        parts = self.federation.client(client)._asdict()
        samples = self._kept[client] = {k: sent(v, self.device) for k, v in parts.items()}
        self.held += samples_bytes(samples)
        while self.held > self.memory and len(self._kept) > 1:
            self.held -= samples_bytes(self._kept.popitem(last=False)[1])
        return samples


def samples_bytes(samples: dict[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in samples.values())
