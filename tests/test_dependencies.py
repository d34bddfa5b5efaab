"""Every package that the code imports is declared in setup.cfg, with the minimum that `nox -s oldest` installs."""
from __future__ import annotations

import ast
import configparser
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import fedmpi

ROOT = Path(__file__).parent.parent
# Distributions that have another name than the module that is imported. pydantic requires the one version of
# pydantic_core that belongs to it.
DISTRIBUTIONS = {"PIL": "pillow", "pydantic_core": "pydantic", "sklearn": "scikit-learn", "xdist": "pytest-xdist",
                 "mlflow": "mlflow-skinny",
                 "yaml": "pyyaml"}
OWN = {"fedmpi", "tests", "benchmarks"}
# These run in environments of their own, where the benchmark `cohort` starts the other frameworks.
PEERS = {"flwr", "pfl", "shape"}
# Extras that the extra `test` leaves out: flwr-datasets wants an old rich and so holds back another library; those of
# Weights & Biases and MLflow bring 150 MB of 50 packages.
APART = {"flwr-datasets", "wandb", "mlflow-skinny"}
# Declared packages that no file imports: MPI libraries and commands.
COMMANDS = {"ipykernel", "mpich", "mypy", "pre-commit", "pytest-xdist", "ruff", "setuptools", "tensorboard"}


def read_setup() -> configparser.ConfigParser:
    """Return what setup.cfg holds."""
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def read_requirements(text: str) -> dict[str, str]:
    """Return the minimum version of each distribution in a list of setup.cfg ("" if it has none)."""
    lines = [re.fullmatch(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?", line.strip()) for line in text.strip().splitlines()]
    return {line[1].lower(): line[2] or "" for line in lines}


@cache
def find_imports(folder: str) -> set[str]:
    """Return the distributions that the Python files of a folder, or one file, import, without the standard library."""
    place = ROOT / folder
    names = set()
    for path in [place] if place.is_file() else place.rglob("*.py"):
        names |= top_level_imports(path.read_text())
    return {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names - OWN - PEERS - sys.stdlib_module_names}


def top_level_imports(text: str) -> set[str]:
    """Return the first part of each absolute import of a Python source, wherever in the file it stands.

    `pytest.importorskip("NAME")` counts as an import."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
            names.add(node.args[0].value.partition(".")[0])
    return names


@pytest.fixture(scope="module")
def setup():
    return read_setup()


@pytest.fixture(scope="module")
def required(setup):
    return read_requirements(setup["options"]["install_requires"])


@pytest.fixture(scope="module")
def extras(setup):
    return {name: read_requirements(text) for name, text in setup["options.extras_require"].items()}


def test_the_package_imports_only_what_it_declares(required, extras):
    # Flower's partitioners are given a data set of the package that it is built on.
    users = ("medmnist", "export", "pandas", "parquet", "text", "flower", "wandb", "mlflow")
    optional = {"datasets"} | {name for extra in users for name in extras[extra]}
    assert find_imports("fedmpi") - set(required) == optional
    assert find_imports("benchmarks") <= set(required)


def test_the_tests_import_only_what_their_extra_declares(required, extras):
    assert find_imports("tests") <= set(required) | set(extras["test"]) | APART
    assert find_imports("noxfile.py") <= set(extras["dev"])


def test_nothing_is_declared_that_is_not_used(required, extras):
    used = find_imports("fedmpi") | find_imports("tests") | find_imports("noxfile.py") | COMMANDS
    assert set(required).union(*extras.values()) - used == set()


def test_an_import_is_found_wherever_it_stands():
    text = "import a.b\nif x:\n    from c.d import e\ndef f():\n    import g as h\n    from . import i\n"
    assert top_level_imports(text + "pytest.importorskip('y.z')\n") == {"a", "c", "g", "y"}


def test_the_oldest_environment_has_the_declared_minimums(required, extras):
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    # Users do not install these.
    tools = ("dev", "test")
    minimums = required | {k: v for name, extra in extras.items() if name not in tools for k, v in extra.items()}
    for name, minimum in minimums.items():
        if minimum:
            assert (pinned.get(name, "") + ".").startswith(minimum + "."), f"{name} >= {minimum} in setup.cfg"


def test_the_citation_names_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == fedmpi.__version__
