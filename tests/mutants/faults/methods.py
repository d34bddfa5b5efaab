"""Faults of `fedmpi.methods`: a step with the wrong momentum, a mean without weights, the wrong model judged, ..."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    # steps that have no momentum take the run's
    ("fedmpi.methods.fedala:FedALA.mix", "momentum=0., args=(mine.top,)", "args=(mine.top,)"),
    ("fedmpi.methods.pfedcam:PFedCAM.interpolate", "lr=self.interp_lr, momentum=0.)", "lr=self.interp_lr)"),
    ("fedmpi.methods.fedah:FedAH.mix", "momentum=0., args=(mine.h, h)", "args=(mine.h, h)"),
    ("fedmpi.methods.per_fedavg:PerFedAvg.personal", "JUDGED, steps=1)", "JUDGED)"),
    # weights that are not bounded
    ("fedmpi.methods.fedah:FedAH.mix", ", clip=(0., 1.))", ")"),
    ("fedmpi.methods.fedala:FedALA.mix", ", clip=(0., 1.)", ""),
    ("fedmpi.methods.fedala:FedALA.mix", "where=going if k else None", "where=None"),
    ("fedmpi.methods.fedfomo:FedFomo.client", "a = weight.clamp(min=0)", "a = weight"),
    ("fedmpi.methods.fedcps:FedCPS.compute_pull", "lam.clamp(self.lam_min, self.lam_max)", "lam"),
    # who is like whom
    ("fedmpi.methods.fedgroup:FedGroup.find_group", "@ dW / norms.clamp(min=1e-30)", "@ dW"),
    ("fedmpi.methods.fedgroup:FedGroup.cluster_updates", "along / gram.diagonal().sqrt().clamp(min=1e-300)[:, None]",
     "along"),
    ("fedmpi.methods.fedgroup:FedGroup.cluster_updates", "vectors[:, -self.K:]", "vectors[:, :self.K]"),
    ("fedmpi.methods.lcfed:LCFed.assign_clusters", "cosines_to_centres(images, shared.images)",
     "(images @ shared.images.T)"),
    ("fedmpi.methods.lcfed:LCFed.assign_clusters", "kmeans(unit_rows(images)", "kmeans(images"),
    ("fedmpi.methods.cfl:cosines_from_gram", "gram / norms / norms[:, None]", "gram / norms"),
    ("fedmpi.methods.ifca:IFCA.choose_cluster", "argmin()", "argmax()"),
    ("fedmpi.methods.fedamp:FedAMP.weigh_by_distance", "self.alpha / sigma\n", "self.alpha\n"),
    ("fedmpi.methods.fesem:FeSEM.server", "lloyd(rows, centres, weight)", "lloyd(rows, centres)"),
    # which model, and by how much
    ("fedmpi.methods.fedmhc:FedMHC.client", "pull=[(w, self.lam, None)]", "pull=[(mine.theta, self.lam, None)]"),
    ("fedmpi.methods.fedmhc:FedMHC.train_side_by_side", "self.lam * (theta - w)", "self.lam * (w - theta)"),
    ("fedmpi.methods.fedavg_plus:FedAvgPlus.trained", "return up.w", "return up.w[:1]"),
    ("fedmpi.methods.lcfed:LCFed.client", "(Omega, mu, None), (shared.Phi, self.lam, phi)",
     "(Omega, self.lam, None), (shared.Phi, mu, phi)"),
    ("fedmpi.methods.cfl:CFL.should_split", "self.eps1 * scale\n", "self.eps2 * scale\n"),
    ("fedmpi.methods.cfl:CFL.should_split", "norms.max()) > self.eps2", "norms.max()) > self.eps1"),
    ("fedmpi.methods.cfl:CFL.server", "cluster[ids[leaving]] = count", "cluster[leaving] = count"),
    ("fedmpi.methods.pfedme:PFedMe.client", "return Mine(theta), Up(w)", "return Mine(w), Up(w)"),
    ("fedmpi.methods.fedamp:FedAMP.weigh_by_distance", "np.median(pairs)", "np.mean(pairs)"),
    ("fedmpi.methods.ditto:Ditto.client", "pull=[(shared.w, self.lam, None)]", "pull=[(mine.v, self.lam, None)]"),
    # a mean without its weights
    ("fedmpi.methods.fedper:FedPer.server", "up.phi.mean(who.sizes)", "up.phi.mean()"),
    ("fedmpi.methods.pfedme:PFedMe.server", "up.w.mean(who.sizes)", "up.w.mean()"),
    ("fedmpi.methods.pfedcam:PFedCAM.server", "shared.Theta, who.sizes)", "shared.Theta)"),
    ("fedmpi.methods.fedmhc_ah:FedMHCAH.server", "distance(h, found.labels, who.sizes)", "distance(h, found.labels)"),
    ("fedmpi.methods.fedgroup:FedGroup.server", "up.w.mean_by(joined, self.K, shared.models, who.sizes)",
     "up.w.mean_by(joined, self.K, shared.models)"),
    # the wrong batches, or the wrong block
    ("fedmpi.methods.fedah:", "MIX_STREAM, HEAD_STREAM = 1, 2", "MIX_STREAM, HEAD_STREAM = 2, 1"),
    ("fedmpi.methods.fedah:FedAH.client", "only=self.model.phi", "only=self.model.h"),
    ("fedmpi.methods.fedrep:FedRep.client", "self.head_epochs, HEAD", "self.head_epochs, 0"),
    ("fedmpi.methods.per_fedavg:", "INNER, THIRD, JUDGED = 1, 2, 3", "INNER, THIRD, JUDGED = 0, 2, 3"),
    ("fedmpi.methods.fedavg_plus:FedAvgPlus.client", "data.with_batches(None, k)", "data.with_batches(None, 0)"),
    ("fedmpi.methods.fedfomo:FedFomo.client", "HELD, fixed=True, rest=True)", "HELD, fixed=True)"),
    # a default that is another method, and the books
    ("fedmpi.methods.fedrep:FedRep", "] = 10", "] = 1"),
    ("fedmpi.methods.ifca_cam:IFCACAM", '] = "mean"', '] = "equal"'),
    ("fedmpi.methods.fedcps:FedCPS.traffic", "shared.calm > self.stable", "shared.calm >= self.stable"),
    ("fedmpi.methods._cam:CAM.server", "who.round + 1", "who.round"),
    ("fedmpi.methods._cam:CAM.server", "up.theta0.mean(who.sizes)", "up.theta0.mean()"),
    ("fedmpi.methods._cam:CAM.is_warming_up", "shared.round < self.warm_up", "shared.round <= self.warm_up"),
    ("fedmpi.methods._cam:CAM.traffic", "nbytes(shared[-2:-1])", "nbytes(shared[-2:])"),
    ("fedmpi.methods._cam:CAM.personal", "shared, mine, data.with_added_logits(self.model, shared.g)",
     "shared, mine, data")]
