"""One name has one meaning: no two modules define the same name at module level, but for those that mean the same."""
from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fedmpi"

# What modules of one kind define under one name, and what all of them mean by it.
SHARED_MEANINGS = {
    "Shared": "the state of a method's server",
    "Mine": "the state of a method's clients",
    "Up": "what a method's clients send",
    "Message": "what a method's server addresses to a client",
    "BUILT_IN": "the classes of a kind that a configuration can name",
    "run": "train a federation: the command and the function of `import fedmpi`",
    "plan": "show what a run would take: the command and the function of `import fedmpi`",
    "sweep": "run all runs of a job: the command and the function of `import fedmpi`"}


def defined_names(source: str) -> set[str]:
    """Return the names that a module defines at its level; what it imports is defined elsewhere."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {part.id for target in getattr(node, "targets", [getattr(node, "target", None)])
                      for part in ast.walk(target) if isinstance(part, ast.Name)}
    return {name for name in found if not name.startswith("__")}


def repeated_names(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the names that several modules define, with these modules; `sources` holds the text of each module."""
    modules = defaultdict(list)
    for module, source in sorted(sources.items()):
        for name in defined_names(source):
            modules[name].append(module)
    return {name: found for name, found in modules.items() if len(found) > 1}


def test_a_name_has_one_meaning():
    found = repeated_names({str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")})
    assert {name: modules for name, modules in found.items() if name not in SHARED_MEANINGS} == {}
    # Otherwise the table lists a name that is no longer repeated.
    assert set(found) == set(SHARED_MEANINGS)


def test_a_second_meaning_is_seen():
    sources = {"a": "import os\nLIMIT, other = 1, 2\nclass Table: ...", "b": "from a import Table\nLIMIT: int = 3",
               "c": "def Table(): ...\nif os:\n    other = 4"}
    assert repeated_names(sources) == {"LIMIT": ["a", "b"], "Table": ["a", "c"]}
