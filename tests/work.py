"""Count work in place of time: what the lines of fedmpi ask of PyTorch, of C and of Python.

The counts do not depend on the machine or on its load, and hardly on versions: an operator counts if a line of fedmpi
asks for it, but not if PyTorch's own lines or its backward passes do. `python -m tests.work` prints the table of
test_work.py anew."""
from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedmpi
from fedmpi.comm import exact
from fedmpi.comm.order_performer import OrderPerformer
from fedmpi.comm.transport import Solo
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import Bench, plain, pull_momentum
from tests.federations import Digits, Lab, method, mlp

OURS = str(Path(fedmpi.__file__).parent)
BETWEEN = ("tests/work.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")
# Since Python 3.12 these are not functions any more.
SKIPPED = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Work(NamedTuple):
    """The counted work of a call."""
    # operators of PyTorch that a line of fedmpi asks for
    operators: int
    # bytes that these write into new memory: new tensors and copies, but not views and sums in place
    bytes: int
    # numbers that PyTorch hands to Python (.item(), float(t), bool(t)); each waits for a GPU
    read: int
    # calls of Python and C functions by fedmpi or in it
    calls: int


class Operators(TorchDispatchMode):
    """Counts operators by name, and their bytes, while it is active."""

    def __init__(self):
        super().__init__()
        self.names, self.bytes, self.read = Counter(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        self.read += name in ("_local_scalar_dense", "equal", "nonzero")
        if asked_by_us(sys._getframe(1)):
            known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            self.names[name] += 1
            self.bytes += sum(t.nbytes for t in tree_leaves(out) if isinstance(t, torch.Tensor)
                              and (name == "copy_" or t.untyped_storage()._cdata not in known))
        return out


def asked_by_us(frame) -> bool:
    """Say whether a line of fedmpi asked for an operator; the frames of the counting itself are skipped."""
    while frame.f_code.co_filename.endswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(OURS)


@contextmanager
def called(found: Counter):
    """Count calls of functions by fedmpi or in it."""
    def note(frame, event, function):
        if event == "c_call":
            if frame.f_code.co_filename.startswith(OURS):
                found[function.__name__] += 1
        elif event == "call" and frame.f_code.co_name not in SKIPPED:
            files = [f.f_code.co_filename for f in (frame, frame.f_back) if f]
            if any(name.startswith(OURS) for name in files):
                found[frame.f_code.co_name] += 1
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def count(function) -> tuple[Work, Counter, Counter]:
    """Return the work of a call, and its operators and calls by name. The first call, which fills caches, is free."""
    function()
    calls = Counter()
    with called(calls):
        function()
    with Operators() as operators:
        function()
    total = Work(sum(operators.names.values()), operators.bytes, operators.read, sum(calls.values()))
    return total, operators.names, calls


class Two(Solo):
    """Rank 0 of two ranks, of which the other hosts no client: everything is packed and nothing is sent."""
    size = 2


def training(engine, verb, image=False):
    """Return a function that trains five clients for two epochs, which are 22 steps."""
    bench = Bench(image=image)
    return lambda: bench.run(engine, verb)


def laboratory():
    """Return a laboratory that has trained one round of FedAvg."""
    lab = Lab(method("fedavg", mlp()), Digits(), world=Two())
    lab.train(0, evaluates=True)
    return lab


def order(lab, number, *arrays):
    """Return a function that gives an order."""
    return lambda: lab.pool.call(number, *arrays)


def cases() -> dict:
    """Return what is counted: functions without arguments, by name."""
    lab = laboratory()
    small, large = np.array([0, 0, 0, 10]), np.array([0, 0, 0, lab.method.model.size])
    return {
        "loop: mlp": training(Loop(), plain), "loop: cnn": training(Loop(), plain, image=True),
        "loop: mlp, momentum and pulls": training(Loop(), pull_momentum),
        "vmap: mlp": training(Vmap(), plain), "vmap: mlp, momentum and pulls": training(Vmap(), pull_momentum),
        "sum: 8 clients": lambda: lab.rows().w.mean(lab.federation.sizes),
        "evaluated: 1 client": lambda: lab.group.evaluator.measure_now(
            lab.shared.w, *lab.group.evaluator.get_samples(2)),
        "evaluated: 8 clients": lambda: lab.pool.evaluate(1, lab.shared),
        "trained: 8 clients": lambda: lab.train(0, evaluates=True),
        "order: touched": order(lab, OrderPerformer.gather_touched),
        "order: a sum": order(lab, OrderPerformer.sum_rows, small, np.full(8, .125)),
        "order: 8 rows": order(lab, OrderPerformer.gather_rows, large, np.empty(0, np.float32))}


@contextmanager
def alike():
    """Let all machines add up in the same way, whatever their processors and compilers do."""
    kept, exact.fuses_additions = exact.fuses_additions, lambda device: True
    try:
        yield
    finally:
        exact.fuses_additions = kept


def main():
    """Print the table of test_work.py."""
    with alike():
        for name, function in cases().items():
            found, operators, calls = count(function)
            print(f'    "{name}": Work{tuple(found)},')
            if "--names" in sys.argv:
                print(dict(operators), dict(calls))


if __name__ == "__main__":
    main()
