"""Settings of a class of one's own that are called like something that fedmpi knows by that name."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from torch import nn

from fedmpi.commands import catalogue
from fedmpi.config.own_parts import list_own_parts
from fedmpi.config.schema import resolve, to_plain
from fedmpi.data.partitions import Dirichlet
from fedmpi.errors import BadInput
from fedmpi.method import Method, set_by_with_model
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.fedavg_plus import FedAvgPlus
from fedmpi.methods.fedcps import FedCPS
from fedmpi.models.build import build_model
from fedmpi.models.flat import Model
from fedmpi.testing import check_method


@dataclass(frozen=True)
class PathMethod(FedAvg):
    path: str = "teacher.pt"


@dataclass(frozen=True)
class PathPartition(Dirichlet):
    path: str = "splits.csv"


@dataclass(frozen=True)
class PathNetwork:
    path: str = "there:weights.pt"

    def build(self, shape, classes):
        return nn.Sequential(nn.ReLU(), nn.Linear(shape[0], classes)) if self.path != "nowhere" else None


@dataclass(frozen=True)
class NamedMethod(FedAvg):
    name: str = "fedprox"


@dataclass(frozen=True)
class NamedPartition(Dirichlet):
    name: str = "iid"


@dataclass(frozen=True)
class NamedNetwork(PathNetwork):
    name: str = "mlp"


@dataclass(frozen=True)
class ModelMethod(FedAvg):
    model: int = 3


@dataclass(frozen=True)
class TailMethod(FedCPS):
    tail: int = 3


@dataclass(frozen=True)
class CheckMethod(FedAvg):
    check: bool = True


@dataclass(frozen=True)
class OnCheckMethod(CheckMethod):
    more: float = 1.


@dataclass(frozen=True)
class CheckWithoutDefault(Method):
    check: float


@dataclass(frozen=True)
class TrainMethod(FedAvgPlus):
    train: int = 3


@dataclass(frozen=True)
class KeepsModel(FedAvg):
    """Says more of the type of the network, and lets the configuration say who idles."""
    model: Model = set_by_with_model()
    idles: bool = False


HERE = __name__


def test_a_setting_may_be_called_path():
    """The path of models.nets.Custom is another one."""
    given = {"method": {"name": f"{HERE}:PathMethod", "path": "a"}, "model": {"name": f"{HERE}:PathNetwork"},
             "data": {"partition": {"name": f"{HERE}:PathPartition", "path": "b"}}}
    config = resolve(given)
    plain = to_plain(config)
    assert plain["method"] == {"name": f"{HERE}:PathMethod", "weights": "samples", "path": "a"}
    assert plain["model"] == {"name": f"{HERE}:PathNetwork", "path": "there:weights.pt"}
    assert plain["data"]["partition"]["path"] == "b" and resolve(plain) == config
    assert "there" not in list_own_parts(config)
    # The settings are known: a wrong key is looked for among them.
    with pytest.raises(BadInput, match=r"did you mean model\.path"):
        resolve({**given, "pathh": 3})


def test_a_setting_called_path_is_not_the_name_of_a_network():
    assert build_model(PathNetwork(), (6,), np.dtype("float32"), 3, 0).size == 21
    with pytest.raises(BadInput, match=rf"model: .*{__file__.rpartition('/')[2]}:\d+: build\(\) must return a torch"):
        build_model(PathNetwork("nowhere"), (6,), np.dtype("float32"), 3, 0)


@pytest.mark.parametrize("kind, where, given", [
    ("methods", "method", {"method": f"{HERE}:NamedMethod"}), ("models", "model", {"model": f"{HERE}:NamedNetwork"}),
    ("partitions", "data.partition", {"data": {"partition": f"{HERE}:NamedPartition"}})])
def test_a_setting_called_name_is_refused(kind, where, given):
    """In the run's config.yaml it would stand in the place of the class."""
    name = str(given.get(where) or given["data"]["partition"])
    said = (f"{name} declares a setting name, which in a configuration names the class itself; call it otherwise")
    with pytest.raises(BadInput) as error:
        resolve(given)
    assert str(error.value) == f"{where}: {said}"
    with pytest.raises(BadInput) as error:
        catalogue.explain(kind, name)
    assert str(error.value) == f"{kind[:-1]} '{name}': {said}"


@pytest.mark.parametrize("name, declaring, setting, why", [
    ("ModelMethod", "ModelMethod", "model", "fedmpi sets `model` itself to the network"),
    ("TailMethod", "TailMethod", "tail", "fedmpi sets `tail` itself"),
    ("CheckMethod", "CheckMethod", "check", "fedmpi.method:Method has a function of that name"),
    ("OnCheckMethod", "CheckMethod", "check", "fedmpi.method:Method has a function of that name"),
    ("CheckWithoutDefault", "CheckWithoutDefault", "check", "fedmpi.method:Method has a function of that name"),
    ("TrainMethod", "TrainMethod", "train", "fedmpi.methods.fedavg_plus:FedAvgPlus has a function of that name")])
def test_a_setting_that_takes_the_place_of_something_else_is_refused(name, declaring, setting, why):
    said = f"{HERE}:{declaring} declares a setting {setting}, but {why}; call the setting otherwise"
    with pytest.raises(BadInput) as error:
        resolve({"method": f"{HERE}:{name}"})
    assert str(error.value) == f"method: {said}"
    with pytest.raises(BadInput, match=f"declares a setting {setting}, but"):
        check_method(globals()[name])


def test_a_field_that_with_model_sets_may_be_declared_again():
    config = resolve({"method": {"name": f"{HERE}:KeepsModel", "idles": True}})
    assert to_plain(config)["method"] == {"name": f"{HERE}:KeepsModel", "weights": "samples", "idles": True}
