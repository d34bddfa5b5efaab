"""Configurations: YAML and overrides to checked settings, and back; every mistake gives one clear line."""
from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpi import registry
from fedmpi.config.overrides import OPTIONAL_SECTIONS
from fedmpi.config.schema import SECTIONS, Config, load_config, resolve, to_plain
from fedmpi.edge import Edge
from fedmpi.errors import BadInput
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.fedmhc import FedMHC


@pytest.fixture
def read(tmp_path):
    """Load a configuration from text and overrides."""
    def read(text="", *overrides):
        (tmp_path / "c.yaml").write_text(text)
        return load_config(tmp_path / "c.yaml", list(overrides))
    return read


@pytest.fixture
def refusal(read, tmp_path):
    """Return the lines with which a configuration is refused, without the file's name."""
    def refusal(text="", *overrides):
        with pytest.raises(BadInput) as error:
            read(text, *overrides)
        lines = str(error.value).splitlines()
        # where the problem comes from
        found = [re.fullmatch(rf"({tmp_path}/c.yaml|command line|{tmp_path}/c.yaml and command line): (.*)", line)
                 for line in lines]
        assert all(found)
        return [match[2] for match in found]
    return refusal


def test_an_empty_file_is_the_defaults(read):
    assert read() == read("{}") == read("# nothing\n") == resolve({})
    assert isinstance(read().method, FedAvg) and read().rounds == 100


def test_a_file_is_a_diff_of_the_defaults(read):
    config = read("rounds: 3\nmethod: {name: fedmhc, lam: .5}\nmodel: {hidden: 7}\ndata: {partition: {beta: 2.5}}\n"
                  "train: {participation: [.1, 1]}")
    assert (config.rounds, config.method, config.model.hidden) == (3, FedMHC(lam=.5), 7)
    assert config.data.partition.beta == 2.5 and config.train.participation == (.1, 1)
    assert config.data.clients == 20 and config.train.batch == 10


def test_sections_that_are_off_by_default_are_those_that_an_empty_mapping_turns_on(read):
    assert {name for name in SECTIONS if getattr(Config(), name) is None} == set(OPTIONAL_SECTIONS)
    assert load_config({}, {"edge": {}}) == read("edge: {}") == read("", "edge={}") == load_config({"edge": {}})
    assert load_config({}, {"edge": {}}).edge == Edge() and load_config({}).edge is None
    # other sections keep what they have, and names inside a section are not sections
    assert load_config({"train": {"lr": .5}}, {"train": {}}).train.lr == .5
    kept = {"data": {"partition": {"name": "iid"}}, "model": {"name": "mlp", "hidden": 7}}
    assert load_config(kept, {"data": {"partition": {}}, "model": {}}) == load_config(kept)
    with pytest.raises(BadInput, match="stop.patience is missing"):
        load_config({}, {"stop": {}})


@pytest.mark.parametrize("overrides, said", [(["train.lr={}"], "train.lr = "), ({"train": {"lr": {}}}, "train.lr = "),
                                             (["train={edge: {}}"], "train.edge"), (["faults.edge={}"], "faults.edge")])
def test_an_empty_mapping_is_no_value_of_a_setting(overrides, said):
    with pytest.raises(BadInput, match=said):
        load_config({"train": {"lr": .5}}, overrides)


@pytest.mark.parametrize("text, value", [("1e-3", .001), ("1E-3", .001), ("1.5e+2", 150.), (".5", .5), ("2.", 2.),
                                         ("1", 1.), ("+.5", .5)])
def test_numbers_as_people_write_them(read, text, value):
    assert read(f"train: {{lr: {text}}}").train.lr == value
    assert read("", f"train.lr={text}").train.lr == value


@pytest.mark.parametrize("text", ["yes", "on", "010", "0x1F", "1:30", "2024-01-01", "1e3", "3.0", "~", "[3]", "{a: 3}"])
def test_integers_are_integers(refusal, text):
    (line,) = refusal(f"rounds: {text}")
    assert line.startswith("rounds = ") and line.endswith("should be a valid integer")


@pytest.mark.parametrize("text, expected", [
    ("method: {name: fedmhc, lamda: 1}",
     "method.lamda is not a setting of FedMHC; its settings are M, lam, anchor, mini_batch (did you mean lam?)"),
    ("method: {lam: 1}", "method.lam is not a setting of FedAvg; its settings are weights"),
    ("method: {name: fedmhc, lam: -1}", "method.lam = -1: should be greater than or equal to 0"),
    ("method: {name: fedmhc, anchor: moon}", "method.anchor = 'moon': should be 'global' or 'local'"),
    ("method: {name: 3}", "method = {'name': 3}: give a name, or a mapping with a name and settings"),
    ("method: 3", "method = 3: give a name, or a mapping with a name and settings"),
    ("method: ~", "method = None: give a name, or a mapping with a name and settings"),
    ("model: {hidden: 0}", "model.hidden = 0: should be greater than or equal to 1"),
    ("train: 3", "train must be a mapping of settings, not 3"),
    ("train: ~", "train must be a mapping of settings, not None"),
    ("train: {batch: 0}", "train.batch = 0: should be greater than or equal to 1"),
    ("train: {momentum: 1}", "train.momentum = 1: should be less than or equal to 0.9999"),
    ("train: {lr: .inf}", "train.lr = inf: should be made of finite numbers, texts, lists and mappings"),
    ("train: {participation: 0}", "train.participation = 0.0: a share in (0, 1] or a range [low, high] of such"),
    ("train: {participation: [.6, .5]}",
     "train.participation = [0.6, 0.5]: a share in (0, 1] or a range [low, high] of such"),
    ("data: {split: [.5, .6]}", "data.split = [0.5, 0.6]: two or three shares (train, [validation,] test), "
                                "the first positive, that add up to 1"),
    ("data: {partition: {name: dirichlet, beta: 0}}", "data.partition.beta = 0: should be greater than 0"),
    ("data: {partition: {alpha: 1}}", "data.partition.alpha is not a setting of dirichlet; its settings are beta, "
                                      "procedure, smallest, tries"),
    ("data: {partition: []}", "data.partition = []: give a name, or a mapping with a name and settings"),
    ("server: {hosts_clients: yes}", "server.hosts_clients = 'yes': should be a valid boolean"),
    ("attack: {}", "attack.kind is missing and has no default: set it"),
    ("attack: {kind: spy}", "attack.kind = 'spy': should be 'sign_flip', 'noise' or 'label_flip'"),
    ("attack: {kind: noise, share: 1}", "attack.share = 1: should be less than 1"),
    ("attack: {kind: noise, scale: 0}", "attack.scale = 0: should be greater than 0"),
    ("faults: {drop: 1}", "faults.drop = 1: should be less than 1"),
    ("faults: {drop: -.1}", "faults.drop = -0.1: should be greater than or equal to 0"),
    ("faults: {bad_update: drop}", "faults.bad_update = 'drop': should be 'stop' or 'skip'"),
    ("faults: ~", "faults must be a mapping of settings, not None"),
    ("server: {aggregation: mode}", "server.aggregation = 'mode': should be 'mean', 'median' or 'trimmed_mean'"),
    ("server: {trim: .5}", "server.trim = 0.5: should be less than 0.5"),
    ("server: {clip_norm: 0}", "server.clip_norm = 0: should be greater than 0"),
    ("engine: fast", "engine = 'fast': should be 'auto', 'loop' or 'vmap'"),
    ("seed: -1", "seed = -1: should be greater than or equal to 0"),
    ("seed: 99999999999999999999", "seed = 99999999999999999999: should be less than or equal to 9223372036854775807"),
    ("rounds: !!binary aGk=", "rounds = b'hi': should be made of finite numbers, texts, lists and mappings"),
    ("3: 4", "3 is not a setting of the configuration; its settings are seed, rounds, "),
    ("[1, 2]", "the configuration must be a mapping of settings, not [1, 2]"),
    ("rounds: &a [*a]", "the configuration has more than 20,000 values; are there aliases inside aliases?"),
    ("method: json:JSONDecoder",
     "method: json:JSONDecoder is not a dataclass with a function `client`, as methods must be"),
    ("method: ':x'", "method: method ':x': cannot import "), ("model: '.x:y'", "model: model '.x:y': cannot import .x"),
    ('"a\\n\\e[2Jb": 4', r"'a\n\x1b[2Jb' is not a setting of the configuration; its settings are seed, rounds, "),
    ("[]", "the configuration must be a mapping of settings, not []"),
    ("0", "the configuration must be a mapping of settings, not 0"),
    ("false", "the configuration must be a mapping of settings, not False"),
    ("''", "the configuration must be a mapping of settings, not ''"),
    ("train: {lr: .1, lr: .2}", "not valid YAML: lr given twice"),
    ("data: {split: 3}", "data.split = 3: should be a list"),
    ("evaluate: {embeddings: [1, x]}", "evaluate.embeddings.1 = 'x': should be a valid integer"),
    ("data: {name: foo}", "data.name: dataset 'foo' is not known; there are "),
    ("rounds: !!python/object/apply:os.getcwd []", "not valid YAML: could not determine a constructor"),
    ("rounds: !!bool maybe", "not valid YAML: "), ("rounds: !!timestamp x", "not valid YAML: "),
    ("rounds: '", "not valid YAML: "), ("rounds: " + "[" * 5000, "not valid YAML: "), ("\0", "not valid YAML: "),
    ("rounds: 1" + "0" * 5000, "not valid YAML: "), ("? [a]\n: 1", "not valid YAML: "),
])
def test_mistakes_are_named_with_their_path(refusal, text, expected):
    (line,) = refusal(text)
    assert line.startswith(expected) and len(line) < 300


def test_all_mistakes_are_reported_at_once(refusal):
    lines = refusal("rounds: 0\nmethod: {name: fedmhc, M: 0, lam: -1}\ntrain: {lr: 0}\ndata: {clients: 0}")
    assert {line.split(" ")[0] for line in lines} == {"rounds", "method.M", "method.lam", "train.lr", "data.clients"}


def test_unknown_names_list_what_there_is(refusal):
    (line,) = refusal("method: fedmch")
    assert line.startswith("method: method 'fedmch' is not known; there are ") and line.endswith("Did you mean fedmhc?")
    assert all(name in line for name in registry.list_available("methods"))
    assert refusal("data: {partition: irichlet}")[0].startswith("data.partition: partition 'irichlet' is not known")


def test_files_that_cannot_be_read(tmp_path):
    for path, why in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(BadInput, match=f"{path}: cannot read the configuration: {why}"):
            load_config(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not valid YAML"):
        load_config(tmp_path / "bytes")


def test_overrides_reach_every_level(read):
    config = read("method: fedmhc", "rounds=3", "train.lr=.5", "method.lam=.25", "data.partition.beta=3",
                  "train.participation=[.2, .4]", "server={reduce: float32}", "model.hidden=9")
    assert (config.rounds, config.train.lr, config.method.lam, config.data.partition.beta) == (3, .5, .25, 3)
    assert config.train.participation == (.2, .4) and config.server.reduce == "float32" and config.model.hidden == 9


def test_overriding_a_name_drops_the_settings_of_the_old_one(read):
    text = "method: {name: fedmhc, lam: .3, M: 7}\ndata: {partition: {name: dirichlet, beta: 2}}"
    assert read(text, "method=fedavg").method == FedAvg()
    assert read(text, "method=fedmhc").method == FedMHC(lam=.3, M=7)
    assert read(text, "method=fedavg", "method.weights=equal").method == FedAvg("equal")
    assert read(text, "method={name: fedmhc, M: 2}").method == FedMHC(M=2)
    assert read("", "method.lam=.5", "method=fedmhc").method == FedMHC(lam=.5)
    assert read(text, "data.partition=iid").data.partition.balanced


@pytest.mark.parametrize("text, expected", [
    ("rounds", "'rounds' is not of the form key=value (for example train.lr=0.01)"),
    ("=3", "'=3' is not of the form key=value"), ("..=3", "'..=3' is not of the form key=value"),
    ("rounds=[", "rounds=[: the value is not valid YAML"), ("train=3", "train must be a mapping of settings, not 3"),
    ("train.lr.x=3", "train.lr = {'x': 3}: should be a valid number"), ("rounds=", "rounds = None: should be"),
    ("a.b.c=1", "a is not a setting of the configuration"), ("method.lam=1", "method.lam is not a setting of FedAvg")])
def test_mistaken_overrides(refusal, text, expected):
    (line,) = refusal("", text)
    assert line.startswith(expected)


def test_anchors_and_merges_are_plain_yaml(read):
    text = "train: &t {lr: .25, batch: 4}\nmodel: &m {name: mlp, hidden: &h 3}\nrounds: *h"
    assert (read(text).train.lr, read(text).rounds) == (.25, 3)
    assert read("train: {<<: {lr: .25, batch: 4}, lr: .5}").train.batch == 4


def test_aliases_cannot_blow_up(refusal):
    layers = "".join(f"  - &{b} [{', '.join(['*' + a] * 9)}]\n"
                     for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
    (line,) = refusal(f"rounds:\n  - &a [1, 2]\n{layers}")
    assert "more than 20,000 values" in line


ODD = {"name": "fedmhc", "M": 2, "lam": 1e-9, "anchor": "local"}


@pytest.mark.parametrize("values", [
    {}, {"method": ODD}, {"method": "fedah", "engine": "vmap", "rounds": 7}, {"model": {"name": "cnn4", "width": 3}},
    {"data": {"partition": {"name": "pathological", "classes_per_client": 3}, "split": [.6, .2, .2], "file": "x"}},
    {"train": {"participation": [.1, .9], "steps": 3}, "server": {"hosts_clients": True}},
    {"attack": {"kind": "noise", "share": .5}, "faults": {"drop": .5}, "server": {"aggregation": "median"}}])
def test_plain_round_trips(values):
    config = resolve(values)
    assert resolve(to_plain(config)) == config
    assert to_plain(resolve(to_plain(config))) == to_plain(config)
    assert set(to_plain(config)) == {f.name for f in dataclasses.fields(Config)}


@pytest.mark.parametrize("name", registry.list_available("methods"))
def test_every_method_can_be_named_and_written_down(name):
    config = resolve({"method": name})
    assert to_plain(config)["method"]["name"] == name and resolve(to_plain(config)) == config


KEYS = st.sampled_from(["seed", "rounds", "data", "train", "method", "model", "server", "name", "partition", "lam", "M",
                        "lr", "split", "participation", "beta", "engine", "", "fedavg", "fedmhc", "dirichlet", "a:b"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | KEYS | st.text(max_size=5) | st.binary(max_size=2)
GARBAGE = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    KEYS | st.integers(), inner, max_size=4), max_leaves=12)


@pytest.mark.slow("a hundred configurations, most of which name many mistakes")
@given(st.dictionaries(KEYS, GARBAGE, max_size=6))
def test_garbage_is_refused_and_nothing_worse(values):
    try:
        config = resolve(values)
    except BadInput as error:
        assert str(error)
    else:
        assert resolve(to_plain(config)) == config


@given(st.lists(st.text(max_size=12) | st.builds("{}={}".format, KEYS, st.text(max_size=8)), max_size=3))
def test_garbled_overrides_are_refused_and_nothing_worse(tmp_path_factory, overrides):
    path = tmp_path_factory.getbasetemp() / "empty.yaml"
    path.write_text("")
    try:
        load_config(path, overrides)
    except BadInput as error:
        assert str(error).startswith((f"{path}: ", "command line: ", f"{path} and command line: "))


@pytest.mark.parametrize("settings, evaluated", [
    ({}, [1, 2, 3, 4, 5, 6, 7]), ({"every": 3}, [3, 6, 7]), ({"every": 7}, [7]), ({"every": 0}, [7]),
    ({"every": 0, "embeddings": [2, 5]}, [2, 5, 7]), ({"every": 4, "embeddings": [1]}, [1, 4, 7])])
def test_rounds_that_are_evaluated(settings, evaluated):
    config = resolve({"rounds": 7, "evaluate": settings})
    assert [t + 1 for t in range(7) if config.evaluates(t)] == evaluated
