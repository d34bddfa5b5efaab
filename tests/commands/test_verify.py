"""`fedmpi verify` compares small runs with a table, and explains the result."""
from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmpi import __version__
from fedmpi.cli import app
from fedmpi.comm.transport import Solo
from fedmpi.commands import rerun, verify
from fedmpi.config import schema
from fedmpi.config.load import parse_yaml
from fedmpi.config.overrides import apply_overrides
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.json_values import flatten_settings
from fedmpi.session import run_on_all_ranks
from fedmpi.storage import changed_settings
from tests.forked import call

ROOT = Path(__file__).parents[2]
# YAML takes the second one for a number.
HASHES = {"fedavg": "0123456789abcdef", "fedmhc": "1234567890123456"}
LOSSES = {"fedavg": 2., "fedmhc": .5}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """An empty table in a checkout."""
    path = tmp_path / "checkout" / "fedmpi" / "commands" / "published_hashes.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# no row yet\n")
    (tmp_path / "checkout" / "setup.cfg").touch()
    monkeypatch.setattr(verify, "TABLE", path)
    return path


@pytest.fixture
def quickly(monkeypatch):
    """Perform no run but give its results; return these, which a test may change."""
    ended = {name: verify.FinalValues(HASHES[name], LOSSES[name]) for name in HASHES}
    ended["again"] = ended["fedavg"]
    monkeypatch.setattr(verify, "RUNS", {name: [] for name in HASHES})
    monkeypatch.setattr(verify, "perform", lambda world, place, name, words: ended[name])
    return ended


def publish(table, **changed):
    row = {"environment": verify.describe_environment() | changed, "hashes": HASHES, "losses": LOSSES}
    table.write_text(f"- {json.dumps(row)}\n")


@pytest.mark.slow("starts two ranks")
def test_all_ranks_see_a_folder_whose_name_is_no_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()

    def look(world):
        with verify.make_workplace(world, str(folder), {}) as place:
            return 0 if place.parent == folder else 1
    done = call(2, lambda: exit(run_on_all_ranks(look)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow("nine runs on one rank, and on three")
def test_the_same_hashes_on_one_rank_and_on_three(tmp_path, table, monkeypatch, capsys):
    """Real runs are published by one rank and then compared on forked ranks."""
    monkeypatch.setattr(verify, "RUNS", {name: verify.RUNS[name] for name in ("ditto-images",)})
    assert verify.verify_machine(Solo(), str(tmp_path), add=True) == 0
    said = capsys.readouterr().out
    assert "1 of 1 runs are not published for this version of fedmpi" in said and f"added to {table}" in said
    done = call(3, lambda: exit(verify.verify_command(str(tmp_path), False)), cwd=ROOT)
    assert done.returncode == 0 and "all 1 digests are known ones" in done.stdout, done.stderr
    (row,) = verify.read_published_hashes()
    hashes = re.findall(r"^(\S+) +([0-9a-f]{16})  known$", done.stdout, re.M)
    assert dict(hashes) == row["hashes"] and hashes
    # on any machine the loss is the published one within rounding
    known = parse_yaml((ROOT / "fedmpi" / "commands" / "published_hashes.yaml").read_text())[0]["losses"]
    assert row["losses"]["ditto-images"] == pytest.approx(known["ditto-images"], rel=1e-4)
    # Temporary files are gone.
    assert [path.name for path in tmp_path.iterdir()] == ["checkout"]


@pytest.mark.parametrize("loss, verdict, code", [
    (.5, "agrees within rounding: 0e.00 of the loss", 0), (.5 * (1 + 9e-5), "agrees within rounding: 9e-05", 0),
    (.5 * (1 - 1.1e-4), "WRONG: the loss is off by 1e-04 of it", 1), (.6, "WRONG: the loss is off by 2e-01", 1),
    (None, "WRONG: the loss is off by inf", 1), (float("nan"), "WRONG: the loss is off by inf", 1)])
def test_a_new_hash_is_judged_by_its_loss(loss, verdict, code, tmp_path, table, quickly, capsys):
    publish(table)
    assert verify.verify_machine(Solo(), str(tmp_path)) == 0
    assert "all 2 digests are known ones" in capsys.readouterr().out
    quickly["fedmhc"] = verify.FinalValues("fedcba9876543210", loss)
    assert verify.verify_machine(Solo(), str(tmp_path)) == code
    said = capsys.readouterr().out
    assert re.search(rf"fedmhc +fedcba9876543210 +{verdict}", said)
    assert re.search("fedavg +0123456789abcdef +known\n", said)
    assert ("1 of 2 runs are wrong" if code else "1 of 2 digests are new, and their losses agree") in said


def test_what_the_bits_of_a_run_depend_on():
    here = verify.describe_environment()
    assert [*here] == ["fedmpi", "machine", "vendor", "vectors", "torch", "torch's BLAS", "torch's compiler", "numpy",
                       "numpy's BLAS", "scikit-learn"]
    assert here["fedmpi"] == __version__ and here["numpy"] == np.__version__ and here["scikit-learn"][0].isdigit()
    # Only the compiler of PyTorch may have a name that we do not know.
    assert all(value not in ("", "unknown", "none") for name, value in here.items() if name != "torch's compiler")


def test_every_run_has_the_settings_that_decide_its_hash():
    for words in verify.RUNS.values():
        if words is not verify.QUICKSTART:
            settings = flatten_settings(apply_overrides(copy.deepcopy(verify.CASE_SETTINGS), words))
            assert (settings["rounds"], settings["seed"], settings["device"], settings["threads"]) == (3, 1, "cpu", 1)


@pytest.mark.parametrize("what", ["vendor", "vectors", "torch", "torch's BLAS", "numpy", "scikit-learn"])
def test_hashes_of_another_environment_are_known_and_the_loss_nearest_counts(what, tmp_path, table, quickly, capsys):
    publish(table, **{what: "another"})
    far = {"environment": verify.describe_environment(), "hashes": HASHES | {"fedmhc": "0" * 16},
           "losses": LOSSES | {"fedmhc": 9}}
    table.write_text(f"{table.read_text()}- {json.dumps(far)}\n")
    assert verify.verify_machine(Solo(), str(tmp_path)) == 0
    assert "all 2 digests are known ones" in capsys.readouterr().out
    quickly["fedmhc"] = verify.FinalValues("fedcba9876543210", .5)
    assert verify.verify_machine(Solo(), str(tmp_path)) == 0


def test_hashes_of_another_version_do_not_count(tmp_path, table, quickly, capsys):
    publish(table, fedmpi="another")
    assert verify.verify_machine(Solo(), str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert len(re.findall("not published$", said, re.M)) == 2
    assert "2 of 2 runs are not published for this version" in said


def test_a_machine_that_does_not_repeat_itself_is_found_out(tmp_path, table, quickly, capsys):
    quickly["again"] = verify.FinalValues("fedcba9876543210", LOSSES["fedavg"])
    assert verify.verify_machine(Solo(), str(tmp_path)) == 1
    assert "fedavg gave another digest when it was repeated, fedcba9876543210" in capsys.readouterr().out
    with pytest.raises(FedmpiError, match="not published"):
        verify.verify_machine(Solo(), str(tmp_path), add=True)
    assert verify.read_published_hashes() == []


def test_rows_are_added_once(tmp_path, table, quickly, capsys):
    assert verify.verify_machine(Solo(), str(tmp_path), add=True) == 0
    assert f"added to {table}\n" in capsys.readouterr().out
    assert verify.read_published_hashes() == [{"environment": verify.describe_environment(), "hashes": HASHES,
                                               "losses": LOSSES}]
    assert verify.verify_machine(Solo(), str(tmp_path), add=True) == 0
    assert "in the table already" in capsys.readouterr().out and len(verify.read_published_hashes()) == 1


def test_a_row_of_before_is_told_and_replaced(tmp_path, table, quickly, capsys):
    publish(table, vendor="another")
    other = table.read_text()
    publish(table)
    table.write_text(f"# kept\n{table.read_text()}{other}")
    quickly["fedmhc"] = verify.FinalValues("fedcba9876543210", .5)
    assert verify.verify_machine(Solo(), str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "1 of 2 digests are new" in said and "is published with other digests of fedmhc: fedmpi has changed" in said
    assert verify.verify_machine(Solo(), str(tmp_path), add=True) == 0
    assert "in place of a row with other digests of fedmhc\n" in capsys.readouterr().out
    assert table.read_text().startswith(f"# kept\n{other}- environment")
    assert verify.read_published_hashes()[1:] == [{"environment": verify.describe_environment(), "losses": LOSSES,
                                                   "hashes": HASHES | {"fedmhc": "fedcba9876543210"}}]


def test_an_installation_prints_the_row_to_contribute(tmp_path, table, quickly, capsys):
    (tmp_path / "checkout" / "setup.cfg").unlink()
    assert verify.verify_machine(Solo(), str(tmp_path), add=True) == 0
    head, _, row = capsys.readouterr().out.partition("add these lines to fedmpi/commands/published_hashes.yaml")
    assert verify.parse_yaml(row.partition("\n")[2]) == [
        {"environment": verify.describe_environment(), "hashes": HASHES, "losses": LOSSES}]
    assert verify.read_published_hashes() == []


def test_ranks_of_several_kinds_and_folders_that_cannot_be_had_are_refused(tmp_path, monkeypatch):
    here = verify.describe_environment()
    monkeypatch.setattr(verify, "gather_objects", lambda world, mine: [here, here | {"vectors": "SIMD9"}])
    with pytest.raises(BadInput, match="rank 1 has vectors SIMD9, rank 0 has .*; start all ranks on nodes of one kind"):
        verify.refuse_others(Solo(), here)
    monkeypatch.setattr(verify, "gather_objects", lambda world, mine: [True, False])
    for place, said in ((tmp_path, "ranks 1 do not see .*; name a folder that all nodes share with --folder"),
                        (tmp_path / "nowhere", "nothing can be written in .*nowhere .No such file.*; name another "
                                               "folder")):
        with pytest.raises(BadInput, match=said), verify.make_workplace(Solo(), str(place), verify.CASE_SETTINGS):
            pass
    assert not list(tmp_path.iterdir())


def test_what_a_verification_that_failed_left_goes_with_the_next_one(tmp_path):
    """A run that fails ends its process at once. What a running process or another machine has there stays."""
    def fail():
        with verify.make_workplace(Solo(), str(tmp_path), {}):
            os._exit(1)
    assert call(1, fail).returncode == 1
    (left,) = tmp_path.iterdir()
    machine, pid, _ = left.name.removeprefix(".fedmpi-verify-").split("-")
    stay = [tmp_path / f".fedmpi-verify-{name}" for name in (
        f"{machine}-{os.getpid()}-a_1", f"0a0b0c0d-{pid}-a_1", f"{machine}-{pid}x-a_1", "notes")]
    for path in stay:
        path.mkdir()
    with verify.make_workplace(Solo(), str(tmp_path), {}) as place:
        assert {*tmp_path.iterdir()} == {*stay, place}


def test_what_is_published_is_in_the_documentation():
    page = (ROOT / "docs" / "reproducibility.md").read_text()
    assert verify.read_published_hashes()
    for row in verify.read_published_hashes():
        assert row["hashes"].keys() == row["losses"].keys() == verify.RUNS.keys()
        for value in [*row["environment"].values(), *row["hashes"].values()]:
            assert value in page


def test_the_quickstart_is_the_one_of_its_file():
    here, there = (flatten_settings(schema.to_plain(loaded)) for loaded in (
        schema.resolve(apply_overrides(copy.deepcopy(verify.CASE_SETTINGS), verify.QUICKSTART)),
        schema.load_config(ROOT / "configs" / "quickstart.yaml")))
    assert [name for name in there if here[name] != there[name] and not changed_settings.is_free(name)] == []


def test_the_command_hands_over_its_words(monkeypatch):
    seen, invoke = [], CliRunner().invoke
    monkeypatch.setattr(verify, "verify_command", lambda *words: seen.append(words) or 1)
    monkeypatch.setattr(rerun, "rerun_command", lambda *words: seen.append(words) or 1)
    assert invoke(app, ["verify"]).exit_code == 1
    assert invoke(app, ["verify", "--folder", "runs", "--add"]).exit_code == 1
    assert invoke(app, ["verify", "runs/one", "--folder", "runs"]).exit_code == 1
    assert seen == [(".", False), ("runs", True), (Path("runs/one"), "runs", False)]


def test_the_readme_shows_a_published_digest():
    (shown,) = re.findall(r"^digest ([0-9a-f]{16}) ", (ROOT / "README.md").read_text(), re.M)
    assert shown in {row["hashes"]["quickstart"] for row in verify.read_published_hashes()}
