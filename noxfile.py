"""The environments in which the suite and its checks run; docs/environments.md explains them.

`nox -s NAME -- WORDS` runs one of them and hands WORDS to pytest in place of the session's own words."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False      # a session whose Python is missing is skipped

# The packages whose code calls other libraries: tensors, arrays, files, MPI, figures, and the command as a whole.
WITH_LIBRARIES = [
    *(f"tests/{package}" for package in ("clients", "clustering", "comm", "config", "data", "engines", "models",
                                         "report", "storage")), "tests/test_run.py"]
# The slow tests of these packages are those of many methods: they call nothing of the libraries that the others do not.
WITHOUT_SLOW = ["-m", "not slow", "tests/methods", "tests/server"]
# Let Open MPI run as root, start more ranks than there are cores and bind none to a core. Versions 4 and 5 read
# different names.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
# Tests that start ranks with the launcher, and those that find, stop or kill ranks.
WITH_RANKS = ("tests/comm", "tests/test_run.py", "tests/test_interrupted.py", "tests/test_ranks.py",
              "tests/test_kills.py", "tests/commands/test_doctor.py")


def find_python(version: str) -> str:
    """Return a Python of this version that starts, from PATH or from pyenv.

    If there is none, return the bare name, which nox then reports as missing."""
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for path in (shutil.which(f"python{version}"), *sorted(own.glob(f"{version}.*/bin/python"), reverse=True)):
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return str(path)
    return f"python{version}"


def run_tests(session: nox.Session, *words: str, **environment: str) -> None:
    """Run pytest with the words behind `--`, or with `words` if there are none."""
    session.run("python", "-m", "pytest", *(session.posargs or words), env={"OMP_NUM_THREADS": "1"} | environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, with the rules in pyproject.toml."""
    session.install("ruff>=0.9")
    session.run("ruff", "check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy on the package, and on what users write: the Python files of the documentation's pages and of the extension.

    Torch, NumPy and the like count as untyped, so they need not be installed."""
    session.install("mypy>=1.13", "pydantic>=2.7", "typer>=0.16", "rich>=13", "jinja2>=3.1", "types-PyYAML")
    session.run("mypy", *session.posargs)
    examples = Path(session.create_tmp(), "examples")
    session.run("python", "-m", "tests.docs.examples", str(examples))
    session.run("mypy", str(examples), "tests/extension/package/fedmpi_rings.py", env={"MYPYPATH": str(Path.cwd())})


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site, in build/site; a broken link, a forgotten page or a faulty docstring is an error.

    The pages are made from sources and docstrings, so the package and PyTorch need not be installed."""
    session.install("mkdocs>=1.6", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.27", "ruff>=0.9")
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite with the newest versions of all libraries."""
    session.install(".[test]")
    run_tests(session)


@nox.session
def quick(session: nox.Session) -> None:
    """What to run every day: the suite without the tests that are marked as slow."""
    session.install(".[test]")
    run_tests(session, "-m", "not slow")


@nox.session(python=find_python("3.13"))
def py313(session: nox.Session) -> None:
    """The whole suite under Python 3.13."""
    session.install(".[test]")
    run_tests(session)


@nox.session(python=find_python("3.11"))
def oldest(session: nox.Session) -> None:
    """The tests of code that calls other libraries, with the lowest versions that setup.cfg admits."""
    session.install("-c", "tests/oldest.txt", "mpich")
    # This mpi4py has no wheels, so pip builds it: without optimisation, which would take minutes, and outside the
    # cache, because the built files contain the path of the MPI library.
    session.install("--no-cache-dir", "-c", "tests/oldest.txt", "mpi4py",
                    env={"MPICC": str(Path(session.bin, "mpicc")), "CFLAGS": "-O0 -g0"})
    # The other packages of the extra `test` serve tests that do not run here, and have so many old versions that pip
    # looks for minutes for some that fit together.
    session.install("-c", "tests/oldest.txt", ".[export,pandas,parquet,text]", "hypothesis", "playwright", "pytest",
                    "pytest-xdist")
    run_tests(session, *WITH_LIBRARIES)
    if not session.posargs:
        run_tests(session, *WITHOUT_SLOW)


@nox.session
def trackers(session: nox.Session) -> None:
    """What `fedmpi wandb` and `fedmpi mlflow` write, read back by these libraries, offline.

    The extra `test` does not bring them: they are 150 MB with what they need."""
    session.install(".[test,wandb,mlflow]")
    run_tests(session, "tests/commands/test_trackers.py")


@nox.session
def openmpi(session: nox.Session) -> None:
    """The tests that start ranks, under the Open MPI of this machine."""
    launcher = shutil.which("mpiexec.openmpi") or shutil.which("mpiexec")
    version = session.run(launcher, "--version", external=True, silent=True, log=False) if launcher else ""
    # Version 4 gives the name of its runtime.
    if not ("Open MPI" in version or "OpenRTE" in version):
        session.skip("there is no Open MPI here: apt-get install openmpi-bin libopenmpi-dev")
    session.install(".[test]")
    # The wheel of mpi4py loads the first MPI library that it finds.
    session.run("pip", "uninstall", "--yes", "mpich")
    # The tests look for the launcher beside Python first. The script calls it by name, because Open MPI takes a path
    # for a different installation prefix.
    beside = Path(session.bin, "mpiexec")
    beside.write_text(f'#!/bin/sh\nexec {Path(launcher).name} "$@"\n')
    beside.chmod(0o755)
    library = session.run("python", "-c", "from mpi4py import MPI; print(MPI.Get_library_version())", silent=True)
    if "Open MPI" not in library:
        session.error(f"mpi4py uses {library}")
    run_tests(session, *WITH_RANKS, **OPEN_MPI)
