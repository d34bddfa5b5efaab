"""Client selection: sampling by size and by loss, times of availability, speeds and deadlines."""
from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.engines.dry_run import RoundWork
from fedmpi.errors import BadInput
from fedmpi.method import Participants
from fedmpi.participation import Availability
from fedmpi.server import sampling
from fedmpi.server.availability import AvailableTimes
from fedmpi.server.client_selection import ClientSelector
from fedmpi.server.sampling import draw_participants
from fedmpi.server.simulated_time import SimulatedTime, fit_portion

SIZES = np.array([1, 2, 3, 4, 30, 5, 5])


def config(**train):
    return resolve({"seed": 4, "train": {"participation": .43, **train}})


@pytest.mark.slow("thousands of draws")
def test_clients_are_drawn_by_their_samples_as_often_as_they_should_be():
    """Three of seven: the client with 30 of 50 samples always, the others with 2 n_i / 20 each."""
    drawn = [draw_participants(config(sampling="size"), t, SIZES).ids for t in range(4000)]
    assert all(len(set(ids.tolist())) == 3 and (np.diff(ids) > 0).all() for ids in drawn)
    share = np.bincount(np.concatenate(drawn), minlength=7) / len(drawn)
    np.testing.assert_allclose(share, [.1, .2, .3, .4, 1, .5, .5], atol=.025)


@pytest.mark.parametrize("sizes, count", [([5], 1), ([5, 5], 2), ([1, 1, 10**9], 2), ([7, 7, 7], 1), ([3, 9], 0)])
def test_small_draws_by_size(sizes, count):
    drawn = sampling.draw_by_size(np.array(sizes), count, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert count != 2 or len(sizes) - 1 in drawn


def test_those_of_the_highest_loss_take_part():
    asked = []

    def measure(ids):
        asked.append(ids)
        return np.where(ids == 2, np.nan, -ids.astype(float))
    for t in range(200):
        ids = draw_participants(config(sampling="loss", candidates=5), t, SIZES, measure=measure).ids
        candidates = asked[-1]
        assert len(set(candidates.tolist())) == 5 and (np.diff(candidates) > 0).all()
        first = sorted(candidates.tolist(), key=lambda i: (i != 2, i))[:3]
        assert ids.tolist() == sorted(first) and ids.dtype == np.int64
    # drawn one after another by their samples, without replacement
    assert sum(4 in ids for ids in asked) > 195 and sum(0 in ids for ids in asked) < 120
    assert len(draw_participants(config(sampling="loss"), 0, SIZES, measure=measure).ids) == 3 and len(asked[-1]) == 6


def test_only_available_clients_are_drawn():
    there = np.array([0, 1, 0, 0, 0, 1, 0], bool)
    for how in ("uniform", "size", "loss"):
        who = draw_participants(config(sampling=how), 3, SIZES, there, lambda ids: -ids)
        assert who.ids.tolist() == [1, 5] and who.sizes.tolist() == [2, 5]
        assert draw_participants(config(sampling=how), 3, SIZES, there & False, None).ids.tolist() == []
    everybody = draw_participants(config(), 3, SIZES, np.ones(7, bool))
    assert everybody.ids.tolist() == draw_participants(config(), 3, SIZES).ids.tolist()


def times(tmp_path, text: str, name="a.csv", **settings):
    (tmp_path / name).write_text(text)
    return AvailableTimes(Availability(str(tmp_path / name), **settings), 4)


def test_times_in_rounds_and_in_seconds(tmp_path):
    found = times(tmp_path, "begin, end, client, more\n2,3,1,x\n1,1,3,\n4,6,1,\n")
    assert [found.look_up(t).tolist() for t in range(7)] == [
        [0, 0, 0, 1], *([0, left, 0, 0] for left in (5, 4, 3, 2, 1, 0))]
    assert [found.count_clients(rounds) for rounds in (1, 2, 9)] == [1, 2, 2] and not found.in_seconds
    rows = [{"client": 0, "begin": .5, "end": 2}, {"client": 2, "begin": 1, "end": "1.25"}]
    found = times(tmp_path, json.dumps(rows), "a.json", unit="seconds")
    assert found.count_clients(1) == 2 and found.find_longest().tolist() == [1.5, 0, .25, 0]
    assert found.look_up(1.).tolist() == [1, 0, .25, 0] and found.look_up(2.).tolist() == [0] * 4
    # nobody waits for what never comes
    assert [found.wait_for_next(now)[0] for now in (0, .75, 2)] == [.5, 0, 0]


def test_times_repeat(tmp_path):
    text = "client,begin,end\n0,0,10\n1,8,10\n1,0,3\n2,4,5\n"
    found = times(tmp_path, text, unit="seconds", repeat=10.)
    assert found.look_up(24.5).tolist() == [np.inf, 0, .5, 0] and found.look_up(9).tolist() == [np.inf, 4, 0, 0]
    assert times(tmp_path, "client,begin,end\n2,4,5\n", unit="seconds", repeat=10.).wait_for_next(17)[0] == 7
    in_rounds = times(tmp_path, "client,begin,end\n3,2,2\n", repeat=3.)
    assert [t for t in range(9) if in_rounds.look_up(t).any()] == [1, 4, 7]


def test_a_time_inside_another_one_shortens_nothing(tmp_path):
    found = times(tmp_path, "client,begin,end\n1,0,10\n1,2,3\n", unit="seconds")
    assert found.look_up(5.).tolist() == [0, 5, 0, 0]
    with pytest.raises(BadInput, match="the time 5 to 2 of client 1 does not end after it begins"):
        times(tmp_path, "client,begin,end\n1,5,2\n", unit="seconds")
    with pytest.raises(BadInput, match="the time 5 to 5 of client 1 does not end after it begins"):
        times(tmp_path, "client,begin,end\n1,5,5\n", unit="seconds")


def test_the_clock_goes_on_whatever_the_digits_of_the_times(tmp_path):
    """2.95 + 10 is rounded to just before the begin of the second repetition, and 3.96 + 10 to just before its end."""
    found = times(tmp_path, "client,begin,end\n0,2.95,3.1\n1,3,3.96\n", unit="seconds", repeat=10.)
    for step in (.15, .3, .7, 1.):
        now, rounds = 0., 0
        while now < 200:
            waited, left = found.wait_for_next(now)
            assert left.any()
            # nobody is ready before it leaves
            now, rounds = now + waited + min(step, left.max()), rounds + 1
            assert rounds < 200
    rng = np.random.default_rng(0)
    for _ in range(200):
        begin, length, repeat = rng.integers(1, 800, 3) / 100
        found = times(tmp_path, f"client,begin,end\n0,{begin},{begin + length}\n", unit="seconds",
                      repeat=begin + 2 * length)
        now = 0.
        for _ in range(50):
            waited, left = found.wait_for_next(now)
            assert left[0] > .009
            now += waited + left[0]


@pytest.mark.parametrize("text, name, said", [
    ("client,begin\n1,2\n", "a.csv", "it has no column end; give a .csv file with the columns client, begin, end, or a "
     ".json file with a list of such mappings"),
    ("client,begin,end\n1,2,soon\n", "a.csv", "could not convert string to float: 'soon'; give"),
    ("client,begin,end\n1,2\n", "a.csv", "'None' is no number"),
    ("client,begin,end\n1,2,inf\n", "a.csv", "'inf' is no "),
    ("client,begin,end\n", "a.csv", "it has no rows"), ("client,begin,end\n4,1,2\n", "a.csv", "there is no client 4; "
     "the run has the clients 0 to 3"), ("client,begin,end\n.5,1,2\n", "a.csv", "there is no client 0.5"),
    ("client,begin,end\n1,0,2\n", "a.csv", "the time 0 to 2 of client 1 begins before 1; correct it"),
    ("client,begin,end\n1,3,2\n", "a.csv", "the time 3 to 2 of client 1 ends before it begins"),
    ("client,begin,end\n1,2,2.5\n", "a.csv", "the time 2 to 2.5 of client 1 is no whole number of rounds"),
    ("client,begin,end\n1,3,9\n", "a.csv", "the time 3 to 9 of client 1 ends after availability.repeat = 5.0"),
    ("{}", "a.json", "it is no list"), ("[3]", "a.json", "3 has no client"), ('[{"client": 1, "begin": 2}]', "a.json",
     "has no end"), ('[{"client": 1, "begin": true, "end": 2}]', "a.json", "'True' is no number"),
    ("[", "a.json", "Expecting value"), ("\udcff", "a.csv", "can't decode")])
def test_bad_times_are_refused(tmp_path, text, name, said):
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadInput) as error:
        AvailableTimes(Availability(str(tmp_path / name), repeat=5.), 4)
    assert str(error.value).startswith(f"availability.file = {tmp_path}/{name}: ") and said in str(error.value)


def test_files_that_are_none(tmp_path):
    # Opening a FIFO would wait for its writer.
    os.mkfifo(tmp_path / "c")
    for path, said in ((tmp_path, "it is a folder"), (tmp_path / "c", "it is not a regular file"),
                       (tmp_path / "b", "cannot read it: No such file")):
        with pytest.raises(BadInput, match=f"availability.file = {path}: {said}"):
            AvailableTimes(Availability(str(path)), 4)


def clock(works, **sections):
    """Return the clock of four clients whose rounds have this work, and all of them as participants."""
    federation = SimpleNamespace(sizes=np.array([10, 20, 30, 40]))
    made = SimulatedTime(resolve(sections), federation, SimpleNamespace(list_works=lambda who: works))
    return made, Participants(np.arange(4), federation.sizes, 0, 0)


WORKS = [RoundWork(10 * s, 5 * s, (s,), (s + 1) // 2) for s in (1, 2, 3, 4)]


def test_the_time_of_a_round_by_hand():
    """A step takes 1 s, a forward pass over up to 10 samples a third of it, and 100 bytes at 800 bits/s another 1 s."""
    made, who = clock(WORKS, stragglers={"step_seconds": 1., "deadline": 4.5}, edge={"bandwidth": 800.})
    found = made.time_round(who, 100)
    np.testing.assert_allclose(found.ends, [1 + 1 / 3 + 1, 1 + 1 / 3 + 2, 4.5, 4.5])
    assert found.in_time.tolist() == [True, True, False, False] and found.seconds == 4.5
    assert found.portions.tolist() == [[1, 1], [2, 2], [2, 3], [2, 4]] and not found.partial.any()
    waited = made.time_round(who, 100, waits=True)
    assert waited.in_time.all() and waited.seconds == pytest.approx(1 + 2 / 3 + 4)
    leaving = made.time_round(who, 100, np.array([2., 9, 9, 9]))
    assert leaving.in_time.tolist() == [False, True, False, False] and leaving.ends[0] == 2.
    # .1 + .1 + .1 is more than .3, and in time.
    made, who = clock([RoundWork(10 * s, 0, (s,), 0) for s in (1, 2, 3, 4)],
                      stragglers={"step_seconds": .1, "deadline": .3})
    assert made.time_round(who, 0).in_time.tolist() == [True, True, True, False]
    made, who = clock(WORKS, stragglers={"step_seconds": 1.}, edge={"bandwidth": 800.})
    works = [RoundWork(0, 10 * n, (), n) for n in (1, 2, 3, 4)]
    assert made.time_candidates(who, works, 50).max() == pytest.approx(.5 + 4 / 3)


def test_partial_work_is_what_fits():
    made, who = clock(WORKS, stragglers={"step_seconds": 1., "deadline": 3.4, "late": "partial"})
    found = made.time_round(who, 0)
    assert found.portions.tolist() == [[1, 1], [2, 2], [2, 3], [2, 4]] and found.in_time.all()
    assert found.partial.tolist() == [False, False, True, True] and found.made.tolist() == [1, 1, 2 / 3, .5]
    found = made.time_round(who, 0, np.array([9, 2., 1., .5]))
    assert found.in_time.tolist() == [True, True, False, False]


def test_several_trainings_are_counted_as_they_are_made():
    """Of five trainings with 8 steps each, one step each fits into 9 s: no more than 5 of 40 steps, not 9 of 40."""
    made, who = clock([RoundWork(80, 0, (8,) * 5)] * 4,
                      stragglers={"step_seconds": 1., "deadline": 9., "late": "partial"})
    found = made.time_round(who, 0)
    assert found.partial.all() and found.made.tolist() == [5 / 40] * 4


def test_edge_gives_the_seconds_of_a_step_if_nobody_else_does():
    made, who = clock(WORKS, edge={"cycles": 1e9, "frequency": 1e9}, stragglers={"spread": .7, "deadline": 25,
                                                                                   "late": "partial"})
    np.testing.assert_allclose(made.time_round(who, 0, waits=True).ends,
                               made.factors * (10 + 5 / 3) * np.array([1, 2, 3, 4]))
    steps = made.time_round(who, 0).portions[:, 0]
    expected = np.minimum([1, 2, 3, 4], (25 / made.factors - 5 / 3 * np.array([1, 2, 3, 4])) // 10)
    np.testing.assert_array_equal(steps, np.maximum(0, expected))


@pytest.mark.parametrize("how, choosing, nbytes", [("loss", 1 + 1 / 3, 200), ("uniform", 0, 96 + 200)])
def test_those_whose_losses_were_compared_have_received_the_model(how, choosing, nbytes):
    """Three candidates receive 96 bytes and send 4, which takes 1 s, and pass their samples forward in a third of a
    step. The one that is chosen makes a step and sends 200 bytes; with uniform sampling it receives the model, too."""
    settings = resolve({"train": {"sampling": how, "participation": .25, "candidates": 3 if choosing else None},
                        "stragglers": {"step_seconds": 1.}, "edge": {"bandwidth": 800.}})
    ledger = SimpleNamespace(list_works=lambda who: [RoundWork(10, 0, (1,))] * len(who.ids),
                             count_loss_work=lambda n: RoundWork(0, 10, (), 1))
    selector = ClientSelector(settings, SimpleNamespace(sizes=np.full(4, 10)), ledger)
    found = selector.select(0, 0., (96, 200), 0, lambda ids: -ids.astype(float))
    assert len(found.participants.ids) == 1 and found.seconds == pytest.approx(choosing + 1 + nbytes / 100)
    assert found.facts.get("mib_candidates", 0) == (2 * 96 + 3 * 4) / 2 ** 20 * (how == "loss")


def test_candidates_that_leave_before_they_told_their_loss(tmp_path):
    """Telling it takes a third of a step of 3 s; client 0 leaves before, client 1 while it trains."""
    (tmp_path / "a.csv").write_text("client,begin,end\n0,0,.5\n1,0,2\n")
    settings = resolve({"train": {"sampling": "loss", "participation": .5, "candidates": 2},
                        "stragglers": {"step_seconds": 3.},
                        "availability": {"file": str(tmp_path / "a.csv"), "unit": "seconds"}})
    ledger = SimpleNamespace(list_works=lambda who: [RoundWork(10, 0, (1,))] * len(who.ids),
                             count_loss_work=lambda n: RoundWork(0, 10, (), 1))
    selector = ClientSelector(settings, SimpleNamespace(sizes=np.full(4, 10)), ledger)
    found = selector.select(0, 0., (96, 200), 0, lambda ids: -ids.astype(float))
    # the server waits for client 1, whose training ends as it leaves
    assert found.participants.ids.tolist() == [0, 1] and found.facts["late"] == [0, 1] and found.seconds == 2
    found = selector.select(0, 1.5, (96, 200), 0, lambda ids: -ids.astype(float))
    assert found.participants.ids.tolist() == [1] and found.facts["late"] == [1] and found.seconds == .5


def test_a_mix_that_is_learned_to_tell_a_loss_takes_its_steps():
    """Three candidates make two steps of a second each, and pass ten samples forward in a third of one."""
    settings = resolve({"train": {"sampling": "loss", "participation": .25, "candidates": 3},
                        "stragglers": {"step_seconds": 1.}})
    ledger = SimpleNamespace(list_works=lambda who: [RoundWork(10, 0, (1,))] * len(who.ids),
                             count_loss_work=lambda n: RoundWork(20, 10, (2,), 1))
    selector = ClientSelector(settings, SimpleNamespace(sizes=np.full(4, 10)), ledger)
    assert selector.select(0, 0., (0, 0), 0, lambda ids: -ids.astype(float)).seconds == pytest.approx(2 + 1 / 3 + 1)


@pytest.mark.parametrize("parts, budget, made", [
    ((6,), 4, 4), ((6,), 0, 0), ((5, 20), 25, 25), ((5, 20), 10, None), ((5, 20), 1, 0), ((5, 20), 2, None),
    ((), 3, 0)])
def test_the_largest_portion_that_fits(parts, budget, made):
    portion = fit_portion(parts, budget)
    assert (portion is None) == (made == 0)
    if portion:
        assert sum(map(portion.shorten, parts)) <= budget
        more = portion._replace(made=portion.made + 1)
        assert portion.made == portion.whole or sum(map(more.shorten, parts)) > budget
        assert made is None or portion.made == made


def test_speeds_belong_to_the_client_that_their_row_names(tmp_path):
    (tmp_path / "s.csv").write_text("client,step_seconds\n2,3\n0,1\n3,4\n1,2\n")
    made, _ = clock(WORKS, stragglers={"file": str(tmp_path / "s.csv")})
    assert made.step_seconds.tolist() == [1, 2, 3, 4]


def test_the_server_waits_for_all_before_the_first_round():
    settings, sizes = resolve({"stragglers": {"step_seconds": 1., "deadline": 1.5}}), np.full(4, 10)
    ledger = SimpleNamespace(list_works=lambda who: [RoundWork(50, 0, (5,))] * len(who.ids))
    selector = ClientSelector(settings, SimpleNamespace(sizes=sizes), ledger)
    assert selector.time_warm_up(Participants(np.arange(4), sizes, -1, 0), (0, 0)) == 5
