"""One file touches what PyTorch does not promise; the search for such names finds those that are planted."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

PACKAGE = Path(__file__).parent.parent / "fedmpi"
ALLOWED = PACKAGE / "torch_compat.py"

# Names of PyTorch's objects with a single underscore, and public names that are undocumented or deprecated.
def private_names(*things: object) -> set[str]:
    return {name for thing in things for name in dir(thing) if is_private(name)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


OF_MODULES = private_names(nn.Module(), torch.Tensor)
PRIVATE = OF_MODULES | private_names(torch, torch.cuda, nn.functional, torch.autograd, torch.func, torch.fx)
UNPROMISED = {"default_generator", "allow_tf32"}


def chain(node: ast.AST) -> list[str]:
    """Return a dotted name's parts; [] for another expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    inner = chain(node.value) if isinstance(node, ast.Attribute) else []
    return [*inner, node.attr] if inner else []


def find_unpromised(text: str) -> list[str]:
    """Return what a file takes from PyTorch beyond its promises."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found += [f"{node.module}.{alias.name}" for alias in node.names
                      if any(map(is_private, f"{node.module}.{alias.name}".split(".")))]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] == "torch"
                      and any(map(is_private, alias.name.split(".")))]
        elif isinstance(node, ast.Attribute):
            parts = chain(node)
            # an attribute of self may well be a name of ours
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            of_torch = parts[:1] == ["torch"] and is_private(node.attr)
            if of_torch or node.attr in (OF_MODULES if own else PRIVATE | UNPROMISED):
                found.append(node.attr)
            elif node.attr == "forward" and (not isinstance(node.ctx, ast.Load) or ast.unparse(node.value).startswith(
                    "type(")):
                # `forward` of an instance is replaced, or that of a class is read.
                found.append("forward")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            found += [str(a.value) for a in node.args[1:2] if isinstance(a, ast.Constant)
                      and (a.value in PRIVATE | UNPROMISED or a.value == "forward")]
    return found


def test_one_file_touches_what_pytorch_does_not_promise():
    files = [path for path in PACKAGE.rglob("*.py") if path != ALLOWED]
    assert len(files) > 100
    found = {str(path.relative_to(PACKAGE)): find_unpromised(path.read_text()) for path in files}
    assert {name: names for name, names in found.items() if names} == {}
    assert len(find_unpromised(ALLOWED.read_text())) >= 9


@pytest.mark.parametrize("text", [
    "from torch.utils._pytree import tree_map", "import torch._dynamo as dynamo", "from torch import _C",
    "from torch.nn.modules.batchnorm import _BatchNorm", "x._version", "torch._foreach_mul_([x], 2)",
    "layer._parameters['weight']", "self.module._modules.items()", "torch._C.anything", "torch.default_generator",
    "torch.backends.cudnn.allow_tf32 = True", "layer.forward = other", "del layer.forward",
    "type(layer).forward.__module__", "getattr(x, '_version')", "setattr(layer, 'forward', f)",
    "def f():\n    import torch.utils._python_dispatch"])
def test_what_is_planted_is_found(text):
    assert find_unpromised(text)


@pytest.mark.parametrize("text", [
    "from torch.func import vmap", "self._active = now", "state._replace(w=w)", "x.forward(y)", "super().forward(x)",
    "torch.nn.functional.linear(x, w)", "def forward(self, x):\n    return x"])
def test_what_is_promised_is_left_alone(text):
    assert not find_unpromised(text)
