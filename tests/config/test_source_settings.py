"""Settings of a data set stand in the section `data`, beside those of all data sets."""
from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

from fedmpi.commands import catalogue
from fedmpi.config.schema import Data, find_name, resolve, to_plain
from fedmpi.data.samples import Dataset
from fedmpi.data.sources import BUILT_IN, load_source
from fedmpi.errors import BadInput
from fedmpi.registry import refuse_own_code
from fedmpi.settings import Ge, list_setting_names


@dataclass(frozen=True)
class Line:
    """A third party's data set, with a setting."""
    samples: Annotated[int, Ge(1), "number of samples"] = 3

    def load(self, root):
        return Dataset(np.arange(self.samples)[:, None] + .5, np.arange(self.samples) % 2, [], [])


@dataclass(frozen=True)
class WithPath(Line):
    path: str = "a.csv"


LINE = f"{__name__}:Line"


def test_a_built_in_data_set_has_its_settings_in_the_configuration():
    config = resolve({"data": {"name": "csv", "label": "y", "features": ["a"], "clients": 3}})
    assert config.data.source == BUILT_IN["csv"]("y", features=("a",))
    plain = to_plain(config)
    assert plain["data"]["label"] == "y" and plain["data"]["features"] == ["a"] and plain["data"]["clients"] == 3
    assert resolve(plain) == config and "source" not in plain["data"]
    assert resolve({}).data.source is None and resolve({"data": {"name": "arrays"}}).data.source is None


def test_ones_own_data_set_may_have_settings():
    data = resolve({"data": {"name": LINE, "samples": 5}}).data
    assert len(load_source(LINE, None, None, data.source).y_train) == 5
    with pytest.raises(BadInput, match="data.samples = 0: should be greater than or equal to 1"):
        resolve({"data": {"name": LINE, "samples": 0}})
    assert len(load_source(LINE, None, None, resolve({"data": {"name": LINE}}).data.source).y_train) == 3


@dataclass(frozen=True)
class Fractional(Line):
    """A third party's data set, with a setting that all data sets have."""
    fraction: float = .7


FRACTIONAL = f"{__name__}:Fractional"


@pytest.mark.parametrize("settings", [{}, {"samples": 5}, {"fraction": .5}])
def test_a_setting_of_all_data_sets_is_none_of_ones_own(settings, tmp_path):
    """It would keep its default, whatever a configuration says. Without settings the class is imported when it is
    used."""
    said = (f"^data.name: {FRACTIONAL} declares a setting fraction, which in a configuration is one of all data sets; "
            "call it otherwise$")
    with pytest.raises(BadInput, match=said):
        data = resolve({"data": {"name": FRACTIONAL, **settings}}).data
        assert "samples" not in settings
        load_source(FRACTIONAL, tmp_path, None, data.source)
    with pytest.raises(BadInput, match="fraction, which in a configuration is one of all data sets"):
        catalogue.explain("datasets", FRACTIONAL)


def test_a_data_set_may_have_a_setting_called_path():
    config = resolve({"data": {"name": f"{__name__}:WithPath", "path": "b.csv"}})
    assert config.data.source == WithPath(path="b.csv") and to_plain(config)["data"]["path"] == "b.csv"


def test_ones_own_code_is_imported_only_for_settings_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "loud_data.py").write_text("raise SystemError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve({"data": {"name": "loud_data:Set", "clients": 3}}).data.source is None
    assert "loud_data" not in sys.modules
    with refuse_own_code(), pytest.raises(BadInput, match="is not built in"):
        resolve({"data": {"name": LINE, "samples": 5}})


@pytest.mark.parametrize("data, said", [
    ({"labl": "y"}, "data.labl is not a setting of data; its settings are name, file, root"),
    ({"name": "csv", "label": "y", "clientss": 3}, "data.clientss is not a setting of CSV"),
    ({"name": "csv", "label": "y", "nonsense": 3}, "data.nonsense is not a setting of data; its settings are name,"),
    ({"name": "image_folder", "size": [3]}, "data.size.1 is missing and has no default"),
    ({"name": "image_folder", "mode": "CMYK"}, "data.mode = 'CMYK': should be 'RGB' or 'L'"),
    ({"name": "digits", "label": "y"}, "data.label is not a setting of data"),
    ({"name": "nothing", "label": "y"}, "dataset 'nothing' is not known; there are ag_news, arrays"),
    ({"name": 7}, "data.name = 7: should be a valid string")])
def test_what_no_data_set_knows_is_refused(data, said):
    with pytest.raises(BadInput) as error:
        resolve({"data": data})
    assert said in str(error.value)


def test_no_data_set_gives_a_setting_of_all_data_sets_another_meaning():
    for source in BUILT_IN.values():
        own = list_setting_names(source) if hasattr(source, "__dataclass_fields__") else []
        assert not {*own, "source"} & set(list_setting_names(Data)), source


def test_partitions_are_found_by_their_names_wherever_they_are_defined():
    for name in ("natural", "iid"):
        assert find_name(resolve({"data": {"partition": name}}).data.partition) == name
    own = resolve({"data": {"partition": {"name": "indices", "file": "a.json"}}})
    assert to_plain(own)["data"]["partition"] == {"name": "indices", "file": "a.json"}
