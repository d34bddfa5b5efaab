"""Pools from LEAF's JSON files, laid out as its preprocess.sh names and divides them."""
from __future__ import annotations

import json

import numpy as np
import pytest

from fedmpi.config.schema import resolve
from fedmpi.data import sources
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.data.given_partitions import Natural
from fedmpi.data.leaf import ALPHABET
from fedmpi.errors import BadInput

PLAY = ("First ~ Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak! [Aside] 10 o'clock; "
        '"ho" ')


def write(path, users, **more):
    """Write a file of LEAF's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(users), "num_samples": [len(data["y"]) for data in users.values()],
                                "user_data": users, **more}))


def pictures(n, first):
    """Return some pictures as bytes (n, 784), and as LEAF's FEMNIST stores them."""
    pixels = (np.arange(n * 784).reshape(n, 784) * 7 + first) % 256
    return pixels, {"x": (pixels / 255).tolist(), "y": [(first + i) % 62 for i in range(n)]}


def lines(n, first=0):
    """Return some samples of the play, as LEAF's Shakespeare stores them."""
    places = range(first, first + n)
    return {"x": [PLAY[i:i + 80] for i in places], "y": [PLAY[i + 80] for i in places]}


def load(name, folder):
    found = resolve({"data": {"name": name, "file": str(folder)}}).data
    return sources.load_source(name, folder, found.file, found.source)


@pytest.fixture
def femnist(tmp_path):
    """Return the folder of a FEMNIST of three writers in several files, and their pictures."""
    made = {name: pictures(n, i) for i, (name, n) in enumerate(
        {"f0003_10": 3, "f0001_41": 2, "f0900_07": 4, "t0": 1, "t1": 1, "t2": 2}.items())}
    ends = "niid_0_keep_0_{}_9.json"
    folder, train, test = tmp_path / "data", ends.format("train"), ends.format("test")
    write(folder / "train" / f"all_data_0_{train}", {name: made[name][1] for name in ("f0003_10", "f0001_41")})
    write(folder / "train" / f"all_data_1_{train}", {"f0900_07": made["f0900_07"][1]})
    write(folder / "test" / f"all_data_0_{test}", {"f0003_10": made["t0"][1], "f0001_41": made["t1"][1]})
    write(folder / "test" / f"all_data_1_{test}", {"f0900_07": made["t2"][1], "f0999_00": {"x": [], "y": []}})
    write(folder / "all_data" / "all_data_0.json", {"nobody": pictures(1, 0)[1]})
    return folder, [pixels for pixels, _ in made.values()]


def test_femnist_is_read_from_all_files_of_both_parts(femnist):
    folder, pixels = femnist
    pool = load("femnist", folder)
    np.testing.assert_array_equal(pool.x_train, np.concatenate(pixels[:3]).reshape(-1, 28, 28, 1))
    np.testing.assert_array_equal(pool.x_test, np.concatenate(pixels[3:]).reshape(-1, 28, 28, 1))
    assert pool.x_train.dtype == np.uint8 and pool.y_train.tolist() == [0, 1, 2, 1, 2, 2, 3, 4, 5]
    assert pool.client_train.tolist() == [0] * 3 + [1] * 2 + [2] * 4 and pool.client_test.tolist() == [0, 1, 2, 2]
    assert pool.about["client_names"] == ["f0003_10", "f0001_41", "f0900_07"] and len(pool.about["class_names"]) == 62


def test_a_network_has_an_output_for_every_class_of_the_data_set(femnist, settings, tmp_path):
    """Another sample of the writers, which holds other letters, gives the same network."""
    for name, folder, classes in (("femnist", femnist[0], 62), ("shakespeare", tmp_path / "plays", 80)):
        write(tmp_path / "plays" / "train" / "a.json", {"a": lines(3), "b": lines(2), "c": lines(1)})
        data = settings(name=name, file=str(folder), clients=3, partition=Natural(split="drawn"))
        found = Federation(prepare_federation(data, 0))
        assert found.classes == classes == found.label_counts.shape[2] and found.settings["reader_format"] == 2


def test_a_user_is_listed_once(tmp_path):
    path = tmp_path / "train" / "a.json"
    write(path, {"a": pictures(1, 0)[1], "b": pictures(1, 1)[1]})
    path.write_text(json.dumps({**json.loads(path.read_text()), "users": ["a", "b", "a"]}))
    with pytest.raises(BadInput, match="a.json: lists the user a twice, whose samples would count twice; remove one"):
        load("femnist", tmp_path)


def test_pixels_with_few_digits_are_the_same_bytes(tmp_path):
    pixels, data = pictures(1, 0)
    write(tmp_path / "train" / "a.json", {"a": data | {"x": np.round(data["x"], 4).tolist()}})
    np.testing.assert_array_equal(load("femnist", tmp_path).x_train, pixels.reshape(1, 28, 28, 1))


def test_a_federation_of_writers_takes_leafs_parts_or_divides_anew(femnist, settings):
    folder, _ = femnist
    data = {"name": "femnist", "file": str(folder), "clients": 3}
    given = Federation(prepare_federation(settings(**data, partition=Natural()), 0))
    assert given.counts.tolist() == [[3, 0, 1], [2, 0, 1], [4, 0, 2]]
    assert given.names["client_names"] == ["f0003_10", "f0001_41", "f0900_07"]
    drawn = Federation(prepare_federation(settings(**data, partition=Natural("drawn"), split=(.5, .2, .3)), 0))
    assert drawn.counts.tolist() == [[2, 0, 2], [1, 1, 1], [3, 1, 2]]
    held = Federation(prepare_federation(settings(**data, partition=Natural(), new_clients=1), 2))
    order = [i for i in range(3) if i not in held.new_clients] + held.new_clients
    assert held.names["client_names"] == [given.names["client_names"][i] for i in order]
    with pytest.raises(BadInput, match="data.clients = 4: the data set numbers 3 clients; set it to 3"):
        prepare_federation(settings(**data | {"clients": 4}, partition=Natural()), 0)


def test_users_that_leaf_divided_between_the_parts_need_a_split(tmp_path, settings):
    write(tmp_path / "data" / "train" / "a.json", {"mia": pictures(4, 0)[1]})
    write(tmp_path / "data" / "test" / "a.json", {"ben": pictures(4, 1)[1]})
    data = {"name": "femnist", "file": str(tmp_path / "data"), "clients": 2}
    with pytest.raises(BadInput, match=r"client 1 \(ben\) has no training samples; .* data.partition.split = drawn"):
        prepare_federation(settings(**data, partition=Natural()), 0)
    found = Federation(prepare_federation(settings(**data, partition=Natural("drawn")), 0))
    assert found.counts.tolist() == [[3, 0, 1]] * 2


def test_shakespeare_is_the_next_character_in_leafs_alphabet(tmp_path, settings):
    write(tmp_path / "all_data" / "all_data.json", {"ROMEO": lines(5), "JULIET": lines(20, 5)}, hierarchies=["a", "b"])
    pool = load("shakespeare", tmp_path)
    assert len(ALPHABET) == len(set(ALPHABET)) == 80 and pool.x_train.shape == (25, 80) and not len(pool.y_test)
    whole = "_" + ALPHABET
    for i in range(25):
        assert "".join(whole[k] for k in pool.x_train[i]) == PLAY[i:i + 80].replace("~", "_")
        assert ALPHABET[pool.y_train[i]] == PLAY[i + 80]
    assert pool.client_train.tolist() == [0] * 5 + [1] * 20 and pool.about["class_names"][0] == "\n"
    data = settings(name="shakespeare", file=str(tmp_path), clients=2, partition=Natural())
    with pytest.raises(BadInput, match="natural: the data have no test part, and parts are taken as they are; set"):
        prepare_federation(data, 0)


def test_features_of_leafs_synthetic_data(tmp_path):
    write(tmp_path / "train" / "a.json", {"0": {"x": [[1, 2.5], [3, 4]], "y": [1.0, 0.0]}})
    pool = load("leaf", tmp_path)
    assert pool.x_train.tolist() == [[1, 2.5], [3, 4]] and pool.y_train.tolist() == [1, 0]


@pytest.mark.parametrize("name, users, said", [
    ("femnist", {"a": {"x": [[1.5] * 784], "y": [1]}}, "a.json: user a: x must hold pictures of 784 numbers from 0 to"),
    ("femnist", {"a": {"x": [[0] * 9], "y": [1]}}, "user a: x must hold pictures of 784"),
    ("femnist", {"a": {"x": [[0] * 784], "y": [1, 2]}}, "a.json: user a has 1 samples and 2 labels"),
    ("femnist", {"a": {"x": [[0] * 784], "y": ["q"]}}, "a.json: user a: y must hold whole numbers from 0"),
    ("femnist", {"a": {"x": [[0] * 784] * 2, "y": [[1], [1, 2]]}}, "a.json: user a: y must hold whole numbers from 0"),
    ("femnist", {"a": {"x": 7, "y": [1]}}, "a.json: user a: x and y must be lists"),
    ("leaf", {"a": {"x": [[1, 2], [3]], "y": [1, 2]}}, "user a: x must hold a list of as many numbers"),
    ("leaf", {"a": {"x": [[1, 2]], "y": [1]}, "b": {"x": [[1]], "y": [1]}}, "user b has samples of (1,) numbers"),
    ("shakespeare", {"a": {"x": ["short"], "y": ["b"]}}, "a.json: user a: sample 0 is not a text of 80 characters"),
    ("shakespeare", {"a": {"x": ["c" * 80], "y": ["~"]}}, "user a: label 0 is '~', no character of LEAF's alphabet"),
    ("leaf", {"a": {"y": [1]}}, "a.json: damaged, or no file of LEAF's (KeyError: 'x'); it must hold users"),
    ("leaf", None, "holds no .json files in a folder train or all_data; give the folder `data`")])
def test_what_leaf_does_not_write_is_one_line(tmp_path, name, users, said):
    if users:
        write(tmp_path / "train" / "a.json", users)
    with pytest.raises(BadInput) as error:
        load(name, tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_cut_is_one_line_and_the_key_follows_all_files(femnist):
    folder, _ = femnist
    key = sources.make_source_key("femnist", folder.parent, str(folder))
    # without data.file it is the folder of that name under data.root
    assert sources.make_source_key("femnist", folder.parent) == "femnist" != key
    path = sorted((folder / "test").iterdir())[1]
    path.write_text(path.read_text()[:500])
    assert sources.make_source_key("femnist", folder.parent, str(folder)) != key
    with pytest.raises(BadInput, match="all_data_1_niid_0_keep_0_test_9.json: damaged, or no file of LEAF's"):
        load("femnist", folder)
