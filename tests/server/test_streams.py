"""The server's draws for some seeds, as literals: who takes part, who attacks, who is lost, who opens a run, and which
batches a round has. If a stream changed, every experiment would be another one.

The literals were drawn with NumPy alone, from the generators that the docstrings name and the constants below."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi import faults, participation, registry
from fedmpi.clients import updates
from fedmpi.clustering import kmeans_and_linkage
from fedmpi.config.schema import resolve
from fedmpi.data import assignment
from fedmpi.engines.batch_plan import LocalTraining, draw_batches, make_generator
from fedmpi.faults import Attack, Faults, choose_attackers, find_honest
from fedmpi.method import Participants
from fedmpi.methods import _cam
from fedmpi.participation import Stragglers
from fedmpi.server import sampling
from fedmpi.server.sampling import choose_addressed, draw_participants
from tests.federations import method

SIZES = np.arange(100, 200)


def drawn(seed, t, n, share) -> Participants:
    config = resolve({"seed": seed, "train": {"participation": share}})
    return draw_participants(config, t, SIZES[:n])


@pytest.mark.parametrize("seed, t, n, share, ids", [
    (0, 0, 10, .3, [1, 5, 7]), (0, 1, 10, .3, [4, 5, 6]), (1, 0, 10, .3, [5, 7, 9]),
    (0, 255, 10, .3, [1, 6, 7]), (0, 256, 10, .3, [1, 5, 8]), (0, 2**32, 10, .3, [1, 7, 9]),
    (2**63 - 1, 7, 10, .3, [6, 7, 8]), (5, 3, 7, .01, [5]), (5, 3, 7, 1., list(range(7))),
    (0, 0, 10, [.2, .9], [1, 4, 8]), (0, 1, 10, [.2, .9], [1, 3, 4, 5, 6, 9]), (0, 2, 10, [.2, .9], [4, 7, 8])])
def test_who_takes_part(seed, t, n, share, ids):
    who = drawn(seed, t, n, share)
    assert who.ids.tolist() == ids and who.ids.dtype == np.int64 and (who.round, who.seed) == (t, seed)
    assert who.sizes.tolist() == [100 + i for i in ids]


# Clients of 5 more samples each, and two of whom more than one share is due if four take part.
STEPS, HEAVY = np.arange(10, 60, 5), np.array([5, 1, 90, 2, 3, 60, 1, 8, 1, 1])


@pytest.mark.parametrize("sizes, seed, t, share, ids", [
    (STEPS, 0, 0, .3, [3, 7, 8]), (STEPS, 0, 1, .3, [6, 7, 9]), (STEPS, 1, 0, .3, [0, 6, 9]),
    (HEAVY, 0, 0, .4, [2, 3, 5, 7]), (HEAVY, 0, 1, .4, [2, 4, 5, 7])])
def test_who_is_drawn_by_size(sizes, seed, t, share, ids):
    config = resolve({"seed": seed, "train": {"participation": share, "sampling": "size"}})
    assert draw_participants(config, t, sizes).ids.tolist() == ids


@pytest.mark.parametrize("seed, t, candidates, asked, ids", [
    (0, 0, None, [2, 4, 5, 6, 8, 9], [2, 4, 5]), (0, 1, None, [3, 5, 6, 7, 8, 9], [3, 5, 6]),
    (2, 0, 4, [3, 5, 7, 8], [3, 5, 7])])
def test_who_tells_a_loss_and_is_drawn_by_it(seed, t, candidates, asked, ids):
    train, told = {"participation": .3, "sampling": "loss", "candidates": candidates}, []
    who = draw_participants(resolve({"seed": seed, "train": train}), t, STEPS,
                            measure=lambda numbers: told.append(numbers.tolist()) or -numbers)
    assert told == [asked] and who.ids.tolist() == ids


def test_how_fast_devices_are():
    """Standard deviation of the logarithm .5, seed 3; then round 4, and the one before the first."""
    speeds = Stragglers(1., spread=.5, jitter=.5)
    assert speeds.draw_factors(3, 3) == pytest.approx([1.11713384, 1.4703211, .90036012])
    assert speeds.draw_jitter(3, 3, 4) == pytest.approx([.65589273, 1.28064069, 1.00767374])
    assert speeds.draw_jitter(3, 3, -1) == pytest.approx([.64675207, .73903627, 2.01825735])


@pytest.mark.parametrize("n, share, count", [
    (9, .7, 6), (20, .33, 7), (9, .05, 1), (1, .1, 1), (100, .004, 1), (100, 1., 100),
    (5, .5, 2), (7, .5, 4), (10, .25, 2), (10, .35, 4), (3, .5, 2), (100, .125, 12), (100, .135, 14)])
def test_the_number_of_participants_is_rounded_halves_to_even(n, share, count):
    assert len(drawn(0, 0, n, share).ids) == count


@pytest.mark.parametrize("after, evaluates, differs, everybody", [
    ("all", True, True, True), ("all", False, True, False), ("participants", True, True, False),
    ("off", True, True, False), ("all", True, False, False)])
def test_all_clients_are_addressed_where_all_are_evaluated_after_training(after, evaluates, differs, everybody):
    config = resolve({"evaluate": {"after_training": after}})
    checked = SimpleNamespace(may_differ_after_training=differs)
    who = Participants(np.array([2, 4]), SIZES[[2, 4]], 7, 3)
    found = choose_addressed(config, checked, SIZES[:6], who, evaluates)
    assert found.ids.tolist() == ([0, 1, 2, 3, 4, 5] if everybody else [2, 4]) and (found.round, found.seed) == (7, 3)
    assert found.sizes.tolist() == [100 + i for i in found.ids]


@pytest.mark.parametrize("seed, n, share, ids", [
    (0, 10, .2, [2, 9]), (1, 10, .2, [2, 6]), (2, 10, .2, [4, 9]), (2, 16, .2, [4, 6, 13]),
    (0, 4, .01, [0]), (0, 4, .99, [0, 2, 3]), (9, 50, .1, [4, 5, 6, 37, 45])])
def test_who_attacks_at_least_one_and_never_all(seed, n, share, ids):
    assert choose_attackers(Attack("noise", share), n, seed).tolist() == ids
    assert np.flatnonzero(~find_honest(Attack("noise", share), n, seed)).tolist() == ids
    assert choose_attackers(None, n, seed).tolist() == [] and find_honest(None, n, seed).all()


@pytest.mark.parametrize("seed, t, asked, there", [
    (0, 0, range(8), [1, 3, 6, 7]), (0, 1, range(8), [0, 1, 2, 4]), (1, 0, range(8), [0, 1, 5, 6]),
    (0, 256, range(8), [0, 1, 4, 5, 6, 7]), (0, 0, [1, 3, 5, 7], [1, 3, 7])])
def test_who_is_lost(seed, t, asked, there):
    ids = np.array(asked)
    assert Faults(drop=.4).drop_participants(Participants(ids, SIZES[ids], t, seed)).ids.tolist() == there
    assert Faults().drop_participants(Participants(ids, SIZES[ids], t, seed)).ids.tolist() == list(asked)


def test_whoever_is_missing_is_named():
    def who(*ids):
        return Participants(np.array(ids, int), np.array(ids, int), 6, 0)
    both, drops, skips = Faults("skip", .5), Faults("stop", .5), Faults("skip")
    assert both.describe_lost_clients(who(1, 2, 3, 5), who(1, 3, 5), who(5)) == (
        {"lost": [2], "bad_updates": [1, 3]}, "round 7: lost clients 2, left out bad updates of clients 1 3")
    assert both.describe_lost_clients(who(1), who(1), who(1)) == ({"lost": [], "bad_updates": []}, "")
    assert drops.describe_lost_clients(who(1, 2, 3), who(), who()) == (
        {"lost": [1, 2, 3]}, "round 7: lost clients 1-3; no update is left, and the server's state stays")
    assert skips.describe_lost_clients(who(1), who(1), who()) == (
        {"bad_updates": [1]}, "round 7: left out bad updates of clients 1; no update is left, and the server's "
        "state stays")
    assert Faults().describe_lost_clients(who(1), who(1), who(1)) == ({}, "")


@pytest.mark.parametrize("seed, t, client, stream, order", [
    (0, 0, 0, 0, [4, 0, 3, 5, 2, 1]), (0, 255, 0, 0, [2, 0, 3, 4, 5, 1]), (0, 256, 0, 0, [2, 0, 4, 5, 3, 1]),
    (0, 257, 0, 0, [1, 2, 3, 0, 4, 5]), (0, 2**32, 0, 0, [4, 0, 3, 5, 2, 1]), (0, -1, 0, 0, [3, 2, 5, 0, 1, 4]),
    (1, 0, 0, 0, [0, 5, 4, 1, 3, 2]), (0, 0, 1, 0, [0, 3, 2, 5, 4, 1]), (0, 0, 0, 1, [1, 0, 2, 5, 3, 4])])
def test_which_batches_a_round_has(seed, t, client, stream, order):
    """Rounds 0 and 256 differ; the stream repeats only after 2^32 rounds."""
    assert make_generator(seed, t, client, stream).permutation(6).tolist() == order
    plan = draw_batches(LocalTraining(seed, t, 4, 1, None, .1, 0.), client, stream, 6)
    assert plan.index.tolist() == [order[:4], [*order[4:], 0, 0]] and plan.count.tolist() == [4, 2]


@pytest.mark.parametrize("name, settings, ids", [
    ("lcfed", {"D": 2, "K": 2}, [5, 7, 8]), ("fedgroup", {"K": 2, "first": 2}, [2, 4, 5, 8]),
    ("fesem_cam", {}, list(range(10))), ("fedavg", {}, None)])
def test_who_opens_a_run(mlp, name, settings, ids):
    found = method(name, mlp, **settings).warm_up_participants(10, 3)
    assert found is ids is None or found.tolist() == ids


def test_k_means_is_seeded_by_the_words_it_is_given(monkeypatch):
    """NumPy's SeedSequence makes 32 bits of the seed of the run and the round."""
    import sklearn.cluster
    import torch
    seen, real = [], sklearn.cluster.KMeans
    monkeypatch.setattr(sklearn.cluster, "KMeans",
                        lambda *a, **how: seen.append(how["random_state"]) or real(*a, **how))
    for seed in ((0,), (2, 0), (2, 1), (2, 256), (3, 5)):
        kmeans_and_linkage.kmeans(torch.rand(5, 2), 2, None, seed)
    assert seen == [2968811710, 2834126987, 307626447, 499213290, 3746004709]


def test_uses_of_the_seed_are_kept_apart():
    """Equal constants would give equal draws; for example, those who are lost would be those who were asked."""
    homes = {"fedgroup": "GROUPING_STREAM", "lcfed": "SAMPLE_STREAM", "fedfomo": "CHOICE_STREAM"}
    found = [getattr(__import__(registry.find_class("methods", name).__module__, fromlist=["x"]), constant)
             for name, constant in homes.items()]
    found += [sampling.PARTICIPANTS_STREAM, faults.DROPS_STREAM, faults.ATTACKERS_STREAM, participation.SPEEDS_STREAM,
              participation.JITTER_STREAM, _cam.WARMUP_STREAM, assignment.NEW_CLIENTS_STREAM]
    assert found == [0x6200, 0x1CFE, 0xF00D, 0x9A27, 0xD20B, 0xA77A, 0x57A6, 0x57A7, 0xCA3, 2]
    # Attackers are drawn by another key than their noise.
    assert updates.ATTACK_STREAM == 0xA77A
