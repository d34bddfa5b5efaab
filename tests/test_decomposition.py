"""The quick part of the decomposition suite, and faults that it notices.

`python -m tests.decomposition` runs the whole suite."""
from __future__ import annotations

import json
import math
from itertools import combinations, product

import pytest

from fedmpi.clients.hosted import HostedClients
from fedmpi.clients.partial_sums import PartialSums
from fedmpi.clients.state_store import Spill
from fedmpi.methods.pfedme import PFedMe
from fedmpi.methods.pfedme import Shared as PFedMeShared
from fedmpi.server.checkpoint_writer import CheckpointWriter
from tests.decomposition import cases, quick
from tests.decomposition.__main__ import main
from tests.decomposition.design import cover
from tests.decomposition.ranks import Forked, find_refusal
from tests.decomposition.suite import Refused, Suite, broken, finding, line

DESIGNS = quick.designs()
ROW = {"scenario": "plain", "network": "mlp", **cases.REFERENCE, "engine": "loop"}


@pytest.fixture
def suite(tmp_path):
    config = cases.write_inputs(tmp_path)
    return Suite(tmp_path, config, Forked(config))


@pytest.mark.slow("3 to 6 runs of a method on up to 5 ranks, and their references")
@pytest.mark.parametrize("method", DESIGNS)
def test_a_run_gives_the_same_bits_however_it_is_decomposed(method, suite):
    found = suite.compare(method, DESIGNS[method])
    assert len(found) == len(DESIGNS[method]) >= 3 and all(len(one.digest) == len(one.hash) == 64 for one in found)
    assert [line(one) for one in found if broken(one)] == []


def test_the_quick_part_covers_every_pair_of_values():
    rows = [{"method": method, **row} for method, rows in DESIGNS.items() for row in rows]
    for one, other in combinations(quick.FACTORS, 2):
        seen = {(row[one], row[other]) for row in rows}
        for pair in product(quick.FACTORS[one], quick.FACTORS[other]):
            assert pair in seen or not quick.allowed(dict(zip((one, other), pair, strict=True))), pair


def test_a_covering_design_holds_every_allowed_pair_and_no_other():
    factors = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2), "d": (1, 2)}
    rows = cover(factors, lambda row: (row.get("a"), row.get("c")) != (3, 2))
    for one, other in combinations(factors, 2):
        wanted = set(product(factors[one], factors[other])) - ({(3, 2)} if (one, other) == ("a", "c") else set())
        assert {(row[one], row[other]) for row in rows} == wanted
    # a and b have 9 pairs, so 9 rows are the minimum.
    assert 9 <= len(rows) <= 12
    assert cover(factors, turn=1) == cover(factors, turn=1) != cover(factors)


def rounded(group, *arguments):
    """Round a rank's part of a sum to a multiple of 2^30 before it is sent."""
    total = WEIGHTED(group, *arguments)
    return total >> 30 << 30


def of_its_rank(group, round, for_evaluation=False, decays=True):
    """Let the draw of batches depend on what a rank hosts."""
    local = PLAN(group, round, for_evaluation, decays)
    return local._replace(seed=local.seed + len(group.clients))


def forgetful(run, path, snapshot):
    """Forget the clients' last clusters when a run continues."""
    RESTORE(run, path, snapshot)
    run.state.clusters.last[:] = -1


WEIGHTED, PLAN, RESTORE = PartialSums.sum_weighted, HostedClients.plan_training, CheckpointWriter.restore
# name -> class, function, the fault in its place, the run that shows it, the first difference.
PLANTED = {
    "rounding by rank": (PartialSums, "sum_weighted", rounded, {"ranks": 3}, "digest"),
    "batches by rank": (HostedClients, "plan_training", of_its_rank, {"ranks": 3}, "digest"),
    "a forgetful restart": (CheckpointWriter, "restore", forgetful, {"restart": "1 after 1"},
                            "cluster_sizes_all in round 2 of metrics.jsonl"),
    "spilled states": (Spill, "read", lambda spill, client: spill.first, {"state": "spilled"}, "digest")}


@pytest.mark.slow("a small decomposition for each fault")
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_seen(name, suite, monkeypatch):
    where, what, fault, how, first = PLANTED[name]
    monkeypatch.setattr(where, what, fault)
    one, = suite.compare("fedmhc", [{**ROW, **how}])
    assert broken(one) and one.differs.endswith(first), one


def test_a_run_that_fails_is_a_mismatch_and_ends_no_other(suite, monkeypatch):
    monkeypatch.setattr(CheckpointWriter, "restore", lambda *_: 1 / 0)
    failed, other = suite.compare("fedavg", [{**ROW, "restart": "1 after 1", "ranks": 2}, {**ROW, "ranks": 2}])
    assert broken(failed) and "ZeroDivisionError" in failed.differs
    assert not broken(other) and len(other.digest) == 64


@pytest.mark.slow("runs that are refused, on up to three ranks")
def test_a_run_that_is_refused_as_its_reference_is_agrees(suite, monkeypatch):
    """The server of pFedMe goes so far past the mean that its model is not finite."""
    kept = PFedMe.server
    monkeypatch.setattr(PFedMe, "server", lambda self, shared, up, who: PFedMeShared(
        kept(self, shared, up, who).w * (math.inf if self.beta > 1 else 1)))
    monkeypatch.setitem(cases.SCENARIOS, "noise", ("method.beta=2",))
    rows = [{**ROW, "scenario": scenario, "ranks": ranks} for ranks in (2, 3) for scenario in ("noise", "plain")]
    found = suite.compare("pfedme", rows)
    assert [broken(one) for one in found] == [False] * 4 and [len(one.digest) for one in found] == [0, 64] * 2
    # One that is refused alone, or for another reason, is a mismatch.
    for wanted, said in (({"digest": "d"}, "no"), (Refused("yes"), "refusal 'no', not 'yes',")):
        one = finding("pfedme", rows[0], Refused("no"), wanted)
        assert broken(one) and one.differs == said


@pytest.mark.parametrize("said, refusal", [
    ("fedmpi: rank 0 of 5 on vm: FedCR: 61 of 160 values\nsaved so far: /tmp/a", "fedmpi: FedCR: 61 of 160 values"),
    ("noise\nfedmpi: client 7, round 3 (rank 0 of 1 on vm): an update\n", "fedmpi: client 7, round 3: an update"),
    ("fedmpi: x\nTraceback (most recent call last)", ""), ("killed", "")])
def test_a_refusal_is_compared_without_its_rank(said, refusal):
    assert find_refusal(said) == refusal


@pytest.mark.parametrize("how, mismatches", [({}, 0), ({"ranks": 3}, 1)])
def test_the_command_says_what_differs_and_ends_with_1(how, mismatches, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(quick, "designs", lambda: {"fedavg": [{**ROW, **how}], "local": [ROW]})
    monkeypatch.setattr(PartialSums, "sum_weighted", rounded)
    assert main(["--quick", "--methods", "fedavg", "--out", str(tmp_path / "found.json")]) == bool(mismatches)
    said, found = capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())["runs"]
    assert [one["method"] for one in found] == ["fedavg"] and bool(found[0]["differs"]) == bool(mismatches)
    assert ("fedavg: digest differs: scenario plain" in said) == bool(mismatches)
    assert f"1 runs and their references, {1 + mismatches} starts, {mismatches} mismatches" in said


def test_only_methods_that_exist_are_compared():
    with pytest.raises(SystemExit, match="no method fedmch; there are cfl, "):
        cases.methods("fedavg,fedmch")
