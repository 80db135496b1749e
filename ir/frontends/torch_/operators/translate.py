"""Translation of an exported program to a `Graph`: the walk.

In: what `torch.export` traced. Out: `Traced`: a functional graph in normal form, and the expressions of its constants.

One pass over the program, node by node. A traced name denotes a cell (`storage.py`), whose value is a handle
(`values.py`). An operator whose operands are all constant becomes a `Term`; any other is lowered by its entry in the
table of `aten.py`, which emits operators (`emit.py`). Writes in place become new values of their cells. Regions
(no_grad, autocast) are walked where they are called. At the end, what reaches no output is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, fx

from meshwright.ir.errors import DataDependentControlFlow, ForwardRaised
from meshwright.ir.frontends.folding.emit import Emitter
from meshwright.ir.frontends.folding.handles import Assembly, Attribute, Handle, Names, Place, Traced
from meshwright.ir.frontends.folding.sections import joined
from meshwright.ir.frontends.folding.storage import Cell
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.frontends.foreign import HOME
from meshwright.ir.frontends.torch_.constants.code import constant_of
from meshwright.ir.frontends.torch_.operators import aten, decompose, writing
from meshwright.ir.frontends.torch_.operators.values import Call, Literal, flat, tensor_term
from meshwright.ir.frontends.torch_.sources.dtypes import type_of
from meshwright.ir.graph.graph import Graph, Op, Type, Update


class Translator(Emitter):
    """The state of one walk. `attributes` gives the places of tensors that the model holds without registering them."""

    def __init__(self, names: Names, attributes: Mapping[int, tuple[Attribute, ...]] | None = None) -> None:
        super().__init__(names)
        self.attributes = attributes or {}
        self.taken_apart: dict[Hashable, fx.GraphModule | None] = {}
        """What operators are made of; those that are alike are taken apart once."""
        self.parameters: set[Cell[Handle]] = set()

    def run(self, graph: fx.Graph, arguments: Sequence[Any], owner: torch.nn.Module) -> list[Any]:
        """Translate a (sub)graph called with these cells; the cells of its outputs."""
        cells: dict[fx.Node, Any] = {}
        supplied = iter(arguments)
        for node in graph.nodes:
            if node.op == "placeholder":
                cells[node] = next(supplied)
            elif node.op == "get_attr":
                cells[node] = self._attribute(owner, str(node.target))
            elif node.op == "output":
                return [_looked_up(cells, item) for item in flat(node.args[0])]
            else:
                cells[node] = self._node(node, cells, owner)
        return []

    def _attribute(self, owner: torch.nn.Module, name: str) -> Any:
        found: Any = owner
        for part in name.split("."):
            found = getattr(found, part)
        return found if isinstance(found, fx.GraphModule) else Cell[Handle](self.tensor(found))

    def tensor(self, found: Tensor) -> Handle:
        """A tensor that is no parameter and no buffer, as a constant."""
        return self.add_attribute(tensor_term(found), self.attributes.get(id(found), ()))

    def _node(self, node: fx.Node, cells: dict[fx.Node, Any], owner: torch.nn.Module) -> Any:
        target = str(node.target)
        if "getitem" in target:
            return _looked_up(cells, node.args[0])[node.args[1]]
        if target in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            return self._region(node, cells, target)
        if "_assert" in target or target.startswith("aten.sym_"):
            return None
        before = self.place
        self.place = self._place_of(node)
        try:
            return self._operator(node, cells)
        finally:
            self.place = before

    def _region(self, node: fx.Node, cells: dict[fx.Node, Any], target: str) -> list[Any]:
        """A higher-order call: grad mode is a flag on what is inside; autocast leaves no trace on the meta device."""
        switches_grad = target == "wrap_with_set_grad_enabled"
        position = 1 if switches_grad else 4
        body: fx.GraphModule = cells[node.args[position]]
        before = self.place
        if switches_grad:
            self.place = replace(before, no_grad=not node.args[0])
        else:
            self.notes.append("autocast is not traced: give the model the dtype that it computes in")
        results = self.run(body.graph, [_looked_up(cells, a) for a in node.args[position + 1 :]], body)
        self.place = before
        return results

    def _place_of(self, node: fx.Node) -> Place:
        stack = node.meta.get("nn_module_stack") or {}
        path = re.sub(r"@\d+", "", list(stack.values())[-1][0]) if stack else ""
        module = self.names.path(path) if path else self.place.module
        source = source_line(node.meta.get("stack_trace") or "")
        return Place(module, source or ("" if path else self.place.source), self.place.no_grad)

    def _operator(self, node: fx.Node, cells: dict[fx.Node, Any]) -> Any:
        if not isinstance(node.target, torch._ops.OpOverload):
            name = getattr(node.target, "__name__", node.target)
            raise ForwardRaised(
                place=self.place.source or self.place.module,
                cause=f"{name} is no operator; transforms of torch.func make such calls",
                fix="write what it does in plain operators; torch.vmap alone is traced, with out_dims=0",
            )
        call, given = self._bound(node, cells)
        self.work, self.apart = partial(decompose.flops, node), partial(self._made_of, node, given)
        if (made_of := self._parts(node, call)) is not None:
            results = self.run(made_of.graph, flat(given), made_of)
            return results[0] if isinstance(node.meta.get("val"), Tensor) else results
        if writing.writes(call.target):
            return self._written(call, given[0])
        if given and writing.shares(node.target) and not writing.copied(node):
            return self._viewed(call, given[0], several=not isinstance(node.meta.get("val"), Tensor))
        handle = self._result(call)
        if not isinstance(handle, tuple):
            return Cell(handle)
        updated = writing.updates(call.target)
        if not updated:
            return [Cell(part) for part in handle]
        for position, value in zip(updated, handle[1:], strict=True):
            cells[node.args[position]].write(value)
        return Cell(handle[0])

    def _parts(self, node: fx.Node, call: Call) -> fx.GraphModule | None:
        """The parts of an operator without an entry. Of constants, torch computes any operator as it is."""
        read = [h for h in flat(tuple(call.args.values())) if isinstance(h, str | Term | Assembly)]
        if aten.known(call.target) or all(isinstance(h, Term) for h in read):
            return None
        alike = decompose.likeness(node)
        if alike is None or alike not in self.taken_apart:
            self.taken_apart[alike] = decompose.parts(node, lambda target: aten.ruled(target.removeprefix("aten.")))
        return self.taken_apart[alike]

    def _made_of(self, node: fx.Node, given: Sequence[Any]) -> Handle | None:
        """The results of an operator with an entry, by its parts."""
        made_of = decompose.parts(node, lambda target: aten.ruled(target.removeprefix("aten.")), anyhow=True)
        if made_of is None:
            return None
        handles = tuple(cell.read() for cell in self.run(made_of.graph, flat(given), made_of))
        return handles[0] if isinstance(node.meta.get("val"), Tensor) else handles

    def _viewed(self, call: Call, parent: Cell[Handle], *, several: bool) -> Any:
        """A cell that shares its parent's storage, or one for each of several results. Of an unfinished assembly,
        nothing is taken before it is read."""

        def take(value: Handle) -> Handle:
            return self._result(call.on(value))

        def part(index: int, own: Handle | None) -> Cell[Handle]:
            def take_part(value: Handle) -> Handle:
                taken = take(value)
                return taken[index] if isinstance(taken, tuple) else taken

            return Cell(own, parent, take_part, writing.putting_part(self, call, index))

        if isinstance(parent.read(), Assembly):
            if several:
                return [part(index, None) for index in range(len(call.types))]
            return Cell(None, parent, take, writing.putting(self, call))
        handle = self._result(call)
        if not isinstance(handle, tuple):
            return Cell(handle, parent, take, writing.putting(self, call))
        return [part(index, own) for index, own in enumerate(handle)]

    def _written(self, call: Call, cell: Cell[Handle]) -> Cell[Handle]:
        """An in-place operator: its functional twin, then a write in the dtype of what is written. What is written into
        a parameter has no gradient, while the parameter has: no operator says that (`unsaid.written`)."""
        if cell.root in self.parameters:
            self.notes.append("what the forward pass writes into parameters is not planned")
            return cell
        cell.write(self.cast(self._result(writing.functional_twin(call, self.type)), call.type.dtype))
        return cell

    def _result(self, call: Call) -> Handle:
        """A constant if all it reads is constant, else what the table lowers it to."""
        packet = call.target.split(".")[0]
        if writing.is_creation(call.target):  # of the tensor that it is made like, it uses what the result's type says
            made_like = (None, *call.positional[1:])
            return self.keep(self._term(packet, call, call.type, made_like))
        read = [h for h in flat(tuple(call.args.values())) if isinstance(h, str | Term | Assembly)]
        if not writing.is_pure(call.target) or not all(isinstance(h, Term) for h in read):
            return aten.lower(self, call)
        if len(call.types) > 1 or packet in ("chunk", "split", "split_with_sizes"):
            return tuple(self._constant_parts(packet, call))
        return self.keep(self._term(packet, call, call.type, call.positional))

    def _term(self, operator: str, call: Call, type_: Type, arguments: tuple[Any, ...]) -> Term:
        return Term(operator, type_.shape, type_.dtype, arguments, dict(call.keyword), target=call.target)

    def _constant_parts(self, packet: str, call: Call) -> Iterator[Term]:
        """The results of an operator that has several: parts of a split are slices, others have no law."""
        start = 0
        for index, type_ in enumerate(call.types):
            if packet in ("chunk", "split", "split_with_sizes"):
                dim = call["dim"] % len(type_.shape)
                cut = (call["self"], dim, start, start + type_.shape[dim])
                start += type_.shape[dim]
                yield self.keep(Term("slice", type_.shape, type_.dtype, cut, target="slice.Tensor"))
            else:
                yield self.keep(self._term(f"{packet}[{index}]", call, type_, call.positional))

    def _bound(self, node: fx.Node, cells: dict[fx.Node, Any]) -> tuple[Call, list[Any]]:
        schema = node.target._schema
        target = str(node.target).removeprefix("aten.")
        given: list[Any] = []

        def resolve(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                cell = cells[argument]
                given.append(cell)
                if len(given) == 1 and target == "copy_.default":
                    return None  # overwritten unread
                return cell.read() if isinstance(cell, Cell) else tuple(c.read() for c in cell)
            if isinstance(argument, list | tuple):
                return tuple(resolve(item) for item in argument)
            return Literal(argument) if isinstance(argument, str) else argument

        positional = tuple(resolve(a) for a in node.args)
        keyword = {k: resolve(v) for k, v in node.kwargs.items()}
        bound: dict[str, Any] = {
            a.name: resolve(a.default_value) if a.has_default_value() else None for a in schema.arguments
        }
        bound |= dict(zip(tuple(bound), positional, strict=False)) | keyword
        produced = flat(node.meta.get("val"))
        results = [v for v in produced if isinstance(v, Tensor)]
        if any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in produced) or not _static(results):
            raise DataDependentControlFlow(
                place=self.place.source or self.place.module,
                cause=f"{target.split('.')[0]} gives a number, or a shape, that depends on the values of a tensor",
                fix="compute with tensors of known shapes: torch.where, masks, static capacities",
            )
        where = f"{self.place.source or node.name} ({node.target})"
        types = tuple(type_of(v, where) for v in results)
        plain = tuple(_plain(a) for a in positional), {k: _plain(v) for k, v in keyword.items()}
        return Call(target, bound, types, *plain), given

    def finish(self, outputs: Sequence[Handle], updates: Sequence[tuple[str, Handle, str]], *, loss: bool) -> Traced:
        """The graph of what reaches the outputs and the buffers."""
        values = tuple(self.value(handle) for handle in outputs)
        changed = tuple(Update(path, self.value(handle), reduction) for path, handle, reduction in updates)
        needed = {*values, *(update.value for update in changed)}
        ops: list[Op] = []
        for op in reversed(self.ops):
            if needed.intersection(op.results):
                ops.append(op)
                needed.update(op.operands)
        ops.reverse()
        params = tuple(p for p in self.params.values() if p.value in needed or not p.buffer)
        used = {i.value for i in self.inputs} | {p.value for p in params} | {r for op in ops for r in op.results}
        graph = Graph(
            types={value: type_ for value, type_ in self.types.items() if value in used},
            inputs=tuple(self.inputs),
            params=params,
            ops=joined(ops, self.types),
            outputs=values,
            updates=changed,
            loss=values[0] if loss else None,
        )
        constants = {value: term for value, term in self.constants.items() if value in used}
        return Traced(graph, constants, tuple(dict.fromkeys(self.notes)), self.made(constants, constant_of))


def _static(tensors: Sequence[Tensor]) -> bool:
    return all(type(extent) is int for tensor in tensors for extent in tensor.shape)


def _plain(argument: Any) -> Any:
    return argument.text if isinstance(argument, Literal) else argument


def _looked_up(cells: Mapping[fx.Node, Any], item: Any) -> Any:
    return cells[item] if isinstance(item, fx.Node) else item


def source_line(trace: str) -> str:
    """The innermost line of a stack trace outside torch and this package, as in `transformers/activations.py:12`."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', trace)
    for filename, number in reversed(lines):
        parts = PurePath(filename).parts
        if PurePath(filename).is_relative_to(HOME):
            continue
        library = next((i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), None)
        if library is None:
            return f"{parts[-1]}:{number}"
        if parts[library + 1] != "torch":
            return f"{'/'.join(parts[library + 1 :])}:{number}"
    return ""
