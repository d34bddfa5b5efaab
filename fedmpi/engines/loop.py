"""Engine `loop`: one client after another, as fast as a hand-written PyTorch loop. It is the oracle of all engines.

What keeps it fast: the module's own parameters are views of one flat vector that is updated in place; no DataLoader,
no optimiser object, no `.item()` per batch; images lie channels-last; pulls are applied in closed form."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmpi.engines import batch_plan, factored_gradients, sparse_embedding
from fedmpi.engines.batchnorm import gather_statistics
from fedmpi.engines.gradient_variance import Spread
from fedmpi.engines.proximal import approach
from fedmpi.engines.step_counter import NOBODYS, StepCounter
from fedmpi.models.build import as_input
from fedmpi.models.flat import Net, attach_logits, cross_entropy
from fedmpi.models.precision import forward

GATHER = 32 << 20      # bytes of batches that are gathered at once
SAMPLES_PER_PASS = 500            # samples per forward pass without gradients
REHEARSAL = batch_plan.LocalTraining(seed=0, round=0, batch=1, epochs=1, steps=1, lr=1e-3, momentum=0.)


@dataclass(frozen=True)
class LoopData:
    """One client's training data in one round (see method.py for what it offers)."""
    x: Tensor              # (n, ...) as stored, or features
    y: Tensor              # (n,), or (n, 1 + c) with logits that are added: see flat.beside
    client: int
    local: batch_plan.LocalTraining
    stream: int = 0
    message: tuple | None = None
    number: int | None = None      # that tables of Shared go by, where it is not `client`, the number of the draws
    left: dict = field(default_factory=dict)      # running statistics after the latest training, by their number
    counter: StepCounter = NOBODYS

    @property
    def id(self) -> Tensor:
        number = self.client if self.number is None else self.number
        return torch.full((), number, dtype=torch.int64, device=self.y.device)      # a copy would wait for a GPU

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def lr(self) -> float:
        return self.local.lr

    @property
    def epochs(self) -> int:
        return self.local.epochs

    @property
    def steps(self) -> int | None:
        return self.local.steps

    @property
    def decay(self) -> float:
        return self.local.decay

    @property
    def momentum(self) -> float:
        return self.local.momentum

    def any_client(self, flag: Tensor) -> bool:
        return bool(flag)

    def with_batches(self, epochs: int | None, stream: int, steps: int | None = None,
                     kind: str | None = None) -> LoopData:
        return dataclasses.replace(self, local=batch_plan.with_batches(self.local, epochs, steps, kind), stream=stream)

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> LoopData:
        kept = batch_plan.sent(
            batch_plan.subset(self.local, self.client, stream, self.n, share, fixed, rest), self.y.device
        )
        return dataclasses.replace(self, x=self.x[kept], y=self.y[kept])

    def with_features(self, net: Net, w: Tensor) -> LoopData:
        return dataclasses.replace(self, x=self._forward(net, w))

    def with_added_logits(self, net: Net, w: Tensor) -> LoopData:
        return dataclasses.replace(self, y=attach_logits(self.y, self._forward(net, w)))

    def mean_loss(self, net: Net, w: Tensor) -> Tensor:
        return cross_entropy(self._forward(net, w), self.y)

    def class_sums(self, net: Net, w: Tensor, classes: int) -> Tensor:
        outputs = self._forward(net, w)
        return F.one_hot(self.y, classes).to(outputs.dtype).T @ outputs

    @torch.no_grad()
    def _forward(self, net: Net, w: Tensor) -> Tensor:
        net.bind(w)
        net.module.eval()
        return torch.cat([forward(net.module, as_input(x)) for x in self.x.split(SAMPLES_PER_PASS)])

    def one_by_one(self, function, *tensors: Tensor) -> Tensor:
        return function(*tensors)

    def batches(self):
        """Yield (x, y) of every step; samples are gathered for many steps at once, each batch is then a slice."""
        drawn = batch_plan.draw_batches(self.local, self.client, self.stream, self.n)
        index = batch_plan.sent(drawn.index, self.y.device)
        size = index.shape[1]
        together = max(1, GATHER // max(1, 4 * self.x[0].numel() * size))
        counts = drawn.count.tolist()
        for start in range(0, len(index), together):
            rows = index[start:start + together].flatten()
            x, y = as_input(self.x[rows]), self.y[rows]
            for at, count in enumerate(counts[start:start + together]):
                yield x[at * size:at * size + count], y[at * size:at * size + count]

    def noisy(self, shape: tuple[int, ...]):
        """Yield (x, y, e) of every step, with the batch's noise e (b, *shape)."""
        steps = batch_plan.steps_of(self.local, self.n)
        at_once = batch_plan.steps_at_once((self.local.batch, *shape), steps, self.y.device)
        drawn = batch_plan.noise(self.local, self.client, self.stream, shape)
        blocks = (batch_plan.sent(batch_plan.taken(drawn, at_once), self.y.device) for _ in range(0, steps, at_once))
        for (x, y), e in zip(self.batches(), chain.from_iterable(blocks), strict=False):
            yield x, y, e[:len(y)]

    def descend(self, net, w: Tensor, lr: float | None = None, only: slice | None = None, pull=(),
                momentum: float | None = None, args=(), clip=None, spread: bool = False, noise=None, where=None):
        lr = self.lr if lr is None else lr
        momentum = self.momentum if momentum is None else momentum
        if nothing(only) or not (where is None or where):
            return (w.clone(), w.new_zeros(())) if spread else w.clone()
        self.counter.add(self.local.kind, batch_plan.steps_of(self.local, self.n))
        if not spread and sparse_embedding.sparse(net, w, only, pull, momentum, clip):
            return sparse_embedding.descend(self.batches(), net, w, lr, only, pull)
        work, gradients, views = (bind_module(net, w, only, factored=not spread) if isinstance(net, Net) else
                                  bind_loss(net, w, only, args))
        moving, still = views(work), net.still if isinstance(net, Net) else ()
        velocity = torch.zeros_like(work) if momentum else None
        speeds = views(velocity) if momentum else None
        seen = Spread([v[None] for v in views(torch.zeros_like(work))]) if spread else None
        for batch in self.noisy(noise) if noise else self.batches():
            grads = gradients(*batch)
            if spread:
                seen.add([g[None] for g in grads])
            kept = [(work[part], work[part].clone()) for part in still]
            if momentum:      # velocity <- momentum * velocity + gradient + pulls
                velocity.mul_(momentum)
                factored_gradients.add_gradients(speeds, grads)
                for centre, strength, block in pull:
                    velocity[block].add_((work[block] - centre) * strength)
                work.sub_(velocity, alpha=lr)
            else:
                approach([(work[block], centre, lr * strength) for centre, strength, block in pull])
                factored_gradients.add_gradients(moving, grads, -lr)
            if clip:
                work.clamp_(*clip)
            for part, statistics in kept:      # what the forward pass made of them: no step moves them
                part.copy_(statistics)
        if still:
            self._leave(work, still)
        trained = net.handed_over() if isinstance(net, Net) else work
        return (trained, seen.value()[0]) if spread else trained

    def _leave(self, w: Tensor, still) -> None:
        statistics = gather_statistics(w, still)
        self.left[len(statistics)] = statistics

    def scan(self, step, state, streams=()):
        """Fold `step(state, grad, ...) -> state` over the batches; grad(net, w) is the gradient on the batch."""
        state = tuple(t.clone() for t in state)
        draws = (self, *(dataclasses.replace(self, stream=stream) for stream in streams))
        for batches in zip(*(draw.batches() for draw in draws), strict=True):
            state = step(state, *(partial(self._gradient, *batch) for batch in batches))
        return state

    def _gradient(self, x: Tensor, y: Tensor, net: Net, w: Tensor) -> Tensor:
        """Return the gradient (d,) of the mean cross-entropy on a batch."""
        self.counter.add(self.local.kind, 1)
        work, gradients, views = bind_module(net, w, None)
        flat = torch.zeros_like(w)
        torch._foreach_copy_(views(flat), gradients(x, y))
        if net.still:
            for part in net.still:      # the statistics of a model in `state` move with its forward passes
                w[part] = work[part]
            self._leave(work, net.still)
        return flat


def nothing(only: slice | None) -> bool:
    """Say whether a block is empty, as the feature extractor of a network of a single layer is."""
    return only is not None and only.start == only.stop


def bind_module(net: Net, w: Tensor, only: slice | None, factored: bool = False):
    """Bind w to the module. Return the vector that moves, (x, y) -> gradients, and flat -> views like these.

    With `factored` some gradients may be Factors."""
    work = net.bind(w)
    chosen = net.chosen(only)
    leaves = [net.leaf(i) for i in chosen]

    def whole(x, y):
        net.train(len(y))
        return torch.autograd.grad(cross_entropy(forward(net.module, x), y), leaves)

    def tapped(x, y):
        net.train(len(y))
        with tap:
            loss = cross_entropy(forward(net.module, x), y)
        return tap.gradients(loss)

    def views(flat):
        parts = net.split(flat)
        return [parts[i] for i in chosen]
    tap = factored_gradients.Tap(leaves) if factored and factored_gradients.fit(net, leaves) else None
    return work, tapped if tap else whole, views


def bind_loss(loss, w: Tensor, only: slice | None, args):
    """The same for any loss(w, x, y, *args) -> (b,), differentiated with respect to the flat vector."""
    work = w.detach().clone()
    block = slice(None) if only is None else only

    def gradients(x, y, *noise):
        at = work.detach().requires_grad_()
        return (torch.autograd.grad(loss(at, x, y, *noise, *args).mean(), at)[0][block],)
    return work, gradients, lambda flat: [flat[block]]


class Loop:
    """The engine: applies a function to clients, one after another."""
    name = "loop"

    def apply(self, function, clients, shared, group, local: batch_plan.LocalTraining):
        """Yield (client, function(shared, mine, data)) for each client of the group."""
        for client in clients:
            group.context.client = client
            seed(hash((local.seed, local.round, client)) % 2**63)      # for networks with dropout
            data = LoopData(*group.training(client), client, local, message=group.messages.get(client),
                            counter=group.counter)
            yield client, function(shared, group.store.read(client), data)


def seed(number: int) -> None:
    """Do what torch.manual_seed does; that takes .3 ms a client where no GPU is in use."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def rehearse_loop(method, shared, mine, blank: Tensor):
    """Run a client of one blank sample (1, ...) for one step: shows what a client keeps and sends, as (Mine, Up)."""
    data = LoopData(blank, torch.zeros(1, dtype=torch.int64, device=blank.device), 0, REHEARSAL,
                    message=method.message_template())
    return method.client(shared, mine, data)
