import numpy as np
import pytest
from PIL import Image

from fedmpi.data.sources import BUILT_IN, make_source_key
from fedmpi.errors import BadInput

# Classes and the brightness of their images.
CLASSES = {"n02": 20, "n01": 10, "n30": 30}


def image(path, brightness, mode="RGB", size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, brightness if mode == "L" else (brightness, 0, 255)).save(path, quality=95)


@pytest.fixture
def folder(tmp_path):
    """A folder like the unpacked official archive of Tiny-ImageNet, with three classes and small images."""
    folder = tmp_path / "tiny-imagenet-200"
    for name, brightness in CLASSES.items():
        for i in range(4):
            image(folder / "train" / name / "images" / f"{name}_{i}.JPEG", brightness + i, "L" if i == 3 else "RGB")
    lines = []
    for i, name in enumerate(["n30", "n01", "n01"]):
        image(folder / "val" / "images" / f"val_{i}.JPEG", CLASSES[name])
        lines.append(f"val_{i}.JPEG\t{name}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def load(folder):
    return BUILT_IN["tiny_imagenet"]().load(folder.parent)


def test_the_official_folder_is_read_with_the_true_labels(folder):
    pool = load(folder)
    assert pool.x_train.shape == (12, 8, 8, 3) and pool.x_train.dtype == pool.x_test.dtype == np.uint8
    assert pool.y_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and pool.y_test.tolist() == [2, 0, 0]
    for x, y in ((pool.x_train, pool.y_train), (pool.x_test, pool.y_test)):
        assert (np.abs(x[..., 0].mean((1, 2)) - 10 * (y + 1)) < 6).all()
    grey = pool.x_train[3::4]
    assert (grey[..., :1] == grey).all() and (pool.x_train[0, ..., 2] > 240).all()


def test_an_npz_spares_the_folder(folder):
    np.savez(folder.parent / "tiny_imagenet.npz", x_train=np.zeros((2, 4, 4, 3), np.uint8), y_train=[0, 1])
    assert load(folder).x_train.shape == (2, 4, 4, 3)


def test_another_folder_has_another_key(folder):
    before = make_source_key("tiny_imagenet", folder.parent)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\n")
    assert make_source_key("tiny_imagenet", folder.parent) != before
    # an archive that was unpacked in part is completed later
    before = make_source_key("tiny_imagenet", folder.parent)
    (folder / "train" / "n02" / "images" / "n02_9.JPEG").write_bytes(b"")
    assert make_source_key("tiny_imagenet", folder.parent) != before


def spoil(folder, what):
    inside = folder / "train" / "n02" / "images" / "n02_1.JPEG"
    if what == "images":
        inside.parent.rename(folder / "gone")
    elif what == "annotations":
        (folder / "val" / "val_annotations.txt").unlink()
    elif what == "label":
        (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\n")
    elif what == "no labels":
        (folder / "val" / "val_annotations.txt").write_text("")
    elif what == "bytes":
        (folder / "val" / "val_annotations.txt").write_bytes(b"val_0.JPEG\tn01\xff\n")
    elif what == "file":
        (folder / "val" / "images" / "val_1.JPEG").unlink()
    elif what == "damage":
        inside.write_bytes(inside.read_bytes()[:200])
    elif what == "size":
        image(inside, 20, size=(8, 9))


@pytest.mark.parametrize("what, message", [
    ("images", "n02/images: cannot read Tiny-ImageNet: No such file"),
    ("annotations", "val_annotations.txt: cannot read Tiny-ImageNet"),
    ("bytes", "val_annotations.txt: cannot be read .'utf-8' codec can't decode byte 0xff"),
    ("label", "class 'n77' has no folder"), ("no labels", "12 training and 0 validation images"),
    ("file", "val_1.JPEG: cannot read the image"), ("damage", "n02_1.JPEG: cannot read the image"),
    ("size", "n02_1.JPEG: is 9 x 8 pixels, the others are 8 x 8")])
def test_what_is_missing_or_damaged_is_named(folder, what, message):
    spoil(folder, what)
    with pytest.raises(BadInput, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)
