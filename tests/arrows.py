"""Find out which Python files of a folder import which others, and what their code calls, for test_architecture.py."""
from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Modules that execute what they read, and calls that do.
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"eval", "exec", "os.system", "os.popen", "torch.load", "yaml.unsafe_load", "yaml.full_load"}


class Arrow(NamedTuple):
    """An import, with full dotted names. What is imported may belong to the folder or to another package."""
    importer: str
    imported: str

    def __str__(self):
        return f"{self.importer} -> {self.imported}"


class Tree:
    """The modules of a package and their arrows. The package has the name of its folder."""

    def __init__(self, folder: Path):
        self.files = {dotted(path.relative_to(folder.parent)): path for path in sorted(folder.rglob("*.py"))}
        self.places = set(map(package_of, self.files))
        self.code = {name: parsed(path.read_text()) for name, path in self.files.items()}
        self.arrows = sorted({Arrow(name, self.nearest(found)) for name in self.files for found in self.named(name)})

    def named(self, module: str):
        """Yield every dotted name that a module imports anywhere in its code, also by importlib."""
        for node in self.code[module]:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                start = ".".join(filter(None, [self.above(module, node.level), node.module]))
                yield from (f"{start}.{alias.name}" for alias in node.names)
            elif called(node).endswith(("import_module", "__import__")):
                yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant))

    def above(self, module: str, level: int) -> str:
        """Return the package that the dots of `from ..a import b` mean."""
        parts = module.split(".")
        inside = self.files[module].name == "__init__.py"
        return ".".join(parts[:len(parts) - level + inside]) if level else ""

    def nearest(self, name: str) -> str:
        """Return the module of the tree that a name means or belongs to; a name from elsewhere stays as it is."""
        while name not in self.files and name.rpartition(".")[0] and package_of(name) in self.places:
            name = name.rpartition(".")[0]
        return name

    def of(self, *names: str) -> list[Arrow]:
        """Return the arrows to these modules or packages, or to modules inside them."""
        return [arrow for arrow in self.arrows if within(arrow.imported, names)]

    def climbing(self, floors: list[str]) -> list[Arrow]:
        """Return the arrows from a floor to a higher one. `floors` name modules and packages right below the root."""
        height = {name: floor for floor, names in enumerate(floors) for name in names.split()}
        return [arrow for arrow in self.arrows if package_of(arrow.importer) != package_of(arrow.imported)
                and height.get(package_of(arrow.importer), 0) <= height.get(package_of(arrow.imported), -1)]

    def packages(self) -> set[str]:
        """Return the modules and packages right below the root."""
        return self.places - {place for place in self.places if "." not in place}

    def circle(self) -> list[str]:
        """Return modules of which each imports the next one, and the last the first; [] if there are none."""
        after = {name: [a.imported for a in self.arrows if a.importer == name] for name in self.files}
        done: set[str] = set()

        def walk(path: list[str]) -> list[str]:
            for name in after.get(path[-1], ()):
                if name in path:
                    return path[path.index(name):]
                if name not in done and (found := walk([*path, name])):
                    return found
            done.add(path[-1])
            return []
        return next(filter(None, (walk([name]) for name in self.files if name not in done)), [])

    def dangers(self) -> list[str]:
        """Return the calls and imports that could execute what was read, or that let HDF5 lock files.

        On some parallel file systems a lock fails or hangs."""
        found = [str(arrow) for arrow in self.of(*UNSAFE)]
        for module, code in self.code.items():
            found += [f"{module}:{node.lineno} {ast.unparse(node)}" for node in code if dangerous(node)]
        return found


@cache
def parsed(text: str) -> list[ast.AST]:
    """Return the imports and calls of a file."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def dotted(path: Path) -> str:
    """Return the dotted name of a file."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(name: str) -> str:
    """Return the first two parts of a module's name."""
    return ".".join(name.split(".")[:2])


def within(name: str, places: tuple[str, ...]) -> bool:
    """Say whether a name is one of some modules and packages, or inside one of them."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def called(node: ast.AST) -> str:
    """Return the name of the function that a call calls, such as `eval` or `np.load`; "" if it has another form."""
    at = getattr(node, "func", None)
    if isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name):
        return f"{at.value.id}.{at.attr}"
    return at.id if isinstance(at, ast.Name) else ""


def dangerous(node: ast.AST) -> bool:
    """Say whether a call could execute what was read, or lets HDF5 lock files."""
    name = called(node)
    if not name:
        return False
    keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
    first, second = [*map(ast.unparse, node.args[:2]), "", ""][:2]
    return (name in CALLS
            or name == "yaml.load" and second != "Loader"      # loader.Loader, a SafeLoader
            or name == "np.load" and keywords.get("allow_pickle") != "False"
            # What is written to memory, or to a name that nobody else has, needs no lock.
            or name == "h5py.File" and keywords.get("locking") != "False" and first not in ("sink", "copy")
            or name.startswith("subprocess.") and keywords.get("shell", "False") != "False")
