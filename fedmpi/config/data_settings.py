"""The section `data` of a configuration: the data set, and who holds which part of it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from fedmpi.config.source_settings import NamedSettings
from fedmpi.settings import NO_SETTING, Ge, Gt, Le


@dataclass(frozen=True)
class Data:
    """The data set, and who holds which part of it."""
    title = "data"
    renamed = {"share": "fraction"}
    name: Annotated[str, "data set; `fedmpi datasets` lists them"] = "digits"
    file: Annotated[str | None, "file or folder of your own data: `arrays`, `csv`, `image_folder` and others"] = None
    root: Annotated[str, "folder of the data sets"] = "~/.cache/fedmpi/data"
    cache: Annotated[str | None, "folder of prepared federations; default: ROOT/federations"] = None
    fraction: Annotated[float, Gt(0), Le(1), "part of each class's samples that is used, drawn by the seed"] = 1.0
    clients: Annotated[int, Ge(1), "number of clients N"] = 20
    new_clients: Annotated[int, Ge(0), "number of clients, drawn by the seed, that are never trained: they show how "
                           "well the method serves new clients"] = 0
    task: Annotated[Literal["classification", "regression"],
                    "what networks learn: the classes of samples, or numbers (targets)"] = "classification"
    partition: Annotated[NamedSettings,
                         "how samples are divided among clients; `fedmpi partitions` lists the ways"] = "dirichlet"
    split: Annotated[tuple[float, ...],
                     "shares of each client's samples: train, test or train, validation, test; not used if the data "
                     "come split"] = (.75, .25)
    # The data set with its own settings, which stand beside these in the section; None: it has none.
    source: NamedSettings = field(default=None, metadata=NO_SETTING)

    def __post_init__(self) -> None:
        if len(self.split) not in (2, 3) or abs(sum(self.split) - 1) > 1e-9 or min(self.split) < 0 or not self.split[0]:
            raise ValueError(f"split = {list(self.split)}: two or three shares (train, [validation,] test), "
                             "the first positive, that add up to 1")
        if self.new_clients >= self.clients:
            raise ValueError(f"new_clients = {self.new_clients}: with clients = {self.clients} nobody would be "
                             "trained; lower new_clients, or raise clients")

    @property
    def validates(self) -> bool:
        """Say whether clients keep validation samples; data that come split have none."""
        return len(self.split) == 3 and self.split[1] > 0 and not self.comes_split

    @property
    def comes_split(self) -> bool:
        """Say whether the data say which samples are for training and which for tests: `split` is not used."""
        return getattr(self.partition, "comes_split", getattr(self.partition, "official", False))
