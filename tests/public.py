"""Find docstrings and types that public definitions of a package lack, for tests/test_public.py.

Public are classes and functions at the top of a module, and functions in these classes, whose names have no leading
underscore."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Lack(NamedTuple):
    """Something that a definition does not have."""
    module: str
    # the definition inside its module
    name: str
    # "a docstring", "the type of x", "the type of its result", "the argument x that its docstring describes"
    what: str

    def __str__(self):
        return f"{self.module}: {self.name} lacks {self.what}"


class Package:
    """The parsed modules of a package and the classes that they define."""

    def __init__(self, folder: Path):
        paths = sorted(folder.rglob("*.py"))
        self.modules = {name_module(path, folder.parent): ast.parse(path.read_text()) for path in paths}
        self.classes = {node.name: node for module in self.modules.values() for node in module.body
                        if isinstance(node, ast.ClassDef)}

    def find_lacks(self) -> list[Lack]:
        """Return everything that public definitions lack."""
        return [Lack(name, *lack) for name, module in self.modules.items() for lack in self.judge_module(module)]

    def judge_module(self, module: ast.Module) -> Iterator[tuple[str, str]]:
        """Yield (definition, what it lacks) for the module, its functions and its classes."""
        if not ast.get_docstring(module) and module.body:
            yield "the module", "a docstring"
        for node in filter(is_public, module.body):
            if isinstance(node, Function):
                yield from judge_function(node, node.name, ast.get_docstring(node) is not None, bound=False)
            elif isinstance(node, ast.ClassDef):
                yield from self.judge_class(node)

    def judge_class(self, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
        """Yield what a class and its public functions lack; a base class of the package may document a function."""
        if not (ast.get_docstring(node) or self.is_documented(node, None)):
            yield node.name, "a docstring"
        for function in node.body:
            if isinstance(function, Function) and (is_public(function) or function.name == "__init__"):
                documented = function.name == "__init__" or self.is_documented(node, function.name)
                yield from judge_function(function, f"{node.name}.{function.name}", documented, bound=True)

    def is_documented(self, node: ast.ClassDef, function: str | None) -> bool:
        """Say whether a class or one of its bases in this package has a docstring, or its function of that name."""
        own = [node] if function is None else [f for f in node.body if isinstance(f, Function) and f.name == function]
        bases = [self.classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in self.classes]
        return any(map(ast.get_docstring, own)) or any(
            self.is_documented(base, function) for base in bases if base is not node)


def judge_function(node: Function, name: str, documented: bool, bound: bool) -> Iterator[tuple[str, str]]:
    """Yield (name, what it lacks); `bound` functions have a first argument without a type, unless they are static."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    setter = any(decorator.endswith(".setter") for decorator in decorators)
    if not documented and not setter and "overload" not in decorators:
        yield name, "a docstring"
    arguments = [*node.args.posonlyargs, *node.args.args][bound and "staticmethod" not in decorators:]
    arguments += [*node.args.kwonlyargs, *filter(None, [node.args.vararg, node.args.kwarg])]
    yield from ((name, f"the type of {argument.arg}") for argument in arguments if argument.annotation is None)
    if node.returns is None and node.name != "__init__":
        yield name, "the type of its result"
    described = list_described(ast.get_docstring(node) or "")
    yield from ((name, f"the argument {word} that its docstring describes") for word in described
                if word.lstrip("*") not in {argument.arg for argument in arguments})


def list_described(docstring: str) -> list[str]:
    """Return what stands before the colons of the section "Args:", one for each argument."""
    section = re.search(r"^Args:\n((?:[ ]+.*(?:\n|$)|\n)+)", docstring, re.MULTILINE)
    return re.findall(r"^ {4}(\S[^:\n]*):", section[1], re.MULTILINE) if section else []


def is_public(node: ast.AST) -> bool:
    """Say whether a definition is public; what is not a definition is not."""
    return isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")


def name_module(path: Path, root: Path) -> str:
    """Return the dotted name of a file below `root`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
