"""Mapped code (`torch.vmap`) as operators on whole batches.

torch exports a mapped function as its operators on one sample, between calls that say where a dimension is mapped and
where it is put back. Here these calls are made, on fake tensors, and what torch makes of the operators then is what
stands in the graph: its own rules for batches, operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx
from torch._functorch.predispatch import _vmap_decrement_nesting, _vmap_increment_nesting, lazy_load_decompositions
from torch.fx.experimental.proxy_tensor import make_fx


def write_out(module: fx.GraphModule) -> None:
    """Replace mapped calls in a graph."""
    for node in [node for node in module.graph.nodes if _is(node, lazy_load_decompositions)]:
        module.graph.erase_node(node)  # it only loads some of torch's rules
    for nodes in list(_mapped(module.graph)):
        _replace(module, nodes)


def _is(node: fx.Node, function: Any) -> bool:
    return node.op == "call_function" and node.target is function


def _mapped(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """The nodes of each call that maps, with those of calls within it."""
    deep, own = 0, list[fx.Node]()
    for node in graph.nodes:
        deep += _is(node, _vmap_increment_nesting)
        if deep:
            own.append(node)
        deep -= _is(node, _vmap_decrement_nesting)
        if own and not deep:
            yield own
            own = []


def _replace(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """Replace nodes by what torch makes of them."""
    graph, inside = module.graph, set(nodes)
    given = list(dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in inside))
    left = [node for node in nodes if any(user not in inside for user in node.users)]
    copy = fx.Graph()
    copied = {one: copy.placeholder(one.name) for one in given}
    for node in nodes:
        copied[node] = copy.node_copy(node, copied.__getitem__)
    copy.output(tuple(copied[node] for node in left))
    made = make_fx(fx.GraphModule(module, copy))(*(one.meta["val"] for one in given))
    placed: dict[fx.Node, Any] = {}
    arguments = iter(given)
    with graph.inserting_before(nodes[0]):
        for node in made.graph.nodes:
            if node.op == "placeholder":
                placed[node] = next(arguments)
            elif node.op == "output":
                results = [placed[one] for one in node.args[0]]
            else:
                placed[node] = graph.node_copy(node, placed.__getitem__)
                placed[node].meta = {**nodes[-1].meta, **node.meta}
                if node.op == "get_attr":
                    placed[node].target = f"mapped_{placed[node].name}"
                    setattr(module, placed[node].target, getattr(made, str(node.target)))
    for node, result in zip(left, results, strict=True):
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        graph.erase_node(node)
