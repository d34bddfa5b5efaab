"""The local part of rank 0's orders: training, kept and sent states, sums, messages, moves."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from fedmpi.comm import exact
from fedmpi.comm.orders import MINE, UP, RowRef
from fedmpi.config.schema import Checkpoint, StateSettings, Train
from fedmpi.engines.batch_plan import NO_AUGMENTATION
from fedmpi.engines.loop import Loop
from fedmpi.engines.vmap import Vmap
from fedmpi.errors import GivenUp
from fedmpi.faults import Attack, Faults
from fedmpi.method import Method
from fedmpi.storage import checkpoint
from tests.federations import Digits, Lab, method, mlp


class Shared(NamedTuple):
    w: torch.Tensor
    k: torch.Tensor


class Mine(NamedTuple):
    a: torch.Tensor      # (2, 3)
    n: torch.Tensor      # () rounds taken part in


class Up(NamedTuple):
    v: torch.Tensor      # (5,)
    z: torch.Tensor      # () int64


class Sums(Method):
    """A method without training, whose clients keep and send simple numbers."""
    bad = None      # the client, and what it does wrong

    def init(self, n):
        return Shared(torch.zeros(4), torch.tensor(0)), Mine(torch.zeros(2, 3), torch.tensor(0))

    def client(self, shared, mine, data):
        number = float(data.id)
        v = number + torch.arange(5.)
        mine = Mine(mine.a + number + torch.arange(6.).view(2, 3), mine.n + 1)
        if self.bad == ("up", int(data.id)):
            v[3] = float("nan")
        if self.bad == ("mine", int(data.id)):
            mine = mine._replace(a=mine.a * float("inf"))
        if self.bad == ("range", int(data.id)):
            mine = mine._replace(a=mine.a + exact.RANGE)
        return mine, Up(v, torch.tensor(int(data.id)))

    def personal(self, shared, mine, data):
        return self.model.start

    def message_template(self):
        return Shared(torch.zeros(3), torch.tensor(0))


SIZES = (20, 1, 57, 3, 10, 33)


def lab(bad=None, world=None, homes=None, **sections):
    chosen = Sums().with_model(mlp())
    type(chosen).bad = None
    run = Lab(chosen, Digits(SIZES), homes=homes, world=world, **sections)
    type(chosen).bad = bad
    return run


def trained(here, everybody=None, **settings):
    run = lab(**settings)
    run.group.messages = dict.fromkeys(run.group.clients, run.method.message_template())
    here = np.array(here)
    run.group.train(0, here if everybody is None else np.array(everybody), here, False)
    return run.group


def test_participants_send_and_keep_and_others_do_not():
    group = trained([1, 4, 5])
    assert list(group.ups) == [1, 4, 5] and [int(up.z) for up in group.ups.values()] == [1, 4, 5]
    assert group.find_touched().tolist() == [False, True, False, False, True, True]
    assert group.collect_states(np.array([4, 0]))["a"].tolist() == [[[4, 5, 6], [7, 8, 9]], [[0] * 3] * 2]
    assert group.collect_states(np.array([4, 0]))["n"].tolist() == [1, 0]
    group.train(1, np.array([4]), np.array([4]), False)
    assert list(group.ups) == [4] and group.collect_states(np.array([4]))["n"].tolist() == [2]
    assert not group.messages      # they were for one round
    assert group.find_bad_updates(np.array([4, 5])).tolist() == [0, 0]
    digests = group.compute_digests()
    assert digests.shape == (6, 32) and digests.dtype == np.uint8 and len({row.tobytes() for row in digests}) == 4


def test_rows_are_columns_of_those_who_have_them():
    group = trained([1, 4, 5])
    assert group.sums.list_holders(UP) == [1, 4, 5] and group.sums.list_holders(MINE) == [0, 1, 2, 3, 4, 5]
    assert group.sums.read_rows(RowRef(UP, 0, 1, 4)).tolist() == [[2, 3, 4], [5, 6, 7], [6, 7, 8]]
    assert group.sums.read_rows(RowRef(UP, 1, 0, 1)).tolist() == [[1], [4], [5]]
    kept = group.sums.read_rows(RowRef(MINE, 0, 2, 5))
    assert kept.dtype == np.float32 and kept[[1, 4]].tolist() == [[3, 4, 5], [6, 7, 8]] and not kept[[0, 2, 3]].any()
    group.ups = {}
    assert group.sums.read_rows(RowRef(UP, 0, 1, 4)).shape == (0, 3)


@pytest.mark.parametrize("reduce", ["exact", "float32"])
def test_sums_are_over_the_hosted_clients(reduce):
    """Sums have weights, one of them 0, in all and by groups; columns 1 to 3 of clients 1, 4 and 5 are i + 1, i + 2."""
    group = trained([1, 4, 5], reduce=reduce)
    rows = np.array([[2., 3], [5, 6], [6, 7]])
    for weights in (np.array([.25, 0, .5]), np.array([.125, .5, -.25])):
        total = torch.as_tensor(group.sums.sum_weighted(RowRef(UP, 0, 1, 3), weights))
        assert total.dtype == (torch.int64 if reduce == "exact" else torch.float32)
        found = total.double() / 2 ** 44 if reduce == "exact" else total
        np.testing.assert_allclose(found, weights @ rows, atol=1e-12)
        by = torch.as_tensor(group.sums.sum_weighted(RowRef(UP, 0, 1, 3), weights, np.array([2, 0, 2]), 3))
        found = by.double() / 2 ** 44 if reduce == "exact" else by
        np.testing.assert_allclose(found, [weights[1] * rows[1], [0, 0], weights[[0, 2]] @ rows[[0, 2]]], atol=1e-12)
    assert not torch.as_tensor(group.sums.sum_weighted(RowRef(UP, 0, 1, 3), np.zeros(3))).any()


@pytest.mark.parametrize("reduce", ["exact", "float32"])
@pytest.mark.parametrize("verb", ["sum", "group", "rows"])
def test_numbers_of_which_there_is_no_sum_are_named(reduce, verb):
    group = trained([1, 4, 5], bad=("up", 4), reduce=reduce)
    ref, weights = RowRef(UP, 0, 1, 5), np.array([.3, .3, .4])
    with pytest.raises(exact.NotFinite, match="^update of v has 1 non-finite values of 4;"):
        if verb == "rows":
            group.sums.read_rows(ref)
        else:
            group.sums.sum_weighted(ref, weights, *((np.array([0, 1, 0]), 2) if verb == "group" else ()))
    assert group.context.client == 4
    # A row with weight 0 is not checked.
    assert group.sums.sum_weighted(ref, np.array([.3, 0, .4])) is not None
    assert group.sums.read_rows(RowRef(UP, 0, 0, 3)).shape == (3, 3)


@pytest.mark.parametrize("bad, what", [(("mine", 4), "non-finite values of 6"), (("range", 4), "out of the range")])
def test_a_state_of_which_there_is_no_sum_is_refused(bad, what):
    """The error names client and field as soon as the state is kept, because the server may never read it."""
    group = lab(bad=bad).group
    group.messages = dict.fromkeys(group.clients, group.method.message_template())
    with pytest.raises(exact.NotFinite, match=f"^update of a has .*{what}"):
        group.train(0, np.array([1, 4, 5]), np.array([1, 4, 5]), False)
    assert group.context.client == 4


@pytest.mark.parametrize("bad", [("mine", 4), ("up", 4), ("range", 4)])
def test_where_bad_updates_are_skipped_the_state_stays(bad):
    group = trained([1, 4, 5], bad=bad, faults=Faults(bad_update="skip"))
    assert list(group.ups) == [1, 5] and group.find_touched().tolist() == [False, True, False, False, False, True]
    assert group.find_bad_updates(np.array([0, 1, 4, 5])).tolist() == [0, 0, 1, 0]
    assert group.find_bad_updates(np.array([4])).dtype == np.int64


def test_the_servers_state_is_heard_field_by_field():
    group = lab().group
    group.receive_shared([True, True], [np.full(4, 2., np.float32), np.array(3)])
    w = np.full(4, 5., np.float32)
    group.receive_shared([True, False], [w])
    w[:] = 9      # a buffer that is used again
    assert group.shared.w.tolist() == [5] * 4 and int(group.shared.k) == 3 and isinstance(group.shared, Shared)
    kept = group.shared.w
    group.receive_shared([False, True], [np.array(8)])
    assert group.shared.w is kept and int(group.shared.k) == 8


@pytest.mark.parametrize("reduce", ["exact", "float32"])
def test_notes_are_sums_with_their_scales(reduce):
    group = lab(reduce=reduce).group
    totals = np.array([[.5, .25, -1.]])
    sent = np.rint(totals * 2 ** 44).astype(np.int64) if reduce == "exact" else totals.astype(np.float32)
    group.add_mixed_field(0, 4, sent, np.array([3.]), (3,))
    assert group.messages[4].w.tolist() == [1.5, .75, -3] and group.messages[4].w.dtype == torch.float32
    assert int(group.messages[4].k) == 0 and list(group.messages) == [4]
    totals = np.array([[2 ** 44]]) if reduce == "exact" else np.array([[1.]])
    group.add_mixed_field(1, 4, totals, np.array([7.]), ())
    assert int(group.messages[4].k) == 7 and group.messages[4].k.dtype == torch.int64
    assert group.messages[4].w.tolist()[0] == 1.5


def test_the_local_training_of_a_round():
    """The rate decays by a factor in each round; the warm-up round (-1) has the first rate."""
    train = Train(batch=7, lr=.08, lr_decay=.5, momentum=.3, epochs=4, steps=9, nesterov=True, weight_decay=.01,
                  clip_norm=2., label_smoothing=.1, drop_last=True)
    group = lab(train=train, seed=12).group
    for when, decay in ((-1, 1), (0, 1), (1, .5), (2, .25), (5, .03125)):
        assert group.plan_training(when) == (12, when, 7, 4, 9, pytest.approx(.08 * decay, rel=1e-12), .3, decay,
                                             "main", ("sgd", .01, True, 2.), .1, NO_AUGMENTATION, None, True, .08)


def test_settings_reach_the_engine_and_the_store(tmp_path):
    group = lab(state=StateSettings(memory=2 ** -16, scratch=str(tmp_path))).group
    assert group.store.memory == group.samples.memory == 2 ** 14 and group.store._spill.folder == str(tmp_path)
    assert isinstance(group.engine, Loop)
    group.use_engine("vmap")
    assert isinstance(group.engine, Vmap) and group.engine.memory == 2 ** 12
    group.use_engine("loop")
    assert isinstance(group.engine, Loop)


def test_attackers_flip_labels_for_training_alone():
    honest, lying = lab().group, lab(attack=Attack("label_flip", share=.4)).group
    assert len(lying.attackers) == 2
    for c in honest.clients:
        y, flipped = honest.get_training_samples(c)[1], lying.get_training_samples(c)[1]
        assert torch.equal(flipped, 9 - y if c in lying.attackers else y)
        assert torch.equal(honest.get_training_samples(c)[0], lying.get_training_samples(c)[0])
        assert torch.equal(honest.samples[c]["y_test"], lying.samples[c]["y_test"])


def test_a_round_is_given_up_before_the_next_client():
    """It is if the stop was requested longer ago than checkpoint.grace, but not after the last client."""
    run = lab(checkpoint=Checkpoint(grace=2.5))
    group, seconds = run.group, iter((0., 2.5, 2.6))
    group.messages = dict.fromkeys(group.clients, run.method.message_template())
    group.context.waits = lambda: next(seconds)
    with pytest.raises(GivenUp, match=r"more than 2.5 s ago \(checkpoint.grace\)"):
        group.train(0, np.arange(6), np.arange(6), False)
    assert list(group.store._rows) == [0, 1, 2] and next(seconds, None) is None
    group.context.waits = lambda: 99.
    group.train(1, np.array([3]), np.array([3]), False)
    assert list(group.ups) == [3]


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_a_round_is_given_up_between_the_steps_of_many_clients(graphs):
    """Clients that are trained at once may take longer than the grace, with recorded steps or not."""
    run = Lab(method("fedavg", mlp()), Digits(SIZES), Vmap(graphs=graphs), checkpoint=Checkpoint(grace=2.5))
    run.group.receive_shared([True], [run.shared.w])
    asked = iter((0., 2.5, 2.6))
    run.group.context.waits = lambda: next(asked)
    with pytest.raises(GivenUp, match=r"more than 2.5 s ago \(checkpoint.grace\)"):
        run.group.train(0, np.arange(6), np.arange(6), False)
    assert set(run.group.ups.values()) == {None} and next(asked, None) is None


def test_who_is_at_work_is_known():
    group, seen = lab().group, []

    class Watching(Sums):
        def client(self, shared, mine, data):
            seen.append((group.context.client, group.context.round))
            return super().client(shared, mine, data)
    group.method = group.checked.method = Watching().with_model(group.method.model)
    group.messages = dict.fromkeys(group.clients, group.method.message_template())
    group.train(7, np.array([2, 5]), np.array([2, 5]), False)
    assert seen == [(2, 7), (5, 7)] and group.context.client is None


def test_clients_move_with_their_states():
    giver, taker = trained([1, 4]), lab(homes=np.ones(6, np.int64)).group
    assert taker.clients == [] and not len(taker.find_touched()) and taker.compute_digests().shape == (0, 32)
    before = giver.compute_digests()
    for client in (4, 2, 1):
        taker.host_client(client, *giver.release_client(client))
    assert (giver.clients, taker.clients) == ([0, 3, 5], [1, 2, 4])
    assert taker.find_touched().tolist() == [True, False, True] and not giver.find_touched().any()
    np.testing.assert_array_equal(taker.compute_digests(), before[[1, 2, 4]])


def test_rows_are_restored_from_a_file_in_runs_of_neighbours(tmp_path, monkeypatch):
    """Only hosted clients are restored: 1, 2 and 5 of those in the file."""
    homes, read = np.array([0, 0, 0, 1, 1, 0]), []
    group = lab(homes=homes).group
    ids = np.array([1, 2, 3, 5])

    class Rows(NamedTuple):
        """Takes the place of a Checkpoint."""
        path: str

        def read_rows(self, start, stop):
            read.append((self.path, start, stop))
            at = np.arange(start, stop)
            return {"a": np.ones((len(at), 2, 3), np.float32) * ids[at][:, None, None], "n": 10 * ids[at]}
    monkeypatch.setattr(checkpoint, "CheckpointFile", Rows)
    group.restore_states("file", ids)
    assert read == [("file", 0, 2), ("file", 3, 4)]
    assert group.clients == [0, 1, 2, 5] and group.find_touched().tolist() == [False, True, True, True]
    assert group.collect_states(np.array([0, 1, 2, 5]))["n"].tolist() == [0, 10, 20, 50]
    assert (group.collect_states(np.array([5]))["a"] == 5).all()
    group.restore_states("file", np.array([3, 4]))
    assert len(read) == 2


def test_what_idle_clients_keep_is_looked_at_too():
    class Idling(Sums):
        idles = True

        def idle(self, shared, mine, data):
            return mine._replace(a=mine.a + (float("inf") if int(data.id) == 3 else 1))
    group = lab().group
    group.method = group.checked.method = Idling().with_model(group.method.model)
    said = "^state of a has 6 non-finite values of 6; it did not train in this round: look at what the method's `idle`"
    with pytest.raises(exact.NotFinite, match=said):
        group.train(0, np.array([1, 4]), np.array([1, 4]), False)
    assert group.context.client == 3 and list(group.ups) == [1, 4]
    assert group.store.read(0).a.tolist() == [[1.] * 3] * 2 and int(group.store.read(0).n) == 0
