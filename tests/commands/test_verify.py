"""`fedmpi verify` compares hashes with a table of its own, and says what that means."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedmpi.cli import app
from fedmpi.comm.world import Solo
from fedmpi.commands import verify
from fedmpi.errors import BadInput, FedmpiError
from tests.forked import call

ROOT = Path(__file__).parents[2]
HASHES = {"fedavg": "0123456789abcdef", "fedmhc": "1234567890123456"}      # the second is a number to YAML


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
    """Perform no run, but say what each would have given; returns the hashes, which a test may change."""
    hashes = HASHES | {"again": HASHES["fedavg"]}
    monkeypatch.setattr(verify, "RUNS", {name: [] for name in HASHES})
    monkeypatch.setattr(verify, "perform", lambda world, place, name, words: hashes[name])
    return hashes


def publish(table, **changed):
    row = {"environment": verify.environment() | changed, "hashes": HASHES}
    table.write_text(f"- {json.dumps(row)}\n")


def test_the_same_hashes_on_one_rank_and_on_three(tmp_path, table, monkeypatch, capsys):
    """Real runs, published by one rank, then compared on forked ranks."""
    monkeypatch.setattr(verify, "RUNS", {name: verify.RUNS[name] for name in ("ditto-images",)})
    assert verify.verify(Solo(), str(tmp_path), add=True) == 0
    said = capsys.readouterr().out
    assert "1 of 1 hashes are not published for this environment" in said and f"added to {table}" in said
    done = call(3, lambda: exit(verify.main(str(tmp_path), False)), cwd=ROOT)
    assert done.returncode == 0 and "all 1 hashes are the published ones" in done.stdout, done.stderr
    (row,) = verify.rows()
    hashes = re.findall(r"^(\S+) +([0-9a-f]{16})  same$", done.stdout, re.M)
    assert dict(hashes) == row["hashes"] and hashes
    assert [path.name for path in tmp_path.iterdir()] == ["checkout"]      # what was written is gone


def test_a_hash_that_differs_is_named_and_the_code_is_1(tmp_path, table, quickly, capsys):
    publish(table)
    assert verify.verify(Solo(), str(tmp_path)) == 0
    assert "all 2 hashes are the published ones" in capsys.readouterr().out
    quickly["fedmhc"] = "fedcba9876543210"
    assert verify.verify(Solo(), str(tmp_path)) == 1
    said = capsys.readouterr().out
    assert re.search(r"fedmhc +fedcba9876543210 +differs: 1234567890123456 is published", said)
    assert re.search(r"fedavg +0123456789abcdef +same\n", said) and "1 of 2 hashes differ from those published" in said


@pytest.mark.parametrize("what", ["fedmpi", "vendor", "vectors", "torch", "torch's BLAS", "numpy", "scikit-learn"])
def test_hashes_of_another_environment_do_not_count(what, tmp_path, table, quickly, capsys):
    publish(table, **{what: "another"})
    assert verify.verify(Solo(), str(tmp_path)) == 0
    assert capsys.readouterr().out.count("not published\n") == 2


def test_a_machine_that_does_not_repeat_itself_is_found_out(tmp_path, table, quickly, capsys):
    quickly["again"] = "fedcba9876543210"
    assert verify.verify(Solo(), str(tmp_path)) == 1
    assert "fedavg gave another hash when it was repeated, fedcba9876543210" in capsys.readouterr().out
    with pytest.raises(FedmpiError, match="not published"):
        verify.verify(Solo(), str(tmp_path), add=True)
    assert verify.rows() == []


def test_rows_are_added_once(tmp_path, table, quickly, capsys):
    assert verify.verify(Solo(), str(tmp_path), add=True) == 0
    assert verify.rows() == [{"environment": verify.environment(), "hashes": HASHES}]
    assert verify.verify(Solo(), str(tmp_path), add=True) == 0
    assert "in the table already" in capsys.readouterr().out and len(verify.rows()) == 1


def test_an_installation_prints_the_row_to_contribute(tmp_path, table, quickly, capsys):
    (tmp_path / "checkout" / "setup.cfg").unlink()
    assert verify.verify(Solo(), str(tmp_path), add=True) == 0
    head, _, row = capsys.readouterr().out.partition("add these lines to fedmpi/commands/published_hashes.yaml")
    assert verify.parse(row.partition("\n")[2]) == [{"environment": verify.environment(), "hashes": HASHES}]
    assert verify.rows() == []


def test_ranks_of_several_kinds_and_folders_that_cannot_be_had_are_refused(tmp_path, monkeypatch):
    here = verify.environment()
    monkeypatch.setattr(verify, "gathered", lambda world, mine: [here, here | {"vectors": "AVX2"}])
    with pytest.raises(BadInput, match="rank 1 has vectors AVX2, rank 0 has .*; start all ranks on nodes of one kind"):
        verify.refuse_others(Solo(), here)
    monkeypatch.setattr(verify, "gathered", lambda world, mine: [True, False])
    with pytest.raises(BadInput, match="ranks 1 do not see .*; name a folder that all nodes share with --folder"):
        verify.workplace(Solo(), str(tmp_path))
    with pytest.raises(BadInput, match="nothing can be written in .*nowhere .No such file.*; name another folder"):
        verify.workplace(Solo(), str(tmp_path / "nowhere"))
    assert not list(tmp_path.iterdir())


def test_what_is_published_is_in_the_documentation():
    page = (ROOT / "docs" / "reproducibility.md").read_text()
    assert verify.rows()
    for row in verify.rows():
        assert row["hashes"].keys() == verify.RUNS.keys()
        for value in [*row["environment"].values(), *row["hashes"].values()]:
            assert value in page


def test_the_command_hands_over_its_words(monkeypatch):
    from typer.testing import CliRunner
    seen = []
    monkeypatch.setattr(verify, "main", lambda *words: seen.append(words) or 1)
    assert CliRunner().invoke(app, ["verify"]).exit_code == 1
    assert CliRunner().invoke(app, ["verify", "--folder", "runs", "--add"]).exit_code == 1
    assert seen == [(".", False), ("runs", True)]
