"""A separate package adds a method, networks, a data set and a partition, by entry points alone."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from tests import launch
from tests.runs import Bench

pytestmark = pytest.mark.slow("an installed package, and runs with it")

CONFIG = {"rounds": 4, "method": {"name": "damped", "eta": .8}, "model": {"name": "polar", "hidden": 12},
          "data": {"name": "rings", "clients": 6, "partition": "by_turns"}, "train": {"lr": .3, "epochs": 5}}
JOB = {"title": "rings", "config": "rings.yaml", "measure": "accuracy_mean",
       "rows": {"damped": "damped", "FedAvg": "fedavg"},
       "columns": {"rings": {}}, "seeds": [0]}


@pytest.fixture(scope="module")
def rings(tmp_path_factory, cache):
    """A folder with a configuration, and the package installed for this process and those that it starts."""
    folder = tmp_path_factory.mktemp("rings")
    source, target = folder / "source", str(folder / "site")
    # Building leaves files beside the source.
    shutil.copytree(Path(__file__).parent / "package", source)
    offline = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", target, source], check=True,
                   timeout=launch.LIMIT)
    bench = Bench(folder, cache)
    bench.config = bench.write("rings.yaml", CONFIG | {"data": CONFIG["data"] | {"cache": str(cache)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        patch.setitem(launch.ENVIRONMENT, "PYTHONPATH", f"{target}{os.pathsep}{launch.ROOT}")
        patch.setenv("COLUMNS", "120")
        yield bench
    sys.modules.pop("fedmpi_rings", None)


def fedmpi(*words) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow("installs a package")
def test_its_method_network_data_and_partition_run_on_any_number_of_ranks(rings):
    done = rings.run(3, "three")
    assert done.returncode == 0 and "Damped FedAvg eta=0.8 on rings, 6 clients" in done.stdout, done.stderr
    assert rings.lead("one", "rounds=2") == rings.lead("one", resume="auto") == 0
    assert rings.result("one")["digest"] == rings.result("three")["digest"]
    assert rings.result("one")["accuracy_mean"] > .5


def test_its_plain_module_is_a_network_by_name(rings):
    plain = "model={name: plain_net, width: 5}"
    assert rings.lead("plain", plain, "rounds=1") == rings.lead("plain", plain, resume="auto") == 0
    assert rings.result("plain")["rounds"] == 4


@pytest.mark.parametrize("kind, name, says", [
    ("methods", "damped", "FedAvg whose server goes only a part of the way"),
    ("models", "polar", "width of the hidden layer"), ("models", "plain_net", "knows nothing of fedmpi"),
    ("datasets", "rings", "noisy rings"), ("partitions", "by_turns", "in turn")])
def test_the_catalogue_lists_and_explains_them(rings, kind, name, says):
    assert name in [line.split()[0] for line in fedmpi(kind).splitlines() if line.split()]
    assert says in " ".join(fedmpi(kind, name).split())


def test_a_job_names_them(rings):
    job = rings.folder / "job.yaml"
    job.write_text(json.dumps(JOB))
    printed = " ".join(fedmpi("sweep", job, "--dry-run", "--rate", "1000").split())
    assert "method=damped" in printed and "method=fedavg" in printed
