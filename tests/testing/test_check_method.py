"""Third parties check their methods by the contract: each promise can fail, and the report says what to do."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import pytest
import torch

from fedmpi.engines.loop import Loop
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.methods.ditto import Ditto
from fedmpi.methods.fedavg import FedAvg
from fedmpi.settings import Ge
from fedmpi.testing import check_method, contract, variants
from fedmpi.testing.contract import PROMISES
from fedmpi.testing.lab import Lab
from fedmpi.testing.report import make_subject
from fedmpi.testing.subject import Subject
from fedmpi.testing.thread_ranks import run_ranks
from tests.testing.broken import BROKEN, Unused, Varied

BY_NAME = {promise.name: promise for promise in PROMISES}


def leave_out(*kept: str) -> dict[str, str]:
    """Return why all promises but some are left out."""
    return {promise.name: "not the point here" for promise in PROMISES if promise.name not in kept}


def test_every_promise_has_a_method_that_breaks_it():
    assert {name for name, _, _ in BROKEN} == set(BY_NAME)


@pytest.mark.parametrize("name, method, found", BROKEN, ids=[f"{name}, {cls.__name__}" for name, cls, _ in BROKEN])
def test_a_promise_that_is_not_kept_is_noticed(name, method, found):
    with pytest.raises((AssertionError, RuntimeError, FedmpiError), match=f"(?s){found}"):
        BY_NAME[name].check(make_subject(method, {}))


# What a method cannot break alone: the laboratory of a check does not do what it is meant to.
@pytest.mark.parametrize("name, replaced, by, found", [
    ("evaluation", "OtherTests", lambda federation: federation, "^permuted test labels do not change the measures$"),
    ("odd clients", "OddClients", lambda federation: federation, "^engine loop: not all test samples of each client"),
    ("bad updates", "SpoilingLoop", Loop, "^a client whose update is not finite takes part$")])
def test_a_laboratory_that_does_not_disturb_is_noticed(name, replaced, by, found, monkeypatch):
    monkeypatch.setattr(contract, replaced, by)
    with pytest.raises(AssertionError, match=found):
        BY_NAME[name].check(make_subject(FedAvg, {}))


@pytest.mark.parametrize("how, first, last", [
    ("balanced", None, None), ("moving", None, {0: 1, 2: 2, 5: 2, 6: 2, 7: 0}),
    ("the server too", [0, 0, 0, 1, 1, 1, 2, 2], None)])
def test_the_ways_to_host_clients(how, first, last, monkeypatch):
    homes = []

    class Noting(Lab):
        def open(self):
            homes.append(self.pool.homes.tolist())
            super().open()

        def digest(self):
            homes.append(self.pool.homes.tolist())
            return super().digest()
    monkeypatch.setattr(variants, "Lab", Noting)
    subject = make_subject(FedAvg, {})
    found = run_ranks(3, lambda world: variants.compute_hosted_digest(
        world, subject.make(), subject.federation, Loop(), how))
    before, after = homes
    assert found == subject.straight("loop").digest() and before == (first or before)
    assert (0 in before) == (how == "the server too") and set(before) >= {1, 2}
    assert after == [(last or {}).get(client, home) for client, home in enumerate(before)]


@pytest.mark.parametrize("a, b, apart", [
    ([1., 2.], [1., 2.5], .5), ([1., 2.], [1., math.nan], math.inf), ([math.nan, 2.], [math.nan, 2.5], .5),
    ([math.inf, 2.], [math.inf, 2.5], .5), ([1., 2.], [math.inf, 2.], math.inf), ([], [], 0.)])
def test_a_number_that_one_run_alone_lacks_is_no_small_difference(a, b, apart):
    first, second = ({"w": torch.zeros(1), "v": torch.tensor(numbers)} for numbers in (a, b))
    assert variants.measure_distance(first, second) == variants.measure_distance(second, first) == apart


def test_the_report_says_what_was_found_and_what_to_do():
    with pytest.raises(AssertionError) as found:
        check_method(Unused, skip=leave_out("settings", "learning"))
    lines = str(found.value).splitlines()
    assert lines[0].startswith("FedAvg: 1 of 2 promises are kept (")
    assert lines[1] == "NOT KEPT  settings: every setting matters"
    assert lines[2] == "    found: lam = 3.0 changes nothing in three rounds"
    assert lines[3].startswith("    to do: use the setting, or name a value that matters: others={'NAME': VALUE};")
    assert lines[-1] == "kept      learning: it learns something finite"
    assert "left out  hosting: not the point here" in lines


def test_a_setting_may_matter_in_what_is_evaluated_alone():
    assert check_method("fedbabu", skip=leave_out("settings")).passed


def test_an_error_of_the_methods_own_code_is_named_with_its_line():
    class Failing(FedAvg):
        def server(self, shared, up, who):
            return 1 / 0
    with pytest.raises(AssertionError, match="NOT KEPT  learning: .*\n    found: .*ZeroDivisionError"):
        check_method(Failing, skip=leave_out("learning"))


def test_an_error_that_ends_several_checks_is_said_once():
    class Failing(FedAvg):
        def server(self, shared, up, who):
            raise ValueError(f"rows of {len(who.ids)} clients")
    with pytest.raises(AssertionError) as found:
        check_method(Failing, skip=leave_out("learning", "hosting", "memory"))
    lines = str(found.value).splitlines()
    assert lines[0].startswith("FedAvg: 0 of 3 promises are kept")
    assert lines[1] == "NOT KEPT  learning, hosting, memory: the same error ends each of these checks"
    assert "ValueError: rows of " in lines[2] and lines[3].startswith("    to do: repair the error, which has nothing")
    assert str(found.value).count("NOT KEPT") == str(found.value).count("ValueError") == 1


def test_what_is_special_about_a_method_is_told():
    assert check_method(Ditto, {"lam": .1}, others={"lam": (1., {})}, skip=leave_out("settings")).passed
    report = check_method(Unused, idle={"lam": "said so"}, skip=leave_out("settings"))
    assert report.passed and "left out  setting lam: said so" in str(report)
    found = check_method("fedmhc", {"M": 2}, by_position="k-means++ draws", skip=leave_out("renumbering"))
    assert [promise.name for promise in found.kept] == ["renumbering"]


@pytest.mark.parametrize("settings, name, other", [
    ({}, "halved", True), ({"halved": True}, "halved", False), ({"kind": "b"}, "kind", "a"), ({"times": 2}, "times", 1),
    ({"times": 3}, "times", 2), ({"limit": .3}, "limit", .1 / 3), ({"pair": [1, 2]}, "pair", (1, 1))])
def test_a_guessed_value_is_not_the_one_of_the_other_run(settings, name, other):
    found, both = Subject(Varied, "", settings).choose_other(name)
    assert found == pytest.approx(other) and both == {}


@dataclass(frozen=True)
class Pulled(FedAvg):
    """FedAvg with settings without a default."""
    mu: Annotated[float, Ge(0)] = field(kw_only=True)
    times: int = field(kw_only=True)


@pytest.mark.parametrize("name, given, other", [("mu", .5, 1.5), ("mu", 0., .5), ("times", 3, 4)])
def test_a_setting_without_a_default_has_other_values(name, given, other):
    subject = Subject(Pulled, "", {"mu": .5, "times": 3, name: given})
    found, both = subject.choose_other(name)
    assert found == other and both == {} and getattr(subject.make(**{name: found}), name) == other


@pytest.mark.parametrize("name, given, other, both", [
    ("limit", None, None, {}), ("pair", (1, 2), (1, 2), {}), ("pair", [1, 2], [1, 2], {}),
    ("pair", ((1, 2), {"times": 1}), (1, 2), {"times": 1})])
def test_a_value_that_is_named_may_be_null_or_a_tuple(name, given, other, both):
    assert Subject(Varied, "", others={name: given}).choose_other(name) == (other, both)


@pytest.mark.parametrize("words, says", [
    (("nonsense",), "method 'nonsense' is not known"), ((int,), "is not a class of methods"),
    ((FedAvg, {"lam": 1}), r"method\.lam is not a setting of FedAvg")])
def test_what_is_no_method_is_refused(words, says):
    with pytest.raises(BadInput, match=says):
        check_method(*words)


@pytest.mark.parametrize("what", ["skip", "others", "idle"])
def test_a_name_that_does_not_exist_is_refused(what):
    with pytest.raises(BadInput, match=f"{what} names 'nonsense', which does not exist; there are "):
        check_method(FedAvg, **{what: {"nonsense": "because"}})


def test_the_generators_of_the_caller_are_put_back():
    import torch
    before = torch.get_rng_state()
    check_method(FedAvg, skip=leave_out("learning"))
    assert torch.equal(torch.get_rng_state(), before)
