"""Time the parts of a round: its phases, its kernels, waits for the GPU, evaluation, sums, and messages over MPI."""
from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter, defaultdict
from contextlib import contextmanager

import torch

from benchmarks.gpu.clock import measure, wait
from benchmarks.gpu.inside import phases
from benchmarks.gpu.made import seeded
from benchmarks.gpu.notes import Notes
from benchmarks.gpu.steps_mpi import finish
from benchmarks.gpu.steps_speed import SAMPLES, federation_of, make

# How many kernels are named.
TOP = 15
# characters of a kernel's name that are kept
NAME = 80


def profile_round(notes: Notes) -> None:
    """Note the time of each phase of a round of cnn4, its slowest kernels, and the lines that wait for the GPU."""
    options = notes.options
    lab = make(federation_of("cifar10", options.pick(100, 3), options.pick(SAMPLES, 20)), options.device, "cnn4",
               "float32", "vmap", graphs="auto")

    def whole():
        lab.round(0)
        lab.evaluate()
    for name, look in notes.cases_of({"phases": note_phases, "kernels": note_kernels, "waits": note_waits}):
        # warm up
        whole()
        _, error = notes.attempt(look, notes, whole)
        if error:
            notes.put("round", **{f"{name}_error": error})


def note_phases(notes: Notes, whole) -> None:
    spent, calls, inner = defaultdict(float), Counter(), []

    @contextmanager
    def around(name: str):
        wait(notes.options.device)
        begin = time.perf_counter()
        inner.append(0.)
        try:
            yield
        finally:
            wait(notes.options.device)
            seconds, within = time.perf_counter() - begin, inner.pop()
            # without the phases inside it
            spent[name] += seconds - within
            calls[name] += 1
            if inner:
                inner[-1] += seconds
    begin = time.perf_counter()
    with phases(around) as gone:
        whole()
    wait(notes.options.device)
    total = time.perf_counter() - begin
    undisturbed = measure(whole, notes.options.device, notes.options.pick(5, 1), warm_s=0)
    notes.put("round", ms={**{name: round(1e3 * s, 3) for name, s in spent.items()},
                           "elsewhere": round(1e3 * (total - sum(spent.values())), 3), "whole, with waits": 1e3 * total,
                           "whole": undisturbed.ms}, calls=dict(calls), gone=gone)


def note_kernels(notes: Notes, whole) -> None:
    """Note the kernels that take longest, with their milliseconds on the device."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    cuda = notes.options.device == "cuda"
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda) as found:
        whole()
        wait(notes.options.device)
    key = "self_device_time_total" if cuda else "self_cpu_time_total"
    spent: Counter[str] = Counter()
    for row in found.key_averages():
        # An operator's time on the GPU is that of its kernels, which have rows of their own.
        if not cuda or row.device_type == DeviceType.CUDA:
            spent[row.key[:NAME]] += getattr(row, key)
    notes.put("round", kernels_ms={name: round(us / 1e3, 3) for name, us in spent.most_common(TOP)})


def note_waits(notes: Notes, whole) -> None:
    """Count the lines of fedmpi at which the host waits for the GPU."""
    # With a CPU there is nothing to wait for.
    if notes.options.device == "cpu":
        return
    places: Counter = Counter()

    def show(message, *_, **__):
        frame = sys._getframe()
        while frame and not frame.f_globals.get("__name__", "").startswith("fedmpi."):
            frame = frame.f_back
        places[f"{frame.f_globals['__name__']}:{frame.f_lineno}" if frame else "elsewhere"] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            whole()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    notes.put("round", syncs=dict(places.most_common(30)))


def time_sums(notes: Notes) -> None:
    """Note the milliseconds of exact and float32 sums over clients' rows and of evaluation, and whether exact sums on
    the device have the bits of the CPU's."""
    from fedmpi.comm import exact
    options, width = notes.options, notes.options.pick(878_538, 5_000)
    for clients in notes.cases(options.pick((10, 100), (4,))):
        rows = [seeded(width, device=options.device, seed=i) for i in range(clients)]
        weights = torch.full((clients,), 1 / clients, dtype=torch.float64)

        def add(rows=rows, weights=weights):
            total = torch.zeros(width, dtype=torch.int64, device=rows[0].device)
            exact.accumulate(rows, weights, total)
            return total

        def add_floats(rows=rows, clients=clients):
            return torch.stack(rows).mul_(1 / clients).sum(0)
        for what, work in (("exact sum", add), ("float32 sum", add_floats)):
            put_sum(notes, what, clients, *notes.attempt(measure, work, options.device))
        there = add().cpu()
        here = add([row.cpu() for row in rows]) if options.device == "cuda" else there
        notes.put("bits", digests={f"exact sum of {clients} rows is the CPU's": str(torch.equal(there, here))})
        for engine in ("loop", "vmap"):
            lab = make(federation_of("cifar10", clients, 20), options.device, "cnn4", "float32", engine)
            lab.train()
            put_sum(notes, f"judging, {engine}", clients, *notes.attempt(measure, lab.evaluate, options.device))


def put_sum(notes: Notes, what: str, clients: int, spent, error: str) -> None:
    notes.put("sums", what=what, clients=clients, ms=spent and spent.ms, error=error)


def time_collectives(notes: Notes) -> None:
    """Note the time of a sum over MPI of 64-bit integers from the GPU, for each way to hand them to MPI."""
    options = notes.options
    for ranks in notes.cases(options.pick((2, 5), (2,))):
        said, error = notes.attempt(finish, notes, ranks, [
            sys.executable, "-m", "benchmarks.gpu.ranks", options.device, str(options.pick(878_538, 10_000))])
        found = [json.loads(line) for line in (said or "").splitlines() if line.startswith("{")]
        for row in found or [{"what": "collectives", "ms": None, "error": error}]:
            notes.put("sums", **{"error": "", **row, "clients": ranks, "what": f"{row['what']}, {ranks} ranks"})
