"""Refuse networks that fail, and those whose outputs depend on more than a flat vector, or its blocks, would hold."""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedmpi.errors import BadInput, FaultyCode
from fedmpi.models.parameters import collect_constants, is_same
from fedmpi.models.seeding import build_seeded
from fedmpi.models.split import list_linear
from fedmpi.own_code.failures import blame_own_code, describe_failure, find_own_line
from fedmpi.torch_compat import BatchNorm

# So many names of buffers are shown.
SHOWN_BUFFERS = 3


class Network(Protocol):
    """What is asked of a Model, which models.flat explains."""
    module: nn.Module
    start: Tensor
    phi: slice
    h: slice

    @property
    def base(self) -> Callable[[Tensor, Tensor], Tensor]: """Return the feature extractor."""
    @property
    def head(self) -> Callable[[Tensor, Tensor], Tensor]: """Return the head."""
    @property
    def has_batchnorm(self) -> bool: """Say whether it has BatchNorm layers."""

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (b, c) of the network with parameters w (d,)."""

    def train(self, b: int) -> None:
        """Set it to training on b samples."""

    def eval(self) -> None:
        """Set it to evaluation mode."""


def refuse_statistics(module: nn.Module, policy: str | None) -> None:
    """Refuse the state of BatchNorm layers that a run does not keep for each client. Raises BadInput.

    Args:
        policy: whose the running statistics of BatchNorm are: `local` (each client's own) or `average`. With None they
            are refused."""
    refuse_state([kind for name, layer in module.named_modules() if isinstance(layer, BatchNorm)
                  and not (policy and layer.momentum is not None) for kind, _ in layer.named_buffers(name, False)],
                 "use GroupNorm or LayerNorm in place of BatchNorm")


def refuse_changed_constants(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    """Refuse buffers that forward passes have changed, which a reused module would carry from client to client. Raises
    BadInput."""
    refuse_state([name for name in {**before, **after} if not is_same(before.get(name), after.get(name))],
                 "only buffers that no forward pass changes are constants; compute it in each pass, or leave the "
                 "layer out")


def refuse_state(names: list[str], remedy: str) -> None:
    """Raise BadInput if there are buffers that would leak from client to client."""
    if names:
        raise BadInput(f"model: the network keeps state outside its parameters ({', '.join(names[:SHOWN_BUFFERS])}"
                       f"{', ...' * (len(names) > SHOWN_BUFFERS)}), which would leak from client to client; {remedy}")


def refuse_drawn_constants(constants: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    """Refuse constants that another seed draws otherwise: no checkpoint and no file of weights holds them, so they must
    be those of the code. Raises BadInput."""
    for name, value in constants.items():
        if not is_same(value, others.get(name)):
            raise BadInput(f"model: the buffer {name} has other values in each copy of the network, as random numbers "
                           "have; draw it by a torch.Generator with a seed of its own, or make it an nn.Parameter, "
                           "which is trained")


def refuse_kept_state(model: Network, example: Tensor) -> None:
    """Refuse a network of which two passes in training differ although weights, samples and seeds are the same: what it
    keeps between passes would go from client to client, and no checkpoint holds it. Raises BadInput.

    Args:
        example: samples that the network can take together, (b, ...)."""
    model.train(len(example))
    with torch.no_grad():
        first, second = (build_seeded(lambda: model(model.start, example), 0) for _ in range(2))
    model.eval()
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise BadInput("model: the network's forward gives other outputs in each pass in training although weights, "
                       "samples and seeds are the same, so it keeps a counter or a generator outside its parameters; "
                       "draw from the global generators of PyTorch, NumPy or Python, which a run seeds, and count "
                       "nothing in forward")


def refuse_unfit_parameters(module: nn.Module) -> None:
    """Refuse parameters that a flat vector of float32, all of which is trained, cannot stand for. Raises BadInput."""
    for name, value in module.named_parameters():
        if isinstance(value, UninitializedParameter):
            raise BadInput(f"model: {name} has no shape before the first forward pass; give the layer its number of "
                           "inputs (nn.Linear in place of nn.LazyLinear)")
        if not value.is_floating_point():
            raise BadInput(f"model: {name} is of type {value.dtype}; all parameters must be floating-point numbers")
        if not value.requires_grad:
            raise BadInput(f"model: {name} is frozen (requires_grad=False), but a run trains all parameters; leave "
                           "requires_grad as it is, or compute the outputs of the frozen layers beforehand and store "
                           "them as the data's features")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise BadInput(f"model: {name} has max_norm, by which a forward pass changes parameters; leave it out")


def refuse_shared(names: list[str], held: dict[str, Tensor]) -> None:
    """Refuse a network whose base and head share weights, since each would have its own. Raises BadInput."""
    if shared := [name for name in names if name not in held]:
        raise BadInput(f"model: layers share weights ({', '.join(shared)}) so that the network cannot be cut into a "
                       "feature extractor and a head; give each its own")


def check_parts(model: Network, example: Tensor, head: tuple[str, ...]) -> tuple[int, int]:
    """Refuse a network that fails or keeps state, and one whose head is not its last operation, since its features
    could not be told apart. Return the numbers of its outputs and of its features.

    Args:
        example: samples that the network can take together, (b, ...)."""
    before = {name: value.clone() for name, value in collect_constants(model.module).items()}
    # Dropout draws from the process's generator.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        whole = try_modes(model, model.start, example)
        refuse_changed_constants(before, collect_constants(model.module))
        if not torch.allclose(whole, model(model.start, example), atol=1e-5, equal_nan=True):
            raise BadInput("model: two passes over the same samples differ in evaluation, so the network draws random "
                           "numbers there; use layers such as nn.Dropout, or F.dropout(x, p, self.training)")
        try:
            features = model.base(model.start[model.phi], example)
            parts = model.head(model.start[model.h], features)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            parts = whole[:0]
        if whole.shape != parts.shape or not torch.allclose(whole, parts, atol=1e-5):
            refuse_head(head, list_linear(model.module)[-1:], find_output_layer(model, example))
    return whole.shape[-1], features[0].numel()


def refuse_head(head: tuple[str, ...], taken: tuple[str, ...], outputs: str) -> None:
    """Refuse a head that is not the network's last operation. Raises BadInput.

    Args:
        head: the setting; `taken` is the Linear layer that is the head without it.
        outputs: the Linear layer that gives the network's outputs; "" if there is none."""
    if head:
        raise BadInput(f"model.head = [{', '.join(head)}]: base and head together do not give what the network gives; "
                       "its forward must do the same whether it trains or not (with layers such as nn.Dropout, not "
                       "functions)")
    if outputs and (outputs,) != taken:
        raise BadInput(f"model: {outputs} gives the network's outputs, but {taken[0]} is made after it, and the Linear "
                       f"layer that is made last is the head; make {outputs} the last one in __init__, or set "
                       f"model.head=[{outputs}]")
    raise BadInput("model: the network's last Linear layer is not its last operation, so that features and head cannot "
                   "be told apart; end the network with a Linear layer")


def find_output_layer(model: Network, example: Tensor) -> str:
    """Return the name of the Linear layer whose result is that of the network; "" if there is none."""
    results: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda layer, given, result: results.__setitem__(name, result)
    hooks = [model.module.get_submodule(name).register_forward_hook(keep(name)) for name in list_linear(model.module)]
    whole = model(model.start, example)
    for hook in hooks:
        hook.remove()
    return next((name for name, result in results.items() if isinstance(result, Tensor)
                 and torch.equal(result.float(), whole)), "")


def try_modes(model: Network, w: Tensor, example: Tensor) -> Tensor:
    """Return the outputs of a network for some samples, not in training. Raises BadInput unless they are a tensor of
    finite numbers, unless training and a single sample give a tensor of such a shape, too (a client's last batch may
    hold no more), and unless the samples stay as they are.

    Args:
        w: parameters, (d,).
        example: samples as the network takes them, (b, ...)."""
    before = example.clone()
    outputs = try_network(model, w, example)
    if not torch.isfinite(outputs).all():
        raise BadInput("model: the network's first outputs are not finite (NaN or infinite) for samples of shape "
                       f"{tuple(example.shape[1:])}; look at its initial weights, and at divisions in its forward")
    for training, x in ((False, example[:1]), (True, example), (True, example[:1])):
        if training:
            model.train(len(x))
        # Training moves running statistics.
        found = try_network(model, w.clone(), x, training)
        model.eval()
        wanted = (len(x), *outputs.shape[1:])
        if found.shape != wanted:
            remedy = ("name the dimension in squeeze, or use flatten(1)" if found.shape == wanted[1:] else
                      "its forward must give the same whether it trains or not, for any number of samples")
            raise BadInput(f"model: for {'a single sample' if len(x) == 1 else 'samples'}{' in training' * training} "
                           f"the network gives outputs of shape {tuple(found.shape)}, not {wanted}; {remedy}")
    if not torch.equal(before, example):
        raise BadInput("model: the network's forward changes its samples in place, which others are still to read; "
                       "write x = x - mean in place of x -= mean, and begin with no layer that has inplace=True")
    return outputs


def try_network(model: Network, w: Tensor, example: Tensor, training: bool = False) -> Tensor:
    """Return the outputs of a network for some samples. Raises BadInput unless they are a tensor, and FaultyCode if the
    network's own code fails.

    Args:
        w: parameters, (d,).
        example: samples as the network takes them, (b, ...).
        training: whether the network is in training, for the error."""
    single = len(example) == 1
    samples = "a single sample, which is all that a client's last batch may hold" if single else (
        f"samples of shape {tuple(example.shape[1:])}")
    what = f"model: the network cannot take {samples}{', in training' * training}"
    with blame_own_code(what):
        try:
            outputs = model(w, example)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            why = f"{what}: {describe_failure(error)}"
            if single and model.has_batchnorm:
                why += ("; let its BatchNorm keep running statistics (track_running_stats=True), or use GroupNorm or "
                        "LayerNorm")
            if find_own_line(error):
                raise FaultyCode(why) from error
            if not example.is_floating_point():
                why += "; the samples are numbers of words, which need a network such as model=fasttext"
            raise BadInput(why) from error
    if not isinstance(outputs, Tensor):
        has_logits = isinstance(getattr(outputs, "logits", None), Tensor)
        remedy = "return its .logits" if has_logits else "return the tensor of logits (b, classes) alone"
        raise BadInput(f"model: the network's forward gives a {type(outputs).__name__}{' in training' * training}, not "
                       f"a tensor; {remedy}")
    return outputs
