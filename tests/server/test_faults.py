"""Runs with clients that fail: bad updates that are skipped, participants that are lost."""
from __future__ import annotations

import numpy as np
import pytest

from fedmpi.assembly import build_method
from fedmpi.config.schema import load_config
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines.loop import Loop
from fedmpi.faults import Faults
from fedmpi.method import Participants
from fedmpi.text import MIB
from tests.federations import Lab

pytestmark = pytest.mark.slow("runs with every kind of fault")

WILD, SKIP, ALL = "method=tests.faulty:Wild", "faults.bad_update=skip", "train.participation=1"


@pytest.fixture(scope="module")
def ignored(bench):
    """The digests, by engine, of runs whose method itself ignores client 5's update and keeps the client's state."""
    for engine in ("loop", "vmap"):
        assert bench.lead(f"ignored-{engine}", WILD, f"engine={engine}") == 0
    return {engine: bench.result(f"ignored-{engine}")["digest"] for engine in ("loop", "vmap")}


@pytest.mark.parametrize("bad", ["sent: nan", "sent: inf", "sent: large", "kept: nan"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_bad_update_is_left_out_and_its_client_rolled_back(bench, ignored, bad, engine):
    name = f"{bad[:4]}-{bad[6:]}-{engine}"
    assert bench.lead(name, WILD, f"method.bad='{bad}'", SKIP, f"engine={engine}") == 0
    lines = bench.metrics(name)
    assert {5} == {c for line in lines for c in line["bad_updates"]} and "lost" not in lines[0]
    assert f"round {lines[0]['round']}: left out bad updates of clients 5" in (bench.out(name) / "log.txt").read_text()
    assert bench.result(name)["digest"] == ignored[engine]


def test_skipping_gives_the_same_bits_on_three_ranks(bench, ignored):
    done = bench.run(3, "skip-3", WILD, "method.bad='sent: nan'", SKIP)
    assert done.returncode == 0, done.stderr
    assert bench.result("skip-3")["digest"] == ignored["loop"]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_kept_state_that_is_not_finite_ends_the_run_by_its_name(bench, engine):
    done = bench.run(2, f"stop-{engine}", WILD, "method.bad='kept: nan'", ALL, f"engine={engine}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fedmpi: ")]
    assert line.startswith("fedmpi: client 5, round 1 (rank 1 of 2 on ")
    assert "update of v has 1 non-finite values of 1210; lower train.lr" in line


def test_a_run_that_a_bad_update_ended_goes_on_without_it(bench):
    # Client 5 is no participant of round 1.
    words = ("seed=3", WILD, "method.bad='kept: nan'")
    done = bench.run(2, "ended", *words)
    assert done.returncode == 1 and "client 5, round 2" in done.stderr and "round-000001.h5; continue" in done.stderr
    assert bench.lead("ended", *words, SKIP, resume="auto") == bench.lead("at-once", *words, SKIP) == 0
    assert bench.result("ended")["digest"] == bench.result("at-once")["digest"]


def laboratory(bench, words) -> Lab:
    """Return a laboratory with the clients and the method of a run."""
    config = load_config(bench.config, words)
    federation = Federation(prepare_federation(config.data, config.seed))
    method = build_method(config, federation)
    return Lab(method, federation, Loop(), config.train, config.train.participation, config.seed)


def test_without_any_good_update_nothing_changes(bench):
    words = ["method={name: 'tests.faulty:Wild', bad: 'kept: nan', client_number: -1}", SKIP, ALL,
             "evaluate.embeddings=[1]"]
    assert bench.lead("none", *words) == 0
    assert [line["bad_updates"] for line in bench.metrics("none")] == 3 * [list(range(9))]
    # The state is that before the first round.
    assert bench.result("none")["digest"] == laboratory(bench, words).digest()


# Participants of 12 rounds with 9 clients and seed 5.
ASKED = [[4, 5, 6, 7, 8], [0, 3, 5, 6, 8], [8], [0, 1, 2, 4, 5], [0, 3, 4, 5], [5, 6, 7], [5], [0, 2, 3, 4, 5, 6, 7],
         [1, 2], [0, 1, 2, 3, 5, 6, 7], [0, 3, 5], [5]]


def test_lost_clients_did_not_take_part(bench):
    """The run equals a laboratory in which lost clients are no participants, with shares drawn every round."""
    words = ["method=ditto", "train.participation=[.1, .8]", "faults.drop=.45", "rounds=12", "edge={}", "seed=5"]
    assert bench.lead("lost", *words) == 0
    lab, config, seen = laboratory(bench, words), load_config(bench.config, words), set()
    for t, line in enumerate(bench.metrics("lost")):
        asked = Participants(np.array(ASKED[t]), lab.federation.sizes[ASKED[t]], t, 5)
        who = asked.only(~np.isin(asked.ids, line["lost"]))
        assert set(line["lost"]) <= set(asked.ids) and line["participants"] == len(asked.ids)
        share = len(who.ids) / len(asked.ids)
        seen.add("none" if share == 0 else "all" if share == 1 else "some")
        assert line["mib_per_client_round"] * MIB == pytest.approx(4 * lab.method.model.size * (1 + share))
        assert line["T_comm"] * config.edge.bandwidth == pytest.approx(32 * lab.method.model.size * (1 + share))
        if len(who.ids):
            lab.round(t, who)
    assert seen == {"none", "some", "all"}
    assert bench.result("lost")["digest"] == lab.digest()


def test_losses_are_drawn_for_each_client_and_round():
    faults, everyone = Faults(drop=.3), np.arange(50)
    there = [set(faults.drop_participants(Participants(everyone, everyone, t, 1)).ids) for t in range(100)]
    assert .68 < np.mean([len(ids) for ids in there]) / 50 < .72 and len({len(ids) for ids in there}) > 5
    # A loss does not depend on who else takes part.
    some = everyone[::3]
    assert all(set(faults.drop_participants(Participants(some, some, t, 1)).ids) == there[t] & set(some)
               for t in range(100))
    assert there != [set(faults.drop_participants(Participants(everyone, everyone, t, 2)).ids) for t in range(100)]


def test_lost_clients_and_a_restart(bench):
    words = ("faults.drop=.5", SKIP, "method=fedmhc")
    assert bench.lead("whole", *words, "rounds=4") == 0
    assert bench.lead("parts", *words, "rounds=2") == 0
    assert bench.lead("parts", *words, "rounds=4", resume="auto") == 0
    assert bench.result("whole")["digest"] == bench.result("parts")["digest"]


@pytest.mark.parametrize("method, in_books", [("lcfed", False), ("fesem_cam", True)])
def test_bad_updates_before_the_first_round_are_told(bench, method, in_books):
    """Clusters that are found before round 1 have a line in the books."""
    words = (f"method={method}", SKIP, "attack={kind: noise, scale: 1.e+36, share: .4}", "rounds=1")
    assert bench.lead(f"before-{method}", *words) == 0
    assert "round 0: left out bad updates of clients 2 6-8" in (bench.out(f"before-{method}") / "log.txt").read_text()
    first = bench.metrics(f"before-{method}")[0]
    assert (first["round"] == 0) == in_books
    if in_books:
        # each of the nine made 30 rounds of 5 steps
        assert (first["bad_updates"], first["participants"], first["steps"]) == ([2, 6, 7, 8], 9, {"warm_up": 150})
