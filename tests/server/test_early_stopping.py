"""Early stopping and the choice of a round: only validation samples decide, also after any interruption."""
from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from fedmpi.config.schema import StopSettings, resolve
from fedmpi.data.federation import Federation
from fedmpi.errors import BadInput
from fedmpi.server import early_stopping
from fedmpi.storage import checkpoint, run_status
from fedmpi.task import CLASSIFICATION
from tests.server.test_resume import assert_same_books, history, started

pytestmark = pytest.mark.slow("whole runs, some of them killed and resumed")

NAN = float("nan")
BESIDE = early_stopping.name_validation_key(CLASSIFICATION)
SPLIT = "data.split=[.6, .15, .25]"
# With a patience of two rounds this run ends after about a dozen.
WORDS = (SPLIT, "data.fraction=.5", "rounds=16", "method=fedavg", "train.lr=.6", "train.steps=4", "stop.patience=2",
         "checkpoint.every=0", "data.partition.beta=.5")


def lines(values, measure=BESIDE, every=1) -> list[dict]:
    return [{"round": every * (t + 1), "accuracy_mean": .5, measure: value} for t, value in enumerate(values)]


@pytest.mark.parametrize("values, round", [
    ([.1, .3, .2], 2), ([.3, .3, .3], 1), ([NAN, .2, .4, .4, NAN], 3), ([None, .2], 2), ([NAN, None], None),
    ([], None)])
def test_the_first_of_the_best_rounds_is_chosen(values, round):
    found = early_stopping.find_best_validation_line(lines(values))
    assert (found and found["round"]) == round


def config(patience=2, on="test", every=1, rounds=9):
    return SimpleNamespace(stop=StopSettings(patience) if patience else None, rounds=rounds,
                           evaluate=SimpleNamespace(on=on, every=every))


@pytest.mark.parametrize("values, how, since", [
    ([.1, .3, .2, .2], {}, 2), ([.1, .3, .2], {}, None), ([.1, .3, .2, .4], {}, None), ([.3, .3, .3], {}, 1),
    ([.3, .2, .1], {"patience": 3}, None), ([.3, .2, .1], {"patience": None}, None), ([NAN] * 5, {}, None),
    ([.1, .3, NAN, .2, .2], {}, 2), ([.3, .2], {"every": 3}, 3), ([.2, .3], {"every": 3}, None),
    ([.3, .2], {"every": 2, "patience": 3}, None), ([.3, .2, .1], {"rounds": 3}, None)])
def test_a_run_ends_when_enough_rounds_were_no_better(values, how, since):
    every = how.get("every", 1)
    now = every * len(values)
    text = early_stopping.explain_early_stop(config(**how), lines(values, every=every), now)
    assert bool(text) == (since is not None)
    if since:
        assert text == (f"ended after round {now} of 9: none since round {since} was better on validation samples "
                        f"(stop.patience = {how.get('patience', 2)})\n")


def test_a_line_without_measures_does_not_hide_what_is_learned():
    """The patience was lowered while the run was stopped after a round that was not evaluated."""
    books = [{"round": t, "mse_mean": .5, "mse_mean_validation": value} for t, value in ((5, .4), (10, .2), (15, .3))]
    text = early_stopping.explain_early_stop(config(patience=5, every=5, rounds=99), [*books, {"round": 17}], 17)
    assert text.startswith("ended after round 17 of 99: none since round 10 was better")
    assert early_stopping.find_best_validation_line([*books, {"round": 17}])["round"] == 10


def test_only_rounds_that_evaluation_asks_for_count():
    """Round 5, evaluated only for its embeddings, is the best one; but rounds 2, 4 and 6 decide."""
    books = lines([.3, .2, .2], every=2)
    books.insert(2, {"round": 5, "accuracy_mean": .5, BESIDE: .9})
    # Round 7 is not evaluated.
    books += [{"round": 7, "participants": 3}]
    assert "none since round 2 was better" in early_stopping.explain_early_stop(config(4, every=2), books, 7)
    assert not early_stopping.explain_early_stop(config(5, every=2), books, 7)
    assert early_stopping.find_best_validation_line(books)["round"] == 5


def test_the_round_before_the_first_does_not_count():
    books = [{"round": 0, "accuracy_mean": .5, BESIDE: .9}, *lines([.3, .3])]
    assert not early_stopping.explain_early_stop(config(), books, 2)
    books += lines([.3] * 3)[2:]
    assert "none since round 1 was better" in early_stopping.explain_early_stop(config(), books, 3)


def test_who_evaluates_on_validation_stops_by_that():
    assert early_stopping.explain_early_stop(config(on="validation"), lines([.3, .2, .1], "accuracy_mean"), 3)
    # Test samples never stop a run.
    assert not early_stopping.explain_early_stop(config(), lines([.3, .2, .1], "accuracy_mean"), 3)


def test_the_result_names_what_was_chosen_and_the_best_on_test():
    books = [{"round": t, "accuracy_mean": a, "accuracy_weighted": w, "f1_mean": f, BESIDE: v}
             for t, a, w, f, v in ((1, .5, .6, .1, .3), (2, .7, .4, .2, .8), (3, .9, .3, .3, .8), (4, .2, .9, .4, .1))]
    assert early_stopping.list_series(config(), books) == pytest.approx({
        "accuracy_best_on_test": .9, "best_round": 3, "accuracy_weighted_best_on_test": .9, "accuracy_last_ten": .575,
        "accuracy_at_best_validation": .7, "accuracy_weighted_at_best_validation": .4, "f1_at_best_validation": .2,
        "chosen_round": 2})
    for line in books:
        del line[BESIDE]
    assert early_stopping.list_series(config(on="validation"), books) == pytest.approx({
        "accuracy_best_on_validation": .9, "best_round": 3, "accuracy_weighted_best_on_validation": .9,
        "accuracy_last_ten": .575})


@pytest.fixture(scope="module")
def stopped(bench):
    """The name of an uninterrupted run that ended early, and its last round."""
    assert bench.lead("stopped", *WORDS) == 0
    return "stopped", bench.result("stopped")["rounds"]


def test_a_run_ends_early_and_says_why(bench, stopped, capsys):
    """Its books are the beginning of those of a longer run, and its final state is that of its last round."""
    name, end = stopped
    assert bench.lead("on", *WORDS, "stop=null") == 0
    capsys.readouterr()
    assert bench.lead("again", *WORDS) == 0
    said = capsys.readouterr().out.splitlines()
    found, whole = bench.result(name), bench.metrics("on")
    validated = [line["accuracy_mean_validation"] for line in whole]
    expected = next(t for t in range(3, 17) if np.argmax(validated[:t]) + 1 <= t - 2)
    best = int(np.argmax(validated[:end])) + 1
    assert 3 < end == expected < 16 and (found["ended"], bench.result("on")["ended"]) == ("stop", "rounds")
    assert found["chosen_round"] == best == end - 2
    assert found["accuracy_at_best_validation"] == whole[best - 1]["accuracy_mean"]
    assert found["accuracy_best_on_test"] == max(line["accuracy_mean"] for line in whole[:end])
    assert [line["round"] for line in bench.metrics(name)] == [*range(1, end + 1)]
    assert said[-2] == (f"ended after round {end} of 16: none since round {best} was better on validation samples "
                        "(stop.patience = 2)")
    assert f"in round {best}, chosen on validation samples; {end} rounds in " in said[-3]
    assert bench.lead("short", *WORDS, f"rounds={end}", "stop=null") == 0
    assert bench.result("short")["digest"] == found["digest"] == bench.result("again")["digest"]
    assert run_status.read_outcome(bench.out(name), 16).state == "finished"
    assert bench.saved(name)[-1].name == f"round-{end:06d}.h5"


@pytest.mark.parametrize("ago", [0, 1, 2, 3])
def test_a_killed_run_ends_in_the_same_round(bench, stopped, ago):
    """It is killed in the deciding round after its checkpoint was written (0), or so many rounds before."""
    name, end = stopped
    words = (*WORDS, "checkpoint.every=1")
    if ago:
        assert started(bench, f"killed-{ago}", words, kill=end - ago) is None
    else:
        assert started(bench, f"killed-{ago}", words) == 0
        (bench.out(f"killed-{ago}") / "result.json").unlink()
    assert started(bench, f"killed-{ago}", words, "auto") == 0
    assert_same_books(bench, f"killed-{ago}", name)


def test_on_other_ranks_it_ends_in_the_same_round(bench, stopped):
    name, end = stopped
    assert started(bench, "ranks", (*WORDS, "checkpoint.every=1"), kill=end - 1) is None
    job = bench.run(3, "ranks", *WORDS, "--resume", "auto")
    assert job.returncode == 0, job.stderr
    found, expected = bench.result("ranks"), bench.result(name)
    for key in ("digest", "rounds", "ended", "chosen_round", "accuracy_at_best_validation", "accuracy_best_on_test"):
        assert found[key] == expected[key], key
    np.testing.assert_array_equal(history(bench, "ranks")["accuracy_validation"],
                                  history(bench, name)["accuracy_validation"])


def test_a_larger_patience_takes_a_run_further(bench, stopped):
    name, end = stopped
    assert bench.lead("further", *WORDS) == 0
    assert bench.lead("further", *WORDS, "stop.patience=3", resume="auto") == 0
    assert bench.lead("patient", *WORDS, "stop.patience=3") == 0
    assert_same_books(bench, "further", "patient")
    assert bench.result("further")["rounds"] > end


def test_the_test_part_decides_nothing(bench, stopped, monkeypatch):
    """Wrong test labels change neither the last round nor the chosen one."""
    name, end = stopped
    true = Federation.client
    monkeypatch.setattr(Federation, "client", lambda self, i: (c := true(self, i))._replace(y_test=9 - c.y_test))
    assert bench.lead("mistaken", *WORDS) == 0
    found, expected = bench.result("mistaken"), bench.result(name)
    assert [found[key] for key in ("rounds", "chosen_round", "digest")] == [
        expected[key] for key in ("rounds", "chosen_round", "digest")]
    assert found["accuracy_at_best_validation"] != expected["accuracy_at_best_validation"]


def test_lost_clients_and_attackers_change_when_but_not_how_a_run_ends(bench):
    """Attackers' validation samples do not count; clients that were lost before a kill are lost after it."""
    words = (*WORDS, "checkpoint.every=2", "faults.drop=.3", "attack={kind: sign_flip, share: .3}", "evaluate.every=2")
    assert started(bench, "faulty", words) == 0
    found, clients = bench.result("faulty"), history(bench, "faulty")["accuracy_validation"]
    assert found["ended"] == "stop" and found["rounds"] - found["chosen_round"] == 2
    from fedmpi.faults import choose_attackers
    settings = resolve(json.loads(json.dumps(checkpoint.read_checkpoint(bench.saved("faulty")[-1]).config)))
    honest = np.setdiff1d(range(9), choose_attackers(settings.attack, 9, 2))
    mean = np.nanmean(clients[:, honest], 1)
    np.testing.assert_allclose(mean, [line["accuracy_mean_validation"] for line in bench.metrics("faulty")
                                      if "accuracy_mean" in line])
    assert started(bench, "faulty-parts", words, kill=found["rounds"] - 1) is None
    assert started(bench, "faulty-parts", words, "auto") == 0
    assert_same_books(bench, "faulty-parts", "faulty")


def test_the_best_checkpoint_is_the_best_on_validation_samples(bench):
    words = (*WORDS, "stop=null", "rounds=8", "checkpoint.every=1", "checkpoint.keep=1")
    assert bench.lead("best", *words) == 0
    kept = {int(path.stem[-6:]) for path in bench.saved("best")}
    assert kept == {8, bench.result("best")["chosen_round"]}


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "fedah"])
@pytest.mark.parametrize("after", ["participants", "all", "off"])
def test_both_parts_are_evaluated_as_each_by_itself(bench, method, after):
    """If validation samples are measured too, measures on test samples are those of a run without, in every mode; the
    additional ones are of the model that a client would use."""
    words = (SPLIT, f"method={method}", "rounds=2", f"evaluate.after_training={after}")
    for on in ("test", "validation"):
        assert bench.lead(f"{method}-{after}-{on}", *words, f"evaluate.on={on}") == 0
    beside, alone = (bench.metrics(f"{method}-{after}-{on}")[-1] for on in ("test", "validation"))
    measures = ("accuracy_mean", "accuracy_weighted", "accuracy_std", "accuracy_worst_decile", "f1_mean", "loss")
    assert [beside[f"{name}_validation"] for name in measures] == [alone[name] for name in measures]
    assert not any("_validation" in key for key in alone)
    evaluated_after = after != "off" and method != "fedbabu"
    assert ("accuracy_mean_after" in beside) == ("accuracy_mean_after" in alone) == evaluated_after
    test, own = (history(bench, f"{method}-{after}-{on}") for on in ("test", "validation"))
    np.testing.assert_array_equal(test["accuracy_validation"], own["accuracy"])
    assert "accuracy_validation" not in own


def refused(bench, capsys, *words) -> str:
    assert bench.lead("refused", *words) == 2
    out, error = capsys.readouterr()
    assert not out and not bench.out("refused").exists() and error.count("\n") == 1
    return error.removeprefix("fedmpi: ").removeprefix("command line: ").strip()


@pytest.mark.parametrize("words, line", [
    (["stop.patience=5"], "stop.on = validation, but data.split has no validation share: give three shares"),
    (["stop.patience=0", SPLIT], "stop.patience = 0: should be greater than or equal to 1"),
    (["stop={}", SPLIT], "stop.patience is missing and has no default: set it"),
    (["stop={patience: 5, on: test}", SPLIT], "stop.on = 'test': should be 'validation'"),
    (["stop.patience=5", "evaluate.every=0", SPLIT],
     "stop.patience = 5, but evaluate.every = 0 evaluates the last round alone: set evaluate.every to 1 or more"),
    (["stop.patience=5", "data.split=[.9, .0001, .0999]"], "stop.on = validation, but no honest client has enough "
     "samples for a validation part: raise its share in data.split, or lower data.clients")])
def test_what_cannot_stop_a_run_is_refused_in_one_line(bench, capsys, words, line):
    assert refused(bench, capsys, *words) == line


def test_data_that_come_split_have_no_validation_part(bench, capsys):
    n = np.arange(12)
    np.savez(bench.out("own.npz"), x_train=n[:, None].astype(np.float32), y_train=n % 3, client_train=n % 2,
             x_test=n[:, None].astype(np.float32), y_test=n % 3, client_test=n % 2)
    data = (f"data={{name: arrays, file: {bench.out('own.npz')}, partition: natural, clients: 2, "
            f"split: [.6, .15, .25], cache: {bench.cache}}}")
    assert refused(bench, capsys, data, "stop.patience=5") == (
        "stop.on = validation, but the data come split, without a validation part: choose another data.partition "
        "(natural: or set its split to drawn), and three shares for data.split")


def test_old_results_are_read_under_the_new_names(tmp_path):
    """Measures of version 0.1 on validation samples are not read as a best result on test samples."""
    for on in ("test", "validation"):
        folder = tmp_path / on
        folder.mkdir()
        (folder / "config.yaml").write_text(f"evaluate: {{on: {on}}}\n")
        (folder / "result.json").write_text(json.dumps({
            "rounds": 3, "accuracy_mean": .5, "digest": "d", "accuracy_best": .7, "accuracy_weighted_best": .8}))
        result = run_status.read_result(folder)
        assert result == {"rounds": 3, "accuracy_mean": .5, "digest": "d", f"accuracy_best_on_{on}": .7,
                          f"accuracy_weighted_best_on_{on}": .8}
        assert run_status.describe_best(result) == "best 70.00 %"
    assert run_status.describe_best({"accuracy_best_on_test": .7, "best_round": 3}) == "best 70.00 % in round 3"
    assert run_status.describe_best({"accuracy_best_on_test": .7, "best_round": 3,
                                         "accuracy_at_best_validation": .6,
                                         "chosen_round": 2}) == "60.00 % in round 2, chosen on validation samples"
    for nothing in (None, float("nan")):
        missing = {"accuracy_best_on_test": nothing, "best_round": 1}
        assert run_status.describe_best(missing) == "no value on test samples"
        assert run_status.describe_best(missing | {"accuracy_at_best_validation": nothing, "chosen_round": 2}) == (
            "no value on test samples")
    missing = {"mse_mean": None, "mse_best_on_validation": None}
    assert run_status.describe_best(missing) == "no value on validation samples"


def test_refusals_name_the_setting_that_asks():
    data = resolve({"data": {"split": [.5, .2, .3]}, "attack": {"kind": "noise", "share": .5}}).data
    federation = SimpleNamespace(sizes=[4, 4], counts=np.array([[4, 3, 1], [4, 0, 1]]))
    both = []
    # One of the two clients attacks.
    for seed in range(8):
        made = resolve({"seed": seed, "data": {"split": [.5, .2, .3]}, "attack": {"kind": "noise", "share": .5},
                        "stop": {"patience": 1}})
        assert made.data == data
        try:
            early_stopping.refuse_validation_settings(made, federation)
            both.append("")
        except BadInput as error:
            both.append(str(error))
    assert {text[:60] for text in both} == {"", "stop.on = validation, but no honest client has enough samples"[:60]}
