"""What a name that does not exist was probably meant to be: one that is spelt otherwise, or one of another section."""
from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# How much a setting of another section must resemble the name: less is a guess.
CLOSE_ELSEWHERE = .75
# A name of the same section that differs so little comes before what the help on settings says.
VERY_CLOSE = .9


def simplify_name(name: str) -> str:
    """Return a name without what its spellings differ in: `FedAvg+`, `fedavg_plus` and `FedAvg-Plus` are the same."""
    return "".join(filter(str.isalnum, name.casefold().replace("+", "plus")))


def find_close_name(name: str, known: Collection[str], cutoff: float = .6) -> str:
    """Return the known name that was probably meant, which may be spelt as a title is; "" if there is none."""
    simple = {simplify_name(k): k for k in known}
    if simplify_name(name) in simple:
        return simple[simplify_name(name)]
    if close := difflib.get_close_matches(name, known, 1, cutoff):
        return close[0]
    close = difflib.get_close_matches(simplify_name(name), simple, 1, cutoff)
    return simple[close[0]] if close else ""


def find_close_settings(key: str, own: Mapping[str, str], elsewhere: Mapping[str, str]) -> list[str]:
    """Return the settings that a key was probably meant to be, several only if each of them has this name.

    Args:
        own: the settings of the section that the key stands in, with the help of each
        elsewhere: those of other sections, by dotted path"""
    last = {path: path.rpartition(".")[2] for path in elsewhere}
    if same := [path for path in elsewhere if last[path] == key]:
        return same
    if close := find_close_name(key, own, VERY_CLOSE):
        return [close]
    # learning_rate is "learning rate eta"
    if len(key) > 3 and (said := [name for name, help_ in {**own, **elsewhere}.items()
                                  if simplify_name(help_).startswith(simplify_name(key))]):
        return said[:1]
    for names, cutoff in ({name: name for name in own}, .6), (last, CLOSE_ELSEWHERE):
        close = find_close_name(key, [*names.values()], cutoff)
        # batch_size, num_clients; then misspelt names; then abbreviated ones
        tests = (lambda name: f"_{name}_" in f"_{key}_", lambda name, close=close: name == close,
                 lambda name: len(key) > 2 and name.startswith(key))
        for test in tests:
            if found := [path for path, name in names.items() if test(name)]:
                return found[:1]
    return []
