"""Pictures that a column of a table names: of which files the key of a federation tells the state."""
from __future__ import annotations

from pathlib import Path

import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources

pytest.importorskip("pandas")


@pytest.mark.parametrize("name, file", [("csv", "mine.csv"), ("parquet", "mine.parquet"), ("huggingface", "hub")])
@pytest.mark.parametrize("kind", ["texts", "categories"])
def test_the_key_follows_every_picture_that_a_table_names(write, tmp_path, name, file, kind):
    """Of a folder with Parquet files, too, in both parts; other files beside the pictures do not matter."""
    paths = [tmp_path / "hub" / f"{i}.png" for i in range(4)]
    (tmp_path / "hub").mkdir()
    for path in paths:
        path.write_bytes(b"a picture")
    table = pandas_categories if kind == "categories" else dict
    columns = [table({"picture": [str(path) for path in chosen], "y": list("ab")}) for chosen in (paths[:2], paths[2:])]
    tables = [f"hub/{part}.parquet" for part in ("train", "test")] if name == "huggingface" else [file, f"test-{file}"]
    for content, place in zip(columns, tables, strict=True):
        write(content, place)
    source = resolve({"data": {"name": name, "file": file, "label": "y", "image": "picture", **(
        {} if name == "huggingface" else {"test_file": tables[1]})}}).data.source

    def key() -> str:
        return sources.make_source_key(name, tmp_path, file, source)
    keys = {key()}
    for path in paths:
        path.write_bytes(path.read_bytes() + b" that changes")
        keys.add(key())
    (tmp_path / "hub" / "other.png").write_bytes(b"")
    assert len(keys) == 5 and key() in keys


def pandas_categories(columns: dict):
    """Return a table whose texts are categories, which Parquet keeps as numbers of texts."""
    return pytest.importorskip("pandas").DataFrame(columns).astype({"picture": "category"})


def test_bytes_of_pictures_are_not_read_for_the_key(write, monkeypatch):
    """They are part of the table."""
    write({"picture": [b"0", b"1"], "y": list("ab")}, "p.parquet")
    source = resolve({"data": {"name": "parquet", "file": "p.parquet", "label": "y", "image": "picture"}}).data.source
    monkeypatch.setattr("fedmpi.data.arrow_tables.read_parquet", None)
    assert source.files(Path("unused"), "p.parquet") == [Path("p.parquet")]
