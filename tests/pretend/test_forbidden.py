"""The simulated GPU notices what it should: each thing that CUDA refuses, or does slowly, is planted once."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmpi.engines import cuda_graphs
from tests.pretend import GPU, on_gpu, pretend

HERE = "tests/pretend/test_forbidden.py"


@pytest.fixture
def books():
    with pretend() as books:
        yield books


def ours(n: int = 4):
    """Return n numbers of the GPU, made there."""
    return torch.ones(n, device=GPU)


def captured(step):
    """Capture a step on a stream of its own; return the graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        step()
    return graph


def test_tensors_say_where_they_are(books):
    w, x = ours(), torch.ones(4)
    assert w.device == GPU and w.is_cuda and w[1:].view(3).is_cuda and (w * 2 + 1).is_cuda and w.new_zeros(2).is_cuda
    assert x.device.type == "cpu" and not x.is_cuda and not on_gpu(w.cpu()) and on_gpu(x.to("cuda")) and on_gpu(x.to(w))
    assert torch.func.vmap(lambda row: row.new_zeros(3) + float(row.is_cuda))(ours(4).view(2, 2)).sum() == 6


@pytest.mark.parametrize("mix", [
    lambda w, x: w + x, lambda w, x: x.add_(w), lambda w, x: torch.cat([w, x]), lambda w, x: torch.stack([w, x]),
    lambda w, x: torch.cat([w, x[:1].sum()[None]]), lambda w, x: w @ x, lambda w, x: torch.where(x > 0, w, w),
    lambda w, x: torch.stack([w.sum(), x.sum()]), lambda w, x: torch._foreach_add_([w], [x]),
    lambda w, x: x[w.long()], lambda w, x: x.sum().add_(w.sum()), lambda w, x: torch.nn.functional.linear(w, x[None])])
def test_devices_do_not_mix(books, mix):
    with pytest.raises(RuntimeError, match=r"same device.*\(pretended\)"):
        mix(ours(), torch.ones(4))


def test_a_number_of_the_host_may_stand_beside_tensors(books):
    number = torch.tensor(2.)
    assert on_gpu(ours() * number + 1) and on_gpu(torch.where(ours() > 0, ours(), number)) and not books.events


@pytest.mark.parametrize("look", [lambda w: w.numpy(), np.asarray, lambda w: w.detach()[1:].numpy()])
def test_numpy_cannot_see_a_gpu(books, look):
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        look(ours())


@pytest.mark.parametrize("wait, what", [
    (lambda w: w.sum().item(), "item"), (lambda w: float(w[0]), "item"), (lambda w: bool((w > 0).all()), "item"),
    (lambda w: torch.arange(3, device=GPU)[w[:1].long().sum()], "item"), (lambda w: w.nonzero(), "nonzero"),
    (lambda w: w[w > 0], "index by a mask"), (lambda w: w.masked_select(w > 0), "masked_select"),
    (lambda w: w.tolist(), "tolist"), (lambda w: w.cpu(), "a copy to the host"),
    (lambda w: torch.empty(4).copy_(w), "a copy to the host"), (lambda w: w.copy_(torch.ones(4)), "a copy to the GPU"),
    (lambda w: torch.ones(4).to(GPU), "a copy to the GPU"),
    (lambda w: torch.tensor([1, 2], device=GPU), "a copy to the GPU"),
    (lambda w: torch.as_tensor(2., device=w.device), "a copy to the GPU"), (lambda w: w.long().bincount(), "bincount"),
    (lambda w: w.new_tensor(2.), "a copy to the GPU"), (lambda w: w[torch.tensor([1, 2])], "an index of the host"),
    (lambda w: w.unique(), "unique"), (lambda w: torch.equal(w, w), "equal"),
    (lambda w: torch.cuda.synchronize(), "synchronize"),
    (lambda w: torch.cuda.current_stream().synchronize(), "synchronize"),
    (lambda w: w.repeat_interleave(w.long()), "repeat_interleave")])
def test_the_host_waits(books, wait, what):
    """A wait is counted with the line that asks for it; in sync debug mode and within a capture it is refused."""
    w = ours()
    wait(w)
    assert [(kind, found) for kind, found, _ in books.events] == [("sync", what)]
    assert all(place.startswith(HERE) for *_, place in books.events)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        wait(w)
    torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(RuntimeError, match="due to a previous error during capture"):
        captured(lambda: wait(w))


def test_a_copy_is_asynchronous_from_pinned_memory_alone(books):
    torch.ones(4).pin_memory().to(GPU, non_blocking=True)
    torch.empty(4, pin_memory=True).copy_(ours(), non_blocking=True)
    assert not books.events
    torch.ones(4).to(GPU, non_blocking=True)
    assert books.count("unpinned") == 1 == books.count("sync")
    with pytest.raises(RuntimeError, match="cannot pin"):
        ours().pin_memory()


@pytest.mark.parametrize("add", [
    lambda w: w.index_add_(0, torch.zeros(4, dtype=torch.int64, device=GPU), w + 1),
    lambda w: w.index_put_((torch.zeros(4, dtype=torch.int64, device=GPU),), w + 1, accumulate=True),
    lambda w: torch.nn.functional.embedding(w.long(), w[:, None].requires_grad_()).sum().backward()])
def test_atomics_are_seen_unless_order_is_asked_for(books, add):
    add(ours())
    assert books.count("atomic") == 1
    torch.set_deterministic_debug_mode("error")
    try:
        add(ours())
    finally:
        torch.set_deterministic_debug_mode("default")
    assert books.count("atomic") == 1


def test_what_needs_a_context_is_noted(books):
    torch.ones(4).mul(2).numpy()
    assert not books.context and not torch.cuda.is_initialized() and torch.cuda.is_available()
    ours()
    assert books.context[0].startswith("ones at tests/pretend") and torch.cuda.is_initialized()


def test_a_capture_changes_nothing_and_a_replay_performs_what_was_recorded(books):
    w, x, taken = ours(), ours(), []

    def step():
        taken.append(0)
        w[:2].add_((x * 3)[:2])
        x.mul_(2)
    graph = captured(step)
    assert w.tolist() == [1] * 4 and x.tolist() == [1] * 4 and taken == [0]
    launches = books.launches
    for _ in range(2):
        graph.replay()
    assert w.tolist() == [10, 10, 1, 1] and x.tolist() == [4] * 4 and taken == [0] and books.launches == launches + 2


@pytest.mark.parametrize("change", ["number", "memory", "shape", "operation", "more", "host number"])
def test_a_replay_is_held_to_its_step(books, change):
    now, w, other = {"on": False}, ours(), ours()

    def step():
        odd = change if now["on"] else ""
        target = other if odd == "memory" else w[:3] if odd == "shape" else w
        target.add_(2. if odd == "number" else torch.tensor(2.) if odd == "host number" else 1.)
        if odd == "operation":
            w.sub_(1.)
        else:
            w.mul_(2.)
        if odd == "more":
            w.mul_(2.)
    replay = cuda_graphs.record_step(step, torch.cuda.Stream())
    replay()
    assert books.graphs[-1].step is step
    now["on"] = True
    with pytest.raises(AssertionError, match="record"):
        replay()


def test_a_failed_capture_leaves_the_allocator_shaken(books):
    with pytest.raises(RuntimeError, match="previous error"):
        captured(lambda: ours().cpu())
    with pytest.raises(RuntimeError, match="captures_underway"):
        torch.cuda.empty_cache()


def test_a_planned_failure_comes_once(books):
    books.failing = [1, torch.OutOfMemoryError("CUDA out of memory")]
    ours()
    with pytest.raises(torch.OutOfMemoryError):
        ours()
    assert ours().is_cuda


def test_nothing_stays():
    before = torch.Tensor.to, torch.zeros, torch.cuda.Stream, cuda_graphs.record_step
    with pretend():
        assert before != (torch.Tensor.to, torch.zeros, torch.cuda.Stream, cuda_graphs.record_step)
    assert before == (torch.Tensor.to, torch.zeros, torch.cuda.Stream, cuda_graphs.record_step)
    assert not torch.cuda.is_available() or torch.cuda.device_count()
    assert torch.ones(2).device.type == "cpu"
