"""Clients that fail and clients that attack: the settings, and who they are.

Their updates are altered in clients/updates.py. All draws follow from the seed, the round and the client's number."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from fedmpi.json_values import JsonObject
from fedmpi.settings import Ge, Gt, Lt, make_settings
from fedmpi.text import format_spans

if TYPE_CHECKING:
    from fedmpi.method import Participants

# Keep these uses of the seed apart from others.
DROPS_STREAM, ATTACKERS_STREAM = 0xD20B, 0xA77A


@dataclass(frozen=True)
class Faults:
    """Clients that fail, and updates that cannot be used."""
    title = "faults"
    bad_update: Annotated[Literal["stop", "skip"], "an update with numbers that are not finite or out of range "
                          "(integers aside): stop ends the run, skip leaves it and its client out of a round"] = "stop"
    drop: Annotated[float, Ge(0), Lt(1), "probability that a participant is lost during a round"] = 0.

    def drop_participants(self, who: Participants) -> Participants:
        """Return the participants that are not lost during the round.

        A lost client loses what it learned and starts its next round from its old state. So nothing is computed for it
        but what clients do that do not take part (`idle`)."""
        if not self.drop or not len(who.ids):
            return who
        chances = np.random.default_rng((who.seed, who.round, DROPS_STREAM)).random(who.ids[-1] + 1)
        return who.only(chances[who.ids] >= self.drop)

    def describe_lost_clients(self, in_time: Participants, trained: Participants,
                              accepted: Participants) -> tuple[dict[str, list[int]], str]:
        """Return which clients were lost and whose updates were not taken, and a line that says so ("" if none).

        Args:
            in_time: the participants that were in time, if none of them was lost.
            trained: those of them that were not lost.
            accepted: those of them whose updates the server took."""
        lost, bad = np.setdiff1d(in_time.ids, trained.ids).tolist(), np.setdiff1d(trained.ids, accepted.ids).tolist()
        facts = ({"lost": lost} if self.drop else {}) | ({"bad_updates": bad} if self.bad_update == "skip" else {})
        parts = [*([f"lost clients {format_spans(lost)}"] if lost else []),
                 *([f"left out bad updates of clients {format_spans(bad)}"] if bad else [])]
        nobody = "" if len(accepted.ids) else "; no update is left, and the server's state stays"
        return facts, f"round {in_time.round + 1}: {', '.join(parts)}{nobody}" if parts else ""


@dataclass(frozen=True)
class Attack:
    """Clients that attack.

    sign_flip: they send the opposite of their update, `scale` times as long (Li et al., AAAI 2019). noise: they add
    normal noise to it. label_flip: they train on labels c - 1 - y (Fang et al., USENIX Security 2020)."""
    title = "attack"
    kind: Annotated[Literal["sign_flip", "noise", "label_flip"], "what the attackers do"]
    share: Annotated[float, Gt(0), Lt(1), "share of clients that attack, drawn once; at least one, never all"] = .2
    scale: Annotated[float, Gt(0), "sign_flip: factor; noise: standard deviation"] = 1.


def read_attack(settings: JsonObject) -> Attack | None:
    """Return the attack in the settings of a run folder, if there is one. Raises BadInput if it cannot be read."""
    section = settings.get("attack")
    return make_settings(Attack, section, "attack") if section else None


def choose_attackers(attack: Attack | None, n: int, seed: int) -> np.ndarray:
    """Return which of n clients attack, ascending; nobody does without `attack`."""
    count = 0 if attack is None else min(max(1, round(attack.share * n)), n - 1)
    return np.sort(np.random.default_rng((seed, ATTACKERS_STREAM)).choice(n, count, replace=False))


def find_honest(attack: Attack | None, n: int, seed: int) -> np.ndarray:
    """Return which of n clients do not attack, (n,) bool."""
    return np.isin(np.arange(n), choose_attackers(attack, n, seed), invert=True)
