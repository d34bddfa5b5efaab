"""The small files of a run folder: which folder a run takes, and their content if the disk fails meanwhile."""
from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedmpi.errors import BadInput, FedmpiError, StorageError
from fedmpi.server.on_disk_error import DiskErrorPolicy
from fedmpi.storage import folder as module
from fedmpi.storage.folder import RunFolder, line_to_json, replace_non_finite
from fedmpi.storage.folder_choice import name_next_folder
from fedmpi.storage.history import join_tables, read_history


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.claim(tmp_path / "run", resume=False)
    yield folder
    folder.release()


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["config.yaml", "clients.csv", "metrics.jsonl", "history.h5"])
def test_a_file_of_someone_else_stays(tmp_path, name, resume):
    """Such as the study's own config.yaml, beside which a run is started with --out . --resume auto."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match=f"{name} is there, but nothing else of a run, .*choose another --out, or move"):
        RunFolder.claim(tmp_path, resume)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("left", ["result.json", "checkpoints/round-000003.h5", "log.txt"])
def test_a_run_that_was_copied_in_part_goes_on(tmp_path, left):
    (tmp_path / "checkpoints").mkdir()
    for name in ("config.yaml", "metrics.jsonl", left):
        (tmp_path / name).write_text("")
    RunFolder.claim(tmp_path, resume=True).release()


@pytest.mark.parametrize("names, fresh, last", [
    ([], 1, 1), (["q-001"], 2, 1), (["q-001", "q-003"], 4, 3), (["q-999"], 1000, 999),
    (["q-1000", "q-999"], 1001, 1000),
    (["q-07", "q-7", "xq-004", "q-005x", "q-1-008", "Q-009", "q--010"], 1, 1)])
def test_the_number_of_a_run_folder(tmp_path, monkeypatch, names, fresh, last):
    monkeypatch.chdir(tmp_path)
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert name_next_folder("some/q.yaml", resume=False) == Path(f"runs/q-{fresh:03d}")
    assert name_next_folder("some/q.yaml", resume=True) == Path(f"runs/q-{last:03d}")


def test_the_name_of_a_configuration_is_no_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "axb-005").mkdir(parents=True)
    assert name_next_folder("a.b.yaml", resume=False) == Path("runs/a.b-001")


def test_later_checkpoints_are_renamed_and_nothing_else(folder):
    for name in ("round-000009.h5", "round-000010.h5", "round-1000000.h5", "round-x.h5", "notes"):
        (folder.checkpoints / name).write_text(name)
    assert folder.set_later_checkpoints_aside(1_000_000) is None
    (folder.checkpoints / "aside-round-000010.h5").write_text("of an earlier time")
    assert folder.set_later_checkpoints_aside(9) == (
        f"checkpoints after round 9 are set aside: {folder.checkpoints} keeps them as aside-round-1000000.h5, "
        "aside-round-000010.h5")
    assert {path.name: path.read_text() for path in folder.checkpoints.iterdir()} == {
        name: name.removeprefix("aside-") for name in (
            "round-000009.h5", "aside-round-000010.h5", "aside-round-1000000.h5", "round-x.h5", "notes")}


def test_of_checkpoints_set_aside_the_latest_stay(folder):
    """They are the latest by their time; those of this start and files of other names stay in any case."""
    def put(name, when):
        (folder.checkpoints / name).write_text(name)
        os.utime(folder.checkpoints / name, (when, when))
    for name, when in (("aside.h5", 0), *((f"aside-round-{n:06d}.h5", when) for n, when in ((3, 1), (7, 2), (1, 3)))):
        put(name, when)
    for rounds, gone in (((4, 5, 6), (3,)), ((8, 9, 10, 11, 12, 13), (7, 1, 4, 5, 6))):
        for n in rounds:
            put(f"round-{n:06d}.h5", n if n < 8 else 0)
        assert folder.set_later_checkpoints_aside(3).endswith(
            f"; deleted, as too many were set aside: {', '.join(f'aside-round-{n:06d}.h5' for n in gone)}")
    assert {path.name for path in folder.checkpoints.iterdir()} == {
        "aside.h5", *(f"aside-round-{n:06d}.h5" for n in range(8, 14))}
    resumed = folder.checkpoints / "aside-round-000008.h5"
    put("round-000014.h5", 0)
    assert "aside-round-000008.h5" not in folder.set_later_checkpoints_aside(8, resumed)
    assert resumed.exists() and not resumed.with_name("aside-round-000009.h5").exists()


def test_lines_that_a_disk_refused_are_written_with_the_next(folder, monkeypatch):
    folder.append_metrics([{"round": 1}])
    asked, check = [], folder.check_lock

    def broken():
        asked.append(1)
        raise StorageError("no disk")
    monkeypatch.setattr(folder, "check_lock", broken)
    for known in ([{"round": 1}, {"round": 2}], [{"round": 1}, {"round": 2}, {"round": 3}]):
        with pytest.raises(StorageError):
            folder.append_metrics(known)
        assert folder.behind and lines(folder) == [{"round": 1}]
    monkeypatch.setattr(folder, "check_lock", check)
    folder.append_metrics([{"round": round} for round in (1, 2, 3, 4)])
    assert not folder.behind and [line["round"] for line in lines(folder)] == [1, 2, 3, 4] and len(asked) == 2
    # Only the last line is new.
    folder.append_metrics([{"unread": 0}, {"round": 5}])
    assert [line["round"] for line in lines(folder)] == [1, 2, 3, 4, 5]


def test_a_finished_run_has_all_its_lines(folder):
    folder.append_metrics([{"round": 1}])
    folder.finish({}, [{"round": 7}])
    # No line was missing.
    assert lines(folder) == [{"round": 1}]
    folder.request_metrics_rewrite()
    folder.finish({}, [{"round": 1}, {"round": 2}])
    assert lines(folder) == [{"round": 1}, {"round": 2}] and not folder.behind


def test_a_half_written_line_is_replaced(folder, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

        def write(self, text):
            (folder.path / "metrics.jsonl").write_text(text[:4])
            raise OSError(28, "full")
    with monkeypatch.context() as patch:
        patch.setattr(module, "open", lambda *arguments, **how: Full(), raising=False)
        with pytest.raises(StorageError, match="metrics.jsonl cannot be written: No space left"):
            folder.append_metrics([{"round": 1}])
    folder.append_metrics([{"round": 1}, {"round": 2}])
    assert [line["round"] for line in lines(folder)] == [1, 2]


def test_a_folder_that_is_gone_is_named(folder):
    folder.path.rename(folder.path.with_name("away"))
    with pytest.raises(StorageError, match=f"run folder {folder.path} is gone: it was removed, or its file system"):
        folder.store_config({})
    folder.path.with_name("away").rename(folder.path)
    folder.store_config({"seed": 3})
    assert (folder.path / "config.yaml").read_text() == "seed: 3\n"
    (folder.path / "lock").unlink()
    with pytest.raises(FedmpiError, match=f"run folder {folder.path} is no longer locked by this run") as caught:
        folder.truncate_history(0)
    # This error also stops a run that may go on without a disk.
    assert not isinstance(caught.value, StorageError)


@pytest.mark.parametrize("left, resume", [("config.yaml", False), ("log.txt", True), ("checkpoints/round-1.h5", False)])
def test_a_refused_claim_leaves_the_folder_unlocked(tmp_path, left, resume):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "log.txt").write_text("")
    (tmp_path / left).write_text("")
    if not resume:
        with pytest.raises(BadInput):
            RunFolder.claim(tmp_path, resume=False)
        assert not (tmp_path / "lock").exists()
    claimed = RunFolder.claim(tmp_path, resume=resume or True)
    assert not claimed.new and claimed.has_run() is not resume
    claimed.release()


@pytest.mark.parametrize("after, kept", [(0, []), (1, [1]), (2, [1]), (3, [1, 3]), (4, [1, 3, 4]), (99, [1, 3, 4])])
def test_history_is_cut_after_the_round_of_the_checkpoint(folder, after, kept):
    for round in (1, 3, 4):
        folder.append_history(round, {"accuracy": np.full(2, round / 8), "each": np.full((2, 3), round, np.float32)})
    folder.save_history()
    assert not folder.history.pending
    folder.append_history(9, {"accuracy": np.ones(2)})
    assert folder.truncate_history(after) is None and not folder.history.pending
    found = read_history(folder.path / "history.h5")
    assert found["round"].tolist() == kept and found["accuracy"][:, 1].tolist() == [round / 8 for round in kept]
    assert found["each"].shape == (len(kept), 2, 3) and found["each"].dtype == np.float32


def test_history_is_not_written_where_nothing_is_new(folder):
    folder.save_history()
    assert not (folder.path / "history.h5").exists()
    folder.append_history(1, {"a": np.ones(2)})
    folder.save_history()
    before = (folder.path / "history.h5").stat().st_ino
    folder.save_history()
    assert (folder.path / "history.h5").stat().st_ino == before


def test_what_was_noted_does_not_change_with_the_arrays_of_the_run(folder):
    values = np.ones(2)
    folder.append_history(1, {"a": values})
    values[:] = 5
    folder.save_history()
    assert read_history(folder.path / "history.h5")["a"].tolist() == [[1, 1]]


def test_a_damaged_history_is_named_and_kept(folder):
    (folder.path / "history.h5").write_text("no HDF5")
    said = folder.truncate_history(3)
    assert said.startswith(f"{folder.path}/history.h5 is damaged (it is not a finished history") and "\n" not in said
    assert said.endswith("): kept as history-damaged.h5; a new one starts")
    assert (folder.path / "history-damaged.h5").read_text() == "no HDF5" and not (folder.path / "history.h5").exists()


def test_rounds_of_a_history_that_lack_a_measure():
    found = join_tables([{"round": np.array([1]), "f": np.array([[.5, 1.]])},
                         {"round": np.array([2]), "n": np.array([[3, 4]]), "wide": np.zeros((1, 20_000), np.float32)},
                         {"round": np.array([3]), "f": np.array([[2., 3.]])}])
    assert found["round"].tolist() == [1, 2, 3] and found["n"].tolist() == [[0, 0], [3, 4], [0, 0]]
    assert np.array_equal(found["f"], [[.5, 1], [np.nan] * 2, [2, 3]], equal_nan=True)
    assert found["wide"].dtype == np.float32 and np.isnan(found["wide"][[0, 2]]).all()


def test_json_of_numbers_that_it_lacks():
    nested = {"a": [np.float32("nan"), (1., np.int64(2))], "b": {"c": -float("inf"), "d": np.array([[.5, np.inf]])},
              "e": True, "f": None, "g": "nan", "h": np.bool_(False)}
    assert replace_non_finite(nested) == {"a": [None, [1., 2]], "b": {"c": None, "d": [[.5, None]]}, "e": True,
                                          "f": None, "g": "nan", "h": False}
    assert line_to_json({"a": float("nan")}) == '{"a": null}' and line_to_json({"a": 1}, indent=1) == '{\n "a": 1\n}'


class Words:
    """Keeps what a run says."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def test_a_run_that_is_told_to_stop_stops():
    policy = DiskErrorPolicy("stop", Words())
    with pytest.raises(StorageError, match="^full$"), policy.handled(3):
        raise StorageError("full")
    assert not policy.progress.said and policy.facts() == {} and policy.summary() == ""


def test_a_run_that_is_told_to_continue_says_what_it_went_on_without():
    policy = DiskErrorPolicy("continue", Words())
    with policy.handled(1):
        pass
    assert (policy.facts(), policy.summary(), policy.progress.said) == ({}, "", [])
    for round in (7, 3, 7):
        with policy.handled(round):
            raise StorageError(f"disk {round}")
    assert policy.progress.said == [f"warning: round {round}: disk {round} (the run goes on and tries again, as "
                                     "checkpoint.failure = continue says)" for round in (7, 3, 7)]
    assert policy.facts() == {"rounds_refused_by_disk": [3, 7]}
    assert policy.summary() == ("\nwarning: the disk refused a checkpoint or a measure 3 times, last after round 7; "
                                 "log.txt says which")
    # For example, another run took over the folder.
    for error in (FedmpiError, OSError):
        with pytest.raises(error), policy.handled(9):
            raise error("not the disk's")
    assert policy.refused == [7, 3, 7]
