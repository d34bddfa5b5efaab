"""YAML as fedmpi reads it."""
from __future__ import annotations

import math

import pytest

from fedmpi.config import load


@pytest.mark.parametrize("text, value", [
    ("1e-3", .001), ("1E3", 1000.), ("-.5", -.5), ("2.", 2.), ("+1.5e+2", 150.), (".inf", math.inf),
    ("-.INF", -math.inf), ("12", 12), ("-3", -3), ("+4", 4), ("0", 0), ("1_000", 1000), ("010", "010"),
    ("1:30", "1:30"), ("0x1f", "0x1f"), ("true", True), ("FALSE", False), ("yes", "yes"), ("on", "on"), ("no", "no"),
    ("y", "y"), ("null", None), ("~", None), ("2024-01-02", "2024-01-02"), ("1e", "1e"), ("e5", "e5"),
    ("1.5.2", "1.5.2"), ("truex", "truex"), ("12a", "12a"), ("[1, 2]", [1, 2]), ("{a: {b: 1}}", {"a": {"b": 1}}),
    ("", None), ("'1'", "1"), ("{<<: {a: 1, b: 2}, b: 3}", {"a": 1, "b": 3})])
def test_values(text, value):
    found = load.parse_yaml(text)
    assert found == value and type(found) is type(value)


def test_not_a_number_is_one():
    assert math.isnan(load.parse_yaml(".nan")) and load.parse_yaml("-.nan") == "-.nan"


@pytest.mark.parametrize("text, message", [
    ("{a: 1, b: 2, a: 3}", "a given twice"), ("{a: {1: x, 1: y}}", "1 given twice"), ("a: [", "while parsing"),
    ("!!python/object/apply:os.getcwd []", "could not determine a constructor"), ("!!bool maybe", "maybe"),
    ("!!int x", "invalid literal"), ("{[1]: 2}", "unhashable")])
def test_what_it_may_not_be_is_a_value_error(text, message):
    with pytest.raises(ValueError, match=message):
        load.parse_yaml(text)


def test_nesting_without_end_is_a_value_error():
    with pytest.raises(ValueError):
        load.parse_yaml("[" * 500)


def test_what_was_read_before_is_read_anew():
    first = load.parse_yaml("a: {b: [1]}")
    first["a"]["b"].append(2)
    assert load.parse_yaml("a: {b: [1]}") == {"a": {"b": [1]}}


def test_merges_cannot_blow_up(monkeypatch):
    """Six levels of ten merges each would make a million entries; a mapping with exactly the largest number is read."""
    levels = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}], y{i}: 1}}\n" for i in range(1, 7))
    with pytest.raises(ValueError, match="more than 20,000 values; are there merges inside merges"):
        load.parse_yaml(levels)
    flat = "{" + ", ".join(f"k{i}: {i}" for i in range(12)) + "}"
    monkeypatch.setattr(load, "MAX_VALUES", 12)
    assert len(load.parse_yaml(flat)) == 12
    monkeypatch.setattr(load, "MAX_VALUES", 11)
    load.parse_once.cache_clear()
    with pytest.raises(ValueError, match="more than 11 values"):
        load.parse_yaml(flat)


def test_files_of_any_length_are_not_read(tmp_path, monkeypatch):
    assert load.MAX_CHARACTERS == 2**20 and load.MAX_VALUES == 20_000
    monkeypatch.setattr(load, "MAX_CHARACTERS", 10)
    (tmp_path / "a").write_text("é" * 10, encoding="utf-8")
    assert load.read_yaml(tmp_path / "a") == "é" * 10
    (tmp_path / "a").write_text("é" * 11, encoding="utf-8")
    with pytest.raises(ValueError, match="it has more than 10 characters; is it the right file"):
        load.read_yaml(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="utf-8"):
        load.read_yaml(tmp_path / "a")
    with pytest.raises(OSError):
        load.read_yaml(tmp_path / "none")
