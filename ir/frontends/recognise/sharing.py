"""What is computed twice alike in one module is computed once, as compilers of whole programs have it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.ir.graph.graph import Attr, Graph, Op

_Key = tuple[str, tuple[str, ...], tuple[tuple[str, Attr], ...], str, bool]


def shared(graph: Graph) -> Graph:
    """The graph without operators that an earlier one in the same module equals; what is drawn is drawn each time."""
    now: dict[str, str] = {}
    known: dict[_Key, Op] = {}
    ops: list[Op] = []
    for op in graph.ops:
        read = replace(op, operands=tuple(now.get(value, value) for value in op.operands))
        key = (read.kind, read.operands, read.attrs, read.module, read.no_grad)
        before = known.get(key)
        if before is not None and not read.draws and read.kind != "opaque":
            now |= dict(zip(read.results, before.results, strict=True))
            continue
        known.setdefault(key, read)
        ops.append(read)
    outputs = tuple(now.get(value, value) for value in graph.outputs)
    updates = tuple(replace(one, value=now.get(one.value, one.value)) for one in graph.updates)
    types = {value: type_ for value, type_ in graph.types.items() if value not in now}
    loss = None if graph.loss is None else now.get(graph.loss, graph.loss)
    return Graph(types, graph.inputs, graph.params, tuple(ops), outputs, updates, loss)
