"""What each rank reports to rank 0 after a round. A report travels as a row of numbers, whose layout only this file
knows."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RankReports:
    """The reports of r ranks, each of what happened since its last one."""
    # seconds of training, and of evaluation, (r,)
    train_seconds: np.ndarray
    evaluation_seconds: np.ndarray
    # whether the rank trains on a GPU, and whether it was asked to stop, (r,) bool
    on_gpu: np.ndarray
    stop_requested: np.ndarray
    # MiB that the rank held at most so far, on its host and on its GPU, (r, 2)
    peak_memory: np.ndarray
    # gradient steps of its clients, by whose they are and by kind, (r, 3 * kinds)
    steps: np.ndarray

    @staticmethod
    def to_row(train_seconds: float, evaluation_seconds: float, on_gpu: bool, stop_requested: bool,
               peak_memory: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the report of one rank as a row, which `from_rows` reads."""
        return np.array([train_seconds, evaluation_seconds, on_gpu, stop_requested, *peak_memory, *steps], float)

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> RankReports:
        """Return the reports of all ranks, whose rows `to_row` made."""
        train_seconds, evaluation_seconds, on_gpu, stop_requested = rows[:, :4].T
        return cls(train_seconds, evaluation_seconds, on_gpu > 0, stop_requested > 0, rows[:, 4:6], rows[:, 6:])
