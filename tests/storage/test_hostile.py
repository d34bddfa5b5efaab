"""Malicious files: none runs code, fills the memory or crashes the process; each is refused with one message."""
from __future__ import annotations

import io
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi.config.schema import load_config, resolve
from fedmpi.data import sources
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.errors import BadInput
from fedmpi.models.build import build_model
from fedmpi.sweeps import job

MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: *a{i - 1}, y{i}: 1}}\n" for i in range(1, 300))
LISTS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 99))


@pytest.mark.parametrize("text, message", [
    ("method: !!python/object/apply:os.system ['touch sprung']", "could not determine a constructor"),
    ("method: !!python/name:os.system", "could not determine a constructor"),
    ("!!python/module:os", "could not determine a constructor"),
    (MERGES, "more than 20,000 values; are there merges inside merges?"),
    (LISTS, "aliases inside aliases|is not a setting"),
    ("{" + ", ".join(f"k{i}: 1" for i in range(21_000)) + "}", "more than 20,000 values"),
    ("rounds: 1\n" + "#" * 2**20, "more than 1,048,576 characters")],
    ids=["call", "name", "module", "merges", "aliases", "settings", "long"])
@pytest.mark.parametrize("reader", [load_config, job.load_job], ids=["configuration", "job"])
def test_yaml_runs_nothing_and_fills_nothing(tmp_path, monkeypatch, reader, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(BadInput, match=message) as error:
        reader(tmp_path / "c.yaml")
    assert str(tmp_path / "c.yaml") in str(error.value) and len(str(error.value)) < 2000
    assert not (tmp_path / "sprung").exists()


@pytest.mark.skipif(not Path("/dev/zero").is_char_device(), reason="needs a file without end")
def test_a_configuration_without_end_is_refused():
    with pytest.raises(BadInput, match="it is not a regular file"):
        load_config("/dev/zero")


@pytest.mark.parametrize("name, settings", [("os:system", {"command": "touch sprung"}),
                                            ("subprocess:Popen", {"args": ["touch", "sprung"]})])
def test_a_model_is_a_network_or_nothing_is_called(tmp_path, monkeypatch, name, settings):
    monkeypatch.chdir(tmp_path)
    model = resolve({"model": {"name": name} | settings}).model
    with pytest.raises(BadInput, match=f"model: {name} is not a class of networks"):
        build_model(model, (64,), np.dtype("float32"), 10, 0)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["os:abort", "builtins:exit", "os:getcwd"])
def test_a_data_set_is_a_data_set_or_nothing_is_called(tmp_path, name):
    with pytest.raises(BadInput, match=f"data.name = {name}: is not a class"):
        prepare_federation(resolve({"data": {"name": name, "cache": str(tmp_path)}}).data, 0)


def header(shape: tuple, dtype: str = "<f4") -> bytes:
    """Return the first bytes of an .npy file that claims a shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npz(path: Path, claimed: int | None = None, **members: bytes) -> str:
    """Write an .npz of raw members; `claimed` is the unpacked size that its directory gives for the first one."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
        if claimed:
            archive.filelist[0].file_size = claimed
    return str(path)


LABELS = header((6,), "<i8") + np.arange(6).tobytes()


@pytest.mark.parametrize("content, claimed, message", [
    (header((2**30, 2**12)), None, "damaged, or not plain arrays"), (header((2**62, 2**12)), None, "damaged, or not"),
    (header((2**45,), "|S1"), None, "damaged, or not"), (header((-1, 4)), None, "damaged, or not"),
    (header((2**50, 0)), None, "x_train is float32"), (header((6, 1), "|O") + b"cos\nsystem\n", None, "damaged"),
    (header((6, 4)) + bytes(96), 2**45, "its arrays, unpacked, take 32,768 GiB"),
    (b"\x93NUMPY\x01\x00\x60\x00" + b"__import__('os').system('touch sprung')".ljust(95) + b"\n", None, "damaged, or")],
    ids=["tera", "overflow", "text", "negative", "nothing", "pickle", "bomb", "code"])
def test_arrays_run_nothing_and_fill_nothing(tmp_path, monkeypatch, content, claimed, message):
    monkeypatch.chdir(tmp_path)
    path = npz(tmp_path / "mine.npz", claimed, x_train=content, y_train=LABELS)
    with pytest.raises(BadInput, match=message) as error:
        sources.load_source("arrays", tmp_path, path)
    assert path in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "sprung").exists()


@pytest.fixture
def federation(tmp_path) -> Path:
    return prepare_federation(resolve({"data": {"clients": 4, "partition": "iid", "cache": str(tmp_path)}}).data, 0)


@pytest.mark.parametrize("name", ["x", "y", "counts"])
@pytest.mark.parametrize("create", [
    lambda file, name: file.create_dataset(name, (2**50,), "f8", chunks=(99,)),
    lambda file, name: file.create_dataset(name, (2,), "f8", external="/etc/passwd"),
    lambda file, name: file.__setitem__(name, h5py.ExternalLink("other.h5", "x")),
    lambda file, name: file.create_group(name)], ids=["huge", "external", "link", "group"])
def test_a_federation_holds_its_own_samples_and_no_more(federation, create, name):
    with h5py.File(federation.with_name("other.h5"), "w") as other:
        other["x"] = 1.
    with h5py.File(federation, "r+") as file:
        del file[name]
        create(file, name)
    with pytest.raises(BadInput, match="the federation cannot be used: .*; delete it") as error:
        Federation(federation).client(0)
    assert str(federation) in str(error.value) and "\n" not in str(error.value)
