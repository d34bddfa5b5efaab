"""A run that is killed or stopped and then continued leaves the same books as an uninterrupted one: every number of
metrics.jsonl, every column of history.h5, and result.json. Only times may differ."""
from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.decomposition.books import TIMES
from tests.federations import pool
from tests.runs import run_alone

SMALL = ("data.fraction=.3", "data.clients=8", "rounds=4", "train.steps=3", "train.participation=.6", "engine=loop")
SKIP = "faults={drop: .3, bad_update: skip}"


class Killed(BaseException):
    """Ends a run between two rounds like a signal that cannot be caught: nothing more is written."""


def started(bench, name, words, resume=None, kill=None, stop=None) -> int | None:
    """Run in this process; return the exit code, or None if it was killed after `kill` rounds of this start."""
    rounds = iter(range(1, 1000))

    def asked() -> bool:
        done = next(rounds)
        if done == kill:
            raise Killed
        return done == stop
    try:
        return run_alone(bench.config, words, bench.out(name), resume, asked)
    except Killed:
        return None


def timeless(line: dict) -> dict:
    return {key: value for key, value in line.items() if not key.startswith(TIMES)}


def history(bench, name) -> dict[str, np.ndarray]:
    with h5py.File(bench.out(name) / "history.h5") as file:
        return {column: values[:] for column, values in file.items()}


def assert_same_books(bench, name, other):
    lines, others = bench.metrics(name), bench.metrics(other)
    assert [timeless(line) for line in lines] == [timeless(line) for line in others] and lines
    assert timeless(bench.result(name)) == timeless(bench.result(other))
    found, expected = history(bench, name), history(bench, other)
    assert found.keys() == expected.keys()
    for column, values in found.items():
        np.testing.assert_array_equal(values, expected[column], column)


# name -> (words of the run, keys and columns that must be in its books with some number)
CASES = {
    "fedmhc": (("method={name: fedmhc, M: 3}", "faults.drop=.4", "evaluate.after_training=all", "edge={}",
                "evaluate.embeddings=[1, 4]", "data.partition={name: pathological, classes_per_client: 3}"),
               "ari purity cluster_sizes cluster_changes lost T_comp E_comm", "embedding T_comp E_comm cluster"),
    "ifca": (("method={name: ifca, k: 3}", "attack={kind: noise, share: .3}", SKIP, "server.aggregation=trimmed_mean",
              "evaluate.every=2"),
             "accuracy_mean_attackers accuracy_mean_after bad_updates lost cluster_sizes_all distance",
             "accuracy_after cluster"),
    "cfl": (("method={name: cfl, M: 4, after: 1, eps1: 5, eps2: 0}", "train.participation=1", "train.lr=.3"),
            "cluster_sizes cluster_changes accuracy_std_after", "accuracy_after cluster"),
    "fedcps": (("method={name: fedcps, k: 2, layers: 1}", "data.partition={name: few_shot, gamma: .4}", "edge={}"),
               "lam_mean lam_few_shot cluster_sizes", "lam cluster T_comp"),
    "ditto": (("method={name: 'tests.faulty:Wild', bad: 'sent: nan', client_number: 2}", SKIP,
               "attack={kind: label_flip, share: .3}", "train.participation=[.3, .9]", "train.lr_decay=.8",
               "train.schedule=cosine", "train.warm_up=1", "train.label_smoothing=.1"),
              "accuracy_mean_attackers bad_updates lost", "accuracy f1 loss"),
    "local": (("method=local", "evaluate.after_training=off", "evaluate.every=4"), "f1_mean accuracy_weighted",
              "f1 loss"),
    "fedbabu": (("method={name: fedbabu, ft: 1}", "attack={kind: sign_flip, share: .2}"),
                "accuracy_mean_unadapted loss_unadapted accuracy_mean_attackers", "accuracy_unadapted"),
    "fesem_cam": (("method={name: fesem_cam, k: 2, warm_up: 1}",), "cluster_sizes", "cluster"),
    "fedah": (("method={name: fedah, mix_everyone: true}", "evaluate.after_training=all", "train.momentum=.5",
               "train.nesterov=true"),
              "accuracy_mean_after", "accuracy_after"),
    "fedfomo": (("method={name: fedfomo, M: 3}", "evaluate.after_training=all",
                 "train.optimizer=adamw", "train.weight_decay=.1", "train.clip_norm=2"), "f1_mean", "accuracy")}


# Cases that are not slow: clusters with attackers, and private states with lost clients.
DAILY = ("ifca", "ditto")
REST = pytest.mark.slow("three runs for each of nine cases; those of DAILY are run without this mark, too")


@pytest.mark.parametrize("case", [pytest.param(case, marks=() if case in DAILY else REST) for case in CASES])
def test_a_killed_run_leaves_the_books_of_one_that_ran_through(bench, case):
    """It is killed a round after its last checkpoint; the lost round is repeated, and written down once."""
    words, keys, columns = CASES[case]
    words = (*SMALL, *words)
    assert started(bench, f"{case}-whole", (*words, "checkpoint.every=0")) == 0
    words = (*words, "checkpoint.every=2")
    assert started(bench, f"{case}-parts", words, kill=3) is None
    assert started(bench, f"{case}-parts", words, "auto") == 0
    assert_same_books(bench, f"{case}-parts", f"{case}-whole")
    lines, found = bench.metrics(f"{case}-whole"), history(bench, f"{case}-whole")
    for key in keys.split():
        assert any(line.get(key) is not None for line in lines), key
    for column in columns.split():
        assert np.isfinite(found[column]).any(), column


def test_killed_and_stopped_again_and_again_it_leaves_the_same_books(bench):
    """Every start adds one or two rounds; those that are stopped save although no checkpoint is due."""
    words = (*SMALL, "rounds=9", "method={name: fedmhc, M: 2}", "faults.drop=.3", "checkpoint.every=0", "edge={}")
    assert started(bench, "often-whole", words) == 0
    ends = [("stop", 2), ("kill", 1), ("stop", 1), ("kill", 2), ("stop", 3)]
    codes = [started(bench, "often", words, "auto" if i else None, **{how: n}) for i, (how, n) in enumerate(ends)]
    assert codes == [75, None, 75, None, 75]
    assert {path.name for path in bench.saved("often")} >= {"round-000003.h5", "round-000006.h5"}
    assert not (bench.out("often") / "result.json").exists()
    assert started(bench, "often", words, "auto") == 0
    assert_same_books(bench, "often", "often-whole")


def test_a_run_whose_checkpoints_are_gone_begins_its_books_anew(bench):
    """FeSEM-CAM's round before the first one is row 0 of the history, and is repeated."""
    words = (*SMALL, *CASES["fesem_cam"][0], "rounds=2", "checkpoint.every=1")
    assert started(bench, "anew-whole", words) == started(bench, "anew", words) == 0
    for path in (*bench.saved("anew"), bench.out("anew") / "result.json"):
        path.unlink()
    assert started(bench, "anew", words, "auto") == 0
    assert history(bench, "anew")["round"].tolist() == [0, 1, 2]
    assert_same_books(bench, "anew", "anew-whole")


def test_what_is_newer_than_the_checkpoint_is_dropped_from_the_books(bench):
    """One finished run continues from a checkpoint of its middle with fewer evaluations; another one only has to write
    its result again."""
    words = (*SMALL, "method=fedavg", "rounds=5", "checkpoint.every=2", "checkpoint.keep=9")
    assert started(bench, "back", words) == started(bench, "back-whole", words) == 0
    middle = bench.out("back") / "checkpoints" / "round-000002.h5"
    assert started(bench, "back", (*words, "evaluate.every=0"), str(middle)) == 0
    assert history(bench, "back")["round"].tolist() == [1, 2, 5]
    found, expected = bench.metrics("back"), bench.metrics("back-whole")
    assert [timeless(found[t]) for t in (0, 1, 4)] == [timeless(expected[t]) for t in (0, 1, 4)]
    # These rounds have the same facts but no measures.
    for t in (2, 3):
        assert "accuracy_mean" not in found[t] and found[t].keys() < expected[t].keys()
        assert all(expected[t][key] == value for key, value in timeless(found[t]).items() if "bytes" not in key)
    assert bench.result("back")["digest"] == bench.result("back-whole")["digest"]
    (bench.out("back-whole") / "result.json").unlink()
    assert started(bench, "back-whole", words, "auto") == 0
    assert bench.result("back-whole")["digest"] == bench.result("back")["digest"]


def test_a_run_that_goes_back_stays_on_its_new_way(bench):
    """It goes on from a checkpoint of its middle, and is stopped after a round, with less than before to keep."""
    words = (*SMALL, "method=fedavg", "rounds=5", "checkpoint.keep=9")
    assert started(bench, "again", words) == 0
    later = {path.name: path.read_bytes() for path in bench.saved("again")[2:]}
    assert len(later) == 3
    words = (*words, "rounds=7", "checkpoint.keep=1", "evaluate.every=0")
    middle = bench.out("again") / "checkpoints" / "round-000002.h5"
    assert started(bench, "again", words, str(middle), stop=1) == 75
    assert bench.saved("again")[-1].name == "round-000003.h5"
    assert {name: middle.with_name(f"aside-{name}").read_bytes() for name in later} == later
    assert started(bench, "again", words, "auto", stop=1) == 75
    log = (bench.out("again") / "log.txt").read_text()
    assert "warning: checkpoints after round 2 are set aside: " in log and "aside-round-000005.h5" in log
    assert f"continuing after round 3 from {middle.with_name('round-000003.h5')}" in log
    assert [line["round"] for line in bench.metrics("again") if "accuracy_mean" in line] == [1, 2]


def test_a_run_that_goes_on_from_a_checkpoint_set_aside_returns_to_it(bench):
    """It is killed before its first save. This checkpoint is the oldest of six that were set aside, and five stay."""
    words = (*SMALL, "method=fedavg", "rounds=8", "checkpoint.keep=9")
    assert started(bench, "turns", words) == 0
    saved = bench.out("turns") / "checkpoints"
    assert started(bench, "turns", words, str(saved / "round-000002.h5"), stop=3) == 75
    base = (saved / "aside-round-000003.h5").read_bytes()
    assert started(bench, "turns", words, str(saved / "aside-round-000003.h5"), kill=1) is None
    assert (saved / "aside-round-000003.h5").read_bytes() == (saved / "round-000003.h5").read_bytes() == base
    assert started(bench, "turns", words, "auto") == 0
    assert f"continuing after round 3 from {saved / 'round-000003.h5'}" in (bench.out("turns") / "log.txt").read_text()
    assert [line["round"] for line in bench.metrics("turns")] == [*range(1, 9)]


@pytest.mark.parametrize("resume", ["auto", None])
def test_a_run_from_another_ones_checkpoint_returns_to_it(bench, resume):
    """It is killed before its first save, and continued, or the same command is given again."""
    words, source, name = (*SMALL, "method=fedavg", "checkpoint.keep=9"), "source", f"branch-{resume}"
    if not bench.out(source).exists():
        assert started(bench, source, words) == 0
    base = bench.out(source) / "checkpoints" / "round-000002.h5"
    assert started(bench, name, words, str(base), kill=1) is None
    assert [path.read_bytes() for path in bench.saved(name)] == [base.read_bytes()]
    assert started(bench, name, words, resume or str(base)) == 0
    assert (bench.out(name) / "log.txt").read_text().count("continuing after round 2") == 2
    assert bench.result(name)["digest"] == bench.result(source)["digest"]
    assert started(bench, name, words, str(base)) == 2


@pytest.mark.parametrize("method, every", [("fedmhc", 0), ("per_fedavg", 0), ("fedmhc", 2)])
def test_a_run_that_ends_where_it_was_saved_is_evaluated_there(bench, method, every):
    """`rounds` is lowered to a round that was not evaluated; the result is that of a run of so many rounds."""
    name = f"lowered-{method}-{every}"
    words = (*SMALL, "rounds=6", f"method={method}", f"evaluate.every={every}", "checkpoint.every=2", "edge={}")
    assert started(bench, name, words, stop=3) == 75
    assert started(bench, name, (*words, "rounds=3"), "auto") == 0
    assert started(bench, f"{name}-whole", (*words, "rounds=3")) == 0
    kept = [{key: value for key, value in timeless(result).items() if not key.endswith("_after") and "bytes" not in key}
            for folder in (name, f"{name}-whole") for result in (bench.metrics(folder)[-1], bench.result(folder))]
    assert kept[:2] == kept[2:] and kept[1]["round"] == 3 and kept[1]["accuracy_mean"] > 0
    assert [line["round"] for line in bench.metrics(name)] == [1, 2, 3]
    found, expected = history(bench, name), history(bench, f"{name}-whole")
    for column in ("round", "accuracy", "f1", "cluster"):
        np.testing.assert_array_equal(found[column], expected[column], column)
    # with rounds=6 again
    assert started(bench, name, words, "auto") == started(bench, f"{name}-on", words) == 0
    assert bench.result(name)["digest"] == bench.result(f"{name}-on")["digest"]
    evaluated = [line["round"] for line in bench.metrics(name) if "accuracy_mean" in line]
    assert history(bench, name)["round"].tolist() == evaluated == ([2, 3, 4, 6] if every else [3, 6])


def test_a_round_that_is_evaluated_again_has_one_row(bench):
    """It was evaluated as the last one, and the run was killed before it had saved that."""
    words = (*SMALL, "rounds=6", "method=fedavg", "evaluate.every=2", "checkpoint.every=0")
    assert started(bench, "twice", words, stop=3) == 75
    (saved,) = bench.saved("twice")
    before = saved.read_bytes()
    assert started(bench, "twice", (*words, "rounds=3"), "auto") == 0
    assert history(bench, "twice")["round"].tolist() == [2, 3]
    for again, expected in (("rounds=3", [2, 3]), ("rounds=6", [2, 4, 6])):
        for path in bench.saved("twice"):
            path.unlink()
        saved.write_bytes(before)
        (bench.out("twice") / "result.json").unlink()
        assert started(bench, "twice", (*words, again), "auto") == 0
        evaluated = [line["round"] for line in bench.metrics("twice") if "accuracy_mean" in line]
        assert history(bench, "twice")["round"].tolist() == evaluated == expected


def test_a_late_judgement_has_no_rows_to_embed(bench):
    """The messages of the last round are gone; the log says so, and the run ends like any other."""
    words = (*SMALL, "method=fedavg", "evaluate.every=0")
    assert started(bench, "late-picture", words, stop=3) == 75
    assert started(bench, "late-picture", (*words, "rounds=3", "evaluate.embeddings=[3]"), "auto") == 0
    assert "embedding" not in history(bench, "late-picture")
    assert ("round 3: no heads to embed: the server took no update, or the run was continued after this round"
            in (bench.out("late-picture") / "log.txt").read_text())


@pytest.fixture(scope="module")
def few(bench):
    """Words for a data set of 24 digits on three clients with 6, 6 and 3 training samples; two have test samples."""
    x, y, *_ = pool()
    order = np.argsort(y, kind="stable")[:200:8]
    client = np.array([0] * 6 + [1] * 6 + [2] * 3)
    np.savez(bench.out("few.npz"), x_train=x[order[:15]], y_train=y[order[:15]], x_test=x[order[15:24]],
             y_test=y[order[15:24]], client_train=client, client_test=np.array([0] * 6 + [1] * 3))
    return (f"data={{name: arrays, file: {bench.out('few.npz')}, partition: natural, clients: 3, "
            f"cache: {bench.cache}}}")


def test_a_long_run_goes_on_after_round_256(bench, few):
    """The run has 262 rounds: code that counts rounds in a byte would repeat draws or numbers."""
    words = (few, "method=fedavg", "rounds=262", "train.batch=2", "train.steps=2", "train.participation=.7",
             "faults.drop=.3", "evaluate.every=86", "checkpoint.minutes=0", "engine=loop", "model.hidden=2")
    assert started(bench, "long-whole", (*words, "checkpoint.every=0")) == 0
    assert started(bench, "long", (*words, "checkpoint.every=257"), kill=259) is None
    assert [path.name for path in bench.saved("long")] == ["round-000257.h5"]
    assert started(bench, "long", (*words, "checkpoint.every=0"), "auto") == 0
    assert_same_books(bench, "long", "long-whole")
    lines = bench.metrics("long")
    assert [line["round"] for line in lines] == [*range(1, 263)]
    assert [line["round"] for line in lines if "accuracy_mean" in line] == [86, 172, 258, 262]
    assert history(bench, "long")["round"].tolist() == [86, 172, 258, 262]
