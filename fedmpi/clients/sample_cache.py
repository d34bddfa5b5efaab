"""A cache of samples, by client. Samples are read from the federation when they are first used, and stay on the device
as long as they fit in a bound; the least recently used (LRU) go first. So start-up and memory do not grow with the
number of clients."""
from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from fedmpi.comm.gpu_staging import copy_to_device
from fedmpi.data.federation import Federation


class SampleCache:
    """Samples by client, as tensors x_train, y_train, x_val, y_val, x_test and y_test in stored form.

    Args:
        federation: where samples are read
        device: where they are kept
        memory: bytes that are kept at most; the samples of the last client are kept even if they are more"""

    def __init__(self, federation: Federation, device: torch.device, memory: float):
        self.federation, self.device, self.memory = federation, device, memory
        # bytes that are kept now
        self.held = 0
        self._kept: OrderedDict[int, dict[str, Tensor]] = OrderedDict()

    def __getitem__(self, client: int) -> dict[str, Tensor]:
        if client in self._kept:
            self._kept.move_to_end(client)
            return self._kept[client]
        parts = self.federation.client(client)._asdict()
        samples = self._kept[client] = {k: copy_to_device(v, self.device) for k, v in parts.items()}
        self.held += count_sample_bytes(samples)
        while self.held > self.memory and len(self._kept) > 1:
            self.held -= count_sample_bytes(self._kept.popitem(last=False)[1])
        return samples


def count_sample_bytes(samples: dict[str, Tensor]) -> int:
    """Return the bytes of one client's samples."""
    return sum(t.numel() * t.element_size() for t in samples.values())
