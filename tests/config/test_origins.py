"""Each problem of a configuration is said to come from where it does: the file, an override, or both together."""
from __future__ import annotations

import pytest

import fedmpi
from fedmpi.config.origins import is_about
from fedmpi.config.schema import load_config
from fedmpi.errors import BadInput


@pytest.fixture
def refusal(tmp_path):
    """Make `refusal(text, overrides, origin)` return what is said of a configuration, with `c.yaml` for its path."""
    def refusal(text: str, overrides, origin=None) -> list[str]:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        with pytest.raises(BadInput) as error:
            load_config(path, overrides, origin)
        return str(error.value).replace(str(path), "c.yaml").splitlines()
    return refusal


FEDMHC = "method: {name: fedmhc, M: 3}"


@pytest.mark.parametrize("text, overrides, expected", [
    ("rounds: 0", [], "c.yaml: rounds = 0: "), ("rounds: 0", ["seed=3"], "c.yaml: rounds = 0: "),
    ("", ["rounds=0"], "command line: rounds = 0: "), ("rounds: 3", ["rounds=0"], "command line: rounds = 0: "),
    ("", ["rounds"], "command line: 'rounds' is not of the form key=value"),
    ("", ["rounds=["], "command line: rounds=[: the value is not valid YAML; put quotes around a list "),
    ("rounds: 0", ["rounds"], "command line: 'rounds' is not of the form key=value"),
    (FEDMHC, ["method.lamda=1"], "command line: method.lamda is not a setting of FedMHC"),
    (FEDMHC, ["method=nothing"], "command line: method: method 'nothing' is not known"),
    (FEDMHC, ["method.name=nothing"], "command line: method: method 'nothing' is not known"),
    ("method: nothing", ["method.M=3"], "c.yaml: method: method 'nothing' is not known"),
    (FEDMHC, ["method.name=fedavg"], "c.yaml and command line: method.M is not a setting of FedAvg"),
    ("", ["data=mnist", "data.clients=50"], "command line: data.clients: data is 'mnist' and no mapping of settings "
     "(did you mean data.name=mnist?)"),
    ("data: mnist", ["data.partition.alpha=1"], "command line: data.partition.alpha: data is 'mnist' and no "
     "mapping of settings (did you mean data.name=mnist?)"),
    ("method: 3", ["method.M=2"], "command line: method.M: method is 3 and no mapping of settings"),
    ("data: {split: [.6, .4]}", {"data": {"split.x": 1}}, "keyword arguments: data.split.x: data.split is [0.6, "
     "0.4] and no mapping of settings"),
    ("", ["data=3"], "command line: data must be a mapping"), ("", ["train={lr: -1}"], "command line: train.lr = -1: "),
    ("", ["a.b=1"], "command line: a is not a setting"), ("", ["odd key=1"], "command line: odd key is not a setting"),
    ("data: {new_clients: 5}", ["data.clients=5"], "c.yaml and command line: data.new_clients = 5: with clients = 5"),
    ("data: {name: csv, label: y, client: site}", ["rounds=3"], "c.yaml: data.client = site: the column says who holds "
     "a row, but data.partition is not given and would draw that anew; set data.partition=natural, or another one"),
    ("train: {warm_up: 3}", ["rounds=3"], "c.yaml and command line: train.warm_up = 3: "),
    ("[1]", ["rounds=3"], "c.yaml: the configuration must be a mapping"),
    ("rounds: 0", {"seed": 3}, "c.yaml: rounds = 0: "), ("", {"rounds": 0}, "keyword arguments: rounds = 0: "),
    ("", {"train": {"lr": -1}}, "keyword arguments: train.lr = -1: "),
    ("", {3: 1}, "keyword arguments: 3 is not the name of a setting"),
    ("train: {warm_up: 3}", {"rounds": 3}, "c.yaml and keyword arguments: train.warm_up = 3: ")])
def test_a_problem_is_blamed_on_its_place(refusal, text, overrides, expected):
    line, = refusal(text, overrides)
    assert line.startswith(expected)


def test_each_line_has_its_own_place(refusal):
    lines = refusal("rounds: 0\nmethod: {name: fedmhc, M: 3}", ["train.lr=-1", "method.name=fedavg"])
    assert [line.partition(": ")[0] for line in lines] == ["c.yaml and command line", "command line", "c.yaml"]


def test_an_origin_without_a_name_is_not_said(refusal):
    assert refusal("", ["rounds=0"], "")[0].startswith("rounds = 0: ")
    assert refusal("rounds: 0", ["seed=3"], "")[0].startswith("c.yaml: rounds = 0: ")
    assert refusal("train: {warm_up: 3}", ["rounds=3"], "")[0].startswith("c.yaml: train.warm_up = 3: ")


def test_settings_without_a_file_are_named_alone():
    with pytest.raises(BadInput, match=r"^rounds = 0: "):
        load_config({"seed": 3}, {"rounds": 0})


def test_from_python_keyword_arguments_are_named():
    with pytest.raises(BadInput, match=r"^keyword arguments: train\.lr = -1: "):
        fedmpi.plan("quickstart", train={"lr": -1})


def test_only_whole_parts_of_names_agree():
    assert is_about("train.lr = 0: ", ["train.lr"]) and is_about("train must be", ["train.lr"])
    assert is_about("train.lr.x is", ["train.lr"]) and is_about("train.lr = 0: ", ["seed", "train"])
    assert not is_about("train.lr_decay = 0: ", ["train.lr"]) and not is_about("train.lr = 0: ", ["train.lr_decay"])
