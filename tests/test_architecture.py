"""The separation of the package's parts: what each package may import, and what no file may do.

The names of modules come from the files. Other tests plant forbidden code, and check that it is noticed."""
from __future__ import annotations

import io
import re
import shutil
import tokenize
from pathlib import Path

import pytest

from tests.arrows import Arrow, Tree, within

ROOT = Path(__file__).parent.parent
# lines of a Python file
MAX_LINES = 300

# From the ground up. A module may import what is on a lower floor, or in its own package.
FLOORS = [
    "fedmpi.errors fedmpi.text fedmpi.hints fedmpi.json_values fedmpi.torch_compat fedmpi.stop_signals",
    "fedmpi.own_code fedmpi.context fedmpi.run_request fedmpi.task fedmpi.extras fedmpi.argument_names",
    "fedmpi.paths", "fedmpi.slurm fedmpi.shipped",
    "fedmpi.server_only", "fedmpi.settings fedmpi.registry fedmpi.comm fedmpi.clustering",
    "fedmpi.memory_check fedmpi.settings_table",
    "fedmpi.models", "fedmpi.client_data", "fedmpi.extended_state", "fedmpi.method",
    "fedmpi.faults fedmpi.edge fedmpi.participation",
    "fedmpi.config", "fedmpi.storage", "fedmpi.progress",
    "fedmpi.data", "fedmpi.engines", "fedmpi.clients", "fedmpi.ranks", "fedmpi.server", "fedmpi.methods",
    "fedmpi.warm_start", "fedmpi.assembly", "fedmpi.decision",
    "fedmpi.preparation", "fedmpi.session", "fedmpi.commands", "fedmpi.sweeps", "fedmpi.report",
    "fedmpi.process_state", "fedmpi.result", "fedmpi.python_api", "fedmpi.testing",
    "fedmpi.cli", "fedmpi.__main__"]

# Everything that a method may import: formulas, but no ranks, runs or files.
FOR_METHODS = {
    "fedmpi.clustering.kmeans_and_linkage", "fedmpi.clustering.low_rank", "fedmpi.errors", "fedmpi.extended_state",
    "fedmpi.method",
    "fedmpi.methods", "fedmpi.models.flat", "fedmpi.models.slices", "fedmpi.models.tables", "fedmpi.models.tail",
    "fedmpi.models.variational", "fedmpi.settings"}
LIBRARIES_FOR_METHODS = {
    "__future__", "collections", "dataclasses", "math", "numpy", "time", "torch", "typing"}
PICKLING = r"comm\.(send|recv|isend|irecv|bcast|reduce|allreduce|gather|scatter|allgather|alltoall)\("


@pytest.fixture(scope="module")
def tree():
    return Tree(ROOT / "fedmpi")


@pytest.fixture
def planted(tmp_path):
    """Make `planted(module, text)` copy some files of the package, add text to one, and return their Tree."""
    def planted(*additions: tuple[str, str]) -> Tree:
        for name in ("__init__", "errors", "cli", "engines/__init__", "engines/loop", "comm/__init__", "comm/mpi_world",
                     "comm/transport",
                     "config/__init__", "config/schema", "methods/__init__", "methods/local", "server/__init__",
                     "server/rounds", "storage/__init__", "storage/checkpoint"):
            path = tmp_path / "fedmpi" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "fedmpi" / f"{name}.py", path)
        for module, text in additions:
            with (tmp_path / "fedmpi" / f"{module}.py").open("a") as file:
                file.write(f"\n{text}\n")
        return Tree(tmp_path / "fedmpi")
    return planted


def beyond_methods(tree: Tree) -> list[str]:
    """Return the imports of methods that they should not have, and the files that they open."""
    arrows = [a for a in tree.arrows if within(a.importer, ("fedmpi.methods",)) and not within(
        a.imported, tuple(FOR_METHODS | LIBRARIES_FOR_METHODS))]
    return [str(arrow) for arrow in arrows if arrow != ("fedmpi.methods", "fedmpi")]


def test_dependencies_point_one_way(tree):
    assert tree.climbing(FLOORS) == []


def test_every_part_has_its_floor(tree):
    named = " ".join(FLOORS).split()
    assert sorted(named) == sorted(tree.packages())


def test_no_modules_import_each_other_in_a_circle(tree):
    assert tree.circle() == []


def test_one_file_imports_mpi(tree):
    assert {arrow.importer for arrow in tree.of("mpi4py")} == {"fedmpi.comm.mpi_world"}


def test_a_method_knows_nothing_of_ranks_runs_and_files(tree):
    assert beyond_methods(tree) == []
    used = {arrow.imported for arrow in tree.arrows if within(arrow.importer, ("fedmpi.methods",))}
    unused = {name for name in FOR_METHODS | LIBRARIES_FOR_METHODS if not any(within(u, (name,)) for u in used)}
    assert unused == set() and set(tree.files) >= FOR_METHODS


def test_the_package_does_without_the_rest_of_a_checkout(tree, planted):
    assert tree.of("benchmarks", "tests") == []
    up = planted(("config/schema", "def later():\n    from benchmarks.rig import Rig"))
    assert [*map(str, up.of("benchmarks"))] == ["fedmpi.config.schema -> benchmarks.rig.Rig"]


def test_nothing_but_the_entry_point_imports_the_command_line(tree):
    assert [arrow.importer for arrow in tree.of("fedmpi.cli")] == ["fedmpi.__main__"]


def test_nothing_is_executed_that_was_read(tree):
    assert tree.dangers() == []


@pytest.mark.parametrize("text", [
    "from fedmpi.server import rounds", "import fedmpi.server.rounds", "from fedmpi.server.rounds import Run",
    "def later():\n    from ..server.rounds import Run", "from importlib import import_module\n"
    "import_module('fedmpi.server.rounds')", "if TYPE_CHECKING:\n    import fedmpi.server.rounds as r"])
def test_an_import_that_runs_back_up_is_seen_however_it_is_written(planted, text):
    up = Arrow("fedmpi.engines.loop", "fedmpi.server.rounds")
    assert up not in planted().climbing(FLOORS)
    assert up in planted(("engines/loop", text)).climbing(FLOORS)


@pytest.mark.parametrize("importer, text, imported", [
    ("comm/transport", "from fedmpi.config import schema", "fedmpi.config.schema"),
    ("comm/transport", "import fedmpi.engines.loop", "fedmpi.engines.loop"),
    ("storage/checkpoint", "from fedmpi.server import rounds", "fedmpi.server.rounds"),
    ("storage/__init__", "from . import checkpoint\nfrom .. import cli", "fedmpi.cli"),
    ("errors", "from fedmpi.config import schema", "fedmpi.config.schema")])
def test_no_floor_may_look_up(planted, importer, text, imported):
    before = planted().climbing(FLOORS)
    new = [a for a in planted((importer, text)).climbing(FLOORS) if a not in before]
    assert new == [Arrow("fedmpi." + importer.replace("/", ".").removesuffix(".__init__"), imported)]


@pytest.mark.parametrize("text, seen", [
    ("from fedmpi.storage.checkpoint import read", "fedmpi.storage.checkpoint"),
    ("from fedmpi.server import rounds", "fedmpi.server.rounds"),
    ("from fedmpi.comm import transport", "fedmpi.comm.transport"), ("def peek():\n    import h5py", "h5py"),
    ("from pathlib import Path", "pathlib.Path"), ("import os.path", "os.path")])
def test_a_method_that_looks_beyond_its_formulas_is_seen(planted, text, seen):
    assert beyond_methods(planted()) == []
    assert beyond_methods(planted(("methods/local", text))) == [f"fedmpi.methods.local -> {seen}"]


def test_a_second_import_of_mpi_or_of_the_command_line_is_seen(planted):
    tree = planted(
        ("server/rounds", "def size():\n    from mpi4py import MPI"), ("config/schema", "from fedmpi import cli")
    )
    assert {arrow.importer for arrow in tree.of("mpi4py")} == {"fedmpi.comm.mpi_world", "fedmpi.server.rounds"}
    assert tree.of("fedmpi.cli") == [Arrow("fedmpi.config.schema", "fedmpi.cli")]


def test_a_circle_is_seen(planted):
    assert planted().circle() == []
    tree = planted(
        ("storage/checkpoint", "from fedmpi.config import schema"),
        ("config/schema", "import fedmpi.comm.transport"),
        ("comm/transport", "def f():\n    from fedmpi.storage import checkpoint"),
    )
    assert sorted(tree.circle()) == ["fedmpi.comm.transport", "fedmpi.config.schema", "fedmpi.storage.checkpoint"]


def test_a_part_without_a_floor_is_seen(planted, tree, tmp_path):
    (tmp_path / "fedmpi" / "attic").mkdir(parents=True)
    (tmp_path / "fedmpi" / "attic" / "box.py").write_text("import fedmpi.cli\n")
    assert planted().packages() - tree.packages() == {"fedmpi.attic"}


@pytest.mark.parametrize("text", [
    "import pickle", "from joblib import load", "eval('1')", "torch.load(path)", "np.load(path)",
    "yaml.full_load(text)", "np.load(path, allow_pickle=True)", "yaml.load(text, yaml.Loader)", "yaml.load(text)",
    "h5py.File(path)", "h5py.File(path, 'r', locking=True)", "subprocess.run(line, shell=True)"])
def test_what_could_execute_what_was_read_is_seen(planted, text):
    assert planted().dangers() == []
    found, = planted(("config/schema", text)).dangers()
    assert found.startswith("fedmpi.config.schema") and (text in found or "->" in found)


def test_the_yaml_loader_is_a_safe_one():
    import yaml

    from fedmpi.config.load import Loader
    assert issubclass(Loader, yaml.SafeLoader)
    with pytest.raises(yaml.YAMLError):
        yaml.load("!!python/object/apply:os.getcwd []", Loader)


def test_files_stay_short(tree):
    files = [*tree.files.values(), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    long = {str(path.relative_to(ROOT)) for path in files if len(path.read_text().splitlines()) > MAX_LINES}
    assert len(files) > 200 and long == set()


def test_no_lower_case_messages_through_mpi(tree):
    """The lower-case calls of mpi4py pickle; only the upper-case calls move buffers."""
    text = tree.files["fedmpi.comm.mpi_world"].read_text()
    assert "comm.Bcast(" in text and not re.search(PICKLING, text)
    assert re.search(PICKLING, text.replace("comm.Bcast(", "comm.bcast("))


def find_trailing_comments(text: str) -> list[str]:
    """Return the comments that stand behind code, without those that a linter reads."""
    lines = text.splitlines()
    found = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT]
    return [token.string for token in found if lines[token.start[0] - 1][:token.start[1]].strip()
            and not re.match("# (noqa|type):", token.string)]


def test_comments_stand_on_their_own_lines():
    assert find_trailing_comments("# a\nx = '# b'  # c\n  # d\ny = 1  # noqa: E501\n") == ["# c"]
    assert {path.name: found for path in (ROOT / "fedmpi").rglob("*.py")
            if (found := find_trailing_comments(path.read_text()))} == {}
