"""What CAM sends, the clusters of its warm-up in the books, and the planted groups that it finds."""
from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedmpi.config.schema import resolve
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.server.sampling import draw_participants
from fedmpi.storage.history import read_history
from tests.federations import Lab, method
from tests.runs import run_alone


@pytest.mark.parametrize("every", [1, 0])
def test_the_clusters_of_the_warm_up_are_round_0(every, tmp_path, cache):
    """Round 0 has the clusters of all clients; if no round is evaluated, only their sizes. Later rounds have the sizes
    of all clients too, although a third of them takes part."""
    (tmp_path / "c.yaml").write_text(json.dumps({
        "rounds": 2, "method": {"name": "fesem_cam", "warm_up": 1, "warm_steps": 30}, "evaluate": {"every": every},
        "model": {"name": "mlp", "hidden": 8}, "train": {"lr": .05, "participation": .3, "steps": 2},
        "data": {"clients": 20, "cache": str(cache), "partition": "pathological"}}))
    assert run_alone(str(tmp_path / "c.yaml"), [], str(tmp_path / "run")) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert [sum(line["cluster_sizes"]) for line in lines] == [20, 6, 6]
    assert [sum(line["cluster_sizes_all"]) for line in lines] == [20, 20, 20]
    assert ["accuracy_mean" in line for line in lines] == [bool(every), bool(every), True]
    if every:
        history = read_history(tmp_path / "run" / "history.h5")
        assert history["round"].tolist() == [0, 1, 2] and (history["cluster"] >= 0).all()
        for line, cluster in zip(lines, history["cluster"], strict=True):
            assert line["cluster_sizes_all"] == np.bincount(cluster.astype(int), minlength=5).tolist()
        assert lines[0]["cluster_sizes"] == lines[0]["cluster_sizes_all"]
        assert lines[0]["participants"] == 20 and lines[0]["accuracy_mean"] > .2 and lines[0]["ari"] > .5
        assert lines[0]["accuracy_mean"] == pytest.approx(history["accuracy"][0].mean())


def test_sizes_of_ifca_cam_are_of_all_clients_from_the_end_of_the_warm_up_on(tmp_path, cache):
    """This holds in every round, though only the last is evaluated; clients count as they last chose. During the
    warm-up nobody has a cluster."""
    (tmp_path / "c.yaml").write_text(json.dumps({
        "rounds": 8, "method": {"name": "ifca_cam", "warm_up": 2, "k": 3}, "evaluate": {"every": 0}, "seed": 1,
        "model": {"name": "mlp", "hidden": 8}, "train": {"lr": .05, "participation": .3, "steps": 2},
        "data": {"clients": 20, "cache": str(cache), "partition": "pathological"}}))
    assert run_alone(str(tmp_path / "c.yaml"), [], str(tmp_path / "run")) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [*range(1, 9)]
    assert not any("cluster_sizes_all" in line or "distance" in line for line in lines[:2])
    config, seen = resolve({"seed": 1, "train": {"participation": .3}}), set()
    for line in lines[2:]:
        seen.update(draw_participants(config, line["round"] - 1, np.ones(20, int)).ids.tolist())
        assert sum(line["cluster_sizes"]) == 6 and sum(line["cluster_sizes_all"]) == len(seen) and line["distance"] > 0
    assert len(seen) > 12 and ["accuracy_mean" in line for line in lines] == 7 * [False] + [True]


def test_rounds_in_which_nobody_takes_part_are_none_of_the_warm_up(mlp, federation):
    """Whether they come last in it or before."""
    for t, seen in ((3, (0, 1, 4)), (3, (0, 2, 3)), (1, (2,))):
        lab = Lab(method("ifca_cam", mlp, warm_up=t), federation)
        for r in seen:
            assert lab.method.is_warming_up(lab.shared)
            lab.round(r)
        assert lab.shared.round == t and not lab.method.is_warming_up(lab.shared)


@pytest.mark.parametrize("name, extra", [("ifca_cam", 8), ("fesem_cam", 0)])
def test_what_is_sent_is_k_models_and_g_down_and_two_up(mlp, federation, name, extra):
    lab = Lab(method(name, mlp, k=4), federation)
    assert lab.method.traffic(lab.shared, lab.up) == (5 * 4 * mlp.size, 2 * 4 * mlp.size + extra)


@pytest.mark.parametrize("keep, first", [(False, .8), (True, 1.)])
@pytest.mark.parametrize("seed", [0, 1])
def test_fesem_cam_finds_planted_groups(mlp, cache, seed, keep, first):
    """It nearly finds them in the round before the first one and keeps them; from own models it finds all of them."""
    federation = Federation(prepare_federation(resolve({"data": {
        "clients": 20, "cache": str(cache), "partition": "pathological"}}).data, seed))
    lab = Lab(method("fesem_cam", mlp, warm_up=2, keep=keep), federation, seed=seed).open()
    assert adjusted_rand_score(federation.groups, lab.shared.of) > .8
    ari = [adjusted_rand_score(federation.groups, lab.round(t).facts["clusters"]) for t in range(3)]
    print(ari)
    assert ari[0] >= first and ari == sorted(ari)


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_groups_with_ifca_cam(mlp, cache, seed):
    """Like IFCA, it leaves two of the five groups together, because one start is best for no client (ARI .74)."""
    federation = Federation(prepare_federation(resolve({"data": {
        "clients": 20, "cache": str(cache), "partition": "pathological"}}).data, seed))
    lab = Lab(method("ifca_cam", mlp, warm_up=1), federation, seed=seed)
    ari = [adjusted_rand_score(federation.groups, lab.round(t).facts.get("clusters", np.zeros(20))) for t in range(5)]
    assert ari[0] == 0 < ari[1] <= ari[-1] and .7 < ari[-1] <= 1
