"""Passes of engine `vmap` over all samples of many clients, without gradients."""
from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode

from fedmpi.engines.loop import Loop
from fedmpi.engines.padding import SAMPLES_PER_BLOCK
from fedmpi.engines.vmap import Vmap
from tests.clients.verbs import Bench, class_sums, mean_loss, mean_loss_through, subset
from tests.engines.test_engines import difference


@pytest.mark.parametrize("verb", [class_sums, mean_loss, subset], ids=lambda verb: verb.__name__)
def test_samples_of_several_blocks_count_like_those_of_one(verb):
    """Passes without gradients take whole blocks of samples; clients have several blocks, and one has less than one."""
    bench = Bench((2 * SAMPLES_PER_BLOCK + 3, SAMPLES_PER_BLOCK, 5))
    # The tolerance is for sums of up to 131 outputs.
    assert difference(bench, Loop(), Vmap(), verb) < 1e-4


@pytest.mark.parametrize("verb", [mean_loss, mean_loss_through], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("image", [False, True], ids=["mlp", "cnn"])
def test_passes_leave_out_blocks_of_mere_padding(verb, image):
    """Clients of one block cost what they hold, although all are padded to the four blocks of the largest."""
    def count(*sizes):
        with FlopCounterMode(display=False) as counter:
            Bench(sizes, image).run(Vmap(), verb)
        return counter.get_total_flops()
    assert count(3 * SAMPLES_PER_BLOCK + 1, 3, SAMPLES_PER_BLOCK) - count(3) == (4 + 1) * (count(3, 3) - count(3))


def test_models_that_all_clients_share_are_one_network():
    """A product for each client, as of weights of its own, takes several times as long on convolutions."""
    bench = Bench((2 * SAMPLES_PER_BLOCK, 3))

    def run(verb, clients):
        with FlopCounterMode(display=False) as counter:
            found = bench.run(Vmap(), verb, clients)
        return found[0], {operator.__name__ for operator in counter.get_flop_counts()["Global"]}

    def shared_loss(model, shared, mine, data):
        return data.mean_loss(model, shared)

    def own_loss(model, shared, mine, data):
        return data.mean_loss(model, mine.w)
    (among_others, operators), (alone, _) = run(shared_loss, [0, 1]), run(shared_loss, [0])
    assert operators == {"addmm"} != run(own_loss, [0, 1])[1]
    # bits do not depend on which clients a rank hosts
    assert among_others == alone
