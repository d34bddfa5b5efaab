"""A day with a GPU goes on whatever a step does, its file is always complete, and the real steps fill it."""
from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.gpu import book, plan
from benchmarks.gpu.day import RESERVE_S, Day, Step
from benchmarks.gpu.notes import SPARE_S, Notes, Options, read
from benchmarks.gpu_day import main
from fedmpi.errors import BadInput
from fedmpi.report import gpu_day
from tests.benchmarks.days import HEAD, PATIENCE_S, ROOT, SHORT_S, alive, day, step, wait_for, whats
from tests.forked import load

pytestmark = pytest.mark.slow("steps that hang are waited for")


@pytest.mark.parametrize("end, why", [
    ("crash", "killed by SIGSEGV in case second: CUDA error: an illegal memory access"),
    ("fail", "exit code 1 in case second: RuntimeError: CUDA error: unspecified launch failure")])
def test_a_step_that_dies_goes_on_behind_the_case(tmp_path, end, why):
    found = day(tmp_path, step("note_cases", end), step("note_one")).go()
    assert whats(found) == ["first", "third", "one"]
    bad, good = found["steps"]
    assert not bad["ok"] and good["ok"] and good["why"] == ""
    assert bad["why"].startswith(why)
    assert [(row["step"], row["case"]) for row in found["lost"]] == [("note_cases", "second")]


def test_a_step_that_hangs_is_ended_and_goes_on_behind_the_case(tmp_path):
    found = day(tmp_path, step("note_cases", "hang", silent_s=SHORT_S), step("note_one")).go()
    assert whats(found) == ["first", "third", "one"]
    assert found["lost"][0]["why"] == "ended in case second: nothing was heard for 3 s"


def test_a_step_whose_time_is_over_keeps_what_it_found(tmp_path):
    found = day(tmp_path, step("talk_for_ever", limit_s=SHORT_S), step("note_one")).go()
    bad, good = found["steps"]
    assert not bad["ok"] and good["ok"] and found["ceilings"]["last"] > 0
    assert bad["why"] == "ended: its time was over"


def test_no_case_is_begun_without_time_for_it(tmp_path):
    notes = Notes(tmp_path / "n", Options("cpu", True, tmp_path), time.monotonic() + SPARE_S + PATIENCE_S)
    begun = []
    for case in notes.cases("abc"):
        begun.append(case)
        notes.deadline = time.monotonic()
    assert begun == ["a"] and read(notes.path) == [{"case": "a"}, {"late": "2 cases: b ..."}]


def test_a_step_is_skipped_with_its_reason_when_the_budget_is_short(tmp_path):
    found = day(tmp_path, step("note_one", needs_s=50.), step("note_one", needs_s=.1), budget_s=RESERVE_S + 30).go()
    assert [row["ok"] for row in found["steps"]][-1] and whats(found) == ["one"]
    found = day(tmp_path / "other", step("note_one", needs_s=50.), budget_s=RESERVE_S + 30).go()
    assert re.fullmatch(r"skipped: (30|[12]\d) s of the budget are left, it needs 50", found["steps"][0]["why"])


def test_what_a_step_has_started_is_ended_with_it(tmp_path):
    found = day(tmp_path, step("leave_a_child", silent_s=SHORT_S)).go()
    wait_for(lambda: not alive(found["machine"]["child"]) and not alive(found["machine"]["own"]))


def test_a_step_that_is_taken_again_takes_the_place_of_its_rows(tmp_path):
    for _ in range(2):
        found = day(tmp_path, step("note_one")).go()
    assert whats(found) == ["one"] and len(found["steps"]) == 1
    assert (found["steps"][0]["when"], found["steps"][0]["commit"]) == ("today", "0")


def test_a_step_that_is_skipped_keeps_what_it_found_before(tmp_path, capsys):
    day(tmp_path, step("note_one")).go()
    found = day(tmp_path, step("note_one", needs_s=50.), budget_s=RESERVE_S + 30).go()
    assert whats(found) == ["one"] and [row["ok"] for row in found["steps"]] == [True]
    assert capsys.readouterr().out.endswith("it needs 50; what it found before stays\n")


def test_an_error_in_a_case_is_a_row(tmp_path):
    found = day(tmp_path, step("attempt_what_fails")).go()
    assert found["sums"][0]["error"] == "RuntimeError: CUDA error: unspecified launch failure"
    assert found["steps"][0]["ok"] and "Traceback" in (tmp_path / "gpu_day.log").read_text()


def test_half_a_line_is_no_note(tmp_path):
    notes = Notes(tmp_path / "n", Options("cpu", True, tmp_path), time.monotonic() + PATIENCE_S)
    notes.put("ceilings", copy=1.)
    with notes.path.open("a") as file:
        file.write('{"section": "ceil')
    assert read(notes.path) == [{"section": "ceilings", "values": {"copy": 1.}}]


def test_numbers_that_json_does_not_know_become_none(tmp_path):
    found = gpu_day.make_blank_book(**HEAD)
    book.note(found, "s", "sums", {"what": "x", "clients": 1, "ms": float("nan"), "error": ""})
    book.store(found, tmp_path / "b.json")
    assert gpu_day.load_book(tmp_path / "b.json")["sums"][0]["ms"] is None


def test_all_steps_are_there_and_fit_into_their_parts():
    for part, steps in plan.PARTS.items():
        assert len({s.name for s in steps}) == len(steps), part
        for s in steps:
            module, _, function = s.call.partition(":")
            assert callable(getattr(import_module(module), function)), s.call
    with pytest.raises(BadInput, match="not a step of figures; its steps are speed-cnn4-mnist"):
        plan.chosen("figures", "speed")


def test_importing_the_steps_starts_no_gpu():
    """All processes of steps are forks, and a fork of a process that uses a GPU cannot use it."""
    import torch
    plan.preload("cpu")
    assert not torch.cuda.is_initialized()


def command(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "benchmarks/gpu_day.py", *words], cwd=ROOT, capture_output=True, text=True,
                          timeout=5 * PATIENCE_S, env=os.environ | {"OMP_NUM_THREADS": "1"})


def forked(to: Path, *words: str) -> tuple[int, str]:
    """Run the command in a fork of this process, which has loaded the libraries; return its code and output."""
    load()
    plan.preload("cpu")

    def work():
        with to.open("w") as file:
            os.dup2(file.fileno(), 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        code = main([*words])
        sys.stdout.flush()
        os._exit(code)
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(20 * PATIENCE_S)
    return process.exitcode, to.read_text()


@pytest.mark.slow("takes steps of two parts as the command does, each with processes and networks of its own")
def test_the_cheapest_steps_of_both_parts_fill_the_file(tmp_path):
    words = "--out", str(tmp_path), "--device", "cpu", "--small", "--budget", "6000", "--only"
    code, first = forked(tmp_path / "first.txt", "correctness", *words, "facts,methods-graphs,capture-sync")
    assert code == 0, first
    found = gpu_day.load_book(tmp_path)
    assert {row["method"] for row in found["correct"]} > {"fedavg", "fedah"}
    assert all(row["within"] and row["finite"] and not row["error"] for row in found["correct"])
    assert found["capture"]["sync"]["goes_on"] and found["capture"]["sync"]["apart"] == 0
    assert found["machine"]["packages"]["torch"] and "default" in found["machine"]["precision"]
    code, second = forked(tmp_path / "second.txt", "figures", *words, "speed-mlp")
    assert code == 0, second
    both = gpu_day.load_book(tmp_path)
    assert both["correct"] == found["correct"] and [row["part"] for row in both["steps"]] == 3 * ["correctness"] + [
        "figures"]
    assert {row["engine"] for row in both["speed"]} > {"bare", "loop", "vmap", "graphs"}
    assert all(row["ms_step"] > 0 and not row["error"] for row in both["speed"])
    assert "3 of 3 steps ended well" in first and "1 of 1 steps ended well" in second
    assert "times as fast as it" in second and "as the CPU's loop" not in second


@pytest.mark.parametrize("words, said", [
    (["figures", "--out", "{}", "--only", "speed"], "not a step of figures"),
    (["table", "{}/none.json"], "cannot be read: No such file"),
    (["table", "{}/odd.json"], "odd.json: a value in it is not of the kind that a day with a GPU writes")])
def test_bad_input(tmp_path, words, said):
    (tmp_path / "odd.json").write_text(json.dumps(gpu_day.make_blank_book(**HEAD) | {"machine": {"packages": 5}}))
    done = command(*(word.format(tmp_path) for word in words))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_file_in_the_place_of_the_folder_is_one_message(tmp_path, monkeypatch, capsys):
    # main() changes it
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(plan, "preload", lambda device: None)
    monkeypatch.setattr("benchmarks.gpu_day.end_by_signal", lambda: None)
    (tmp_path / "file").touch()
    assert main(["figures", "--out", str(tmp_path / "file"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"gpu_day: {tmp_path}/file: File exists; give another path\n"


def test_a_folder_is_of_one_kind_of_device(tmp_path):
    day(tmp_path).go()
    with pytest.raises(BadInput, match="is of a day with device cpu, and this one has cuda; give another folder"):
        Day("figures", [], tmp_path, 1., "cuda", True, HEAD | {"device": "cuda"})


def test_a_round_that_is_profiled_again_leaves_nothing_of_the_first(tmp_path):
    for kernel in ("first", "second"):
        found = day(tmp_path, Step("round", "tests.benchmarks.planted_steps:note_round", PATIENCE_S, PATIENCE_S, 1.,
                                   (kernel,))).go()
    assert found["round"] == {"ms": {}, "kernels_ms": {"second": 1.}, "syncs": {}}


def test_a_machine_without_a_gpu_is_refused(monkeypatch):
    import torch
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(plan, "FINDS_GPU", "raise SystemExit(1)")
    with pytest.raises(BadInput, match="PyTorch finds no GPU on this machine"):
        plan.preload("cuda")


def test_the_functions_that_are_timed_exist():
    from benchmarks.gpu import inside
    with inside.phases(lambda name: None) as gone:
        assert gone == []
