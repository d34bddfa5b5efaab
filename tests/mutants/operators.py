"""The mechanical mutants of a file: what can be changed where, and into what."""
from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache

from tests.mutants.source import Source

COMPARE = {ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",),
           ast.NotEq: ("==",), ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",)}
TOKEN = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
         ast.NotIn: r"not\s+in", ast.Is: "is", ast.IsNot: r"is\s+not", ast.And: "and", ast.Or: "or", ast.Add: r"\+",
         ast.Sub: "-", ast.Mult: r"\*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: r"\*\*",
         ast.BitAnd: "&", ast.BitOr: r"\|", ast.LShift: "<<", ast.RShift: ">>"}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "*", ast.Pow: "*",
              ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<"}
# Keyword arguments that do not change what a program does: checks, buffers, speed, decoration.
IDLE = {"strict", "flush", "stacklevel", "frozen", "slots", "repr", "kw_only", "non_blocking", "daemon", "help",
        "description", "title", "pin_memory", "rich_help_panel", "show_default"}
# Functions for which the order of positional arguments does not matter, or that only print.
SYMMETRIC = {"min", "max", "print", "isinstance", "issubclass", "gcd", "maximum", "minimum", "equal", "array_equal",
             "allclose", "add", "mul", "union", "logical_and", "logical_or", "echo"}
# Functions whose texts are only for debuggers.
SILENT = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Site:
    """One change: the text between two offsets (of the file's bytes) becomes `new`."""
    # from the root of the tree, such as fedmpi/session.py
    path: str
    line: int
    begin: int
    end: int
    new: str
    operator: str
    # the definition around it, such as Run.enter, or ""
    scope: str


@cache
def find_sites(path: str, text: str) -> list[Site]:
    """List all changes that the operators know for a file, in the order of the text."""
    finder = Finder(path, Source(text))
    finder.visit(finder.source.tree)
    return sorted(finder.found, key=lambda site: (site.begin, site.end, site.operator, site.new))


def is_text(node) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


class Finder(ast.NodeVisitor):
    """Walks a module; `visit_X` adds the changes of a node of kind X and goes on below it."""

    def __init__(self, path: str, source: Source):
        self.path, self.source, self.found = path, source, []
        # the definitions around the node
        self.scope: list[ast.AST] = []
        # names that have a value, per function around the node
        self.known: list[set[str]] = [set()]

    def add(self, operator: str, node, begin: int, end: int, new: str):
        """Add a change, unless it would move later lines."""
        old = self.source.data[begin:end].decode()
        new += "\n" * (old.count("\n") - new.count("\n"))
        if new.count("\n") == old.count("\n") and new != old:
            line = self.source.data.count(b"\n", 0, begin) + 1
            scope = ".".join(d.name for d in self.scope)
            self.found.append(Site(self.path, line, begin, end, new, operator, scope))

    def swap(self, operator: str, node, new: str):
        self.add(operator, node, *self.source.span(node), new)

    def inside(self) -> bool:
        return any(isinstance(d, ast.FunctionDef | ast.AsyncFunctionDef) for d in self.scope)

    # what is left alone

    def visit_JoinedStr(self, node):
        """Change nothing in f-strings: people read them, and before Python 3.12 their parts have wrong positions."""

    def visit_Import(self, node):
        pass

    visit_ImportFrom = visit_Import

    def visit_AnnAssign(self, node):
        self.visit(node.target)
        if node.value:
            self.visit(node.value)
        self.learn(node.target)

    # definitions

    def visit_ClassDef(self, node):
        self.scope.append(node)
        for child in node.body:
            self.visit(child)
        self.scope.pop()

    def visit_FunctionDef(self, node):
        if node.name in SILENT:
            return
        self.scope.append(node)
        arguments = node.args
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self.visit(default)
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.known.append({a.arg for a in every})
        for child in node.body:
            self.visit(child)
        self.known.pop()
        self.scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    # expressions

    def token(self, operator: str, kind, left, right, news):
        """Replace the operator between two operands."""
        begin, end = self.source.span(left)[1], self.source.span(right)[0]
        gap = self.source.data[begin:end].decode()
        match = re.search(TOKEN[kind], gap)
        if match and "#" not in gap:
            first = begin + len(gap[:match.start()].encode())
            for new in news:
                self.add(operator, left, first, first + len(match.group().encode()), new)

    def visit_Compare(self, node):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.token("compare", type(op), left, right, COMPARE[type(op)])
            for side in (left, right):
                self.key(side)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        new = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.token("boolean", type(node.op), left, right, [new])
        self.generic_visit(node)

    def visit_BinOp(self, node):
        if type(node.op) in ARITHMETIC and not is_text(node.left) and not is_text(node.right):
            self.token("arithmetic", type(node.op), node.left, node.right, [ARITHMETIC[type(node.op)]])
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not | ast.USub):
            kind = "boolean" if isinstance(node.op, ast.Not) else "arithmetic"
            begin, end = self.source.span(node)
            rest = re.sub(r"^(not\b\s*|-\s*)", "", self.source.data[begin:end].decode())
            self.add(kind, node, begin, end, f"({rest})" if kind == "boolean" else rest)
        self.generic_visit(node)

    def visit_Constant(self, node):
        value = node.value
        if isinstance(value, bool):
            self.swap("constant", node, str(not value))
        elif isinstance(value, int):
            for new in (value + 1, value - 1) if value else (1,):
                self.swap("constant", node, f"{new}" if new >= 0 else f"({new})")
        elif isinstance(value, float):
            self.swap("constant", node, repr(value * 2 if value else 1.))

    def key(self, node):
        """Empty a text that is compared or looked up."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
            self.swap("key", node, '""')

    def visit_Subscript(self, node):
        self.key(node.slice)
        self.generic_visit(node)

    def visit_Dict(self, node):
        for key in node.keys:
            self.key(key)
        self.generic_visit(node)

    def shift(self, operator: str, node):
        """Add and subtract one; visit_Constant changes plain numbers."""
        if node is not None and not isinstance(node, ast.Constant) and not isinstance(node, ast.Starred):
            text = self.source.text(node)
            for change in (" + 1", " - 1"):
                self.swap(operator, node, f"({text}){change}")

    def visit_Slice(self, node):
        self.shift("slice", node.lower)
        self.shift("slice", node.upper)
        self.generic_visit(node)

    def visit_Call(self, node):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "range" and len(node.args) < 3:
            for argument in node.args:
                self.shift("range", argument)
        if name in ("get", "pop", "getattr", "setdefault"):
            for argument in node.args[:2]:
                self.key(argument)
        if name not in SYMMETRIC:
            for left, right in zip(node.args, node.args[1:], strict=False):
                self.exchange(left, right)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in IDLE:
                self.visit(keyword.value)

    def exchange(self, left, right):
        texts = [self.source.text(side) for side in (left, right)]
        if isinstance(left, ast.Starred) or isinstance(right, ast.Starred) or texts[0] == texts[1]:
            return
        begin, end = self.source.span(left)[0], self.source.span(right)[1]
        between = self.source.data[self.source.span(left)[1]:self.source.span(right)[0]].decode()
        # Skip arguments in their own parentheses, and generators.
        if re.fullmatch(r"\s*,\s*", between):
            self.add("swap", left, begin, end, texts[1] + between + texts[0])

    # statements

    def visit_If(self, node):
        text = self.source.text(node.test)
        if text == "TYPE_CHECKING":
            return
        self.swap("condition", node.test, f"not ({text})")
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_comprehension(self, node):
        for test in node.ifs:
            self.swap("condition", test, f"not ({self.source.text(test)})")
        self.generic_visit(node)

    def learn(self, target):
        self.known[-1] |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}

    def visit_For(self, node):
        self.learn(node.target)
        self.generic_visit(node)

    def drop(self, operator: str, node):
        if self.inside():
            self.swap(operator, node, "pass")

    def visit_Expr(self, node):
        if not is_text(node.value) and not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom):
            self.drop("drop", node)
        self.generic_visit(node)

    def visit_Assign(self, node):
        if any(isinstance(t, ast.Name) and t.id in ("__all__", "__slots__") for t in node.targets):
            return
        self.generic_visit(node)
        if all(self.replaceable(t) for t in node.targets):
            self.drop("drop", node)
        for target in node.targets:
            self.learn(target)

    def replaceable(self, target) -> bool:
        """Say whether the target already has a value; without one, any use of it would fail."""
        if isinstance(target, ast.Tuple):
            return all(self.replaceable(t) for t in target.elts)
        if isinstance(target, ast.Name):
            return target.id in self.known[-1]
        if isinstance(target, ast.Attribute):
            return len(re.findall(rf"\.{target.attr} (?:\S?=|:)", self.source.whole)) > 1
        return isinstance(target, ast.Subscript)

    def visit_AugAssign(self, node):
        if type(node.op) in ARITHMETIC and not is_text(node.value):
            self.token("arithmetic", type(node.op), node.target, node.value, [ARITHMETIC[type(node.op)]])
        self.drop("drop", node)
        self.generic_visit(node)

    def visit_Return(self, node):
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.swap("return", node.value, "None")
            self.visit(node.value)

    def visit_Raise(self, node):
        """Do not change the error's text, nor its numbers and names, which are mostly parts of the text."""
        self.drop("raise", node)

    def visit_Break(self, node):
        self.drop("loop", node)

    visit_Continue = visit_Break
