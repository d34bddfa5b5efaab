"""Engine `vmap`: many clients at once. A method's `client` runs under torch.func.vmap, so it sees one client;
the heavy verbs of its data step out of vmap and work on the whole cohort, with in-place updates.

Clients of a cohort are sorted by their number of samples, largest first: at every step those that still have a batch
are a prefix. Legend: c clients, s samples of the largest, d parameters, b batch."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedmpi.clients import plan
from fedmpi.clients.loop import REHEARSAL, approach, nothing
from fedmpi.models.build import as_input
from fedmpi.models.flat import Net, inside

BLOCK = 64       # samples of each client per forward pass without gradients. Always whole blocks: a matrix product over
                 # as many rows as the largest client has would make a client's bits depend on the others of its cohort
MOST = 128       # clients at once: more gain nothing
VECTORS = 10     # of parameters per client while it trains: start, weights, gradients, states, results


class Outside(torch.autograd.Function):
    """Call a function on whole batches from inside vmap: `apply(function, *tensors)`."""

    @staticmethod
    def forward(function, *tensors):
        return function(*(t[None] for t in tensors))[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        """No gradient flows through it."""

    @staticmethod
    def vmap(info, in_dims, function, *tensors):
        whole = [t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
                 for t, d in zip(tensors, in_dims[1:], strict=True)]
        return function(*whole), 0


@dataclass(frozen=True)
class Cohort:
    """The training data of c clients, padded to whole blocks, as many as the largest has."""
    x: Tensor              # (c, s, ...) as stored, or features
    y: Tensor              # (c, s)
    sizes: tuple[int, ...]      # descending
    clients: tuple[int, ...]
    local: plan.Local
    stream: int = 0

    def plans(self):
        """Return the batches as (steps, c, b) index and weights (0 where padded), and the active clients per step."""
        drawn = [plan.draw(self.local, i, self.stream, n) for i, n in zip(self.clients, self.sizes, strict=True)]
        steps = [len(p.count) for p in drawn]
        index = np.zeros((max(steps), len(drawn), self.local.batch), np.int64)
        weight = np.zeros(index.shape, np.float32)
        places = np.arange(self.local.batch)
        for i, p in enumerate(drawn):
            index[:steps[i], i] = p.index
            weight[:steps[i], i] = (places < p.count[:, None]) / p.count[:, None]
        active = [sum(s > t for s in steps) for t in range(max(steps))]
        device = self.y.device
        return torch.from_numpy(index).to(device), torch.from_numpy(weight).to(device), active

    def batches(self):
        """Yield (k, x, y, weight) of every step for the first k clients, which still have a batch."""
        index, weight, active = self.plans()
        rows = torch.arange(len(self.sizes), device=self.y.device)[:, None]
        for t, k in enumerate(active):
            x = self.x[rows[:k], index[t, :k]]
            yield k, as_input(x.flatten(0, 1)).unflatten(0, x.shape[:2]), self.y[rows[:k], index[t, :k]], weight[t, :k]

    @torch.no_grad()
    def forward(self, net: Net, w: Tensor) -> Tensor:
        """Return the outputs on all (padded) samples, (c, s, ...)."""
        net.module.eval()
        parts = [p.contiguous() if p.ndim < 5 else p for p in net.split(w)]
        outputs = []
        for x in self.x.split(BLOCK, dim=1):
            x = as_input(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            outputs.append(vmap(net)(parts, x))
        return torch.cat(outputs, 1)

    def mean_loss(self, net: Net, w: Tensor) -> Tensor:
        """Return each client's mean cross-entropy over its own samples, (c,)."""
        outputs = self.forward(net, w)
        losses = F.cross_entropy(outputs.flatten(0, 1), self.y.flatten(), reduction="none").unflatten(0, self.y.shape)
        sizes = torch.tensor(self.sizes, device=losses.device)
        own = torch.arange(losses.shape[1], device=losses.device) < sizes[:, None]
        per_block = (losses * own).unflatten(1, (-1, BLOCK)).sum(2)
        return sum(per_block.unbind(1)) / sizes      # block after block: those of others add 0

    def descend(self, net, w: Tensor, lr, only, pull, momentum, args, clip) -> Tensor:
        """Plain SGD of c clients, w (c, d); pulls are (centre (c, d), strength (c,), block)."""
        work = w.clone(memory_format=torch.contiguous_format)
        if nothing(only):
            return work
        gradients, views = bound(net, work, only) if isinstance(net, Net) else free(net, work, only, args)
        moving = views(work)
        velocity = torch.zeros_like(work) if momentum else None
        speeds = views(velocity) if momentum else None
        for k, x, y, weight in self.batches():
            grads = gradients(k, x, y, weight)
            if momentum:
                velocity[:k].mul_(momentum)
                torch._foreach_add_([v[:k] for v in speeds], grads)
                for centre, strength, block in pull:
                    velocity[:k, block].add_((work[:k, block] - centre[:k]) * strength[:k, None])
                work[:k].sub_(velocity[:k], alpha=lr)
            else:
                approach([(work[:k, block], centre[:k], (lr * strength[:k, None]).expand(centre[:k].shape))
                          for centre, strength, block in pull])
                torch._foreach_add_([p[:k] for p in moving], grads, alpha=-lr)
            if clip:
                work[:k].clamp_(*clip)
        return work

    def walk(self, step, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Fold step(state, grad) over the batches; state is a tuple of tensors (c, ...)."""
        state = tuple(t.clone() for t in state)

        def one(state, x, y, weight):
            def gradient(net, w):
                net.module.train()
                return grad(lambda v: (net.loss(v, x, y) * weight).sum())(w)
            return step(state, gradient)
        for k, x, y, weight in self.batches():
            new = vmap(one)(tuple(t[:k] for t in state), x, y, weight)
            for t, n in zip(state, new, strict=True):
                t[:k] = n
        return state


def bound(net: Net, work: Tensor, only: slice | None):
    """Return (k, x, y, weight) -> gradients of the chosen parameters, and flat -> views like these, for c clients."""
    net.module.train()
    parts = net.split(work)
    chosen = [i for i, name in enumerate(net.names) if only is None or inside(net.blocks[name], only)]

    def loss(moving, parts, x, y, weight):
        parts = list(parts)
        for i, p in zip(chosen, moving, strict=True):
            parts[i] = p
        return (F.cross_entropy(net(parts, x), y, reduction="none") * weight).sum()
    step = vmap(grad(loss))

    def gradients(k, x, y, weight):
        now = [p[:k] for p in parts]
        return step([now[i] for i in chosen], now, x, y, weight)

    def views(flat):
        views = net.split(flat)
        return [views[i] for i in chosen]
    return gradients, views


def free(loss, work: Tensor, only: slice | None, args):
    """The same for any loss(w, x, y, *args) -> (b,) of the flat vector."""
    block = slice(None) if only is None else only
    step = vmap(grad(lambda w, x, y, weight, *args: (loss(w, x, y, *args) * weight).sum()))

    def gradients(k, x, y, weight):
        return [step(work[:k], x, y, weight, *(a[:k] for a in args))[:, block]]
    return gradients, lambda flat: [flat[:, block]]


@dataclass(frozen=True)
class VmapData:
    """One client's training data as a method sees them inside vmap (see method.py for what it offers)."""
    cohort: Cohort
    n: Tensor              # number of training samples: a batched 0-d tensor, which also marks the vmap level

    @property
    def lr(self) -> float:
        return self.cohort.local.lr

    @property
    def epochs(self) -> int:
        return self.cohort.local.epochs

    @property
    def momentum(self) -> float:
        return self.cohort.local.momentum

    def passes(self, epochs: int, stream: int) -> VmapData:
        local = self.cohort.local._replace(epochs=epochs, steps=None)
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, local=local, stream=stream))

    def through(self, net: Net, w: Tensor) -> VmapData:
        features = []      # the whole cohort's, kept as they are: what vmap returns would be one client's view

        def forward(n, w):
            features.append(self.cohort.forward(net, w))
            return n
        Outside.apply(forward, self.n, w)
        return dataclasses.replace(self, cohort=dataclasses.replace(self.cohort, x=features[0]))

    def mean_loss(self, net: Net, w: Tensor) -> Tensor:
        return Outside.apply(lambda n, w: self.cohort.mean_loss(net, w), self.n, w)

    def descend(self, net, w: Tensor, lr: float | None = None, only: slice | None = None, pull=(),
                momentum: float | None = None, args=(), clip=None) -> Tensor:
        lr = self.lr if lr is None else lr
        momentum = self.momentum if momentum is None else momentum
        strengths = [torch.as_tensor(s, dtype=w.dtype, device=w.device) for _, s, _ in pull]
        centres = [c for c, _, _ in pull]
        blocks = [b or slice(None) for _, _, b in pull]

        def descend(n, w, *tensors):
            k = len(pull)
            pulls = list(zip(tensors[:k], tensors[k:2 * k], blocks, strict=True))
            return self.cohort.descend(net, w, lr, only, pulls, momentum, tensors[2 * k:], clip)
        return Outside.apply(descend, self.n, w, *centres, *strengths, *args)

    def walk(self, step, state):
        return Outside.apply(lambda n, *state: self.cohort.walk(step, state), self.n, *state)


class Vmap:
    """The engine: applies a function to chunks of clients at once, as many as fit in `memory` bytes (on a GPU: in what
    is free there)."""
    name = "vmap"

    def __init__(self, memory: float = 2 ** 30):
        self.memory = memory
        self.most = MOST      # clients at once; halved when a device runs out of memory

    def apply(self, function, clients, shared, group, local: plan.Local):
        """Yield (client, function(shared, mine, data)) for each client of the group, chunk by chunk."""
        sizes = {c: len(group.training(c)[1]) for c in clients}
        waiting = sorted(clients, key=lambda c: (-sizes[c], c))
        while waiting:
            chunk = waiting[:min(self.most, self._fitting(group, *group.training(waiting[0])))]
            try:
                results = self._together(function, chunk, shared, group, local)
            except torch.OutOfMemoryError:
                if len(chunk) == 1:
                    raise
                self.most = len(chunk) // 2
                torch.cuda.empty_cache()
                continue
            yield from results
            waiting = waiting[len(chunk):]

    def _fitting(self, group, x: Tensor, y: Tensor) -> int:
        """Return how many clients like this one fit: their samples and VECTORS vectors of parameters each."""
        free = torch.cuda.mem_get_info(x.device)[0] / 2 if x.is_cuda else self.memory
        each = x.numel() * 4 + VECTORS * 4 * group.method.model.size
        return max(1, int(free // each))

    def _together(self, function, clients, shared, group, local) -> list:
        group.at = clients[0] if len(clients) == 1 else clients
        x, y = zip(*(group.training(c) for c in clients), strict=True)
        cohort = Cohort(pad(x), pad(y), tuple(map(len, y)), tuple(clients), local)
        results = together(function, shared, [group.store.read(c) for c in clients], cohort)
        return list(zip(clients, results, strict=True))


def together(function, shared, mine: list, cohort: Cohort) -> list:
    """Return function(shared, mine, data) of each client of a cohort."""
    mine = type(mine[0])(*(torch.stack(column) for column in zip(*mine, strict=True)))
    sizes = torch.tensor(cohort.sizes, device=cohort.y.device)
    leaves, tree = tree_flatten(vmap(lambda mine, n: function(shared, mine, VmapData(cohort, n)))(mine, sizes))
    return [tree_unflatten([leaf[i].clone() for leaf in leaves], tree) for i in range(len(sizes))]


def rehearse(method, shared, mine, blank: Tensor):
    """Run two clients of one blank sample (1, ...) at once: fails if the network cannot be vectorised."""
    y = torch.zeros(1, dtype=torch.int64, device=blank.device)
    cohort = Cohort(pad((blank, blank)), pad((y, y)), (1, 1), (0, 1), REHEARSAL)
    return together(method.client, shared, [mine, mine], cohort)


def pad(rows: tuple[Tensor, ...]) -> Tensor:
    """Stack tensors of different lengths, zero-padded to whole blocks, as many as the first and longest has."""
    out = rows[0].new_zeros((len(rows), -(-len(rows[0]) // BLOCK) * BLOCK, *rows[0].shape[1:]))
    for i, row in enumerate(rows):
        out[i, :len(row)] = row
    return out
