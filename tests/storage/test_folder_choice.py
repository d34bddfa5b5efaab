"""Which run folder a start takes, and that none overwrites the run of another one."""
from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmpi.errors import AlreadyFinished, BadInput, FedmpiError, StorageError
from fedmpi.python_api import InterpreterWorld
from fedmpi.server import checkpoint_writer
from fedmpi.storage import folder_choice
from fedmpi.storage.checkpoint import copy_checkpoint
from fedmpi.storage.folder import RunFolder
from fedmpi.storage.folder_choice import claim_folder, continues_run, find_folder_of, name_next_folder
from fedmpi.storage.no_checkpoint import refuse_lost_rounds
from tests.runs import run_alone

WORDS = ("rounds=3", "method=fedavg", "data.clients=4", "train.steps=2")
ONE, TWO = Path("runs/c-001"), Path("runs/c-002")


@pytest.fixture(scope="module")
def finished(bench):
    """A folder with two finished runs of one configuration, which differ in their seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(bench.folder)
        assert [run_alone(bench.config, [*WORDS, f"seed={seed}"], None) for seed in (0, 1)] == [0, 0]
    return bench.folder / "runs"


@pytest.fixture
def start(finished, bench, tmp_path, monkeypatch):
    """Return a function that runs beside copies of both runs, from their folder; it returns the exit code."""
    shutil.copytree(finished, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return lambda *words, out=None, resume=None: run_alone(bench.config, [*WORDS, "seed=0", *words], out, resume,
                                                           world=InterpreterWorld())


def read_all(folder: Path) -> dict[str, bytes]:
    """Return what the files of a folder hold."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_digest(bench, folder: Path) -> str:
    """Return the digest of a finished run."""
    return bench.result(folder.absolute())["digest"]


def test_a_checkpoint_continues_in_its_own_folder_and_no_later_one(start, bench):
    kept, digest = read_all(TWO), read_digest(bench, ONE)
    assert start(resume=str(ONE / "checkpoints" / "round-000002.h5")) == 0
    assert read_all(TWO) == kept and read_digest(bench, ONE) == digest
    assert "continuing after round 2" in (ONE / "log.txt").read_text()
    assert [path.name for path in Path("runs").iterdir() if path not in (ONE, TWO)] == []


def test_a_checkpoint_that_lies_elsewhere_continues_in_a_new_folder(start, bench):
    saved = shutil.copy(ONE / "checkpoints" / "round-000002.h5", ".")
    kept = read_all(ONE) | read_all(TWO)
    assert start(resume=saved) == 0
    assert read_all(ONE) | read_all(TWO) == kept
    assert read_digest(bench, Path("runs/c-003")) == read_digest(bench, ONE)


def test_a_run_in_the_named_folder_is_not_overwritten_from_another_runs_checkpoint(start, bench, capsys):
    saved = str(ONE / "checkpoints" / "round-000002.h5")
    kept = read_all(TWO)
    assert start(out=TWO, resume=saved) == 2
    assert capsys.readouterr().err == (
        "fedmpi: run folder runs/c-002 already holds a run; continue it with --resume auto, or choose another --out\n")
    assert read_all(TWO) == kept
    # a new folder takes it, and so does the checkpoint's own under another name
    assert start(out="new", resume=saved) == 0 and read_digest(bench, Path("new")) == read_digest(bench, ONE)
    Path("link").symlink_to(ONE)
    assert start(out="link", resume=saved) == 0


def test_a_start_from_another_runs_checkpoint_that_was_killed_early_is_repeated(start, bench):
    """It has left its settings and the rounds before, but nothing is saved yet."""
    saved = str(ONE / "checkpoints" / "round-000002.h5")
    (Path("new") / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "log.txt", "metrics.jsonl"):
        shutil.copy(ONE / name, "new")
    assert start(out="new", resume=saved) == 0 and read_digest(bench, Path("new")) == read_digest(bench, ONE)
    assert "continuing after round 2" in Path("new/log.txt").read_text()


def test_a_damaged_copy_gets_no_name(finished, tmp_path):
    path = tmp_path / "damaged.h5"
    content = bytearray((finished / ONE.name / "checkpoints" / "round-000002.h5").read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(StorageError, match="round-000002.h5: the disk does not give back what was written"):
        copy_checkpoint(path, tmp_path / "round-000002.h5")
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("resume, said", [("auto", True), (None, False)])
def test_a_run_that_finds_nothing_to_continue_says_so(start, resume, said):
    """A misspelt --out would else train from the beginning without a word."""
    assert start(out="runs/c-0O1", resume=resume) == 0
    line = "no checkpoint in runs/c-0O1 yet: starting with round 1"
    assert (line in Path("runs/c-0O1/log.txt").read_text()) is said
    if said:
        assert start("rounds=5", out="runs/c-0O1", resume=resume) == 0
        log = Path("runs/c-0O1/log.txt").read_text()
        assert log.count(line) == 1 and "continuing after round" in log


@pytest.mark.parametrize("resume", ["auto", None])
def test_an_empty_folder_name_is_refused(start, capsys, resume):
    """An empty variable of a shell, `--out "$OUT"`, would continue the last run of that name, or begin another one."""
    kept = read_all(TWO)
    assert start(out="", resume=resume) == 2
    assert capsys.readouterr().err == 'fedmpi: --out "" is no path; give one, or leave --out out\n'
    assert read_all(TWO) == kept and sorted(Path("runs").iterdir()) == [ONE, TWO]


def test_a_checkpoint_that_the_code_cannot_continue_leaves_the_result(start, bench, monkeypatch):
    """The state of the server has got another field since, say, and the change was accepted."""
    def refuse(path, *_):
        raise BadInput(f"{path} cannot be used with the code as it is now")
    monkeypatch.setattr(checkpoint_writer, "refuse_other_fields", refuse)
    kept = {name: (ONE / name).read_bytes() for name in ("result.json", "config.yaml")}
    with pytest.raises(BadInput, match="cannot be used with the code"):
        start("evaluate.every=2", out=ONE, resume="auto")
    assert {name: (ONE / name).read_bytes() for name in kept} == kept


def test_a_finished_run_whose_last_checkpoint_is_damaged_stays_finished(start, capsys):
    """Else it would go on from an older one, and its result and last rounds would be gone until it had caught up."""
    assert start("checkpoint.every=2", "checkpoint.keep=2", out="runs/two", resume=None) == 0
    last = Path("runs/two/checkpoints/round-000003.h5")
    assert sorted(path.name for path in last.parent.iterdir())[0] == "round-000002.h5"
    last.write_bytes(last.read_bytes()[:-9] + b"corrupted")
    before = {name: text for name, text in read_all(Path("runs/two")).items() if not name.endswith("log.txt")}
    assert start("checkpoint.every=2", "checkpoint.keep=2", out="runs/two", resume="auto") == 0
    assert "runs/two is finished already, in round 3" in "".join(capsys.readouterr())
    assert {name: text for name, text in read_all(Path("runs/two")).items() if not name.endswith("log.txt")} == before
    # Further rounds are another matter: they begin at the last good checkpoint.
    assert start("checkpoint.every=2", "rounds=4", out="runs/two", resume="auto") == 0


def test_only_what_ended_by_the_same_rule_is_finished_before_an_older_checkpoint(tmp_path):
    (tmp_path / "config.yaml").write_text("stop: {patience: 3}")
    (tmp_path / "result.json").write_text('{"rounds": 8, "ended": "stop", "digest": "d", "accuracy_mean": 0.5}')
    for asked, saved in (({"rounds": 20, "stop": {"patience": 5}}, 4), ({"rounds": 20, "stop": {"patience": 3}}, 8)):
        refuse_lost_rounds(tmp_path, asked, saved)
    for asked in ({"rounds": 20, "stop": {"patience": 3}}, {"rounds": 8, "stop": None}):
        with pytest.raises(AlreadyFinished, match="is finished already, in round 8"):
            refuse_lost_rounds(tmp_path, asked, 4)
    # A damaged result is no obstacle where there is a checkpoint: it is written again.
    (tmp_path / "result.json").write_text("{")
    refuse_lost_rounds(tmp_path, {"rounds": 8, "stop": None}, 4)


def test_a_finished_run_keeps_its_result_on_a_full_disk(start, monkeypatch):
    kept = (ONE / "result.json").read_bytes()

    def fill(*_):
        raise StorageError("metrics.jsonl cannot be written: No space left on device")
    monkeypatch.setattr(RunFolder, "rewrite_metrics", fill)
    with pytest.raises(FedmpiError, match="No space left"):
        start(out=ONE, resume="auto")
    assert (ONE / "result.json").read_bytes() == kept


def test_going_back_from_a_result_that_fails_at_the_start_is_not_finished(start, bench, monkeypatch):
    """Else the result would stay beside the records of the older round, and the next start would call that finished."""
    digest, lines = read_digest(bench, ONE), (ONE / "metrics.jsonl").read_text().count("\n")

    def fill(*_):
        raise StorageError("history.h5 cannot be written: No space left on device")
    with monkeypatch.context() as full, pytest.raises(FedmpiError, match="No space left"):
        full.setattr(RunFolder, "truncate_history", fill)
        start(out=ONE, resume=str(ONE / "checkpoints" / "round-000002.h5"))
    assert (ONE / "metrics.jsonl").read_text().count("\n") < lines
    assert start(out=ONE, resume="auto") == 0
    assert read_digest(bench, ONE) == digest and (ONE / "metrics.jsonl").read_text().count("\n") == lines


@pytest.mark.parametrize("failing, call, number", [
    ("r", "mkdir", errno.ENOSPC), ("checkpoints", "mkdir", errno.ESTALE), ("log.txt", "exists", errno.EIO)])
def test_a_disk_that_fails_at_the_start_is_no_wrong_path(tmp_path, monkeypatch, failing, call, number):
    kept = getattr(Path, call)

    def fail(path, *words, **options):
        if path.name == failing:
            raise OSError(number, os.strerror(number), str(path))
        return kept(path, *words, **options)
    monkeypatch.setattr(Path, call, fail)
    with pytest.raises(StorageError, match=f"run folder .*/r cannot be written: {os.strerror(number)}; free "):
        RunFolder.claim(tmp_path / "r", resume=True)
    assert not (tmp_path / "r" / "lock").exists()


def test_whose_checkpoint_a_file_is(start, monkeypatch):
    assert find_folder_of(None) is find_folder_of("auto") is find_folder_of("runs/c-001") is None
    Path("empty/checkpoints").mkdir(parents=True)
    assert find_folder_of("empty/checkpoints/round-000001.h5") is None
    monkeypatch.chdir(ONE / "checkpoints")
    assert find_folder_of("round-000002.h5") == Path.cwd().parent
    assert continues_run(Path(".."), "round-000002.h5") and not continues_run(Path("../../c-002"), "round-000002.h5")


def test_starts_at_the_same_moment_take_different_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(16) as pool:
        folders = [*pool.map(lambda _: claim_folder("q.yaml", None, None), range(48))]
    assert len({folder.path for folder in folders}) == 48
    # those that are refused leave nothing behind
    for folder in folders:
        folder.withdraw()
    assert [*Path("runs").iterdir()] == []


def test_a_number_that_was_taken_meanwhile_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder_choice, "name_next_folder", lambda *_: Path("runs/q-007"))
    first, second = (claim_folder("q.yaml", None, None) for _ in range(2))
    Path("runs/q-009").symlink_to("nowhere")
    third = claim_folder("q.yaml", None, "elsewhere.h5")
    assert [folder.path.name for folder in (first, second, third)] == ["q-007", "q-008", "q-010"]
    for folder in (first, second, third):
        folder.release()


@pytest.mark.parametrize("spoil", [lambda: Path("runs").write_text(""), lambda: Path("runs").symlink_to("nowhere/x")])
def test_where_no_folder_can_be_made_a_start_is_refused(tmp_path, monkeypatch, spoil):
    monkeypatch.chdir(tmp_path)
    spoil()
    with pytest.raises(BadInput, match="run folder runs/q-001 cannot be written"):
        claim_folder("q.yaml", None, None)


def test_the_configuration_that_a_run_wrote_leads_to_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "config.yaml").touch()
    assert str(name_next_folder("study/config.yaml", resume=True)) == "runs/config-001"      # of a study, not of a run
    (tmp_path / "study" / "log.txt").touch()
    assert str(name_next_folder("study/config.yaml", resume=True)) == "study"
    assert str(name_next_folder("study/config.yaml", resume=False)) == "runs/config-001"
