"""Where ranks are and what they run, as rank 0 reports it; names of built-in and other classes; limits of YAML."""
from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedmpi
from fedmpi import ranks, registry
from fedmpi.comm.transport import Solo
from fedmpi.config import load
from fedmpi.method import Participants
from fedmpi.text import format_spans
from tests.federations import method


@pytest.mark.parametrize("numbers, text", [
    ([], ""), ([4], "4"), ([0, 1], "0-1"), ([0, 2], "0 2"), ([0, 1, 2, 3, 5, 7, 8], "0-3 5 7-8")])
def test_numbers_are_written_in_spans(numbers, text):
    assert format_spans(numbers) == text


class Three(Solo):
    """Rank 0 of three. The texts of the others arrive as MPI delivers them: first the lengths, then one piece."""
    size = 3

    def __init__(self, *others):
        super().__init__()
        self.others = [np.frombuffer(json.dumps(value).encode(), np.uint8) for value in others]

    def gather(self, rows, counts):
        if self.rank:
            return None
        own, lengths = [rows], [np.array([len(text)]) for text in self.others]
        return np.concatenate([*own, *(lengths if counts.sum() == 3 else self.others)])


def test_what_ranks_tell_arrives_in_their_order():
    assert ranks.gather_objects(Three({"b": "ä" * 300}, [2]), "own") == ["own", {"b": "ä" * 300}, [2]]
    world = Three(1, 2)
    world.rank = 2
    assert ranks.gather_objects(world, 2) == []


def test_a_rank_shows_its_card():
    card = ranks.describe_rank(Solo(), ["c.yaml", ["seed=4"], None])
    assert card == {"host": platform.node(), "fedmpi": fedmpi.__version__, "Python": platform.python_version(),
                    "torch": version("torch"), "code": ranks.hash_source(), "command": "c.yaml ['seed=4'] -",
                    ranks.CUDA_AWARE: None}
    assert len(ranks.hash_source()) == 12 and ranks.read_package_version("no-such-package", "none") == "none"


def test_a_file_that_moves_is_other_code(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "PACKAGE", tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("x")
    (tmp_path / "a.txt").write_text("x")
    before = ranks.hash_source()
    (tmp_path / "a.txt").write_text("y")
    assert ranks.hash_source() == before
    (tmp_path / "a.py").rename(tmp_path / "sub" / "a.py")
    assert ranks.hash_source() != before


def test_a_rank_says_where_it_works(monkeypatch):
    place = ranks.describe_place(Solo(), torch.device("cpu"), True)
    assert place["gpu"] is None and place["device"] == "cpu" and place["hosts"] is True
    assert place["threads"] == torch.get_num_threads() and len(place["cores"]) >= 1
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="H", uuid="u-1"))
    for visible, named in (("0,1", "cuda:1 H of 0,1"), ("", "cuda:1 H")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        place = ranks.describe_place(Solo(), torch.device("cuda", 1), False)
        assert (place["device"], place["gpu"], place["hosts"]) == (named, "u-1", False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="H"))
    assert ranks.describe_place(Solo(), torch.device("cuda", 1), False)["gpu"] == ":1"


def at(host, gpu, hosts=True, device="cpu", cores=1):
    return {"host": host, "gpu": gpu, "hosts": hosts, "device": device, "cores": list(range(cores)), "threads": 1}


def test_a_rank_that_hosts_nobody_shares_no_gpu():
    assert ranks.list_warnings([at("n", "a", False), at("n", "a"), at("m", "a")]) == []
    shared, without = ranks.list_warnings([at("n", "a"), at("n", "a"), at("n", None), at("n", None, False),
                                           at("m", None)])
    assert shared == ("ranks 0-1 share one GPU of n; one rank per GPU is faster, unless a rank leaves its GPU idle")
    assert without == ("ranks 2 4 train on the CPU while others have a GPU, and all wait for the slowest; ask for a "
                       "GPU for each (Slurm: --gpus-per-node), or start fewer ranks")


def test_hosts_stand_in_a_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    table = ranks.format_hosts([at("n2", None), at("n1", "a", device="cuda:0 H", cores=4), at("n2", None),
                                at("n1", None), at("n2", None, cores=2)])
    assert [line.split() for line in table.splitlines() if "-----" not in line] == [
        ["host", "ranks", "device", "cores", "threads"], ["n1", "3", "cpu", "1", "1"],
        ["n1", "1", "cuda:0", "H", "4", "1"], ["n2", "0", "2", "cpu", "1", "1"], ["n2", "4", "cpu", "2", "1"]]


def test_plug_ins_are_found_by_their_names(monkeypatch):
    class Own:
        """A class of a third party's package."""
    entry = SimpleNamespace(name="own", load=lambda: Own)

    def entry_points(group, name=None):
        return [entry] if group == "fedmpi.models" and name in (None, "own") else []
    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert registry.find_class("models", "own") is Own and registry.list_available("models")[-1] == "own"
    assert "own" not in registry.list_available("datasets")
    assert registry.find_class("methods", "fedmhc").__name__ == "FedMHC"
    with pytest.raises(fedmpi.errors.BadInput, match="model 'owm' is not known; there are .*, or your own as "
                                                     "module:Class. Did you mean own"):
        registry.find_class("models", "owm")


@pytest.mark.parametrize("name, said", [
    ("nowhere.to:Be", "method 'nowhere.to:Be': cannot import nowhere.to: No module named 'nowhere'; it must be "
     "installed or lie in "), ("json:Nothing", "method 'json:Nothing': module json has no Nothing; name a class or "),
    ("json:JSONDecodr", "method 'json:JSONDecodr': module json has no JSONDecodr; did you mean JSONDecoder?"),
    ("json:f.<locals>.Own", "method 'json:f.<locals>.Own': module json has no f.<locals>.Own; define it at the top ")])
def test_what_cannot_be_imported_is_named(name, said):
    with pytest.raises(fedmpi.errors.BadInput) as error:
        registry.find_class("methods", name)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("folder, where", [("", ""), ("deep", ", and start in deep")])
def test_a_file_in_place_of_a_module_gets_the_name_to_write(tmp_path, monkeypatch, folder, where):
    """People write the file that they see."""
    monkeypatch.chdir(tmp_path)
    file = Path(folder, "rings_here.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text("Own = int\n")
    with pytest.raises(fedmpi.errors.BadInput, match=f"write rings_here:Own{where}$"):
        registry.find_class("methods", f"{file}:Own")


def test_how_long_a_configuration_may_be(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("é" * 2**20)
    # The limit counts characters, not bytes.
    assert len(load.read_yaml(path)) == 2**20
    path.write_text("#" * (2**20 + 1))
    with pytest.raises(ValueError, match="more than 1,048,576 characters; is it the right file"):
        load.read_yaml(path)


@pytest.mark.parametrize("text, value", [
    ("1e3", 1000.), ("-2.5E-1", -.25), (".inf", float("inf")), ("-.5", -.5), ("1_000", 1000), ("+7", 7), ("0", 0),
    ("00", "00"), ("1e", "1e"), ("TRUE", True), ("False", False), ("no", "no"), ("1:30", "1:30"), ("0x1F", "0x1F"),
    ("2024-01-01", "2024-01-01"), ("null", None), ("", None)])
def test_values_as_people_write_them(text, value):
    found = load.parse_yaml(text)
    assert found == value and type(found) is type(value)


def test_keys_are_given_once_also_where_mappings_merge():
    assert load.parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}
    for text in ("a: 1\nb: 2\na: 1", "x: {b: 1, b: 2}"):
        with pytest.raises(ValueError, match="[ab] given twice, first in line 1"):
            load.parse_yaml(text)
    # the error stands at the second one
    with pytest.raises(ValueError, match=r"train given twice, first in line 2\n  in .*, line 4, column 1:"):
        load.parse_yaml("seed: 1\ntrain: {lr: 1}\nrounds: 2\ntrain: {lr: 2}")


def test_some_participants_and_the_one_model_to_export(mlp):
    who = Participants(np.array([1, 4, 6]), np.array([10, 40, 60]), 5, 9)
    who.log(a=1)
    some = who.only(np.array([True, False, True]))
    assert (some.ids.tolist(), some.sizes.tolist(), some.round, some.seed) == ([1, 6], [10, 60], 5, 9)
    assert (some.facts, some.each, who.facts) == ({"a": 1}, {}, {"a": 1})
    for name, whole in (("fedavg", True), ("ifca", False), ("fedrep", False), ("local", False), ("fedbabu", True)):
        of = method(name, mlp)
        assert (of.global_model(of.init(3)[0]) is not None) is whole, name
