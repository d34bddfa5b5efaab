"""All that fedmpi takes from PyTorch beyond what PyTorch promises: private names, and habits that no page documents.

When a new version of PyTorch breaks something, this is the file to read first. No other file may touch such names;
tests/test_torch_compat.py looks. Each entry says what it stands for and how its loss would show."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, reduce
from types import NoneType
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils._pytree import tree_flatten, tree_unflatten

Read = TypeVar("Read")

# What all BatchNorm layers derive from. If it is gone: an ImportError at the start of every run.
BatchNorm = _BatchNorm

# All layers that normalise. If the private one of them is gone: an ImportError at the start of every run.
NormLayers = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)

# Take nested tuples, lists and dicts of tensors apart, and put them together: flatten_tree(tree) -> (leaves, form),
# unflatten_tree(leaves, form) -> tree. If they are gone: an ImportError.
flatten_tree, unflatten_tree = tree_flatten, tree_unflatten

# Work on lists of tensors in few operations, in place: add_to_each(targets, values, alpha=1),
# copy_to_each(targets, values), multiply_each(targets, number); add_each(tensors, values, alpha=1) returns the sums as
# new tensors. torch.optim rests on them. If they are gone: an AttributeError at the import.
add_to_each, copy_to_each = torch._foreach_add_, torch._foreach_copy_
add_each, multiply_each = torch._foreach_add, torch._foreach_mul_


def count_changes(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place, through it or a view of it. If PyTorch stopped to count,
    unchanged numbers would be taken for changed ones or the reverse: tests/comm sees it."""
    return tensor._version


def locate_memory(tensor: Tensor) -> int:
    """Return where the memory begins of a tensor, or of that of which it is a view; 0 if it has none."""
    return tensor.untyped_storage().data_ptr()


def measure_memory(tensor: Tensor) -> int:
    """Return the bytes of a tensor, or of that of which it is a view."""
    return tensor.untyped_storage().nbytes()


def without_watch(tensor: Tensor) -> Tensor:
    """Return the same numbers, whose changes in place autograd does not notice."""
    return tensor.data


def compute_gradients(loss: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the gradients of a loss; those of inputs that it does not depend on are zeros. PyTorch would make these,
    but some versions (2.6) such that they require gradients themselves, and no step could be taken with them."""
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    if NoneType in map(type, found):
        return [torch.zeros_like(given) if part is None else part for given, part in zip(inputs, found, strict=True)]
    return found


@contextmanager
def lend_tensors(lent: Iterable[tuple[Iterable[tuple[nn.Module, str]], Tensor]]) -> Iterator[None]:
    """Let layers hold other tensors in place of their parameters and buffers within the context.

    torch.func.functional_call does the same, but looks for the layers anew in each call, which takes a third of a small
    network's pass. If PyTorch renamed the dicts of a layer, there would be an AttributeError in every run.

    Args:
        lent: for each tensor, the layers that are to hold it, each with the name, and the tensor."""
    places = [(layer._parameters if name in layer._parameters else layer._buffers, name, tensor)
              for holders, tensor in lent for layer, name in holders]
    own = [held[name] for held, name, _ in places]
    for held, name, tensor in places:
        held[name] = tensor
    try:
        yield
    finally:
        for (held, name, _), tensor in zip(places, own, strict=True):
            held[name] = tensor


def count_transforms() -> int:
    """Return within how many transforms of torch.func (vmap, grad) the caller is. If PyTorch renamed this, there would
    be an AttributeError in methods with steps of their own."""
    return torch._C._functorch.maybe_current_level() or 0


def seed_generators(number: int) -> None:
    """Seed PyTorch's generators on the CPU and, if GPUs are in use, on these. torch.manual_seed would do so for GPUs
    that come into use later, too, and takes .3 ms more if none is in use."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def computes_in_order(module: nn.Module) -> bool:
    """Say whether a module is a Sequential that does nothing but call its layers in order."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def has_known_forward(layer: nn.Module) -> bool:
    """Say whether a layer's forward pass is one of PyTorch's or of fedmpi's. If PyTorch moved its layers to another
    module, each would count as unknown: networks would be trained more slowly, to the same results."""
    module = getattr(type(layer).forward, "__module__", "") or ""
    return module.startswith(("torch.nn.modules.", "fedmpi."))


def is_plain_convolution(layer: nn.Module) -> bool:
    """Say whether a layer convolves images as nn.Conv2d does; a class derived from it may compute with other weights
    than its own. The second method is what the first one calls: an AttributeError if it is gone."""
    return (isinstance(layer, nn.Conv2d) and type(layer).forward is nn.Conv2d.forward
            and type(layer)._conv_forward is nn.Conv2d._conv_forward)


@contextmanager
def replace_forward(layers: Iterable[nn.Module], function: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
    """Let function(layer, x) compute the forward passes of these layers within the context.

    An attribute of a layer goes before the method of its class; a PyTorch that called the class's method at once would
    use the layers as they are."""
    layers = list(layers)
    for layer in layers:
        layer.forward = partial(function, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def read_tf32() -> tuple[bool, bool]:
    """Return whether products and whether convolutions on a GPU may round their factors to 10 bits."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


# Where PyTorch keeps how factors of float32 are rounded, beside these switches: in `fp32_precision`, from 2.9 on. If
# they are moved, results depend on what the caller has set there: tests/test_torch_modes.py sees it.
CPU_ROUNDING = ("mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
GPU_ROUNDING = ("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn")


def set_tf32(products: bool, convolutions: bool) -> None:
    """Allow this rounding, or not. PyTorch is about to replace these switches by `fp32_precision`, and takes both so
    far.

    Factors are rounded in no other way afterwards. Without that, PyTorch would round them to 7 or 10 bits also on CPUs
    that multiply such numbers, after torch.set_float32_matmul_precision("medium") by the caller or a module of his."""
    for owner in list_rounding_owners():
        if owner.fp32_precision != "none":
            owner.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions


@contextmanager
def restore_rounding() -> Iterator[None]:
    """Put back behind the context how factors of products were rounded before it."""
    switches, word = read_unless_mixed(read_tf32), read_unless_mixed(torch.get_float32_matmul_precision)
    owners = list_rounding_owners()
    chosen = [owner.fp32_precision for owner in owners]
    try:
        yield
    finally:
        if switches:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches
        # last, because the switches change it
        if word:
            torch.set_float32_matmul_precision(word)
        for owner, rounding in zip(owners, chosen, strict=True):
            owner.fp32_precision = rounding


@runtime_checkable
class RoundingOwner(Protocol):
    """A part of torch.backends that says how factors of float32 are rounded: none, ieee, tf32 or bf16."""
    fp32_precision: str


def list_rounding_owners() -> list[RoundingOwner]:
    """List what has an `fp32_precision`: for CPUs and, if the older switches do not say it, also for GPUs."""
    paths = CPU_ROUNDING if read_unless_mixed(read_tf32) else (*CPU_ROUNDING, *GPU_ROUNDING)
    found = [torch.backends, *(reduce(lambda at, name: getattr(at, name, None), path.split("."), torch.backends)
                               for path in paths)]
    return [owner for owner in found if isinstance(owner, RoundingOwner)]


def read_unless_mixed(read: Callable[[], Read]) -> Read | None:
    """Return what `read` does, None if PyTorch refuses to say it because newer switches say something else."""
    try:
        return read()
    except RuntimeError:
        return None


def end_failed_capture(stream: torch.cuda.Stream, pool: object) -> None:
    """Tell PyTorch that the capture of a CUDA graph is over, which after one that failed it does not notice.

    Its allocator, before 2.12, would end the process when it next gives memory back; later versions say that the
    capture is over already, or do not have the functions. Its generator of random numbers would refuse to draw (seen
    with 2.11); the end of a capture that succeeds sets it free."""
    for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):
        if hasattr(torch._C, name):
            with suppress(RuntimeError):
                getattr(torch._C, name)(stream.device.index, pool)
    # If the GPU is broken or full, the caller's own error says so.
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream,
                                                  capture_error_mode="thread_local"):
        # An empty capture would be warned of.
        torch.zeros(1, device=stream.device)
