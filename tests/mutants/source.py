"""A Python file as text with positions: spans of nodes and of definitions."""
from __future__ import annotations

import ast
from functools import cached_property


class Source:
    """The text of one file. Offsets count bytes of UTF-8, as the columns of `ast` do."""

    def __init__(self, whole: str):
        self.whole, self.data = whole, whole.encode()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.whole)

    @cached_property
    def starts(self) -> list[int]:
        """Return the offset of each line's first byte."""
        starts = [0]
        for line in self.data.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    def span(self, node) -> tuple[int, int]:
        return (self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset)

    def text(self, node) -> str:
        begin, end = self.span(node)
        return self.data[begin:end].decode()

    def replace(self, begin: int, end: int, new: str) -> str:
        return (self.data[:begin] + new.encode() + self.data[end:]).decode()

    def line(self, number: int) -> str:
        return self.whole.splitlines()[number - 1].strip()

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        """Return every class and function by its dotted name; of several with one name the first."""
        found = {}

        def walk(body, prefix):
            for node in body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    found.setdefault(prefix + node.name, node)
                    walk(node.body, f"{prefix}{node.name}.")
                else:      # a definition may stand under `if` or `try`
                    walk([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)], prefix)
        walk(self.tree.body, "")
        return found

    def segment(self, name: str) -> tuple[int, int]:
        """Return the span of a definition, including its decorators; without a name, of the whole file."""
        if not name:
            return 0, len(self.data)
        node = self.definitions[name]
        first = min([node, *node.decorator_list], key=lambda n: n.lineno)
        return self.starts[first.lineno - 1], self.span(node)[1]

    @cached_property
    def functions(self) -> list[tuple[int, int, int]]:
        """Return (first line, first line of the body, last line) of every function and lambda, outer ones first."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((node.lineno, node.body[0].lineno, node.end_lineno))
        return sorted(found)
