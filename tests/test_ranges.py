"""Every setting of a configuration: its default, and the values at the ends of its range."""
from __future__ import annotations

import pytest

from fedmpi.config.schema import load_config, resolve, to_plain
from fedmpi.errors import BadInput

DEFAULTS = {
    "seed": 0, "rounds": 100,
    "data": {"name": "digits", "file": None, "root": "~/.cache/fedmpi/data", "cache": None, "fraction": 1.,
             "clients": 20, "new_clients": 0, "task": "classification", "split": [.75, .25], "partition": {
                 "name": "dirichlet", "beta": .1, "procedure": "capped", "smallest": None, "tries": 10_000}},
    "model": {"name": "mlp", "hidden": 64, "head": [], "start": None},
    "method": {"name": "fedavg", "weights": "samples"},
    "train": {"batch": 10, "lr": .005, "lr_decay": 1., "schedule": "constant", "milestones": [], "step_factor": .1,
              "warm_up": 0, "label_smoothing": 0., "augment": [], "padding": 4, "optimizer": "sgd",
              "momentum": 0., "nesterov": False, "weight_decay": 0., "clip_norm": None, "epochs": 1, "drop_last": False,
              "steps": None, "participation": 1., "sampling": "uniform", "candidates": None},
    "evaluate": {"every": 1, "on": "test", "after_training": "participants", "measures": [],
                 "embeddings": []},
    "stop": None, "checkpoint": {"every": 10, "minutes": 10., "grace": 90., "keep": 2,
                                   "asynchronous": False, "failure": "stop"},
    "server": {"hosts_clients": False, "reduce": "exact", "aggregation": "mean", "trim": .1, "clip_norm": None},
    "comm": {"timeout": 1800., "cuda_aware": "auto"}, "state": {"memory": 8., "scratch": None}, "edge": None,
    "availability": None, "stragglers": None, "faults": {"bad_update": "stop", "drop": 0.}, "attack": None,
    "engine": "auto", "cuda_graphs": "auto",
    "device": "auto", "precision": "float32", "threads": 1, "placement": "balanced"}


def test_defaults():
    assert to_plain(resolve({})) == DEFAULTS
    assert to_plain(resolve({"edge": {}}))["edge"] == {
        "cycles": 1e7, "frequency": 1e9, "kappa": 1e-28, "bandwidth": 1e7, "power": .44}
    assert to_plain(resolve({"stragglers": {"step_seconds": .1}}))["stragglers"] == {
        "step_seconds": .1, "spread": 0., "jitter": 0., "file": None, "deadline": None, "late": "drop"}
    assert to_plain(resolve({"availability": {"file": "a.csv"}}))["availability"] == {
        "file": "a.csv", "unit": "rounds", "repeat": None}
    assert to_plain(resolve({"attack": {"kind": "noise"}}))["attack"] == {"kind": "noise", "share": .2, "scale": 1.}
    assert resolve(DEFAULTS) == resolve({})


AT_LEAST, ABOVE, AT_MOST, BELOW = ("greater than or equal to", "greater than", "less than or equal to", "less than")
TINY = 1e-300
# A setting, the last value that is allowed, the first that is not, and the message about it.
RANGES = [
    ("rounds", 1, 0, AT_LEAST, 1), ("seed", 0, -1, AT_LEAST, 0), ("seed", 2**63 - 1, 2**63, AT_MOST, 2**63 - 1),
    ("threads", 1, 0, AT_LEAST, 1), ("data.clients", 1, 0, AT_LEAST, 1), ("data.fraction", TINY, 0, ABOVE, 0),
    ("data.fraction", 1, 1.0001, AT_MOST, 1), ("train.batch", 1, 0, AT_LEAST, 1), ("train.lr", TINY, 0, ABOVE, 0),
    ("train.lr_decay", TINY, 0, ABOVE, 0), ("train.lr_decay", 1, 1.0001, AT_MOST, 1),
    ("train.momentum", 0, -TINY, AT_LEAST, 0), ("train.momentum", .9999, .99991, AT_MOST, .9999),
    ("train.weight_decay", 0, -TINY, AT_LEAST, 0), ("train.clip_norm", TINY, 0, ABOVE, 0),
    ("train.step_factor", TINY, 0, ABOVE, 0), ("train.step_factor", 1, 1.0001, AT_MOST, 1),
    ("train.warm_up", 99, -1, AT_LEAST, 0), ("train.label_smoothing", 0, -TINY, AT_LEAST, 0),
    ("train.label_smoothing", .9999, 1, BELOW, 1), ("train.padding", 1, 0, AT_LEAST, 1),
    ("train.epochs", 1, 0, AT_LEAST, 1), ("train.steps", 1, 0, AT_LEAST, 1), ("evaluate.every", 0, -1, AT_LEAST, 0),
    ("checkpoint.every", 0, -1, AT_LEAST, 0), ("checkpoint.minutes", 0, -TINY, AT_LEAST, 0),
    ("checkpoint.grace", 0, -TINY, AT_LEAST, 0), ("checkpoint.keep", 1, 0, AT_LEAST, 1),
    ("server.trim", 0, -TINY, AT_LEAST, 0), ("server.trim", .4999, .5, BELOW, .5),
    ("server.clip_norm", TINY, 0, ABOVE, 0), ("comm.timeout", 0, -TINY, AT_LEAST, 0),
    ("state.memory", TINY, 0, ABOVE, 0), ("edge.cycles", TINY, 0, ABOVE, 0), ("edge.frequency", TINY, 0, ABOVE, 0),
    ("edge.kappa", TINY, 0, ABOVE, 0), ("edge.bandwidth", TINY, 0, ABOVE, 0), ("edge.power", TINY, 0, ABOVE, 0),
    ("stragglers.step_seconds", TINY, 0, ABOVE, 0), ("stragglers.spread", 0, -TINY, AT_LEAST, 0),
    ("stragglers.jitter", 0, -TINY, AT_LEAST, 0), ("stragglers.deadline", TINY, 0, ABOVE, 0),
    ("availability.repeat", 1, 0, ABOVE, 0), ("train.candidates", 1, 0, AT_LEAST, 1),
    ("faults.drop", 0, -TINY, AT_LEAST, 0), ("faults.drop", .9999, 1, BELOW, 1),
    ("attack.share", TINY, 0, ABOVE, 0), ("attack.share", .9999, 1, BELOW, 1), ("attack.scale", TINY, 0, ABOVE, 0)]


def nested(path: str, value) -> dict:
    section, _, name = path.partition(".")
    if not name:
        return {section: value}
    needed = {"attack": {"kind": "noise"}, "availability": {"file": "a.csv"}, "stragglers": {"step_seconds": .1}}
    more = {"sampling": "loss"} if name == "candidates" else {}
    return {section: needed.get(section, {}) | more | {name: value}}


def refusal(values) -> str:
    with pytest.raises(BadInput) as error:
        resolve(values)
    return str(error.value)


def test_the_ends_of_ranges():
    for path, last, first, said, limit in RANGES:
        config = to_plain(resolve(nested(path, last)))
        for name in path.split("."):
            config = config[name]
        assert config == last and type(config) is not bool, path
        assert refusal(nested(path, first)) == f"{path} = {first}: should be {said} {limit}", path


@pytest.mark.parametrize("share, shown", [
    (0, "0.0"), (1.01, "1.01"), ([0, .5], r"[0.0, 0.5]"), ([.5, 1.01], "[0.5, 1.01]"), ([.5, .4], "[0.5, 0.4]"),
    (-.5, "-0.5"), ([.0, .0], "0.0")])
def test_shares_of_participants_that_are_refused(share, shown):
    assert refusal({"train": {"participation": share}}) == (
        f"train.participation = {shown}: a share in (0, 1] or a range [low, high] of such")


@pytest.mark.parametrize("share", [1, 1e-9, [1e-9, 1], [1, 1], [.5, .5]])
def test_shares_of_participants_that_are_allowed(share):
    found = resolve({"train": {"participation": share}}).train.participation
    assert found == (tuple(share) if isinstance(share, list) else share)


@pytest.mark.parametrize("split", [[1.], [.25, .25, .25, .25], [.5, .4999], [-.5, 1.5], [1.5, -.5], [0., 1.],
                                   [0, .5, .5], [.5, .5 + 2e-9], []])
def test_splits_that_are_refused(split):
    assert refusal({"data": {"split": split}}) == (
        f"data.split = {[float(s) for s in split]}: two or three shares (train, [validation,] test), the first "
        "positive, that add up to 1")


@pytest.mark.parametrize("split", [[1, 0], [.6, .2, .2], [.1, .2, .7], [1e-9, 1 - 1e-9], [.7, .3 + 5e-10], [1, 0, 0]])
def test_splits_that_are_allowed(split):
    assert resolve({"data": {"split": split}}).data.split == tuple(split)


@pytest.mark.parametrize("values, said", [
    ({"evaluate": {"embeddings": [3, 0]}}, "evaluate.embeddings = [3, 0]: rounds count from 1"),
    ({"evaluate": {"embeddings": [-2]}}, "evaluate.embeddings = [-2]: rounds count from 1"),
    ({"train": {"lr": "0.1"}}, "train.lr = '0.1': should be a valid number"),
    ({"train": {"steps": "7"}}, "train.steps = '7': should be a valid integer"),
    ({"train": {"steps": 7.5}}, "train.steps = 7.5: should be a valid integer"),
    ({"rounds": "100"}, "rounds = '100': should be a valid integer"),
    ({"server": {"hosts_clients": 1}}, "server.hosts_clients = 1: should be a valid boolean"),
    ({"data": {"file": 7}}, "data.file = 7: should be a valid string"),
    ({"evaluate": {"on": "train"}}, "evaluate.on = 'train': should be 'test' or 'validation'"),
    ({"evaluate": {"after_training": "none"}},
     "evaluate.after_training = 'none': should be 'participants', 'all' or 'off'"),
    ({"checkpoint": {"failure": "go"}}, "checkpoint.failure = 'go': should be 'stop' or 'continue'"),
    ({"server": {"reduce": "half"}}, "server.reduce = 'half': should be 'exact' or 'float32'"),
    ({"comm": {"cuda_aware": "yes"}}, "comm.cuda_aware = 'yes': should be 'auto', 'on' or 'off'"),
    ({"cuda_graphs": "yes"}, "cuda_graphs = 'yes': should be 'auto', 'on' or 'off'"),
    ({"device": "tpu"}, "device = 'tpu': should be 'auto', 'cpu' or 'cuda'"),
    ({"precision": "fp8"}, "precision = 'fp8': should be 'float32', 'tf32' or 'bf16'"),
    ({"placement": "random"}, "placement = 'random': should be 'balanced', 'blocks' or 'shuffled'"),
    ({"trains": {"lr": 1}}, "trains is not a setting of the configuration; its settings are seed, rounds, data, model, "
     "method, train, evaluate, stop, checkpoint, server, comm, state, edge, availability, stragglers, faults, "
     "attack, engine, cuda_graphs, device, precision, threads, placement (did you mean train?)"),
    ({"train": {"learning_rate": 1}}, "train.learning_rate is not a setting of train; its settings are batch, lr, "
     "lr_decay, schedule, milestones, step_factor, warm_up, optimizer, momentum, nesterov, weight_decay, clip_norm, "
     "label_smoothing, augment, padding, epochs, drop_last, steps, participation, sampling, candidates "
     "(did you mean lr?)"),
    ({"train": {"augment": ["flip", "flip"]}}, "train.augment = ['flip', 'flip']: give each change at most once"),
    ({"train": {"augment": ["mixup"]}}, "train.augment.0 = 'mixup': should be 'crop' or 'flip'"),
    ({"train": {"warm_up": 100}}, "train.warm_up = 100: no round of rounds = 100 would have the full rate; lower "
     "it, or raise rounds"),
    ({"train": {"schedule": "step"}}, "train.milestones = []: they belong to schedule step, which needs them; set "
     "both or none"),
    ({"train": {"schedule": "cosine", "milestones": [3]}}, "train.milestones = [3]: they belong to schedule step, "
     "which needs them; set both or none"),
    ({"train": {"schedule": "step", "milestones": [0, 3]}}, "train.milestones = [0, 3]: they must ascend, and rounds "
     "count from 1"),
    ({"train": {"schedule": "step", "milestones": [3, 3]}}, "train.milestones = [3, 3]: they must ascend, and rounds "
     "count from 1"),
    ({"train": {"optimizer": "rmsprop"}}, "train.optimizer = 'rmsprop': should be 'sgd', 'adam' or 'adamw'"),
    ({"train": {"optimizer": "adam", "momentum": .9}}, "train.momentum = 0.9: adam has moments of its own; leave "
     "momentum out, or set optimizer to sgd"),
    ({"train": {"nesterov": True}}, "train.nesterov = True: there is no momentum; set momentum above 0 (with optimizer "
     "sgd), or leave nesterov out"),
    ({"train": {"nesterov": True, "optimizer": "adamw"}}, "train.nesterov = True: there is no momentum; set momentum "
     "above 0 (with optimizer sgd), or leave nesterov out"),
    ({"train": {"lr": .5, "weight_decay": 2}}, "train.weight_decay = 2.0: with lr = 0.5 each step would take the "
     "weights to 0 or past it; it must be below 1 / lr = 2"),
    ({"comm": {"timeuot": 1}}, "comm.timeuot is not a setting of comm; its settings are timeout, cuda_aware "
     "(did you mean timeout?)"),
    ({"checkpoint": {"async": True}}, "checkpoint.async is not a setting of checkpoint; its settings are every, "
     "minutes, grace, keep, asynchronous, failure (did you mean asynchronous?)")])
def test_mistakes_are_named_with_what_is_allowed(values, said):
    assert refusal(values) == said


def test_null_is_a_value_of_edge_and_attack_alone():
    assert resolve({"edge": None, "attack": None}) == resolve({})
    for section in ("data", "train", "evaluate", "checkpoint", "server", "comm", "state", "faults"):
        assert refusal({section: None}) == f"{section} must be a mapping of settings, not None"


def test_overrides_go_from_left_to_right_and_into_what_is_there(tmp_path):
    (tmp_path / "c.yaml").write_text("train: {lr: .1, batch: 3}\nmethod: fedmhc\nmodel: {hidden: 5}\n")

    def read(*words):
        return load_config(tmp_path / "c.yaml", list(words))
    assert (read("train.lr=.2", "train.lr=.3").train.lr, read("train.lr=.2").train.batch) == (.3, 3)
    # A mapping changes what it names, as it does from Python; with a name it is another section.
    assert read("train={lr: .2}").train.batch == 3 and read("train={lr: .2}", "train.batch=4").train.batch == 4
    assert read("method={M: 7}").method == read("method.M=7").method
    assert read("method={name: fedmhc, M: 7}", "method={lam: 3}").method == read("method.M=7", "method.lam=3").method
    assert read("method={name: fedmhc, M: 7}", "method={name: fedmhc}").method == read().method
    assert read("data={partition: {beta: 2}}", "data={clients: 7}") == read("data.clients=7", "data.partition.beta=2")
    assert read("edge={}", "attack={kind: noise}", "attack={scale: 2}").attack.kind == "noise"
    assert load_config(tmp_path / "c.yaml", {"method": {"M": 7}}) == read("method.M=7")
    assert read("method.M=7").method.M == 7 and read("method.M=7", "method=fedmhc").method.M == 7
    assert not hasattr(read("method.M=7", "method=fedavg").method, "M")
    assert read("model=mlp").model.hidden == 5 and read("data.partition=iid", "data.partition=dirichlet") == read()
    assert read("data.partition.beta=2", "data.partition=dirichlet").data.partition.beta == 2
    # The first = ends the key.
    assert read("data.name=m:a=b").data.name == "m:a=b"


def test_threads_are_those_of_the_networks(bench, monkeypatch):
    import torch
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert bench.lead("threads", "threads=3", "rounds=1", "method=fedavg", "data.clients=3", "engine=loop") == 0
    assert asked == [3]
