"""A class of one's own that declares settings without @dataclass or by mistake, or has no title or not the base class
Method."""
from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from torch import nn

from fedmpi.commands import catalogue
from fedmpi.config.schema import resolve
from fedmpi.data.partitions import Dirichlet
from fedmpi.errors import BadInput
from fedmpi.method import Method
from fedmpi.methods.fedavg import FedAvg
from fedmpi.own_code.misdeclared import refuse_misdeclared
from fedmpi.settings import NO_SETTING
from fedmpi.testing import check_method


class Undecorated(FedAvg):
    lam: Annotated[float, "a pull"] = .1
    rate: float = 1.
    kind: ClassVar[str] = "none of the settings"


class OnTop(Undecorated):
    pass


class WithoutSettings(FedAvg):
    kind: ClassVar[str] = "no setting"


@dataclass(frozen=True)
class Decorated(Undecorated):
    more: float = 2.


class Split(Dirichlet):
    alpha: float = 1.


@dataclass(frozen=True)
class NoMethod:
    def client(self, shared, mine, data):
        return mine, shared


@dataclass(frozen=True)
class TypedTitle(FedAvg):
    title: str = "a setting by mistake"
    lam: float = 1.


class TypedPaper(FedAvg):
    paper: str = "no dataclass"


@dataclass(frozen=True)
class OnTypedTitle(TypedTitle):
    more: float = 2.


@dataclass(frozen=True)
class TypedWords(Method):
    judged_by: str = "a setting by mistake, right behind Method"


@dataclass(frozen=True)
class TakesAway(FedAvg):
    weights: ClassVar[str] = "equal"


class Kind(Enum):
    ONE = "one"


@dataclass(frozen=True)
class Depth:
    layers: int = 2


@dataclass(frozen=True)
class WithEnum(FedAvg):
    kind: Kind = Kind.ONE


@dataclass(frozen=True)
class WithClass(FedAvg):
    depth: Depth = field(default_factory=Depth)


@dataclass(frozen=True)
class WithPath(FedAvg):
    file: Path = Path("here")


@dataclass(frozen=True)
class WithLists(FedAvg):
    sizes: tuple[int, ...] = (3, 4)
    kept: Kind = field(default=Kind.ONE, metadata=NO_SETTING)


class Untitled(Method):
    pass


class UntitledToo(Untitled):
    pass


HERE = __name__
SAID = (f"{HERE}:Undecorated declares lam, rate and is not a dataclass, so these are not settings; write "
        "@dataclass(frozen=True) above the class")


@pytest.mark.parametrize("name", ["Undecorated", "OnTop"])
@pytest.mark.parametrize("settings", [{}, {"lam": .3}])
def test_settings_without_dataclass_are_refused(name, settings):
    with pytest.raises(BadInput) as error:
        resolve({"method": {"name": f"{HERE}:{name}", **settings}})
    assert str(error.value) == f"method: {SAID}"
    with pytest.raises(BadInput) as error:
        catalogue.explain("methods", f"{HERE}:{name}")
    assert str(error.value) == f"method '{HERE}:{name}': {SAID}"


@pytest.mark.parametrize(("name", "declaring", "attribute"), [
    ("TypedTitle", "TypedTitle", "title"), ("TypedPaper", "TypedPaper", "paper"),
    ("OnTypedTitle", "TypedTitle", "title"), ("TypedWords", "TypedWords", "judged_by")])
def test_a_class_attribute_with_a_type_is_no_setting(name, declaring, attribute):
    said = (f"{HERE}:{declaring} declares {attribute} with a type, which makes it a setting; write {attribute} = ... "
            f"without one, or {attribute}: ClassVar[...] = ...")
    with pytest.raises(BadInput) as error:
        resolve({"method": {"name": f"{HERE}:{name}"}})
    assert str(error.value) == f"method: {said}"


@pytest.mark.parametrize("name, value", [("WithEnum", "kind the default <Kind.ONE: 'one'>"),
                                         ("WithClass", "depth the default Depth(layers=2)"),
                                         ("WithPath", "file the default PosixPath('here')")])
def test_a_default_that_no_configuration_can_hold_is_refused(name, value):
    """A run writes down all its settings."""
    said = (f"{HERE}:{name} gives {value}, but settings are made of finite numbers, texts, lists and mappings; declare "
            "a Literal of texts in place of an Enum, and each field of another class as a setting")
    with pytest.raises(BadInput) as error:
        resolve({"method": {"name": f"{HERE}:{name}"}})
    assert str(error.value) == f"method: {said}"
    with pytest.raises(BadInput) as error:
        catalogue.explain("methods", f"{HERE}:{name}")
    assert str(error.value) == f"method '{HERE}:{name}': {said}"
    with pytest.raises(BadInput, match=f"{name} gives .* the default"):
        check_method(globals()[name])


def test_a_default_may_be_a_tuple_and_what_is_no_setting_anything():
    assert resolve({"method": f"{HERE}:WithLists"}).method.sizes == (3, 4)
    assert "sizes    [3, 4]   list of int" in catalogue.explain("methods", f"{HERE}:WithLists")


def test_a_setting_of_the_bases_may_be_taken_away():
    refuse_misdeclared(TakesAway, "method")
    with pytest.raises(BadInput, match="weights"):
        resolve({"method": {"name": f"{HERE}:TakesAway", "weights": "samples"}})


def test_the_contract_says_so_too():
    with pytest.raises(BadInput, match="Undecorated declares lam, rate and is not a dataclass"):
        check_method(Undecorated)


def test_a_partition_is_no_exception():
    with pytest.raises(BadInput, match=f"^data.partition: {HERE}:Split declares alpha and is not a dataclass"):
        resolve({"data": {"partition": f"{HERE}:Split"}})


def test_a_class_that_declares_no_settings_needs_no_dataclass():
    assert resolve({"method": {"name": f"{HERE}:WithoutSettings", "weights": "equal"}}).method.weights == "equal"
    # The decorator counts for what base classes declare before it, as Python has it.
    assert resolve({"method": {"name": f"{HERE}:Decorated", "more": 3.}}).method.more == 3


def test_a_class_of_another_kind_may_declare_what_it_likes():
    refuse_misdeclared(nn.Linear, "model")
    refuse_misdeclared(nn.functional.relu, "model")


def test_a_method_is_derived_from_method():
    with pytest.raises(BadInput) as error:
        resolve({"method": f"{HERE}:NoMethod"})
    assert str(error.value) == f"method: {HERE}:NoMethod is not derived from fedmpi.method.Method, as methods must be"


def test_a_method_without_a_title_is_called_by_its_class():
    assert (Untitled.title, UntitledToo.title) == ("Untitled", "UntitledToo")
    # a title is inherited
    assert WithoutSettings.title == Decorated.title == "FedAvg" and FedAvg.name_as_title == ""
