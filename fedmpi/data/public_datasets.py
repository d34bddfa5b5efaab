"""Public data sets: a file ROOT/<name>.npz, or what its publisher offers, found under data.root or downloaded once."""
from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import ClassVar
from zipfile import is_zipfile

import numpy as np

from fedmpi.data import ag_news, tiny_imagenet
from fedmpi.data.downloads import finds_torchvision_files, list_unpacked, prepare_download
from fedmpi.data.file_states import are_filled
from fedmpi.data.samples import Dataset, check_samples, holds_arrays, read_npz
from fedmpi.errors import BadInput
from fedmpi.storage.seal import Flaw, open_regular


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
        return check_samples(read_npz(npz) if self.is_whole(npz) else self.fetch(root), f"data.name = {self.name}")

    def is_whole(self, npz: Path) -> bool:
        """Say whether the .npz file is there, and nobody is downloading it."""
        return npz.exists()

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
            why = str(error) or "a file is damaged"
            if unpacked := list_unpacked(root, self.loader, self.archive):
                raise BadInput(f"data.name = {self.name}: the unpacked files in {unpacked[0].parent} are damaged "
                               f"({' '.join(why.split())}); remove {', '.join(path.name for path in unpacked)} there: "
                               "they are then unpacked again, from archives beside them or from a download") from None
            raise self.make_missing_error(root, f"{root / self.archive}", why) from None
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
        return tiny_imagenet.list_files(root / "tiny-imagenet-200")

    def fetch(self, root: Path) -> Dataset:
        """Read the unpacked folder. Raises BadInput if it is missing or damaged."""
        folder = root / "tiny-imagenet-200"
        if not folder.is_dir():
            raise self.make_missing_error(root, f"the unpacked folder {folder} (train/*/images, "
                                          f"val/val_annotations.txt) of {self.archive_url}")
        return tiny_imagenet.read_folders(folder)


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
        return ag_news.read_csv_files(train, test)


class MedMnist(PublicDataset):
    """A data set that the package medmnist downloads to ROOT/<name>.npz, which read_npz reads."""
    # the name of its class in medmnist
    title: ClassVar[str]
    arrays = f"as the package medmnist writes it, or {PublicDataset.arrays}"

    def files(self, root: Path) -> list[Path]:
        return [root / f"{self.name}.npz"]

    def is_whole(self, npz: Path) -> bool:
        # medmnist writes under this name while it downloads; a file that was cut short lacks the end of a zip archive
        try:
            with open_regular(npz) as file:
                return is_zipfile(file)
        except FileNotFoundError:
            return False
        # whoever reads it says what is wrong with it
        except (OSError, Flaw):
            return True

    def fetch(self, root: Path) -> Dataset:
        """Download the .npz file with the package medmnist, which replaces one that was cut short, and read it. Raises
        BadInput if that fails."""
        (npz,), missing, url = self.files(root), None, ""
        try:
            with prepare_download(root, self.name):
                import medmnist
                url = medmnist.INFO[self.name]["url"]
                getattr(medmnist, self.title)("train", root=str(root), download=True)
        except ImportError:
            missing = self.make_missing_error(root, "install the package that downloads it: pip install "
                                              "'fedmpi[medmnist]'")
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            # The message of medmnist is a page long, so it is not shown; what went wrong is the error before it.
            cause = error if isinstance(error, OSError) else error.__context__
            missing = self.make_missing_error(root, "try again", ": ".join(
                str(said) for said in (url and f"from {url}", cause) if said))
        # of a file that is there one hears what is wrong with it
        if missing and not npz.exists():
            raise missing
        return read_npz(npz)


class PathMnist(MedMnist):
    """107,180 images of colon tissue, 28 x 28 x 3, 9 classes (MedMNIST v2, Yang et al., 2023).

    MedMNIST's validation part counts as training."""
    title, name = "PathMNIST", "pathmnist"


class TissueMnist(MedMnist):
    """236,386 images of kidney cells, 28 x 28 x 1, 8 classes (MedMNIST v2, Yang et al., 2023).

    MedMNIST's validation part counts as training."""
    title, name = "TissueMNIST", "tissuemnist"
