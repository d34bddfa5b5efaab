"""Time engines against the loop that a careful user writes by hand, on the same device and in the same precision."""
from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.bare import Bare
from benchmarks.gpu.clock import Spent, measure
from benchmarks.gpu.inside import Lab, precision
from benchmarks.gpu.made import WORDS, Texts, images
from benchmarks.gpu.notes import Notes
from benchmarks.synthetic import SHAPES, Synthetic

ENGINES = {"loop": ("loop", {}), "vmap": ("vmap", {"graphs": "off"}), "graphs": ("vmap", {"graphs": "on"})}
MODELS = {"cnn4": "cnn4", "lenet5": "lenet5", "mlp": {"name": "mlp", "hidden": 64}, "resnet18": "resnet18",
          "fasttext": {"name": "fasttext", "vocabulary": WORDS}}
# ALONE: clients of the bare loop; more of them would not change the time per step.
SAMPLES, BATCH, LR, ALONE = 200, 10, .005, 8


class Rounded(nn.Module):
    """Runs a network in the precision that is set for the process, also in the bare loop."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x):
        return precision.run_forward(self.network, x)


def time_engines(notes: Notes, model: str, shape: str) -> None:
    """Note milliseconds per client step of all engines by clients and precision, the most important ones first."""
    options = notes.options
    samples = options.pick(SAMPLES, 10)
    for how in notes.cases(options.pick(("float32", "tf32", "bf16"), ("float32", "bf16")[:1 + (model == "mlp")])):
        widths = options.pick((100, 20, 50, 128, 8, 1) if how == "float32" else (100, 20), (2,))
        note = Row(notes, model, shape, how)
        bare = note.bare(samples, "bare")
        for clients in widths:
            engines = [name for name in ENGINES if name != "loop" or clients == widths[min(1, len(widths) - 1)]]
            for name in engines:
                if notes.left() > 5:
                    note.engine(name, clients, samples, bare)
        note.bare(samples, "bare, again")
        if how == "float32" and notes.left() > 5:
            note.bare(samples, "bare, PyTorch's default precision", default=True)


class Row:
    """Writes the rows of one network and precision."""

    def __init__(self, notes: Notes, model: str, shape: str, how: str):
        self.notes, self.model, self.shape, self.how = notes, model, shape, how

    def bare(self, samples: int, title: str, default: bool = False) -> float | None:
        """Time the bare loop; return its milliseconds per step."""
        clients = self.notes.options.pick(ALONE, 2)
        spent, error = self.notes.attempt(self.time_bare, clients, samples, default)
        ms = spent and spent.ms
        self.put(title, clients, spent, ms, error)
        return ms

    def time_bare(self, clients: int, each: int, default: bool) -> Spent:
        device, federation = self.notes.options.device, federation_of(self.shape, clients, each)
        lab = make(federation, "cpu", self.model, "float32")
        precision.set_precision(self.how)
        # A Lab on a GPU has switched these on for the whole process.
        torch.backends.cudnn.deterministic = False
        torch.set_deterministic_debug_mode("default")
        if default:
            # PyTorch's default
            torch.backends.cudnn.allow_tf32 = True
        samples = [federation.client(i)[:2] for i in range(clients)]
        bare = Bare(lambda: Rounded(lab.network()), samples, BATCH, LR, device)
        steps = bare.run()[1]
        return per_step(self.time(bare.run), steps)

    def engine(self, name: str, clients: int, samples: int, bare: float | None) -> None:
        spent, error = self.notes.attempt(self.time_engine, name, clients, samples)
        self.put(name, clients, spent, bare, error)

    def time_engine(self, name: str, clients: int, samples: int) -> Spent:
        device, (engine, forced) = self.notes.options.device, ENGINES[name]
        lab = make(federation_of(self.shape, clients, samples), device, self.model, self.how, engine, **forced)
        return per_step(self.time(lab.train), lab.steps)

    def time(self, work) -> Spent:
        options = self.notes.options
        return measure(work, options.device, options.pick(7, 1), warm_s=options.pick(1., .01))

    def put(self, engine: str, clients: int, spent: Spent | None, bare: float | None, error: str) -> None:
        self.notes.put("speed", model=self.model, shape=self.shape, clients=clients, precision=self.how, engine=engine,
                       ms_step=spent and spent.ms, spread=spent and spent.spread, bare_ms=bare,
                       ratio=bare / spent.ms if bare and spent else None, error=error)


def per_step(spent: Spent, steps: int) -> Spent:
    return Spent(spent.seconds / steps, spent.spread)


def federation_of(shape: str, clients: int, samples: int):
    """Return a federation of clients that have equally many samples of a shape."""
    sizes = np.full(clients, samples)
    if shape == "texts":
        return Texts(sizes)
    return images(sizes, shape) if len(SHAPES[shape][0]) == 3 else Synthetic(*SHAPES[shape], sizes)


def make(federation, device: str, model: str, how: str, engine: str = "loop", **forced) -> Lab:
    return Lab(federation, device, {"model": MODELS[model], "precision": how, "train": {"batch": BATCH, "lr": LR}},
               engine, **forced)
