"""Runs under attack: plain means fall, robust ones do not, and the bits depend on no number of ranks."""
from __future__ import annotations

import pytest

import fedmpi

FAIR = ("method=fedavg", "rounds=6", "data.clients=10", "data.partition=iid", "train.participation=1", "train.lr=.6",
        "train.batch=30", "train.steps=null", "train.epochs=2", "data.fraction=1", "engine=auto")
ATTACK = "attack={kind: sign_flip, scale: 3}"


def accuracy(bench, name, *words):
    assert bench.lead(name, *FAIR, *words) == 0
    return bench.result(name)["accuracy_mean"]


@pytest.mark.slow("trains until attackers show")
def test_a_fifth_of_sign_flippers_breaks_the_mean_and_no_robust_one(bench):
    clean, mean = accuracy(bench, "clean"), accuracy(bench, "mean", ATTACK)
    assert clean > .87 and mean < .5
    for name, *words in (("median", "server.aggregation=median"),
                         ("trimmed", "server.aggregation=trimmed_mean", "server.trim=.2"),
                         ("noisy", "server.aggregation=median", "attack.kind=noise", "attack.scale=1e8")):
        assert accuracy(bench, name, ATTACK, *words) > .85, name
    assert accuracy(bench, "clipped", ATTACK, "server.clip_norm=.5") > mean + .1


def test_accuracies_are_those_of_honest_clients(bench, capsys):
    """With local training, accuracies show who attacks: attackers learn swapped labels."""
    words = ("method=local", "attack={kind: label_flip, share: .3}")
    honest = accuracy(bench, "labels", *words)
    out, result = capsys.readouterr().out, bench.result("labels")
    assert honest > .75 and result["accuracy_mean_attackers"] < .2
    assert "attack: label_flip of clients " in out and "mean over 7 honest clients" in out
    import h5py
    with h5py.File(bench.out("labels") / "history.h5") as history:
        each = history["accuracy"][-1]
    assert len(each) == 10 and sorted(each)[3:] == pytest.approx(sorted(each[each > .5]))
    assert each[each > .5].mean() == pytest.approx(honest)
    table = fedmpi.load_result(bench.out("labels")).clients()
    assert table["attacker"].tolist() == [value < .5 for value in each]
    assert table[~table["attacker"]]["accuracy"].mean() == pytest.approx(honest)


def test_means_of_what_a_method_tells_are_those_of_honest_clients(bench):
    words = ("method={name: fedcps, k: 2, layers: 1}", ATTACK, "rounds=3", "train.participation=1")
    assert bench.lead("pulls", *words) == 0
    run = fedmpi.load_result(bench.out("pulls"))
    table, told = run.clients(), run.metrics["lam_mean"].iloc[-1]
    assert told == pytest.approx(table[~table["attacker"]]["lam"].mean()) != pytest.approx(table["lam"].mean())


def test_the_only_client_cannot_attack(bench, capsys):
    assert bench.lead("alone", "method=fedavg", "data={clients: 1, partition: iid}", ATTACK) == 2
    assert "attack.kind = sign_flip: of data.clients = 1 none is left to be honest" in capsys.readouterr().err
    assert bench.lead("alone", "method=fedavg", "data={clients: 3, new_clients: 2, partition: iid}", ATTACK) == 2
    assert "of data.clients = 3 less 2 new ones none is left to be honest" in capsys.readouterr().err


@pytest.mark.parametrize("ranks, words", [
    (3, ("method=fedavg", "server.aggregation=trimmed_mean", "server.clip_norm=.3", ATTACK)),
    (2, ("method={name: ifca, k: 2}", "server.aggregation=median", "attack={kind: noise, share: .3}"))])
def test_the_same_bits_on_any_number_of_ranks(bench, ranks, words):
    words = (*words, "faults={bad_update: skip, drop: .2}", "train.participation=[.4, 1]")
    assert bench.lead(f"one-{ranks}", *words) == 0
    done = bench.run(ranks, f"more-{ranks}", *words)
    assert done.returncode == 0, done.stderr
    assert bench.result(f"more-{ranks}")["digest"] == bench.result(f"one-{ranks}")["digest"]


@pytest.mark.slow("four runs, one of them on three ranks")
def test_a_robust_mean_goes_on_to_the_same_bits(bench):
    """The mean is computed by columns, but sums over its rows have the same bits before and after a checkpoint."""
    words = ("method={name: pfedcam, K: 4}", "server.aggregation=median", "data.clients=7")
    assert bench.lead("straight", *words, "rounds=4") == bench.lead("cut", *words, "rounds=2") == 0
    assert bench.lead("cut", *words, "rounds=4", resume="auto") == 0
    assert bench.result("cut")["digest"] == bench.result("straight")["digest"]
    assert bench.run(3, "three", *words, "rounds=4").returncode == 0
    assert bench.result("three")["digest"] == bench.result("straight")["digest"]


def test_a_method_that_cannot_begin_says_so(bench):
    method = "method={name: lcfed, K: 2, D: 1, sample: 1, mu: 0, lam: 0}"
    done = bench.run(2, "never", method, "faults.bad_update=skip", "train.lr=1e30")
    assert done.returncode == 1 and "which train before round 1, can be used, and LCFed cannot begin" in done.stderr
