"""FeSEM-CAM, Ma et al., NeurIPS 2023: FeSEM's centres on top of one global model that learns what they share.

Objective: min over g, Theta_1..K and theta_i of
    sum_i (n_i / n) (l(Y_i, h(X_i; g) + f(X_i; theta_i)) + lam/2 min_j ||theta_i - Theta_j||^2) (eq. 12).
Client: trains theta_i from its centre (algorithm 1, line 3), beside g and pulled to the centre; trains g beside theta_i
as it was at the round's start.
Server: weighted k-means on the fully connected layers until stable (eq. 11), each round from the last centres; g is the
n_i-weighted mean (eq. 9).
Warm-up. Before the first round all clients train alone for `warm_up` times `warm_steps` steps (by default train.steps).
With the defaults these are 300 steps, as in the paper's 30 rounds of 10 local steps, but one training: momentum and
the moments of Adam run through it, and do not start anew after each 10 steps. The first clustering follows, and
is round 0 of metrics.jsonl: the paper's run of 100 rounds with 30 of warm-up is a run of 70 rounds here. If the warm-up
were counted in epochs, large clients would travel far and small ones stay near the start, and k-means weighted by
samples would spend its centres on the large ones (digits, 50 clients, ten planted groups, sizes that differ 15-fold,
k=5: 25 clients in one cluster, adjusted Rand index .34; counted in steps, clusters of 5 to 15 clients, .47; five
clusters of ten equal groups cannot exceed .57).
With `keep` a client goes on from its own theta_i, as eq. 13 alone can be read. The pull (eta lam, 1e-4 a step) is then
far too weak to hold models together that are never set back. They drift apart until all are equally far from each
other; the largest cluster's mean is then everybody's nearest, and a mean of unlike models serves nobody (Fashion-MNIST,
50 clients, 40 rounds: 9 of 10 participants in one cluster, 56 % against 80 %; FedAvg 68 %).
Departures. A client restarts from its centre in each round, which is `keep: false`, while eq. 13 alone lets it go on
from its own theta_i. Eq. 13 also prints a factor n_i / n on the gradient, with which nothing is learned at small rates:
it is `scale_by_share`, off by default. Algorithm 1 warms up for beta epochs; here it is rounds of `warm_steps` steps.
Defaults. lam = .01 is one of the paper's .001, .01 and .1; it was not tuned here.
The part that is CAM's is in fedmpi/methods/_cam.py, the part that is FeSEM's in fesem.py."""
from __future__ import annotations

from dataclasses import dataclass

from fedmpi.methods._cam import CAM, WhatWarmsUp
from fedmpi.methods.fesem import CentrePull, DistanceBlocks, FeSEM, RowWeights


@dataclass(frozen=True)
class FeSEMCAM(CAM, FeSEM):
    layers: DistanceBlocks = ("linear",)
    weights: RowWeights = "samples"
    lam: CentrePull = .01
    warm: WhatWarmsUp = "local"

    title = "FeSEM-CAM"
    paper = "Ma et al., NeurIPS 2023"
    judged_by = "g + its own cluster's centre (after local training: g + theta_i)"
    serves_newcomers = "g + the centre nearest to its model after a round from the mean of the centres"
