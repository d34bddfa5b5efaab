"""How long runs were, beside the runs behind the published numbers."""
from __future__ import annotations

import statistics
from typing import NamedTuple

from fedmpi.json_values import JsonObject

LENGTH_EXPLAINED = "length: the rounds of a run, as a share of those behind the published number"


class Length(NamedTuple):
    """The length of the runs of a cell."""
    # rounds, mean over the finished seeds
    made: float
    # rounds behind the published number
    published: int


def find_length(found: list[JsonObject | None], published: int | None) -> Length | None:
    """Return the length of the finished runs of a cell; None if there are none, or the published length is not known.
    """
    made = [result["rounds"] for result in found if result and "rounds" in result]
    return Length(statistics.fmean(made), published) if made and published else None


def show_length(length: Length | None) -> str:
    """Return a length as a text, such as `5 % of 2,000`."""
    if length is None:
        return "-"
    share = 100 * length.made / length.published
    return f"{share:{'.0f' if share >= 10 else '.2g'}} % of {length.published:,}"
