"""What the methods compute: limits that must hold, and independent transcriptions of the papers' algorithms."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from tests.federations import TRAIN, Digits, Lab, apart, method
from tests.methods import reference
from tests.methods.reference import Reference
from tests.methods.trial import ROUNDS, again, near, run

shares = pytest.mark.parametrize("share", [1., .6])


# Limits


def test_one_group_of_fedmhc_is_fedavg():
    """lam pulls only theta; phi and H do not depend on it."""
    for lam in (0., .5):
        grouped, plain = run("fedmhc", .6, M=1, lam=lam), run("fedavg", .6, weights="equal")
        near(torch.cat([grouped.shared.phi, grouped.shared.heads[0]]), plain.shared.w, 1e-6)


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("anchor", ["global", "local"])
def test_fedmhc_without_pull_is_local(anchor):
    free, alone = run("fedmhc", .6, lam=0., anchor=anchor), run("local", .6)
    for c in range(8):
        near(free.mine(c).theta, alone.mine(c).w, 1e-6)


def test_a_stronger_pull_keeps_fedmhc_closer_to_its_anchor():
    start = run("local", 1., 1).method.model.start
    gaps = [(run("fedmhc", 1., 1, M=1, lam=lam).mine(2).theta - start).norm() for lam in (0., .5, 5., 20.)]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 3


def test_fedah_that_never_takes_the_global_head_is_fedrep():
    kept = run("fedah", .6, mix_start=0., mix_epochs=0)
    w, heads = reference.fedrep_with_head_upload(again(kept), ROUNDS)
    near(kept.shared.w, w)
    for c in range(8):
        near(kept.mine(c).h, heads[c])
        assert not kept.mine(c).W.any()
        evaluated = kept.apply(kept.method.personal, [c])[c]
        near(evaluated, torch.cat([w[:kept.method.model.h.start], heads[c]]))


def test_fedah_that_always_takes_the_global_head_averages_it():
    """Every participant starts from w, so a client's own head does not matter."""
    taken = run("fedah", .6, mix_start=1., mix_epochs=0)
    ref, w = again(taken), taken.method.model.start
    for t in range(ROUNDS):
        who = ref.who(t)
        sent = torch.stack([reference.head_then_body(ref, i, t, w) for i in who.ids])
        w = torch.from_numpy(np.average(sent.double().numpy(), 0, who.sizes)).float()
    near(taken.shared.w, w)
    assert torch.equal(taken.apply(taken.method.personal, [1])[1], taken.shared.w)


def test_mixing_everyone_is_mixing_participants_when_all_take_part():
    assert run("fedah", 1., mix_everyone=True).digest() == run("fedah", 1.).digest()
    assert run("fedah", .6, mix_everyone=True).digest() != run("fedah", .6).digest()


@pytest.mark.parametrize("name, limit", [
    ("fedmhc", {"M": 1}), ("fedmhc", {"lam": 0.}), ("fedah", {"mix_start": 0., "mix_epochs": 0}),
    ("fedah", {"mix_epochs": 0}), ("fedavg", {"weights": "equal"})])
def test_the_defaults_are_not_the_limits(name, limit):
    default, other = run(name, 1.), run(name, 1., **limit)
    assert apart(default.state(), other.state()) > 1e-3
    assert not np.array_equal(default.evaluate(ROUNDS), other.evaluate(ROUNDS))


def test_equal_clients_make_both_means_the_same():
    equal = Digits((12,) * 4)
    one, other = (run("fedavg", 1., federation=equal, weights=weights).shared.w for weights in ("samples", "equal"))
    near(one, other, 1e-7)


# Transcriptions


@pytest.mark.usefixtures("momentum")
@shares
@pytest.mark.parametrize("weights", ["samples", "equal"])
def test_fedavg(share, weights):
    found = run("fedavg", share, weights=weights)
    near(found.shared.w, reference.fedavg(again(found), ROUNDS, weights == "samples"))


@pytest.mark.usefixtures("momentum")
@shares
def test_local(share):
    found = run("local", share)
    for c, w in reference.local(again(found), ROUNDS).items():
        near(found.mine(c).w, w)


@pytest.mark.usefixtures("momentum")
@shares
@pytest.mark.parametrize("anchor", ["global", "local"])
def test_fedmhc(share, anchor):
    found = run("fedmhc", share, M=3, lam=.8, anchor=anchor)
    phi, heads, theta = reference.fedmhc(again(found), ROUNDS, 3, .8, anchor)
    near(found.shared.phi, phi)
    near(found.shared.heads, heads)
    assert len(heads.unique(dim=0)) == 3
    for c in range(8):
        near(found.mine(c).theta, theta[c])
        near(found.apply(found.method.personal, [c])[c], theta[c])


# Every pair of values of two settings occurs.
@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("share, mix_everyone, mix_lr", [(.6, False, 1.), (.6, True, 20.), (1., False, 20.),
                                                         (1., True, 1.)])
def test_fedah(share, mix_everyone, mix_lr):
    found = run("fedah", share, mix_everyone=mix_everyone, mix_lr=mix_lr)
    ref = again(found)
    w, own, W = reference.fedah(ref, ROUNDS, mix_everyone, mix_lr)
    near(found.shared.w, w)
    for c in range(8):
        near(found.mine(c).h, own[c])
        near(found.mine(c).W, W[c])
    assert min(float(x.min()) for x in W.values()) < .99
    # The client is evaluated with a head that is mixed anew, on the batches of the next round.
    c = 2
    hhat, _ = reference.fedah_mix(ref, c, ROUNDS, w, own[c], W[c], mix_lr)
    near(found.apply(found.method.personal, [c], ROUNDS)[c], torch.cat([w[:ref.cut], hhat]))


def test_local_epochs_and_momentum_reach_the_clients(mlp, federation):
    import dataclasses
    train = dataclasses.replace(TRAIN, epochs=2)
    found = Lab(method("fedavg", mlp), federation, train=train).go(2)
    near(found.shared.w, reference.fedavg(Reference(mlp, federation, found.config), 2))
    fast = Lab(method("fedavg", mlp), federation, train=dataclasses.replace(train, momentum=.9)).go(2)
    assert apart(fast.state(), found.state()) > .01


@pytest.mark.parametrize("seed", [0, 1])
def test_fedmhc_finds_planted_groups(mlp, cache, seed):
    """20 clients are in 5 groups of two classes each. The groups are found in the first round, kept, and used."""
    data = resolve({"data": {"clients": 20, "cache": str(cache), "partition": "pathological"}}).data
    federation = Federation(prepare_federation(data, seed))
    lab = Lab(method("fedmhc", mlp, M=5), federation, seed=seed)
    for t in range(4):
        found = lab.round(t).facts["clusters"]
        assert adjusted_rand_score(federation.groups, found) == 1
    ref = again(lab)
    for i in range(20):
        losses = [ref.loss(torch.cat([lab.shared.phi, h]), i) for h in lab.shared.heads]
        assert np.argmin(losses) == found[i]
