"""Proximal pulls in closed form: the step of strength/2 ||w - centre||^2, now, or many steps late."""
from __future__ import annotations

import torch
from torch import Tensor


def approach(pulls) -> None:
    """Take the steps of (part of w, centre, rate): part - rate * (part - centre), all from the same w."""
    if len(pulls) == 1:
        part, centre, rate = pulls[0]
        part.lerp_(centre, rate)
        return
    steps = [(part - centre) * rate for part, centre, rate in pulls]      # parts may overlap
    for (part, _, _), step in zip(pulls, steps, strict=True):
        part.sub_(step)


class Late:
    """Pulls on all rows (v, e) of a table in every step, of which each row takes its own when it is looked at.

    Several pulls are one, to the mean of their centres; m steps of it leave (1 - lr * strength)^m of the distance."""

    def __init__(self, rows: Tensor, lr: float, pulls: list[tuple[Tensor, float]]):
        self.rows = rows
        strengths = [float(strength) for _, strength in pulls]
        total = sum(strengths)
        if len(pulls) == 1:
            self.centre = pulls[0][0]
        elif total:
            self.centre = sum(c * (s / total) for (c, _), s in zip(pulls, strengths, strict=True))
        self.left = 1 - lr * total
        self.taken = torch.zeros(len(rows), device=rows.device)      # steps, per row

    def catch_up(self, ids, steps: int) -> None:
        """Bring rows to where they are after so many steps; ids (n,) may name a row twice."""
        if self.left == 1:
            return
        gone = 1 - self.left ** (steps - self.taken[ids])
        self.rows[ids] = self.rows[ids].lerp(self.centre[ids], gone[:, None])
        self.taken[ids] = float(steps)
