"""BatchNorm's running statistics are local or averaged, and a module never carries them from client to client."""
from __future__ import annotations

import copy
import dataclasses
import json
import sys
from types import ModuleType
from typing import Annotated, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fedmpi.config.schema import resolve
from fedmpi.engines import batch_plan, batchnorm, engine_choice
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.method import WHOLE
from fedmpi.models.build import build_model, make_blank_samples
from fedmpi.models.flat import Net
from tests.clients.normed import IMAGE, SIZES, Normed, data_of, flat, lab, load, model_of, near, normed, policies, train
from tests.federations import TRAIN, Digits, apart, method, mlp
from tests.runs import run_alone

pytestmark = pytest.mark.slow("runs with statistics that stay with their client")

METHODS = [("fedavg", {}), ("local", {}), ("fedmhc", {}), ("fedmhc", {"anchor": "local"}), ("fedah", {})]


def leak(name, policy, settings) -> float:
    """Return how much a client's round depends on the client that the same rank trained before it."""
    run = lab(name, policy, **settings).go(1)
    alone, after = ({"0": torch.cat([v.flatten() for state in run.apply(run.method.client, ids, 1)[1] for v in state])}
                    for ids in ([1], [2, 3, 1]))
    return apart(alone, after)


@policies
@pytest.mark.parametrize("name, settings", METHODS)
def test_no_statistics_leak_from_client_to_client(name, settings, policy):
    assert leak(name, policy, settings) == 0


@policies
# The method with this anchor trains by `walk`.
@pytest.mark.parametrize("name, settings", [m for m in METHODS if m[1] != {"anchor": "local"}])
def test_a_leak_would_be_seen(name, settings, policy, monkeypatch):
    """A plain module keeps its statistics, and so they leak."""
    original = Net.bind

    def keeping(net, w):
        old = net._work.clone() if net._work is not None else w
        work = original(net, w)
        for part in net.buffers:
            work[part] = old[part]
        return work
    monkeypatch.setattr(Net, "bind", keeping)
    assert leak(name, policy, settings) > 1e-3


def by_hand(rounds, average):
    """Run FedAvg with a module per client; return the global vector and each client's module for evaluation."""
    model, federation = model_of(), Digits(SIZES, image=True)
    share = torch.tensor(SIZES) / sum(SIZES)
    w, modules = model.start, [normed() for _ in SIZES]
    for t in range(rounds):
        ws = []
        for i, module in enumerate(modules):
            own = copy.deepcopy(module)
            load(module, model, w)
            # The client takes over only parameters.
            if not average:
                module.load_state_dict(dict(own.named_buffers()), strict=False)
            s = federation.client(i)
            local = batch_plan.LocalTraining(
                3, t, TRAIN.batch, TRAIN.epochs, TRAIN.steps, TRAIN.lr * TRAIN.lr_decay**t, 0.0
            )
            train(module, LoopData(torch.from_numpy(s.x_train), torch.from_numpy(s.y_train), i, local))
            ws.append(flat(module, model))
        w = sum(p * v for p, v in zip(share, ws, strict=True))
    return w, ws


@policies
def test_fedavg_is_fedavg_with_a_module_per_client(policy):
    run, (w, ws) = lab("fedavg", policy).go(3), by_hand(3, policy == "average")
    model = run.method.model
    evaluated = run.apply(run.method.personal, range(4), 3)
    moving = torch.ones(model.size, dtype=torch.bool)
    for part in model.buffers:
        moving[part] = False
    for i in range(4):
        near(evaluated[i][moving], w[moving], 1e-5)
        own = w if policy == "average" else ws[i]
        near(batchnorm.gather_statistics(evaluated[i], model.buffers),
             batchnorm.gather_statistics(own, model.buffers), 1e-5)


def test_what_is_local_stays_at_the_client():
    run = lab("fedmhc").go(2)
    model = run.method.model
    ups = run.apply(run.method.client, range(4), 2)
    for mine, up in ups.values():
        assert not batchnorm.gather_statistics(up.w, model.buffers).any() and mine.statistics[-8:].min() > 0
    assert not batchnorm.gather_statistics(run.shared.phi, model.base.buffers).any()
    rows = torch.stack([run.mine(i).statistics for i in range(4)])
    assert torch.pdist(rows).min() > .01
    # A personal model has its own statistics.
    theta = batchnorm.gather_statistics(run.mine(0).theta, model.buffers)
    assert (theta - rows[0]).abs().max() > 1e-4


def test_a_walk_leaves_statistics_too():
    run = lab("fedmhc", anchor="local").go(1)
    first = batchnorm.gather_statistics(run.method.model.start, run.method.model.buffers)
    assert all((run.mine(i).statistics - first).abs().min() > 1e-4 for i in range(4))


def test_training_a_head_alone_leaves_no_statistics_of_the_network():
    data, model = data_of(), model_of(head=("5", "6", "8"))
    whole = data.descend(model, model.start)
    data.with_features(model.base, whole[model.phi]).descend(model.head, whole[model.h])
    assert torch.equal(data.left[24], batchnorm.gather_statistics(whole, model.buffers))
    assert all(run.isfinite().all() for run in lab("fedah", head=("5", "6", "8")).go(2).state().values())


def test_evaluation_is_not_training_whichever_network_is_called():
    run = lab("fedah", head=("5", "6", "8")).go(1, evaluates=True)
    assert not any(layer.training for net in (run.method.model, run.method.model.base, run.method.model.head)
                   for layer in net.module.modules())


def test_those_who_do_not_take_part_keep_theirs():
    run = lab("fedah", share=.5, mix_everyone=True).go(1)
    before = [run.mine(i).statistics.clone() for i in range(4)]
    who = run.round(1).ids.tolist()
    assert [torch.equal(run.mine(i).statistics, before[i]) for i in range(4)] == [i not in who for i in range(4)]


class Message(NamedTuple):
    models: Annotated[torch.Tensor, WHOLE]
    other: torch.Tensor


def test_what_is_addressed_to_a_client_carries_its_own_statistics():
    kept, row = lab("fedavg").method, torch.arange(24.)
    note = Message(kept.model.start.repeat(3, 1), torch.ones(7))
    data = kept._addressed(dataclasses.replace(data_of(), message=note), row)
    assert all(torch.equal(batchnorm.gather_statistics(w, kept.model.buffers), row) for w in data.message.models)
    assert data.message.other is note.other and kept._addressed(data_of(), row).message is None
    assert not batchnorm.gather_statistics(kept.init(4)[0].w, kept.model.buffers).any()
    # The message itself is not changed.
    assert torch.equal(note.models[2], kept.model.start)


def test_the_personal_model_is_evaluated_with_its_own_statistics():
    run = lab("fedmhc").go(2)
    assert torch.equal(run.apply(run.method.personal, [1], 2)[1], run.mine(1).theta)


def test_a_method_may_ask_itself_whom_it_would_judge():
    run = lab("fedah").go(1)
    kept, model = run.method, run.method.model
    own, row = batchnorm.split_state(run.mine(1))
    w = kept.personal(run.shared, own, data_of())
    assert not batchnorm.gather_statistics(
        w, model.buffers
    ).any()  # as the server's vector, which it was given, has them
    w = kept.personal(run.shared, run.mine(1), data_of())
    assert torch.equal(batchnorm.gather_statistics(w, model.buffers), row)


def test_right_after_training_a_model_has_the_statistics_of_that_training():
    run = lab("fedavg").go(1)
    mine, up = run.apply(run.method.client, [2], 1)[2]
    w = run.method.trained(run.shared, mine, up)
    assert torch.equal(batchnorm.gather_statistics(w, run.method.model.buffers), mine.statistics)
    assert run.method.predict(w, torch.rand(2, 1, 8, 8)).isfinite().all()


def test_who_never_trained_has_the_first_statistics():
    run = lab("fedavg", share=.5).go(1)
    idle = (set(range(4)) - set(run.who(0).ids.tolist())).pop()
    assert torch.equal(
        run.mine(idle).statistics, batchnorm.gather_statistics(run.method.model.start, run.method.model.buffers)
    )


def test_the_wrapped_method_is_the_method():
    run = lab("fedah", mix_lr=.3)
    kept, plain = run.method, method("fedah", model_of("average"), mix_lr=.3)
    assert isinstance(kept, type(plain)) and (kept.title, kept.mix_lr, kept.idles) == (plain.title, .3, plain.idles)
    # A rank does so for its device.
    again = kept.with_model(model_of())
    assert "statistics" in again.init(3)[1]._fields
    for other in (model_of("average"), mlp()):
        assert "statistics" not in batchnorm.bind_method(plain, other).init(3)[1]._fields


@policies
def test_heads_with_statistics(policy):
    """FedMHC clusters heads that contain BatchNorm, and still no statistics leak."""
    head = ("5", "6", "8")
    run = lab("fedmhc", policy, head).go(2)
    model = run.method.model
    stray = batchnorm.gather_statistics(run.shared.heads[0], model.head.buffers)
    assert bool(stray.any()) == (policy == "average")
    assert all(v.isfinite().all() for v in run.state().values())
    one = run.apply(run.method.client, [1], 2)[1]
    other = run.apply(run.method.client, [3, 1], 2)[1]
    assert all(torch.equal(a, b) for a, b in zip((*one[0], *one[1]), (*other[0], *other[1]), strict=True))


def test_the_vectorised_engine_is_not_taken():
    run = lab("fedavg")
    shared, mine = run.method.init(4)
    assert (
        engine_choice.choose_by_network(run.method, shared, mine, make_blank_samples(IMAGE, np.dtype("uint8")))[0]
        == "loop"
    )
    loop, vmap = engine_choice.time_engines(run.group, shared)
    assert loop < vmap
    with pytest.raises(BadInput, match="engine = vmap: it cannot train a network with BatchNorm; set engine=loop"):
        run.apply(run.method.client, [0, 1], 0, Vmap())


@pytest.mark.parametrize("make, policy", [(lambda: nn.BatchNorm2d(1, momentum=None), "local"),
                                          (lambda: Counter(), "local"), (lambda: nn.BatchNorm2d(1), None)])
def test_other_state_is_refused(make, policy):
    class Other(Normed):
        def build(self, shape, classes):
            return nn.Sequential(make(), nn.Flatten(), nn.Linear(64, classes))
    with pytest.raises(BadInput, match="keeps state outside its parameters"):
        build_model(Other(policy), IMAGE, np.dtype("uint8"), 10, 0)


@pytest.mark.parametrize("name", ["fedcps", "lcfed", "fedgroup", "cfl", "pfedcam", "cgpfl", "fedamp", "fedavg_plus",
                                  "fedprox_plus", "ifca_cam", "fesem_cam"])
def test_methods_that_compute_with_whole_models_or_train_several_need_the_average(name):
    with pytest.raises(BadInput, match="of its own; set model.running_stats = average, or use GroupNorm in "
                       "place of BatchNorm .model.norm = group with resnet18"):
        lab(name, "local")
    assert lab(name, "average")


def test_ifca_needs_the_average_of_what_its_clusters_do_not_share():
    for words in ({}, {"shared_body": True, "head": ("5", "6", "8")}):
        with pytest.raises(BadInput, match="of its own; set model.running_stats = average, or use GroupNorm in "
                           "place of BatchNorm .model.norm = group with resnet18"):
            lab("ifca", **words)
        assert lab("ifca", "average", **words)
    assert lab("ifca", shared_body=True)


class Counter(nn.Module):
    """A module that is not BatchNorm, with a buffer that its forward passes change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += len(x)
        return x


class Own(nn.Sequential):
    """A third party's network with BatchNorm."""

    def __init__(self):
        super().__init__(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


@pytest.fixture
def own(monkeypatch):
    module = ModuleType("somebodys")
    module.Own = Own
    monkeypatch.setattr(Own, "__module__", "somebodys")
    monkeypatch.setitem(sys.modules, "somebodys", module)


@policies
def test_saved_and_resumed_is_straight_through(policy, own, tmp_path, cache):
    section = {"name": "somebodys:Own"} | ({"running_stats": policy} if policy == "average" else {})
    assert resolve({"model": section}).model.policy == policy
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({
        "rounds": 3, "seed": 4, "method": "fedavg", "model": section,
        "data": {"clients": 6, "cache": str(cache)}, "train": {"lr": .05, "participation": .5, "steps": 4}}))
    straight, twice = tmp_path / "straight", tmp_path / "twice"
    assert run_alone(str(config), [], str(straight)) == 0
    assert run_alone(str(config), ["rounds=2"], str(twice)) == 0
    assert run_alone(str(config), [], str(twice), "auto") == 0
    results = [json.loads((out / "result.json").read_text()) for out in (straight, twice)]
    assert results[0]["digest"] == results[1]["digest"]
