"""Every setting of a configuration has an effect: on what is learned, on what is reported, or as another test says."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedmpi.config.schema import resolve, to_plain

RUN = {"rounds": 2, "seed": 1, "method": "fedavg", "model": {"name": "mlp", "hidden": 4},
       "data": {"clients": 5, "fraction": .2, "partition": "iid", "split": [.5, .2, .3]}, "engine": "loop",
       "train": {"lr": .05, "batch": 6}, "checkpoint": {"every": 0, "minutes": 0}}
SLOW = {"stragglers.step_seconds": .1, "stragglers.spread": .5}
TRIMMED, NOISY = {"server.aggregation": "trimmed_mean"}, {"attack.kind": "noise"}
# A setting that changes the digest -> another value, and what else has to be set for it to be in use.
DIGEST = {
    "seed": 2, "rounds": 3, "data.clients": 6, "data.new_clients": 1, "data.task": "regression", "data.fraction": .3,
    "data.partition": "n_class", "data.split": [.6, .1, .3],
    "model": {"name": "mlp", "hidden": 5}, "method": "ditto", "train.batch": 7, "train.lr": .04,
    "train.lr_decay": .9, "train.momentum": .5, "train.optimizer": "adam",
    "train.schedule": "cosine", "train.milestones": ([2], {"train.schedule": "step", "train.milestones": [1]}),
    "train.step_factor": (.5, {"train.schedule": "step", "train.milestones": [1]}), "train.warm_up": 1,
    "train.label_smoothing": .2,
    "train.nesterov": (True, {"train.momentum": .5}), "train.weight_decay": .1, "train.clip_norm": .1,
    "train.epochs": 2, "train.drop_last": True, "train.steps": 2, "train.participation": .4,
    "train.sampling": ("size", {"train.participation": .4}),
    "train.candidates": (5, {"train.participation": .4, "train.sampling": "loss", "train.candidates": 3}),
    "stragglers.deadline": (.6, SLOW), "stragglers.late": ("partial", SLOW | {"stragglers.deadline": .6}),
    "stragglers.spread": (1., SLOW | {"stragglers.deadline": .7, "stragglers.late": "partial"}),
    "stragglers.jitter": (1., SLOW | {"stragglers.deadline": .7}),
    "server.aggregation": "median", "server.trim": (.4, TRIMMED), "server.clip_norm": 1e-3, "faults.drop": .5,
    "attack.kind": "sign_flip", "attack.share": (.7, NOISY), "attack.scale": (2., NOISY), "precision": "bf16"}
# Settings that change not what is learned but what is reported.
BOOKS = {
    "evaluate.every": 2, "evaluate.on": "validation", "evaluate.after_training": "off",
    "evaluate.embeddings": [1], "evaluate.measures": ["auc"], "edge.cycles": 2e7,
    "edge.frequency": (2e9, {"edge.cycles": 1e7}),
    "edge.kappa": (2e-28, {"edge.cycles": 1e7}), "edge.bandwidth": (2e7, {"edge.cycles": 1e7}),
    "edge.power": (.5, {"edge.cycles": 1e7}), "stragglers.step_seconds": .2, "engine": "vmap",
    "faults.bad_update": "skip"}
# Settings that change no result here -> the file below tests/ that tests what they do.
ELSEWHERE = {
    "data.name": "data/test_readers.py", "data.file": "data/test_tables.py", "data.root": "data/test_readers.py",
    "data.cache": "test_refused.py", "checkpoint.every": "server/test_rounds.py",
    "checkpoint.minutes": "server/test_rounds.py", "checkpoint.grace": "test_interrupted.py",
    "checkpoint.keep": "server/test_rounds.py", "checkpoint.failure": "server/test_on_disk_error.py",
    "checkpoint.asynchronous": "server/test_asynchronous.py", "server.hosts_clients": "test_run.py",
    "server.reduce": "comm/test_rows.py", "comm.timeout": "test_interrupted.py",
    "comm.cuda_aware": "comm/test_gpu_staging.py", "state.memory": "clients/test_state_store.py",
    "state.scratch": "clients/test_state_store.py", "cuda_graphs": "engines/test_cuda_graphs.py",
    "train.augment": "engines/test_augmentation.py", "train.padding": "engines/test_augmentation.py",
    **dict.fromkeys(["availability.file", "availability.unit", "availability.repeat", "stragglers.file"],
                    "server/test_client_selection.py"),
    "stop.patience": "server/test_early_stopping.py", "stop.on": "server/test_early_stopping.py",
    "device": "test_refused.py", "threads": "test_ranges.py", "placement": "clients/test_placement.py"}


@pytest.mark.parametrize("setting, place", ELSEWHERE.items())
def test_the_named_file_tests_a_setting_that_changes_no_result(setting, place):
    assert re.search(rf"\b{setting.split('.')[-1]}\b", (Path(__file__).parent / place).read_text())


@pytest.mark.slow("a run for every setting")
def test_no_setting_is_lost(tmp_path, cache):
    """Every setting changes what is learned or what is reported, or is tested elsewhere."""
    from tests.runs import run_alone
    told = {}

    def books(words) -> tuple[str, str]:
        """Return the digest of a run, and what its files report except times."""
        key, out = json.dumps(words), tmp_path / str(len(told))
        if key not in told:
            overrides = [f"{path}={json.dumps(value)}" for path, value in words.items()]
            assert run_alone(tmp_path / "c.yaml", overrides, str(out)) == 0
            result = json.loads((out / "result.json").read_text())
            from fedmpi.storage.history import read_history
            columns = {name: v.shape for name, v in read_history(out / "history.h5").items()}
            told[key] = result["digest"], str(columns) + str({
                k: v for k, v in result.items()
                if not k.startswith(("seconds", "imbalance", "idle", "memory", "engine_why"))})
        return told[key]

    (tmp_path / "c.yaml").write_text(json.dumps(RUN | {"data": RUN["data"] | {"cache": str(cache)}}))
    for settings, differs in ((DIGEST, 0), (BOOKS, 1)):
        for path, value in settings.items():
            value, others = value if isinstance(value, tuple) else (value, {})
            assert books(others | {path: value})[differs] != books(others)[differs], f"{path} has no effect"

    # Other tests check the settings of these sections.
    named = ("model", "method", "data.partition")

    def paths(section, where=""):
        for key, value in section.items():
            path = f"{where}{key}"
            inside = isinstance(value, dict) and path not in named
            yield from paths(value, f"{path}.") if inside else [path]
    everything = to_plain(resolve({"edge": {}, "attack": {"kind": "noise"}, "stop": {"patience": 3},
                                "stragglers": {"step_seconds": 1}, "availability": {"file": "a.csv"},
                                "data": {"split": [.6, .15, .25]}}))
    assert set(paths(everything)) == {*DIGEST, *BOOKS, *ELSEWHERE}
