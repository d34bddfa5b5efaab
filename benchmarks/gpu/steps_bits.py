"""Compare bits: digests of whole runs in many ways, and results of single kernels in other batches."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from benchmarks.gpu.inside import convolutions_of
from benchmarks.gpu.made import seeded
from benchmarks.gpu.notes import Notes
from benchmarks.gpu.steps_correct import lab

CLIENTS = 100
WIDTHS = (100, 50, 25, 7)


def note_digests(notes: Notes) -> None:
    digests(notes, "")


def note_digests_again(notes: Notes) -> None:
    """Note the digests of another process."""
    digests(notes, ", new process")


def digests(notes: Notes, mark: str) -> None:
    """Note the digest of two rounds in every way that might change it, and of some ways twice in one process."""
    options, ways = notes.options, []
    for model in options.pick(("mlp", "tiny", "fasttext"), ("tiny",)):
        ways += [(model, "loop", {}), (model, "loop", {"again": 1}), (model, "vmap", {}), (model, "vmap", {"again": 1}),
                 (model, "vmap", {"graphs": "on"}), (model, "vmap", {"graphs": "on", "again": 1})]
        ways += [(model, "vmap", {"unfolded": which}) for which in ("none", "all") if model == "tiny"]
        ways += [(model, "vmap", {"chunk": width, "unfolded": "none"}) for width in options.pick(WIDTHS, (8, 4))]
    for model, engine, words in notes.cases(ways):
        case = " ".join([model, engine, *(f"{name}={value}" for name, value in words.items())])
        found, error = notes.attempt(digest, notes, model, engine, words)
        notes.put("bits", digests={case + mark: found or error})


def digest(notes: Notes, model: str, engine: str, words: dict) -> str:
    """Return the digest of a run in one way."""
    sizes = notes.options.pick([2 + i % 7 for i in range(CLIENTS)], [12, 5, 9, 11, 3, 8, 7, 6])
    made = lab("fedavg", model, notes.options.device, sizes=sizes)
    forced = {key: words[key] for key in ("graphs", "chunk") if key in words}
    if engine == "vmap" and words.get("unfolded"):
        forced["unfolded"] = convolutions_of(made) if words["unfolded"] == "all" else []
    return made.take(engine, **forced).go(2).digest()


def note_kernels(notes: Notes) -> None:
    """Note whether each kernel of a step gives a client the same bits in a second run, among fewer clients, and at
    another position among them."""
    options = notes.options
    clients = options.pick((100, 50, 25, 10, 1), (3, 2))
    for name, flags in notes.cases([(name, flags) for flags in (False, True) for name in KERNELS]):
        title = name + (", deterministic flags" if flags else "")
        torch.set_deterministic_debug_mode("warn" if flags else "default")
        torch.backends.cudnn.deterministic = flags
        found, error = notes.attempt(invariance, KERNELS[name], clients, options.device)
        notes.put("bits", kernels={title: found or {"run_to_run": None, "batch": None, "position": None,
                                                    "error": error}})


def invariance(kernel: Callable, clients: tuple[int, ...], device: str) -> dict[str, bool]:
    """Compare the bits of kernel(inputs) -> (c, ...) for inputs with a row for each of c clients."""
    inputs = kernel(None, clients[0], device)
    whole = kernel(inputs)
    order = torch.arange(clients[0], device=device).flip(0)
    turned = kernel([t[order].contiguous() for t in inputs])
    return {"run_to_run": all(torch.equal(kernel(inputs), whole) for _ in range(5)),
            "batch": all(torch.equal(kernel([t[:c].contiguous() for t in inputs]), whole[:c]) for c in clients[1:]),
            "position": torch.equal(turned, whole[order])}


def products(inputs, clients: int = 0, device: str = "cpu"):
    """Forward pass of fc1 of cnn4."""
    if inputs is None:
        return [seeded(clients, 10, 1024, device=device), seeded(clients, 1024, 512, device=device, seed=1)]
    return torch.bmm(*inputs)


def products_of_gradients(inputs, clients: int = 0, device: str = "cpu"):
    """The gradient of fc1's weights in cnn4."""
    if inputs is None:
        return [seeded(clients, 512, 10, device=device), seeded(clients, 10, 1024, device=device, seed=1)]
    return torch.bmm(*inputs)


def convolution(inputs, clients: int = 0, device: str = "cpu"):
    """conv2 of cnn4 with other weights for each client."""
    if inputs is None:
        return [seeded(clients, 10, 32, 12, 12, device=device), seeded(clients, 64, 32, 5, 5, device=device, seed=1)]
    return vmap(F.conv2d)(*inputs)


def convolution_gradient(inputs, clients: int = 0, device: str = "cpu"):
    """The gradient of conv2's weights."""
    if inputs is None:
        return convolution(None, clients, device)
    return vmap(grad(lambda w, x: F.conv2d(x, w).square().sum()))(inputs[1], inputs[0])


def patches(inputs, clients: int = 0, device: str = "cpu"):
    """The gradient of conv2's weights, with conv2 as a product of patches and weights."""
    if inputs is None:
        return convolution(None, clients, device)

    def loss(w, x):
        return (F.unfold(x, 5).transpose(1, 2).flatten(0, 1) @ w.flatten(1).T).square().sum()
    return vmap(grad(loss))(inputs[1], inputs[0])


def table_gradient(inputs, clients: int = 0, device: str = "cpu"):
    """The gradient of an embedding table, for words that occur often."""
    if inputs is None:
        words = torch.arange(clients * 10 * 64).view(clients, 10, 64) * 7919 % 50
        return [seeded(clients, 50, 32, device=device), words.to(device)]
    return vmap(grad(lambda table, words: F.embedding(words, table).mean(1).square().sum()))(*inputs)


def pooling_gradient(inputs, clients: int = 0, device: str = "cpu"):
    """The gradient of max-pooling."""
    if inputs is None:
        return [seeded(clients, 10, 32, 24, 24, device=device)]
    return vmap(grad(lambda x: F.max_pool2d(x, 2).square().sum()))(*inputs)


def cross_entropy_gradient(inputs, clients: int = 0, device: str = "cpu"):
    """The gradient of the loss."""
    if inputs is None:
        labels = torch.arange(clients * 10).view(clients, 10) % 100
        return [seeded(clients, 10, 100, device=device), labels.to(device)]
    return vmap(grad(lambda x, y: F.cross_entropy(x, y)))(*inputs)


KERNELS = {"bmm forward": products, "bmm weight gradient": products_of_gradients, "grouped convolution": convolution,
           "grouped convolution gradient": convolution_gradient, "unfold and bmm gradient": patches,
           "table gradient": table_gradient, "max_pool gradient": pooling_gradient,
           "cross_entropy gradient": cross_entropy_gradient}
