"""Benchmarks run and return their figures, which are not checked, because tests do not judge speed."""
from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib import image

from benchmarks import command, plot
from benchmarks.clients import choose_evenly
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
# They need ranks beside the server's.
SEVERAL_RANKS = ("scaling", "collectives")
# those whose rows are repeats
MEDIANS = ("overhead", "engines", "collectives", "scaling", "clients", "exactness", "reading", "training")


def test_every_benchmark_is_tried_here():
    assert set(SMALL) == set(command.NAMES)


@pytest.mark.slow("every benchmark")
@pytest.mark.parametrize("name", SMALL)
def test_figures_table_and_picture(name, tmp_path, capsys):
    if name in SEVERAL_RANKS:
        done = forked.run(3, "benchmarks", name, *SMALL[name], "--json", str(tmp_path / "f.json"), "--plot",
                          str(tmp_path / "f.png"))
        code, said = done.returncode, done.stdout
    else:
        code = command.run_benchmark(name, SMALL[name], str(tmp_path / "f.json"), str(tmp_path / "f.png"))
        said = capsys.readouterr().out
    assert code == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["benchmark"] == name and found["rows"]
    # Hashing so few samples may take less than one tick of the processor's clock.
    assert found["ratio"] > 0 or name == "reading"
    assert f"{found['ratio']:.4g}" in said.partition("ratio (median) " if name in MEDIANS else "\nratio ")[2]
    assert found["machine"]["cores"] >= 1 and found["machine"]["torch"]
    assert image.imread(tmp_path / "f.png").size


@pytest.mark.parametrize("keys, axis", [
    (("sgd_seconds", "momentum_seconds", "adamw_seconds", "clip_seconds", "smoothing_seconds", "augment_seconds"),
     "seconds"), (("round_exact", "round_float32", "step_exact", "step_float32"), "CPU s")])
def test_a_picture_has_a_line_for_each_time(monkeypatch, tmp_path, keys, axis):
    from matplotlib import pyplot
    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    plot.plot({"benchmark": "b", "ratio": 1., "rows": [dict.fromkeys(keys, 1.) | {"ratio": 1.}]}
              | ({"unit": axis} if axis != "seconds" else {}), tmp_path / "f.png")
    left = drawn[0].axes[0]
    assert [line.get_label() for line in left.lines] == [key.replace("_", " ") for key in keys]
    assert left.get_ylabel() == axis


def test_participants_are_spread_evenly():
    homes = np.array([1, 1, 1, 1, 1, 2, 2, 3, 3, 3])
    chosen = choose_evenly(homes, 6)
    assert np.bincount(homes[chosen]).tolist() == [0, 2, 2, 2] and (np.diff(chosen) > 0).all()
    assert np.bincount(homes[choose_evenly(homes, 8)]).tolist() == [0, 3, 2, 3]


def test_a_method_that_sends_messages_has_its_rounds():
    from benchmarks.rig import Rig
    from benchmarks.synthetic import SHAPES, Synthetic
    from fedmpi.comm.transport import Solo
    rig = Rig(Solo(), Synthetic(*SHAPES["digits"], np.full(3, 11)), {"method": "fedamp"})
    assert rig.round(0) > 0 and rig.round(1) > 0


@pytest.mark.parametrize("words, said", [
    (["overhead", "clients=-1"], "clients = -1: should be from 1 to 1,000,000,000"),
    (["clustering", "largest=0"], "largest = 0: should be from 100 to"), (["scaling", "samples=0"], "samples = 0: "),
    (["collectives", "repeats=0"], "repeats = 0: should be from 1"),
    (["collectives", "parameters=-5"], "parameters = -5: should be from 1"),
    (["collectives", "parameters=999999999999"], "should be from 1 to 1,000,000,000"),
    (["overhead", "shape=x"], "shape = x: is not known; there are cifar100"),
    (["cohort", "engines=loop,graphs"], "engines = loop,graphs: 'graphs' is not known; there are loop, vmap"),
    (["scaling"], "scaling compares several workers with one, and beside rank 0 there are 0; start it with mpiexec"),
    (["collectives"], "collectives measures what ranks send each other, and there is one; start it with mpiexec"),
    (["clustering", "largest=900"], "largest = 900: it is compared with 100 clients; choose 1000 or more"),
    (["clients", "many=5", "participants=10"], "participants = 10: there are 5 clients; choose as many or fewer"),
    (["cohort", "clients=3"], "participants = 50: there are 3 clients"),
    (["training", "--json", "not/there"], "not/there: cannot be written"),
    (["training", "--plot", "x.zzz"], "--plot x.zzz: the name must end with .png, .svg, .pdf")])
def test_bad_settings_are_refused_before_anything_is_measured(words, said, capsys):
    from benchmarks.__main__ import main
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("benchmarks: ") and said in line


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
        # The same updates give the same state again.
        np.testing.assert_array_equal(rig._served().w, rig.shared.w)
    np.testing.assert_allclose(*ends, atol=1e-6)
    # Sums in float32 round more.
    assert (ends[0] != ends[1]).any()


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
