"""Pools from folders of pictures, compared with what torchvision's ImageFolder reads from them."""
from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.federation import prepare_federation
from fedmpi.data.image_folder import ImageFolder
from fedmpi.errors import BadInput


@pytest.fixture
def draw(tmp_path):
    """Return a function that writes a picture of noise below the temporary folder."""
    rng = np.random.default_rng(0)

    def draw(name, mode="RGB", size=(6, 5)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).convert(mode).save(path)
    return draw


def load(folder, **data):
    found = resolve({"data": {"name": "image_folder", "file": str(folder), **data}}).data
    return sources.load_source(found.name, folder, found.file, found.source)


def refusal(folder, **data) -> str:
    with pytest.raises(BadInput) as error:
        load(folder, **data)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_it_reads_what_torchvision_reads(draw, tmp_path):
    from torchvision.datasets import ImageFolder as Theirs
    for i, mode in enumerate(["RGB", "L", "RGBA", "P", "LA", "1"]):
        draw(f"all/{'cat' if i % 2 else 'ant'}/{i}.png", mode)
    draw("all/cat/deeper/x.JPG")
    (tmp_path / "all" / "cat" / "notes.txt").write_text("no picture")
    pool, theirs = load(tmp_path / "all"), Theirs(str(tmp_path / "all"))
    np.testing.assert_array_equal(pool.x_train, np.stack([np.asarray(image) for image, _ in theirs]))
    assert pool.y_train.tolist() == theirs.targets and pool.about == {"class_names": ["ant", "cat"]}
    assert pool.x_train.shape == (7, 5, 6, 3) and not len(pool.y_test)
    assert load(tmp_path / "all", mode="L").x_train.shape == (7, 5, 6, 1)


@pytest.mark.parametrize("folders, train, test", [
    (("test",), (), "test"), (("val",), (), "val"), (("val", "test"), ("val",), "test"),
    (("validation", "val", "test"), ("val", "validation"), "test")])
def test_parts_in_folders_of_their_own(draw, tmp_path, folders, train, test):
    """A validation part counts as training beside a test part, as in tables; without one it is the test part."""
    for part in ("train", *folders):
        for name in ("ant/0.png", "cat/0.png", *["new/0.png"] * (part != "train")):
            draw(f"{part}/{name}")
    draw("others/ant/0.png")
    (tmp_path / "Dev").mkdir()
    pool = load(tmp_path)
    assert pool.y_train.tolist() == [0, 1] + [0, 1, 2] * len(train) and pool.y_test.tolist() == [0, 1, 2]
    places = [f"{part}/{name}" for part in ("train", *train) for name in ("ant", "cat", "new")[:2 + (part != "train")]]
    for x, place in zip([*pool.x_train, pool.x_test[2]], [*places, f"{test}/new"], strict=True):
        np.testing.assert_array_equal(x, np.asarray(Image.open(tmp_path / place / "0.png")))
    files = ImageFolder().files(tmp_path, str(tmp_path))
    assert sorted(files) == sorted(tmp_path.glob("[tv]*/*/0.png"))


@pytest.mark.parametrize("folders, clients, said, parts, remedy", [
    (("Test",), "", "Test", "train", "rename it to test"),
    (("Test", "val"), "", "Test", "train and val", "rename it to test"),
    (("test", "Valid"), "", "Valid", "train and test", "rename it to validation"),
    (("test", "val", "dev"), "", "dev", "train and val and test", "move them to {}/val"),
    (("val", "validation"), "", "validation", "train and val", "move them to {}/val"),
    (("test", "training"), "north/", "training", "train and test", "move them to {}/train")])
def test_a_part_of_another_name_is_not_forgotten(draw, tmp_path, folders, clients, said, parts, remedy):
    for part in ("train", *folders):
        for i in range(3):
            draw(f"{part}/{clients}{'ant' if i else 'bee'}/{i}.png")
    assert refusal(tmp_path, client_folders=bool(clients)) == (
        f"{tmp_path}/{said}: is called like a part, and its 3 pictures would be left out, for the parts here are "
        f"{parts}; {remedy.format(tmp_path)}, or move it out of {tmp_path}")


def test_a_link_to_a_part_is_no_further_part(draw, tmp_path):
    for part in ("train", "val"):
        draw(f"{part}/ant/0.png")
    for link in ("test", "validation", "Test"):
        (tmp_path / link).symlink_to("val")
    assert [len(x) for x in load(tmp_path)[:4:2]] == [1, 1]


@pytest.mark.parametrize("folders, clients, said", [
    (("training", "test"), "", "test"), (("test", "val"), "", "test"), (("TRAIN", "Valid"), "", "TRAIN"),
    (("cat", "validation"), "", "validation"), (("training", "test"), "hospital/", "test")])
def test_folders_of_parts_are_no_classes(draw, tmp_path, folders, clients, said):
    for part in folders:
        for i in range(2):
            draw(f"{part}/{clients}{'ant' if i else 'bee'}/{i}.png")
    assert refusal(tmp_path, client_folders=bool(clients)) == (
        f"{tmp_path}/{said}: holds folders and no pictures, as a part does, and there is no part `train`; name the "
        "folders of the parts train and test (or val), or rename this one if it is a "
        + ("client" if clients else "class"))


def test_a_class_or_a_client_may_be_called_like_a_part(draw, tmp_path):
    for name in ("test/0.png", "test/more/1.png", "cat/2.png"):
        draw(f"classes/{name}")
    (tmp_path / "classes" / "val").mkdir()
    assert load(tmp_path / "classes").about == {"class_names": ["cat", "test"]}
    draw("clients/test/cat/0.png")
    draw("clients/other/cat/0.png")
    assert load(tmp_path / "clients", client_folders=True).about["client_names"] == ["other", "test"]


def test_clients_have_folders_of_classes(draw, tmp_path):
    for name in ("sketch/ant/0.png", "sketch/cat/0.png", "photo/cat/0.png", "photo/cat/1.png", ".hidden/cat/0.png"):
        draw(name)
    pool = load(tmp_path, client_folders=True)
    assert pool.about == {"class_names": ["ant", "cat"], "client_names": ["photo", "sketch"]}
    assert (pool.y_train.tolist(), pool.client_train.tolist()) == ([1, 1, 0, 1], [0, 0, 1, 1])


def test_pictures_of_other_sizes_need_one(draw, tmp_path):
    draw("a/0.png")
    draw("b/0.png", size=(9, 5))
    assert refusal(tmp_path) == (
        f"{tmp_path}/b/0.png: is 5 x 9 pixels, and {tmp_path}/a/0.png is 5 x 6; set data.size, to which all are "
        "brought, such as data.size=[32,32]")
    pool = load(tmp_path, size=[5, 6])
    resized = Image.open(tmp_path / "b" / "0.png").resize((6, 5), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(pool.x_train[1], np.asarray(resized))
    np.testing.assert_array_equal(pool.x_train[0], np.asarray(Image.open(tmp_path / "a" / "0.png")))


def test_what_holds_no_pictures_is_one_line(draw, tmp_path, monkeypatch):
    assert "holds no pictures in folders of classes; they must be in" in refusal(tmp_path)
    draw("0.png")
    (tmp_path / "empty").mkdir()
    assert "holds no pictures in folders of classes" in refusal(tmp_path)
    assert f"{tmp_path}/none: cannot read the data set: No such file" in refusal(tmp_path / "none")
    draw("a/0.png")
    (tmp_path / "a" / "1.png").write_bytes(b"no picture")
    assert f"{tmp_path}/a/1.png: cannot read the picture" in refusal(tmp_path)
    Image.fromarray(np.zeros((5, 6), np.uint16)).save(tmp_path / "a" / "1.png")
    # Pillow names their type I;16, or I in older versions.
    assert re.search(rf"^.*{tmp_path}/a/1.png: has I(;16)? pixels of more than 8 bits", refusal(tmp_path))
    draw("a/1.png")
    monkeypatch.setattr("fedmpi.memory_check.read_machine_memory", lambda: 100)
    assert f"{tmp_path}/a/0.png: 2 pictures of 5 x 6 pixels take" in refusal(tmp_path)


def test_a_size_that_no_picture_can_have_is_refused_before_the_first_is_read(tmp_path):
    for size in ([0, 32], [32, -1]):
        assert refusal(tmp_path, size=size) == f"data.size = {size}: give height and width, of a pixel at least"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(b"no picture")
    assert (f"{tmp_path}/a/0.png: 1 pictures of 10000000 x 10000000 pixels take 279,397 GiB, and" in
            refusal(tmp_path, size=[10 ** 7] * 2))


def test_names_of_classes_are_no_numbers_to_predict(draw, tmp_path, settings):
    draw("a/0.png")
    data = settings(name="image_folder", file=str(tmp_path), source=ImageFolder(), task="regression", clients=1)
    with pytest.raises(BadInput, match="data.task = regression: data.name = image_folder has classes with names"):
        prepare_federation(data, 0)


def test_the_key_follows_every_picture(draw, tmp_path):
    data = resolve({"data": {"name": "image_folder", "file": str(tmp_path / "all")}}).data

    def key() -> str:
        return sources.make_source_key("image_folder", tmp_path, data.file, data.source)
    keys = [key()]
    for i in range(70):
        draw(f"all/a/{i}.png")
    keys.append(key())
    draw("all/a/33.png", size=(4, 4))
    keys.append(key())
    draw("all/b/0.png")
    keys.append(key())
    assert len(set(keys)) == 4 and max(map(len, keys)) < 200 and key() == keys[-1]


class Name(str):
    """The name of a folder that counts how often it is compared."""
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str(self) == str(other)


class OfNames(ImageFolder):
    def list_pictures(self, folder):
        return [(path, Name(client), Name(name)) for path, client, name in super().list_pictures(folder)]


def test_a_picture_is_not_compared_with_all_classes_and_clients(draw, tmp_path):
    for i in range(60):
        draw(f"c{i % 30:02}/{i:02}/0.png", size=(1, 1))
    pool = OfNames(client_folders=True).load(tmp_path, str(tmp_path))
    assert pool.y_train.tolist() == [30 * (i % 2) + i // 2 for i in range(60)]
    assert pool.client_train.tolist() == [i // 2 for i in range(60)] and Name.compared < 10 * 60
