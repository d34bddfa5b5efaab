"""IFCA-CAM, Ma et al., NeurIPS 2023: IFCA's clusters on top of one global model, which learns what they share.

Objective: min over g and Theta_1..K of sum_i (n_i / n) min_k l(Y_i, h(X_i; g) + f(X_i; Theta_k)) (eq. 3). Client: the
cluster of least loss of the sum; Theta_k trained beside g, g beside Theta_k. Server: Theta_k is the n_i-weighted mean
of its members, as in eq. 11, which the paper calls analogous to eq. 6; g that of all (eq. 9).
Warm-up: `warm_up` rounds of FedAvg for g; meanwhile clients are judged by g alone, and the ledger counts every model.
Departures. Eq. 6 prints (1 - s_k) Theta_k + sum_i (n_i / n) theta_i over the members, n of all participants: a cluster
of share s_k goes s_k of the way, about a K-th, and learns as much more slowly (digits, k = 4, rounds 10, 20, 30, 40:
62.0, 78.5, 82.1, 86.1 %, against 75.0, 84.0, 87.1, 89.6 by a plain mean; IFCA 66.9, 77.6, 80.9, 84.7). It carries the
same n_i / n as eq. 13, which FeSEM-CAM leaves out as well, and is `average: share`; `equal` is the plain mean.
What is CAM's is in fedmpi/methods/_cam.py, what is IFCA's in ifca.py; without g this is IFCA with `average: mean`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedmpi.methods._cam import CAM
from fedmpi.methods.ifca import IFCA


@dataclass(frozen=True)
class IFCACAM(CAM, IFCA):
    average: Annotated[Literal["equal", "mean", "share"], "members' plain mean, weighted by samples, or eq. 6"] = "mean"

    title = "IFCA-CAM"
    paper = "Ma et al., NeurIPS 2023"
    judged_by = "g + the cluster model of least training loss"
