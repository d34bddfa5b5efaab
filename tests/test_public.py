"""Every public class and function of the package has a docstring, and every public function has types."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.public import Lack, Package

ROOT = Path(__file__).parent.parent


@pytest.fixture
def judge(tmp_path):
    """Make `judge(text)` return what the definitions of a module with this text lack."""
    def judge(text: str) -> list[Lack]:
        folder = tmp_path / "package"
        folder.mkdir(exist_ok=True)
        (folder / "module.py").write_text(f'"""A module."""\n{text}')
        return Package(folder).find_lacks()
    return judge


def test_everything_public_has_a_docstring_and_types():
    lacks = Package(ROOT / "fedmpi").find_lacks()
    assert not lacks, "\n".join(map(str, lacks))


@pytest.mark.parametrize("text, wanted", [
    ("def f(a: int) -> int:\n    'Return a.'", []),
    ("def f(a: int) -> int:\n    return a", [("f", "a docstring")]),
    ("def f(a, *, b=1, **c) -> int:\n    'Return a.'",
     [("f", "the type of a"), ("f", "the type of b"), ("f", "the type of c")]),
    ("def f(a: int):\n    'Return a.'", [("f", "the type of its result")]),
    ("def _f(a):\n    def g(b): ...", []),
    ("class A:\n    'An A.'\n    def __init__(self, x): ...\n    def __len__(self): ...",
     [("A.__init__", "the type of x")]),
    ("class A:\n    def f(self) -> None: ...", [("A", "a docstring"), ("A.f", "a docstring")]),
    ("def f(a: int, *b: int) -> int:\n    \"\"\"Add.\n\n    Args:\n        a: one: a summand\n            of b: many.\n"
     "        *b: others.\n\n    Raises:\n        ValueError: never.\"\"\"", []),
    ("def f(a: int, b: int) -> int:\n    \"\"\"Add.\n\n    Args:\n        a, b: two.\n        c: one.\"\"\"",
     [("f", "the argument a, b that its docstring describes"), ("f", "the argument c that its docstring describes")]),
    ("class A:\n    'An A.'\n    @staticmethod\n    def f(x) -> None:\n        'Do.'", [("A.f", "the type of x")])])
def test_what_is_missing_is_named(judge, text, wanted):
    assert [(lack.name, lack.what) for lack in judge(text)] == wanted


def test_a_base_class_documents_what_is_overridden_but_gives_no_types(judge):
    base = "class A:\n    'An A.'\n    def f(self, x: int) -> int:\n        'Return x.'\n"
    assert judge(base + "class B(A):\n    def f(self, x: int) -> int:\n        return 2 * x\n") == []
    assert judge(base + "class B(A):\n    def f(self, x) -> int:\n        return 2 * x\n") == [
        ("package.module", "B.f", "the type of x")]
    assert judge(base + "class B(A):\n    def g(self) -> int:\n        return 2\n") == [
        ("package.module", "B.g", "a docstring")]
