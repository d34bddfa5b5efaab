"""Exceptions for single methods in the tests of all methods. A method that is not named here needs none."""
from __future__ import annotations

import pytest

from fedmpi import registry
from fedmpi.settings_table import describe_settings

NAMES = registry.list_available("methods")

# One method of each kind: a mean, groups of clients, private states, mixes for single clients, parts of the network.
KINDS = ("fedavg", "fedmhc", "ditto", "fedamp", "fedper")
REST = pytest.mark.slow("thirty methods; those of table.KINDS are tested without this mark, too")

# method -> settings with which it does within three rounds all that it ever does
SHOWN = {"lcfed": {"K": 2, "D": 4}, "fedcps": {"layers": 1}, "ifca_cam": {"warm_up": 1}, "fesem_cam": {"warm_up": 0},
         "cfl": {"after": 0, "eps1": 10., "eps2": 0.}, "fedgroup": {"K": 2, "first": 2}, "pfedcam": {"K": 3},
         "cgpfl": {"K": 3}, "fedala": {"first_passes": 3}}

# (method, setting) -> (another value, settings of both runs with which that value makes a difference)
OTHER = {
    ("fedamp", "own"): (.7, {"form": "heuristic"}),
    ("fedamp", "alpha"): (.1, {}),
    ("fedamp", "sigma"): (.1, {}),
    ("cfl", "eps1"): (0., {}),
    ("cfl", "relative"): (False, {"eps1": 10., "eps2": .5}),
    ("fedfomo", "epsilon"): (1., {"M": 2}),
    ("fedfomo", "fall"): (1., {"M": 2, "epsilon": 1.}),
    ("fedala", "spread"): (1e-4, {"first_passes": 20}),
    ("fedala", "first_passes"): (2, {}),
    ("fedprox_plus", "mu"): (1., {}),
    ("fesem", "lam"): (1., {}),
    ("fesem", "layers"): (["fc2.bias"], {"k": 3}),
    ("fesem_cam", "lam"): (1., {}),
    ("fesem_cam", "layers"): (["fc2.bias"], {"k": 4}),
    ("fesem_cam", "warm_steps"): (3, {"warm_up": 1}),
    ("ifca_cam", "warm_steps"): (3, {"warm": "local"}),
    ("fesem_cam", "warm"): ("global", {"warm_up": 1}),
    ("fedah", "mix_lr"): (.1, {}),
    ("fedah", "mix_start"): (.5, {}),
    ("fedcps", "lam_max"): (.1, {}),
    ("fedcps", "lam_min"): (.1, {}),
    ("fedcps", "layers"): (2, {}),
    ("lcfed", "sample"): (8, {}),
    ("fedmhc_ah", "mix_lr"): (.1, {}),
    ("fedmhc_ah", "mix_start"): (.5, {}),
    ("per_fedavg", "alpha"): (.2, {}),
    ("per_fedavg", "beta"): (.2, {}),
    ("per_fedavg", "delta"): (.1, {"order": 2}),
}

# (method, setting) -> reason why the setting cannot change three small rounds
IDLE = {
    ("fedcps", "stable"): "in three rounds of 5 of 8 clients not all are known, let alone settled",
}

# method -> reason why renumbered clients get other draws: its server draws by position
BY_POSITION = {
    **dict.fromkeys(("fedmhc", "fedmhc_ah", "lcfed", "fesem", "fesem_cam", "pfedcam"),
                    "k-means++ draws its first centres among the rows in client order"),
    **dict.fromkeys(("cfl", "fedfomo", "fedgroup", "cgpfl"), "the server's table goes by client number"),
}

# method -> fields of Shared with an entry for each client
BY_CLIENT = {"fedcps": ("ID",)}


def marked(*names):
    """Return a parameter of a test for each method, or for each tuple that begins with one."""
    rows = [(name,) if isinstance(name, str) else name for name in names]
    return [pytest.param(*row, marks=() if row[0] in KINDS else REST) for row in rows]


def settings() -> list[tuple[str, str]]:
    """List every declared setting of every method."""
    return [(m, row["name"]) for m in NAMES for row in describe_settings(registry.find_class("methods", m))]
