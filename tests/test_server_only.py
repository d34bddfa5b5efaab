"""Fields of Shared that are SERVER_ONLY: kept, saved and never sent; whoever uses one at a client is told so."""
from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import torch
from torch import Tensor

from fedmpi.errors import BadInput
from fedmpi.method import SERVER_ONLY, WHOLE, Nothing
from fedmpi.methods.fedavg import FedAvg, Up
from fedmpi.server_only import hide_server_only, list_sent, refuse_server_only, select_sent
from fedmpi.storage.checkpoint import read_checkpoint
from tests.federations import Lab
from tests.runs import Bench

PROGRAM = """from typing import Annotated, NamedTuple
import torch
from torch import Tensor
from fedmpi.method import SERVER_ONLY, WHOLE, Nothing
from fedmpi.methods.fedavg import FedAvg, Up
class Shared(NamedTuple):
    w: Annotated[Tensor, WHOLE]
    m: Annotated[Tensor, WHOLE, SERVER_ONLY]
class Mine(NamedTuple):
    m: {mine}
class Own(FedAvg):
    def init(self, n):
        return Shared(self.model.start, 0 * self.model.start), Mine(torch.zeros(1))
    def client(self, shared, mine, data):
        return mine, Up({client})
    def server(self, shared, up, who):
        return Shared(up.w.mean(), shared.m + 1)
    def personal(self, shared, mine, data):
        return {personal}
"""


class Shared(NamedTuple):
    w: Annotated[Tensor, WHOLE]
    m: Annotated[Tensor, WHOLE, SERVER_ONLY]
    k: Tensor


class Momentum(FedAvg):
    def init(self, n):
        return Shared(self.model.start, torch.zeros(self.model.size), torch.tensor(0)), Nothing()

    def server(self, shared, up, who):
        m = .5 * shared.m + up.w.mean() - shared.w
        return Shared(shared.w + m, m, shared.k + 1)


SHARED = Shared(torch.ones(3), torch.ones(2), torch.tensor(4))


def test_clients_see_all_fields_but_these():
    assert list_sent(Shared) == (True, False, True) and list_sent(Nothing) == ()
    assert [*map(id, select_sent(SHARED))] == [id(SHARED.w), id(SHARED.k)]
    hidden = hide_server_only(SHARED)
    assert hidden.w is SHARED.w and hidden.k is SHARED.k and hide_server_only(Up(SHARED.w)).w is SHARED.w
    assert hide_server_only(hidden).k is SHARED.k


@pytest.mark.parametrize("use", [
    lambda m: m + 1, lambda m: 2 * m, lambda m: torch.ones(2) - m, lambda m: -m, lambda m: m[0], lambda m: len(m),
    lambda m: torch.stack([torch.ones(2), m]), lambda m: torch.where(torch.ones(2) > 0, m, m), lambda m: m.shape,
    lambda m: torch.ones(2, 2) @ m, lambda m: bool(m), lambda m: m.clone(), lambda m: m == 0, lambda m: m != 0,
    lambda m: m == 0, lambda m: torch.ones(2) == m, lambda m: m < 1, lambda m: m > 1, lambda m: m >= 1, lambda m: m % 2,
    lambda m: abs(m), lambda m: ~m, lambda m: m // 2, lambda m: 2 ** m])
def test_whatever_a_client_does_with_one_is_refused(use):
    with pytest.raises(BadInput, match="^method: Shared.m is SERVER_ONLY, so it is never sent"):
        use(hide_server_only(SHARED).m)


def test_only_fields_of_shared_can_be_that():
    refuse_server_only(Nothing(), Up(torch.ones(1)), ())
    with pytest.raises(BadInput, match="^method: Shared.m is SERVER_ONLY, which only fields of Shared can be"):
        refuse_server_only(Nothing(), SHARED)


def test_they_are_neither_sent_nor_counted(mlp, federation):
    lab = Lab(Momentum().with_model(mlp), federation).go(2)
    assert lab.method.traffic(lab.shared, lab.up) == (4 * mlp.size + 8, 4 * mlp.size)
    flags, *values = lab.pool.list_changed_fields(lab.shared)
    assert flags.tolist() == [True, True] and [v.size for v in values] == [mlp.size, 1]
    lab.shared.m.add_(1)
    assert not lab.pool.list_changed_fields(lab.shared)[0].any()


@pytest.fixture
def program(tmp_path, cache, monkeypatch):
    """Write a method of one's own, and return a bench whose runs take it."""
    def program(name, mine="Tensor", client="data.descend(self.model, shared.w)", personal="shared.w"):
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(mine=mine, client=client, personal=personal))
        monkeypatch.syspath_prepend(str(tmp_path))
        return Bench(tmp_path, cache)
    return program


def test_checkpoints_hold_them_and_a_run_goes_on_with_them(program):
    bench = program("kept_at_server")
    assert bench.lead("a", "method=kept_at_server:Own", "rounds=2") == 0
    saved = read_checkpoint(bench.saved("a")[-1]).shared
    assert saved["m"].shape == saved["w"].shape and (saved["m"] == 2).all()
    assert bench.lead("a", "method=kept_at_server:Own", resume="auto") == 0
    assert (read_checkpoint(bench.saved("a")[-1]).shared["m"] == 3).all()


@pytest.mark.parametrize("name, wrong, says", [
    ("used_by_client", {"client": "data.descend(self.model, shared.w + shared.m)"}, "Shared.m is SERVER_ONLY, so it"),
    ("used_by_judge", {"personal": "shared.m"}, "personal() must return the weights of the network"),
    ("declared_in_mine", {"mine": "Annotated[Tensor, SERVER_ONLY]"}, "Mine.m is SERVER_ONLY, which only fields")])
def test_misuse_ends_before_the_first_round_with_code_2(program, capfd, name, wrong, says):
    bench = program(name, **wrong)
    assert bench.lead("run", f"method={name}:Own") == 2
    assert says in capfd.readouterr().err and not bench.saved("run")
