"""IFCA-CAM, Ma et al., NeurIPS 2023: IFCA's clusters on top of one global model, which learns what they share.

Objective: min over g and Theta_1..K of sum_i (n_i / n) min_k l(Y_i, h(X_i; g) + f(X_i; Theta_k)) (eq. 3). Client: the
cluster of least loss of the sum; Theta_k trained beside g, g beside Theta_k. Server: Theta_k <- (1 - s_k) Theta_k +
sum_i (n_i / n) theta_i over its members (eq. 6), n over all participants; g the n_i-weighted mean (eq. 9).
Warm-up: `warm_up` rounds of FedAvg for g; meanwhile clients are judged by g alone, and the ledger counts every model.
What is CAM's is in fedmpi/server/cam.py, what is IFCA's in ifca.py; without g this is IFCA with `average: share`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedmpi.methods.ifca import IFCA
from fedmpi.server.cam import CAM


@dataclass(frozen=True)
class IFCACAM(CAM, IFCA):
    average: Annotated[Literal["mean", "share"], "members' plain mean, or eq. 6"] = "share"

    title = "IFCA-CAM"
    paper = "Ma et al., NeurIPS 2023"
    judged_by = "g + the cluster model of least training loss"
