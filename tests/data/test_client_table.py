"""clients.csv: what each client holds, and what reads it."""
from __future__ import annotations

import csv
import io
import os
import subprocess
import sys

import numpy as np
import pytest

import fedmpi
from fedmpi.data.client_table import CLIENT_NUMBERS, format_client_table, read_client_numbers
from fedmpi.data.federation import Federation
from fedmpi.data.partitions import Dirichlet, FewShot, Pathological
from fedmpi.errors import BadInput
from fedmpi.storage.folder import RunFolder
from fedmpi.task import REGRESSION
from tests.data.test_damage import flip


def read(text: str) -> dict[str, list[str]]:
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


@pytest.mark.parametrize("split", [[.75, .25], [.6, .2, .2]])
def test_it_counts_the_samples_and_classes_of_every_client(federation, split):
    found = federation(partition=Pathological(classes_per_client=3), split=split)
    table = read(format_client_table(found))
    assert [*table] == ["client", "group", *CLIENT_NUMBERS] and table["client"] == [str(i) for i in range(20)]
    for i in range(20):
        samples = found.client(i)
        held = [len(samples.y_train), len(samples.y_val), len(samples.y_test), len(np.unique(samples.y_train))]
        assert [int(table[name][i]) for name in CLIENT_NUMBERS] == held
    assert table["group"] == [str(g) for g in found.groups] and set(table["train_classes"]) == {"3"}


def test_classes_that_only_the_test_part_holds_do_not_count(federation):
    found = federation(partition=Dirichlet(beta=.1), split=[.3, .7])
    counted = [int(value) for value in read(format_client_table(found))["train_classes"]]
    assert counted == (found.label_counts[:, 0] > 0).sum(1).tolist() != (found.label_counts.sum(1) > 0).sum(1).tolist()


def test_new_clients_come_last_with_their_own_numbers(federation):
    partition = FewShot(gamma=.5)
    whole, found = federation(partition=partition), federation(partition=partition, new_clients=4)
    table, before = read(format_client_table(found)), read(format_client_table(whole))
    assert table["new_client"] == ["0"] * 16 + ["1"] * 4 and "new_client" not in before
    for name in ("group", "train_samples", "test_samples", "train_classes"):
        assert table[name][16:] == [before[name][i] for i in found.new_clients]
    assert set(before["group"]) == {"other", "few-shot"}


def test_names_that_a_file_of_commas_could_mistake(federation):
    found, names = federation(), ['a, "b"', "two\nlines", "=1+1", "", *"cdefghijklmnopqr"]
    found.names = {"client_names": names}
    assert read(format_client_table(found))["name"] == names


def test_targets_have_no_classes(federation, monkeypatch):
    found = federation()
    monkeypatch.setattr(found, "task", REGRESSION)
    assert "train_classes" not in read(format_client_table(found))


def test_a_result_has_these_numbers_beside_its_measures(bench):
    assert bench.lead("run", "data.new_clients=3") == 0
    result = fedmpi.load_result(bench.out("run"))
    table, written = result.clients(), read((bench.out("run") / "clients.csv").read_text())
    for name in CLIENT_NUMBERS:
        assert table[name].tolist() == [int(value) for value in written[name]]
    weights = table["test_samples"][:-3]
    mean = (table["accuracy"][:-3] * weights).sum() / weights.sum()
    assert mean == pytest.approx(result.values["accuracy_weighted"])
    (bench.out("run") / "clients.csv").unlink()
    assert not {*CLIENT_NUMBERS} & {*result.clients().columns}


def test_a_start_writes_it_anew(bench):
    assert bench.lead("again", "rounds=1") == 0
    path = bench.out("again") / "clients.csv"
    text = path.read_text()
    path.write_text("spoilt")
    with pytest.raises(BadInput, match=r"clients\.csv: it does not list the clients 0 to"):
        fedmpi.load_result(bench.out("again")).clients()
    assert bench.lead("again", "rounds=2", resume="auto") == 0 and path.read_text() == text


GOOD = "client,train_samples,validation_samples,test_samples\n0,5,0,2\n1,4,0,1\n"


@pytest.mark.parametrize("text, said", [
    (GOOD.replace("1,4", "2,4"), "it does not list the clients 0 to 1"), (GOOD[:-8], "it does not list"),
    ("", "it does not list"), (GOOD.replace("client,", "number,"), "it does not list"), (GOOD.replace("5", "x"), "'x'"),
    (GOOD.replace("0,2", "0"), "''"), (GOOD.replace("5", '"5'), "unexpected end of data"),
    (b"\xff" + GOOD.encode(), "it does not list"), (None, "it is a folder")])
def test_a_damaged_one_is_one_clear_error(tmp_path, text, said):
    path = tmp_path / "clients.csv"
    path.mkdir() if text is None else path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=f"clients.csv: .*{said}.*; remove it"):
        read_client_numbers(path, 2)


def test_a_whole_one_is_read_and_none_is_no_error(tmp_path):
    path = tmp_path / "clients.csv"
    assert read_client_numbers(path, 2) == {}
    path.write_text(GOOD)
    assert read_client_numbers(path, 2) == {"train_samples": [5, 4], "validation_samples": [0, 0],
                                            "test_samples": [2, 1]}


def test_label_counts_that_are_damaged_end_a_start_before_it_touches_the_run(bench, tmp_path):
    asked = f"data.cache={tmp_path}"
    assert bench.lead("kept", asked, "rounds=1") == 0
    path, = tmp_path.glob("*.h5")
    flip(path, Federation(path).file.places["labels"].offset)
    done = bench.run(2, "kept", asked, "rounds=2", "--resume", "auto")
    assert done.returncode == 2 and "the checksum of row 0 of labels is wrong; delete it" in done.stderr
    assert bench.result("kept")["rounds"] == 1


@pytest.mark.parametrize("name", ["Zürich", "東京", "\udcff", "\ud800", "a\rb", "nul\0"])
def test_any_name_can_be_written(tmp_path, federation, name):
    """The name of a folder may have any bytes."""
    found = federation()
    found.names = {"client_names": [name] * 20}
    folder = RunFolder.claim(tmp_path, resume=False)
    folder.store_clients(format_client_table(found))
    folder.release()
    assert read_client_numbers(tmp_path / "clients.csv", 20)["train_samples"] == found.sizes.tolist()
    assert len((tmp_path / "clients.csv").read_bytes().splitlines()) == 21


def test_the_file_is_utf_8_in_any_locale(tmp_path):
    write = "from fedmpi.storage.folder import RunFolder as R; R.claim('run', False).store_clients('\\u00fc\\n')"
    subprocess.run([sys.executable, "-c", write], cwd=tmp_path, check=True,
                   env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert (tmp_path / "run" / "clients.csv").read_bytes() == "ü\n".encode()
