"""Runs with clients that are held back: the same on any ranks, in both engines and after a restart; where they show."""
from __future__ import annotations

import json

import numpy as np
import pytest

import fedmpi
from fedmpi.commands.compare import compare_runs
from fedmpi.config.schema import load_config
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.faults import Attack, choose_attackers
from fedmpi.report import results
from fedmpi.storage import run_status
from fedmpi.storage.history import read_history

KEYS = ("accuracy_new_clients", "accuracy_std_new_clients", "f1_new_clients", "loss_new_clients", "auc_new_clients")
ASKED = ("data.new_clients=3", "evaluate.measures=[auc]")


@pytest.fixture(scope="module")
def alone(bench):
    """Return the folder of a run on one rank."""
    assert bench.lead("alone", *ASKED) == 0
    return bench.out("alone")


def facts(bench, name) -> tuple[str, list[dict]]:
    """Return the digest, and what was measured in each round."""
    lines = [{k: v for k, v in line.items() if k.startswith(("accuracy", "f1", "loss", "auc", "steps"))}
             for line in bench.metrics(name)]
    return bench.result(name)["digest"], lines


@pytest.mark.slow("forked ranks; test_newcomers.py says who evaluates whom, and that nobody else matters")
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_measures_the_same(ranks, bench, alone):
    assert bench.run(ranks, f"on {ranks}", *ASKED).returncode == 0
    assert facts(bench, f"on {ranks}") == facts(bench, "alone")


def test_a_restart_measures_the_same(bench, alone):
    assert bench.lead("halves", *ASKED, "rounds=1") == 0
    assert bench.lead("halves", *ASKED, resume="auto") == 0
    assert facts(bench, "halves") == facts(bench, "alone")
    ours, theirs = (read_history(bench.out(name) / "history.h5") for name in ("halves", "alone"))
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    # The folder has other new clients.
    assert bench.lead("halves", "evaluate.measures=[auc]", "rounds=4", resume="auto") == 2


def test_the_vectorised_engine_measures_the_same(bench, alone):
    assert bench.lead("vmap", *ASKED, "engine=vmap") == 0
    for line, other in zip(bench.metrics("vmap"), bench.metrics("alone"), strict=True):
        assert [line[key] for key in KEYS] == pytest.approx([other[key] for key in KEYS], rel=1e-5)


def test_a_round_that_is_the_last_one_afterwards_is_evaluated_with_them(bench, alone):
    assert bench.lead("late", *ASKED, "evaluate.every=0", "rounds=4") == 0
    assert bench.lead("late2", *ASKED, "evaluate.every=2", "rounds=4", "checkpoint.every=3") == 0
    assert bench.lead("late2", *ASKED, "evaluate.every=0", "rounds=3",
                      resume=str(bench.out("late2") / "checkpoints" / "round-000003.h5")) == 0
    assert [bench.result("late2")[key] for key in KEYS] == [bench.result("alone")[key] for key in KEYS]
    assert bench.result("late2")["steps_so_far"] == bench.result("alone")["steps_so_far"]
    assert bench.result("late")["accuracy_new_clients"] is not None


def test_what_is_written_is_what_each_new_client_has(bench, alone):
    history, line, result = read_history(alone / "history.h5"), bench.metrics("alone")[-1], bench.result("alone")
    assert {name for name in history if name.endswith("new_clients")} == {*KEYS} - {"accuracy_std_new_clients"}
    assert history["accuracy"].shape == (3, 6) and history["accuracy_new_clients"].shape == (3, 3)
    for name in ("accuracy", "f1", "loss", "auc"):
        assert line[f"{name}_new_clients"] == pytest.approx(np.nanmean(history[f"{name}_new_clients"][-1]))
    assert line["accuracy_std_new_clients"] == pytest.approx(history["accuracy_new_clients"][-1].std())
    # The mean is over the other clients alone.
    assert line["accuracy_mean"] == pytest.approx(history["accuracy"][-1].mean())
    assert result["accuracy_new_clients"] == line["accuracy_new_clients"]
    config = load_config(alone / "config.yaml")
    federation = Federation(prepare_federation(config.data, config.seed))
    assert result["new_clients"] == federation.new_clients and federation.clients == 6
    text = (alone / "log.txt").read_text()
    assert "3 new clients (served by theta trained for a round from (phi, H_m), and pulled to it), " in text
    assert f"{100 * result['accuracy_new_clients']:.2f} % over 3 new clients, " in text


def test_the_table_of_clients_marks_them(bench, alone):
    table = fedmpi.load_result(alone).clients()
    assert table.index.tolist() == list(range(9)) and table["new_client"].tolist() == [False] * 6 + [True] * 3
    history = read_history(alone / "history.h5")
    np.testing.assert_array_equal(table["accuracy"][6:], history["accuracy_new_clients"][-1])
    np.testing.assert_array_equal(table["auc"][:6], history["auc"][-1])
    assert table["cluster"][6:].isna().all() and str(table["cluster"].dtype) == "Int64"
    assert bench.lead("none") == 0
    assert "new_client" not in fedmpi.load_result(bench.out("none")).clients()


def test_compare_and_report_show_them(bench, alone, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert bench.lead("none again") == 0
    text, result = compare_runs(alone, bench.out("none again")), bench.result("alone")
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert f"accuracy of new clients, % {100 * result['accuracy_new_clients']:.2f} -" in rows
    assert f"auc of new clients {result['auc_new_clients']:.4g} -" in rows
    found = results.collect_folder_results([alone, bench.out("none again")])
    assert list(found.measures)[-1] == "accuracy_new_clients"
    assert found.columns == ["data.new_clients=3", "data.new_clients=0"]


def test_a_folder_of_before_differs_in_no_setting_that_is_new(bench, alone, tmp_path):
    """Settings that an older version did not write get the values that stand for what it did."""
    import yaml
    settings = yaml.safe_load((alone / "config.yaml").read_text())
    old = json.loads(json.dumps(settings))
    del old["data"]["new_clients"], old["evaluate"]["measures"], old["train"]["optimizer"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    found = run_status.find_differences([run_status.read_settings(folder) for folder in (alone, tmp_path)])
    assert found == {"data.new_clients": [3, 0], "evaluate.measures": [["auc"], []]}


def test_a_method_that_cannot_serve_them_is_refused_by_name(bench, capsys):
    assert bench.lead("refused", *ASKED, "method=fedamp") == 2
    said = capsys.readouterr().err
    assert said.startswith("fedmpi: data.new_clients = 3: FedAMP cannot serve new clients; ") and said.count("\n") == 1
    assert not bench.out("refused").exists()


def test_without_new_clients_nothing_is_said_of_them(bench):
    assert bench.lead("plain") == 0
    assert not any(key.endswith("new_clients") for key in bench.result("plain"))
    assert not any(name.endswith("new_clients") for name in read_history(bench.out("plain") / "history.h5"))


def test_attackers_are_among_those_that_train(bench):
    assert bench.lead("attacked", *ASKED, "attack={kind: label_flip, share: .3}") == 0
    found = fedmpi.load_result(bench.out("attacked"))
    table = found.clients()
    trained = int((~table["new_client"]).sum())
    expected = choose_attackers(Attack("label_flip", share=.3), trained, found.config["seed"])
    assert np.flatnonzero(table["attacker"]).tolist() == expected.tolist() != []
    honest = table[~table["attacker"] & ~table["new_client"]]
    assert honest["accuracy"].mean() == pytest.approx(found.accuracy)
