"""Benchmarks run and hand over their figures; no figure is asserted, for speed is not a test's business."""
from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib import image

from benchmarks import command
from tests import forked

SMALL = {
    "overhead": ["model=mlp", "shape=digits", "clients=3", "samples=11", "repeats=1"],
    "engines": ["clients=3", "samples=11", "repeats=1"],
    "collectives": ["parameters=5000", "clients=4", "repeats=1"],
    "cohort": ["clients=6", "samples=11", "participants=3", "rounds=1"],
    "scaling": ["model=mlp", "shape=digits", "clients=3", "samples=11", "repeats=1"],
    "clustering": ["width=20", "k=3", "largest=1000"],
    "similarity": ["model=mlp", "components=5", "largest=100", "repeats=1"],
    "clients": ["few=3", "many=9", "participants=2", "model=mlp", "shape=digits", "repeats=1"],
    "traffic": ["models=cnn4"],
    "exactness": ["model=mlp", "shape=digits", "clients=3", "samples=11", "pairs=1"],
    "reading": ["model=mlp", "shape=digits", "clients=3", "samples=11", "repeats=1"],
    "training": ["model=mlp", "shape=mnist", "clients=3", "samples=11", "repeats=1"]}


def test_every_benchmark_is_tried_here():
    assert set(SMALL) == set(command.NAMES)


@pytest.mark.slow("every benchmark")
@pytest.mark.parametrize("name", SMALL)
def test_figures_table_and_picture(name, tmp_path, capsys):
    assert command.run_benchmark(name, SMALL[name], str(tmp_path / "f.json"), str(tmp_path / "f.png")) == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["benchmark"] == name and found["rows"]
    # so few samples are hashed within one tick of the processor's clock
    assert found["ratio"] > 0 or name == "reading"
    assert f"ratio (median) {found['ratio']:.4g}" in capsys.readouterr().out
    assert image.imread(tmp_path / "f.png").size


def test_the_engines_agree():
    found = command.find_benchmark("engines", SMALL["engines"])
    from fedmpi.comm.transport import Solo
    assert found[0](Solo(), **found[1])["largest_difference"] < 1e-5


def test_both_ways_of_summing_are_measured_on_what_clients_sent():
    from benchmarks.rig import Rig
    from benchmarks.synthetic import SHAPES, Synthetic
    from fedmpi.comm.transport import Solo
    ends = []
    for how in ("exact", "float32"):
        rig = Rig(Solo(), Synthetic(*SHAPES["digits"], np.full(3, 11)), {"server": {"reduce": how}})
        rig.round(1)
        ends.append(rig.shared.w)
        np.testing.assert_array_equal(rig._served().w, rig.shared.w)      # the same updates give the same state again
    np.testing.assert_allclose(*ends, atol=1e-6)
    assert (ends[0] != ends[1]).any()      # float32 rounds more


def test_ranks_share_a_benchmark(tmp_path):
    done = forked.run(3, "benchmarks", "scaling", *SMALL["scaling"])
    assert done.returncode == 0 and "workers 2, ranks 3" in done.stdout, done.stderr


@pytest.mark.parametrize("name, settings, message", [
    ("speed", [], "benchmark 'speed' is not known; the benchmarks are overhead, engines"),
    ("overhead", ["client=3"], "'client' is not a setting of the benchmark overhead; its settings are model=cnn4"),
    ("overhead", ["clients=many"], "clients = many: should be of type int, as the default 20 is")])
def test_bad_input(name, settings, message, capsys):
    assert command.run_benchmark(name, settings, None, None) == 2
    assert message in capsys.readouterr().err
