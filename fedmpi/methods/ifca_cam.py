"""IFCA-CAM, Ma et al., NeurIPS 2023: IFCA's clusters on top of one global model that learns what they share.

Objective: min over g and Theta_1..K of sum_i (n_i / n) min_k l(Y_i, h(X_i; g) + f(X_i; Theta_k)) (eq. 3).
Client: chooses the cluster with which the sum has the least loss; trains Theta_k beside g, and g beside Theta_k.
Server: Theta_k is the n_i-weighted mean of its members, as in eq. 11, which the paper calls analogous to eq. 6. g is
the n_i-weighted mean over all participants (eq. 9).
Warm-up. g alone is trained for `warm_up` rounds of FedAvg. Meanwhile clients are evaluated with g alone, and the ledger
counts every model.
Departures. Eq. 6 prints (1 - s_k) Theta_k + sum_i (n_i / n) theta_i over the members, with n over all participants. A
cluster of share s_k then goes s_k of the way, about a K-th, and learns that much more slowly (digits, k = 4, rounds 10,
20, 30, 40: 62.0, 78.5, 82.1, 86.1 %, against 75.0, 84.0, 87.1, 89.6 % with the weighted mean; IFCA 66.9, 77.6, 80.9,
84.7 %). The factor n_i / n is the one of eq. 13, which FeSEM-CAM leaves out as well. `average: share` is eq. 6, and
`equal` is the plain mean.
Defaults. `average: mean` was chosen on the digits, by the figures above; `warm_up` = 30 is the paper's.
The part that is CAM's is in fedmpi/methods/_cam.py, the part that is IFCA's in ifca.py; without g this is IFCA with
`average: mean`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedmpi.methods._cam import CAM
from fedmpi.methods.ifca import IFCA


@dataclass(frozen=True)
class IFCACAM(CAM, IFCA):
    average: Annotated[Literal["equal", "mean", "share"], "plain mean of the members, mean weighted by samples, or "
                       "eq. 6"] = "mean"

    title = "IFCA-CAM"
    paper = "Ma et al., NeurIPS 2023"
    judged_by = "g + the cluster model of least training loss (after local training: g + theta_i)"
    serves_newcomers = "g + the cluster model of least training loss, as every client"
