"""What a method's functions are given: one client's data (`ClientData`), and rows of all clients (`RowsByField`).

Both are protocols: the engines and the server have classes of their own that fit them.

Legend of shapes: N clients, n participants, d parameters, b batch, c classes."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload

from torch import Tensor

from fedmpi.models.flat import Net

if TYPE_CHECKING:
    from fedmpi.comm.rows import Rows

# A method's own NamedTuple of tensors: its Shared, Mine, Up or message. Every method names its own classes in its
# signatures, and a base class can allow that only by Any.
State: TypeAlias = Any
# A network, whose cross-entropy is meant, or a loss of your own: loss(w, x, y, *args) -> (b,).
NetOrLoss: TypeAlias = Net | Callable[..., Tensor]
# A network, or a function of your own that maps weights and samples to outputs: outputs(w, x) -> (b, ...).
NetOrOutputs: TypeAlias = Net | Callable[[Tensor, Tensor], Tensor]
# A proximal term (centre, strength, block); with None for the block it concerns all of w.
Pull: TypeAlias = tuple[Tensor, float | Tensor, slice | None]


class ClientData(Protocol):
    """One client's training data in one round, and all that a method may do with them.

    Both engines pass an object of this kind to `client`, `idle`, `personal` and `serve_newcomer`. Only `descend` and
    `scan` make SGD steps, so that the cost of a method and its random draws are known."""

    @property
    def id(self) -> Tensor:
        """The client's number (0-d int64), which is the index of its row in tables of Shared."""

    @property
    def n(self) -> int | Tensor:
        """The number of training samples (an int or 0-d)."""

    @property
    def message(self) -> State:
        """What `Method.messages` addressed to this client in this round (FedAMP, FedFomo). It is for `client`: None
        where a client is evaluated, or does not take part."""

    @property
    def lr(self) -> float:
        """The run's learning rate in this round."""

    @property
    def full_lr(self) -> float:
        """The setting train.lr, for what begins anew: the rate without lr_decay, schedule and warm-up."""

    @property
    def decay(self) -> float:
        """By what lr_decay, schedule and warm-up have multiplied the rate, for rates of your own (pFedMe, CGPFL)."""

    @property
    def momentum(self) -> float:
        """The run's momentum."""

    @property
    def epochs(self) -> int:
        """The run's local epochs."""

    @property
    def fixed_steps(self) -> int | None:
        """The setting train.steps, which replaces the epochs; None if epochs count."""

    @property
    def steps(self) -> int | Tensor:
        """The number of steps that one `descend` or `scan` of these data makes (an int or 0-d): SCAFFOLD, FedNova."""

    @property
    def class_counts(self) -> Tensor:
        """The number of training samples of each class, (c,) float."""

    @overload
    def descend(self, net: NetOrLoss, w: Tensor, *, lr: float | None = None, only: slice | None = None,
                pull: Sequence[Pull] = (), momentum: float | None = None, args: Sequence[Tensor] = (),
                clip: tuple[float, float] | None = None, spread: Literal[False] = False,
                noise: tuple[int, ...] | None = None, where: Tensor | None = None) -> Tensor:
        """Return w (d,) after SGD, or the run's optimizer, on the round's batches."""

    @overload
    def descend(self, net: NetOrLoss, w: Tensor, *, lr: float | None = None, only: slice | None = None,
                pull: Sequence[Pull] = (), momentum: float | None = None, args: Sequence[Tensor] = (),
                clip: tuple[float, float] | None = None, spread: Literal[True],
                noise: tuple[int, ...] | None = None, where: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (w, v): v (0-d) is the variance of the batch gradients."""

    def descend(self, net: NetOrLoss, w: Tensor, *, lr: float | None = None, only: slice | None = None,
                pull: Sequence[Pull] = (), momentum: float | None = None, args: Sequence[Tensor] = (),
                clip: tuple[float, float] | None = None, spread: bool = False, noise: tuple[int, ...] | None = None,
                where: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return w (d,) after SGD, or the run's optimizer, on the round's batches.

        Args:
            net: a Net, whose cross-entropy is minimised, or a loss of your own, loss(w, x, y, *args) -> (b,).
            w: the weights to start from (d,).
            lr: the learning rate; None: that of the run.
            momentum: None: that of the run. If one is given, the steps are plain SGD with it: the run's optimizer,
                weight decay, Nesterov's momentum and clipping do not apply (mixes, for example).
            only: the block of w that gradients move; the rest is frozen (FedRep, FedBABU), but for pulls on it.
            pull: proximal terms (centre, strength, block). Each adds strength * (w - centre) to the gradient of its
                block of w (FedProx, Ditto, LCFed).
            args: further tensors for a loss of your own. Tensors that differ between clients must be passed here.
            clip: (low, high). w is clipped to this range after every step (FedAH).
            spread: return (w, v) in place of w. v (0-d) is the variance of the batch gradients, summed over d. Pulls,
                weight decay and train.clip_norm do not count in it; it is 0 after a single batch (FedCPS).
            noise: shape of standard normal noise for each sample. The loss is then loss(w, x, y, e, *args), with a new
                e (b, *noise) in every step, drawn for (seed, round, client, stream) (FedSR, FedCR).
            where: a flag (0-d). A client for which it is False keeps w and makes no steps (FedALA, FedGroup)."""

    def scan(self, step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...],
             streams: Sequence[int] = (), optimize: bool = False) -> tuple[Tensor, ...]:
        """Apply step(state, grad) -> state to every batch and return the last state (pFedMe, Per-FedAvg).

        Args:
            step: is given a BatchGradient `grad` of the batch: grad(net, w) -> (d,). Every tensor that it uses must be
                part of `state`.
            state: the first state, a tuple of tensors.
            streams: for each of these names `step` is given one more grad, on other batches that the name draws.
            optimize: `step` returns a gradient (d,) in the place of the first tensor of the state, w (d,), and the
                run's optimizer takes the step of w: learning rate, momentum, train.optimizer, weight decay, clipping.
                """

    def mean_loss(self, net: NetOrOutputs, w: Tensor) -> Tensor:
        """Return the mean cross-entropy on all training samples (0-d), without gradients (IFCA)."""

    def choose_model(self, net: NetOrOutputs, models: Tensor) -> Tensor:
        """Return the position (0-d) of that one of k models (k, d) whose mean_loss is the lowest, the first of equal
        ones (IFCA). Models that are clearly worse do not pass all samples; one whose loss is NaN is not chosen."""

    def class_sums(self, net: NetOrOutputs, w: Tensor, classes: int | None = None) -> Tensor:
        """Return the sum of net(w, x), (b, p), over the training samples of each class, (c, p), without gradients
        (FedCR). None means all classes of the data."""

    def with_features(self, net: NetOrOutputs, w: Tensor) -> ClientData:
        """Return the same client and batches with net(w, x) in place of x: features computed once (FedAH), of images
        as they are, whatever train.augment says."""

    def with_added_logits(self, net: NetOrOutputs, w: Tensor) -> ClientData:
        """Return the same client with net(w, x) added, sample by sample, to the logits of any network (CAM).

        They count wherever a Net's cross-entropy is computed; a loss of your own does not see them."""

    def subset(self, share: float, stream: int, fixed: bool = False, rest: bool = False) -> ClientData:
        """Return the same client with a random share of its samples, at least one (FedCPS, FedALA, FedFomo).

        Args:
            share: between 0 and 1.
            stream: names the draw: equal names draw equal samples.
            fixed: draw once for all rounds, not again for each.
            rest: return the other samples instead."""

    def with_batches(self, epochs: int | None, stream: int, steps: int | None = None,
                     kind: str | None = None) -> ClientData:
        """Return the same client with other batches (head and mix passes, warm-up, fine-tuning).

        Args:
            epochs: passes over the samples; None for as many as before. If the run counts steps in place of
                epochs, the passes become steps in the same proportion.
            stream: names the draw of the batches; 0 names the run's own.
            steps: a number of steps that replaces the epochs.
            kind: what the steps count as in metrics.jsonl: main, head, mix, warm_up or fine_tuning; None for as
                before."""

    def once(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors, data) for these data: a tensor that is computed once to evaluate the client and to
        train it in the next round (FedALA's mix).

        `personal` and `client` call it with the same function, a method of the Method object. It may depend on nothing
        but its arguments; the result is computed again whenever these differ."""

    def one_by_one(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Return function(*tensors), computed for one client after another even if many train at once (LCFed, FedCPS).

        This is for long inner products, whose last bits would depend on how many clients are computed together."""

    def any_client(self, flag: Tensor) -> bool:
        """Say whether a flag (0-d) holds for any of the clients that train together with this one (FedALA, FedGroup).

        Use it to leave out what nobody needs; torch.where must decide for the single client."""


class BatchGradient(Protocol):
    """One batch of a client, as `ClientData.scan` hands it to the author's step."""

    def __call__(self, net: NetOrLoss, w: Tensor, *args: Tensor) -> Tensor:
        """Return the gradient by w (d,) of the mean over the batch of a network's cross-entropy, or of a loss of your
        own, loss(w, x, y, *args) -> (b,)."""

    def mean(self, outputs: Callable[..., Tensor], w: Tensor, *args: Tensor) -> Tensor:
        """Return the mean over the batch of outputs(w, x, y, *args) -> (b, ...), (...), without gradients."""


class RowsByField(Protocol):
    """What the participants sent (or clients keep), as the server sees it: for each field of Up (or Mine) a handle."""

    def __getattr__(self, name: str) -> Rows: ...

    def __iter__(self) -> Iterator[Rows]: ...
