"""Operators that torch itself writes as other operators.

`einsum`, `movedim`, `narrow`, `one_hot` and some hundred more have no kernel: eager torch runs them as a few others. If
such an operator has no entry in the table, it is taken apart the same way, by torch's own definition, and its parts are
translated where it stands. So its loops stay visible, its work is counted, and what it writes to or shares storage with
is followed. It stays whole if a user registered a rule for it, if a part of it has no entry either, or if it is long:
a recurrent network is one kernel on every device that matters, not thousands of small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

MOST_PARTS = 64

ONE_KERNEL = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Operators that devices run whole, and that are slow to take apart."""


def parts(node: fx.Node, known: Callable[[str], bool]) -> fx.GraphModule | None:
    """The operators that torch runs in place of this one, with its tensors as placeholders in order of appearance."""
    target: Any = node.target
    if target._schema.name.split("::")[1] in ONE_KERNEL or not _composite(target):
        return None
    nodes, call = _on_meta(node)
    try:
        taken_apart = make_fx(call)(*nodes)
    except (RuntimeError, TypeError, ValueError):  # what torch cannot take apart without values stays whole
        return None
    inner = [part for part in taken_apart.graph.nodes if part.op == "call_function"]
    if len(inner) > MOST_PARTS or not all(known(str(part.target)) for part in inner if part.all_input_nodes):
        return None
    return taken_apart


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
