"""Time single layers and whole steps for many clients in several ways, to see what is worth building in an engine."""
from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from benchmarks.gpu.clock import Spent, measure, measure_kernel
from benchmarks.gpu.handmade import HandMade
from benchmarks.gpu.inside import precision
from benchmarks.gpu.made import seeded
from benchmarks.gpu.notes import Notes
from benchmarks.gpu.steps_speed import federation_of, make

BATCH, LR = 10, .005
# cnn4 on 32 x 32 x 3: input channels, input height and width, output channels. All kernels are 5 x 5.
CONVOLUTIONS = {"conv1": (3, 32, 32), "conv2": (32, 14, 64)}
FC1 = (1600, 512)


def time_layers(notes: Notes) -> None:
    """Note time, FLOP/s and bytes/s of a layer's forward and backward pass, with other weights for each client."""
    options = notes.options
    trials = [(layer, way, clients, how) for how in options.pick(("float32", "tf32"), ("float32",))
              for clients in options.pick((100, 20), (3,)) for layer in (*CONVOLUTIONS, "fc1")
              for way in (("grouped", "unfold", "windows") if layer != "fc1" else ("rows aligned", "rows as they are"))]
    for layer, way, clients, how in notes.cases(trials):
        precision.set_precision(how)
        found, error = notes.attempt(time_layer, layer, way, clients, options.device)
        spent, operations, moved = found or (None, 0, 0)
        notes.put("layers", layer=layer, clients=clients, way=way, precision=how, ms=spent and spent.ms,
                  tflops=spent and operations / spent.seconds / 1e12, gbs=spent and moved / spent.seconds / 1e9,
                  apart=None, error=error)


def time_layer(layer: str, way: str, clients: int, device: str) -> tuple[Spent, float, float]:
    """Return the time of one step of a layer, its floating-point operations, and the bytes of weights that it moves."""
    if layer == "fc1":
        return time_fc1(way == "rows aligned", clients, device)
    i, side, o = CONVOLUTIONS[layer]
    out = side - 4
    w = seeded(clients, o, i, 5, 5, device=device)
    x = seeded(clients, BATCH, i, side, side, device=device, seed=1)
    if way == "windows":
        work = partial(windows_step, w.permute(0, 3, 4, 2, 1).reshape(clients, -1, o).contiguous(),
                       x.permute(0, 1, 3, 4, 2).contiguous())
    else:
        step = vmap(grad(lambda w, x: convolve(way, w, x).square().sum(), (0, 1)))
        work = partial(step, w, x)
    return (measure_kernel(work, device), 3 * 2. * clients * BATCH * out * out * o * i * 25, 4. * 4 * w.numel())


def convolve(way: str, w, x):
    if way == "grouped":
        return F.conv2d(x, w)
    return F.unfold(x, 5).transpose(1, 2).flatten(0, 1) @ w.flatten(1).T


def windows_step(w, x):
    """Compute forward and backward pass as products of patches of channels-last images; the last one updates w."""
    clients, kernel, _ = w.shape
    patches = x.unfold(2, 5, 1).unfold(3, 5, 1).movedim(4, -1).reshape(clients, -1, kernel)
    out = torch.bmm(patches, w)
    back = torch.bmm(out, w.mT)
    w.baddbmm_(patches.mT, out, alpha=-1e-12)
    return back


def time_fc1(aligned: bool, clients: int, device: str) -> tuple[Spent, float, float]:
    inputs, outputs = FC1
    size = inputs * outputs
    # Rows of cnn4 are 2 numbers longer than a multiple of 4.
    stride = size + (64 if aligned else 2)
    w = torch.zeros(clients, stride, device=device)[:, :size].unflatten(1, (inputs, outputs))
    x, g = seeded(clients, BATCH, inputs, device=device), seeded(clients, BATCH, outputs, device=device, seed=1)

    def work():
        torch.bmm(x, w)
        torch.bmm(g, w.mT)
        w.baddbmm_(x.mT, g, alpha=-1e-6)
    return measure_kernel(work, device), 3 * 2. * clients * BATCH * size, 4. * 4 * clients * size


def try_candidates(notes: Notes) -> None:
    """Note the time of a whole step of cnn4 for all clients, by vmap and by a hand-written step. Steps are called,
    replayed from graphs of 1, 4 and 8 steps, or spread over streams."""
    options = notes.options
    for how in options.pick(("float32", "tf32"), ("float32",)):
        for clients in options.pick((100, 20), (2,)):
            for name in notes.cases([f"{kind}, {driver}, {clients} clients, {how}" for kind in ("vmap", "by hand",
                                     "by hand, rows as they are") for driver in options.pick(
                                         DRIVERS, ("called", "2 streams"))]):
                kind, _, driver = name.partition(f", {clients} clients")[0].rpartition(", ")
                precision.set_precision(how)
                found, error = notes.attempt(time_candidate, kind, driver, clients, options.device)
                spent, gap = found or (None, None)
                notes.put("candidates", name=f"{kind}, {driver}", clients=clients, precision=how,
                          ms_step=spent and spent.ms, apart=gap, error=error)


# name -> (steps in a graph, streams)
DRIVERS = {"called": (0, 1), "graph of 1": (1, 1), "graph of 4": (4, 1), "graph of 8": (8, 1), "2 streams": (1, 2),
           "4 streams": (1, 4)}


def time_candidate(kind: str, driver: str, clients: int, device: str) -> tuple[Spent, float]:
    """Return the time of one step, and the difference between its weights and those of vmap's step on the CPU."""
    module = make(federation_of("cifar10", 1, 1), "cpu", "cnn4", "float32").network()
    gap = difference(module, kind, device)
    per_graph, streams = DRIVERS[driver]
    width = max(1, clients // streams)
    steps = [stepper(module, kind, width, device) for _ in range(streams)]
    if device == "cpu":
        return measure(lambda: [step() for step in steps], device, 1, warm_s=.01), gap
    lanes = [torch.cuda.Stream() for _ in steps]
    calls = [record(step, per_graph, lane) if per_graph else step for step, lane in zip(steps, lanes, strict=True)]

    def work():
        for call, lane in zip(calls, lanes, strict=True):
            lane.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(lane):
                call()
        for lane in lanes:
            torch.cuda.current_stream().wait_stream(lane)
    spent = measure(lambda: [work() for _ in range(8)], device)
    return Spent(spent.seconds / 8 / max(1, per_graph), spent.spread), gap


def record(step, times: int, stream):
    """Return a function that replays a graph of some steps."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(times):
            step()
    return graph.replay


def stepper(module, kind: str, clients: int, device: str):
    """Return a function that takes one step of some clients, always in the same memory."""
    x = seeded(clients, BATCH, 32, 32, 3, device=device)
    y = (torch.arange(clients * BATCH).view(clients, BATCH) % 10).to(device)
    if kind.startswith("by hand"):
        made = HandMade(module, clients, device, aligned=kind == "by hand")
        return lambda: made.step(x, y, LR)
    weights, images = vmapped(module, clients, device), x.permute(0, 1, 4, 2, 3).contiguous()
    return lambda: step_of_vmap(module, weights, images, y)


def vmapped(module, clients: int, device: str) -> dict:
    return {name: p.detach().to(device).expand(clients, *p.shape).clone() for name, p in module.named_parameters()}


def step_of_vmap(module, weights: dict, x, y) -> None:
    def loss(weights, x, y):
        return F.cross_entropy(precision.run_forward(lambda x: functional_call(module, weights, (x,)), x), y)
    for name, g in vmap(grad(loss))(weights, x, y).items():
        weights[name].add_(g, alpha=-LR)


def difference(module, kind: str, device: str) -> float:
    """Return the largest difference between the weights after one step on a device and after vmap's on the CPU."""
    x = seeded(2, BATCH, 32, 32, 3, device="cpu")
    y = torch.arange(2 * BATCH).view(2, BATCH) % 10
    expected = vmapped(module, 2, "cpu")
    step_of_vmap(module, expected, x.permute(0, 1, 4, 2, 3).contiguous(), y)
    if kind.startswith("by hand"):
        made = HandMade(module, 2, device, aligned=kind == "by hand")
        made.step(x.to(device), y.to(device), LR)
        wanted = HandMade(module, 2, "cpu", aligned=kind == "by hand")
        for name, p in expected.items():
            wanted.w[name].copy_(torch.stack([wanted.laid(name, one) for one in p]))
        return float((made.flat.cpu() - wanted.flat).abs().max())
    found = vmapped(module, 2, device)
    step_of_vmap(module, found, x.permute(0, 1, 4, 2, 3).contiguous().to(device), y.to(device))
    return max(float((found[name].cpu() - expected[name]).abs().max()) for name in found)
