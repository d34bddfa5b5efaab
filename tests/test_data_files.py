"""Runs on data in files of the users' own: planned, on any ranks, with new clients, and continued."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedmpi.commands.plan import make_plan
from fedmpi.result import Result

pandas = pytest.importorskip("pandas")

WARDS = ["east", "west", "north", "south"]
TEXTS = ["a good film", "a bad film", "good, good!", "so bad", "not a film"]


@pytest.fixture(scope="module")
def files(bench):
    """Write small files of each kind into the folder of the runs; return `data` and `model` settings by kind."""
    from PIL import Image
    rng, folder, n = np.random.default_rng(0), bench.folder, 80
    y = rng.integers(0, 3, n)
    table = pandas.DataFrame(rng.normal(size=(n, 4)) + y[:, None], columns=list("abcd"))
    # the last ward has three rows
    ward = np.where(np.arange(n) < 3, "south", np.array(WARDS)[np.arange(n) % 3])
    table = table.assign(finding=np.array(["flu", "cold", "none"])[y], ward=ward)
    table.to_csv(folder / "wards.csv.gz", index=False)
    pandas.DataFrame({"review": np.array(TEXTS)[np.arange(40) % 5], "stars": np.arange(40) % 5 % 2}).to_csv(
        folder / "reviews.csv", index=False)
    for i in range(36):
        path = folder / "pictures" / ("ant", "bee")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    for part, count in (("train", 6), ("test", 2)):
        users = {f"user {k}": {"x": (rng.integers(0, 256, (count, 784)) / 255).tolist(),
                               "y": rng.integers(0, 62, count).tolist()} for k in range(4)}
        (folder / "leaf" / part).mkdir(parents=True)
        (folder / "leaf" / part / "all.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    (folder / "parts.json").write_text(json.dumps([[*range(i, 36, 4)] for i in range(4)]))
    natural = {"name": "natural", "split": "drawn"}
    return {
        "csv": ({"name": "csv", "file": "wards.csv.gz", "label": "finding", "client": "ward", "standardise": True,
                 "partition": natural}, {"name": "mlp", "hidden": 4}),
        "text": ({"name": "csv", "file": "reviews.csv", "label": "stars", "text": "review", "length": 5,
                  "partition": "iid"}, {"name": "fasttext", "vocabulary": 12, "width": 4}),
        "pictures": ({"name": "image_folder", "file": "pictures",
                      "partition": {"name": "indices", "file": "parts.json"}}, {"name": "mlp", "hidden": 4}),
        "leaf": ({"name": "femnist", "file": "leaf", "partition": "natural"}, {"name": "mlp", "hidden": 4})}


@pytest.fixture
def words(bench, files, monkeypatch):
    """Return a function that gives the overrides for a kind of files, in whose folder the test then is."""
    monkeypatch.chdir(bench.folder)

    def words(kind, **more):
        data, model = files[kind]
        data = data | {"clients": 4, "fraction": 1, "cache": str(bench.cache), **more}
        return (f"data={json.dumps(data)}", f"model={json.dumps(model)}", "method=fedper", "train.participation=1")
    return words


@pytest.mark.parametrize("kind", ["csv", "text", "pictures", "leaf"])
def test_each_kind_is_planned_and_run_on_both_engines(bench, words, kind):
    if kind == "text":
        pytest.importorskip("tokenizers")
    plan = make_plan(bench.config, words(kind), 3)
    assert plan["clients"] == 4 and plan["samples"]["test"] > 0
    accuracies = []
    for engine in ("loop", "vmap"):
        assert bench.lead(f"{kind} {engine}", *words(kind), f"engine={engine}") == 0
        accuracies.append(bench.result(f"{kind} {engine}")["accuracy_mean"])
    assert accuracies[0] == pytest.approx(accuracies[1], abs=1e-6)


def test_a_run_goes_on_and_tells_the_names_of_its_clients_and_of_the_new_one(bench, words):
    asked = words("csv", new_clients=1)
    assert bench.lead("straight", *asked) == bench.lead("halves", *asked, "rounds=1") == 0
    assert bench.lead("halves", *asked, resume="auto") == 0
    assert "  4 features: 'a', 'b', 'c', 'd'\n" in Path(bench.out("straight"), "log.txt").read_text()
    found = bench.result("straight")
    assert found["digest"] == bench.result("halves")["digest"] and found["accuracy_new_clients"] is not None
    table = Result(bench.out("straight")).clients()
    assert sorted(table["name"]) == sorted(WARDS) and table["new_client"].tolist() == [False] * 3 + [True]
    assert table["name"].iloc[-1] == sorted(WARDS)[found["new_clients"][0]]


@pytest.mark.slow("forked ranks")
def test_any_number_of_ranks_gives_the_same(bench, words):
    asked = words("csv", new_clients=1)
    assert bench.lead("alone", *asked) == 0
    for ranks in (2, 3):
        assert bench.run(ranks, f"on {ranks}", *asked).returncode == 0
        assert bench.result(f"on {ranks}")["digest"] == bench.result("alone")["digest"]


def test_a_changed_file_holds_other_samples_and_does_not_continue_a_run(bench, words, capsys):
    asked = words("text")
    pytest.importorskip("tokenizers")
    assert bench.lead("before", *asked, "rounds=1") == 0
    path = bench.folder / "reviews.csv"
    text = path.read_text()
    path.write_text(text.replace("so bad", "so good"))
    assert bench.lead("before", *asked, resume="auto") == 2
    path.write_text(text)
    assert "its clients hold other samples" in capsys.readouterr().err
    assert bench.lead("before", *asked, resume="auto") == 0


@pytest.mark.parametrize("changes, said", [
    ({"label": "findings"}, "wards.csv.gz: has no column 'findings', which data.label names; its columns are"),
    ({"clients": 5}, "data.clients = 5: the data set numbers 4 clients; set it to 4"),
    ({"client": None, "features": ["a"]}, "data.partition = natural: the data set does not say who holds its samples"),
    ({"partition": "natural"}, "natural: the data have no test part, and parts are taken as they are; set "),
    ({"client": None, "partition": "iid"}, "row 1, column 'ward' is 'south', no finite number; correct it, name")])
def test_what_does_not_fit_ends_before_the_first_round(bench, words, capsys, changes, said):
    assert bench.lead("refused", *words("csv", **changes)) == 2
    assert said in capsys.readouterr().err
