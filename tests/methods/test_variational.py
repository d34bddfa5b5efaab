"""FedSR and FedCR: transcriptions with torch.distributions, and what their codes and noise must do."""
from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmpi.engines.batch_plan import LocalTraining, draw_noise
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import BadInput
from fedmpi.method import Participants
from fedmpi.models.build import build_model
from fedmpi.models.flat import Model
from fedmpi.models.nets import CNN4, MLP, ResNet18
from fedmpi.models.variational import MIN_SIGMA, Variational
from tests.federations import TRAIN, Lab, apart, method
from tests.methods.reference import Reference
from tests.methods.trial import ROUNDS, near, run

# rounds, features, classes
F_, C = 16, 10
ORDER = ["fc1.weight", "fc1.bias", "code.weight", "code.bias", "fc2.weight", "fc2.bias", "r_mu", "r_s"]


class Net(nn.Module):
    """The network of the tests with a code, followed by the Gaussians of the classes."""

    def __init__(self, w):
        super().__init__()
        self.fc1, self.code, self.fc2 = nn.Linear(64, F_), nn.Linear(F_, 2 * F_), nn.Linear(F_, C)
        size = sum(p.numel() for p in self.parameters())
        vector_to_parameters(w[:size].clone(), self.parameters())
        if len(w) > size:
            r = w[size:].clone().view(2, C, F_)
            self.r_mu, self.r_s = nn.Parameter(r[0].clone()), nn.Parameter(r[1].clone())

    def q(self, x):
        out = self.code(F.relu(self.fc1(x)))
        return Normal(out[:, :F_], F.softplus(out[:, F_:]) + MIN_SIGMA)

    def vector(self):
        # The model's vector begins with the parameters of the classes.
        parameters = dict(self.named_parameters())
        return parameters_to_vector(parameters[name] for name in sorted(parameters, key=ORDER.index)).detach()


class Noisy(Reference):
    """The plain reference with the noise of every step."""

    def noisy_batches(self, i, t, samples):
        local = self.settings(t)
        for (x, y), e in zip(self.batches(i, t), draw_noise(local, int(i), 0, (samples, F_)), strict=False):
            yield x, y, torch.from_numpy(e[:len(y)])

    def fit(self, w, i, t, samples, penalty):
        """Train on cross-entropy over codes and penalty(net, q, z, y) -> (b,); returns the module."""
        net = Net(w)
        optimiser = torch.optim.SGD(net.parameters(), self.lr(t), momentum=self.train.momentum)
        for x, y, e in self.noisy_batches(i, t, samples):
            q = net.q(x)
            z = [q.mean + q.stddev * e[:, s] for s in range(samples)]
            ce = torch.stack([F.cross_entropy(net.fc2(v), y, reduction="none") for v in z]).mean(0)
            optimiser.zero_grad()
            (ce + penalty(net, q, z[0], y)).mean().backward()
            optimiser.step()
        return net


def fedsr(ref, start, a_R, a_C, own):
    def penalty(net, q, z, y):
        r = Normal(net.r_mu[y], F.softplus(net.r_s)[y])
        return a_R * (z ** 2).sum(1).sqrt() + a_C * kl_divergence(q, r).sum(1)
    r0 = torch.cat([torch.zeros(C * F_), torch.ones(C * F_)])
    w, r = torch.cat([start, r0]), dict.fromkeys(range(8), r0)
    for t in range(ROUNDS):
        sent = []
        for i in ref.who(t).ids:
            begin = torch.cat([w[:len(start)], r[i]]) if own else w
            sent.append(ref.fit(begin, i, t, 1, penalty).vector())
            r[i] = sent[-1][len(start):]
        w = torch.stack(sent).double().mean(0).float()
    return w, r


def fedcr(ref, start, beta, samples):
    cut = len(start) - C * (F_ + 1)
    phi, h, r = start[:cut], dict.fromkeys(range(8), start[cut:]), Normal(torch.zeros(C, F_), torch.ones(C, F_))
    for t in range(ROUNDS):
        sent, precision, weighted = [], np.ones((C, F_)), np.zeros((C, F_))
        for i in ref.who(t).ids:
            def penalty(net, q, z, y, r=r):
                return beta * kl_divergence(Normal(r.mean[y], r.stddev[y]), q).sum(1)
            net = ref.fit(torch.cat([phi, h[i]]), i, t, samples, penalty)
            sent.append(net.vector()[:cut])
            h[i] = net.vector()[cut:]
            x, y = ref.data[i]
            with torch.no_grad():
                q = net.q(x)
            for j, c in enumerate(y.tolist()):
                precision[c] += (q.variance[j] ** -1).numpy()
                weighted[c] += (q.mean[j] / q.variance[j]).numpy()
        phi = torch.stack(sent).double().mean(0).float()
        # Other classes keep their r.
        held = sorted({c for i in ref.who(t).ids for c in ref.data[i][1].tolist()})
        r.loc[held] = torch.from_numpy(weighted / precision).float()[held]
        r.scale[held] = torch.from_numpy(precision ** -.5).float()[held]
    return phi, h, r


def again(run):
    return Noisy(run.method.model, run.federation, run.config), run.method.net.start


@pytest.mark.usefixtures("momentum")
@pytest.mark.parametrize("r", ["own", "averaged"])
def test_fedsr(r):
    found = run("fedsr", a_R=.2, a_C=.1, r=r)
    w, own = fedsr(*again(found), .2, .1, r == "own")
    near(found.shared.w, w[:len(found.shared.w)])
    assert len(found.shared.w) == found.method.net.size + (r == "averaged") * 2 * C * F_
    for i in range(8):
        if r == "own":
            near(found.mine(i).r, own[i])
        assert found.mine(i)._fields == (("r",) if r == "own" else ())


@pytest.mark.usefixtures("training")
def test_fedcr():
    found = run("fedcr", beta=.05, samples=3)
    phi, h, r = fedcr(*again(found), .05, 3)
    near(found.shared.phi, phi)
    near(found.shared.mu, r.mean)
    near(found.shared.sigma, r.stddev)
    for i in range(8):
        near(found.mine(i).h, h[i])
    # Some sigma is that of a class that was seen.
    assert found.shared.sigma.min() < .5


def test_a_class_that_no_participant_holds_keeps_its_gaussian():
    """A round of all clients is followed by one of client 1 alone, which has a single sample."""
    found = run("fedcr", rounds=1, participation=1.)
    mu, sigma, (_, y) = found.shared.mu, found.shared.sigma, found.group.get_training_samples(1)
    assert mu.any(1).all()
    found.round(1, Participants(np.array([1]), found.federation.sizes[[1]], 1, 3))
    others = torch.arange(C) != y[0]
    assert torch.equal(found.shared.mu[others], mu[others]) and torch.equal(found.shared.sigma[others], sigma[others])
    assert not torch.equal(found.shared.mu[y[0]], mu[y[0]])


@pytest.mark.parametrize("name, settings", [("fedsr", {"r": "averaged"}), ("fedcr", {"samples": 2})])
def test_the_engines_agree_where_the_defaults_do_not_go(name, settings):
    engine = Vmap()
    engine.most = 2
    assert apart(run(name, engine=engine, **settings).state(), run(name, **settings).state()) < 1e-5


@pytest.mark.parametrize("name", ["fedsr", "fedcr"])
@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
def test_clients_are_evaluated_after_head_epochs_on_the_means(name, engine):
    """The head alone is trained by SGD on the means of the codes, with its own batches; codes are not sampled."""
    found = run(name, ft=2)
    ref, c = Reference(found.method.model, found.federation, found.config), 2
    w = torch.cat([found.shared.phi, found.mine(c).h]) if name == "fedcr" else found.shared.w
    net = Net(w)
    # fine-tuning does not decay
    optimiser = torch.optim.SGD(net.fc2.parameters(), ref.lr(0))
    for x, y in ref.batches(c, ROUNDS, stream=1, epochs=2):
        optimiser.zero_grad()
        F.cross_entropy(net.fc2(net.q(x).mean.detach()), y).backward()
        optimiser.step()
    evaluated = found.apply(found.method.personal, [c], ROUNDS, engine)[c]
    near(evaluated, net.vector())
    x = ref.data[c][0]
    near(found.method.predict(evaluated, x), net.fc2(net.q(x).mean).detach())
    near(found.method.unadapted(found.shared, found.mine(c)), w, 0)
    plain = run(name, ft=0)
    near(plain.apply(plain.method.personal, [c], ROUNDS)[c], w, 0)
    assert plain.method.unadapted(plain.shared, plain.mine(c)) is None


@pytest.mark.parametrize("name", ["fedsr", "fedcr"])
def test_after_local_training_the_local_model_is_evaluated(name):
    found = run(name)
    mine, up = found.apply(found.method.client, [2], ROUNDS)[2]
    w = found.method.trained(found.shared, mine, up)
    assert w.shape == found.method.net.start.shape
    before = found.shared.w if name == "fedsr" else torch.cat([found.shared.phi, found.mine(2).h])
    assert (w - before).abs().max() > 1e-3
    assert (w[found.method.net.h] - before[found.method.net.h]).abs().max() > 1e-3


def test_products_of_experts_are_as_sure_as_all_samples_together():
    """For one client with one sample r is that sample's code times N(0, I), and N(0, I) for every other class."""
    found = run("fedcr", rounds=0)
    _, up = found.apply(found.method.client, [1])[1]
    x, y = found.group.get_training_samples(1)
    with torch.no_grad():
        q = Net(torch.cat([up.phi, found.mine(1).h])).q(x)
    total = up.experts * 2 ** 10
    near(total[y[0]], torch.cat([q.variance[0] ** -1, q.mean[0] / q.variance[0]]), 1e-4)
    assert not total[torch.arange(C) != y[0]].any()


def test_the_code_starts_anew_with_every_seed_and_fits_the_models_head():
    models = [build_model(MLP(hidden=16), (64,), np.dtype("float32"), 10, seed) for seed in (5, 6)]
    first, again, other = Variational(models[0]), Variational(models[0]), Variational(models[1])
    assert torch.equal(first.start, again.start)
    code = slice(models[0].base.size, first.phi.stop)
    assert (first.start[code] - other.start[code]).abs().min() < (first.start[code] - other.start[code]).abs().max()
    assert first.size == models[0].size + 16 * 32 + 32
    near(first.start[first.h], models[0].start[models[0].h], 0)


def test_a_head_of_several_blocks_takes_the_code():
    model = build_model(CNN4(width=20, head=("fc1", "fc2")), (28, 28, 1), np.dtype("uint8"), 10, 0)
    net = Variational(model)
    assert net.width == 64 * 4 * 4
    assert net(net.start, torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_head_that_begins_with_a_convolution_is_refused():
    with pytest.raises(BadInput, match="head must begin with a Linear layer; choose another model.head"):
        Variational(build_model(ResNet18(head=("layer4", "fc")), (32, 32, 3), np.dtype("uint8"), 10, 0))


def test_networks_with_batchnorm_are_refused():
    def network():
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    with pytest.raises(BadInput, match="needs a network without BatchNorm; use GroupNorm in place of BatchNorm .model"):
        Variational(Model(network, torch.zeros(2, 4), 0, policy="average"))


@pytest.mark.parametrize("name, setting", [("fedsr", {"a_R": -1.}), ("fedcr", {"samples": 0}), ("fedsr", {"r": "all"}),
                                           ("fedcr", {"beta": -.1}), ("fedsr", {"ft": -1})])
def test_bad_settings(mlp, name, setting):
    with pytest.raises(BadInput, match=f"method.{next(iter(setting))} = .*should be"):
        method(name, mlp, **setting)


def test_noise_depends_on_seed_round_client_and_stream_alone():
    base = LocalTraining(seed=1, round=2, batch=4, epochs=1, steps=None, lr=.1, momentum=0.)

    def first(local=base, client=3, stream=0):
        drawn = draw_noise(local, client, stream, (2, 5))
        return np.stack([next(drawn) for _ in range(3)])
    assert first().shape == (3, 4, 2, 5) and first().dtype == np.float32
    np.testing.assert_array_equal(first(), first(base._replace(lr=9., epochs=7)))
    others = [first(base._replace(seed=9)), first(base._replace(round=-1)), first(client=4), first(stream=1)]
    assert all(np.abs(first() - other).min() > 0 for other in others)
    # It is drawn anew at every step.
    assert len(np.unique(first())) == first().size


def test_noise_is_standard_normal():
    drawn = next(draw_noise(LocalTraining(1, 2, 1000, 1, None, .1, 0.), 3, 0, (50,)))
    assert abs(drawn.mean()) < .02 and abs(drawn.std() - 1) < .02


def test_more_codes_make_steadier_steps(mlp, federation):
    """The loss is a mean over codes, so with many of them two draws of the noise give nearly the same model."""
    def spread(samples):
        a, b = (Lab(method("fedcr", mlp, samples=samples, beta=0.), federation, train=TRAIN) for _ in range(2))
        one = a.apply(lambda s, m, d: a.method.client(s, m, d)[1].phi, [2])[2]
        other = a.apply(lambda s, m, d: a.method.client(s, m, Redrawn(d))[1].phi, [2])[2]
        return float((one - other).norm())

    class Redrawn:
        """The same batches with other noise."""

        def __init__(self, data):
            self.data = data

        def __getattr__(self, name):
            return getattr(self.data, name)

        def descend(self, loss, w, args, noise):
            def turned(w, x, y, e, *args):
                return loss(w, x, y, -e, *args)
            return self.data.descend(turned, w, args=args, noise=noise)
    assert 0 < spread(60) < spread(1) / 3
