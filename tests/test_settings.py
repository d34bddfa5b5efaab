"""Classes of settings are built strictly, and every error has the exact path."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from fedmpi.errors import BadInput
from fedmpi.settings import AtMost, Ge, Gt, Le, list_setting_names, make_settings
from fedmpi.settings_table import describe_range, describe_settings, name_type


@dataclass(frozen=True)
class Spring:
    title = "Spring"
    lam: Annotated[float, Ge(0), "strength of the pull"] = .1
    M: Annotated[int, Gt(0), Le(9)] = 4
    anchor: Annotated[Literal["global", "local"], "what it is tied to"] = "global"
    rounds: int | None = None
    on: bool = True
    range: tuple[float, float] | float = 1.0

    def __post_init__(self):
        if self.lam == 13:
            raise ValueError("lam = 13: is an unlucky number")


@dataclass(frozen=True)
class Needy:
    name: str


def message(values, cls=Spring, where="method") -> str:
    with pytest.raises(BadInput) as error:
        make_settings(cls, values, where)
    return str(error.value)


def test_defaults_and_values():
    assert make_settings(Spring, {}, "x") == Spring()
    made = make_settings(
        Spring, {"lam": 1e-3, "M": 9, "anchor": "local", "rounds": 2, "on": False, "range": [0.1, 0.5]}, "x"
    )
    assert made == Spring(.001, 9, "local", 2, False, (.1, .5))
    assert (
        make_settings(Spring, {"lam": 2}, "x").lam == 2 and make_settings(Spring, {"rounds": None}, "x").rounds is None
    )


@pytest.mark.parametrize("values, expected", [
    ({"lamda": 1}, "method.lamda is not a setting of Spring; its settings are lam, M, anchor, rounds, on, range "
                   "(did you mean lam?)"),
    ({7: 1}, "method.7 is not a setting of Spring; its settings are lam, M, anchor, rounds, on, range"),
    ({"lam": -1}, "method.lam = -1: should be greater than or equal to 0"),
    ({"M": 0}, "method.M = 0: should be greater than 0"),
    ({"M": 10}, "method.M = 10: should be less than or equal to 9"),
    ({"M": 2.0}, "method.M = 2.0: should be a valid integer"),
    ({"M": True}, "method.M = True: should be a valid integer"),
    ({"M": None}, "method.M = None: should be a valid integer"),
    ({"lam": "1"}, "method.lam = '1': should be a valid number"),
    ({"lam": True}, "method.lam = True: should be a valid number"),
    ({"lam": [1]}, "method.lam = [1]: should be a valid number"),
    ({"lam": float("nan")}, "method.lam = nan: should be made of finite numbers, texts, lists and mappings"),
    ({"lam": float("inf")}, "method.lam = inf: should be made of finite numbers, texts, lists and mappings"),
    ({"on": 1}, "method.on = 1: should be a valid boolean"),
    ({"anchor": "lokal"}, "method.anchor = 'lokal': should be 'global' or 'local'"),
    ({"rounds": "x"}, "method.rounds = 'x': should be a valid integer"),
    ({"lam": 13}, "method.lam = 13: is an unlucky number"),
    ({"M": b"x"}, "method.M = b'x': should be made of finite numbers, texts, lists and mappings"),
    ({"M": "y" * 200}, "method.M = '" + "y" * 96 + "...: should be a valid integer"),
])
def test_errors_say_what_where_and_what_is_allowed(values, expected):
    assert message(values) == expected


def test_a_value_that_fits_none_of_several_types_gives_one_line():
    assert message({"range": "x"}).startswith("method.range = 'x': ") and "\n" not in message({"range": "x"})
    assert message({"range": [1, "x"]}).splitlines()[0].startswith("method.range")


def test_all_problems_are_reported_at_once():
    assert [line.split(" ")[0] for line in message({"lam": -1, "M": 0, "on": 3}).splitlines()] == [
        "method.lam", "method.M", "method.on"]


def test_paths_without_a_section_and_missing_settings():
    assert message({"lam": -1}, where="").startswith("lam = -1: ")
    assert message({}, Needy, "data") == "data.name is missing and has no default: set it"
    assert message([], where="") == "the configuration must be a mapping of settings, not []"
    assert message(3) == "method must be a mapping of settings, not 3"


def test_describe_lists_what_there_is():
    assert list_setting_names(Spring) == ["lam", "M", "anchor", "rounds", "on", "range"]
    rows = {row["name"]: row for row in describe_settings(Spring)}
    assert rows["lam"] == {"name": "lam", "type": "float", "allowed": ">= 0", "default": .1, "required": False,
                           "help": "strength of the pull"}
    assert rows["anchor"]["type"] == "global|local" and rows["M"]["help"] == ""
    assert rows["M"]["allowed"] == "> 0, <= 9" and rows["on"]["allowed"] == ""
    assert describe_settings(Needy)[0]["default"] is None and describe_settings(Needy)[0]["required"]


@pytest.mark.parametrize("annotation, expected", [
    (int, "int"), (Annotated[int, Ge(1)], "int"), (Annotated[int, Ge(1)] | None, "int or null"),
    (float | tuple[float, float], "float or [float, float]"), (tuple[Literal["a", "b"], ...], "list of a|b"),
    (dict[str, Any], "mapping"), (Any, "name, or {name: ..., setting: ...}"), (str | None, "str or null")])
def test_types_are_written_as_users_read_them(annotation, expected):
    assert name_type(annotation) == expected


def test_the_lower_limit_of_a_range_is_named_first():
    assert describe_range((Le(5), "help", Ge(1))) == ">= 1, <= 5" and describe_range((AtMost(5, "why"), Gt(1))) == (
        "> 1, <= 5")
