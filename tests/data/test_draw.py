import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedmpi.data.draw import draw, limits, mark_groups
from fedmpi.data.partitions import ClusterDirichlet, ClusterNClass, Dirichlet, FewShot, Iid, NClass, Pathological
from fedmpi.errors import BadInput


def picture(federation, path):
    draw(federation, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("classes, clients, partition", [
    (10, 20, Dirichlet(.5)), (10, 20, Pathological(2)), (100, 100, Pathological(10)), (2, 1, Iid()),
    (10, 1000, Dirichlet(10., "plain")), (10, 40, NClass(2)), (10, 200, ClusterDirichlet()), (10, 20, ClusterNClass()),
    (10, 20, FewShot(.3))], ids=repr)
def test_a_picture_of_any_size_is_readable(federation, arrays, tmp_path, classes, clients, partition):
    labels = np.arange(max(600, 12 * clients)) % classes
    pixels = picture(federation(**arrays(labels), clients=clients, partition=partition), tmp_path / "a.png")
    height, width, _ = pixels.shape
    assert 800 <= width <= 2000 and 500 <= height <= 1300
    assert .02 < (pixels.min(2) < 250).mean() < .95      # neither blank nor full


def test_every_part_and_every_held_class_is_coloured(federation, tmp_path):
    two = picture(federation(), tmp_path / "a.png")
    three = picture(federation(split=(.6, .2, .2)), tmp_path / "b.png")
    blue, green, orange = (0, 114, 178), (0, 158, 115), (230, 159, 0)
    seen = [[(np.abs(p - colour).max(2) < 8).sum() > 500 for colour in (blue, green, orange)] for p in (two, three)]
    assert seen == [[True, False, True], [True, True, True]]


def test_planted_groups_are_told_apart_even_when_clients_are_numbered_otherwise(federation, tmp_path):
    f = federation(partition=Pathological(2))
    sorted_ = picture(f, tmp_path / "a.png")
    turned = np.random.default_rng(0).permutation(20)
    f.groups, f.counts, f.label_counts = f.groups[turned], f.counts[turned], f.label_counts[turned]
    again = picture(f, tmp_path / "b.png")
    # the same five blocks: only the order inside a block, and the numbers below, may differ
    assert np.mean((sorted_.min(2) > 250) != (again.min(2) > 250)) < .05
    f.groups = None
    assert np.mean((sorted_.min(2) > 250) != (picture(f, tmp_path / "c.png").min(2) > 250)) > .1


def test_the_colours_span_what_occurs():
    assert limits(np.array([[0, 3], [70, 9]])) == (3, 70)
    assert limits(np.array([[0, 5]])) == (5, 6)


def test_a_picture_that_cannot_be_written_is_bad_input(federation, tmp_path):
    with pytest.raises(BadInput, match="cannot write the picture: No such file"):
        draw(federation(), tmp_path / "no folder" / "a.png")


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
