"""The tables of a day with a GPU, for a recorded file (a trial of the steps on a CPU), and what they must not hide."""
from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmpi.cli import app
from fedmpi.errors import BadInput
from fedmpi.report import gpu_day, gpu_tables

RECORDED = Path(__file__).with_name("gpu_day.json")


@pytest.fixture
def book():
    return gpu_day.load_book(RECORDED)


def rows(grid) -> dict[str, list[str]]:
    """Return the rows of a table by their first cell."""
    return {row[0]: row[1:] for row in grid.rows}


def test_engines_are_compared_with_the_bare_loop(book):
    """0.578 ms a step of the bare loop are divided by 0.647 of `loop`, and 1.55 and 1.62 of `vmap`, per precision."""
    grid = gpu_tables.list_speed(book)
    assert grid.rows == [
        ["mlp digits", "float32", "0.578", "0.567", "0.534", "3", "0.89 x", "0.37 x", "0.36 x"],
        ["mlp digits", "bf16", "1.06", "1.04", "-", "3", "0.94 x", "0.53 x", "0.56 x"]]


def test_an_engine_that_failed_is_not_left_out(book):
    row = next(row for row in book["speed"] if row["engine"] == "vmap")
    row |= {"ms_step": None, "ratio": None, "error": "OutOfMemoryError: CUDA out of memory"}
    assert gpu_tables.list_speed(book).rows[0][7] == "OutOfMemoryError: CUDA out of "


def test_digests_are_compared_over_ranks(book):
    assert rows(gpu_tables.list_mpi(book)) == {
        "kill-resume": ["mlp", "loop", "1 (undisturbed), 1 (killed, resumed)", "same dc9a9ecb3beb"],
        "mpi-digests": ["mlp", "loop", "1, 2", "same 2d39df475c68"]}
    book["mpi"][1]["digest"] = "0"
    book["mpi"][3] |= {"digest": "", "error": "exit code 1: no GPU"}
    changed = rows(gpu_tables.list_mpi(book))
    assert changed["kill-resume"][-1] == "DIFFER" and changed["mpi-digests"][-1] == "2 ranks: exit code 1: no GPU"


def test_methods_without_a_recorded_graph_are_named(book):
    book["capture"] = {"recorded": {"fedavg": {"recorded": 2}, "ditto": {"recorded": 1}}}
    assert rows(gpu_tables.list_captures(book)) == {"recorded": ["2 of 2; never: none"]}
    book["capture"]["recorded"]["ditto"]["recorded"] = 0
    assert rows(gpu_tables.list_captures(book)) == {"recorded": ["1 of 2; never: ditto"]}


def test_bits_that_differ_are_named(book):
    found = rows(gpu_tables.list_same_bits(book))
    assert found["tiny vmap"] == ["2abc773d4334", "same", "same", "same"]
    assert found["tiny vmap unfolded=all"] == ["76220449c45d", "-", "same", "differs"]
    book["bits"]["digests"]["tiny loop again=1"] = "another"
    assert rows(gpu_tables.list_same_bits(book))["tiny loop"] == ["40d64e3cba37", "differs", "same", "same"]
    book["bits"]["kernels"]["table gradient"] = {"run_to_run": False, "batch": True, "position": None}
    # Failures come first.
    assert gpu_tables.list_kernels(book).rows[0] == ["table gradient", "NO", "yes", "?"]


def test_what_is_too_far_from_the_cpu_is_named(book):
    assert all(row[-1] == "none" for row in gpu_tables.list_correctness(book).rows)
    book["correct"][1] |= {"apart": .2, "within": False}
    book["correct"][2] |= {"apart": None, "within": False, "error": "RuntimeError: CUDA error"}
    first, second = gpu_tables.list_correctness(book).rows[:2]
    assert first == ["loop", "float32", "mlp", "2", "0.2", "fedah (0.2)"]
    assert second == ["vmap", "float32", "mlp", "2", "1.49e-08", "fedavg (RuntimeError: CUDA error)"]


def test_steps_that_did_not_end_well_are_named(book):
    book["steps"][2] |= {"ok": False, "why": "ended: its time was over"}
    book["lost"] = [{"step": "bits", "case": "tiny vmap", "why": "killed by SIGSEGV"}]
    grid = gpu_tables.list_failed_steps(book)
    assert grid.title == "6 of 7 steps ended well, 88 s in all"
    assert grid.rows == [["bits", "5 s", "ended: its time was over"], ["lost: tiny vmap", "bits", "killed by SIGSEGV"]]


def test_a_part_has_its_own_tables_in_few_lines(book):
    book["layers"] = [row | {"step": "layers", "ms": 1.} for row in book["layers"] * 20]
    book["steps"].append(book["steps"][3] | {"name": "layers", "step": "layers"})
    said = gpu_tables.format_tables(book, "figures")
    assert len(said.splitlines()) <= gpu_tables.LINES and "layers, forward and backward (the first" in said
    assert "whole runs of cnn4" in said and "digests by ranks" not in said and "(after)" not in said
    assert len(gpu_tables.format_tables(book).splitlines()) > 120


def test_long_cells_are_cut_and_short_columns_stay_straight():
    """The message of a failed step may be as long as a compiler's output."""
    grid = gpu_tables.Grid("steps", ["step", "why"], [["bits", "x" * 300], ["models", "slow"], ["sums", "late"]])
    assert gpu_tables.show_grid(grid, 2) == ["steps (the first 2 of 3)", "  step    why", "  bits    " + "x" * 90,
                                             "  models  slow"]


def test_markdown_has_every_table_once(book):
    said = gpu_tables.day_to_markdown(book)
    assert "- a cpu, PyTorch 2.15.0, CUDA 13.2, cuDNN 92600, driver -, commit a404689" in said
    assert "SMALL: a trial of the steps; the figures say nothing" in said
    assert "| mlp digits | float32 | 0.578 | 0.567 | 0.534 | 3 | 0.89 x | 0.37 x | 0.36 x |" in said
    assert "| evaluation | 4 | 25.2 |" in said and "| evaluation | 18.3 |" in said and "judg" not in said
    titles = [line for line in said.splitlines() if line.startswith("**")]
    assert len(titles) == len(set(titles)) == len(gpu_tables.list_grids(book)) == 13


def test_later_parts_take_the_place_of_the_same_steps(book):
    later = copy.deepcopy(book)
    later["speed"] = [row | {"ms_step": 1.} for row in later["speed"][:4]]
    later["correct"], later["ceilings"] = [], {"copy_GBs": 4300.}
    later["when"] = "later"
    # a profile of a round with other kernels, and no phases
    later["round"] = {"ms": {}, "kernels_ms": {"another kernel": 3.}, "syncs": {}}
    whole = gpu_day.join_books([book, later])
    assert whole["round"] == {**book["round"], "kernels_ms": {"another kernel": 3.}}
    assert [row["ms_step"] for row in whole["speed"]] == [1.] * 4 and whole["when"] == "later"
    assert whole["correct"] == [row for row in book["correct"] if row["step"] != "methods-graphs"]
    assert whole["ceilings"] == {**book["ceilings"], "copy_GBs": 4300.} and gpu_day.check_book(whole) == []


def test_a_step_that_was_skipped_later_keeps_what_it_found(book):
    later = copy.deepcopy(book)
    later["speed"] = []
    for row in later["steps"]:
        row |= {"ok": False, "seconds": 0., "why": "skipped: 3 s of the budget are left, it needs 10"}
    assert gpu_day.join_books([book, later]) == book
    # A step that has not been tried before is named as skipped.
    first = {**copy.deepcopy(book), "steps": [row for row in book["steps"] if row["name"] != "facts"]}
    assert sum(row["why"][:7] == "skipped" for row in gpu_day.join_books([first, later])["steps"]) == 1


@pytest.mark.parametrize("change, said", [
    ({"schema": 2}, "schema is 2, not 1"), ({"extra": []}, "extra is not known"),
    ({"runs": [{"step": "runs"}]}, r"runs\[0\] has no ranks, and 7 more like this"),
    ({"bits": {"digests": {}}}, "bits.kernels is missing"), ({"runs": 5}, "runs is not a list of rows"),
    ({"steps": [[]]}, "steps is not a list of rows"), ({"machine": None}, "machine is not a mapping")])
def test_what_is_no_book_is_refused(book, change, said, tmp_path):
    (tmp_path / gpu_day.BOOK_NAME).write_text(json.dumps(book | change))
    with pytest.raises(BadInput, match=f"gpu_day.json: is not a gpu_day.json of this version: {said}"):
        gpu_day.load_book(tmp_path)


@pytest.mark.parametrize("text, said", [("[]", "schema is None"), ("{", "is not JSON"), ("[" * 100_000, "is not JSON"),
                                        ("\ud800", "is not JSON"), (None, "cannot be read")])
def test_what_cannot_be_read_is_refused(text, said, tmp_path):
    if text is not None:
        (tmp_path / gpu_day.BOOK_NAME).write_text(text, errors="surrogatepass")
    with pytest.raises(BadInput, match=said):
        gpu_day.load_book(tmp_path / gpu_day.BOOK_NAME)


@pytest.mark.parametrize("change", [
    lambda book: book["steps"][0].update(seconds="long"), lambda book: book["speed"][0].update(step=[1]),
    lambda book: book["candidates"][0].update(error=None), lambda book: book["ceilings"].update(copy="fast"),
    lambda book: book["machine"].update(packages=5), lambda book: book["bits"].update(digests={"one": "d"}),
    lambda book: book["capture"].update(recorded={"a": {}}), lambda book: book["round"].update(ms=None)], ids=range(8))
def test_a_value_of_another_kind_is_one_message(book, change, tmp_path):
    change(book)
    (tmp_path / gpu_day.BOOK_NAME).write_text(json.dumps(book))
    done = CliRunner().invoke(app, ["report", str(RECORDED), str(tmp_path), "--to", str(tmp_path / "to")])
    assert done.exit_code == 2 and not (tmp_path / "to").exists()
    assert done.output.startswith(f"fedmpi: {tmp_path}: a value in it is not of the kind that a day with a GPU writes")


def test_the_page_is_in_utf_8_whatever_the_locale_is(book, tmp_path):
    """The name of a machine may hold what the locale lacks, and bytes that are not text."""
    book["steps"][0] |= {"ok": False, "why": "café caf\udce9"}
    (tmp_path / gpu_day.BOOK_NAME).write_text(json.dumps(book))
    done = subprocess.run([sys.executable, "-m", "fedmpi", "report", tmp_path, "--to", tmp_path], text=True,
                          env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                          capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"café caf\udce9" in (tmp_path / "README.md").read_text("utf-8")


def test_a_pipe_in_the_place_of_a_day_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "gpu_day.json")
    with pytest.raises(BadInput, match="gpu_day.json: cannot be read: it is not a regular file; give a gpu_day.json"):
        gpu_day.load_book(tmp_path / "gpu_day.json")


def test_report_takes_a_file_or_its_folder(tmp_path):
    for i, path in enumerate((RECORDED, RECORDED.parent)):
        done = CliRunner().invoke(app, ["report", str(path), "--to", str(tmp_path / str(i))])
        assert done.exit_code == 0 and done.output == f"report {tmp_path / str(i) / 'README.md'}\n"
    assert (tmp_path / "0" / "README.md").read_text().count("**") == 26
    done = CliRunner().invoke(app, ["report", str(RECORDED), str(tmp_path), "--to", str(tmp_path)])
    assert done.exit_code == 2 and f"{tmp_path} is not a gpu_day.json" in done.output
