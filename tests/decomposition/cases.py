"""The runs of the suite: factors that must not change a bit, factors that say what is computed, and their
configurations."""
from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fedmpi.assembly import build_method, refuse_engine
from fedmpi.config.schema import load_config
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from tests.methods.table import NAMES, SHOWN

ROUNDS = 4
FACTORS = {
    "scenario": ("plain", "lost", "skipped", "noise", "sign_flip", "median", "trimmed_mean", "clip"),
    "network": ("mlp", "table", "convolutions", "batchnorm local", "batchnorm average"),
    "ranks": (3, 2, 5, 1, 8),
    "restart": ("none", "1 after 1", "2 after 2", "3 after 3", "8 after 1"),
    "engine": ("loop", "vmap 3", "vmap 1", "vmap all"),
    "placement": ("balanced", "moving", "blocks", "shuffled"),
    "server": ("only serves", "hosts clients"),
    "state": ("in memory", "spilled"),
    "threads": (1, 2)}

SCENARIOS = {
    "plain": [],
    "lost": ["faults.drop=.3", "attack={kind: label_flip, share: .3}"],
    "skipped": ["attack={kind: noise, scale: 1e8}", "faults.bad_update=skip"],      # beyond the range of exact sums
    "sign_flip": ["attack={kind: sign_flip, share: .3}"],
    "noise": ["attack={kind: noise, scale: .1}", "faults.drop=.2"],
    "median": ["server.aggregation=median", "attack={kind: sign_flip, share: .3}"],
    "trimmed_mean": ["server.aggregation=trimmed_mean", "server.trim=.2"],
    "clip": ["server.clip_norm=.3", "attack={kind: sign_flip, share: .3, scale: 3}"]}
NETWORKS = {
    "mlp": ["model={name: mlp, hidden: 16}"],
    "table": ["model={name: fasttext, vocabulary: 65, width: 8}", "data.name=arrays", "data.file={folder}/words.npz"],
    "convolutions": ["model={name: 'tests.federations:TinyCNN'}", "data.name=arrays", "data.file={folder}/images.npz"],
    "batchnorm local": ["model={name: 'tests.clients.normed:Normed', policy: local}", "data.name=arrays",
                        "data.file={folder}/images.npz"],
    "batchnorm average": ["model={name: 'tests.clients.normed:Normed', policy: average}", "data.name=arrays",
                          "data.file={folder}/images.npz"]}
CONFIG = {"rounds": ROUNDS, "seed": 2, "device": "cpu", "edge": {}, "evaluate": {"embeddings": [2]},
          "data": {"clients": 9, "fraction": .3, "partition": {"name": "dirichlet", "beta": .2}},
          "train": {"lr": .05, "lr_decay": .9, "participation": .7, "steps": 3}, "comm": {"timeout": 0},
          "checkpoint": {"every": 0, "minutes": 0, "keep": 1}}
# GiB, so little that only one client's state and one client's samples are in memory.
SPILLED = 1e-9


@dataclass(frozen=True)
class Start:
    """One start of the command on some ranks, with the decomposition that settings cannot express."""
    ranks: int
    overrides: tuple[str, ...]
    out: str
    resume: str | None = None
    # rounds after which the run is asked to stop
    stop_after: int = ROUNDS
    # clients that engine vmap trains at once, at most
    width: int = 128
    # clients change their ranks in every round
    moving: bool = False


def write_inputs(folder: Path) -> Path:
    """Write the configuration and the arrays of the networks into a folder; return the configuration's path."""
    from tests.federations import pool
    x, y, *_ = pool()
    np.savez(folder / "images.npz", x_train=(x * 255).astype(np.uint8).reshape(-1, 8, 8, 1), y_train=y)
    # Words are the bright pixels.
    np.savez(folder / "words.npz", x_train=np.where(x > .5, np.arange(1, 65), 0), y_train=y)
    values = CONFIG | {"data": CONFIG["data"] | {"cache": str(folder / "federations")}}
    path = folder / "config.yaml"
    path.write_text(json.dumps(values))
    return path


def what(method: str, row: dict, folder: Path) -> list[str]:
    """Return the settings that say what is computed; runs that share them must agree."""
    shown = json.dumps({"name": method, **SHOWN.get(method, {})})
    network = [text.replace("{folder}", str(folder)) for text in NETWORKS[row["network"]]]
    return [f"method={shown}", *network, *SCENARIOS[row["scenario"]], f"engine={row['engine'].split()[0]}"]


def starts(method: str, row: dict, folder: Path, out: str) -> list[Start]:
    """Return the starts of a run one after another: one, or two if it is restarted."""
    width = row["engine"].partition(" ")[2]
    words = (*what(method, row, folder), f"threads={row['threads']}",
             *([f"state.memory={SPILLED}"] if row["state"] == "spilled" else []))
    placement = "balanced" if row["placement"] == "moving" else row["placement"]
    hosts = row["server"] == "hosts clients"
    how = (f"placement={placement}", f"server.hosts_clients={str(hosts).lower()}")
    more = {"width": 128 if width in ("", "all") else int(width), "moving": row["placement"] == "moving"}
    whole = Start(row["ranks"], words + how, out, **more)
    if row["restart"] == "none":
        return [whole]
    ranks, after = map(int, row["restart"].split(" after "))
    # Before the restart the run is also hosted in another way.
    other = ("placement=blocks" if placement != "blocks" else "placement=shuffled",
             f"server.hosts_clients={str(not hosts).lower()}")
    return [Start(ranks, words + other, out, stop_after=after, **more),
            Start(row["ranks"], words + how, out, resume="auto", **more)]


REFERENCE = {"ranks": 1, "restart": "none", "placement": "balanced", "server": "only serves", "state": "in memory",
             "threads": 1}


def reference(row: dict, threads: int = 1) -> dict:
    """Return the run that a run is compared with: one rank, one start."""
    engine = "vmap all" if row["engine"].startswith("vmap") else "loop"
    return {**row, **REFERENCE, "engine": engine, "threads": threads}


def promised(row: dict) -> bool:
    """Say whether a run must agree with its reference bit for bit, as docs/reproducibility.md promises."""
    return not (row["network"] == "convolutions" and row["engine"].startswith("vmap"))


def allowed(method: str, config: Path):
    """Return `allowed(row)`, which says whether fedmpi takes these values together; some factors may be missing."""
    @cache
    def taken(scenario: str, network: str, engine: str) -> bool:
        row = {"scenario": scenario, "network": network, "engine": engine}
        settings = load_config(config, what(method, row, config.parent))
        federation = Federation(prepare_federation(settings.data, settings.seed))
        try:
            refuse_engine(settings, federation, build_method(settings, federation))
        except BadInput:
            return False
        return True

    def check(row: dict) -> bool:
        full = {"scenario": "plain", "network": "mlp", "engine": "loop"} | row
        return taken(full["scenario"], full["network"], full["engine"].split()[0])
    return check


def methods(names: str | None) -> list[str]:
    """Return the methods that are named, or all. Raises SystemExit for an unknown one."""
    chosen = names.split(",") if names else NAMES
    if unknown := sorted(set(chosen) - set(NAMES)):
        raise SystemExit(f"no method {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return chosen
