"""The SGD step against its formula, for one vector, several clients at once, and a few rows of a table."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

from fedmpi.engines import step
from fedmpi.engines.batch_plan import LocalTraining
from fedmpi.engines.sparse_embedding import SparseRows
from fedmpi.engines.step import PullTerm, Step, StepOptions, StepSettings
from fedmpi.models.flat import Net

LOCAL = LocalTraining(seed=3, round=2, batch=10, epochs=2, steps=None, lr=.1, momentum=.3)
D, STEPS = 9, 4
BLOCK = slice(2, 7)
# Setting -> a value that changes the steps. A new setting of `descend` needs an entry, or a test fails.
VALUES = {"lr": .2, "momentum": .9, "pull": [(torch.ones(D), .5, None), (-torch.ones(5), .2, BLOCK)],
          "clip": (-.3, .4), "spread": True}


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_formula(w, gradients, options: StepOptions) -> torch.Tensor:
    """Take the steps of one vector (d,) in float64, as the docstring of step.py defines them."""
    w, v = w.double().clone(), torch.zeros(D, dtype=torch.float64)
    for g in gradients.double():
        total = g.clone()
        for centre, strength, block in options.pull:
            part = block or slice(None)
            total[part] += strength * (w[part] - centre)
        v = options.momentum * v + total
        w = w - options.lr * v
        if options.clip:
            w = w.clamp(*options.clip)
    return w


def taken(w, gradients, options: StepOptions):
    found = Step(w, lambda flat: [flat], options)
    for g in gradients:
        found.take([g])
    return found.result()


@pytest.mark.parametrize("momentum", [0., .9])
@pytest.mark.parametrize("clip", [None, (-.3, .4)])
@pytest.mark.parametrize("pulls", [0, 1, 2])
def test_a_step_is_the_formula(momentum, clip, pulls):
    options = StepOptions.from_settings(LOCAL, {"momentum": momentum, "clip": clip, "pull": VALUES["pull"][:pulls]})
    w, gradients = numbers(D), numbers(STEPS, D, seed=2)
    found = taken(w.clone(), gradients, options)
    torch.testing.assert_close(found.double(), by_formula(w, gradients, options), rtol=0, atol=1e-6)


@pytest.mark.parametrize("momentum", [0., .9])
def test_several_clients_at_once_are_each_alone(momentum):
    """Clients have their own strengths, and the last ones stop earlier."""
    w, gradients, centres = numbers(3, D), numbers(STEPS, 3, D, seed=2), numbers(3, 5, seed=3)
    strengths = torch.tensor([.1, .5, 2.])
    together = Step(w.clone(), lambda flat: [flat], StepOptions(.1, momentum, [PullTerm(centres, strengths, BLOCK)]))
    stops = (4, 4, 2)
    for t, k in enumerate((3, 3, 2, 2)):
        together.take([gradients[t, :k]], k)
    for c, stop in enumerate(stops):
        options = StepOptions(.1, momentum, [PullTerm(centres[c], float(strengths[c]), BLOCK)])
        alone = taken(w[c].clone(), gradients[:stop, c], options)
        torch.testing.assert_close(together.result()[c], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", StepSettings.__annotations__)
def test_every_setting_changes_what_is_returned(name):
    w, gradients = numbers(D), numbers(STEPS, D, seed=2)
    plain = StepOptions.from_settings(LOCAL, {})
    other = StepOptions.from_settings(LOCAL, {name: VALUES[name]})
    assert plain == StepOptions(.1, .3, [], None, False) and plain != other
    one, two = taken(w.clone(), gradients, plain), taken(w.clone(), gradients, other)
    assert isinstance(two, tuple) if name == "spread" else (one - two).abs().max() > 1e-3


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="data.descend has no setting weight_decay; it has .*lr, momentum, pull, clip"):
        StepOptions.from_settings(LOCAL, {"weight_decay": .1})


def test_no_other_file_knows_the_settings_of_a_step():
    """So a new one needs a change only in step.py; the engines pass settings on."""
    # These two are also settings of the run.
    names = set(StepSettings.__annotations__) - {"lr", "momentum"}
    for file in Path(step.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
            node.arg for node in ast.walk(tree) if isinstance(node, ast.arg | ast.keyword)}
        # sparse_embedding.py divides the pulls' blocks into the table's part and that of other parameters.
        allowed = {"sparse_embedding.py": {"pull"}, "step.py": names}.get(file.name, set())
        assert names & used == allowed, file.name


def test_no_step_moves_running_statistics():
    """The forward pass sets them; pulls, momentum and clipping leave them alone."""
    w, still = numbers(D), [slice(0, 2), slice(8, 9)]
    for momentum in 0., .9:
        work = w.clone()
        found = Step(work, lambda flat: [flat[2:8]], StepOptions(.1, momentum, [PullTerm(torch.ones(D), .5, None)],
                                                                 (-.01, .01)), still)
        work[:2] = 7.
        found.take([numbers(6)])
        assert work[:2].tolist() == [7., 7.] and work[8] == w[8] and (work[2:8].abs() <= .01).all()


def test_gradients_come_in_the_order_of_the_views():
    net = Net(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    w = net.flatten()
    found = Step(w.clone(), net.split, StepOptions(1.))
    found.take([torch.full(shape, float(i)) for i, shape in enumerate(net.shapes)])
    moved = [part.unique().tolist() for part in net.split((w - found.result()).round())]
    assert moved == [[0.], [1.], [2.], [3.]]


def test_sparse_rows_are_the_rows_of_a_whole_step():
    """Rows that no batch reads are also pulled; one that a batch names twice gets both gradients."""
    rows, batches = numbers(5, 3), [[0, 2], [2, 2], [0, 4]]
    options = StepOptions(.1, pull=[PullTerm(numbers(5, 3, seed=4), .5, None), PullTerm(torch.ones(5, 3), .2, None)])
    sparse, whole = SparseRows(rows.clone(), options), rows.clone()
    dense = Step(whole, lambda flat: [flat], options)
    for t, batch in enumerate(batches):
        ids, gradients = torch.tensor(batch), numbers(2, 3, seed=9 + t)
        torch.testing.assert_close(sparse.read(ids), whole[ids], rtol=0, atol=1e-6)
        sparse.take(ids, gradients)
        dense.take([torch.zeros(5, 3).index_add_(0, ids, gradients)])
    torch.testing.assert_close(sparse.finish(), whole, rtol=0, atol=1e-6)
    # No batch reads row 1.
    assert (whole[1] - rows[1]).abs().max() > .01


@pytest.mark.parametrize("settings, allowed", [({}, True), ({"pull": VALUES["pull"]}, True), ({"momentum": .9}, False),
                                               ({"clip": (0., 1.)}, False), ({"spread": True}, False)])
def test_rows_may_be_late_if_steps_of_one_row_concern_it_alone(settings, allowed):
    assert StepOptions.from_settings(LOCAL._replace(momentum=0.), settings).allows_late_rows is allowed
