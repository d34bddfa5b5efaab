"""What a program does beside its runs: it changes folders, starts processes, draws, and gives settings in any order."""
from __future__ import annotations

import json
import multiprocessing
import os
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import fedmpi
from fedmpi import process_state
from fedmpi.cli import app
from fedmpi.commands.export import find_model
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg

pytestmark = pytest.mark.slow("runs from Python")
SMALL = {"data": {"clients": 6, "fraction": .2}, "model": {"name": "mlp", "hidden": 8}, "rounds": 2,
         "checkpoint": {"every": 1}}


@pytest.mark.parametrize("given", [
    {"method.k": 3, "method": "ifca"}, {"method": "ifca", "method.k": 3}, {"method": {"k": 3, "name": "ifca"}}])
def test_settings_of_one_mapping_have_no_order(given):
    """The name of a method would else drop the settings that stand before it."""
    assert "k=3" in fedmpi.plan(SMALL, **given)["settings"]
    with pytest.raises(BadInput, match="method.nonsense is not a setting of IFCA"):
        fedmpi.plan(SMALL, **{"method.nonsense": 3, "method": "ifca"})


def test_a_program_may_change_its_folder_during_a_run_and_after(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    found = fedmpi.run(SMALL, out="here", quiet=True, time_limit=np.int64(30),
                       on_round=lambda line: os.chdir("elsewhere") if line["round"] == 1 else None)
    assert found.values["rounds"] == 2 and sorted(os.listdir(tmp_path)) == ["elsewhere", "here"]
    assert os.listdir(tmp_path / "elsewhere") == []
    again = fedmpi.load_result("../here")
    monkeypatch.chdir("/")
    assert again.folder.samefile(tmp_path / "here") and len(again.metrics) == 2 and again.model(0)


def test_a_callback_has_a_line_of_its_own(tmp_path):
    def spoil(line):
        line["steps"].update(main=-5)
        line["steps_so_far"].clear()
    found = fedmpi.run(SMALL, out=tmp_path / "run", quiet=True, on_round=spoil)
    assert found.values["steps"]["main"] > 0 and found.values["steps_so_far"]["main"] > 0


def test_a_home_folder_is_meant_by_its_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(json.dumps(SMALL | {"data": {
        "clients": 6, "fraction": .2, "root": os.path.expanduser("~/data")}}))
    fedmpi.run("~/c.yaml", out="~/run", quiet=True, rounds=1)
    for read in (fedmpi.load_result, fedmpi.Result):
        assert read("~/run").folder == tmp_path / "run" and not (tmp_path / "~").exists()


def test_the_folder_of_checkpoints_is_no_run(tmp_path):
    fedmpi.run(SMALL, out=tmp_path / "run", quiet=True, rounds=1)
    with pytest.raises(BadInput, match=f"is a folder: give a checkpoint file, or out='{tmp_path}/run', resume='auto'"):
        fedmpi.run(SMALL, resume=tmp_path / "run/checkpoints", quiet=True)
    for word in ("AUTO", "latest"):
        with pytest.raises(BadInput, match=f"{word}: there is no such file; give resume='auto' for the newest"):
            fedmpi.run(SMALL, out=tmp_path / "new", resume=word, quiet=True)


def test_a_folder_with_a_blank_is_named_as_a_program_writes_it(tmp_path):
    (tmp_path / "my run").mkdir()
    with pytest.raises(BadInput, match=f"or out='{tmp_path}/my run', resume='auto'"):
        fedmpi.run(SMALL, out=tmp_path / "my run", resume=tmp_path / "my run", quiet=True)


def compute() -> None:
    """End with 3 if a child process can compute."""
    with process_state.isolate_computation():
        os._exit(3)


def test_a_forked_process_computes_though_a_thread_did_when_it_was_made():
    held, over = threading.Event(), threading.Event()

    def hold():
        with process_state.COMPUTING:
            held.set()
            over.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        child = multiprocessing.get_context("fork").Process(target=compute)
        child.start()
        child.join(60)
        child.kill()
        assert child.exitcode == 3
    finally:
        over.set()
        thread.join()


def test_a_figure_says_how_it_looks_without_pyplot(tmp_path):
    found = fedmpi.run(SMALL, out=tmp_path / "run", quiet=True)
    assert found.plot()._repr_png_().startswith(b"\x89PNG")


def test_new_clients_have_no_model_that_was_kept(tmp_path):
    found = fedmpi.run(SMALL, out=tmp_path / "run", quiet=True, **{"data.new_clients": 2})
    assert found.model(3)
    with pytest.raises(BadInput, match=r"client=4: a new client \(data.new_clients\), of which no model is kept; the "
                                       "run trained clients 0 to 3"):
        found.model(4)
    with pytest.raises(BadInput, match="client=6: the run has clients 0 to 3"):
        found.model(6)


READERS = {"config": lambda found: found.config, "metrics": lambda found: found.metrics,
           "history": lambda found: found.history, "clients": lambda found: found.clients(),
           "clusters": lambda found: found.clusters(), "model": lambda found: found.model(0),
           "samples": lambda found: found.samples(0), "plot": lambda found: found.plot()}


def test_a_result_does_not_mix_with_what_its_continued_run_left(tmp_path):
    """`values` are those of round 2, and nothing of round 3 is given beside them: neither in that round nor after."""
    def refuse_all(line):
        for name, read in READERS.items():
            with pytest.raises(BadInput, match="/run was continued since this result was read; call fedmpi.load_res"):
                read(found)
            asked.append(name)
    asked, found = [], fedmpi.run(SMALL, out=tmp_path / "run", quiet=True)
    # What it has read already is refused, too.
    assert all(read(found) is not None for read in READERS.values())
    again = fedmpi.run(SMALL, out=tmp_path / "run", quiet=True, resume="auto")
    assert all(read(found) is not None for read in READERS.values()) and again.digest == found.digest
    now = fedmpi.run(SMALL, out=tmp_path / "run", quiet=True, resume="auto", rounds=3, on_round=refuse_all)
    refuse_all({})
    assert asked == [*READERS] * 2 and found.values["rounds"] == 2 and len(now.metrics) == 3
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(BadInput, match="/run was moved or removed since this result was read; call fedmpi.load_result"):
        now.model(0)


class Fileless(FedAvg):
    """FedAvg, which the test says has no file."""


def test_a_class_without_a_file_may_be_another_one_than_that_of_the_run(tmp_path, monkeypatch):
    found = fedmpi.run(SMALL, out=tmp_path / "run", quiet=True, method=Fileless)
    assert not find_model(found.folder, 0).warnings
    monkeypatch.setattr("fedmpi.commands.export.fingerprint_code", lambda config: {"__main__": None, "own": "ab"})
    said = find_model(found.folder, 0).warnings[0]
    assert said == ("own code without a file, as in a notebook (__main__): it is used as it is now, and a change since "
                    "the run is not noticed")


def test_a_folder_does_not_hide_a_configuration_that_came_with_fedmpi(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert fedmpi.plan("quickstart")["method"] == "FedMHC"


def test_a_rate_is_of_use_for_an_estimate_alone():
    for words, said in ((["--rate", "500"], "--rate 500: of use with --dry-run alone"),
                        (["--dry-run", "--rate", "nan"], "--rate nan: should be more than 0 steps a second")):
        done = CliRunner().invoke(app, ["sweep", "digits", *words])
        assert done.exit_code == 2 and said in done.stderr
