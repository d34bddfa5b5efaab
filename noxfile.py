"""The environments in which the suite and its checks run, see docs/environments.md.

`nox -s NAME -- WORDS` runs one of them, with other words for pytest than those below."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False      # a session without its Python is skipped by name

# What meets the libraries: tensors, arrays, files, MPI, figures, and the command as a whole.
WITH_LIBRARIES = [
    *(f"tests/{room}" for room in ("clients", "clustering", "comm", "config", "data", "engines", "methods", "models",
                                   "report", "server", "storage")), "tests/test_run.py"]
# More ranks than cores, as root, not bound to cores. Version 5 reads other names than version 4.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
# Tests that start ranks with the launcher, and that find, stop or kill them.
WITH_RANKS = ("tests/comm", "tests/test_run.py", "tests/test_interrupted.py", "tests/test_ranks.py",
              "tests/test_kills.py", "tests/commands/test_doctor.py")


def find_python(version: str) -> str:
    """Return a Python that starts: from PATH, or pyenv's behind its shims; else the bare name, which nox will miss."""
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for path in (shutil.which(f"python{version}"), *sorted(own.glob(f"{version}.*/bin/python"), reverse=True)):
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return str(path)
    return f"python{version}"


def run_tests(session, *words: str, **environment: str) -> None:
    session.run("python", "-m", "pytest", *(session.posargs or words), env={"OMP_NUM_THREADS": "1"} | environment)


@nox.session
def lint(session):
    """Ruff, with the rules in pyproject.toml."""
    session.install("ruff>=0.9")
    session.run("ruff", "check", ".")


@nox.session
def types(session):
    """Mypy on the package; torch, NumPy and the like count as untyped, so they need not be installed."""
    session.install("mypy>=1.13", "pydantic>=2.7", "typer>=0.16", "rich>=13", "jinja2>=3.1", "types-PyYAML")
    session.run("mypy", *session.posargs)


@nox.session
def tests(session):
    """The whole suite with the newest versions of everything."""
    session.install(".[test]")
    run_tests(session)


@nox.session(python=find_python("3.13"))
def py313(session):
    """The whole suite under Python 3.13."""
    session.install(".[test]")
    run_tests(session)


@nox.session(python=find_python("3.11"))
def oldest(session):
    """What touches the libraries, with the lowest versions that setup.cfg admits: tests/oldest.txt."""
    session.install("-c", "tests/oldest.txt", "mpich")
    # There are no wheels of this mpi4py. It is built without optimization, which would take minutes, and kept in no
    # cache, because the MPI library's path is in it.
    session.install("--no-cache-dir", "-c", "tests/oldest.txt", "mpi4py",
                    env={"MPICC": str(Path(session.bin, "mpicc")), "CFLAGS": "-O0 -g0"})
    session.install("-c", "tests/oldest.txt", ".[test]")
    run_tests(session, "-m", "not slow", *WITH_LIBRARIES)


@nox.session
def openmpi(session):
    """Tests that start ranks, under the Open MPI of this machine."""
    launcher = shutil.which("mpiexec.openmpi") or shutil.which("mpiexec")
    if launcher is None or "Open MPI" not in session.run(launcher, "--version", external=True, silent=True, log=False):
        session.skip("there is no Open MPI here: apt-get install openmpi-bin libopenmpi-dev")
    session.install(".[test]")
    session.run("pip", "uninstall", "--yes", "mpich")      # mpi4py's wheel takes the library that it finds
    beside = Path(session.bin, "mpiexec")                  # where the tests look first
    beside.write_text(f'#!/bin/sh\nexec {Path(launcher).name} "$@"\n')      # by name: a path would move its prefix
    beside.chmod(0o755)
    library = session.run("python", "-c", "from mpi4py import MPI; print(MPI.Get_library_version())", silent=True)
    if "Open MPI" not in library:
        session.error(f"mpi4py uses {library}")
    run_tests(session, *WITH_RANKS, **OPEN_MPI)
