"""Runs whose clients come and go, are slow, or are chosen by their losses: the same on any ranks and after a stop."""
from __future__ import annotations

import json

import pytest

from fedmpi.commands import planned_time
from fedmpi.commands.plan import make_plan
from fedmpi.commands.plan_table import format_plan
from fedmpi.storage.history import read_history

FACTS = ("late", "work_share", "available", "candidates", "mib_candidates", "simulated_seconds",
         "simulated_seconds_round", "participants", "accuracy_mean")
SLOW = ["stragglers.step_seconds=.1", "stragglers.spread=.8", "stragglers.jitter=.4", "stragglers.deadline=.6"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return overrides with all that decides who takes part: ditto trains two models; 9 clients, two of them never."""
    path = tmp_path_factory.mktemp("times") / "times.csv"
    path.write_text("client,begin,end\n" + "".join(f"{c},{c / 10},{c / 10 + 2.1}\n" for c in range(7)))
    return ["method=ditto", *SLOW, "stragglers.late=partial", "train.sampling=loss", "train.participation=.4",
            "edge={bandwidth: 1e6}", f"availability={{file: {path}, unit: seconds, repeat: 3}}", "faults.drop=.2",
            "attack={kind: label_flip, share: .2}", "rounds=5"]


def test_ranks_and_a_stop_change_nothing(bench, everything):
    assert bench.lead("one", *everything) == 0
    lines = bench.metrics("one")
    assert any(line["late"] for line in lines) and any(line["work_share"] < 1 for line in lines)
    assert len({line["candidates"] for line in lines}) > 1 and all(line["available"] <= 7 for line in lines)
    total = 0.
    for line in lines:
        total += line["simulated_seconds_round"]
        assert line["simulated_seconds"] == pytest.approx(total) and line["simulated_seconds_round"] > 0
    assert bench.result("one")["simulated_seconds"] == total
    bench.run(3, "three", *everything)
    assert bench.lead("halves", *everything, "rounds=2") == 0
    assert bench.lead("halves", *everything, resume="auto") == 0
    for name in ("three", "halves"):
        assert bench.result(name)["digest"] == bench.result("one")["digest"]
        assert [[line.get(fact) for fact in FACTS] for line in bench.metrics(name)] == [
            [line.get(fact) for fact in FACTS] for line in lines]
    assert bench.lead("vmap", *everything, "engine=vmap") == 0
    assert [line["work_share"] for line in bench.metrics("vmap")] == [line["work_share"] for line in lines]


def test_what_decided_may_not_change_after_a_stop(bench, tmp_path, capfd):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"client": c, "begin": 1, "end": 9} for c in range(9)]))
    words = [*SLOW, f"availability.file={path}", "rounds=1", "edge={}"]
    assert bench.lead("changed", *words) == 0
    assert bench.lead("changed", *words, "rounds=2", "edge={bandwidth: 5e6}", resume="auto") == 2
    assert "edge.bandwidth is 10000000.0 in the checkpoint and 5000000.0 now" in capfd.readouterr().err
    path.write_text(path.read_text() + "\n")
    assert bench.lead("changed", *words, "rounds=2", resume="auto") == 2
    assert ("availability.file: the file has changed since the checkpoint was written; put it back, or start a new run "
            "with another --out") in capfd.readouterr().err


def test_who_is_lost_is_not_slow(bench):
    """A lost client trains only to be evaluated, or mixes, as others do that do not take part: with all its steps."""
    words = ["rounds=1", "faults.drop=.6", "train.participation=1", "evaluate.after_training=all"]
    slow = "stragglers={{step_seconds: .3, spread: .5, deadline: {}, late: partial}}"
    for deadline, *method in ((.8, "method=fedavg"),
                              (8, "method=fedah", "method.mix_everyone=true", "method.mix_epochs=4")):
        found = []
        for name, more in (("all-steps", []), ("some-steps", [slow.format(deadline)])):
            name = f"{method[0][7:]}-{name}"
            assert bench.lead(name, *method, *words, *more) == 0
            line, = bench.metrics(name)
            lost = line["lost"]
            found.append([lost, read_history(bench.out(name) / "history.h5")["accuracy_after"][0][lost].tolist()])
        assert line["work_share"] < 1 and len(lost) > 2 and found[0] == found[1]


def test_a_round_without_anybody_says_so_and_changes_nothing(bench, tmp_path, capsys):
    (tmp_path / "t.csv").write_text("client,begin,end\n0,1,1\n3,3,3\n")
    words = [f"availability.file={tmp_path / 't.csv'}", "rounds=3", "method=fedavg", "faults.drop=.01"]
    assert bench.lead("nobody", *words) == 0
    assert "nobody took part in any" not in capsys.readouterr().out
    lines = bench.metrics("nobody")
    assert [(line["participants"], line["available"]) for line in lines] == [(1, 1), (0, 0), (1, 1)]
    assert lines[0]["accuracy_mean"] == lines[1]["accuracy_mean"] != lines[2]["accuracy_mean"]
    assert lines[1]["mib_per_client_round"] == 0 and "simulated_seconds" not in lines[1]
    assert "round 2: no client is available; nobody takes part, and the server's state stays" in (
        bench.out("nobody") / "log.txt").read_text()


@pytest.mark.parametrize("words", [
    ["stragglers={step_seconds: .1, jitter: .001, deadline: .3}"], ["faults.drop=.999"],
    ["faults.bad_update=skip", "train.lr=1e30"], ["method=fesem_cam", "method.k=2", "stragglers={step_seconds: .1, "
     "jitter: .001, deadline: .3}"]])
def test_a_run_in_which_nobody_took_part_says_so_at_its_end(bench, capsys, words):
    """The clients that find FeSEM-CAM's first centres are waited for; they are not participants of a round."""
    assert bench.lead(f"absent-{hash(tuple(words))}", "method=fedavg", *words) == 0
    warning = ("warning: nobody took part in any of the 3 rounds, so nothing was learned; metrics.jsonl says of each "
               "round who was available, late or lost")
    assert capsys.readouterr().out.splitlines()[-2] == warning


def test_late_clients_are_left_out_and_told(bench):
    assert bench.lead("late", *SLOW, "rounds=2", "method=fedavg", "train.participation=1") == 0
    late = [line["late"] for line in bench.metrics("late")]
    log = (bench.out("late") / "log.txt").read_text()
    assert all(0 < len(clients) < 9 for clients in late) and late[0] != late[1] and "round 1: clients " in log
    assert "stragglers: a step takes " in log and "deadline 0.6 s (drop)" in log
    assert bench.metrics("late")[0]["simulated_seconds_round"] == .6
    made = bench.metrics("late")[0]["steps"]["main"]
    assert made == 5      # of those that are in time; nothing is computed for the others


def test_clients_whose_models_the_server_reads_send_them_and_may_be_late(bench):
    """FedAMP's Up has no fields. Who is late keeps its model, and misses training as it does under availability."""
    words = [*SLOW, "rounds=2", "method=fedamp", "train.participation=1"]
    assert bench.lead("amp-late", *words) == bench.lead("amp", *words, "stragglers.deadline=null") == 0
    assert all(0 < len(line["late"]) < 9 for line in bench.metrics("amp-late"))
    assert bench.result("amp-late")["digest"] != bench.result("amp")["digest"]
    assert bench.lead("amp-partial", *words, "stragglers.late=partial") == 0
    assert all(line["work_share"] < 1 for line in bench.metrics("amp-partial"))


@pytest.mark.parametrize("words, said", [
    (["method=local", "stragglers={step_seconds: 1, deadline: 9}"], "stragglers.deadline = 9.0: clients of Local send "
     "nothing that a server could wait for; leave it out, or take another method"),
    (["method=cfl", "stragglers={step_seconds: 1, deadline: 9, late: partial}"], "stragglers.late = partial: CFL "
     "compares the lengths of updates, which are shorter after fewer steps; set it to drop, or take another method"),
    (["method=fedavg", "stragglers={step_seconds: 1, deadline: 4}"], "stragglers.deadline = 4.0: no client would ever "
     "be in time; whole rounds take 5 to 5 s; raise it"),
    (["method=fedavg", "train.sampling=loss", "train.candidates=5"], "train.candidates = 5: up to 6 of the 9 clients "
     "take part in a round, and are chosen among them; give a number from 6 to 9"),
    (["stragglers.file=none.csv"], "stragglers.file = none.csv: cannot read it: No such file or directory; give"),
    (["availability.file=none.csv"], "availability.file = none.csv: cannot read it"),
    (["availability.file=late.csv"], "availability.file = late.csv: no client can take part in any round of this run: "
     "the first time begins in round 4, and rounds = 3; correct the file, or raise rounds"),
    (["availability={file: late.csv, repeat: 20}"], "the first time begins in round 4, and rounds = 3"),
    (["method=fedavg", "availability={file: late.csv, unit: seconds}", "stragglers.file=speeds.csv"],
     "availability.file = late.csv: no client would ever be done before it leaves, after at most 8 s; whole rounds "
     "take 15 to 30 s; give longer times"),
    (["method=fedavg", "availability={file: late.csv, unit: seconds}", "edge={cycles: 5e9}", "train.steps=null"],
     "no client would ever be done before it leaves, after at most 8 s; whole rounds take "),
    (["method=fedavg", "availability={file: late.csv, unit: seconds}", "stragglers={step_seconds: 1, deadline: 4}"],
     "stragglers.deadline = 4.0: no client would ever be in time; whole rounds take 5 to 5 s")])
def test_what_cannot_be_is_refused_before_the_first_round(bench, capfd, monkeypatch, words, said):
    monkeypatch.chdir(bench.folder)
    (bench.folder / "late.csv").write_text("client,begin,end\n2,5,12\n5,4,12\n")
    (bench.folder / "speeds.csv").write_text("client,step_seconds\n" + "".join(f"{c},{c + 1}\n" for c in range(9)))
    assert bench.lead("refused", *words) == 2
    assert said in " ".join(capfd.readouterr().err.split())
    assert not bench.out("refused").exists()


@pytest.mark.parametrize("rows, said", [
    ({0: 1, 2: 1}, "client 1 has 0 rows; give one for each of the clients 0 to 8"),
    (dict.fromkeys(range(9), 0), "step_seconds = 0; it must be above 0")])
def test_a_file_of_speeds_has_a_row_for_everybody(bench, tmp_path, capfd, rows, said):
    (tmp_path / "s.csv").write_text("client,step_seconds\n" + "".join(f"{c},{s}\n" for c, s in rows.items()))
    assert bench.lead("speeds", f"stragglers.file={tmp_path / 's.csv'}") == 2
    assert said in capfd.readouterr().err


def test_the_plan_draws_as_the_run_does(bench, everything, monkeypatch):
    words = [word for word in everything if "loss" not in word]
    assert bench.lead("planned", *words) == 0
    lines, planned = bench.metrics("planned"), make_plan(bench.config, words, 1)
    p = planned["participation"]
    assert p["seconds"] == pytest.approx(lines[-1]["simulated_seconds"])
    assert p["late"] == pytest.approx(sum(len(line["late"]) for line in lines) / 5)
    in_time = [line["participants"] - len(line["late"]) for line in lines]
    assert p["work_share"] == pytest.approx(
        sum(line["work_share"] * n for line, n in zip(lines, in_time, strict=True)) / sum(in_time))
    lost = make_plan(bench.config, ["faults.drop=.5", "rounds=5"], 1)["participation"]
    assert bench.lead("lost", "faults.drop=.5", "rounds=5") == 0
    assert lost["lost"] == pytest.approx(sum(len(line["lost"]) for line in bench.metrics("lost")) / 5) and lost["lost"]
    # Of a long run only the first rounds are drawn.
    monkeypatch.setattr(planned_time, "PLANNED_ROUNDS", 2)
    assert make_plan(bench.config, words, 1)["participation"]["seconds"] == pytest.approx(
        lines[1]["simulated_seconds"] * len(lines) / 2)
    text = " ".join(format_plan(planned).split())
    assert "taking part sampling uniform," in text and "simulated a round " in text
    assert "samples a round, if all are available and in time" in text
    assert "candidates tell their loss" in format_plan(make_plan(bench.config, everything, 1))
    assert make_plan(bench.config, [], 1)["participation"] == {}


def test_rounds_without_anybody_hide_nothing_from_the_plan(bench, tmp_path):
    """One client, in one round of three, has no other candidate and makes three of its five steps."""
    (tmp_path / "t.csv").write_text("client,begin,end\n4,2,2\n")
    words = ["rounds=3", "method=fedavg", "train.sampling=loss", f"availability.file={tmp_path / 't.csv'}",
             "stragglers={step_seconds: .1, deadline: .35, late: partial}"]
    planned = make_plan(bench.config, words, 1)
    assert planned["participation"]["candidates"] == pytest.approx(1 / 3)
    assert planned["participation"]["work_share"] == pytest.approx(3 / 5)
    text = " ".join(format_plan(planned).split())
    assert "0.3 candidates tell their loss" in text and "those in time make 60% of their steps" in text


def test_a_round_without_anybody_belongs_to_no_stage(bench, tmp_path):
    """CAM warms up in two rounds, with one training each; nobody comes in between, and a client is lost after it."""
    (tmp_path / "t.csv").write_text("client,begin,end\n4,1,1\n4,3,5\n")
    words = ["method=ifca_cam", "method.warm_up=2", f"availability.file={tmp_path / 't.csv'}", "faults.drop=.4",
             "stragglers={step_seconds: .1}", "edge={}", "rounds=5", "seed=14"]
    assert bench.lead("stages", *words) == 0
    lines = bench.metrics("stages")
    assert [(line["participants"], line["lost"]) for line in lines] == [(1, []), (0, []), (1, [4]), (1, []), (1, [])]
    spent = [line["simulated_seconds_round"] for line in lines]
    assert spent[1] == 0 and spent[2] == spent[3] == spent[0] and spent[4] > spent[0] + .4
    assert lines[2]["T_comp"] == lines[3]["T_comp"] < lines[4]["T_comp"]
    planned = make_plan(bench.config, words, 1)["participation"]
    assert planned["seconds"] == pytest.approx(lines[-1]["simulated_seconds"])
    assert bench.lead("stages-halves", *words, "rounds=3") == 0
    assert bench.lead("stages-halves", *words, resume="auto") == 0
    assert [line["simulated_seconds_round"] for line in bench.metrics("stages-halves")] == spent


def test_the_server_waits_for_a_client_that_comes_later(bench, tmp_path):
    """Five steps of .1 s from second 3 on, and again: then nobody ever comes."""
    (tmp_path / "t.csv").write_text("client,begin,end\n4,3,3.6\n")
    words = ["stragglers.step_seconds=.1", f"availability={{file: {tmp_path / 't.csv'}, unit: seconds}}", "rounds=3"]
    assert bench.lead("waiting", *words, "method=fedavg") == 0
    lines = bench.metrics("waiting")
    assert [line["simulated_seconds"] for line in lines] == pytest.approx([3.5, 3.6, 3.6])
    assert [(line["participants"], line["late"]) for line in lines] == [(1, []), (1, [4]), (0, [])]


def test_a_method_of_ones_own_can_be_rehearsed_with_sampling_by_loss(bench):
    assert bench.lead("own", "method=tests.faulty:Wild", "train.sampling=loss", "rounds=1") == 0
    assert bench.metrics("own")[0]["candidates"] == 9


def test_who_tells_its_loss_has_computed_it(bench):
    """All nine are candidates, so that the same take part. A pass over samples costs a third of training on them."""
    words = ["method=fedavg", "edge={}", "train.participation=1", "train.steps=null", "train.epochs=1", "rounds=1"]
    for how in ("uniform", "loss"):
        assert bench.lead(f"told-{how}", *words, f"train.sampling={how}") == 0
    plain, told = (bench.metrics(f"told-{how}")[0] for how in ("uniform", "loss"))
    for name in ("T_comp", "E_comp"):
        assert told[name] == pytest.approx(plain[name] * 4 / 3)
