"""The functions of a method, as the rounds of a run call them.

The rehearsal has tried those of a user's own method once. What one of them returns in a later round may still be wrong;
here it is refused, with the file and the line of the function, before anything computes with it."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from torch import Tensor

from fedmpi.clients.returned import (
    refuse_no_weights,
    refuse_other_state,
    refuse_returned,
    refuse_wrong_messages,
    refuse_wrong_stage,
    refuse_wrong_traffic,
    split_pair,
)
from fedmpi.comm.rows import Rows
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.method import ClientData, Method, Participants, RowsByField, State, Weights
from fedmpi.own_code.places import is_built_in


@contextmanager
def check_in_round() -> Iterator[None]:
    """Make a failure (FedmpiError) of what a check in this context refuses as BadInput: the run has begun. No function
    of a method is called in it, since a BadInput of its own stays what it is."""
    try:
        yield
    except BadInput as error:
        raise FedmpiError(str(error)) from None


class CheckedMethod:
    """Calls the functions of a method, which the class Method explains. Functions of fedmpi's own methods are not
    checked, since tests do it.

    Args:
        method: the method on its network.
        mine: what a client keeps at first, from `init`.
        up: what a client sends, from the rehearsal; None: it is not known, and what is sent is not compared.
        outputs: how many numbers the network returns for a sample."""

    def __init__(self, method: Method, mine: State, up: State, outputs: int):
        self.method, self.mine, self.up, self.outputs = method, mine, up, outputs
        self.checks = not is_built_in(type(method))
        # what `messages` addresses to one client looks like this; None: it addresses nothing
        self.message_template: State = method.message_template()

    def client(self, shared: State, mine: State, data: ClientData) -> tuple[State, State]:
        """Run one participant's round. Return its new Mine, and the Up that it sends."""
        found = self.method.client(shared, mine, data)
        if self.checks:
            with check_in_round():
                kept, sent = split_pair(self.method, "client", found, "(Mine, Up)")
                refuse_other_state(self.method, "client", kept, self.mine, "a Mine")
                if self.up is not None:
                    refuse_other_state(self.method, "client", sent, self.up, "an Up", origin="its first call")
        return found

    def idle(self, shared: State, mine: State, data: ClientData) -> State:
        """Return the new Mine of a client that does not take part in this round."""
        found = self.method.idle(shared, mine, data)
        if self.checks:
            with check_in_round():
                refuse_other_state(self.method, "idle", found, self.mine, "a Mine")
        return found

    def personal(self, shared: State, mine: State, data: ClientData) -> Weights:
        """Return the weights that a client is evaluated with, before its next local training."""
        found = self.method.personal(shared, mine, data)
        self._check_weights("personal", found)
        return found

    def serve_newcomer(self, shared: State, mine: State, data: ClientData) -> Weights:
        """Return the weights with which a client is evaluated that never took part."""
        found = self.method.serve_newcomer(shared, mine, data)
        self._check_weights("serve_newcomer", found)
        return found

    def unadapted(self, shared: State, mine: State) -> Weights | None:
        """Return the weights from which `personal` trains, None if it does not train."""
        found = self.method.unadapted(shared, mine)
        if found is not None:
            self._check_weights("unadapted", found)
        return found

    def trained(self, shared: State, mine: State, up: State) -> Weights | None:
        """Return the weights right after local training if they differ from those of `personal`, else None."""
        found = self.method.trained(shared, mine, up)
        if found is not None:
            self._check_weights("trained", found)
        return found

    @property
    def may_differ_after_training(self) -> bool:
        """Say whether the method defines `trained`, without which nothing is measured right after local training."""
        return type(self.method).trained is not Method.trained

    def predict(self, w: Weights, x: Tensor) -> Tensor:
        """Return the logits (b, c) of weights."""
        found = self.method.predict(w, x)
        if self.checks and not (isinstance(found, Tensor) and found.shape == (len(x), self.outputs)):
            self._refuse("predict", found, f"logits, a tensor of shape ({len(x)}, {self.outputs})")
        return found

    def traffic(self, shared: State) -> tuple[int, int]:
        """Return the bytes that one participant needs to receive and to send in a round."""
        if self.checks:
            self._check_template(self.method.message_template())
        found = self.method.traffic(shared, self.up)
        if self.checks:
            with check_in_round():
                refuse_wrong_traffic(self.method, found)
        return found

    def stage_of(self, shared: State, rounds: int) -> int:
        """Return in which of the method's stages the round is that begins with this Shared, in a run of so many."""
        found = self.method.stage_of(shared)
        if self.checks:
            stages = self.method.stages(shared, rounds)
            with check_in_round():
                refuse_wrong_stage(self.method, found, len(stages))
        return found

    def messages(self, shared: State, mine: RowsByField, who: Participants) -> State:
        """Return what the server addresses to each participant."""
        found = self.method.messages(shared, mine, who)
        if self.checks:
            with check_in_round():
                refuse_wrong_messages(self.method, found, self.message_template, len(who.ids))
        return found

    def server(self, shared: State, up: RowsByField, who: Participants) -> State:
        """Return the next Shared from what the participants sent."""
        found = self.method.server(shared, up, who)
        if self.checks:
            with check_in_round():
                refuse_other_state(self.method, "server", found, shared, "a Shared", dtypes=False)
        return found

    def embedding(self, mine: RowsByField, up: RowsByField) -> Rows | None:
        """Return the rows by which t-SNE pictures clients, None if there are none."""
        found = self.method.embedding(mine, up)
        if found is not None and not isinstance(found, Rows):
            self._refuse("embedding", found, "rows of clients (Rows), or None")
        return found

    def _refuse(self, name: str, found: object, wanted: str) -> NoReturn:
        with check_in_round():
            refuse_returned(self.method, name, found, wanted)

    @check_in_round()
    def _check_template(self, found: State) -> None:
        if found is None and self.message_template is None:
            return
        if found is None or self.message_template is None:
            first = "None" if self.message_template is None else "a NamedTuple of tensors"
            refuse_returned(self.method, "message_template", found, f"{first} as in its first call")
        refuse_other_state(self.method, "message_template", found, self.message_template, "a message",
                           origin="its first call")

    def _check_weights(self, name: str, found: object) -> None:
        if self.checks:
            with check_in_round():
                refuse_no_weights(self.method, name, found)
