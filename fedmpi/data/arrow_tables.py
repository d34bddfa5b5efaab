"""Data sets in Parquet files, and in the folders of Hugging Face's package datasets."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import numpy as np

from fedmpi.data.columns import Columns, Gatherer
from fedmpi.data.hub_folders import call_by_part_words, sort_files_by_part
from fedmpi.data.samples import Dataset
from fedmpi.data.table_blocks import TABLE_BLOCK_ROWS, TableBlock
from fedmpi.data.tables import list_table_files, list_table_pictures, read_tables, refuse_unreadable, require_file
from fedmpi.errors import BadInput
from fedmpi.extras import require_extra
from fedmpi.paths import expand_user
from fedmpi.storage.seal import open_regular
from fedmpi.text import shorten_list

if TYPE_CHECKING:
    import pyarrow

# Arrow's names of types of texts.
TEXT_TYPES = ("string", "large_string", "string_view")


@dataclass(frozen=True)
class ArrowColumns(Columns):
    """The settings of the columns of files of Arrow's kind."""

    def read_batches(self, path: Path, schema: pyarrow.Schema,
                     batches: Callable[[list[str]], Iterable[pyarrow.RecordBatch]]) -> Iterator[TableBlock]:
        """Yield the rows of a file of Arrow's kind. Raises BadInput.

        Args:
            schema: the columns of the file and their types.
            batches: is given the names of the wanted columns and returns batches of rows."""
        wanted, names, first = self.choose_columns(schema.names, path), read_class_names(schema), 0
        for batch in batches(wanted):
            # Places outside of the file would end the process.
            batch.validate(full=True)
            columns = {}
            for name in wanted:
                column = batch.column(batch.schema.get_field_index(name))
                columns[name] = convert_column(TableBlock(path, first, {}), name, column)
                if name in names:
                    columns[name] = name_values(columns[name], names[name])
            yield TableBlock(path, first, columns)
            first += batch.num_rows

    def read_paths(self, path: Path) -> Iterator[TableBlock]:
        """Yield the rows of a file whose column of pictures holds texts, their paths; of other files none, because the
        bytes of pictures are part of the file. Raises BadInput."""
        pyarrow, schema = import_pyarrow(), read_arrow_schema(path)
        kind = schema.field(self.image).type if self.image in schema.names else None
        while isinstance(kind, pyarrow.BaseExtensionType | pyarrow.DictionaryType):
            kind = kind.value_type if isinstance(kind, pyarrow.DictionaryType) else kind.storage_type
        if str(kind) in TEXT_TYPES:
            yield from read_arrow(self, path)


@dataclass(frozen=True)
class Parquet(ArrowColumns):
    """A Parquet file (data.file): features, texts or pictures.

    data.label names the column of the class; the settings are those of `csv`. A column of lists of numbers, all of one
    length, is as many features. It needs pyarrow."""
    title = "Parquet"
    example = {"file": "mine.parquet", "label": "class"}
    test_file: Annotated[str | None, "a second file, with the test part"] = None

    def load(self, root: Path, file: str | None = None, task: str = "classification") -> Dataset:
        """Read the file, and that of the test part; `root` is not used. Raises BadInput."""
        path = require_file(file, "parquet")
        refuse_lost_names(self, [path] + [expand_user(name, "data.test_file") for name in [self.test_file] if name])
        return read_tables(self, path, self.test_file, self.read, task, find_class_names(path).get(self.label))

    def files(self, root: Path, file: str | None) -> list[Path]:
        """List the files that `load` reads."""
        return list_table_files(self, self.read_paths, file, self.test_file)

    def read(self, path: Path) -> Iterator[TableBlock]:
        """Yield the rows of a file. Raises BadInput if it is not a Parquet file with the wanted columns."""
        yield from read_parquet(self, path)


@dataclass(frozen=True)
class HuggingFace(ArrowColumns):
    """A folder of Hugging Face's package datasets (data.file): as save_to_disk writes it, or with Parquet files.

    Parts are named by data.train_parts and data.test_parts; others are left out, and a line says so. The name of a
    Parquet file gives its part (NAME-00000-of-00001.parquet or NAME.parquet), or a folder like `train` around it; all
    files are for training if none gives a part. Of a data set with several configurations, data.file is the folder of
    one. Columns of classes keep their names. The settings are those of `csv`. It needs pyarrow, and runs no code of
    the data set."""
    title = "Hugging Face folder"
    names_parts = True
    example = {"file": "mine", "label": "label"}

    def load(self, root: Path, file: str | None = None, task: str = "classification") -> Dataset:
        """Read the folder; `root` is not used. Raises BadInput."""
        folder = require_file(file, "huggingface")
        parts, gatherer = self.find_parts(folder), None
        chosen = {"train": self.train_parts, "test": self.test_parts}
        if not any(name in parts for name in self.train_parts):
            raise BadInput(f"{folder}: has the parts {', '.join(parts) or 'none'}, and data.train_parts = "
                           f"{list(self.train_parts)}; name those for training")
        if not self.part:
            self.refuse_absent_parts(parts, f"{folder}:")
        if others := [name for name in parts if name not in (*self.train_parts, *self.test_parts)]:
            print(f"{folder}: left out are the parts {shorten_list(others)}, which neither data.train_parts nor "
                  "data.test_parts names", file=sys.stderr, flush=True)
        paths = {part: [path for name in names for path in parts.get(name, [])] for part, names in chosen.items()}
        refuse_lost_names(self, [path for of_part in paths.values() for path in of_part])
        for part, of_part in paths.items():
            for path in of_part:
                gatherer = gatherer or Gatherer(self, task, find_class_names(path).get(self.label))
                for block in read_arrow(self, path):
                    gatherer.add(block, part)
        assert gatherer is not None
        return gatherer.make_pool(f"{folder}")

    def files(self, root: Path, file: str | None) -> list[Path]:
        """List the files that `load` reads, those of all parts."""
        parts = self.find_parts(require_file(file, "huggingface"))
        tables = [path for paths in parts.values() for path in paths]
        return tables + self.list_files() + list_table_pictures(self, self.read_paths, tables)

    def find_parts(self, folder: Path) -> dict[str, list[Path]]:
        """Return the files of each part. Raises BadInput if the folder is none of Hugging Face's, or holds several
        configurations of a data set."""
        chosen = (*self.train_parts, *self.test_parts)
        with refuse_unreadable(folder, "a folder that save_to_disk wrote, or that holds Parquet files"):
            if (folder / "dataset_dict.json").exists():
                names = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
                called = call_by_part_words(names, chosen)
                found: dict[str, list[Path]] = {}
                for name in names:
                    found.setdefault(called[name], []).extend(list_arrow_files(folder / name))
                return found
            if (folder / "state.json").exists():
                return {"train": list_arrow_files(folder)}
            files = sorted(folder.rglob("*.parquet"))
        if not files:
            raise BadInput(f"data.file = {folder}: holds no dataset_dict.json, no state.json and no Parquet file; give "
                           "a folder that save_to_disk of the package datasets wrote, or one of Parquet files")
        return sort_files_by_part(folder, files, chosen)


def read_arrow(settings: ArrowColumns, path: Path) -> Iterator[TableBlock]:
    """Yield the rows of a Parquet file, or of an Arrow file as save_to_disk writes it. Raises BadInput."""
    if path.suffix != ".arrow":
        yield from read_parquet(settings, path)
        return
    pyarrow = import_pyarrow()
    with refuse_unreadable(path, "an Arrow file", pyarrow.ArrowException), pyarrow.memory_map(str(path)) as file:
        reader = pyarrow.ipc.open_stream(file)
        yield from settings.read_batches(path, reader.schema, lambda wanted: reader)


def read_parquet(settings: ArrowColumns, path: Path) -> Iterator[TableBlock]:
    """Yield the rows of a Parquet file. Raises BadInput."""
    pyarrow = import_pyarrow()
    with (refuse_unreadable(path, "a Parquet file", pyarrow.ArrowException), open_regular(path),
          pyarrow.parquet.ParquetFile(path) as file):
        yield from settings.read_batches(
            path, file.schema_arrow, lambda wanted: file.iter_batches(TABLE_BLOCK_ROWS, columns=wanted))


def import_pyarrow() -> ModuleType:
    """Return pyarrow. Raises BadInput if it is not installed."""
    with require_extra("parquet", "Parquet files and Hugging Face's folders need pyarrow"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    return pyarrow


def list_arrow_files(folder: Path) -> list[Path]:
    """List the files with the rows of one part, as save_to_disk writes them."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return [folder / Path(entry["filename"]).name for entry in state["_data_files"]]


def find_class_names(path: Path) -> dict[str, list[str]]:
    """Return the names of the classes of each column of a file for which it has some. Raises BadInput."""
    return read_class_names(read_arrow_schema(path))


def read_arrow_schema(path: Path) -> pyarrow.Schema:
    """Return the columns of a Parquet or Arrow file and their types. Raises BadInput."""
    pyarrow = import_pyarrow()
    with refuse_unreadable(path, "a Parquet or Arrow file", pyarrow.ArrowException):
        open_regular(path).close()
        if path.suffix != ".arrow":
            return pyarrow.parquet.read_schema(path)
        with pyarrow.memory_map(str(path)) as file:
            return pyarrow.ipc.open_stream(file).schema


def read_class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """Return the names of the classes that Hugging Face stores with the columns of a file."""
    kept = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = (kept.get("info") or {}).get("features") or {}
    return {name: list(map(str, feature["names"])) for name, feature in features.items()
            if isinstance(feature, dict) and isinstance(feature.get("names"), list)}


def refuse_lost_names(settings: ArrowColumns, paths: Iterable[Path]) -> None:
    """Raise BadInput if one file has names for the numbers of a column, and another has not, as after pandas has saved
    it again: the numbers would count as further names."""
    pyarrow, seen = import_pyarrow(), dict[str, dict[bool, Path]]()
    for path in paths:
        schema = read_arrow_schema(path)
        named = read_class_names(schema)
        for column in settings.text_columns():
            if column in schema.names and pyarrow.types.is_primitive(schema.field(column).type):
                files = seen.setdefault(column, {})
                files.setdefault(column in named, path)
                if len(files) == 2:
                    raise BadInput(f"{files[False]}: has no names for the numbers in column {column!r}, and "
                                   f"{files[True]} has some; write both files with the package datasets, or texts in "
                                   "place of the numbers")


def name_values(values: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the names of numbers (n,), None for numbers without one: Hugging Face stores -1 for unknown classes.

    Other values stay as they are."""
    if values.dtype.kind not in "iuO":
        return values
    named = np.empty(len(values), object)
    for i, value in enumerate(values.tolist()):
        named[i] = value if not isinstance(value, int) else names[value] if 0 <= value < len(names) else None
    return named


def convert_column(block: TableBlock, name: str, column: pyarrow.Array) -> np.ndarray:
    """Return a column of Arrow as numbers (n,) or (n, k), or as objects (n,).

    Raises BadInput if it holds lists of several lengths."""
    pyarrow = import_pyarrow()
    types, rows = pyarrow.types, len(column)
    while isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    depth = column
    while types.is_list(depth.type) or types.is_large_list(depth.type) or types.is_fixed_size_list(depth.type):
        lengths = np.array(pyarrow.compute.list_value_length(depth).fill_null(-1))
        if len(lengths) and (lengths != lengths[0]).any() or (lengths < 0).any():
            row = int(np.argmax((lengths != lengths[0]) | (lengths < 0))) * rows // max(1, len(lengths))
            raise BadInput(f"{block.path}: row {block.first + row + 1}, column {name!r} has a list of another length "
                           "than the row before it, or none; all rows need as many numbers")
        depth = depth.flatten()
    plain = types.is_integer(depth.type) or types.is_floating(depth.type) or types.is_boolean(depth.type)
    if plain and not depth.null_count:
        flat = depth.to_numpy(zero_copy_only=False)
        return flat if depth is column or not rows else flat.reshape(rows, -1)
    made = np.empty(rows, object)
    # As a whole, lists would be taken for rows of numbers.
    for row, value in enumerate(column.to_pylist()):
        made[row] = value
    return made
