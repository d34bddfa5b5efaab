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


@pytest.mark.parametrize("value", [
    "1e5", "1.5e5", "-.5", "2.", ".inf", "-.INF", "1E3", "1_000", "010", "1:30", "0x1f", "yes", "no", "on", "truex",
    "~", "null", "", "2024-01-02", "a: b", "#1", "x #1", "...", "é", "x" * 200 + " y", 1e-5, 1e300, -3, True, None,
    [], {}, {"label": "1e5", "b": [1, "2"], "a": {"1.5e5": "-.5"}}])
def test_what_is_written_is_read_as_the_same(value):
    for in_one_line in (False, True):
        text = load.format_yaml(value, in_one_line)
        assert load.parse_yaml(text) == value and type(load.parse_yaml(text)) is type(value)
    assert "\n" not in text


def test_a_file_keeps_the_order_of_settings_and_a_line_sorts_them():
    assert load.format_yaml({"b": 1, "a": {"d": 2, "c": 3}}) == "b: 1\na:\n  d: 2\n  c: 3\n"
    assert load.format_yaml({"b": 1, "a": {"d": 2, "c": 3}}, in_one_line=True) == "{a: {c: 3, d: 2}, b: 1}"


def test_not_a_number_is_one():
    assert math.isnan(load.parse_yaml(".nan")) and load.parse_yaml("-.nan") == "-.nan"


@pytest.mark.parametrize("text, message", [
    ("{a: 1, b: 2, a: 3}", "a given twice"), ("{a: {1: x, 1: y}}", "1 given twice"), ("a: [", "while parsing"),
    ("a:\n\tb: 1", "indent with blanks, not with tabs"),
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


@pytest.mark.parametrize("text, value", [
    # Names of several characters: one of a single character is the same object in every mapping.
    ("{<<: [{key: 1, left: 1}, {key: 2, right: 2}]}", {"key": 1, "right": 2, "left": 1}),
    ("{<<: [{key: 1}, {key: 2}, {key: 3}], key: 4}", {"key": 4}),
    ("{<<: {<<: {key: 1, other: 1}, key: 2}, more: 3}", {"key": 2, "other": 1, "more": 3}),
    ("[{<<: &b {<<: {key: 1}, key: 2}}, *b, {<<: *b, key: 3}]", [{"key": 2}, {"key": 2}, {"key": 3}]),
    ("{key: 1, <<: []}", {"key": 1}), ("{'<<': 1, =: 2}", {"<<": 1, "=": 2}),
    ("a: &a {<<: *a, key: 1}", {"a": {"key": 1}})])
def test_merges(text, value):
    """What a mapping says itself comes first, then the earlier one of a list, whatever the version of PyYAML."""
    found = load.parse_yaml(text)
    assert found == value and str(found) == str(value)


@pytest.mark.parametrize("text, message", [
    ("{<<: {a: 1}, <<: {b: 1}}", "<< given twice"), ("{<<: {a: 1, b: 2, a: 3}}", "a given twice"),
    ("{<<: 3}", "<< takes a mapping or a list of mappings"), ("{<<: [{a: 1}, [b]]}", "<< takes a mapping or a list")])
def test_merges_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        load.parse_yaml(text)


def test_merges_cannot_blow_up(monkeypatch):
    """The same ten merges in each of 98 levels add nothing; a chain of growing mappings would take a memory of the
    square of its length. A mapping with exactly the largest number is read."""
    levels = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 99))
    assert load.parse_yaml(levels)["a98"] == {"x": 1}
    chain = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: *a{i - 1}, y{i}: 1}}\n" for i in range(1, 300))
    wide = "a: &a {" + ", ".join(f"x{i}: 1" for i in range(300)) + "}\nb: {<<: [" + ", ".join(["*a"] * 300) + "]}"
    for text in chain, wide:
        with pytest.raises(ValueError, match="more than 20,000 values; are there merges inside merges"):
            load.parse_yaml(text)
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
