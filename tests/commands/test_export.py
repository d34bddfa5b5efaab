"""An exported model gives in plain PyTorch what the run measured."""
from __future__ import annotations

import re
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from fedmpi import load_result, registry
from fedmpi.cli import app
from fedmpi.commands.export import explain_relative_paths, load_model, load_samples
from fedmpi.config import schema
from fedmpi.data.federation import find_federation
from fedmpi.errors import BadInput
from fedmpi.method import Method
from fedmpi.storage.checkpoint import CheckpointFile
from fedmpi.storage.history import read_history
from fedmpi.storage.seal import DamagedFile
from fedmpi.storage.sealed import SealedFile
from tests import federations

safetensors = pytest.importorskip("safetensors", reason="there is no safetensors here: pip install safetensors")
METHODS = ["local", "fedavg", "fedah", "fedrep", "ditto", "ifca", "fedbabu", "pfedcam", "fedala", "fedmhc"]
GLOBAL = {"ditto", "fedah", "fedala", "fedavg", "fedbabu", "fedprox", "per_fedavg", "pfedme"}
# These methods are evaluated by more than one network.
SEVERAL = {"fedavg_plus", "fedcr", "fedprox_plus", "fedsr", "fesem_cam", "ifca_cam"}


def mlp():
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), fc1=nn.Linear(64, 16), relu=nn.ReLU(), fc2=nn.Linear(16, 10)))


def cnn():
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(1, 32, 5), pool1=nn.MaxPool2d(2), relu1=nn.ReLU(), conv2=nn.Conv2d(32, 64, 5),
        pool2=nn.MaxPool2d(2), relu2=nn.ReLU(), flat=nn.Flatten(), fc1=nn.Linear(64, 16), relu3=nn.ReLU(),
        fc2=nn.Linear(16, 10)))


class Normed(nn.Module):
    """A network with BatchNorm for images of 16 x 16."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(100, 10)

    def forward(self, x):
        return self.last(self.body(x))


@pytest.fixture(scope="module")
def images(bench):
    """Settings for the digits as images of 16 x 16."""
    x, y, *_ = federations.pool()
    x = np.kron((x * 255).astype(np.uint8).reshape(-1, 8, 8), np.ones((1, 2, 2), np.uint8))[..., None]
    np.savez(bench.folder / "images.npz", x_train=x, y_train=y)
    return ["data.name=arrays", f"data.file={bench.folder}/images.npz", "rounds=1"]


def ran(bench, name, *overrides):
    assert bench.lead(name, "checkpoint.every=0", *overrides) == 0
    return bench.out(name)


def exported(run, *options):
    """Export; return the state dict and the file's metadata."""
    out = run.with_suffix(".safetensors")
    done = CliRunner().invoke(app, ["export", str(run), str(out), *options])
    assert done.exit_code == 0, done.output
    with safetensors.safe_open(out, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def refused(*words):
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    assert done.exit_code == 2 and done.exception.code == 2, done.output
    return " ".join(done.output.split())


def check(run, network, clients, *options):
    """Check that clients' exported models give in a plain network what the run measured."""
    settings, history = schema.load_config(run / "config.yaml"), read_history(run / "history.h5")
    federation, found = find_federation(settings.data, settings.seed), []
    for client in clients:
        network.load_state_dict(exported(run, "--client", str(client), *options)[0])
        samples = federation.client(client)
        x, y = map(torch.from_numpy, (samples.x_test, samples.y_test))
        with torch.no_grad():
            logits = network.eval()(x.permute(0, 3, 1, 2) / 127.5 - 1 if x.ndim == 4 else x)
        found.append(int((logits.argmax(1) == y).sum()) / len(y))
        assert found[-1] == history["accuracy"][-1][client]
        assert float(F.cross_entropy(logits, y)) == pytest.approx(history["loss"][-1][client], rel=1e-5)
    return found


@pytest.mark.slow("a run for each of ten methods")
@pytest.mark.parametrize("name", METHODS)
def test_every_clients_model_gives_the_accuracy_of_the_run(bench, name):
    assert len(set(check(ran(bench, name, f"method={{name: {name}}}"), mlp(), [0, 3, 8]))) > 1


def test_an_exported_model_is_adapted_at_the_rate_at_which_the_run_evaluated_it(bench):
    """A cosine would leave nothing of the rate after the last round."""
    run = ran(bench, "cosine", "method=fedbabu", "train.schedule=cosine")
    check(run, mlp(), [0, 3, 8])


@pytest.mark.slow("a run with convolutions for each of four methods")
@pytest.mark.parametrize("name", ["fedavg", "fedah", "fedmhc", "ditto"])
def test_a_convolutional_network(bench, images, name):
    run = ran(bench, f"cnn-{name}", *images, f"method={{name: {name}}}", "model={name: cnn4, width: 16}")
    check(run, cnn(), [0, 3, 8])


@pytest.mark.parametrize("name, statistics", [("fedavg", "local"), ("fedah", "average")])
def test_running_statistics_are_the_clients_own(bench, images, name, statistics):
    settings = f"model={{name: 'tests.commands.test_export:Normed', running_stats: {statistics}}}"
    run = ran(bench, f"normed-{name}", *images, f"method={{name: {name}}}", settings, "train.participation=1.")
    check(run, Normed(), [1, 4], "--own-code")
    assert exported(run, "--client", "4", "--own-code")[0]["body.1.running_var"].ne(1).any()
    if statistics == "local":
        assert "export a client's with --client" in refused(run, run.with_suffix(".safetensors"), "--own-code")


def test_the_global_model_and_what_the_file_says(bench):
    run = ran(bench, "global", "method={name: fedavg}")
    (state, about), (own, _) = exported(run), exported(run, "--client", "5")
    assert all(torch.equal(state[name], own[name]) for name in own)
    assert about["digest"] == bench.result("global")["digest"] and about["round"] == "3" and about["of"] == "the server"
    assert about["network"] == str(mlp()) and about["classes"] == "10" and about["shape"] == "[64]"


def test_the_same_model_gives_the_same_file(bench):
    """The library would write the metadata in another order each time."""
    ran(bench, "twice", "rounds=1", "method=fedavg")
    paths = [bench.folder / f"twice-{i}.safetensors" for i in range(2)]
    for path in paths:
        assert CliRunner().invoke(app, ["export", str(bench.out("twice")), str(path)]).exit_code == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with safetensors.safe_open(str(paths[0]), "pt") as file:
        assert list(file.metadata()) and file.get_tensor("fc2.bias").shape == (10,)
    header = paths[0].read_bytes()[8:]
    assert header.index(b'"classes"') < header.index(b'"digest"') < header.index(b'"title"')


def test_who_has_a_global_model():
    model, have, many = federations.mlp(), set(), set()
    for name in registry.list_available("methods"):
        method = federations.method(name, model)
        if type(method).predict is not Method.predict:
            many.add(name)
        elif (w := method.global_model(method.init(9)[0])) is not None:
            assert torch.equal(w, model.start)
            have.add(name)
    assert have == GLOBAL and many == SEVERAL


def test_a_checkpoint_of_its_own_and_a_damaged_one(bench):
    run = ran(bench, "older", "method={name: local}", "checkpoint={every: 1, keep: 3}")
    *_, second, last = bench.saved("older")
    out = bench.folder / "x.safetensors"
    assert "after round 2" in CliRunner().invoke(app, ["export", str(second), str(out), "--client=1"]).output
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    done = CliRunner().invoke(app, ["export", str(run), str(out), "--client=1"])
    assert f"refused {last}" in done.output and "after round 2" in done.output


def test_rows_are_read_where_they_are_used_and_a_damaged_one_is_refused(bench, monkeypatch):
    """A model of a folder takes the rows twice, to choose the checkpoint and to restore it; samples take none."""
    run = ran(bench, "rows", "method=local")
    (path,), read, rows = bench.saved("rows"), [], SealedFile.rows

    def count(self, name, start, stop, edges=None):
        read.extend(range(start, stop) if self.path == path else ())
        return rows(self, name, start, stop, edges)
    monkeypatch.setattr(SealedFile, "rows", count)
    clients, found = len(CheckpointFile(path).read("ids")), []
    for take in (lambda: load_model(run, 1), lambda: load_model(path, 1), lambda: load_samples(run, 1, "train"),
                 lambda: load_samples(path, 1, "train")):
        take()
        found.append(len(read) / clients)
        read.clear()
    assert found == [2, 1, 0, 0]
    place = CheckpointFile(path).places["mine/w"]
    content = bytearray(path.read_bytes())
    content[place.offset + 1] ^= 1
    path.write_bytes(content)
    assert len(load_samples(run, 1, "train")[0]) == len(load_samples(path, 1, "train")[0]) > 0
    with pytest.raises(DamagedFile, match="the checksum of row 0 of w is wrong"):
        load_model(path, 1)
    with pytest.raises(BadInput, match="row 0 of w is wrong[^\n]*\n.*holds no good checkpoint"):
        load_model(run, 1)


def test_a_name_of_a_pickled_file_is_refused(tmp_path):
    said = refused(tmp_path, tmp_path / "model.pt")
    assert "model.pt: fedmpi export writes safetensors, which torch.load does not read; end the name with .safe" in said


def test_what_cannot_be_exported(bench, tmp_path):
    run, out = ran(bench, "refusals", "rounds=1"), tmp_path / "x.safetensors"
    assert "FedMHC has no global model; export a client's with --client 0 to 8" in refused(run, out)
    assert "--client 9: the run has clients 0 to 8" in refused(run, out, "--client", 9)
    assert "holds no checkpoint" in refused(tmp_path, out)
    assert "cannot be used as a checkpoint" in refused(run / "config.yaml", out)
    several = ran(bench, "several", "rounds=1", "method={name: fedavg_plus, K: 2}")
    assert "is not evaluated with one network" in refused(several, out, "--client", 0)
    assert not out.exists()
    done = CliRunner().invoke(app, ["export", str(run), str(tmp_path), "--client", "0"])
    assert done.exit_code == 2 and f"{tmp_path} cannot be written" in done.output


def test_changed_data_are_noticed(bench, images, tmp_path):
    run = ran(bench, "changed", *images)
    path = bench.folder / "images.npz"
    with np.load(path) as held:
        np.savez(path, x_train=held["x_train"][::-1], y_train=held["y_train"])
    said = refused(run, tmp_path / "x.safetensors", "--client", 0)
    assert "the data have changed" in said and said.endswith(f"put back what data.file = {path} held then")


def test_a_relative_path_leads_to_the_folder_in_which_the_run_was_started(bench, tmp_path, monkeypatch):
    """The run does not keep that folder. What the message says must work."""
    here, out = tmp_path / "here", tmp_path / "x.safetensors"
    (here / "deeper").mkdir(parents=True)
    monkeypatch.chdir(here)
    for name in ("images.npz", "deeper/images.npz"):
        x = np.random.default_rng(len(name)).normal(size=(90, 6)).astype(np.float32)
        np.savez(name, x_train=x, y_train=np.arange(90) % 3)
    run = ran(bench, "relative", "data.name=arrays", "data.file=images.npz", "rounds=1")
    result = load_result(run)
    assert result.model(0) and len(result.samples(0)[0])
    monkeypatch.chdir(tmp_path)
    said = (f"data.file = images.npz: not found from {tmp_path}, for the run has this path from the folder in which it "
            "was started; change to that folder (in Python by os.chdir) and try again")
    for ask in (result.model, result.samples):
        with pytest.raises(BadInput, match=re.escape(said)):
            ask(0)
    assert said in refused(run, out, "--client", 0)
    monkeypatch.chdir(here / "deeper")
    with pytest.raises(BadInput, match="put back what data.file = images.npz held then, or change to the folder in "
                       f"which the run was started, not {here / 'deeper'}$"):
        result.samples(0)
    monkeypatch.chdir(here)
    assert result.model(0) and exported(run, "--client", "0")


def test_a_model_of_an_earlier_round_says_so(bench):
    """As after a last checkpoint that the disk refused, with checkpoint.failure=continue."""
    run = ran(bench, "earlier", "rounds=2", "checkpoint.every=1", "checkpoint.keep=2")
    (run / "checkpoints" / "round-000002.h5").unlink()
    with pytest.warns(UserWarning, match="that of round 1 of 2, since there is no later checkpoint that is sound"):
        assert load_result(run).model(0)


def test_other_refusals_and_other_relative_paths(tmp_path, monkeypatch):
    """Initial weights are named, too; a path that leads somewhere, and one from the root or from home, is not."""
    monkeypatch.chdir(tmp_path)
    start = SimpleNamespace(data=schema.Data(file="~/none.npz", root=str(tmp_path / "none")),
                            model=schema.resolve({"model": {"name": "mlp", "start": "w.safetensors"}}).model)

    def refuse():
        with explain_relative_paths(start):
            raise BadInput("as it was")
    with pytest.raises(BadInput, match=f"^model.start = w.safetensors: not found from {tmp_path}, "):
        refuse()
    (tmp_path / "w.safetensors").touch()
    with pytest.raises(BadInput, match="^as it was$"):
        refuse()
