"""Values that settings and options get: plausible ones, those at the bounds, and hostile ones."""
from __future__ import annotations

import random
import typing
from types import NoneType

# Texts that must disturb no terminal, file system, shell, format string or parser.
TEXTS = (
    "", " ", "a\0b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b31m", "é", "名前", "\u202eabc", "\ud800", "\udcff",
    "a" * 300, "b" * 5000, "../x", "../../x", "~", "~nouser/x", "/dev/null/x", "/proc/self/none", "$(id)", "`id`", "'",
    '"', "a b", "-x", "--", "%s", "{}", "{0.__class__}", "\\", "\n", "a\nb", "\r", "\t", "nan", "null", "true", "0x10",
    "1e400", "!!python/object:os.system", "*a", "&a b", "?", "a:b", ":", ".x:y", "os:system", "os:path", "json:loads",
    "torch.nn:Linear", "torch.nn:Identity", "fedmpi.methods.fedavg:FedAvg", "canary.txt", "few.npz", "tmp", ".", "/",
    "$$", "$x_$", "\\frac", "<script>", "&amp;", "a/b", "a;id", "a&id", "|id", "#", "=", "a=b", "[", "{", "]", "@x")
INTEGERS = (-1, 0, 1, 2, 3, 4, 5, 7, 10, 12, 100, 1797, 2**15, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63,
            2**64, 10**20, 10**400, -2**31, -2**63)
FLOATS = (-1., -.0, 0., 1e-320, 1e-45, 1e-38, 1e-9, .1, .5, .999999, 1., 1.0000001, 2., 10., 1e9, 1e20, 3.4e38, 3.5e38,
          1e100, 1.7e308, float("inf"), float("-inf"), float("nan"))
# A large value of these settings is not a mistake, but takes long.
SLOW = ("rounds", "epochs", "ft", "steps", "tries", "local_rounds", "head_epochs", "warm_up", "warm_steps",
        "iterations")
# Further measures: known ones, functions that are none or take other arguments, and names that are taken.
MEASURES = ("auc", "auc", "balanced_accuracy", "calibration_error", "torch.nn.functional:cross_entropy", "math:pi",
            "builtins:len", "operator:eq", "numpy:not_there", "not_there:f", "torch:numel", "auroc", "x:loss", "a:")


def hostile(draw: random.Random) -> object:
    """Return any value that YAML can hold."""
    how = draw.randrange(8)
    if how < 3:
        return draw.choice(TEXTS)
    if how == 3:
        return draw.choice(INTEGERS)
    if how == 4:
        return draw.choice(FLOATS)
    if how == 5:
        return draw.choice([True, False, None, [], {}, [[]], {"": ""}, {"name": 1}, {1: 2}, {"name": None}])
    if how == 6:
        return [hostile(draw) for _ in range(draw.randrange(1, 4))]
    return {draw.choice(["name", "x", "k", ""]): hostile(draw) for _ in range(2)}


def plausible(draw: random.Random, hint: object, name: str = "") -> object:
    """Return a value of the type of a setting, often at or beyond a bound."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is typing.Annotated:
        return plausible(draw, inner[0], name)
    if kind is typing.Literal:
        return draw.choice(inner)
    if NoneType in inner:
        return None if draw.random() < .2 else plausible(draw, draw.choice([i for i in inner if i is not NoneType]))
    if name == "measures":
        return [draw.choice(MEASURES) for _ in range(draw.randrange(4))]
    if kind is tuple:
        return [plausible(draw, inner[0], name) for _ in range(draw.randrange(4))]
    if inner:
        return plausible(draw, draw.choice(inner), name)
    if hint is bool:
        return draw.random() < .5
    if hint is int:
        small = draw.random() < (.97 if name in SLOW else .5)
        return draw.randrange(1, 6) if small else draw.choice(INTEGERS)
    if hint is float:
        return draw.choice([1e-3, .1, .25, .5, 1., 2.]) if draw.random() < .5 else draw.choice(FLOATS)
    return draw.choice(TEXTS)


def near(draw: random.Random, name: str) -> str:
    """Return a name near another: a letter too much, too few or exchanged."""
    at, how = draw.randrange(max(1, len(name))), draw.randrange(5)
    if how == 0:
        return name[:at] + name[at + 1:]
    if how == 1:
        return name[:at] + draw.choice("abs_-. \x1b") + name[at:]
    if how == 2:
        return name.upper()
    return name[:at] + name[at + 1:at + 2] + name[at:at + 1] + name[at + 2:] if how == 3 else f" {name}"


def word(draw: random.Random, text: str) -> str:
    """Return a text as a command line can hold it: no zeros, and no half of a surrogate pair but those of bytes."""
    text = text.replace("\0", "")
    return "".join("\udc80" if "\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" else c for c in text)
