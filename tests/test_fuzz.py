"""The command that throws odd input at the program: a few of its cases, and faults that it must find."""
from __future__ import annotations

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import case as cases
from tests.fuzz import oracle
from tests.fuzz.perform import Done
from tests.fuzz.reference import make_reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return make_reference(tmp_path_factory.mktemp("fuzz") / "reference")


@pytest.fixture
def throw(reference, tmp_path, capsys):
    """Perform cases; return the exit code and the lines of the report."""
    def throw(*words):
        asked = command.arguments(["--jobs", "1", "--out", str(tmp_path / "kept"), *words])
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        return command.report(asked, asked.seed, reference, scratch), capsys.readouterr().out.splitlines()
    return throw


@pytest.mark.slow("runs of all kinds")
def test_odd_input_is_refused_or_does_no_harm(throw):
    code, lines = throw("--seed", "3", "--cases", "7")
    assert code == 0, "\n".join(lines)
    assert lines[-1].startswith("seed 3: 0 of 7 cases fell short")


def test_a_planted_fault_is_found_and_kept(throw, monkeypatch, tmp_path):
    def broken(source, overrides):
        raise KeyError(source)
    monkeypatch.setattr("fedmpi.decision.load_config", broken)
    monkeypatch.setattr("fedmpi.config.schema.load_config", broken)
    code, lines = throw("--seed", "3", "--cases", "9", "--kind", "config")
    assert code == 1 and any("KeyError" in line for line in lines), "\n".join(lines)
    kept = list((tmp_path / "kept").glob("3-*"))
    assert kept and all((folder / "again.sh").exists() and (folder / "files" / "c.yaml").exists() for folder in kept)


def test_a_case_is_drawn_by_its_seed_and_number(reference, tmp_path):
    for number in range(len(cases.ROUND)):
        a, b, c = (cases.build(seed, number, tmp_path / f"{number}{name}", reference)
                   for seed, name in ((5, "a"), (5, "b"), (6, "c")))
        assert (a.what, a.commands) == (b.what, b.commands)
        assert oracle.list_files(tmp_path / f"{number}a").keys() == oracle.list_files(tmp_path / f"{number}b").keys()
    assert (a.what, a.commands) != (c.what, c.commands)


@pytest.mark.parametrize("done, why", [
    (Done(0, "all is well", ""), ""), (Done(2, "", "fedmpi: c.yaml: rounds = 0: should be 1\n"), ""),
    (Done(2, "", "Traceback (most recent call last):\nKeyError: 3\n"), "traceback: KeyError: 3"),
    (Done(1, "", "fedmpi: no\n"), "code 1 before a run has begun"), (Done(2, "", ""), "code 2 without a message"),
    (Done(0, "", ""), "code 0 without a word"), (Done(3, "x", ""), "code 3"), (Done(-9, "x", ""), "killed by signal 9"),
    (Done(0, "x", "", end="waits"), "hang: it waits"), (Done(143, "x", "", end="asked"), "hang: it did not end"),
    (Done(75, "x", "", end="asked"), ""), (Done(75, "x", ""), "code 75 without a reason"),
    (Done(0, "x", "", left=1), "a process is left behind"), (Done(0, "\x1b[31m", ""), "control character"),
    (Done(2, "", "fedmpi: KeyError: 3\n"), "the words of a bug"),
    (Done(1, "", "fedmpi: rank 0 of 1 on n: x\n(traceback in out/log.txt)\n"), "unexpected error"),
    (Done(1, "", "fedmpi: client 3, round 1 (rank 0 of 1 on n): x\n"), "")])
def test_ends_that_fall_short_are_told_from_others(tmp_path, done, why):
    (tmp_path / "a").mkdir()
    case = cases.Case("", [["run", "c.yaml", "--out", "out"]])
    verdict, found = oracle.judge(case, done, tmp_path / "a", {}, None)
    assert found.startswith(why) if why else verdict != "fell short", found


def test_files_that_were_changed_are_seen(tmp_path):
    folder = tmp_path / "a"
    (folder / "tmp").mkdir(parents=True)
    (folder / "user.txt").write_text("mine")
    (folder / "link").symlink_to("nowhere")
    case, well, before = cases.Case("", [["plan", "c.yaml"]]), Done(0, "x", ""), oracle.list_files(folder)

    def judge():
        return oracle.judge(case, well, folder, before, None)[1]
    assert judge() == ""
    (folder / "tmp" / "x").touch()
    assert judge() == "left behind: tmp/x"
    (folder / "tmp" / "x").unlink()
    (folder / "user.txt").write_text("other")
    assert judge() == "a user's file was changed: user.txt"
    (folder / "user.txt").write_text("mine")
    (folder / "link").unlink()
    (folder / "link").write_text("mine")
    assert judge() == "replaced: link, which was not a plain file"
    (folder / "link").unlink()
    (folder / "link").symlink_to("nowhere")
    (tmp_path / "beside").touch()
    assert judge() == "written outside of the folder: ['beside']"


def test_kinds_take_turns_and_some_cases_are_real():
    kinds = [cases.kind_of(number) for number in range(3000)]
    assert {kind: kinds.count(kind) for kind in cases.KINDS} == {
        "config": 900, "damage": 750, "command": 600, "data": 450, "own code": 300}
    assert sum(map(cases.is_real, range(3000))) == 100
