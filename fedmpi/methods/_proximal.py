"""Steps that are pulled to a centre: strengths that are refused, and the local training of pFedMe and CGPFL.

A pull of strength s to a centre c is the gradient s (w - c) of a proximal term s/2 ||w - c||^2."""
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import ClientData
from fedmpi.models.flat import Model
from fedmpi.models.slices import take_statistics, zero_statistics
from fedmpi.settings import TrainSettings


def refuse_overshoot(lr_p: float, lam: float, centre: str) -> None:
    """Refuse a learning rate with which steps that are pulled to a centre by lam would move ever further past it.

    Raises ValueError, which names the setting `lr_p` and the centre."""
    if lr_p * lam >= 2:
        raise ValueError(f"lr_p = {lr_p}: with lam = {lam} every step would overshoot {centre} by more than the last "
                         f"one; lr_p must be below 2 / lam = {2 / lam:.3g}")


def refuse_strong_pull(train: TrainSettings, setting: str, strength: float, centre: str) -> None:
    """Refuse a pull with which steps of plain SGD would move ever further past its centre. Momentum m moves the limit
    from 2 / lr to 2 (1 + m) / lr, with Nesterov's to 2 (1 + m) / ((1 + 2 m) lr). Weight decay pulls, too, to 0.

    Args:
        setting: the setting of the method that is the strength, or the sum of several
        centre: what the steps are pulled to

    Raises BadInput."""
    m = train.momentum
    limit = 2 * (1 + m) / (1 + 2 * m if train.nesterov else 1) / train.lr - train.weight_decay
    if train.optimizer == "sgd" and strength >= limit:
        raise BadInput(f"method.{setting} = {strength:g}: with train.lr = {train.lr:g} every step would overshoot "
                       f"{centre} by more than the last one; it must be below {limit:.3g}, or train.lr lower")


def descend_on_envelope(model: Model, w: Tensor, data: ClientData, lam: float, lr_p: float,
                        steps: int) -> tuple[Tensor, Tensor]:
    """Return theta and w, (d,) each, after a round on f_i's Moreau envelope (Dinh et al., NeurIPS 2020, algorithm 1).

    For each batch, theta takes `steps` steps of rate lr_p, pulled to w by lam, and then w takes one step towards theta.

    Args:
        w: the model from which both begin, (d,)"""
    rate = lr_p * data.decay

    def step(state: tuple[Tensor, Tensor], grad: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        theta, w = state
        for _ in range(steps):
            g = grad(model, theta)
            theta = theta - rate * (g + lam * zero_statistics(theta - w, model.buffers))
        w = w - data.lr * lam * (w - theta)
        return theta, take_statistics(w, theta, model.buffers)
    theta, w = data.scan(step, (w, w))
    return theta, w
