"""Data sets in CSV files, and what all readers of tables share."""
from __future__ import annotations

import csv
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedmpi.data.columns import Columns, Gatherer
from fedmpi.data.samples import Dataset
from fedmpi.data.table_blocks import TABLE_BLOCK_ROWS, TableBlock, locate_picture
from fedmpi.errors import BadInput
from fedmpi.extras import require_extra
from fedmpi.paths import expand_user
from fedmpi.storage.seal import Flaw, open_regular

# A separator of any number of blanks.
BLANKS = r"\s+"
# What a shell and YAML make of a tab that is written as in Python: two characters.
WRITTEN_TAB = r"\t"

# The first bytes of compressed files, and the endings by which pandas knows them.
COMPRESSED = {b"\x1f\x8b": ".gz", b"PK\x03\x04": ".zip", b"BZh": ".bz2", b"\xfd7zXZ": ".xz",
              b"\x28\xb5\x2f\xfd": ".zst"}


@dataclass(frozen=True)
class Csv(Columns):
    """A CSV file with a header (data.file), plain or compressed (.gz, .bz2, .xz, .zip, .zst): features or texts.

    data.label names the column of the class. All other columns are features, which must be numbers, unless settings
    name them otherwise; data.text names a column of texts instead. Classes, and clients (data.client), may be texts:
    they are numbered in their order, and the prepared federation keeps the names. Without data.test_file and data.part,
    all rows count as training rows, and data.split divides those of each client. It needs pandas, and for .zst the
    package zstandard."""
    title = "CSV"
    example = {"file": "mine.csv", "label": "class"}
    test_file: Annotated[str | None, "a second file, with the test part"] = None
    separator: Annotated[str, "the character between two columns; \\t for a tab, \\s+ for blanks"] = ","

    def __post_init__(self) -> None:
        super().__post_init__()
        # With others pandas fails, or warns that it takes a slower reader.
        if self.separator not in (BLANKS, WRITTEN_TAB) and (len(self.separator) != 1 or not self.separator.isascii()
                                                            or self.separator in "\r\n"):
            raise ValueError(f"separator = {self.separator!r}: give one character of ASCII, {WRITTEN_TAB} for a tab, "
                             f"or {BLANKS} for blanks")

    def load(self, root: Path, file: str | None = None, task: str = "classification") -> Dataset:
        """Read the file, and that of the test part; `root` is not used. Raises BadInput."""
        return read_tables(self, require_file(file, "csv"), self.test_file, self.read, task)

    def files(self, root: Path, file: str | None) -> list[Path]:
        """List the files that `load` reads."""
        return list_table_files(self, self.read, file, self.test_file)

    def read(self, path: Path) -> Iterator[TableBlock]:
        """Yield the rows of a file. Raises BadInput if it is not a CSV file with the wanted columns."""
        with require_extra("pandas", "data.name = csv needs pandas"):
            import pandas
        separator = "\t" if self.separator == WRITTEN_TAB else self.separator
        errors = (pandas.errors.ParserError, pandas.errors.ParserWarning, csv.Error)
        with refuse_unreadable(path, "a CSV file with a header, in UTF-8", *errors), warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            open_regular(path).close()
            try:
                head = pandas.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, na_filter=False,
                                       encoding="utf-8-sig")
            except pandas.errors.EmptyDataError:
                raise BadInput(f"{path}: is empty; it must be a CSV file with a header") from None
            there = list(map(str, head.iloc[0]))
            wanted = self.choose_columns(there, path)
            # All columns are read, because rows that are too long are noticed only then.
            # Nothing stands for a missing value but nothing itself: "NA" may be a class.
            blocks = pandas.read_csv(
                path, sep=separator, header=0, names=there, index_col=False, na_filter=False,
                dtype=dict.fromkeys(self.text_columns(), str), chunksize=TABLE_BLOCK_ROWS, low_memory=False,
                encoding="utf-8-sig")
            first = 0
            for frame in blocks:
                yield TableBlock(path, first, {name: frame[name].to_numpy() if frame[name].dtype.kind in "biuf"
                                               else frame[name].to_numpy(dtype=object) for name in wanted})
                first += len(frame)


def require_file(file: str | None, name: str) -> Path:
    """Return data.file as a path. Raises BadInput if it is missing."""
    if file is None:
        raise BadInput(f"data.file is missing: data.name = {name} needs the path of your data")
    return expand_user(file, "data.file")


def list_table_files(settings: Columns, read: Callable[[Path], Iterator[TableBlock]], *files: str | None) -> list[Path]:
    """List tables, the file of the tokenizer, and the pictures whose paths the tables hold, see `list_table_pictures`.
    """
    tables = [expand_user(name, "data") for name in files if name]
    return settings.list_files(*files) + list_table_pictures(settings, read, tables)


def list_table_pictures(settings: Columns, read: Callable[[Path], Iterator[TableBlock]], tables: list[Path]
                        ) -> list[Path]:
    """List the files of the pictures that a column of tables names, as far as these can be read.

    Args:
        read: yields the rows of a table. It may leave out those that hold no paths."""
    found: list[Path] = []
    for path in tables if settings.image else ():
        with suppress(BadInput):
            for block in read(path):
                places = (locate_picture(block, value) for value in block.columns[settings.image or ""])
                found += [place for place in places if isinstance(place, Path)]
    return found


def read_tables(settings: Columns, train: Path, test: str | None, read: Callable[[Path], Iterator[TableBlock]],
                task: str, class_names: list[str] | None = None) -> Dataset:
    """Return the pool of one file, or of two. Raises BadInput."""
    if test is not None and settings.part is not None:
        raise BadInput(f"data.test_file = {test}: data.part = {settings.part} says already which rows are for tests; "
                       "leave one of them out")
    gatherer = Gatherer(settings, task, class_names)
    paths = {"train": train} | ({"test": expand_user(test, "data.test_file")} if test is not None else {})
    for part, path in paths.items():
        for block in read(path):
            gatherer.add(block, part)
    return gatherer.make_pool(f"{train}")


@contextmanager
def refuse_unreadable(path: Path, wanted: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn the errors of reading a file into BadInput.

    Args:
        wanted: what the file must be, with an article.
        errors: classes of further exceptions that say that it is not."""
    expected: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, LookupError, TypeError, Flaw, zlib.error,
                                             lzma.LZMAError, zipfile.BadZipFile, *errors)
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 ({error.reason} at byte {error.start}); "
                       f"{advise_on_bytes(path)}") from None
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(f"{path}: cannot read the data set: {error.strerror}; set data.file to where it lies") from None
    # pandas names the package, and how to get it.
    except ImportError as error:
        raise BadInput(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    except expected as error:
        raise BadInput(f"{path}: damaged, or not {wanted} ({' '.join(str(error).split())}); repair or replace "
                       "it") from None


def advise_on_bytes(path: Path) -> str:
    """Return what to do with a file that is not UTF-8, by its first bytes."""
    start = b""
    with suppress(OSError), open(path, "rb") as file:
        start = file.read(8)
    for begin, ending in COMPRESSED.items():
        if start.startswith(begin) and path.suffix != ending:
            also = "; if it is a workbook of Excel, save it as CSV" if ending == ".zip" else ""
            return f"it is compressed: give it a name that ends with {ending}{also}"
    wide = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    return f"convert it: iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8"
