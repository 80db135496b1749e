"""Decompositions of operators that torch itself writes as other operators.

`einsum`, `movedim`, `narrow`, `one_hot` and some hundred more have no kernel: eager torch runs them as a few others. If
such an operator has no entry in the table, it is taken apart the same way, by torch's own definition, and its parts are
translated where it stands. So its loops stay visible, its work is counted, and what it writes to or shares storage with
is followed. Others have a kernel, and a definition by core operators that torch's compilers use (`glu`, losses with
weights, norms): those are taken apart if that is short. An operator stays whole if a user registered a rule for it, if
a part of it is not known either, or if it is long: a recurrent network is one kernel on every device that matters, not
thousands of small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

MOST_PARTS = 64
"""Of an operator that has no kernel."""

FEW_PARTS = 24
"""Of an operator that has one: more of them is another algorithm, with other costs."""

LOOKING_UP = ("index", "_unsafe_index", "index_put", "arange", "as_strided")
"""Parts with which a definition computes positions, where a kernel walks them."""

ONE_KERNEL = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Operators that devices run whole, and that are slow to take apart."""


def parts(node: fx.Node, known: Callable[[str], bool], *, anyhow: bool = False) -> fx.GraphModule | None:
    """The operators that torch runs in place of this one, with its tensors as placeholders in order of appearance.
    `anyhow`: though it is known itself."""
    target: Any = node.target
    if target._schema.name.split("::")[1] in ONE_KERNEL or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if _composite(target):
        found = _taken_apart(node, {}, known, MOST_PARTS)
        if found is not None:
            return found
    if torch.Tag.pointwise in target.tags:
        return None
    written = {one: how for one, how in definitions().items() if not known(str(one))}
    if anyhow and target in definitions():
        written[target] = definitions()[target]
    if target not in written and not _composite(target):
        return None
    found = _taken_apart(node, written, known, min(FEW_PARTS, MOST_PARTS))
    looked_up = found is not None and any(
        part.op == "call_function" and str(part.target).split(".")[1] in LOOKING_UP for part in found.graph.nodes
    )
    return None if looked_up else found


@cache
def definitions() -> Mapping[Any, Callable[..., Any]]:
    """Torch's decompositions into core operators, as its compilers use them."""
    return dict(core_aten_decompositions())


def _taken_apart(
    node: fx.Node, written: Mapping[Any, Callable[..., Any]], known: Callable[[str], bool], most: int
) -> fx.GraphModule | None:
    nodes, call = _on_meta(node)
    try:
        with _use_lazy_graph_module(True):  # code of graphs is not run
            found = make_fx(call, decomposition_table=dict(written))(*nodes)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # it cannot be taken apart without values
        return None
    inner = [part for part in found.graph.nodes if part.op == "call_function"]
    if len(inner) > most or not all(known(str(part.target)) for part in inner if part.all_input_nodes):
        return None
    return found


def likeness(node: fx.Node) -> Hashable:
    """A key of an operator's parts: it, its arguments, and all that torch can know of its tensors. Empty if one of
    these is no tensor."""
    nodes: dict[fx.Node, int] = {}
    arguments = fx.node.map_arg((node.args, node.kwargs), lambda item: f"%{nodes.setdefault(item, len(nodes))}")
    given = [item.meta["val"] for item in nodes]
    if not all(isinstance(one, Tensor) for one in given):
        return None
    tensors = tuple(
        (one.shape, one.stride(), one.storage_offset(), one.dtype, one.device, one.requires_grad) for one in given
    )
    return node.target, repr(arguments), tensors


def flops(node: fx.Node) -> int:
    """The forward work of an operator that stays whole, as torch's counter sees it."""
    target: Any = node.target
    if target._schema.name == "aten::_grouped_mm":  # torch does not count it: two per multiply-add, each row once
        rows, weights = (item.meta["val"] for item in node.all_input_nodes[:2])
        return 2 * int(rows.numel()) * int(weights.shape[-1])
    nodes, call = _on_meta(node)
    try:
        with FlopCounterMode(display=False) as counter:
            call(*nodes)
    except (RuntimeError, TypeError, ValueError):  # an operator of the user's need not run outside its trace
        return 0
    return int(counter.get_total_flops())


def _composite(target: Any) -> bool:
    return bool(target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def _on_meta(node: fx.Node) -> tuple[list[Tensor], Callable[..., Any]]:
    """The tensors that the operator was given, and the operator as a function of them."""
    target: Any = node.target
    nodes: list[fx.Node] = []

    def note(item: fx.Node) -> fx.Node:
        nodes.append(item)
        return item

    fx.node.map_arg((node.args, node.kwargs), note)

    def call(*tensors: Tensor) -> Any:
        supplied = iter(tensors)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(supplied))
        return target(*args, **kwargs)

    return [item.meta["val"] for item in nodes], call
