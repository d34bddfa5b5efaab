from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from fedmpi.data import label_plot as module
from fedmpi.data.label_plot import draw_distribution, find_color_limits, mark_groups, write_label_plot
from fedmpi.data.partitions import Dirichlet, Iid, NClass, Pathological
from fedmpi.errors import BadInput
from fedmpi.task import CLASSIFICATION

pytestmark = pytest.mark.slow("figures")


def picture(federation, path):
    write_label_plot(federation, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("classes, clients, partition", [
    (10, 20, Dirichlet(.5)), (100, 100, Pathological(10)), (2, 1, Iid()), (10, 1000, Dirichlet(10., "plain"))],
    ids=repr)
def test_a_picture_of_any_size_is_readable(federation, arrays, tmp_path, classes, clients, partition):
    labels = np.arange(max(600, 12 * clients)) % classes
    pixels = picture(federation(**arrays(labels), clients=clients, partition=partition), tmp_path / "a.png")
    height, width, _ = pixels.shape
    assert 800 <= width <= 2000 and 500 <= height <= 1300
    # The picture is neither blank nor full.
    assert .02 < (pixels.min(2) < 250).mean() < .95


# Labels of three clients and four classes in training, validation and test part; client 1 belongs to group 0.
LABELS = np.array([[[9, 0, 0, 1], [2, 0, 0, 0], [1, 0, 0, 3]],
                   [[0, 40, 0, 0], [0, 0, 0, 0], [0, 5, 0, 0]],
                   [[0, 0, 80, 2], [0, 0, 0, 4], [0, 0, 7, 0]]])
SETTINGS = {"partition": {"name": "pathological", "classes_per_client": 2, "balanced": None}}


def handmade(groups=None, names=None, labels=LABELS):
    return SimpleNamespace(name="digits", clients=len(labels), classes=labels.shape[2], counts=labels.sum(2),
                           label_counts=labels, groups=groups, group_names=names, settings=SETTINGS,
                           task=CLASSIFICATION, names={})


def test_classes_and_clients_have_the_names_that_the_data_give():
    federation = handmade()
    federation.names = {"class_names": ["a $1 bill", "b" * 30, *"cdefghij"], "client_names": [
        f"ward {i}" for i in range(federation.clients)]}
    table = draw_distribution(federation).axes[1]
    assert [text.get_text() for text in table.get_yticklabels()][:2] == [r"a \$1 bill", "b" * 17 + "..."]
    assert [text.get_text() for text in table.get_xticklabels()] == federation.names["client_names"]


def test_a_name_that_is_no_text_is_drawn_as_escapes(tmp_path):
    """A folder's name may have any bytes, which Matplotlib refuses."""
    federation = handmade()
    federation.names = {"class_names": ["caf\udce9", *"bcd"]}
    figure = draw_distribution(federation)
    assert figure.axes[1].get_yticklabels()[0].get_text() == r"caf\udce9"
    figure.savefig(tmp_path / "a.png")


def test_dollars_in_names_of_groups_and_settings_are_no_formulas(tmp_path):
    federation = handmade(groups=np.arange(len(LABELS)) % 2, names=["a$_$b", "c" * 30])
    federation.settings = {"partition": {"name": "indices", "file": "a$_$b.json"}}
    figure = draw_distribution(federation)
    assert figure.get_suptitle() == r"digits: indices(file=a\$_\$b.json)"
    assert {r"a\$_\$b", "c" * 17 + "..."} <= {text.get_text() for text in figure.axes[0].texts}
    figure.savefig(tmp_path / "a.png")


@pytest.mark.parametrize("clients, named, degrees", [(8, True, 0), (9, True, 90), (9, False, 0)])
def test_the_names_of_many_clients_stand_upright(clients, named, degrees):
    federation = handmade(labels=np.ones((clients, 3, 2), int))
    federation.names = {"client_names": [f"ward {i}" for i in range(clients)]} if named else {}
    table = draw_distribution(federation).axes[1]
    assert {label.get_rotation() for label in table.get_xticklabels()} == {degrees}


def bars(axes) -> dict:
    """Return the lower and upper ends of the bars of each part, by its name and colour."""
    return {(p.get_label(), to_hex(p.get_facecolor())): (p.get_data().baseline.tolist(), p.get_data().values.tolist())
            for p in axes.patches}


def test_the_picture_counts_all_samples_of_a_client():
    figure = draw_distribution(handmade())
    sizes, table, colours = figure.axes
    assert bars(sizes) == {("train", "#0072b2"): ([0, 0, 0], [10, 40, 82]),
                           ("validation", "#009e73"): ([10, 40, 82], [12, 40, 86]),
                           ("test", "#e69f00"): ([12, 40, 86], [16, 45, 93])}
    assert sizes.patches[0].get_data().edges.tolist() == [-.5, .5, 1.5, 2.5] and sizes.get_ylim()[0] == 0
    image, = table.images
    # Classes go upwards, clients to the right.
    counts = [[12, 0, 0], [0, 45, 0], [0, 0, 87], [4, 0, 6]]
    assert image.get_array().filled(0).tolist() == counts and image.origin == "lower"
    assert image.get_array().mask.tolist() == [[n == 0 for n in row] for row in counts]
    assert (image.norm.vmin, image.norm.vmax) == (4, 87) and image.get_interpolation() == "nearest"
    written = {text.get_position(): (text.get_text(), text.get_color()) for text in table.texts}
    assert written == {(0, 0): ("12", "black"), (1, 1): ("45", "white"), (2, 2): ("87", "white"),
                       (0, 3): ("4", "black"), (2, 3): ("6", "black")}      # sqrt(4 x 87) is 18.7
    assert figure.get_suptitle() == "digits: pathological(classes_per_client=2)"
    assert (sizes.get_ylabel(), table.get_xlabel(), table.get_ylabel()) == ("samples", "client", "class")
    assert [text.get_text() for text in figure.legends[0].texts] == ["train", "validation", "test"]
    # Ticks grow by a factor of 2.16.
    assert [round(tick) for tick in colours.get_yticks()] == [4, 9, 19, 40, 87]
    assert table.get_yticks().tolist() == [0, 1, 2, 3] and not sizes.texts and not table.lines


def test_clients_are_sorted_by_their_groups_in_all_that_is_drawn():
    sizes, table, _ = draw_distribution(handmade(np.array([1, 0, 1]), ["a", "b"])).axes
    assert bars(sizes)["train", "#0072b2"][1] == [40, 10, 82]
    assert table.images[0].get_array().filled(0).tolist() == [[0, 12, 0], [45, 0, 0], [0, 0, 87], [0, 4, 6]]
    assert [label.get_text() for label in table.get_xticklabels()] == ["1", "0", "2"]
    assert table.get_xlabel() == "client, sorted by planted group (lines)"
    assert [(text.get_text(), text.get_position()[0]) for text in sizes.texts] == [("a", 0), ("b", 1.5)]
    assert [line.get_xdata()[0] for line in (*sizes.lines, *table.lines)] == [.5, .5]


@pytest.mark.parametrize("clients, classes, numbers, ticks", [
    (25, 12, True, True), (26, 12, False, True), (25, 13, False, True), (40, 20, False, True), (41, 21, False, False)])
def test_what_has_no_room_is_not_written(clients, classes, numbers, ticks):
    labels = np.ones((clients, 3, classes), int)
    _, table, _ = draw_distribution(handmade(labels=labels)).axes
    assert bool(table.texts) == numbers
    assert (len(table.get_xticks()) == clients) == (len(table.get_yticks()) == classes) == ticks


def test_the_map_is_blended_only_where_it_has_more_clients_than_pixels(monkeypatch):
    monkeypatch.setattr(module, "PIXELS", 4)
    for clients, how in ((4, "nearest"), (5, "auto")):
        table = draw_distribution(handmade(labels=np.ones((clients, 3, 2), int))).axes[1]
        assert table.images[0].get_interpolation() == how


@pytest.mark.parametrize("clients, classes, size", [(1, 2, (7, 4.5)), (20, 10, (10, 5.6)), (100, 100, (14, 9))])
def test_the_picture_grows_with_clients_and_classes(clients, classes, size):
    figure = draw_distribution(handmade(labels=np.ones((clients, 3, classes), int)))
    assert figure.get_size_inches().tolist() == pytest.approx(size)


def test_many_groups_have_numbers_and_too_many_lines_alone():
    for groups, first, count in ((8, "group 0", 8), (9, "0", 9), (25, "0", 25), (26, None, 0)):
        sizes, table = Figure().subplots(2)
        mark_groups(sizes, table, np.arange(groups))
        assert [text.get_text() for text in sizes.texts][:1] == [first] * bool(count) and len(sizes.texts) == count
        assert len(sizes.lines) == len(table.lines) == groups - 1


def test_the_colours_span_what_occurs():
    assert find_color_limits(np.array([[0, 3], [70, 9]])) == (3, 70)
    assert find_color_limits(np.array([[0, 5]])) == (5, 6)


def test_a_picture_that_cannot_be_written_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="cannot write the picture: No such file"):
        write_label_plot(handmade(), tmp_path / "no folder" / "a.png")


@pytest.mark.parametrize("names, shown", [(["other", "few-shot"], ["other", "few-shot"]),
                                          (None, ["group 0", "group 1"])])
def test_groups_are_called_by_their_names_or_numbers(names, shown):
    sizes, table = Figure().subplots(2)
    mark_groups(sizes, table, np.array([0, 0, 1]), names)
    assert [text.get_text() for text in sizes.texts] == shown and len(table.lines) == 1


def test_texts_are_drawn_like_all_else(federation, tmp_path):
    np.savez(tmp_path / "texts.npz", x_train=np.arange(600).reshape(60, 10), y_train=np.arange(60) % 4)
    f = federation(name="arrays", file=str(tmp_path / "texts.npz"), clients=6, partition=NClass(2))
    assert f.dtype == np.int32 and picture(f, tmp_path / "a.png").shape[2] == 3
