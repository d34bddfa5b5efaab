"""The baseline: the loop that a careful PyTorch user writes by hand, with all data in memory."""
from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from fedmpi.models.build import as_input


class Bare:
    """Trains clients one after another: one module, torch.optim.SGD, channels-last, no loader, no aggregation."""

    def __init__(self, build, samples, batch: int, lr: float = .005, device="cpu"):
        self.module = build().to(device, memory_format=torch.channels_last)
        self.start = {k: v.clone() for k, v in self.module.state_dict().items()}
        self.samples = [(as_input(torch.from_numpy(x)).to(device), torch.from_numpy(y).to(device)) for x, y in samples]
        self.batch, self.lr = batch, lr

    def run(self) -> tuple[float, int]:
        """Train every client for one epoch from the same start; return seconds and steps."""
        begin, steps = time.perf_counter(), 0
        for x, y in self.samples:
            self.module.load_state_dict(self.start)
            optimiser = torch.optim.SGD(self.module.parameters(), self.lr)
            for at in range(0, len(y), self.batch):
                optimiser.zero_grad()
                F.cross_entropy(self.module(x[at:at + self.batch]), y[at:at + self.batch]).backward()
                optimiser.step()
                steps += 1
        if y.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin, steps
