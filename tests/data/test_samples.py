import os
import struct
import zipfile

import numpy as np
import pytest

from fedmpi.data.samples import LARGEST_INT32, Dataset, check_samples, read_npz, refuse_gaps
from fedmpi.errors import BadInput
from tests.data import files
from tests.data.files import good, save


def load(path):
    return check_samples(read_npz(path), f"data.file = {path}")


@pytest.mark.parametrize("x, dtype, shape", [
    (np.zeros((6, 5, 4), np.uint8), np.uint8, (5, 4, 1)),
    (np.zeros((6, 5, 4, 3), np.uint8), np.uint8, (5, 4, 3)),
    (np.zeros((6, 5), np.float64), np.float32, (5,)),
    (np.zeros((6, 5), np.float16), np.float32, (5,)),
    (np.zeros((6, 5), ">f4"), np.float32, (5,)),
    (np.zeros((6, 5, 4, 3), np.float32), np.float32, (5, 4, 3)),
    (np.zeros((6, 5), np.int64), np.int32, (5,)),
    (np.zeros((6, 5), np.uint16), np.int32, (5,)),
])
def test_arrays_are_brought_to_the_promised_types(tmp_path, x, dtype, shape):
    pool = load(save(tmp_path, **good(x_train=x)))
    assert pool.x_train.dtype == dtype == pool.x_test.dtype
    assert pool.x_train.shape == (6, *shape) and pool.x_test.shape == (0, *shape)


def test_arrays_keep_their_values_and_ignore_other_keys(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    pool = load(save(tmp_path, **good(x_train=x, x_test=x[:2], y_test=np.array([1, 0]), comment=np.arange(2))))
    np.testing.assert_array_equal(pool.x_train, x)
    np.testing.assert_array_equal(pool.x_test, x[:2])
    assert pool.y_train.tolist() == list(range(6)) and pool.y_test.tolist() == [1, 0]


OBJECTS = np.array([{}, 1, 2, 3, 4, 5], object)
BAD_ARRAYS = {
    "infinite targets": (good(y_train=np.full(6, np.inf)), "y_train has targets that are NaN, infinite or beyond"),
    "targets and classes": (good(y_train=np.zeros(6), x_test=np.zeros((2, 3), np.float32), y_test=np.arange(2)),
                            "y_train is float32, y_test int64; both must be classes, or targets"),
    "one-hot labels": (good(y_train=np.eye(6, dtype=int)), r"y_train is int64 \(6, 6\)"),
    "bool labels": (good(y_train=np.zeros(6, bool)), "y_train is bool"),
    "negative labels": (good(y_train=np.arange(6) - 1), "y_train goes from -1 to 4"),
    "absurd labels": (good(y_train=np.arange(6) + 10**9), "classes count from 0"),
    "lengths": (good(y_train=np.arange(5)), "6 samples, y_train 5 labels"),
    "NaN": (good(x_train=np.full((6, 3), np.nan)), "NaN"),
    "infinite": (good(x_train=np.full((6, 3), -np.inf)), "infinite"),
    "beyond float32": (good(x_train=np.full((6, 3), 1e300)), "beyond float32"),
    "no samples": (good(x_train=np.zeros((0, 3)), y_train=np.zeros(0, int)), "no samples"),
    "nothing in a sample": (good(x_train=np.zeros((6, 0))), "x_train is float64"),
    "complex": (good(x_train=np.zeros((6, 3), complex)), "x_train is complex128"),
    "text": (good(x_train=np.array([["a"]] * 6)), "x_train is <U1"),
    "bool": (good(x_train=np.zeros((6, 3), bool)), "x_train is bool"),
    "flat": (good(x_train=np.zeros(6)), r"x_train is float64 \(6,\)"),
    "flat bytes": (good(x_train=np.zeros((6, 3), np.uint8)), "uint8 images"),
    "scalar": (good(x_train=np.float32(1)), r"x_train is float32 \(\)"),
    "five axes": (good(x_train=np.zeros((6, 1, 1, 1, 1))), r"\(6, 1, 1, 1, 1\)"),
    "negative tokens": (good(x_train=np.full((6, 3), -1)), "negative tokens"),
    "tokens with three axes": (good(x_train=np.zeros((6, 3, 3), int)), "integer tokens"),
    "tokens beyond int32": (good(x_train=np.full((6, 3), LARGEST_INT32 + 1)), "some beyond 2147483647"),
    "huge labels": (good(y_train=np.full(6, 2**64 - 1, np.uint64)), "classes count from 0"),
    "float clients": (good(client_train=np.zeros(6)), "client_train is float64"),
    "negative clients": (good(client_train=np.arange(6) - 1), "client_train goes from -1"),
    "few clients": (good(client_train=np.arange(5)), "6 samples, client_train 5"),
    "clients of one part": (good(x_test=np.zeros((2, 3), np.float32), y_test=np.arange(2), client_train=np.arange(6)),
                            "for one of x_train and x_test only"),
    "clients without tests": (good(client_train=np.arange(6), client_test=np.arange(2)),
                              "client_test names the clients of 2 samples, and there are no x_test and y_test; add"),
    "another test shape": (good(x_test=np.zeros((2, 4), np.float32), y_test=np.arange(2)), "must be alike"),
    "another test type": (good(x_test=np.zeros((2, 3), int), y_test=np.arange(2)), "must be alike"),
    "test labels only": (good(y_test=np.arange(2)), "both or neither"),
    "a validation part": (good(x_val=np.zeros((2, 3)), y_val=np.arange(2), note=np.arange(3)),
                          "holds x_val, y_val, which would not be used; add such samples to those of x_train and"),
    "no labels": ({"x_train": np.zeros((6, 3))}, "holds x_train, but must hold"),
    "other names": ({"data": np.zeros(3)}, "holds data, but must hold"),
    "nothing": ({}, "holds nothing"),
    "pickled": (good(x_train=OBJECTS), "not plain arrays of numbers"),
    "pickled labels": (good(y_train=OBJECTS), "not plain arrays of numbers"),
}


@pytest.mark.parametrize("arrays, message", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_refused_with_their_file_and_reason(tmp_path, arrays, message):
    path = save(tmp_path, **arrays)
    with pytest.raises(BadInput, match=message) as error:
        load(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_pickle_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    with pytest.raises(BadInput):
        load(save(tmp_path, **good(x_train=np.array([Trap()] * 6, object))))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip at all", b"\x93NUMPY\x01\x00"])
def test_what_is_not_an_npz_is_refused(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not an .npz file"):
        load(path)


def test_a_damaged_npz_is_refused_wherever_it_is_damaged(tmp_path):
    path = save(tmp_path, **good())
    whole = path.read_bytes()
    # This place is within the labels.
    inside = whole.index(np.arange(6).tobytes())
    for broken in (whole[:inside] + b"\xff" + whole[inside + 1:], whole[:-10], whole[:inside]):
        path.write_bytes(broken)
        with pytest.raises(BadInput, match="damaged|cut short"):
            load(path)


def test_a_third_partys_pool_may_be_lists_with_an_empty_test_part():
    pool = check_samples(Dataset([[0.0], [1.0]], [0, 1], [], []), "data.name = theirs")
    assert pool.x_train.shape == (2, 1) and pool.x_test.shape == (0, 1)
    with pytest.raises(BadInput, match="data.name = theirs: y_train"):
        check_samples(Dataset([[0.0]], ["a"], [], []), "data.name = theirs")


def test_a_pool_may_leave_out_its_test_part():
    made = check_samples(Dataset(np.ones((3, 2)), [0, 1, 1]), "mine")
    assert made.x_test.shape == (0, 2) and made.y_test.shape == (0,)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_come_last(dtype):
    """PyTorch's images would be taken for images of 3 x 32 pixels with 32 channels."""
    for channels in (1, 3):
        with pytest.raises(BadInput, match=r"mine: x_train has shape \(2, ., 32, 32\), which looks like \(n, channels"):
            check_samples(Dataset(np.ones((2, channels, 32, 32), dtype), [0, 1]), "mine")
    # Bytes with many channels are no images: an oblong is refused, too.
    for shape in ((2, 3, 24, 32), (2, 4, 32, 32), (2, 1, 8, 5)) if dtype == np.uint8 else ():
        with pytest.raises(BadInput, match="mine: x_train has shape .*, which looks like .n, channels"):
            check_samples(Dataset(np.ones(shape, dtype), [0, 1]), "mine")
    oblong = ((2, 3, 32, 16), (2, 4, 8, 8)) if dtype == np.float32 else ((2, 3, 32, 4), (2, 2, 32, 16), (2, 5, 8, 8))
    for shape in ((2, 32, 32, 3), (2, 1, 4, 4), (2, 2, 8, 8), *oblong):
        assert check_samples(Dataset(np.ones(shape, dtype), [0, 1]), "mine").x_train.shape == shape


def test_clients_are_read_and_may_lack_a_test_part(tmp_path):
    pool = load(save(tmp_path, **good(client_train=np.arange(6, dtype=np.uint8))))
    assert pool.client_train.tolist() == list(range(6)) and pool.client_train.dtype == np.int64
    assert pool.client_test.shape == (0,) and load(save(tmp_path, **good())).client_train is None
    pool = load(save(tmp_path, **good(x_test=np.zeros((2, 3), np.float32), y_test=np.arange(2),
                                      client_train=np.arange(6), client_test=np.array([4, 2]))))
    assert pool.client_test.tolist() == [4, 2]


def medmnist(**changes):
    arrays = {f"{part}_images": np.full((n, 28, 28, 3), n, np.uint8) for part, n in PARTS}
    labels = {f"{part}_labels": np.full((n, 1), n, np.uint8) for part, n in PARTS}
    return {**arrays, **labels, **changes}


PARTS = (("train", 4), ("val", 2), ("test", 1))


@pytest.mark.parametrize("labels, said", [
    ([1, 2, 3, 1, 2, 3], r"mine.npz: y has labels from 1 to 3, and classes are counted from 0.*; store y - 1"),
    ([1, 2, 4, 1, 2, 4], None), ([0, 1, 2, 1, 2, 2], None), ([1] * 6, None)])
def test_classes_that_are_counted_from_1_are_refused(tmp_path, labels, said):
    path = save(tmp_path, **good(y_train=np.array(labels)))
    if said is None:
        assert load(path).y_train.tolist() == labels
        return
    with pytest.raises(BadInput, match=said):
        load(path)


def test_classes_that_have_names_are_counted_from_0():
    refuse_gaps(np.array([1, 2, 3]), "mine", named=True)


class OwnNumbers:
    """A data set of one's own, whose numbers a test sets."""
    y = ()

    def load(self, root):
        return np.ones((len(self.y), 2)), self.y, [], []


@pytest.mark.parametrize("y", [[1, 2, 3] * 2, [-5, 0, 5] * 2, [10 ** 6, 70_000] * 3, [0, 60_000] * 3])
def test_any_integers_are_targets_for_regression(tmp_path, monkeypatch, y):
    """As classes, they would be counted from 1, negative, too large, and with wide gaps."""
    path = save(tmp_path, **good(y_train=np.array(y), x_test=np.zeros((2, 3)), y_test=np.array([.5, 7])))
    pool = files.load(name="arrays", file=str(path), partition="iid", task="regression")
    assert pool.y_train.dtype == pool.y_test.dtype == np.float32 and pool.y_train.tolist() == y
    monkeypatch.setattr(OwnNumbers, "y", y)
    own = files.load(name=f"{__name__}:OwnNumbers", partition="iid", task="regression")
    assert own.y_train.dtype == np.float32 and own.y_train.tolist() == y


@pytest.mark.parametrize("y, said", [
    (np.ones((6, 1)), r"y_train is float64 \(6, 1\); it must be numbers, targets \(n,\): store y_train\[:, 0\]$"),
    (np.array(["a"] * 6), r"y_train is <U1 \(6,\); it must be numbers, targets \(n,\)$")])
def test_what_is_no_target_is_told_what_targets_are(tmp_path, y, said):
    with pytest.raises(BadInput, match=said):
        check_samples(read_npz(save(tmp_path, **good(y_train=y))), "mine", "regression")


def test_a_file_of_medmnist_is_read_as_it_is(tmp_path):
    pool = load(save(tmp_path, **medmnist()))
    assert pool.x_train[:, 0, 0, 0].tolist() == pool.y_train.tolist() == [4, 4, 4, 4, 2, 2]
    assert pool.x_test.shape == (1, 28, 28, 3) and pool.y_test.tolist() == [1]
    with pytest.raises(BadInput, match="damaged"):
        load(save(tmp_path, **medmnist(val_images=np.zeros((2, 28, 28), np.uint8))))
    # Samples may not have several labels.
    with pytest.raises(BadInput, match=r"y_train is uint8 \(6, 14\)"):
        load(save(tmp_path, **{k: np.repeat(v, 14, 1) if "labels" in k else v for k, v in medmnist().items()}))


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 3), }"


@pytest.mark.parametrize("header", [
    HEADER[:-6], HEADER + "(((", HEADER.replace("6", str(10 ** 26)), HEADER.replace("6", "-6"),
    HEADER.replace("6, 3", "True, 8"), HEADER.replace("'shape'", "b'shape'"), HEADER.replace("'descr'", "3"),
    HEADER.replace("'descr'", "[]"), "(" * 5000, HEADER.replace("<f4", "<f4\0"), HEADER.replace("<f4", "zz9"),
    HEADER.replace("6", "6.5"), HEADER.replace("(6, 3)", "6")])
def test_a_header_of_any_kind_is_refused_in_one_line(tmp_path, header):
    """NumPy evaluates headers as Python text, which raises errors of a dozen classes."""
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(400)
    path = save(tmp_path, y_train=np.arange(6))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train.npy", npy)
    with pytest.raises(BadInput, match="mine.npz: damaged, or not plain arrays of numbers .*numpy.savez") as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_a_damaged_compressed_member_is_refused(tmp_path, method):
    path = save(tmp_path, **good(x_train=np.random.default_rng(0).random((6, 30)).astype(np.float32)))
    packed = tmp_path / "packed.npz"
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(packed, "w", method) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
    whole = packed.read_bytes()
    for at in range(45, 245, 20):
        packed.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5a]) + whole[at + 1:])
        with pytest.raises(BadInput, match="packed.npz: damaged"):
            load(packed)


@pytest.mark.parametrize("largest, refused", [(65_535, True), (9_999, True), (1000, True), (999, False)])
def test_labels_with_wide_gaps_are_refused_with_the_line_that_numbers_them(tmp_path, largest, refused):
    """Each class is an output of the network and a column of the counts, and 65,536 classes took 34 GB."""
    path = save(tmp_path, **good(y_train=np.array([0, largest] * 3)))
    if not refused:
        assert load(path).y_train.max() == largest
        return
    with pytest.raises(BadInput, match="y has labels up to .* only 2 different ones.*return_inverse=True"):
        load(path)
    all_used = np.zeros((largest // 10 + 1, 3), np.float32)
    load(save(tmp_path, x_train=all_used, y_train=np.r_[np.arange(len(all_used) - 1), largest]))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir(),
                                  lambda path: path.symlink_to("nowhere")], ids=["pipe", "device", "folder", "link"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, make):
    make(tmp_path / "mine.npz")
    with pytest.raises(BadInput, match="mine.npz: cannot read the data set: .*data.file"):
        load(tmp_path / "mine.npz")


def test_a_single_number_in_place_of_samples_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"x_test is float16 \(\); it must be"):
        load(save(tmp_path, **good(x_test=np.float16(3), y_test=np.zeros(0, np.int64))))
