"""Personalised and clustered federated learning as an MPI application.

    import fedmpi
    result = fedmpi.run("configs/quickstart.yaml", rounds=20)

docs/python.md shows what there is. Names are loaded when they are first used, so that this import stays quick and
loads neither PyTorch nor MPI."""
from __future__ import annotations

from importlib import import_module

__version__ = "0.2.0"

# name -> the module that defines it
_HOMES = {
    "run": "python_api", "plan": "python_api", "sweep": "python_api", "load_result": "python_api",
    "list_methods": "python_api", "Result": "result", "Method": "method", "FedmpiError": "errors", "BadInput": "errors",
    "GivenUp": "errors"}
__all__ = [
    "BadInput", "FedmpiError", "GivenUp", "Method", "Result", "list_methods", "load_result", "plan", "run", "sweep"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmpi' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"fedmpi.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
