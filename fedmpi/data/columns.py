"""Make a pool of samples out of the columns of tables: what CSV, Parquet and Hugging Face's folders have in common.

Legend of shapes: n rows of a block or of all, d features."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedmpi.data import pictures, tokens
from fedmpi.data.feature_scale import refuse_merged, remove_large_means
from fedmpi.data.named_values import Names, list_texts, refuse_no_classes
from fedmpi.data.part_names import refuse_forgotten_parts
from fedmpi.data.samples import Dataset
from fedmpi.data.table_blocks import (
    TableBlock,
    describe_row,
    locate_picture,
    refuse_row_numbers,
    require_numbers,
    require_targets,
    require_texts,
)
from fedmpi.errors import BadInput
from fedmpi.memory_check import refuse_larger
from fedmpi.paths import expand_user
from fedmpi.settings import Ge
from fedmpi.text import shorten_list

# Settings that are of use beside another one only.
USED_BESIDE = {"text": ("vocabulary", "length", "tokenizer"), "image": ("size", "mode"),
               "part": ("train_parts", "test_parts")}


@dataclass(frozen=True)
class Columns:
    """The settings that say what the columns of a table hold."""
    label: Annotated[str, "column of the class: whole numbers or texts, which are numbered in their order; with "
                     "data.task=regression of the number to predict"]
    features: Annotated[tuple[str, ...], "columns of numbers; default: all that no other setting names"] = ()
    categories: Annotated[tuple[str, ...],
                          "columns of texts; each of their values becomes a feature that is 0 or 1"] = ()
    standardise: Annotated[bool, "bring every feature to mean 0 and deviation 1 over the clients' training "
                           "samples"] = False
    image_shape: Annotated[tuple[int, ...], "height, width and, if there are several, channels: the features are "
                           "pixels from 0 to 255"] = ()
    text: Annotated[str | None, "column of texts, whose words become token ids, in place of features"] = None
    vocabulary: Annotated[int, Ge(3), "ids: 0 for padding, 1 for unknown words, and the most frequent words of the "
                          "training part"] = 10_000
    length: Annotated[int, Ge(1), "token ids of a text; longer ones are cut, shorter ones padded"] = 200
    tokenizer: Annotated[str | None, "a tokenizer.json of the package tokenizers, in place of words"] = None
    image: Annotated[str | None, "column of pictures, in place of features: bytes of PNG or JPEG files, or paths from "
                     "the folder of the table"] = None
    size: Annotated[tuple[int, int] | None, "height and width to which all pictures are brought"] = None
    mode: Annotated[Literal["RGB", "L"], "L: grey pictures of one channel"] = "RGB"
    client: Annotated[str | None, "column of the client who holds the row, for data.partition=natural"] = None
    part: Annotated[str | None, "column that says whether a row is for training"] = None
    train_parts: Annotated[tuple[str, ...], "names of the parts for training"] = ("train", "validation")
    test_parts: Annotated[tuple[str, ...], "names of the parts for tests; others are left out"] = ("test",)

    # It is raised when the same files and settings give another pool, which is another federation.
    reader_format = 7
    # Whether parts have names also without a column of parts.
    names_parts = False

    def __post_init__(self) -> None:
        if empty := [field.name for field in fields(Columns) if getattr(self, field.name) == ""]:
            raise ValueError(f"{empty[0]} is empty; give a name, or leave it out")
        instead = [name for name in ("text", "image") if getattr(self, name)]
        asked = [name for name in ("features", "categories", "standardise", "image_shape") if getattr(self, name)]
        if len(instead) == 2 or instead and asked:
            raise ValueError(f"{' and '.join([*instead, *asked])}: samples are texts, pictures or features; leave all "
                             "but one out")
        pictures.refuse_no_pixels(self.size)
        if self.image_shape and self.standardise:
            raise ValueError("image_shape and standardise: pixels stay as they are; leave one of them out")
        if self.image_shape and (len(self.image_shape) not in (2, 3) or min(self.image_shape) < 1):
            raise ValueError(f"image_shape = {list(self.image_shape)}: give height and width, and channels if there "
                             "are several")
        named = [*self.features, *self.categories, *self.single_columns()]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"{self.find_setting(twice[0])} = {twice[0]}: two settings name this column; a column has "
                             "one purpose")
        for column, names in USED_BESIDE.items():
            idle = [name for name in names if getattr(self, name) != getattr(type(self), name)]
            if idle and not getattr(self, column) and not (column == "part" and self.names_parts):
                raise ValueError(f"{idle[0]}: it is of use beside data.{column} only; set data.{column}, or leave "
                                 f"{idle[0]} out")
        if self.tokenizer and self.vocabulary != type(self).vocabulary:
            raise ValueError("vocabulary: the ids are those of data.tokenizer; leave one of them out")
        if both := [name for name in self.train_parts if name in self.test_parts]:
            others = [name for name in self.train_parts if name not in both]
            raise ValueError(f"test_parts = {list(self.test_parts)}: data.train_parts = {list(self.train_parts)} names "
                             f"{both[0]}, too, and nothing may be for training and for tests; "
                             + (f"set data.train_parts: [{', '.join(others)}]" if others else "name other parts"))

    def single_columns(self) -> list[str]:
        """List the columns that settings of one column name."""
        return [name for name in (self.label, self.text, self.image, self.client, self.part) if name]

    def text_columns(self) -> list[str]:
        """List the columns whose values count as texts, whatever they look like."""
        return [*self.single_columns(), *self.categories]

    def choose_columns(self, there: list[str], path: Path) -> list[str]:
        """Return the columns to read. Raises BadInput if one is missing, or occurs twice."""
        if twice := sorted({name for name in there if there.count(name) > 1}):
            raise BadInput(f"{path}: has two columns {twice[0]!r}; rename one")
        named = [*self.features, *self.categories, *self.single_columns()]
        if missing := [name for name in named if name not in there]:
            raise BadInput(f"{path}: has no column {missing[0]!r}, which data.{self.find_setting(missing[0])} names; "
                           f"its columns are {shorten_list(there)}")
        # Columns that no setting names are features, unless the samples are something else.
        if self.features or self.text or self.image:
            return named
        others = [name for name in there if name not in named]
        refuse_row_numbers(others, path)
        return [*named, *others]

    def find_setting(self, column: str) -> str:
        """Return the setting that names a column."""
        single = {getattr(self, name): name for name in ("label", "text", "image", "client", "part")}
        return single.get(column) or ("features" if column in self.features else "categories")

    def refuse_absent_parts(self, there: Collection[str], where: str) -> None:
        """Raise BadInput, whose message begins with `where`, if a setting names a part that is not there; those that
        it names by default may be absent."""
        for setting in ("train_parts", "test_parts"):
            wanted = [name for name in getattr(self, setting) if name not in getattr(type(self), setting)]
            if absent := [name for name in wanted if name not in there]:
                raise BadInput(f"{where} has the parts {shorten_list(sorted(there))}, and data.{setting} names "
                               f"{absent[0]!r}, which is none of them; correct it")

    def list_files(self, *files: str | None) -> list[Path]:
        """List files and folders as paths, with the tokenizer's."""
        return [expand_user(name, "data") for name in (*files, self.tokenizer) if name]


class PartRows:
    """The rows of the training or of the test part, block by block."""

    def __init__(self) -> None:
        self.features: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []
        self.texts: list[str] = []
        self.codes: dict[str, list[np.ndarray]] = {}
        self.rows = 0

    def join(self, name: str) -> np.ndarray:
        """Return the numbers of a column of names, (n,)."""
        return np.concatenate(self.codes[name]) if self.codes.get(name) else np.empty(0, np.int64)


class Gatherer:
    """Gathers blocks of rows and makes a pool of them.

    Args:
        settings: what the columns hold.
        task: what the column of labels holds, see `data.task`.
        class_names: the names of the classes in their order, if the file gives them."""

    def __init__(self, settings: Columns, task: str, class_names: list[str] | None = None) -> None:
        self.settings, self.parts = settings, {"train": PartRows(), "test": PartRows()}
        self.names = {name: Names() for name in filter(None, [settings.client, *settings.categories])}
        self.targets = task == "regression"
        if not self.targets:
            self.names[settings.label] = Names(class_names)
        self.feature_names: list[str] = []
        # The columns of features, in the order of the first file, and how many numbers each has in a row.
        self.layout: list[str] | None = None
        self.widths: dict[str, int] = {}
        self.bytes = 0
        # What the column of parts says in any row.
        self.parts_there: set[str] = set()

    def add(self, block: TableBlock, part: str) -> None:
        """Add rows to a part, "train" or "test"; a column of parts decides instead. Raises BadInput."""
        if not len(block.columns[self.settings.label]):
            return
        if self.settings.part is None:
            return self.add_rows(block, self.parts[part])
        said = list_texts(require_texts(block, self.settings.part))
        self.parts_there.update(said)
        known = {"train": self.settings.train_parts, "test": self.settings.test_parts}
        for name, names in known.items():
            # Rows that are left out may lack what the others need, such as a class.
            if (wanted := np.array([text in names for text in said])).any():
                self.add_rows(block.choose_rows(wanted), self.parts[name])

    def add_rows(self, block: TableBlock, into: PartRows) -> None:
        """Add the rows of a block to a part. Raises BadInput for missing values and what is not a number."""
        settings, rows = self.settings, len(block.columns[self.settings.label])
        for name, names in self.names.items():
            into.codes.setdefault(name, []).append(names.encode(require_texts(block, name),
                                                                   f"{block.path}: column {name!r}"))
        into.rows += rows
        if self.targets:
            with np.errstate(over="ignore"):
                into.targets.append(require_targets(block, settings.label).astype(np.float32))
        if settings.text:
            into.texts += map(str, require_texts(block, settings.text, blank=False))
            self.bytes += sum(map(len, into.texts[-rows:]))
        elif image := settings.image:
            found = [(describe_row(block, i, image), locate_picture(block, block.columns[image][i]))
                     for i in range(rows)]
            into.features.append(pictures.decode_pictures(found, settings.size, settings.mode, into.features[:1]))
        else:
            columns = [*settings.features] or [name for name in block.columns if name not in settings.text_columns()]
            self.layout = self.layout or columns
            if set(self.layout) != set(columns):
                raise BadInput(f"{block.path}: its columns of features are {shorten_list(columns)}, those of the file "
                               f"before it {shorten_list(self.layout)}; they must be alike: name some by data.features")
            # The columns of a second file may stand in another order.
            numbers = [require_numbers(block, name) for name in self.layout]
            for name, values in zip(self.layout, numbers, strict=True):
                if (width := self.widths.setdefault(name, values.shape[1])) != values.shape[1]:
                    raise BadInput(f"{describe_row(block, 0, name)} has a list of {values.shape[1]} numbers, the rows "
                                   f"before it lists of {width}; all rows need as many numbers")
            self.feature_names = [f"{name}[{k}]" if values.shape[1] > 1 else name
                                  for name, values in zip(self.layout, numbers, strict=True)
                                  for k in range(values.shape[1])]
            made = np.concatenate([np.empty((rows, 0)), *numbers], 1)
            if not settings.standardise:
                refuse_merged(made, self.feature_names, f"{block.path}")
                # What is beyond float32 is refused later.
                with np.errstate(over="ignore"):
                    made = made.astype(np.float32, copy=False)
            into.features.append(made)
        # Twice, because they will be joined.
        self.bytes += 2 * into.features[-1].nbytes if into.features else 0
        refuse_larger(self.bytes, f"{block.path}: its samples, read up to row {block.first + 1} and joined,",
                      "use fewer rows or columns")

    def make_pool(self, where: str) -> Dataset:
        """Return the pool. Raises BadInput if it lacks training rows or a part, or if its classes are none."""
        settings, (train, test) = self.settings, self.parts.values()
        if settings.part and self.parts_there:
            named = f"{where}: column {settings.part!r}"
            settings.refuse_absent_parts(self.parts_there, named)
            refuse_forgotten_parts(self.parts_there, settings.train_parts, settings.test_parts, named)
        if not train.rows:
            parts = f" with {settings.part} in {list(settings.train_parts)}" if settings.part else ""
            raise BadInput(f"{where}: has no rows for training{parts}; give a file with rows below the header")
        for column, names in self.names.items():
            names.refuse_alike(f"{where}: column {column!r}")
        about: dict[str, object] = {}
        if self.targets:
            y = [np.concatenate([np.empty(0, np.float32), *part.targets]) for part in (train, test)]
        else:
            classes, y = self.number(settings.label)
            about["class_names"] = classes
            refuse_no_classes(classes, len(y[0]) + len(y[1]), f"{where}: data.label = {settings.label}",
                              self.names[settings.label].given)
        clients: list[np.ndarray | None] = [None, None]
        if settings.client:
            about["client_names"], clients = self.number(settings.client)
        if settings.text:
            x, about["tokenizer"], about["padding_id"] = tokens.encode_parts([train.texts, test.texts], settings)
        else:
            x = [self.join_features(part, where) for part in (train, test)]
            if settings.standardise:
                x = remove_large_means(*x)
            if settings.image_shape:
                x = [pictures.shape_pixels(values, settings.image_shape, where) for values in x]
            elif not settings.image:
                about["feature_names"] = self.name_features()
        return Dataset(x[0], y[0], x[1], y[1], clients[0], clients[1], about)

    def number(self, column: str) -> tuple[list[str], list[np.ndarray]]:
        """Return the names in a column, sorted, and the number of each row's name in both parts."""
        names, place = self.names[column].sort()
        return names, [place[part.join(column)] for part in self.parts.values()]

    def join_features(self, part: PartRows, where: str) -> np.ndarray:
        """Return the features of a part, categories behind the columns of numbers: float32 (n, d), float64 if they are
        to be standardised, or uint8 pictures. Raises BadInput if the categories have too many values for memory."""
        shown = self.parts["train"].features[0]
        x = np.concatenate(part.features) if part.features else np.empty((0, *shown.shape[1:]), shown.dtype)
        part.features = part.features[:1]
        if not self.settings.categories:
            return x
        places = [self.names[name].sort()[1] for name in self.settings.categories]
        end, values = x.shape[1], sum(map(len, places))
        refuse_larger(x.itemsize * sum(each.rows for each in self.parts.values()) * (end + values),
                      f"{where}: the features that {values} values of data.categories become", "name no columns there "
                      "that have many")
        joined = np.zeros((len(x), end + values), x.dtype)
        joined[:, :end] = x
        for name, place in zip(self.settings.categories, places, strict=True):
            joined[np.arange(len(x)), end + place[part.join(name)]] = 1
            end += len(place)
        return joined

    def name_features(self) -> list[str]:
        """List the names of the features in their order."""
        return self.feature_names + [f"{name}={value}" for name in self.settings.categories
                                     for value in self.names[name].sort()[0]]
