"""What keeps the parts apart: who may import whom, and what no file may do."""
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedmpi"
FILES = sorted(PACKAGE.rglob("*.py"))
METHODS = sorted((PACKAGE / "methods").glob("*.py"))
LINES = 300


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(path: Path) -> set[str]:
    """List every module that a file imports, also inside functions; `from a import b` counts as a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def calls(path: Path):
    """Yield (name, node) of every call, name as it is written (`np.load`, `eval`)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def uses(path: Path, module: str) -> bool:
    return any(i == module or i.startswith(module + ".") for i in imports(path))


def test_one_file_imports_mpi():
    assert [name(f) for f in FILES if uses(f, "mpi4py")] == ["comm/world.py"]


@pytest.mark.parametrize("path", METHODS, ids=name)
def test_a_method_knows_nothing_of_ranks_runs_and_files(path):
    for module in ("comm", "rounds", "setup", "run", "cli", "config", "folder", "checkpoint", "data"):
        assert not uses(path, f"fedmpi.{module}"), module
    assert not any(uses(path, module) for module in ("mpi4py", "h5py", "yaml", "os", "pathlib"))
    assert "fedmpi.clients.group" not in imports(path)


def test_nothing_but_the_entry_point_imports_the_command_line():
    assert {name(f) for f in FILES if uses(f, "fedmpi.cli")} <= {"__main__.py"}


@pytest.mark.parametrize("part", ["comm", "models", "methods", "clients"])
def test_the_parts_do_not_look_up(part):
    """Dependencies point one way: nothing below the rounds knows them."""
    for path in (PACKAGE / part).glob("*.py"):
        for above in ("rounds", "setup", "run", "cli", "plan"):
            assert not uses(path, f"fedmpi.{above}"), name(path)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_is_executed_that_was_read(path):
    assert not any(uses(path, m) for m in ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"))
    for called, node in calls(path):
        keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
        assert called not in ("eval", "exec", "os.system", "torch.load", "yaml.unsafe_load", "yaml.full_load")
        if called == "yaml.load":
            assert ast.unparse(node.args[1]) == "Loader"      # loader.Loader, a SafeLoader
        if called.endswith("np.load"):
            assert keywords.get("allow_pickle") == "False"
        if called == "h5py.File":      # file locks fail or hang on some parallel file systems
            assert keywords.get("locking") == "False" or ast.unparse(node.args[0]) in ("sink", "copy"), "set locking"
        if called.startswith("subprocess."):
            assert keywords.get("shell", "False") == "False"


def test_the_yaml_loader_is_a_safe_one():
    import yaml

    from fedmpi.loader import Loader
    assert issubclass(Loader, yaml.SafeLoader)
    with pytest.raises(yaml.YAMLError):
        yaml.load("!!python/object/apply:os.getcwd []", Loader)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= LINES


def test_no_lower_case_messages_through_mpi():
    """mpi4py's lower-case communication pickles; only its upper-case calls move buffers."""
    text = (PACKAGE / "comm" / "world.py").read_text()
    pickling = r"comm\.(send|recv|isend|irecv|bcast|reduce|allreduce|gather|scatter|allgather|alltoall)\("
    assert not re.search(pickling, text)
