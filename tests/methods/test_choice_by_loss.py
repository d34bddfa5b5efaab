"""A client that chooses a model by its loss takes the lowest; one whose loss is NaN is chosen by nobody."""
from __future__ import annotations

import pytest
import torch

from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.models.tables import find_lowest, table_row
from tests.clients.verbs import Bench
from tests.federations import method, mlp


@pytest.mark.parametrize("losses, place", [
    ([3., 1., 2.], 1), ([2., 1., 1.], 1), ([.5, torch.nan, .2], 2), ([torch.nan, torch.inf, 9.], 2),
    ([torch.nan, torch.nan], 0), ([-torch.inf, torch.nan], 0), ([4.], 0)])
def test_the_lowest_loss(losses, place):
    assert find_lowest(torch.tensor(losses)) == place
    both = torch.func.vmap(find_lowest)(torch.tensor([losses, losses]))
    assert both.tolist() == [place, place]


# method -> the field of Shared with a model for each cluster, and what a client chooses among them
CHOOSERS = {"ifca": ("parts", "choose_cluster"), "fedmhc": ("heads", "choose_group"),
            "fedcps": ("theta", "find_cluster"), "fedmhc_ah": ("heads", "receive"), "cfl": ("models", "serve_newcomer")}


@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_a_model_that_computes_no_numbers_is_chosen_by_nobody(name, engine):
    """An attack or a rate that is too high may leave one. Whoever took it would send no numbers, too."""
    model, (field, verb) = mlp(), CHOOSERS[name]
    settings = {"cfl": {"M": 2}, "ifca": {"k": 2}, "fedcps": {"k": 2, "layers": 1}}.get(name, {"M": 2})
    bound = method(name, model, **settings)
    shared = bound.init(5)[0]
    models = getattr(shared, field) + .01 * torch.arange(2.)[:, None]
    models[0] = torch.nan
    shared = shared._replace(**{field: models}, **({"count": torch.tensor(2)} if name == "cfl" else {}))

    def choose(_, of_bench, own, data):
        if verb == "serve_newcomer":
            return bound.serve_newcomer(shared, None, data)
        found = getattr(bound, verb)(shared, data)
        return found[1] if verb == "receive" else table_row(models, found)
    found = Bench(net=model).run(engine, choose)
    assert len(found) == 5 and all(torch.equal(w, models[1]) for w in found.values())
