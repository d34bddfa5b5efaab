"""FedSR, Nguyen et al., NeurIPS 2022: a variational encoder whose codes stay small and near one Gaussian per class.

This makes the clients' representations alike.
Objective: min over encoder, head and r of
    sum_i (1 / N) E_{z ~ q(z|x)} [ce(h(z), y) + a_R ||z||] + a_C KL(q(z|x) || r(z|y)),
where q and r are diagonal Gaussians with a softplus sigma, and each sample and step has one code z.
`r: own` keeps every client's r with the client and averages only network and classifier, as in the authors' code; with
`averaged`, r travels with them. `ft` epochs of the head alone on the means of the codes come before evaluation, and are
not kept (FedSR-FT).
Departures. sigma is softplus(s) + .01 in q. There is no weight decay (5e-4 in the authors' code). ||z|| is the norm and
not its square, as in that code; the scale that the code learns between q and r is left out. A client is evaluated with
the mean of the code, in place of 20 codes, so that the accuracy has no noise.
Defaults. None was tuned here."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi.method import ClientData, Method, Nothing, Participants, RowsByField, set_by_with_model
from fedmpi.models.flat import Model
from fedmpi.models.variational import Variational, compute_kl_divergence, take_class_rows
from fedmpi.settings import Ge, PassCount


class Shared(NamedTuple):
    """The server's state: the encoder and the head, and with `r: averaged` the Gaussians of the classes."""
    # (d,) encoder and head; with `r: averaged` also r
    w: Tensor


class Mine(NamedTuple):
    """What a client keeps between rounds: with `r: own`, its Gaussians of the classes."""
    # (2 c f,) the client's means and raw sigmas of the classes' codes
    r: Tensor


class Up(NamedTuple):
    """What a participant sends: the vector of Shared after local training."""
    # As in Shared, after local training
    w: Tensor


@dataclass(frozen=True)
class FedSR(Method):
    a_R: Annotated[float, Ge(0), "weight of the codes' norm"] = .01
    a_C: Annotated[float, Ge(0), "weight of the divergence from the class's Gaussian"] = .0005
    r: Annotated[Literal["own", "averaged"], "the Gaussians of the classes: each client's own, or one set for "
                 "all"] = "own"
    ft: Annotated[PassCount, Ge(0), "epochs of the head before a client is evaluated (FedSR-FT)"] = 0
    # The model with its code
    net: Variational = set_by_with_model()

    title = "FedSR"
    paper = "Nguyen et al., NeurIPS 2022"
    judged_by = "w, the global model, after `ft` epochs of its head (after local training: w_i)"
    supports_targets = False
    serves_newcomers = "the global model after `ft` epochs of its head, as every client"

    def with_model(self, model: Model) -> Method:
        return replace(self, model=model, net=Variational(model))

    def init(self, n: int) -> tuple[Shared, Mine | Nothing]:
        c, f = self.net.classes, self.net.width
        r = torch.stack([torch.zeros(c, f), torch.ones(c, f)]).flatten().to(self.net.start.device)
        if self.r == "averaged":
            return Shared(torch.cat([self.net.start, r])), Nothing()
        return Shared(self.net.start), Mine(r)

    def loss(self, v: Tensor, x: Tensor, y: Tensor, e: Tensor) -> Tensor:
        """Return the objective of each sample, (b,); v = (w, r)."""
        r_mu, s = v[self.net.size:].view(2, self.net.classes, self.net.width)
        losses, z, mu, sigma = self.net.loss(v[:self.net.size], x, y, e)
        apart = compute_kl_divergence(mu, sigma, take_class_rows(r_mu, y), take_class_rows(F.softplus(s), y))
        return losses[:, 0] + self.a_R * z[:, 0].norm(dim=1) + self.a_C * apart

    def client(self, shared: Shared, mine: Mine | Nothing, data: ClientData) -> tuple[Mine | Nothing, Up]:
        v = data.descend(self.loss, torch.cat([shared.w, *mine]), noise=(1, self.net.width))
        at = len(shared.w)
        return Mine(v[at:].clone()) if mine else mine, Up(v[:at].clone())

    def server(self, shared: Shared, up: RowsByField, who: Participants) -> Shared:
        return Shared(up.w.mean())

    def personal(self, shared: Shared, mine: Mine | Nothing, data: ClientData) -> Tensor:
        w = shared.w[:self.net.size]
        return self.net.tune_head(w[self.net.phi], w[self.net.h], data, self.ft)

    def unadapted(self, shared: Shared, mine: Mine | Nothing) -> Tensor | None:
        return shared.w if self.ft else None

    def trained(self, shared: Shared, mine: Mine | Nothing, up: Up) -> Tensor:
        return up.w

    def predict(self, w: Tensor, x: Tensor) -> Tensor:
        return self.net(w[:self.net.size], x)
