"""Guard the speed without a clock: training, sums, evaluation and orders do no more work than they did.

| figure    | may differ by | what raises it |
|-----------|---------------|----------------|
| operators | 0             | a line of fedmpi that asks PyTorch for one more operator |
| bytes     | 0             | a copy, a temporary tensor |
| read      | 0             | .item(), float(t), bool(t), which would wait for a GPU |
| calls     | 5 %           | Python: a loop, a helper, one more object in each step |

If a change is meant to do more or less work, `python -m tests.work` prints TABLE anew; say in the commit why."""
from __future__ import annotations

import inspect
import textwrap

import pytest

from fedmpi.engines import step
from tests.work import Work, alike, cases, count

TABLE = {
    "loop: mlp": Work(106, 106480, 0, 918),
    "loop: cnn": Work(131, 104240, 0, 1054),
    "loop: mlp, momentum and pulls": Work(307, 523864, 0, 1082),
    "vmap: mlp": Work(397, 308828, 0, 1155),
    "vmap: mlp, momentum and pulls": Work(542, 726216, 0, 1242),
    "sum: 8 clients": Work(72, 48568, 9, 207),
    "evaluated: 1 client": Work(5, 576, 1, 67),
    "evaluated: 8 clients": Work(40, 4608, 8, 904),
    "trained: 8 clients": Work(158, 129568, 8, 2083),
    "order: touched": Work(0, 0, 0, 29),
    "order: a sum": Work(65, 408, 9, 160),
    "order: 8 rows": Work(67, 106488, 8, 112),
}
# Share of the calls: those that NumPy makes for fedmpi differ a little from version to version.
NEAR = .05


@pytest.fixture(scope="module")
def counted():
    """Return a function that counts the case of a name."""
    with alike():
        every = cases()
        yield lambda name: count(every[name])[0]


def differs(found: Work, expected: Work) -> list[str]:
    """Return the names of the figures that are not as expected."""
    exactly = [name for name in ("operators", "bytes", "read") if getattr(found, name) != getattr(expected, name)]
    return exactly + ["calls"] * (abs(found.calls - expected.calls) > NEAR * expected.calls)


@pytest.mark.parametrize("name", TABLE)
def test_it_is_as_much_work_as_it_was(name, counted):
    found = counted(name)
    assert not differs(found, TABLE[name]), f"{found}; see the head of this file"


PLANTED = {
    "a copy": ("now.weights.clone()", ["operators", "bytes"]),
    "a look": ("bool(now.weights.any())", ["operators", "bytes", "read", "calls"]),
    "a trip to the host": (
        "now.weights.copy_(torch.tensor(now.weights.tolist()))", ["operators", "bytes", "calls"]),
    "a loop": ("for _ in range(9): len(now.weights.shape)", ["calls"])}


@pytest.mark.parametrize("name", PLANTED)
def test_needless_work_in_a_step_is_noticed(name, counted, monkeypatch):
    """Work that is planted into the step is reported, and nothing else is."""
    line, expected = PLANTED[name]
    source = textwrap.dedent(inspect.getsource(step.Step.take))
    assert source.count("    if options.clip:\n") == 1
    space = dict(vars(step))
    planted = source.replace("    if options.clip:\n", f"    {line}\n    if options.clip:\n")
    exec(compile("from __future__ import annotations\n" + planted, step.__file__, "exec"), space)
    monkeypatch.setattr(step.Step, "take", space["take"])
    found = differs(counted("loop: mlp"), TABLE["loop: mlp"])
    assert set(expected) <= set(found) | {"calls"} and set(found) <= {*expected, "calls"}, found
    assert ("read" in found) == ("read" in expected)
    monkeypatch.undo()
    assert not differs(counted("loop: mlp"), TABLE["loop: mlp"])
