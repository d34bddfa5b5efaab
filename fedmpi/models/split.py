"""Split a network into its feature extractor (base) and its head, which takes nothing but the features."""
from __future__ import annotations

import copy
from contextlib import suppress

from torch import fx, nn

from fedmpi.errors import BadInput
from fedmpi.models.max_pooling import MaxPool2x2
from fedmpi.own_code.failures import describe_failure


def split_module(module: nn.Module, head: tuple[str, ...]) -> tuple[nn.Module, nn.Module, str]:
    """Return base and head as modules of their own, and the prefix that the head's names have in the whole network.

    Args:
        head: names of the head's blocks; none: the last Linear layer."""
    last = find_last_linear(module) if head in ((), list_linear(module)[-1:]) else None
    return (*split_at_layer(module, last), f"{last}.") if last else (*split_by_trace(module, head), "")


def list_linear(module: nn.Module) -> tuple[str, ...]:
    """Return the names of all Linear layers."""
    return tuple(name for name, layer in module.named_modules() if isinstance(layer, nn.Linear))


def find_last_linear(module: nn.Module) -> str:
    """Return the name of the last Linear layer. Raises BadInput if there is none, or nothing else."""
    found = list_linear(module)
    if not found or not found[-1]:
        raise BadInput("model: the network needs a Linear layer as its last one (the head) behind other layers")
    return found[-1]


def copy_network(module: nn.Module) -> nn.Module:
    """Return a copy of a network. Raises BadInput if it holds what cannot be copied."""
    try:
        return copy.deepcopy(module)
    # Copying calls code of everything that the network holds.
    except Exception as error:
        why = describe_failure(error).partition(". ")[0]
        raise BadInput(f"model: the network cannot be copied ({why}); compute tensors from parameters in forward, not "
                       "in __init__, take weight_norm from torch.nn.utils.parametrizations, and leave out open files "
                       "and locks") from error


def split_at_layer(module: nn.Module, head: str) -> tuple[nn.Module, nn.Module]:
    """Return the network with a layer replaced by the identity, and the layer. It works for every other operation."""
    base = copy_network(module)
    owner, _, last = head.rpartition(".")
    setattr(base.get_submodule(owner), last, nn.Identity())
    return base, copy.deepcopy(module.get_submodule(head))


def split_by_trace(module: nn.Module, head: tuple[str, ...]) -> tuple[nn.Module, nn.Module]:
    """Split the network's operations before the first one of the head's blocks. Raises BadInput."""
    where = f"model.head = [{', '.join(head)}]"
    refuse_unknown_blocks(module, head, where)
    nodes = trace_operations(module, where)
    behind = [node for node in nodes if has_parameters(module, node)]
    while behind and not is_within(behind[0], head):
        del behind[0]
    stray = [node.target for node in behind if not is_within(node, head)]
    if stray:
        raise BadInput(f"{where}: {stray[0]} works behind {behind[0].target} and is not in it; the head must be the "
                       "last blocks of the network, all of them")
    parts: tuple[nn.Module, ...] = ()
    # It raises if the network has no such cut.
    with suppress(LookupError, StopIteration):
        parts = cut_nodes(module, nodes, nodes.index(behind[0]))
    if sum(p.numel() for part in parts for p in part.parameters()) != sum(p.numel() for p in module.parameters()):
        raise BadInput(f"{where}: these blocks do not work on the result of the others alone; the head must be the "
                       "last blocks of the network")
    base, last = parts
    return base, last


def refuse_unknown_blocks(module: nn.Module, head: tuple[str, ...], where: str) -> None:
    """Refuse names that are not blocks of the network. Raises BadInput."""
    blocks = {name for name, layer in module.named_modules() if name and list(layer.parameters())}
    for name in head:
        if name not in blocks:
            there = ", ".join(name for name, _ in module.named_children() if name in blocks)
            raise BadInput(f"{where}: {name} is not a block of this network; its blocks are {there}")


class LayerTracer(fx.Tracer):
    """Follows a network down to its layers, those of PyTorch and MaxPool2x2, which asks whether gradients count."""

    def is_leaf_module(self, layer: nn.Module, qualified_name: str) -> bool:
        """Say whether the trace does not look into a layer."""
        return isinstance(layer, MaxPool2x2) or super().is_leaf_module(layer, qualified_name)


def trace_operations(module: nn.Module, where: str) -> list[fx.Node]:
    """Return the operations of the network, in order. Raises BadInput if they depend on the values of samples."""
    copied = copy_network(module)
    # The trace is made in training mode: in evaluation mode it would switch dropout off for ever.
    try:
        return list(LayerTracer().trace(copied.train()).nodes)
    except Exception as error:
        # The network's own code ran on stand-ins and may fail in any way.
        why = str(error).partition("\n")[0]
        raise BadInput(f"{where}: the operations of this network cannot be followed ({why}); leave head out, or build "
                       "the network as an nn.Sequential") from None


def is_within(node: fx.Node, blocks: tuple[str, ...]) -> bool:
    """Say whether an operation uses a layer or a parameter of these blocks."""
    return node.op in ("call_module", "get_attr") and any(f"{node.target}.".startswith(f"{b}.") for b in blocks)


def has_parameters(module: nn.Module, node: fx.Node) -> bool:
    """Say whether an operation uses parameters."""
    if node.op == "get_attr":
        owner, _, name = node.target.rpartition(".")
        return isinstance(getattr(module.get_submodule(owner), name), nn.Parameter)
    return node.op == "call_module" and bool(list(module.get_submodule(node.target).parameters()))


def cut_nodes(module: nn.Module, nodes: list[fx.Node], first: int) -> tuple[nn.Module, nn.Module]:
    """Return the operations before the `first` one of the head, and the others. Raises KeyError if the others use more
    than one result of those."""
    features = next(iter(nodes[first].all_input_nodes))
    base = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in nodes[:first]:
        values[node] = base.node_copy(node, values.__getitem__)
    base.output(values[features])
    head = fx.Graph()
    values = {features: head.placeholder("z")}
    for node in nodes[first:]:
        values[node] = head.node_copy(node, values.__getitem__)
    return fx.GraphModule(copy.deepcopy(module), base), fx.GraphModule(copy.deepcopy(module), head)
