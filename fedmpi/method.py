"""The interface of a method: pure functions written for one client and for one server.

A method is a frozen dataclass whose fields are its hyper-parameters. The engine runs `client` for every participant,
one after another or many at once (then each tensor is a batch that only the engine sees: no `if` on a tensor's value,
no `.item()`, no in-place change of an argument). `server` runs at rank 0 alone and may branch on data.

What `data`, one client's data in one round, offers (d parameters, b batch):
    data.id                                  the client's number (a 0-d int64 tensor), an index into Shared's tables
    data.message                             what the server's `messages` addressed to this client, or None
    data.n                                   number of training samples (a number or a 0-d tensor)
    data.lr, data.epochs, data.momentum      the run's settings for this round
    data.steps                               the run's steps in place of these epochs; None: there are none
    data.decay                               by what lr_decay has multiplied the learning rate, for a method's own rates
    data.descend(net, w, ...)                plain SGD from w (d,), over the round's batches; see `descend` below
    data.scan(step, state, streams)          a loop over batches that a method writes itself: step(state, grad) ->
                                             state, grad(net, w) -> (d,); a tensor that step uses must be part of state;
                                             step gets a grad more for each of `streams`: on other batches, so named
    data.mean_loss(net, w)                   mean cross-entropy on all training samples (a 0-d tensor)
    data.class_sums(net, w, classes)         sums of net(w, x) over the training samples of each class, (classes, ...)
    data.one_by_one(function, *tensors)      function(*tensors) -> a tensor, computed for one client after another: for
                                             long inner products, whose bits in a batch depend on the batch
    data.with_features(net, w)               the same client with net(w, x) in place of x, and the same batches
    data.with_added_logits(net, w)           the same client with the logits net(w, x) added, sample by sample, to those
                                             of any network whose cross-entropy is asked for (additive models)
    data.subset(share, stream, fixed, rest)  the same client with a random share of its samples (at least one), drawn
                                             for the round or (fixed) once for all; `rest`: with the others instead
    data.with_batches(epochs, stream, steps, kind) the same client with other batches: `stream` names the draw; so many
                                             `steps`, where given, in place of epochs; None epochs: as the run has them;
                                             where the run's steps stand for its epochs, so they do here, in proportion;
                                             `kind` is what the steps count as in metrics.jsonl (main, head, mix,
                                             warm_up, fine_tuning; None: as before, first main)
    data.any_client(flag)                    whether a 0-d flag holds for any client that is trained at once with this
                                             one: leaves out what nobody needs; torch.where decides for each client
`data.descend(net_or_loss, w, lr=, only=, pull=, momentum=, args=, clip=, spread=, noise=, where=)`:
    net_or_loss  a Net (its cross-entropy is minimised), or loss(w, x, y, *args) -> (b,)
    only         a block of w that moves (a slice); the rest is frozen
    pull         [(centre, strength, block)]: adds strength * (w - centre) to the gradient of that block of w
    clip         (low, high): w is clipped to that range after every step
    spread       True: returns (w, v), v the variance of the batches' gradients (without pulls), summed over d (a 0-d
                 tensor; 0 where there was a single batch)
    noise        shape of standard normal noise of a sample: a loss(w, x, y, e, *args) is given e (b, *noise), drawn
                 for (seed, round, client, stream), anew at every step
    where        a 0-d flag: a client for which it does not hold keeps w, and makes no steps
"""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple

from fedmpi.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from fedmpi.models.flat import Model


# The names that version 0.1 had for parts of this interface.
RENAMED = {"on": "with_model", "opening": "warm_up_participants", "note": "message_template", "down": "messages",
           "averages": "supports_robust_mean", "keeps_statistics": "supports_local_batchnorm"}


class Nothing(NamedTuple):
    """A Shared, Mine or Up without fields."""


@dataclass
class Participants:
    """Who takes part in a round, as the server sees it."""
    ids: object             # (n,) int64, ascending
    sizes: object           # (n,) training samples of each
    round: int
    seed: int

    def __post_init__(self):
        self.facts, self.each = {}, {}

    def only(self, kept) -> Participants:
        """Return those participants for which `kept` (n,) is true, with what was reported of the round."""
        some = Participants(self.ids[kept], self.sizes[kept], self.round, self.seed)
        some.facts = dict(self.facts)
        return some

    def log(self, **facts):
        """Hand measures of this round to the run's books: `clusters` (n,) of `k`, `iterations`, `distance`, ..."""
        self.facts |= facts

    def log_per_client(self, **columns):
        """Hand a measure of each participant (n,) to the books: history.h5 keeps every client's last one, metrics.jsonl
        their mean, over all clients that have one and over those of each planted group that has a name."""
        self.each |= columns


@dataclass(frozen=True)
class Method:
    """Base of all methods. Subclasses set the class attributes and override the functions."""
    title = ""       # as papers write it
    paper = ""       # authors, venue, year
    judged_by = ""   # which weights a client is judged by
    supports_local_batchnorm = True      # BatchNorm's may stay at clients: what is sent and compared are models
    supports_robust_mean = True  # the server aggregates by `mean` and `mean_by` alone, which `server.robust` replaces

    def __init_subclass__(cls, **words):
        super().__init_subclass__(**words)
        for old, new in RENAMED.items():
            if isinstance(vars(cls).get(old), FunctionType | bool):
                raise BadInput(f"{cls.__module__}: {cls.__name__}.{old} is called {new} since version 0.2; rename it")

    @property
    def model(self) -> Model:
        return self.__dict__["_model"]

    def with_model(self, model: Model) -> Method:
        """Return this method for a model. Checks that need the model belong here; raises BadInput."""
        bound = dataclasses.replace(self)
        bound.__dict__["_model"] = model
        return bound

    def check(self, train):
        """Refuse settings that do not go with those of the training (a config.Train). Raises BadInput."""

    def init(self, n: int):
        """Return the first Shared and the first Mine of every client (n clients), NamedTuples of tensors."""
        raise NotImplementedError

    def client(self, shared, mine, data):
        """Run one participant's round: return its new Mine, and what it sends (Up)."""
        raise NotImplementedError

    def warm_up_participants(self, n: int, seed: int):
        """Return the clients (ascending ids) that train in a round before the first one, whose number is -1; None:
        there is no such round."""

    def stages(self, shared, rounds: int) -> list:
        """Return [(rounds, Shared)] between which the work of a client differs, for what is said of a run before it is
        done; `shared` is the first one."""
        return [(rounds, shared)]

    def message_template(self):
        """Return a template (NamedTuple of tensors) of what `messages` addresses to one client; None: nothing."""

    def messages(self, shared, mine, who: Participants):
        """Return what the server addresses to each participant beyond Shared, before it trains: the fields of
        `message_template` as `Rows.mix` of rows that clients keep (`mine`: a Rows handle per field, a row for every
        client). What it logs by `who.log` enters the round's books."""
        return ()

    def traffic(self, shared, up) -> tuple[int, int]:
        """Return the bytes that one participant receives and sends in a round (logical: what it needs)."""
        return nbytes(shared) + nbytes(self.message_template() or ()), nbytes(up)

    @property
    def idles(self) -> bool:
        """Say whether clients that do not take part in a round still run `idle` in it."""
        return False

    def idle(self, shared, mine, data):
        """Return the new Mine of a client that does not take part in this round (where `idles`)."""
        return mine

    def embedding(self, mine, up):
        """Return the rows by which t-SNE is to picture clients: their heads, as they keep or else send them; None:
        there are none. Only their inner products are taken, so they may be long (`mine`, `up`: Rows by field)."""
        for rows in (*mine, *up):
            if rows.stop - rows.start in (self.model.size, self.model.head.size):
                return rows[-self.model.head.size:]
        return None

    def server(self, shared, up, who: Participants):
        """Return the next Shared from the participants' rows (`up`: a Rows handle per field). A field that stays the
        same tensor is not sent again: change one by PyTorch's operations alone, which leave a mark."""
        return shared

    def personal(self, shared, mine, data):
        """Return the weights that a client is judged by, before its next local training."""
        raise NotImplementedError

    def unadapted(self, shared, mine):
        """Return the weights from which `personal` goes on to train for the client, to be judged beside them, where it
        trains; else None."""
        return None

    def trained(self, mine, up):
        """Return the weights right after local training, where they differ from what `personal` gives; else None."""
        return None

    def global_model(self, shared):
        """Return the weights (d,) of the one model that the server has for everybody, to export; None: there is none.
        Shared's field `w`, where that is a whole model."""
        w = getattr(shared, "w", None)
        return w if w is not None and w.shape == self.model.start.shape else None

    def predict(self, w, x: Tensor) -> Tensor:
        """Return the logits (b, c) of the weights that `personal`, `unadapted` or `trained` returned."""
        return self.model(w, x)


def nbytes(state) -> int:
    """Return the bytes of a NamedTuple of tensors."""
    return sum(v.numel() * v.element_size() for v in state)
