"""Try CUDA graphs: what is recorded, what a failed recording leaves behind, and what recording costs.

Each function runs in its own process, because it may leave the allocator unusable."""
from __future__ import annotations

import time

import torch

from benchmarks.gpu.clock import wait
from benchmarks.gpu.inside import apart, recorder, spoiling
from benchmarks.gpu.made import MODELS, seeded
from benchmarks.gpu.notes import Notes
from benchmarks.gpu.steps_correct import FEW, lab
from fedmpi import registry

# Samples of clients that take the same number of steps, so all steps can be recorded.
EQUAL = [23] * 6


def note_recorded(notes: Notes) -> None:
    """Note for each method and network how many steps were recorded in two rounds, and how many fell back."""
    options = notes.options
    trials = [(method, "mlp") for method in options.pick(registry.list_available("methods"), FEW[:2])]
    trials += [("fedavg", model) for model in options.pick([m for m in MODELS if m != "mlp"], ["tiny"])]
    for method, model in notes.cases(trials):
        with recorder() as counts:
            _, error = notes.attempt(lambda method=method, model=model: lab(
                method, model, options.device, "vmap", sizes=EQUAL, graphs="on").go(2))
        notes.put("capture", recorded={f"{method} {model}": {**counts, "error": error}})


def survive_sync(notes: Notes) -> None:
    """Let a step wait for the GPU while it is recorded, which is forbidden; note whether the run goes on, and whether
    memory can still be allocated and freed."""
    device = notes.options.device
    try_recording(notes, "sync", lambda: torch.ones(1, device=device).item() and refuse_on_a_cpu(device, RuntimeError))


def survive_lack_of_memory(notes: Notes) -> None:
    """Let a step ask for more memory than there is while it is recorded; note the same as `survive_sync`."""
    device = notes.options.device

    def ask():
        refuse_on_a_cpu(device, torch.OutOfMemoryError)
        torch.empty(1 << 45, dtype=torch.uint8, device=device)
    try_recording(notes, "out_of_memory", ask)


def refuse_on_a_cpu(device: str, error: type[Exception]) -> None:
    """Raise on a CPU, where steps are called and not recorded, so nothing would refuse them."""
    if device == "cpu":
        raise error("as a recording on a GPU would be")


def try_recording(notes: Notes, name: str, before) -> None:
    # The first recording fails, the others do not.
    device, once = notes.options.device, iter([before])
    expected = lab("fedavg", "tiny", device, "vmap", sizes=EQUAL).go(2).state()
    made = lab("fedavg", "tiny", device, "vmap", sizes=EQUAL, graphs="on")
    notes.put("capture", **{name: {"goes_on": False, "apart": None, "allocator": "", "afterwards": ""}})
    with spoiling(lambda: next(once, bool)(), device):
        _, error = notes.attempt(made.go, 2)
    gap = apart(made.state(), expected) if not error else None
    notes.put("capture", **{name: {"goes_on": not error, "apart": gap, "error": error}})
    _, error = notes.attempt(use_allocator, device)
    notes.put("capture", **{name: {"allocator": error or "works"}})
    again, error = notes.attempt(lambda: lab("fedavg", "tiny", device, "vmap", sizes=EQUAL, graphs="on").go(2).state())
    notes.put("capture", **{name: {"afterwards": error or f"apart {apart(again, expected):.2g}"}})


def use_allocator(device: str) -> None:
    """Allocate memory, give it back to the system, and allocate again."""
    for _ in range(2):
        torch.zeros(1 << 20, device=device).sum().item()
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def fill_card(notes: Notes) -> None:
    """Train with little free memory: note whether results are the same, or the error."""
    device, options = notes.options.device, notes.options
    sizes = [20] * options.pick(100, 4)
    expected = lab("fedavg", "cnn4", device, "vmap", sizes=sizes).go(1).state()
    for left_mib in notes.cases(options.pick((2048, 512, 256), (256,))):
        found, error = notes.attempt(train_beside_filler, device, sizes, left_mib)
        gap = apart(found, expected) if found else None
        notes.put("capture", full={f"{left_mib} MiB left": {"apart": gap, "error": error}})


def train_beside_filler(device: str, sizes: list[int], left_mib: int) -> dict:
    made, filler = lab("fedavg", "cnn4", device, "vmap", sizes=sizes, graphs="on"), None
    if device == "cuda":
        torch.cuda.empty_cache()
        filler = torch.empty(max(0, torch.cuda.mem_get_info()[0] - (left_mib << 20)), dtype=torch.uint8, device=device)
    try:
        return made.go(1).state()
    finally:
        del filler
        if device == "cuda":
            torch.cuda.empty_cache()


def price_recording(notes: Notes) -> None:
    """Note the memory that is kept after many recordings of a product and its gradient, and the time of each part of a
    recording: warming up, entering, recording, instantiating, replaying, destroying."""
    options = notes.options
    if options.device == "cpu":
        notes.put("capture", price={"why": "a CPU records nothing"})
        return
    weights = seeded(100, 512, 1024, device="cuda").requires_grad_()
    x = seeded(100, 10, 512, device="cuda", seed=1)

    def step():
        torch.autograd.grad(torch.bmm(x, weights).square().sum(), weights)
    times, before = options.pick(200, 5), torch.cuda.memory_reserved()
    one_stream = torch.cuda.Stream()
    for name, stream in (("new streams", None), ("one stream", one_stream)):
        spent = [record_once(step, stream or torch.cuda.Stream()) for _ in range(times)]
        middle = {key: sorted(one[key] for one in spent)[times // 2] for key in spent[0]}
        notes.put("capture", price={name: {**{f"{key}_ms": round(1e3 * s, 3) for key, s in middle.items()},
                                           "recordings": times,
                                           "reserved_mib": (torch.cuda.memory_reserved() - before) >> 20}})


def record_once(step, stream) -> dict[str, float]:
    """Return the seconds of each part of a recording."""
    spent, begin = {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal begin
        wait("cuda")
        spent[name], begin = time.perf_counter() - begin, time.perf_counter()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    lap("warm")
    graph = torch.cuda.CUDAGraph()
    context = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
    context.__enter__()
    # A recording must not wait for the GPU, so this is no `lap`.
    spent["enter"], begin = time.perf_counter() - begin, time.perf_counter()
    step()
    spent["record"], begin = time.perf_counter() - begin, time.perf_counter()
    context.__exit__(None, None, None)
    lap("instantiate")
    graph.replay()
    lap("replay")
    del graph, context
    lap("destroy")
    return spent
