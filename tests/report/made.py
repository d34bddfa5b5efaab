"""Run folders written by hand, so that the contents of their report can be worked out on paper."""
from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from fedmpi.report.results import ReportRun, Results

TITLE, COMMAND = "Trial <1> & more", "fedmpi sweep trial.yaml"
ROWS, COLUMNS, SEEDS = ["Alpha", "Beta & co", "Gamma"], ["one", "two"], [3, 4]
# (row, column, seed) of finished runs -> accuracy_best_on_test and seconds. The other runs are not finished.
FINISHED = {("Alpha", "one", 3): (.5, 2.), ("Alpha", "one", 4): (.6, 4.), ("Beta & co", "one", 3): (.7, 9.),
            ("Gamma", "one", 3): (.3, 1.), ("Gamma", "one", 4): (.2, 2.), ("Alpha", "two", 3): (.4, 5.),
            ("Alpha", "two", 4): (.4, 5.), ("Gamma", "two", 3): (.45, 6.), ("Gamma", "two", 4): (.35, 8.)}
# Steps of the rows in column one.
STEPS = {"Alpha": {"main": 1200, "mix": 50.5}, "Beta & co": {"main": 400}, "Gamma": {"main": 400}}
PUBLISHED = {"accuracy_best_on_test": {"Alpha": {"one": [80, 1.5]}, "Beta & co": {"one": 75}, "Gamma": {"one": 30}},
             "seconds": {}}
# All runs have four rounds. Nothing is published of column two.
PUBLISHED_ROUNDS = {"Alpha": 80, "Gamma": 1500}
# Lines of Alpha in column one; seed 4 skipped the first round, and both seeds skipped the third.
LINES = {
    3: [{"round": 1, "accuracy_mean": .1, "seconds": 1., "mib_per_client_round": .5, "participants": 2, "ari": .2,
         "iterations": 3, "lam_mean": .1, "lam_few_shot": 1., "cluster_sizes": [2, 0],
         "seconds_train": .3, "seconds_judge": .2, "idle_share": .1},
        {"round": 2, "accuracy_mean": .2, "seconds": 2., "mib_per_client_round": .5, "participants": 3, "ari": .3,
         "iterations": 5, "distance": 0.5, "lam_mean": .2, "lam_few_shot": 2., "cluster_sizes": [1, 2],
         "seconds_train": .4, "seconds_judge": .2, "idle_share": .2},
        {"round": 4, "accuracy_mean": .4, "seconds": 4., "mib_per_client_round": .25, "participants": 4, "ari": .4,
         "iterations": 7, "distance": 0.7, "lam_mean": .3, "lam_few_shot": 3., "cluster_sizes": [1, 1, 2],
         "seconds_train": .5, "seconds_judge": .4, "idle_share": .3}],
    4: [{"round": 2, "accuracy_mean": .3, "seconds": 3., "mib_per_client_round": 1., "participants": 2, "ari": .5,
         "iterations": 1, "distance": 1.5, "lam_mean": .4, "lam_few_shot": 4., "seconds_train": .6, "seconds_judge": .5,
         "idle_share": .4},
        {"round": 4, "accuracy_mean": .5, "seconds": 5., "mib_per_client_round": 1., "participants": 1, "ari": .9,
         "iterations": 2, "distance": 0.9, "lam_mean": .5, "seconds_train": .6, "seconds_judge": .3, "idle_share": .4}]}
# Lines of Gamma.
FREE = [{"round": 4, "accuracy_mean": .25, "seconds": 2., "mib_per_client_round": 0., "participants": 4}]
NONE = float("nan")
# Histories of four clients; the last one of seed 3 has no test data.
HISTORY = {
    3: {"round": [1, 2, 4], "accuracy": [[.9, .9, .9, NONE], [.8, .8, .8, NONE], [.1, .2, .3, NONE]],
        "cluster": [[-1, 1, 1, 0], [0, 1, 1, 0], [2, 1, 2, 0]]},
    4: {"round": [2, 4], "accuracy": [[0., 0., 0., 0.], [.4, .5, .6, .9]]}}


def run(folder: Path, settings=None, lines=(), history=None, result=None) -> Path:
    """Write the files of a run into its folder; return the folder."""
    folder.mkdir(parents=True)
    config = {"seed": 0, "data": {"root": str(folder.parent)}} | (settings or {})
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if result:
        (folder / "result.json").write_text(json.dumps({"rounds": 4, "accuracy_mean": .5, "digest": "d" * 64} | result))
    if history:
        with h5py.File(folder / "history.h5", "w") as file:
            for name, values in history.items():
                file[name] = np.array(values)
    return folder


def results(folder: Path) -> Results:
    """Write the runs of all rows, columns and seeds; that of Beta, seed 4, has two rounds left."""
    shown = []
    for row in ROWS:
        for column in COLUMNS:
            for seed in SEEDS:
                at, found = folder / f"{row}-{column}-{seed}", FINISHED.get((row, column, seed))
                result = {"accuracy_best_on_test": found[0], "seconds": found[1]} if found else None
                if found and column == "one":
                    # Seed 3 counts once, seed 4 twice.
                    result["steps_so_far"] = {k: n * (seed - 2) for k, n in STEPS[row].items()}
                first = (row, column) == ("Alpha", "one")
                if (row, column, seed) == ("Beta & co", "one", 4):
                    result = {"accuracy_best_on_test": .99, "rounds": 2}
                run(at, lines=LINES[seed] if first else FREE if row == "Gamma" and column == "one" else (),
                    history=HISTORY[seed] if first else None, result=result)
                shown.append(ReportRun(row, column, seed, at, 4, f"fedmpi run {row[0]}{seed}"))
    return Results(TITLE, COMMAND, ROWS, COLUMNS, SEEDS, shown, PUBLISHED, PUBLISHED_ROUNDS)
