"""FedGroup: its limit, its formulas written a second time, and planted groups."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines.vmap import Vmap
from fedmpi.methods.fedgroup import GROUPING_STREAM
from tests.federations import Lab, apart, method
from tests.methods.plain import again
from tests.methods.trial import ROUNDS, digits, near, network, run


def unit(v):
    return v / v.norm()


def written(ref, K, first):
    """Return models, mean updates and every client's group."""
    seed, start = ref.config.seed, ref.start
    generator = np.random.default_rng((seed, GROUPING_STREAM))
    ids = sorted(generator.choice(len(ref.data), min(len(ref.data), K * first), replace=False).tolist())
    dW = torch.stack([ref.sgd(start, ref.batches(i, -1), 0) - start for i in ids])
    V = torch.linalg.svd(dW.double(), full_matrices=False).Vh[:K]
    edc = np.array([[float(unit(d.double()) @ v) for v in V] for d in dW])
    state = int(np.random.SeedSequence((seed, GROUPING_STREAM)).generate_state(1)[0])
    found = KMeans(K, n_init=1, random_state=state).fit(edc[:, ::-1]).labels_
    group = dict(zip(ids, found.tolist(), strict=True))
    of = [[i for i in ids if group[i] == g] for g in range(K)]
    mean = [ref.mean([dW[ids.index(i)] for i in members], members) for members in of]
    models = [start + m for m in mean]
    for t in range(ROUNDS):
        sent = {}
        for i in ref.who(t).ids:
            if i not in group:
                # this training has the full rate, which is that of round 0
                own = ref.sgd(start, ref.batches(i, t), 0) - start
                group[i] = int(np.argmax([float(unit(own) @ unit(m)) for m in mean]))
            sent[i] = ref.sgd(models[group[i]], ref.batches(i, t), t)
        for g in range(K):
            members = [i for i in sent if group[i] == g]
            if members:
                models[g] = ref.mean([sent[i] for i in members], members)
    return torch.stack(models), torch.stack(mean), group


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("K, first", [(2, 2), (3, 1), (2, 20), (1, 3)])
def test_the_formulas(K, first):
    found = run("fedgroup", K=K, first=first)
    models, mean, group = written(again(found), K, first)
    assert found.shared.group.tolist() == [group.get(i, -1) for i in range(8)]
    near(found.shared.models, models)
    near(found.shared.directions, mean)
    for c in group:
        near(found.apply(found.method.personal, [c])[c], models[group[c]])


def test_one_group_is_fedavg_from_its_first_training_on():
    one, plain = run("fedgroup", K=1, first=3), Lab(method("fedavg", network()), digits(), share=.6)
    opened = Lab(method("fedgroup", network(), K=1, first=3), digits(), share=.6).open()
    plain.shared = plain.shared._replace(w=opened.shared.models[0])
    near(one.shared.models[0], plain.go().shared.w, 1e-6)
    assert apart(one.state(), run("fedgroup", K=1, first=8).state()) > 1e-3


def test_groups_are_static():
    lab, seen = run("fedgroup", rounds=0, K=2, first=2), []
    # This engine trains new clients and others at once.
    lab.group.engine = Vmap()
    # The groups are not those that updates would now give.
    group = lab.shared.group
    lab.shared = lab.shared._replace(group=torch.where(group < 0, group, 1 - group))
    for t in range(6):
        seen.append(lab.shared.group.clone())
        lab.round(t)
        known = seen[-1] >= 0
        assert torch.equal(lab.shared.group[known], seen[-1][known])
        assert (lab.shared.group[lab.who(t).ids] >= 0).all()
    assert (seen[0] < 0).sum() == 4 and (seen[-1] < 0).sum() == 0


def test_a_client_that_never_took_part_is_evaluated_by_the_group_it_would_join():
    lab = run("fedgroup", rounds=1, K=2, first=2)
    (c, *_), ref = (lab.shared.group < 0).nonzero().flatten().tolist(), again(lab)
    own = ref.sgd(ref.start, ref.batches(c, 1), 0) - ref.start
    near_to = int(np.argmax([float(unit(own) @ unit(m)) for m in lab.shared.directions]))
    near(lab.apply(lab.method.personal, [c], 1)[c], lab.shared.models[near_to])
    assert lab.shared.group[c] == -1


@pytest.mark.parametrize("first", [20, 2])
def test_planted_groups_are_found(cache, first):
    """20 clients are in 5 groups of two classes each; with 10 clients in the first training, the others join later."""
    data = resolve({"data": {"clients": 20, "cache": str(cache), "partition": "pathological"}}).data
    federation = Federation(prepare_federation(data, 0))
    lab = run("fedgroup", 1., 1, federation, seed=0, K=5, first=first)
    assert adjusted_rand_score(federation.groups, lab.shared.group) == 1


def test_a_client_receives_and_sends_one_model():
    lab = run("fedgroup", rounds=0)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * 1210, 4 * 1210)
