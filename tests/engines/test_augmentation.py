"""Changed images: what a change does to pixels, what is drawn, and that both engines train on the same images."""
from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from fedmpi.comm.transport import Solo
from fedmpi.config.schema import Train
from fedmpi.engines.augmentation import change_images, draw_changes
from fedmpi.engines.batch_plan import Augmentation, LocalTraining, draw_batches
from fedmpi.engines.loop import Loop
from fedmpi.engines.loop_data import LoopData
from fedmpi.engines.vmap import Vmap
from fedmpi.models.build import as_input
from tests import forked
from tests.clients.verbs import NUMBER, Bench, mean_loss, plain, scan_streams, with_batches, with_features
from tests.engines import on_ranks
from tests.federations import Digits, Lab, apart, cnn, method

BOTH = Augmentation(padding=2, flip=True)
LOCAL = LocalTraining(3, NUMBER, 10, 2, None, .05, 0., augmentation=BOTH)


@pytest.fixture(scope="module")
def bench():
    """Clients of 23, 1, 11 and 3 images of 8 x 8 bytes in batches of 10."""
    return Bench((23, 1, 11, 3), image=True)


def by_hand(image: np.ndarray, change) -> np.ndarray:
    """Pad an image (h, w, c), cut it out, and mirror it."""
    (down, right, mirrored), padding = change, 9
    height, width, _ = image.shape
    wide = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    cut = wide[padding + down:, padding + right:][:height, :width]
    return cut[:, ::-1] if mirrored else cut


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_a_change_is_a_crop_with_padding_and_a_mirror(kind):
    x = torch.randint(1, 256, (9, 5, 7, 3), generator=torch.Generator().manual_seed(1)).to(kind)
    changes = np.array([(0, 0, 0), (2, 0, 0), (-2, 0, 0), (0, 3, 0), (0, -3, 0), (1, -2, 0), (0, 0, 1), (1, -2, 1),
                        (-4, 6, 1)])
    found = change_images(x, torch.from_numpy(changes.astype(np.int16)))
    expected = np.stack([by_hand(image, change) for image, change in zip(x.numpy(), changes, strict=True)])
    assert found.dtype == kind and found.is_contiguous() and torch.equal(found, torch.from_numpy(expected))
    assert torch.equal(found[0], x[0]) and not torch.equal(found[1:], x[1:])


def test_all_changes_are_drawn_and_no_others():
    drawn = draw_changes(LOCAL._replace(batch=50), 4, 0, 200)
    assert drawn.shape == (200, 50, 3) and drawn.dtype == np.int16
    for column, values in enumerate((range(-2, 3), range(-2, 3), range(2))):
        found, counts = np.unique(drawn[..., column], return_counts=True)
        assert found.tolist() == [*values]
        np.testing.assert_allclose(counts / counts.sum(), 1 / len(values), atol=.02)
    pairs = np.corrcoef(drawn.reshape(-1, 3).T.astype(float))
    assert abs(pairs - np.eye(3)).max() < .05


@pytest.mark.parametrize("other", [{"seed": 4}, {"round": NUMBER + 1}, {"client": 5}, {"stream": 1}])
def test_draws_depend_on_seed_round_client_and_stream(other):
    local = LOCAL._replace(**{k: v for k, v in other.items() if k in ("seed", "round")})
    found = draw_changes(local, other.get("client", 4), other.get("stream", 0), 20)
    assert (found != draw_changes(LOCAL, 4, 0, 20)).any()


def test_draws_do_not_depend_on_what_else_is_asked_for():
    """They do not depend on steps, rate or optimizer; and a crop is the same with and without mirrors."""
    drawn = draw_changes(LOCAL, 4, 0, 20)
    np.testing.assert_array_equal(draw_changes(LOCAL._replace(lr=9., epochs=5), 4, 0, 7), drawn[:7])
    crops = draw_changes(LOCAL._replace(augmentation=Augmentation(padding=2)), 4, 0, 20)
    flips = draw_changes(LOCAL._replace(augmentation=Augmentation(flip=True)), 4, 0, 20)
    np.testing.assert_array_equal(crops[..., :2], drawn[..., :2])
    np.testing.assert_array_equal(flips[..., 2], drawn[..., 2])
    assert not crops[..., 2].any() and not flips[..., :2].any()


def test_the_draws_are_those_of_earlier_runs():
    """So a run can continue from a checkpoint of another version."""
    assert draw_changes(LOCAL, 4, 0, 2)[1, :4].tolist() == [[-2, 0, 0], [2, -1, 1], [2, -1, 0], [-1, -1, 0]]


def test_each_batch_takes_its_images_changed_anew(bench):
    x, y = bench.get_training_samples(0)
    drawn, changes = draw_batches(LOCAL, 0, 0, 23), draw_changes(LOCAL, 0, 0, 6)
    batches = list(LoopData(x, y, 0, LOCAL).batches())
    assert len(batches) == 6
    for t, (images, labels) in enumerate(batches):
        index = drawn.index[t, :drawn.count[t]]
        expected = [by_hand(x[i].numpy(), change) for i, change in zip(index, changes[t], strict=False)]
        assert torch.equal(images, as_input(torch.from_numpy(np.stack(expected)))) and torch.equal(labels, y[index])


@pytest.mark.parametrize("augmentation", [BOTH, Augmentation(padding=3), Augmentation(flip=True)])
@pytest.mark.parametrize("verb", [plain, scan_streams, with_batches])
def test_both_engines_train_on_the_same_images(bench, verb, augmentation):
    loop, vmap = (bench.run(engine, verb, augmentation=augmentation) for engine in (Loop(), Vmap()))
    graphs, without = bench.run(Vmap(graphs="on"), verb, augmentation=augmentation), bench.run(Loop(), verb)
    for c in bench.clients:
        assert (loop[c] - vmap[c]).abs().max() < 1e-5 and torch.equal(vmap[c], graphs[c])
    assert max(float((loop[c] - without[c]).abs().max()) for c in bench.clients) > 1e-3


def test_a_run_with_changed_images_is_the_same_under_both_engines():
    train = Train(batch=10, lr=.05, augment=("crop", "flip"), padding=2)
    loop, vmap, without = (Lab(method("fedavg", cnn()), Digits(image=True), engine, how, share=.6).go(2).state()
                           for engine, how in ((Loop(), train), (Vmap(), train), (Loop(), Train(batch=10, lr=.05))))
    assert apart(loop, vmap) < 1e-5 and apart(loop, without) > 1e-3


def test_the_cohort_sees_the_bits_that_the_loop_sees(bench):
    """This also holds for images that are gathered in several pieces."""
    from fedmpi.engines import loop_data
    from fedmpi.engines.cohort import Cohort
    from fedmpi.engines.padding import pad_samples
    order = (0, 2, 3, 1)
    x, y = zip(*(bench.get_training_samples(c) for c in order), strict=True)
    steps = list(Cohort(pad_samples(x), pad_samples(y), tuple(map(len, y)), order, LOCAL).batches())
    for pieces in (loop_data.BYTES_GATHERED_AT_ONCE, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_data, "BYTES_GATHERED_AT_ONCE", pieces)
            for place, c in enumerate(order):
                alone = LoopData(*bench.get_training_samples(c), c, LOCAL)
                for (images, labels), (_, many, of, _) in zip(alone.batches(), steps, strict=False):
                    assert torch.equal(many[place, :len(labels)], images)
                    assert torch.equal(of[place, :len(labels)], labels)


@pytest.mark.parametrize("engine", [Loop(), Vmap()], ids=["loop", "vmap"])
@pytest.mark.parametrize("verb", [with_features, mean_loss])
def test_features_and_measures_are_those_of_the_images_as_they_are(bench, engine, verb):
    changed, plainly = bench.run(engine, verb, augmentation=BOTH), bench.run(engine, verb)
    assert all(torch.equal(changed[c], plainly[c]) for c in bench.clients)


def test_a_part_of_the_samples_is_changed_too(bench):
    data = LoopData(*bench.get_training_samples(0), 0, LOCAL).subset(.5, 3)
    plainly = dataclasses.replace(data, local=LOCAL._replace(augmentation=Augmentation()))
    (x, y), (kept, labels) = next(data.batches()), next(plainly.batches())
    assert torch.equal(y, labels) and not torch.equal(x, kept)


@pytest.fixture(scope="module")
def on_one_rank():
    """The digests of all settings of local training at once, by engine."""
    return {engine.name: on_ranks.digest(Solo(), engine) for engine in (Loop(), Vmap())}


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow("three ranks are tested daily")), 3])
def test_the_same_bits_on_any_number_of_ranks(ranks, on_one_rank):
    done = forked.run(ranks, "tests.engines.on_ranks")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == on_one_rank
