"""Measure what it costs to check samples: a rank hashes those of a client when it reads them for the first time."""
from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager

import numpy as np

from benchmarks.rig import Rig
from benchmarks.synthetic import SHAPES
from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from fedmpi.storage import seal


def measure(world, model="cnn4", shape="cifar100", clients=20, samples=250, repeats=3) -> dict | None:
    """Return rank 0's table: CPU seconds of hashes in a first round, in which clients train and are evaluated.

    The ratio is their share of rank 0's CPU seconds in that round, so rank 0 has to host all clients."""
    if world.size > 1:
        raise BadInput("reading measures a rank that hosts all clients; start it without a launcher: python -m "
                       "benchmarks reading")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        settings = write_federation(folder, shape, clients, samples) | {"model": model}
        path = prepare_federation(resolve(settings).data, 0)
        for _ in range(repeats):
            rig = Rig(world, Federation(path), settings)
            with timed_hashes() as spent:
                begin = time.process_time()
                rig.round(0)
                rig.evaluate(0)
                seconds = time.process_time() - begin
            rows.append({"round_cpu_seconds": seconds, "hash_cpu_seconds": spent[0], "ratio": spent[0] / seconds})
    return {
        "benchmark": "reading", "model": model, "shape": shape, "clients": clients, "samples": samples,
        "median_cpu_seconds": float(np.median([r["round_cpu_seconds"] for r in rows])),
        "ratio": float(np.median([r["ratio"] for r in rows])), "rows": rows}


def write_federation(folder: str, shape: str, clients: int, samples: int) -> dict:
    """Write random samples to a file; return the settings of a federation of them, with 80 % for training."""
    (features, classes), draw = SHAPES[shape], np.random.default_rng(0)
    count = clients * samples * 5 // 4
    x = draw.integers(0, 256, (count, *features), np.uint8) if len(features) == 3 else draw.random(
        (count, *features), np.float32)
    np.savez(f"{folder}/samples.npz", x_train=x, y_train=draw.integers(0, classes, count))
    return {"data": {"name": "arrays", "file": f"{folder}/samples.npz", "cache": folder, "clients": clients,
                     "partition": "iid", "split": [.8, .2]}, "engine": "loop", "train": {"lr": .001}}


@contextmanager
def timed_hashes():
    """Yield a list of one number, to which the CPU seconds of checksums of rows are added."""
    spent, digest_pieces = [0.], seal.digest_pieces

    def timed(*args):
        begin = time.process_time()
        found = digest_pieces(*args)
        spent[0] += time.process_time() - begin
        return found
    seal.digest_pieces = timed
    try:
        yield spent
    finally:
        seal.digest_pieces = digest_pieces
