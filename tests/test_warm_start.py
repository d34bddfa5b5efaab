"""`model.start`: runs that begin with the weights of a file, and files that are refused."""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from fedmpi import __version__
from fedmpi.config.schema import resolve, to_plain
from fedmpi.errors import BadInput
from fedmpi.models.build import as_input, build_model, make_blank_samples
from fedmpi.models.nets import MLP, Start
from fedmpi.storage import checkpoint
from fedmpi.warm_start import load_start, read_global_model
from tests.federations import TinyCNN

SMALL = ("rounds=2", "model={name: mlp, hidden: 8}", "checkpoint.every=1", "checkpoint.keep=5", "train.lr=.1")


@dataclass(frozen=True)
class Settings(TinyCNN):
    """A user's own settings that name a file."""
    start: Start = None


@dataclass(frozen=True)
class Normed:
    """A network whose running statistics are averaged."""
    start: Start = None
    policy = "average"

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))


def loaded(settings, shape=(64,), kind="float32"):
    """Return the model of some settings of a network, with its file loaded."""
    model = build_model(settings, shape, np.dtype(kind), 10, seed=5)
    load_start(replace(resolve({}), model=settings), model)
    return model


def trained(network: nn.Module) -> nn.Module:
    """Return a network with other numbers in all of its parameters and statistics."""
    for number, value in enumerate([*network.parameters(), *network.buffers()]):
        if value.is_floating_point():
            value.data = torch.linspace(.1, 1 + number, value.numel()).view(value.shape)
    return network.eval()


@pytest.mark.parametrize("cls, shape, kind", [(MLP, (64,), "float32"), (Settings, (8, 8, 1), "uint8"),
                                              (Normed, (64,), "float32")])
def test_a_state_dict_gives_the_outputs_of_its_network(tmp_path, cls, shape, kind):
    """It also holds for convolutions, which the vector stores in another order, and for statistics and counts."""
    sample = as_input(make_blank_samples(shape, kind, 3))
    network = trained(cls().build(tuple(sample.shape[1:]), 10))
    safetensors.torch.save_file(network.state_dict(), tmp_path / "w.safetensors")
    model = loaded(cls(start=str(tmp_path / "w.safetensors")), shape, kind)
    assert model.size == len(model.start) and not torch.equal(model.start, loaded(cls(), shape, kind).start)
    with torch.no_grad():
        torch.testing.assert_close(model(model.start, sample), network(sample))
    others = model.starts(3)
    assert torch.equal(others[0], model.start)
    assert torch.equal(others[1:], loaded(cls(), shape, kind).starts(3)[1:])


def test_numbers_of_other_precision_are_taken(tmp_path):
    state = {name: value.double() for name, value in trained(MLP().build((64,), 10)).state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / "w.safetensors")
    assert loaded(MLP(start=str(tmp_path / "w.safetensors"))).start.dtype == torch.float32


def drop(name):
    return lambda state: state.pop(name)


def put(name, value):
    return lambda state: state.update({name: value})


@pytest.mark.parametrize("change, said", [
    (drop("fc1.bias"), "it has no fc1.bias; give a state dict of this network, whose first tensors are fc1.weight, "
     "fc1.bias, fc2.weight"),
    (put("extra", torch.ones(2)), "it has other tensors than the network: extra; give a state dict"),
    (put("fc2.bias", torch.ones(9)), r"fc2.bias is float32 \(9,\), but the network's is float32 \(10,\); give a file"),
    (put("fc2.bias", torch.ones(10).long()), r"fc2.bias is int64 \(10,\), but the network's"),
    (put("fc2.bias", torch.full((10,), torch.nan)), "some of its numbers are not finite; give another file")])
def test_a_state_dict_of_another_network_is_refused(tmp_path, change, said):
    path, state = tmp_path / "w.safetensors", MLP().build((64,), 10).state_dict()
    change(state)
    safetensors.torch.save_file(state, path)
    with pytest.raises(BadInput, match=f"model.start = {path}: {said}") as error:
        loaded(MLP(start=str(path)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, content, said", [
    ("w.safetensors", None, "cannot read it: No such file or directory; give another file"),
    ("w.safetensors", b"no", "no safetensors file .*; give another file"),
    ("w.h5", None, "No such file or directory.*; give another file"),
    ("w.h5", b"no", ".*; give another file"),
    ("w.pt", b"no", r"give a safetensors file \(.safetensors\) or a checkpoint of fedmpi \(.h5\)")])
def test_what_is_no_such_file_is_refused(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=f"model.start = {path}: .*{said}") as error:
        loaded(MLP(start=str(path)))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def files(bench):
    """A checkpoint of FedAvg, the model that it exports, and a checkpoint of a method without a global model."""
    from fedmpi.commands.export import export_model
    assert bench.lead("first", *SMALL, "method=fedavg") == bench.lead("heads", *SMALL, "method=fedper") == 0
    saved, out = bench.saved("first")[-1], bench.out("w.safetensors")
    export_model(saved, out, None)
    return saved, out, bench.saved("heads")[-1]


def test_a_run_goes_on_from_a_checkpoint_and_from_its_export_alike(bench, files):
    """Two rounds from either have one digest, another one than two rounds from random weights."""
    digests = {}
    for name, start in {"from-h5": files[0], "from-state": files[1], "random": None}.items():
        more = [] if start is None else [f"model.start={start}"]
        assert bench.lead(name, *SMALL, "method=fedavg", *more) == 0
        digests[name] = bench.result(name)["digest"]
    assert digests["from-h5"] == digests["from-state"] != digests["random"]


def test_the_first_model_of_a_run_is_that_of_the_file(files):
    w = checkpoint.read_checkpoint(files[0]).shared["w"]
    for start in files[:2]:
        settings = MLP(hidden=8, start=str(start))
        assert torch.equal(loaded(settings).start, torch.from_numpy(w))


@pytest.mark.parametrize("place, settings, said", [
    (0, MLP(hidden=9), r"its network is another one \(hidden is 8 there and 9 here\); give a checkpoint of the same"),
    (2, MLP(hidden=8), "its method, fedper, keeps no global model w of 610 numbers; write a model of that run by "
     r"`fedmpi export RUN start.safetensors` \(--client 3 for a client's\), and give that file")])
def test_a_checkpoint_without_the_model_is_refused(files, place, settings, said):
    with pytest.raises(BadInput, match=f"model.start = {files[place]}: {said}"):
        loaded(replace(settings, start=str(files[place])))


def test_a_global_model_of_other_data_says_so(files):
    with pytest.raises(BadInput, match=f"model.start = {files[0]}: its global model w has 610 numbers, and this "
                       "network 354: samples or classes have another shape there; give a checkpoint of data like"):
        loaded(MLP(hidden=8, start=str(files[0])), shape=(32,))


def test_a_global_model_without_statistics_has_a_remedy_that_works(monkeypatch):
    """The global model of such a run cannot be exported either."""
    config = resolve({})
    monkeypatch.setattr(checkpoint, "read_checkpoint", lambda path, check: SimpleNamespace(
        version=__version__, config=to_plain(config), shared={}))
    model = SimpleNamespace(buffers=["running_mean"], policy="local", names=[])
    with pytest.raises(BadInput, match=r"no running statistics; write a client's .* start.safetensors --client 3`"):
        read_global_model(Path("a.h5"), "model.start = a.h5", config, model)


@pytest.fixture
def refusal(bench, capsys):
    """Run in this process, which is refused; return the one line that says why."""
    def refusal(name, *words, **how) -> str:
        assert bench.lead(name, *SMALL, *words, **how) == 2
        out, error = capsys.readouterr()
        line, = error.splitlines()
        assert line.startswith("fedmpi: ") and "Traceback" not in out
        return line
    return refusal


def test_a_run_without_its_file_does_not_begin(bench, refusal):
    assert "model.start = none.h5: cannot read it: No such file or directory" in refusal(
        "missing", "model.start=none.h5")
    assert f"model.start = {bench.folder}: it is not a file" in refusal("folder", f"model.start={bench.folder}")
    assert "model.start = ~nobody9/x.h5: there is no user of this name" in refusal("user", "model.start=~nobody9/x.h5")
    assert not bench.out("missing").exists() and not bench.out("folder").exists()


def test_a_run_goes_on_with_the_same_file_alone(bench, refusal, tmp_path):
    """Clients that never took part, and heads that never move, begin with it in later rounds, too."""
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(trained(MLP(hidden=8).build((64,), 10)).state_dict(), path)
    words = ("method=local", f"model.start={path}", "train.participation=.4")
    assert bench.lead("whole", *SMALL, *words, "rounds=4") == bench.lead("parts", *SMALL, *words) == 0
    kept = path.read_bytes()
    safetensors.torch.save_file(MLP(hidden=8).build((64,), 10).state_dict(), path)
    assert "has changed since the checkpoint of round 2: model.start" in refusal("parts", *words, "rounds=4",
                                                                                   resume="auto")
    path.write_bytes(kept)
    assert bench.lead("parts", *SMALL, *words, "rounds=4", resume="auto") == 0
    assert bench.result("parts")["digest"] == bench.result("whole")["digest"]
    assert [*bench.result("parts")["own_code"]] == ["model.start"]


def test_a_configuration_names_the_file_of_any_network():
    for name in ("mlp", "cnn4", "lenet5", "resnet18", "fasttext", "torch.nn:Linear"):
        assert resolve({"model": {"name": name, "start": "a.h5"}}).model.start == "a.h5"
