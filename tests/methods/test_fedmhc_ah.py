"""FedMHC with an aggregated head: its limits, an independent transcription, and planted groups."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from tests.federations import Lab, method
from tests.methods.lloyd import lloyd
from tests.methods.reference import Reference, fedah_mix, head_then_body
from tests.methods.trial import ROUNDS, near, run


def best(ref, c, phi, heads):
    """Return which head fits client c best."""
    return int(np.argmin([ref.loss(torch.cat([phi, h]), c) for h in heads]))


def transcribed(ref, M):
    """Return phi, the groups' heads and every client's (head, W) after rounds that are written out."""
    cut, everybody = ref.cut, range(len(ref.data))
    phi, heads = ref.start[:cut], [ref.start[cut:]] * M
    own = dict.fromkeys(everybody, ref.start[cut:])
    W = {i: torch.ones(len(ref.start) - cut) for i in everybody}
    for t in range(ROUNDS):
        who, sent = ref.who(t), []
        for i in who.ids:
            down = torch.cat([phi, heads[best(ref, i, phi, heads)]])
            hhat, W[i] = fedah_mix(ref, i, t, down, own[i], W[i], 1.)
            sent.append(head_then_body(ref, i, t, torch.cat([phi, hhat])).double().numpy())
            own[i] = torch.from_numpy(sent[-1][cut:]).float()
        sent = np.array(sent)
        labels = lloyd(torch.from_numpy(sent[:, cut:]), torch.stack(heads), (ref.config.seed, t), who.some_are_absent)
        heads = [torch.from_numpy(np.average(sent[labels == m, cut:], 0, who.sizes[labels == m])).float()
                 if (labels == m).any() else heads[m] for m in range(M)]
        phi = torch.from_numpy(np.average(sent[:, :cut], 0, who.sizes)).float()
    return phi, torch.stack(heads), own, W


@pytest.mark.usefixtures("training")
def test_it_is_what_its_formulas_say(mlp, federation):
    found = run("fedmhc_ah", M=3)
    ref = Reference(mlp, federation, found.config)
    phi, heads, own, W = transcribed(ref, 3)
    near(found.shared.phi, phi)
    near(found.shared.heads, heads)
    assert len(heads.unique(dim=0)) == 3
    for c in range(8):
        near(found.mine(c).h, own[c])
        near(found.mine(c).W, W[c])
        near(found.apply(found.method.personal, [c], ROUNDS)[c], evaluated(ref, c, phi, heads, own[c], W[c]))
    assert min(float(x.min()) for x in W.values()) < .99


def evaluated(ref, c, phi, heads, own, W):
    """Return the model with a head that is mixed anew with the best group's head."""
    down = torch.cat([phi, heads[best(ref, c, phi, heads)]])
    return torch.cat([phi, fedah_mix(ref, c, ROUNDS, down, own, W, 1.)[0]])


@pytest.mark.parametrize("settings", [{}, {"mix_start": .5, "head_epochs": 2}, {"mix_everyone": True}])
def test_one_group_is_fedah(settings):
    grouped, plain = run("fedmhc_ah", M=1, **settings), run("fedah", **settings)
    near(torch.cat([grouped.shared.phi, grouped.shared.heads[0]]), plain.shared.w, 0)
    for c in range(8):
        near(grouped.mine(c).h, plain.mine(c).h, 0)
        near(grouped.mine(c).W, plain.mine(c).W, 0)
    np.testing.assert_array_equal(grouped.evaluate(ROUNDS), plain.evaluate(ROUNDS))


def test_it_is_none_of_its_parents():
    found = run("fedmhc_ah")
    head = torch.cat([found.shared.phi, found.shared.heads[0]])
    assert (head - run("fedah").shared.w).abs().max() > 1e-3
    assert (found.shared.heads - run("fedmhc").shared.heads).abs().max() > 1e-3


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_groups_are_found_and_used(mlp, cache, seed):
    """20 clients are in 5 groups of two classes each. The groups are found in the first round, kept, and used."""
    data = resolve({"data": {"clients": 20, "cache": str(cache), "partition": "pathological"}}).data
    federation = Federation(prepare_federation(data, seed))
    lab = Lab(method("fedmhc_ah", mlp, M=5), federation, seed=seed)
    for t in range(4):
        found = lab.round(t).facts["clusters"]
        assert adjusted_rand_score(federation.groups, found) == 1
    ref = Reference(mlp, federation, lab.config)
    assert [best(ref, c, lab.shared.phi, lab.shared.heads) for c in range(20)] == found.tolist()
