"""The server's new state is checked before it is saved: a number that is not finite ends the run and is named."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

from fedmpi.data.client_table import CLIENT_NUMBERS
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.method import Participants
from fedmpi.methods.fedamp import FedAMP
from fedmpi.methods.fedavg import FedAvg
from fedmpi.server.state_check import is_all_finite, list_taken_names, refuse_non_finite, refuse_wrong_log
from fedmpi.task import CLASSIFICATION, REGRESSION, MeasureNames

HERE = "method=tests.server.test_state_check:"


@dataclass(frozen=True)
class ByNothing(FedAvg):
    """A mean by weights that are all 0."""

    def server(self, shared, up, who):
        return shared._replace(w=up.w.mean(who.sizes * 0))


@dataclass(frozen=True)
class GroupsByNothing(FedAvg):
    """Means of groups by weights, some of which are not numbers."""

    def server(self, shared, up, who):
        weights = np.where(who.ids == who.ids[0], np.nan, 1.)
        return shared._replace(w=up.w.mean_by(np.zeros(len(who.ids)), 1, shared.w[None], weights)[0])


@dataclass(frozen=True)
class LateDivision(FedAvg):
    """A division by 0 in the second round."""

    def server(self, shared, up, who):
        return shared._replace(w=up.w.mean() / (who.round - 1))


@dataclass(frozen=True)
class MixByNothing(FedAMP):
    """Messages by weights that are not numbers."""

    def compute_attention(self, gram):
        return gram * np.nan


@dataclass(frozen=True)
class LateMessages(FedAMP):
    """Models that the server makes for single clients; they are wrong from the second round on."""
    fault: Annotated[Literal["not finite", "too few", "double"], "what is wrong"] = "not finite"

    def messages(self, shared, mine, who):
        rows = self.model.start.repeat(len(who.ids), 1)
        if who.round == 1:
            rows = {"not finite": rows / 0, "too few": rows[1:], "double": rows.double()}[self.fault]
        return self.message_template()._replace(u=rows)


@pytest.mark.parametrize("method, words, said", [
    ("LateMessages", (), "FedAMP: in LateMessages.messages, round 2, field u has 10890 values that are not finite"),
    ("LateMessages", ("method.fault=too few",), f"method {HERE[7:]}LateMessages: tests/server/test_state_check.py:60: "
     "messages() addresses u of shape (1210,) to 8 clients; the template has shape (1210,), and 9 take part"),
    ("LateMessages", ("method.fault=double",), f"method {HERE[7:]}LateMessages: tests/server/test_state_check.py:60: "
     "messages() must return in the field u numbers of type torch.float32, not a tensor of shape (9, 1210)"),
    ("ByNothing", (), "FedAvg: in ByNothing.server, round 1, the weights of rows of w have 9 non-finite values of 9"),
    ("ByNothing", ("server.reduce=float32",), "FedAvg: in ByNothing.server, round 1, the weights of rows of w have 9"),
    ("GroupsByNothing", (), "FedAvg: in GroupsByNothing.server, round 1, the weights of rows of w have 1 non-finite"),
    ("MixByNothing", (), "FedAMP: in MixByNothing.messages, round 1, the weights of rows of w have 81 non-finite"),
    ("LateDivision", (), "FedAvg: 1210 of 1210 values of the server's field w are not finite after round 2, which is "
     "not saved; look for a division by zero in LateDivision.server, or lower train.lr")])
def test_a_method_that_computes_no_numbers_is_named_and_nothing_is_saved(ready, method, words, said):
    run = ready(HERE + method, "train.participation=1", *words)
    with pytest.raises(FedmpiError) as error:
        run.run_rounds()
    assert str(error.value).startswith(said)
    done = method.startswith("Late")
    assert [path.name for path in run.recorder.folder.checkpoints.iterdir()] == ["round-000001.h5"] * done
    assert len(run.state.metrics) == done


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5)])
def test_a_single_number_is_seen_wherever_it_stands(bad, shape):
    # The squares of these numbers are beyond float32.
    good = torch.full(shape, 1e30)
    assert is_all_finite(good) and is_all_finite(good[..., None][..., :0])
    for at in range(good.numel()):
        one = good.clone()
        one.view(-1)[at] = bad
        assert not is_all_finite(one)


def test_integers_are_not_asked():
    from fedmpi.methods.fedgroup import Shared
    refuse_non_finite(FedAvg(), Shared(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(3, dtype=torch.int64)), 1)
    with pytest.raises(FedmpiError, match="1 of 2 values of the server's field models are not finite"):
        refuse_non_finite(FedAvg(), Shared(torch.tensor([[1., torch.nan]]), torch.zeros(1, 2), torch.zeros(3)), 1)


@dataclass(frozen=True)
class LateLog(FedAvg):
    """Clusters without their number, from a round on."""
    begin: Annotated[int, "the round"] = 1

    def server(self, shared, up, who):
        if who.round >= self.begin:
            who.log(clusters=np.zeros(len(who.ids), int))
        return super().server(shared, up, who)


@dataclass(frozen=True)
class LateArea(LateLog):
    """A further measure of the run, from a round on."""

    def server(self, shared, up, who):
        if who.round >= self.begin:
            who.log_per_client(auc=np.zeros(len(who.ids)))
        return FedAvg.server(self, shared, up, who)


class Areas(FedAMP):
    """Messages log a further measure of the run."""

    def messages(self, shared, mine, who):
        if who.round:
            who.log_per_client(auc=np.zeros(len(who.ids)))
        return super().messages(shared, mine, who)


class Ages(FedAMP):
    """Messages log a measure of each client that they are addressed to."""

    def messages(self, shared, mine, who):
        who.log_per_client(age=10. * who.ids)
        return super().messages(shared, mine, who)


PLAIN = MeasureNames(CLASSIFICATION, ())
TEN = np.arange(10) % 3
WRONG_LOGS = [
    ({"clusters": TEN}, {}, "log(clusters=...): give the number of clusters, too"),
    ({"clusters": TEN, "k": 3.}, {}, "log(clusters=...): give the number of clusters, too"),
    ({"clusters": TEN[1:], "k": 3}, {}, "log(clusters=...): give the cluster of each of the 10 participants, an "
     "integer from 0 to 2, not an array of shape (9,)"),
    ({"clusters": TEN, "k": 2}, {}, "an integer from 0 to 1, not"), ({"clusters": TEN - 1, "k": 3}, {}, "from 0 to 2"),
    ({"clusters": [[0], [1, 2]], "k": 3}, {}, "from 0 to 2, not an array of shape (2,)"),
    ({"clusters": TEN, "k": 3, "cluster_changes": 7}, {}, "has a measure cluster_changes of its own"),
    ({"clusters": TEN / 2, "k": 3}, {}, "and type float64"), ({"nmi": torch.ones(())}, {}, "log(nmi=...): give a num"),
    ({"nmi": np.float32(1)}, {}, "log(nmi=...): give a number as float() makes it"),
    ({"loss": 3.}, {}, "log: a line of metrics.jsonl has a measure loss of its own; give yours another name"),
    *(({name: value}, {}, f"log({name}=...): readers of metrics.jsonl take {name} for a number, not a") for name, value
      in (("distance", [1.]), ("iterations", "few"), ("ari", "high"), ("lam_mean", [.5]))),
    ({"cluster_sizes": 3}, {}, "take cluster_sizes for a list of numbers, not an int; give yours another name"),
    ({"round": 3}, {}, "has a measure round of its own"), ({"steps": 3}, {}, "has a measure steps of its own"),
    ({"accuracy_mean_after": 1.}, {}, "has a measure accuracy_mean_after of its own"),
    ({"accuracy_mean_attackers": 1.}, {}, "has a measure accuracy_mean_attackers of its own"),
    ({"f1_new_clients": 1.}, {}, "has a measure f1_new_clients of its own"),
    ({"brier_undefined": 1.}, {}, "has a measure brier_undefined of its own"),
    ({"brier_mean_after": 1.}, {}, "has a measure brier_mean_after of its own"),
    ({"mse_mean": 1.}, {}, "has a measure mse_mean of its own"), ({"mse": 1.}, {}, "has a measure mse of its own"),
    ({"cluster_sizes": [np.nan, 1.]}, {}, "take cluster_sizes for a list of numbers, not "),
    ({}, {"mse": TEN}, "has a measure mse of its own"),
    ({}, {"accuracy": TEN}, "has a measure accuracy of its own"),
    ({}, {"brier": TEN}, "has a measure brier of its own"),
    ({}, {"accuracy_after": TEN}, "log_per_client: history.h5 has a column accuracy_after of its own; give yours"),
    ({}, {"brier_after": TEN}, "has a column brier_after of its own"),
    ({}, {"brier_new_clients": TEN}, "has a measure brier_new_clients of its own"),
    ({}, {"cluster": TEN}, "has a column cluster of its own"), ({}, {"embedding": TEN}, "has a column embedding of"),
    *(({}, {name: TEN}, f"has a column {name} of its own") for name in (
        "name", "attacker", "new_client", "client", *CLIENT_NUMBERS)),
    *(({}, {name: TEN}, f"log_per_client: {name!r} cannot name a column of history.h5; take a name of letters, digits")
      for name in ("loss/own", ".", "", "2nd")),
    ({}, {"age": TEN[1:]}, "log_per_client(age=...): give a number for each of the 10 participants, not an array of"),
    ({}, {"age": "young"}, "log_per_client(age=...): give a number for each")]


@pytest.mark.parametrize("facts, each, said", WRONG_LOGS)
def test_what_the_books_cannot_hold_is_refused(facts, each, said):
    who = Participants(np.arange(10), np.ones(10), 0, 0, 10)
    who.log(**facts)
    who.log_per_client(**each)
    with pytest.raises(BadInput) as error:
        refuse_wrong_log(LateLog(), who, MeasureNames(CLASSIFICATION, ("brier",)))
    assert str(error.value).startswith(f"method {HERE[7:]}LateLog: who.log") and said in str(error.value)
    # Tests check fedmpi's own methods.
    refuse_wrong_log(FedAvg(), who, PLAIN)


def test_what_the_books_can_hold_may_be_logged():
    who = Participants(np.arange(10), np.ones(10), 0, 0, 10)
    who.log(clusters=torch.from_numpy(TEN), k=np.int64(3), nmi=np.float64(.7), norms=[1., float("nan")], why="text")
    who.log_per_client(age=torch.arange(10))
    refuse_wrong_log(LateLog(), who, PLAIN)
    who.log(accuracy_weighted=1.)
    refuse_wrong_log(LateLog(), who, MeasureNames(REGRESSION, ()))
    who.log(accuracy=.5)
    with pytest.raises(BadInput, match="has a measure accuracy of its own"):
        refuse_wrong_log(LateLog(), who, MeasureNames(REGRESSION, ()))
    # without clusters or further measures of their own
    alone = Participants(np.arange(10), np.ones(10), 0, 0, 10)
    alone.log(ari=.5, brier_undefined=1, distance=None, cluster_sizes=(3, 7), lam_mean=np.nan)
    alone.log_per_client(brier=TEN, brier_after=TEN)
    refuse_wrong_log(LateLog(), alone, PLAIN)


@pytest.mark.parametrize("method", ["LateLog", "LateArea"])
@pytest.mark.parametrize("begin, error, rounds", [(0, BadInput, 0), (1, FedmpiError, 1)])
def test_a_wrong_log_is_refused_before_the_first_round_or_in_its_round(ready, method, begin, error, rounds):
    with pytest.raises(error, match=f"{method}: who.log") as raised:
        run = ready(f"{HERE}{method}", f"method.begin={begin}", "evaluate.measures=[auc]")
        run.run_rounds()
    assert type(raised.value) is error and (not rounds or len(run.state.metrics) == rounds)


def test_a_wrong_log_of_messages_is_refused(ready):
    run = ready(f"{HERE}Areas", "evaluate.measures=[auc]")
    with pytest.raises(FedmpiError, match="Areas: who.log: a line of metrics.jsonl has a measure auc of its own"):
        run.run_rounds()
    assert len(run.state.metrics) == 1


@pytest.mark.parametrize("after, bad", [("all", False), ("participants", True), ("participants", False)])
def test_what_messages_log_of_each_client_enters_the_books(ready, monkeypatch, after, bad):
    """Whether others are addressed, too, and whether an update is left out."""
    run = ready(f"{HERE}Ages", "rounds=1", "train.participation=.6", f"evaluate.after_training={after}",
                "faults.bad_update=skip")
    train = run.pool.train
    monkeypatch.setattr(run.pool, "train", lambda *a: train(*a) & (np.arange(len(a[1])) >= bad))
    run.run_rounds()
    assert bad == bool(run.state.metrics[-1]["bad_updates"])
    age = run.state.clusters.each["age"]
    known = np.flatnonzero(~np.isnan(age))
    assert len(known) and age[known].tolist() == (10 * known).tolist()
    assert run.state.metrics[-1]["age_mean"] == pytest.approx(10 * known.mean())


def test_all_that_a_round_has_of_its_own_is_taken(ready, tmp_path):
    (tmp_path / "t.csv").write_text("client,begin,end\n1,1,1\n2,1,1\n")
    run = ready("method=fedah", "data.split=[.6, .2, .2]", "attack={kind: label_flip}", "data.new_clients=1", "edge={}",
                "faults={drop: .1, bad_update: skip}", "train.sampling=loss", f"availability.file={tmp_path / 't.csv'}",
                "stragglers={step_seconds: 1, deadline: 99, late: partial}")
    run.run_round(0)
    assert set(run.state.metrics[-1]) <= list_taken_names(run.config.measure_names)
