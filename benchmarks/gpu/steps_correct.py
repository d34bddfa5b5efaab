"""Compare whole federations on the GPU with engine `loop` on a CPU."""
from __future__ import annotations

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from benchmarks.gpu.clock import error_of
from benchmarks.gpu.inside import SHOWN, Lab, apart, convolutions, finite
from benchmarks.gpu.made import MODELS, SIZES, seeded
from benchmarks.gpu.notes import Notes
from fedmpi import registry
from fedmpi.models import precision

# Largest difference between states after two rounds that counts as correct.
CLOSE = {"float32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}
# Methods of a small trial, all of different kinds.
FEW = ("fedavg", "fedah", "ifca", "fedala", "fedsr", "fedamp")
SOME = ("fedavg", "fedah", "ditto", "fedsr")
ROUNDS = 2


def compare_loop(notes: Notes) -> None:
    """Compare all methods, trained by engine loop on the device, with the CPU."""
    compare_methods(notes, "loop", "off")


def compare_vmap(notes: Notes) -> None:
    compare_methods(notes, "vmap", "off")


def compare_graphs(notes: Notes) -> None:
    compare_methods(notes, "vmap", "on")


def compare_methods(notes: Notes, engine: str, graphs: str) -> None:
    """Run two rounds of all methods on digits."""
    for method in notes.cases(notes.options.pick(registry.list_available("methods"), FEW)):
        compare(notes, method, "mlp", engine, graphs, "float32")


def compare_models(notes: Notes) -> None:
    """Run a few methods on all networks; resnet18, the slowest on the CPU, comes last."""
    options = notes.options
    names = options.pick([name for name in MODELS if name != "mlp"], ["tiny", "fasttext"])
    trials = [(method, model, engine, "float32") for model in names for method in options.pick(SOME, SOME[:1])
              for engine in ("loop", "vmap", "graphs")]
    trials += [("fedavg", model, engine, how) for how in ("tf32", "bf16") for model in options.pick(names, names[:1])
               for engine in ("loop", "graphs")]
    for method, model, engine, how in notes.cases(sorted(trials, key=lambda trial: trial[1] == "resnet18")):
        graphs = "on" if engine == "graphs" else "off"
        compare(notes, method, model, engine.replace("graphs", "vmap"), graphs, how)


def compare(notes: Notes, method: str, model: str, engine: str, graphs: str, how: str) -> None:
    """Note how far a run on the device is from a run on the CPU in single precision."""
    found, error = notes.attempt(both, notes, method, model, engine, graphs, how)
    gap, sound = found or (None, False)
    notes.put("correct", method=method, model=model, engine=engine, graphs=graphs, precision=how, apart=gap,
              within=gap is not None and gap <= CLOSE[how], finite=sound, error=error)


def both(notes: Notes, method: str, model: str, engine: str, graphs: str, how: str) -> tuple[float, bool]:
    expected = reference(notes, method, model)
    forced = {"graphs": graphs} if engine == "vmap" else {}
    state = lab(method, model, notes.options.device, engine, precision=how, **forced).go(ROUNDS).state()
    return apart(state, expected), finite(state)


def lab(method: str, model: str, device: str, engine: str = "loop", sizes=None, **words) -> Lab:
    """Return a small federation with a network of MODELS; words other than `precision` are forced on the engine."""
    settings, federation = MODELS[model]
    small = (12, 1, 23, 7) if model in ("cnn4", "lenet5", "resnet18") else SIZES
    how = words.pop("precision", "float32")
    return Lab(federation(sizes or small), device,
               {"method": {"name": method, **SHOWN.get(method, {})}, "model": dict(settings), "precision": how}, engine,
               **words)


def reference(notes: Notes, method: str, model: str) -> dict:
    """Return the state of the run on the CPU, from a file that steps share."""
    path = notes.options.work / f"reference-{method}-{model}.npz"
    if not path.exists():
        state = lab(method, model, "cpu").go(ROUNDS).state()
        np.savez(path.with_suffix(".part.npz"), **{name: value.numpy() for name, value in state.items()})
        path.with_suffix(".part.npz").rename(path)
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def compare_with_doubles(notes: Notes) -> None:
    """Note the relative error of a step's gradients of cnn4, layer by layer, against float64 on the CPU, for both ways
    of convolutions and each precision."""
    options = notes.options
    clients, batch = options.pick(20, 2), 10
    made = lab("fedavg", "cnn4", "cpu", sizes=(1,) * 2)
    module = made.network().to(options.device)
    x, y = seeded(clients, batch, 1, 28, 28, device="cpu"), torch.arange(clients * batch).view(clients, batch) % 10
    weights = {name: p.detach().cpu()[None] + .01 * seeded(clients, *p.shape, device="cpu", seed=i)
               for i, (name, p) in enumerate(module.named_parameters())}
    double = made.network().double()
    exact = gradients(double, {name: w.double() for name, w in weights.items()}, x.double(), y)
    on_device = {name: w.to(options.device) for name, w in weights.items()}
    layers = [name for name, layer in module.named_modules() if convolutions.can_convolve(layer)]
    for how, way in notes.cases([(how, way) for how in ("float32", "tf32", "bf16") for way in ("grouped", "unfolded")]):
        precision.set_precision(how)

        def both_ways(way=way):
            for name in layers if way == "unfolded" else ():
                layer = module.get_submodule(name)
                layer.forward = convolutions.partial(convolutions.convolve, layer)
            return gradients(module, on_device, x.to(options.device), y.to(options.device))
        found, error = notes.attempt(both_ways)
        for name in layers:
            vars(module.get_submodule(name)).pop("forward", None)
        for name in found or {"all": None}:
            notes.put("layers", layer=f"{name} gradient", clients=clients, way=way, precision=how, ms=None, tflops=None,
                      gbs=None, apart=error_of(found[name], exact[name]) if found else None, error=error)


def gradients(module, weights: dict, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return each client's gradients of its mean cross-entropy, (c, ...) by name."""
    def loss(weights, x, y):
        logits = precision.run_forward(lambda x: functional_call(module, weights, (x,)), x)
        return torch.nn.functional.cross_entropy(logits, y)
    return vmap(grad(loss))(weights, x, y)
