"""The declarations of every method: names, defaults and ranges of settings, bytes, states, and what is embedded.

All values are literals, because a method with another default is another method under the same name."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi import registry
from fedmpi.comm.orders import MINE, UP
from fedmpi.comm.rows import make_rows
from fedmpi.errors import BadInput
from fedmpi.settings_table import describe_settings
from tests.federations import Lab, method
from tests.methods.table import NAMES

# Parameters of the network, of its extractor and of its head.
D, PHI, H = 1210, 1040, 170
ALL, EACH = [0, 1, 2, 3, 4, 5, 6, 7], (MINE, 0)


class Said(NamedTuple):
    title: str
    # setting -> default
    settings: dict
    # bytes that a client receives in a round
    down: int
    # bytes that it sends
    up: int
    # source, field, start and stop of the rows that are embedded for t-SNE
    shown: tuple | None
    # s: statistics stay at clients, m: the server only takes means, g: there is a global model, u: the unadapted model
    # is measured, too
    flags: str = "sm"
    # the clients that train before the first round
    warm_up: list | None = None
    # shapes of messages to a single client
    note: list = []


MIX = {"mix_epochs": 1, "mix_lr": 1.0, "mix_start": 1.0, "mix_everyone": False, "head_epochs": 1}
FESEM = {"k": 5, "layers": (), "weights": "equal", "keep": False, "lam": 0.0, "scale_by_share": False}
SENT, KEPT, HEAD = (UP, 0, PHI, D), (MINE, 0, PHI, D), (MINE, 0, 0, H)
SAID = {
    "cfl": Said("CFL", {"M": 10, "eps1": .3, "eps2": .5, "relative": True, "after": 20}, 4840, 4840, SENT, "m"),
    "cgpfl": Said("CGPFL", {"K": 4, "lam": 15., "inner": 5, "lr_p": .01, "a": 1.}, 4840, 4840, KEPT, "m"),
    "ditto": Said("Ditto", {"lam": 1.}, 4840, 4840, KEPT, "smg"),
    "fedah": Said("FedAH", MIX, 4840, 4840, HEAD, "smg"),
    "fedala": Said("FedALA", {"p": 2, "share": .8, "mix_lr": 1., "spread": .01, "first_passes": 50,
                              "mix_everyone": False}, 4840, 4840, HEAD, "smg"),
    "fedamp": Said("FedAMP", {"pull": 1., "alpha": None, "sigma": None, "form": "distance", "own": .2}, 4840, 4840,
                     KEPT, "", note=[(D,)]),
    "fedavg": Said("FedAvg", {"weights": "samples"}, 4840, 4840, SENT, "smg"),
    "fedavg_plus": Said("FedAvg+", {"K": 5, "weights": "samples"}, 24200, 24200, None, "m"),
    "fedbabu": Said("FedBABU", {"ft": 5}, 4160, 4160, None, "smgu"),
    "fedcps": Said("FedCPS", {"k": 3, "layers": 2, "lam": .1, "lam_min": .001, "lam_max": 10.,
                              "personal_layers": "cluster", "subset": .5, "stable": 10}, 3 * 4840 + 16, 4840 + 20, KEPT,
                   "m"),
    "fedcr": Said("FedCR", {"beta": .001, "samples": 15, "ft": 10}, 7616, 7616, HEAD, "su"),
    "fedfomo": Said("FedFomo", {"M": 5, "epsilon": .3, "fall": .05, "held_out": .2}, 24200, 4864, KEPT, "s",
                    note=[(5, D)]),
    "fedgroup": Said("FedGroup", {"K": 4, "first": 20}, 4840, 4840, SENT, "m", ALL),
    "fedmhc": Said("FedMHC", {"M": 4, "lam": .1, "anchor": "global", "mini_batch": 0}, 6880, 4840, KEPT, "s"),
    "fedmhc_ah": Said("FedMHC-AH", {**MIX, "M": 4}, 6880, 4840, HEAD),
    "fedper": Said("FedPer", {}, 4160, 4160, HEAD),
    "fedprox": Said("FedProx", {"weights": "samples", "mu": .001}, 4840, 4840, SENT, "smg"),
    "fedprox_plus": Said("FedProx+", {"K": 5, "weights": "samples", "mu": .001}, 24200, 24200, None, "m"),
    "fedrep": Said("FedRep", {"head_epochs": 10}, 4160, 4160, HEAD),
    "fedsr": Said("FedSR", {"a_R": .01, "a_C": .0005, "r": "own", "ft": 0}, 7016, 7016, None),
    "fesem": Said("FeSEM", FESEM, 24200, 4840, SENT),
    "fesem_cam": Said("FeSEM-CAM", FESEM | {"layers": ("linear",), "weights": "samples", "lam": .01, "warm_up": 30,
                                            "warm_steps": None, "warm": "local"}, 29040, 9680, SENT, "m", ALL),
    "ifca": Said("IFCA", {"k": 5, "shared_body": False, "average": "equal"}, 24200, 4848, SENT),
    "ifca_cam": Said("IFCA-CAM", {"k": 5, "shared_body": False, "average": "mean", "warm_up": 30, "warm_steps": None,
                                  "warm": "global"}, 29040, 9688, SENT, "m"),
    "lcfed": Said("LCFed", {"K": 10, "mu": .1, "lam": .01, "D": 50, "sample": None}, 9000, 4840 + 4 * 8, KEPT, "",
                  ALL),
    "lg_fedavg": Said("LG-FedAvg", {}, 680, 680, (UP, 0, 0, H)),
    "local": Said("Local", {}, 0, 0, KEPT, "s"),
    "per_fedavg": Said("Per-FedAvg", {"alpha": None, "beta": None, "order": 1, "delta": .001}, 4840, 4840, SENT,
                       "smgu"),
    "pfedcam": Said("pFedCAM", {"K": 4, "interp_lr": 1., "interp_epochs": 1}, 19360, 4840, SENT, "m"),
    "pfedme": Said("pFedMe", {"lam": 15., "K": 5, "lr_p": .01, "beta": 1.}, 4840, 4840, KEPT, "smg"),
}


def test_all_methods_are_in_the_table():
    assert sorted(SAID) == NAMES and len({said.title for said in SAID.values()}) == 30
    for name, said in SAID.items():
        cls = registry.find_class("methods", name)
        assert cls.title == said.title and cls.paper and cls.judged_by
        assert {row["name"]: row["default"] for row in describe_settings(cls)} == said.settings


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_what_it_says(name, mlp, federation):
    said, cls = SAID[name], registry.find_class("methods", name)
    assert {row["name"]: row["default"] for row in describe_settings(cls)} == said.settings
    lab = Lab(method(name, mlp), federation)
    m, shared, mine = lab.method, lab.shared, lab.mine(2)
    assert m.traffic(shared, lab.up) == (said.down, said.up)
    shown = m.embedding(make_rows(lab.pool, MINE, mine), make_rows(lab.pool, UP, lab.up))
    assert (shown and tuple(shown.ref.to_array())) == said.shown
    whole, plain = m.global_model(shared), m.unadapted(shared, mine)
    known = {"s": m.supports_local_batchnorm, "m": m.supports_robust_mean,
             "g": whole is not None, "u": plain is not None}
    assert {flag for flag, holds in known.items() if holds} == set(said.flags)
    start = getattr(m, "net", mlp).start
    assert all(torch.equal(w, start) for w in (whole, plain) if w is not None)
    assert [tuple(v.shape) for v in m.message_template() or ()] == said.note and not m.idles
    first = m.warm_up_participants(8, 3)
    assert (first if first is None else first.tolist()) == said.warm_up


# setting of a method -> values that are refused, and values at the ends of the range that are allowed
RANGES = {
    "cfl.M": ([0], [1]), "cfl.eps1": ([-.1], [0.]), "cfl.eps2": ([-.1], [0.]), "cfl.after": ([-1], [0]),
    "cgpfl.K": ([0], [1]), "cgpfl.lam": ([-1.], [0.]), "cgpfl.inner": ([0], [1]), "cgpfl.lr_p": ([0., .1334], [.1333]),
    "cgpfl.a": ([0., 1.01], [1.]), "ditto.lam": ([-1.], [0.]), "fedah.mix_epochs": ([-1], [0]),
    "fedah.mix_lr": ([-1.], [0.]), "fedah.mix_start": ([-.1, 1.1], [0., 1.]), "fedah.head_epochs": ([0], [1]),
    "fedala.p": ([0], [1, 4]), "fedala.share": ([0., 1.1], [1.]), "fedala.mix_lr": ([-1.], [0.]),
    "fedala.spread": ([-.1], [0.]), "fedala.first_passes": ([0], [1]), "fedamp.pull": ([-1.], [0.]),
    "fedamp.alpha": ([0.], [.001, None]), "fedamp.sigma": ([0.], [.001, None]),
    "fedamp.own": ([-.1, 1.1, .3], [.2]),
    "fedamp.form": (["cosine"], ["heuristic"]), "fedavg.weights": (["n"], ["equal"]), "fedavg_plus.K": ([0], [1]),
    "fedbabu.ft": ([-1], [0]), "fedcps.k": ([0], [1]), "fedcps.layers": ([0, 3], [1, 2]),
    "fedcps.lam": ([-1., .0009, 10.1], [0., .001, 10.]), "fedcps.lam_min": ([-1., .11, 10.1], [0., .1]),
    "fedcps.lam_max": ([.0009, .09], [.1]), "fedcps.subset": ([0., 1.1], [1.]),
    "fedcps.stable": ([0], [1]), "fedcr.beta": ([-1.], [0.]), "fedcr.samples": ([0], [1]), "fedcr.ft": ([-1], [0]),
    "fedfomo.M": ([0], [1]), "fedfomo.epsilon": ([-.1, 1.1], [0., 1.]), "fedfomo.fall": ([-.1, 1.1], [0., 1.]),
    "fedfomo.held_out": ([0., 1.], [.01, .99]),
    "fedgroup.K": ([0], [1]), "fedgroup.first": ([0], [1]), "fedmhc.M": ([0], [1]), "fedmhc.lam": ([-1.], [0.]),
    "fedmhc.anchor": (["w"], ["local"]), "fedmhc.mini_batch": ([-1], [0]), "fedprox.mu": ([-1.], [0.]),
    "fedprox_plus.mu": ([-1.], [0.]), "fedrep.head_epochs": ([0], [1]), "fedsr.a_R": ([-1.], [0.]),
    "fedsr.a_C": ([-1.], [0.]), "fedsr.r": (["both"], ["averaged"]), "fedsr.ft": ([-1], [0]), "fesem.k": ([0], [1]),
    "fesem.lam": ([-1.], [0.]), "fesem.weights": (["n"], ["samples"]), "fesem_cam.warm_up": ([-1], [0]),
    "fesem_cam.warm_steps": ([0], [1]),
    "fesem_cam.warm": (["both"], ["global"]), "ifca.k": ([0], [1]), "ifca.average": (["sum"], ["share"]),
    "lcfed.K": ([0], [1]), "lcfed.mu": ([-1.], [0.]), "lcfed.lam": ([-1.], [0.]), "lcfed.D": ([0], [1]),
    "lcfed.sample": ([0, 49], [50]), "per_fedavg.alpha": ([-1.], [0., None]), "per_fedavg.beta": ([0.], [.1, None]),
    "per_fedavg.order": ([0, 3], [2]), "per_fedavg.delta": ([0., .1], [.001]), "pfedcam.K": ([0], [1]),
    "pfedcam.interp_lr": ([-1.], [0.]), "pfedcam.interp_epochs": ([0], [1]), "pfedme.lam": ([-1., 200.], [0., 199.]),
    "pfedme.K": ([0], [1]), "pfedme.lr_p": ([0., .1334], [.1333]), "pfedme.beta": ([0.], [.1]),
}


def test_values_outside_a_range_are_refused_by_name(mlp):
    for setting, (refused, allowed) in RANGES.items():
        name, field = setting.split(".")
        for value in allowed:
            assert getattr(method(name, mlp, **{field: value}), field) == value
        for value in refused:
            with pytest.raises(BadInput, match=rf"^method\.(lam(_min)? = .*lam_max|lr_p = .*lam|{field}) = "):
                method(name, mlp, **{field: value})
    bare = {f"{name}.{s}" for name, said in SAID.items() for s, default in said.settings.items()
            if not isinstance(default, bool | tuple | str)}
    inherited = {f"{name}.{s}" for name in ("fedmhc_ah", "fesem_cam", "ifca_cam", "fedprox_plus") for s in
                 SAID[name].settings}
    assert bare - inherited <= set(RANGES)


def test_a_setting_that_would_not_count_is_refused(mlp):
    for name, setting, value, key, counts, idle in (
            ("fedamp", "own", .3, "form", "heuristic", "distance"),
            ("fedamp", "alpha", .1, "form", "distance", "heuristic"),
            ("per_fedavg", "delta", .1, "order", 2, 1), ("ifca_cam", "warm_steps", 3, "warm", "local", "global")):
        assert getattr(method(name, mlp, **{setting: value, key: counts}), setting) == value
        with pytest.raises(BadInput, match=rf"^method\.{setting} = {value}: .*{key} (to )?"):
            method(name, mlp, **{setting: value, key: idle})


def test_who_trains_before_the_first_round_is_drawn_from_the_seed(mlp):
    """FedGroup draws 5 clients for each of 2 groups, LCFed one more than its components: a quarter of 40 clients."""
    for name, settings in (("fedgroup", {"K": 2, "first": 5}), ("lcfed", {"D": 9})):
        m = method(name, mlp, **settings)
        drawn = [m.warm_up_participants(40, seed) for seed in range(60)]
        assert all(len(ids) == 10 and (np.diff(ids) > 0).all() and ids.dtype == np.int64 for ids in drawn)
        assert len({tuple(ids) for ids in drawn}) == 60 and set(np.concatenate(drawn)) == set(range(40))
        assert m.warm_up_participants(40, 7).tolist() == drawn[7].tolist()
    kept = (method("fedgroup", mlp, K=2, first=5).warm_up_participants(40, 7),
            method("lcfed", mlp, D=9).warm_up_participants(40, 7))
    assert kept[0].tolist() == sorted(np.random.default_rng((7, 0x6200)).choice(40, 10, replace=False).tolist())
    assert kept[1].tolist() == sorted(np.random.default_rng((7, 0x1CFE)).permutation(40)[:10].tolist())
    cam = method("fesem_cam", mlp)
    assert cam.warm_up_participants(5, 0).tolist() == [0, 1, 2, 3, 4]
    assert method("fesem_cam", mlp, warm_up=0).warm_up_participants(5, 0) is None
    assert method("ifca_cam", mlp).warm_up_participants(5, 0) is None
    assert method("ifca_cam", mlp, warm="local").warm_up_participants(5, 0).tolist() == [0, 1, 2, 3, 4]


# tables and counters of the server before the first round: -1 is a client without a cluster
FIRST = {"cfl": {"cluster": [0] * 8, "count": 1, "unit": 0.}, "cgpfl": {"context": [-1] * 8},
         "fedcps": {"ID": [-1] * 8, "calm": 0, "scale": 0., "tau2": [0.] * 3}, "fedgroup": {"group": [0] * 8},
         "fesem": {"of": [-1] * 8, "n": 0.}, "fesem_cam": {"of": [-1] * 8, "n": 0., "round": -1},
         "ifca_cam": {"round": 0}, "lcfed": {"R": [-1] * 8, "known": 0.}}
START = {"ditto": "v", "fedamp": "w", "fedcps": "w", "fedfomo": "w", "fedmhc": "theta", "cgpfl": "theta",
         "lcfed": "omega", "local": "w", "pfedme": "theta"}


def test_what_is_known_before_the_first_round(mlp):
    for name, tables in FIRST.items():
        shared, _ = method(name, mlp).init(8)
        assert {field: getattr(shared, field).tolist() for field in tables} == tables
    for name, field in START.items():
        _, mine = method(name, mlp, **{"layers": 1} if name == "fedcps" else {}).init(8)
        assert torch.equal(getattr(mine, field), mlp.start)
    assert torch.equal(method("fedfomo", mlp).init(3)[0].affinity, torch.eye(3))
    w = method("fedavg_plus", mlp, K=3).init(8)[0].w
    assert torch.equal(w[0], mlp.start) and len(w.unique(dim=0)) == 3
    assert not method("pfedcam", mlp).init(8)[1].s.any()
    assert (method("fedah", mlp, mix_start=.25).init(8)[1].W == .25).all()


def test_clients_that_idle_are_asked_for(mlp):
    for name in ("fedah", "fedala", "fedmhc_ah"):
        assert method(name, mlp, mix_everyone=True).idles is True
