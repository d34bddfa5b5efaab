"""Load the data sets, one pool of samples each, from the disk, or download them once.

A source is a class with a `title`, a one-line docstring and `load(root) -> Dataset`, or `load(root, file) -> Dataset`
if it uses data.file, or `load(root, file, task) -> Dataset` if it also asks what is to be learnt (data.task).
Its function `files(root)`, or `files(root, file)`, may list the files that it reads, so that a change there is noticed.
If the class is a frozen dataclass, its fields are further settings of the section `data`."""
from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedmpi import registry
from fedmpi.config.data_settings import Data
from fedmpi.config.source_settings import refuse_taken_settings
from fedmpi.data.arrow_tables import HuggingFace, Parquet
from fedmpi.data.file_states import describe_file_states
from fedmpi.data.image_folder import ImageFolder
from fedmpi.data.leaf import Femnist, Leaf, Shakespeare
from fedmpi.data.own_sources import list_paths, refuse_few_names, refuse_wrong_about
from fedmpi.data.public_datasets import (
    AgNews,
    Cifar10,
    Cifar100,
    Digits,
    FashionMnist,
    Mnist,
    PathMnist,
    TinyImageNet,
    TissueMnist,
)
from fedmpi.data.samples import Dataset, as_dataset, check_samples, read_npz
from fedmpi.data.tables import Csv
from fedmpi.errors import BadInput
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import describe_definition, is_built_in
from fedmpi.paths import expand_user
from fedmpi.settings import list_setting_names

if TYPE_CHECKING:
    from collections.abc import Callable

# What the functions of a data set are given, in this order.
LOAD_ARGUMENTS = ("root", "file", "task")


class Source(Protocol):
    """A data set; a third party's class has no base class."""
    @property
    def load(self) -> Callable[..., Dataset]: """Return what reads it: load(root), or load(root, file)."""


class Arrays:
    """Your own arrays: any .npz with x_train, y_train[, x_test, y_test], named by data.file."""
    title = "arrays"
    # Settings that show how a configuration names it.
    example = {"file": "mine.npz"}

    def load(self, root: Path, file: str | None = None, task: str = "classification") -> Dataset:
        """Read the file; `root` is not used. Raises BadInput if no file is given or it does not hold a pool."""
        if file is None:
            raise BadInput("data.file is missing: data.name = arrays needs the path of an .npz file")
        return check_samples(read_npz(path := expand_user(file, "data.file")), f"data.file = {path}", task)


BUILT_IN = {"digits": Digits, "mnist": Mnist, "fashion_mnist": FashionMnist, "cifar10": Cifar10,
            "cifar100": Cifar100, "tiny_imagenet": TinyImageNet, "ag_news": AgNews, "pathmnist": PathMnist,
            "tissuemnist": TissueMnist, "arrays": Arrays, "csv": Csv, "parquet": Parquet, "huggingface": HuggingFace,
            "image_folder": ImageFolder, "femnist": Femnist, "shakespeare": Shakespeare, "leaf": Leaf}


def load_source(name: str, root: Path, file: str | None = None, source: Source | None = None,
                task: str = "classification") -> Dataset:
    """Load the data set of that name, which may be a third party's. Raises BadInput if it cannot be loaded.

    Args:
        source: the data set with its settings; None: with its defaults.
        task: what labels are, see `data.task`; `load` is told it as its third argument, if that is for it."""
    source, where = make_source(name, file, source), f"data.name = {name}"
    with blame_own_code(where, always=not is_built_in(type(source))):
        given = (root, file, task) if accepts(source.load, 3) else (root, file) if accepts(source.load, 2) else (root,)
        loaded = source.load(*given)
        place = f"{where}: {describe_definition(type(source).load)}load()"
        pool = as_dataset(loaded, place)
        refuse_wrong_about(pool.about, place)
        pool = check_samples(pool, where, task)
        refuse_few_names(pool, place)
        return pool


def make_source(name: str, file: str | None, source: Source | None = None) -> Source:
    """Return `source`, or without it the data set with its defaults. Raises BadInput if none has this name, if it does
    not use the given file, or if it declares a setting that all data sets have."""
    cls = registry.find_class_of_setting("datasets", name, "data.name")
    # A configuration must not be able to call any function that it names.
    if not (isinstance(cls, type) and hasattr(cls, "load")):
        raise BadInput(f"data.name = {name}: is not a class with a function `load`, as data sets must be")
    refuse_taken_settings(cls, "data.name", list_setting_names(Data))
    remedy = "repair it; it is made without arguments, and its settings are the fields of a frozen dataclass"
    place = describe_definition(vars(cls).get("__init__"))
    with blame_own_code(f"data.name = {name}", remedy, not is_built_in(cls), place):
        made: Source = source or cls()
        if file is not None and not accepts(made.load, 2):
            raise BadInput(f"data.file = {file}: {name} has no use for it; leave it out, or set data.name = arrays")
    return made


def accepts(function: Callable[..., object], arguments: int) -> bool:
    """Say whether the function `load` or `files` of a data set accepts so many of root, file and task: by parameters
    of these names, or by others that must be given."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*range(arguments)).arguments
    except TypeError:
        return False
    # One with a default and another name, as `download=True`, is no place for them.
    return all(name == wanted or signature.parameters[name].default is inspect.Parameter.empty
               for name, wanted in [*zip(bound, LOAD_ARGUMENTS, strict=False)][1:])


def make_source_key(name: str, root: Path, file: str | None = None, source: Source | None = None) -> str:
    """Return a text that changes with the source: its name and the state of each file that it reads."""
    return " ".join([name, *describe_file_states(list_data_files(name, root, file, source))])


def list_data_files(name: str, root: Path, file: str | None = None, source: Source | None = None) -> list[Path]:
    """List the files that a data set reads, as far as it names them. Raises BadInput if it cannot."""
    npz = expand_user(file, "data.file") if file else root / f"{name}.npz"
    source = make_source(name, file, source)
    with blame_own_code(f"data.name = {name}", always=not is_built_in(type(source))):
        list_files = getattr(source, "files", None)
        if list_files and accepts(list_files, 2):
            found = list_files(root, file)
        elif npz.exists() or list_files is None:
            return [npz]
        else:
            found = list_files(root)
        return list_paths(found, f"data.name = {name}: {describe_definition(list_files)}")
