"""Load the data sets, one pool of samples each, from the disk, or download them once.

A source is a class with a `title`, a one-line docstring and `load(root) -> Dataset`, or `load(root, file) -> Dataset`
if it uses data.file, or `load(root, file, task) -> Dataset` if it also asks what is to be learnt (data.task).
Its function `files(root)`, or `files(root, file)`, may list the files that it reads, so that a change there is noticed.
If the class is a frozen dataclass, its fields are further settings of the section `data`."""
from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedmpi import registry
from fedmpi.data import folders, text
from fedmpi.data.arrow_tables import HuggingFace, Parquet
from fedmpi.data.downloads import finds_torchvision_files, prepare_download
from fedmpi.data.file_states import are_filled, describe_file_states
from fedmpi.data.image_folder import ImageFolder
from fedmpi.data.leaf import Femnist, Leaf, Shakespeare
from fedmpi.data.samples import Dataset, as_dataset, check_samples, holds_arrays, read_npz
from fedmpi.data.tables import Csv
from fedmpi.errors import BadInput
from fedmpi.own_code.failures import blame_own_code, describe_definition
from fedmpi.paths import expand_user

if TYPE_CHECKING:
    from collections.abc import Callable


class Source(Protocol):
    """A data set; a third party's class has no base class."""
    @property
    def load(self) -> Callable[..., Dataset]: """Return what reads it: load(root), or load(root, file)."""


class Arrays:
    """Your own arrays: any .npz with x_train, y_train[, x_test, y_test], named by data.file."""
    title = "arrays"
    # Settings that show how a configuration names it.
    example = {"file": "mine.npz"}

    def load(self, root: Path, file: str | None = None) -> Dataset:
        """Read the file; `root` is not used. Raises BadInput if no file is given or it does not hold a pool."""
        if file is None:
            raise BadInput("data.file is missing: data.name = arrays needs the path of an .npz file")
        return check_samples(read_npz(path := expand_user(file, "data.file")), f"data.file = {path}")


class PublicDataset:
    """A public data set: ROOT/<name>.npz if it exists, otherwise what `fetch` finds or downloads."""
    # the name that data.name has for it
    name: ClassVar[str]
    arrays = "arrays x_train, y_train, x_test, y_test"

    def fetch(self, root: Path) -> Dataset:
        """Find or download the data set. Raises BadInput if there is none."""
        raise NotImplementedError

    def load(self, root: Path) -> Dataset:
        """Read the .npz file if it is there, otherwise call `fetch`. Raises BadInput if there is no sound data set."""
        npz = root / f"{self.name}.npz"
        return check_samples(read_npz(npz) if npz.exists() else self.fetch(root), f"data.name = {self.name}")

    def files(self, root: Path) -> list[Path]:
        """List the files that `fetch` reads, so that a change of their sizes or times is noticed."""
        return []

    def is_here(self, root: Path) -> bool:
        """Say whether `load` finds all its files and downloads nothing."""
        npz = root / f"{self.name}.npz"
        return holds_arrays(npz) if npz.exists() else self.needs_no_download(root)

    def needs_no_download(self, root: Path) -> bool:
        """Say whether `fetch` finds all its files."""
        return are_filled(self.files(root))

    def make_missing_error(self, root: Path, instead: str, why: str = "") -> BadInput:
        """Return the error that says which file to put where.

        Args:
            root: the folder of the data sets.
            instead: what else the user may put there or do.
            why: why a download failed, if one was tried."""
        tried = f" nor downloaded ({' '.join(why.split())})" if why else ""
        return BadInput(f"data.name = {self.name}: {'neither' if why else 'not'} found under data.root = {root}{tried};"
                        f" put there {root / self.name}.npz ({self.arrays}) or {instead}")


class Digits(PublicDataset):
    """1,797 handwritten digits, 8 x 8, as 64 features in [0, 1]; inside scikit-learn, no download."""
    title = name = "digits"

    def needs_no_download(self, root: Path) -> bool:
        return True

    def fetch(self, root: Path) -> Dataset:
        """Read the digits from the installed scikit-learn; the test part is empty."""
        # The file is read directly, because importing scikit-learn costs seconds.
        package = importlib.util.find_spec("sklearn")
        places = package.submodule_search_locations or () if package else ()
        files = [Path(place) / "datasets" / "data" / "digits.csv.gz" for place in places]
        file = next((path for path in files if path.exists()), None)
        if file is not None:
            table = np.loadtxt(file, delimiter=",", dtype=np.float32)
            x, y = table[:, :-1], table[:, -1]
        else:
            from sklearn.datasets import load_digits
            x, y = load_digits(return_X_y=True)
        x, y = (x / 16).astype(np.float32), y.astype(np.int64)
        return Dataset(x, y, x[:0], y[:0])


class Torchvision(PublicDataset):
    """A data set that torchvision's class `loader` reads and, when it is not under ROOT, downloads."""
    loader: ClassVar[str]
    # the downloaded file, below ROOT
    archive: ClassVar[str]

    def needs_no_download(self, root: Path) -> bool:
        return finds_torchvision_files(root, self.loader, self.archive)

    def fetch(self, root: Path) -> Dataset:
        """Read both parts with torchvision, which downloads what is missing. Raises BadInput if that fails."""
        import torchvision
        loader = getattr(torchvision.datasets, self.loader)
        try:
            with prepare_download(root, self.name):
                train, test = (loader(root, train=part, download=True) for part in (True, False))
        # A damaged file makes torchvision raise anything, an AssertionError without a text among them.
        except Exception as error:
            raise self.make_missing_error(root, f"{root / self.archive}", str(error) or "a file is damaged") from None
        return Dataset(*(np.asarray(a) for a in (train.data, train.targets, test.data, test.targets)))


class Mnist(Torchvision):
    """70,000 handwritten digits, 28 x 28 x 1, 10 classes."""
    title, name, loader = "MNIST", "mnist", "MNIST"
    archive = "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"


class FashionMnist(Torchvision):
    """70,000 pictures of clothes, 28 x 28 x 1, 10 classes."""
    title, name, loader = "Fashion-MNIST", "fashion_mnist", "FashionMNIST"
    archive = "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"


class Cifar10(Torchvision):
    """60,000 photographs, 32 x 32 x 3, 10 classes."""
    title, name, loader = "CIFAR-10", "cifar10", "CIFAR10"
    archive = "cifar-10-python.tar.gz"


class Cifar100(Torchvision):
    """60,000 photographs, 32 x 32 x 3, 100 classes."""
    title, name, loader = "CIFAR-100", "cifar100", "CIFAR100"
    archive = "cifar-100-python.tar.gz"


class TinyImageNet(PublicDataset):
    """110,000 photographs, 64 x 64 x 3, 200 classes: official training and validation part (Stanford CS231n)."""
    title, name = "Tiny-ImageNet", "tiny_imagenet"
    archive_url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

    def files(self, root: Path) -> list[Path]:
        return folders.list_files(root / "tiny-imagenet-200")

    def fetch(self, root: Path) -> Dataset:
        """Read the unpacked folder. Raises BadInput if it is missing or damaged."""
        folder = root / "tiny-imagenet-200"
        if not folder.is_dir():
            raise self.make_missing_error(root, f"the unpacked folder {folder} (train/*/images, "
                                          f"val/val_annotations.txt) of {self.archive_url}")
        return folders.read_folders(folder)


class AgNews(PublicDataset):
    """127,600 news in 4 classes, as 200 token ids each (Zhang et al., NIPS 2015).

    It reads the two official CSV files. Texts are title and description in basic English tokens: lower case, with
    punctuation split off. Ids count from 1, the most frequent token first, over all texts, training and test; 0 is
    padding and unknown. A text longer than 200 tokens is cut. How many ids there are follows from the files; a
    network's table is as long as its settings say (fasttext: model.vocabulary = 98,635 rows), whatever the data. Data
    with ids beyond the table are refused before anything starts: raise model.vocabulary."""
    title, name = "AG News", "ag_news"
    # fast.ai's copy of the authors' archive
    archive_url = "https://s3.amazonaws.com/fast-ai-nlp/ag_news_csv.tgz"

    def files(self, root: Path) -> list[Path]:
        return [root / "ag_news_csv" / f"{part}.csv" for part in ("train", "test")]

    def fetch(self, root: Path) -> Dataset:
        """Read the two CSV files. Raises BadInput if they are missing or damaged."""
        train, test = self.files(root)
        if not (train.exists() and test.exists()):
            raise self.make_missing_error(root, f"{train} and test.csv (columns class from 1, title, description; no "
                                          f"header) of {self.archive_url}")
        return text.read_csv_files(train, test)


class MedMnist(PublicDataset):
    """A data set that the package medmnist downloads to ROOT/<name>.npz, which read_npz reads."""
    # the name of its class in medmnist
    title: ClassVar[str]
    arrays = f"as the package medmnist writes it, or {PublicDataset.arrays}"

    def files(self, root: Path) -> list[Path]:
        return [root / f"{self.name}.npz"]

    def fetch(self, root: Path) -> Dataset:
        """Download the .npz file with the package medmnist and read it. Raises BadInput if that fails."""
        npz, = self.files(root)
        try:
            with prepare_download(root, self.name):
                import medmnist
                getattr(medmnist, self.title)("train", root=str(root), download=True)
        except ImportError:
            raise self.make_missing_error(root, "install the package that downloads it: pip install 'fedmpi[medmnist]'"
                                          ) from None
        # The message of medmnist is a page long, so it is not shown.
        except (OSError, RuntimeError, ValueError, EOFError):
            raise self.make_missing_error(root, "try again", f"from {medmnist.INFO[self.name]['url']}") from None
        return read_npz(npz)


class PathMnist(MedMnist):
    """107,180 images of colon tissue, 28 x 28 x 3, 9 classes (MedMNIST v2, Yang et al., 2023).

    MedMNIST's validation part counts as training."""
    title, name = "PathMNIST", "pathmnist"


class TissueMnist(MedMnist):
    """236,386 images of kidney cells, 28 x 28 x 1, 8 classes (MedMNIST v2, Yang et al., 2023).

    MedMNIST's validation part counts as training."""
    title, name = "TissueMNIST", "tissuemnist"


BUILT_IN = {"digits": Digits, "mnist": Mnist, "fashion_mnist": FashionMnist, "cifar10": Cifar10,
            "cifar100": Cifar100, "tiny_imagenet": TinyImageNet, "ag_news": AgNews, "pathmnist": PathMnist,
            "tissuemnist": TissueMnist, "arrays": Arrays, "csv": Csv, "parquet": Parquet, "huggingface": HuggingFace,
            "image_folder": ImageFolder, "femnist": Femnist, "shakespeare": Shakespeare, "leaf": Leaf}


def load_source(name: str, root: Path, file: str | None = None, source: Source | None = None,
                task: str = "classification") -> Dataset:
    """Load the data set of that name, which may be a third party's. Raises BadInput if it cannot be loaded.

    Args:
        source: the data set with its settings; None: with its defaults.
        task: what `load` is told as its third argument, if it accepts one: see `data.task`."""
    source, where = make_source(name, file, source), f"data.name = {name}"
    with blame_own_code(where, always=is_third_party(source)):
        given = (root, file, task) if accepts(source.load, 3) else (root, file) if accepts(source.load, 2) else (root,)
        loaded = source.load(*given)
        return check_samples(as_dataset(loaded, f"{where}: {describe_definition(type(source).load)}load()"), where)


def make_source(name: str, file: str | None, source: Source | None = None) -> Source:
    """Return `source`, or without it the data set with its defaults. Raises BadInput if none has this name, or if it
    does not use the given file."""
    try:
        cls = registry.find_class("datasets", name)
    except BadInput as error:
        raise error.reword(f"data.name: {error}") from error.__cause__
    # A configuration must not be able to call any function that it names.
    if not (isinstance(cls, type) and hasattr(cls, "load")):
        raise BadInput(f"data.name = {name}: is no class with a function `load`, as data sets must be")
    with blame_own_code(f"data.name = {name}"):
        made: Source = source or cls()
        if file is not None and not accepts(made.load, 2):
            raise BadInput(f"data.file = {file}: {name} has no use for it; leave it out, or set data.name = arrays")
    return made


def is_third_party(source: Source) -> bool:
    """Say whether a data set does not come with fedmpi."""
    return not type(source).__module__.startswith("fedmpi.")


def accepts(function: Callable[..., object], arguments: int) -> bool:
    """Say whether the function `load` or `files` of a data set accepts so many of root, file and task."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    return True


def make_source_key(name: str, root: Path, file: str | None = None, source: Source | None = None) -> str:
    """Return a text that changes with the source: its name and the state of each file that it reads."""
    return " ".join([name, *describe_file_states(list_data_files(name, root, file, source))])


def list_data_files(name: str, root: Path, file: str | None = None, source: Source | None = None) -> list[Path]:
    """List the files that a data set reads, as far as it names them. Raises BadInput if it cannot."""
    npz = expand_user(file, "data.file") if file else root / f"{name}.npz"
    source = make_source(name, file, source)
    with blame_own_code(f"data.name = {name}", always=is_third_party(source)):
        list_files = getattr(source, "files", None)
        if list_files and accepts(list_files, 2):
            return list(map(Path, list_files(root, file)))
        return [npz] if npz.exists() or list_files is None else list(map(Path, list_files(root)))
