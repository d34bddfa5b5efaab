import numpy as np
import pytest
from PIL import Image

from fedmpi.data.draw import draw, limits
from fedmpi.data.partitions import Dirichlet, Iid, Pathological
from fedmpi.errors import BadInput


def picture(federation, path):
    draw(federation, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("classes, clients, partition", [
    (10, 20, Dirichlet(.5)), (10, 20, Pathological(2)), (100, 100, Pathological(10)), (2, 1, Iid()),
    (10, 1000, Dirichlet(10., "plain"))], ids=repr)
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
