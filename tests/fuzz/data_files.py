"""Data files: arrays of odd shapes, types and values, and damaged files of each format that is read."""
from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zipfile
from pathlib import Path

import numpy as np

from tests.fuzz.case import Case
from tests.fuzz.reference import CONFIG, Reference
from tests.fuzz.values import TEXTS
from tests.storage.damages import DAMAGE

TYPES = (
    "f2", "f4", "f8", "f16", "c8", "u1", "i1", "u2", "i4", ">i4", ">f8", "i8", "u8", "?", "U3", "S3", "M8[s]",
    "m8[s]", "O", "V4", "i4,f4")
SHAPES = (
    (0,), (), (1,), (3,), (90,), (90, 1), (90, 0), (0, 64), (90, 8, 8), (90, 8, 8, 1), (90, 8, 8, 3),
    (90, 4, 4, 4, 4), (1, 64), (2, 64), (91, 64), (90, 65), (64, 90))
LABELS = (
    [0, 9999], [0, 65535], [0, 2**31], [-1, 1], [5, 5], [0, 1, 2**62], [1.5, 2], [np.nan, 1.], [0, np.inf],
    [250, 255])
HEADERS = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (90, 64)",
    b"{'descr': '<f4', 'fortran_order': False, " b"'shape': (100000000000000, 1000000000000), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8), }",
    b"{'descr': '|O', 'fortran_order': False, " b"'shape': (3,), }",
    b"{b'descr': '<f4', 'fortran_order': False, 'shape': (90, 64), }", b"__import__('os')", b"",
    b"{'descr': '<f4', 'fortran_order': 3, 'shape': [90, 64], }",
    b"{'descr': [('a', '<f4')], 'fortran_order': " b"False, 'shape': (90,), }", b"(" * 500,
    b"{'descr': '<f4', 'shape': (9" + b"0" * 60 + b",), 'fortran_order': 1}", b"\xff\xfe",
    b"{'descr': '<U1000000000', 'fortran_order': False, 'shape': (90, 64), }")


def build(draw: random.Random, folder: Path, reference: Reference) -> Case:
    """Write a data set; return the case of a command that reads it."""
    how = draw.choice([odd_arrays, odd_arrays, odd_arrays, odd_zip, damaged_npz, damaged_npz, idx_files, csv_files,
                       images,
                       medmnist])
    data, what = how(draw, folder)
    config = CONFIG | {"rounds": 1, "data": {"clients": draw.choice([1, 2, 4]), "cache": "cache",
                                             "root": "root"} | data}
    if draw.random() < .2:
        config["model"] = {"name": draw.choice(["lenet5", "cnn4", "resnet18"])}
    if data["name"] == "ag_news" and draw.random() < .8:
        config["model"] = {"name": "fasttext", "vocabulary": draw.choice([300, 300, 3])}
    (folder / "c.yaml").write_text(json.dumps(config))
    command = draw.choice(["run", "run", "run", "data", "plan"])
    return Case(f"{command}: {what}", [[command, "c.yaml", *(["--out", "out"] if command == "run" else [])]])


def arrays() -> dict[str, np.ndarray]:
    """Return arrays as they should be."""
    draw = np.random.default_rng(0)
    return {"x_train": draw.random((90, 64), np.float32), "y_train": np.arange(90) % 10,
            "x_test": draw.random((30, 64), np.float32), "y_test": np.arange(30) % 10,
            "client_train": np.arange(90) % 4, "client_test": np.arange(30) % 4}


def spoil(draw: random.Random, given: dict[str, np.ndarray]) -> str:
    """Change arrays; return what was done."""
    name, how = draw.choice(list(given)), draw.randrange(8)
    values = given[name]
    if how == 0:
        kind, shape = draw.choice(TYPES), draw.choice([values.shape, *SHAPES])
        given[name] = np.zeros(shape, kind)
        return f"{name} {kind} {shape}"
    if how == 1:
        shape = draw.choice(SHAPES)
        given[name] = np.ones(shape, values.dtype)
        return f"{name} shape {shape}"
    if how == 2:
        labels = draw.choice(LABELS)
        given["y_train"] = np.resize(np.array(labels), 90)
        return f"labels {labels}"
    if how == 3:
        value = draw.choice([np.nan, np.inf, -np.inf, 1e38, 3e38, 1e300, -1e30, 1e-45])
        given["x_train"] = arrays()["x_train"].astype("f8" if abs(value) > 3.4e38 else "f4")
        given["x_train"].flat[draw.randrange(90 * 64)] = value
        return f"a feature {value}"
    if how == 4:
        del given[name]
        return f"no {name}"
    if how == 5:
        given[draw.choice(["", "x", "y_val", "client", "X_train", "../x", "a" * 300])] = values
        return "another name"
    if how == 6:
        clients = draw.choice([[-1, 2], [0, 2**31], [2**62], [0, 0], [1.5], [10**6]])
        given["client_train"] = np.resize(np.array(clients), 90)
        return f"client_train {clients}"
    other = values.astype(values.dtype.newbyteorder(">"))
    given[name] = np.asfortranarray(np.atleast_1d(values)[::-1]) if draw.random() < .5 else other
    return f"{name} in another order"


def odd_arrays(draw: random.Random, folder: Path) -> tuple[dict, str]:
    given = arrays()
    what = ", ".join(spoil(draw, given) for _ in range(draw.choice([1, 1, 2])) if given)
    np.savez(folder / "odd.npz", **given)
    partition = draw.choice(["dirichlet", "iid", "natural", "natural"])
    return {"name": "arrays", "file": "odd.npz", "partition": partition}, what


def npy(header: bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """Return a .npy file with this header."""
    size = struct.pack("<H" if version[0] == 1 else "<I", len(header) + 1)
    return b"\x93NUMPY" + version + size + header + b"\n" + data


def odd_zip(draw: random.Random, folder: Path) -> tuple[dict, str]:
    what = draw.choice(["header", "header", "twice", "lzma", "bomb", "text", "names", "npy", "special"])
    given = arrays()
    path = folder / "odd.npz"
    members = {f"{name}.npy": saved(values) for name, values in given.items()}
    if what == "header":
        header = draw.choice(HEADERS)
        members["x_train.npy"] = npy(header, bytes(64), draw.choice([b"\1\0", b"\2\0", b"\3\0", b"\x09\0"]))
        what = f"header {header[:70]!r}"
    if what == "bomb":
        members["x_train.npy"] = saved(np.zeros((90, 64), "f4"))[:128] + bytes(200 << 20)
    if what == "text":
        members = {"x_train.npy": b"hello", "readme.txt": b"", **members}
    if what == "names":
        name = draw.choice(["../x.npy", "/x.npy", "x_train", "a\x1b[31m.npy", "é.npy", ".npy"])
        members[name] = members["y_test.npy"]
    method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA if what == "lzma" else
                         zipfile.ZIP_DEFLATED if what == "bomb" else method) as out:
        for name, content in members.items():
            out.writestr(name, content)
    if what == "twice":
        with zipfile.ZipFile(path, "a") as out, np.errstate(all="ignore"):
            import warnings
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out.writestr("x_train.npy", members["y_train.npy"])
    if what == "lzma":
        data = bytearray(path.read_bytes())
        data[draw.randrange(40, 3000)] ^= 0xFF
        path.write_bytes(data)
    if what == "npy":
        path.write_bytes(members["x_train.npy"])
    if what == "special":
        return {"name": "arrays", "file": draw.choice(["/dev/zero", "/dev/null", ".", "tmp", "c.yaml", "/proc/self/mem",
                                                       *(text for text in TEXTS if text)])}, "a special file"
    return {"name": "arrays", "file": "odd.npz"}, what


def saved(values: np.ndarray) -> bytes:
    """Return an array as a .npy file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def damage(draw: random.Random, path: Path) -> str:
    """Damage a file; return how."""
    data, how = bytearray(path.read_bytes()), draw.choice(DAMAGE)
    # What follows does not depend on the size of the file, which differs a little if the file has times in it.
    chance = random.Random(draw.random())
    how(data, chance.randrange(max(1, len(data) if chance.random() < .5 else min(len(data), 400))), chance)
    path.write_bytes(data)
    return how.__name__


def damaged_npz(draw: random.Random, folder: Path) -> tuple[dict, str]:
    path = folder / "odd.npz"
    (np.savez_compressed if draw.random() < .5 else np.savez)(path, **arrays())
    what = ", ".join(damage(draw, path) for _ in range(draw.choice([1, 3])))
    return {"name": "arrays", "file": "odd.npz"}, f"npz: {what}"


def idx_files(draw: random.Random, folder: Path) -> tuple[dict, str]:
    name = draw.choice(["mnist", "fashion_mnist"])
    raw = folder / "root" / {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name] / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 60), ("t10k", 20)):
        images = struct.pack(">IIII", 2051, n, 28, 28) + bytes(n * 784)
        labels = struct.pack(">II", 2049, n) + bytes(i % 10 for i in range(n))
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            (raw / f"{part}-{kind}-ubyte").write_bytes(content)
            (raw / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    path = draw.choice(sorted(raw.glob("*ubyte")))
    if draw.random() < .3:
        header = [draw.choice([0, 1, 2049, 2051, 2**31, 2**32 - 1, 60, 20]) for _ in range(4)]
        path.write_bytes(struct.pack(">IIII", *header) + bytes(100))
        return {"name": name, "root": "root"}, f"idx: header {header} of {path.name}"
    return {"name": name, "root": "root"}, f"idx: {damage(draw, path)} in {path.name}"


def csv_files(draw: random.Random, folder: Path) -> tuple[dict, str]:
    place = folder / "root" / "ag_news_csv"
    place.mkdir(parents=True)
    rows = "".join(f'"{i % 4 + 1}","Title {i}","Some words of text {i}, and more"\n' for i in range(40))
    for part in ("train", "test"):
        (place / f"{part}.csv").write_text(rows)
    path = place / "train.csv"
    odd = [b'"0","a","b"\n', b'"5","a","b"\n', b'"x","a","b"\n', b'"1","a"\n', b"\n\n", b'"1","a\n', b"\0\0\n",
           b"\xff\xfe\n", b'"1","' + b"a" * 200000 + b'","b"\n', b'"99999999999999999999","a","b"\n',
           b'"-1","",""\n', b'1;2;3\n', b'"1","",""\n']
    if draw.random() < .6:
        line = draw.choice(odd)
        path.write_bytes(path.read_bytes() + line if draw.random() < .7 else line)
        return {"name": "ag_news"}, f"csv: line {line[:40]!r}"
    return {"name": "ag_news"}, f"csv: {damage(draw, path)}"


def images(draw: random.Random, folder: Path) -> tuple[dict, str]:
    from PIL import Image
    place = folder / "root" / "tiny-imagenet-200"
    (place / "val" / "images").mkdir(parents=True)
    lines = []
    for c in range(2):
        (place / "train" / f"n{c}" / "images").mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (16, 16), (c * 99, i, 3)).save(place / "train" / f"n{c}" / "images" / f"{i}.png")
        Image.new("L", (16, 16), c).save(place / "val" / "images" / f"v{c}.png")
        lines.append(f"v{c}.png\tn{c}\t0\t0\t9\t9\n")
    (place / "val" / "val_annotations.txt").write_text("".join(lines))
    path = draw.choice([p for p in sorted(place.rglob("*")) if p.is_file()])
    how = draw.randrange(6)
    if how == 0:
        path.unlink()
    elif how == 1:
        (path.parent / "extra").mkdir()
    elif how == 2:
        (path.parent / draw.choice(["x.txt", "é", "\udcff", "\x1b[31m"])).write_bytes(b"text")
    elif how == 3:
        Image.new("RGB", draw.choice([(1, 1), (17, 16), (3000, 2)])).save(path.parent / "z.png")
    else:
        return {"name": "tiny_imagenet"}, f"images: {damage(draw, path)} in {path.name}"
    return {"name": "tiny_imagenet"}, f"images: {['lost', 'a folder', 'a text', 'another size'][how]} at {path.name}"


def medmnist(draw: random.Random, folder: Path) -> tuple[dict, str]:
    (folder / "root").mkdir()
    path = folder / "root" / draw.choice(["pathmnist.npz", "tissuemnist.npz", "digits.npz"])
    pixels = np.random.default_rng(0)
    given = {f"{part}_{kind}": pixels.integers(0, 8, (n, *shape)).astype("u1") for part, n in (
        ("train", 30), ("val", 10), ("test", 10)) for kind, shape in (("images", (28, 28)), ("labels", (1,)))}
    name = draw.choice(list(given))
    if draw.random() < .5:
        given[name] = np.zeros(draw.choice([*SHAPES, given[name].shape]), draw.choice(TYPES))
        what = f"{name} {given[name].dtype} {given[name].shape}"
    else:
        what = f"no {name}"
        del given[name]
    np.savez(path, **given)
    return {"name": path.stem}, f"medmnist: {what}"
