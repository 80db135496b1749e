"""From an exported program to a `Graph` of our own vocabulary.

In: what `torch.export` traced. Out: `Traced`: a functional graph in normal form, and the expressions of its constants.

One pass over the program. A traced name denotes a *handle*, which is one of

    value      the name of a value of the graph
    Term       a constant: it depends on no parameter and no input, so nothing is emitted for it until an operator needs it
    Assembly   a constant into which slices have been written; whole again, it is a `cat`
    tuple      the results of one operator

Each ATen operator is lowered by its entry in the table of `aten.py`; here is what entries build on:

- *Nothing is emitted for nothing*: casts to the same dtype, whole slices and views of the same shape pass their operand through; views of
  views are one view; what reaches no output is dropped.
- *Constants* surface as `constant` operators, or as buffers. Those made outside repeated blocks are moved to the front; inside a block a
  constant is made where it is used, so that blocks stay alike.
- *Lifting*: models flatten (batch, seq) into tokens and back around operators that do not care. An operator over flattened leading
  dimensions is emitted over the original ones, with the flattening after it, where it usually meets its own inverse. So batch and
  sequence stay two dimensions, which can be split separately.
- *Strides* are tracked, because whether `reshape` copies decides how many bytes are kept for the backward pass. Attention kernels lay
  their result out as [batch, seq, heads, dim]; traces on the meta device do not know that, so we say it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, fx

from meshwright.ir.frontends.constants import Term
from meshwright.ir.frontends.dtypes import DTYPES, type_of
from meshwright.ir.frontends.storage import Cell
from meshwright.ir.graph import Attr, Graph, Input, Op, Param, Type, Update

LIFTED = frozenset(
    "linear cast softmax log_softmax topk gather scatter masked_fill where split slice cat expand cross_entropy "
    "embedding rms_norm layer_norm dropout add sub mul div neg silu gelu relu tanh sigmoid exp log sqrt rsqrt pow abs softplus "
    "logical_not eq ne lt le gt ge sum mean amax".split()
)
"""Kinds that treat their leading dimensions alike, whatever their number."""

TOKENWISE: Mapping[str, tuple[int, ...]] = {
    "linear": (0,),
    "embedding": (1,),
    "rms_norm": (0,),
    "layer_norm": (0,),
    "cross_entropy": (0, 1),
}
"""Which operands have those leading dimensions; by default all."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A constant with slices [start, end) of one dimension overwritten by values."""

    base: Term
    dim: int
    pieces: tuple[tuple[int, int, Handle], ...] = ()


Handle = str | Term | Assembly | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """How traced module paths read in the model: `path` gives the original path, `room` the repeated block that it lies in ("": none)."""

    path: Callable[[str], str]
    room: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the model an operator was traced."""

    module: str = ""
    source: str = ""
    no_grad: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One traced operator: its name in `aten::`, arguments by schema name (tensors as handles), and the types of its results."""

    target: str
    args: Mapping[str, Any]
    types: tuple[Type, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    name: str
    raw: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), field(default_factory=dict))  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def type(self) -> Type:
        return self.types[0]

    def on(self, first: Handle) -> Call:
        """The same call on another first argument."""
        (_, *others), keywords = self.raw
        return replace(self, args={**self.args, next(iter(self.args)): first}, raw=((first, *others), keywords))


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, and what its constants are."""

    graph: Graph
    constants: Mapping[str, Term]
    notes: tuple[str, ...] = ()


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def view_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of the tensor seen as `target`, or None if that needs a copy. (Torch's rule: group source dims that are contiguous.)"""
    chunks: list[tuple[int, int]] = []  # (elements, innermost stride), outermost first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if chunks and chunks[-1][1] == stride * extent:
            chunks[-1] = (chunks[-1][0] * extent, stride)
        else:
            chunks.append((extent, stride))
    result: list[int] = []
    left, inner = chunks.pop() if chunks else (1, 1)
    step = inner
    for extent in reversed(target):
        if extent != 1 and left == 1 and chunks:
            left, step = chunks.pop()
        if left % extent:
            return None
        result.append(step)
        step, left = step * extent, left // extent
    return tuple(reversed(result))


def taken_strides(
    kind: str, shape: Sequence[int], strides: Sequence[int], target: Sequence[int], attrs: Mapping[str, Attr]
) -> tuple[int, ...]:
    """Strides of the part or rearrangement of a tensor that a view of this kind takes."""
    if kind == "permute":
        return tuple(strides[d] for d in attrs["perm"])  # type: ignore[index, union-attr, misc]
    if kind == "select":
        return tuple(stride for dim, stride in enumerate(strides) if dim != attrs["dim"])
    if kind == "slice":
        return tuple(
            stride * int(attrs["step"]) if dim == attrs["dim"] else stride for dim, stride in enumerate(strides)
        )  # type: ignore[arg-type]
    if kind == "expand":
        extra = len(target) - len(shape)
        grown = zip(shape, target[extra:], strides, strict=True)
        return (*(0 for _ in range(extra)), *(0 if before != after else stride for before, after, stride in grown))
    return tuple(strides)


class Translator:
    """The state of one pass. Lowerings (in `aten.py`) call `value`, `emit`, `view` and `type`."""

    def __init__(self, names: Names, lower: Callable[[Translator, Call], Handle]) -> None:
        self.names = names
        self.types: dict[str, Type] = {}
        self.strides: dict[str, tuple[int, ...]] = {}
        self.producer: dict[str, Op] = {}
        self.inputs: list[Input] = []
        self.params: dict[str, Param] = {}
        self.constants: dict[str, Term] = {}
        self.notes: list[str] = []
        self.place = Place()
        self.masked: dict[str, tuple[Term, Handle]] = {}
        """Values that are `where(condition, x, very negative)`: attention reads them as a mask and a bias."""
        self._lower = lower
        self._ops: list[Op] = []
        self._prologue: list[Op] = []
        self._made: dict[tuple[int, str], str] = {}
        self._origin: dict[int, str] = {}
        self._buffers: dict[int, str] = {}
        self._kept: list[object] = []  # whatever the tables above know by id

    # What comes from outside ------------------------------------------------------------------------------------------

    def add_input(self, name: str, type_: Type, labels: tuple[str, ...]) -> Handle:
        value = self._fresh(name)
        self._define(value, type_, None)
        self.inputs.append(Input(value, labels))
        return value

    def add_param(self, paths: tuple[str, ...], type_: Type, *, requires_grad: bool, buffer: bool = False) -> Handle:
        value = self._fresh(f"{'b' if buffer else 'p'}.{paths[0]}")
        self._define(value, type_, None)
        self.params[value] = Param(value, paths, requires_grad, buffer)
        return value

    def add_constant(self, term: Term, buffer: str | None = None) -> Handle:
        """A constant leaf; one that is a buffer of the model surfaces under its name."""
        self._kept.append(term)
        if buffer is not None:
            self._buffers[id(term)] = buffer
        return term

    # Reading handles --------------------------------------------------------------------------------------------------

    def type(self, handle: Handle) -> Type:
        if isinstance(handle, str):
            return self.types[handle]
        term = handle.base if isinstance(handle, Assembly) else handle
        if not isinstance(term, Term):
            raise TypeError(f"{handle!r} has no single type")
        return Type(term.shape, term.dtype)

    def value(self, handle: Handle) -> str:
        """The handle as a value of the graph; constants and assemblies are emitted now."""
        if isinstance(handle, str):
            return handle
        if isinstance(handle, Assembly):
            return self._assembled(handle)
        if isinstance(handle, Term):
            return self._constant(handle)
        raise TypeError(f"{handle!r} is not one value")

    def _constant(self, term: Term) -> str:
        origin = self._origin.get(id(term), "")
        here = self.names.room(self.place.module)
        room = here if origin else ""
        known = self._made.get((id(term), room))
        if known is not None:
            return known
        self._kept.append(term)
        type_ = Type(term.shape, term.dtype)
        if id(term) in self._buffers:
            value = self.value(self.add_param((self._buffers[id(term)],), type_, requires_grad=False, buffer=True))
        else:
            value = self._fresh(f"constant_{len(self.constants)}")
            self._define(value, type_, None)
            attrs = (("law", self._law(term, room)), ("shape", term.shape), ("dtype", term.dtype))
            op = Op("constant", (), (value,), attrs, module=self.place.module if room else "", no_grad=True)
            self.constants[value] = term
            self.producer[value] = op
            (self._ops if room else self._prologue).append(op)
        self._made[id(term), room] = value
        return value

    def _law(self, term: Term, room: str) -> str:
        """The constant's last operator and a digest of its expression; like constants of like blocks have like laws."""
        digests: dict[int, str] = {}

        def digest(item: Any) -> str:
            if isinstance(item, list | tuple):
                return f"({','.join(map(digest, item))})"
            if not isinstance(item, Term):
                return str(item)
            if id(item) not in digests:
                leaf = self._buffers.get(id(item), "").removeprefix(f"{room}.")
                data = "" if item.data is None else hashlib.sha256(item.data.tobytes()).hexdigest()
                arguments = [
                    digest(item.args),
                    *(f"{k}={digest(v)}" for k, v in sorted(item.kwargs.items()) if k != "device"),
                ]
                text = f"{item.op} {item.dtype} {item.shape} {leaf} {data} {arguments}"
                digests[id(item)] = hashlib.sha256(text.encode()).hexdigest()[:8]
            return digests[id(item)]

        return f"{term.op or 'buffer'}:{digest(term)}"

    def _assembled(self, whole: Assembly) -> str:
        """Pieces and the gaps between them, concatenated."""
        shape, parts, position = whole.base.shape, [], 0
        for start, end, piece in sorted(whole.pieces, key=lambda piece: piece[:2]):
            if start > position:
                parts.append(self._gap(whole, position, start))
            parts.append(self.value(piece))
            position = end
        if position < shape[whole.dim]:
            parts.append(self._gap(whole, position, shape[whole.dim]))
        return self.emit("cat", parts, (Type(shape, whole.base.dtype),), {"dim": whole.dim})

    def _gap(self, whole: Assembly, start: int, end: int) -> str:
        shape = tuple(end - start if dim == whole.dim else extent for dim, extent in enumerate(whole.base.shape))
        return self.value(self.keep(Term("slice", shape, whole.base.dtype, (whole.base, whole.dim, start, end))))

    def keep(self, term: Term) -> Term:
        """Note where a constant was made."""
        self._kept.append(term)
        self._origin[id(term)] = self.names.room(self.place.module)
        return term

    # Emitting ---------------------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: str,
        operands: Sequence[Handle],
        types: tuple[Type, ...],
        attrs: Mapping[str, Attr] | None = None,
        *,
        alias: int | None = None,
        strides: Sequence[tuple[int, ...] | None] = (),
        name: str = "",
    ) -> str:
        """One operator; its first result (see `emit_all`)."""
        return self.emit_all(kind, operands, types, attrs, alias=alias, strides=strides, name=name)[0]

    def emit_all(
        self,
        kind: str,
        operands: Sequence[Handle],
        types: tuple[Type, ...],
        attrs: Mapping[str, Attr] | None = None,
        *,
        alias: int | None = None,
        strides: Sequence[tuple[int, ...] | None] = (),
        name: str = "",
    ) -> tuple[str, ...]:
        """One operator; its results. Where operands come out of a flattening of leading dimensions, it is lifted over it."""
        values = tuple(self.value(operand) for operand in operands)
        lifted = self._lift(kind, values, types, dict(attrs or {})) if kind in LIFTED else None
        if lifted is None:
            return self._emit(kind, values, types, dict(attrs or {}), alias, strides, name)
        lead, values, wide_types, wide_attrs = lifted
        wide = self._emit(kind, values, wide_types, wide_attrs, alias, (), name)
        return tuple(
            self.view(result, type_.shape) if self.types[result].shape[: len(lead)] == lead else result
            for result, type_ in zip(wide, types, strict=True)
        )

    def _emit(
        self,
        kind: str,
        values: tuple[str, ...],
        types: tuple[Type, ...],
        attrs: Mapping[str, Attr],
        alias: int | None,
        strides: Sequence[tuple[int, ...] | None],
        name: str,
    ) -> tuple[str, ...]:
        stem = kind
        results = tuple(self._fresh(stem if len(types) == 1 else f"{stem}.{index}") for index in range(len(types)))
        op = Op(
            kind,
            values,
            results,
            tuple(attrs.items()),
            self.place.module,
            self.place.source,
            no_grad=self.place.no_grad,
            alias=alias,
        )
        for index, (result, type_) in enumerate(zip(results, types, strict=True)):
            given = strides[index] if index < len(strides) else None
            if given is None and alias is not None:
                given = taken_strides(
                    kind, self.types[values[alias]].shape, self.strides[values[alias]], type_.shape, attrs
                )
            self._define(result, type_, given or self._inherited(values, type_))
            self.producer[result] = op
        self._ops.append(op)
        return results

    def _inherited(self, values: Iterable[str], type_: Type) -> tuple[int, ...]:
        """Elementwise results take the order of dimensions of their first dense operand of the same shape."""
        for value in values:
            if self.types[value].shape == type_.shape and _dense(type_.shape, self.strides[value]):
                return self.strides[value]
        return contiguous(type_.shape)

    def view(self, handle: Handle, shape: tuple[int, ...], *, copy: bool = False, name: str = "") -> str:
        """The operand in another shape: a view where strides allow one, else a copy."""
        value = self.value(handle)
        source = self.types[value]
        if source.shape == shape and not copy:
            return value
        before = self.producer.get(value)
        if not copy and before is not None and self._passes(before):
            inner = before.operands[0]
            lead = _merged(self.types[inner].shape, source.shape)
            if lead and shape[:1] == source.shape[:1]:
                return self.view(self.view(inner, (*lead, *shape[1:])), shape, name=name)
            if lead or not _merged(source.shape, shape):
                return self.view(inner, shape, name=name)
        strides = None if copy else view_strides(source.shape, self.strides[value], shape)
        (result,) = self._emit(
            "view",
            (value,),
            (Type(shape, source.dtype),),
            {"shape": shape},
            None if strides is None else 0,
            (strides or contiguous(shape),),
            name,
        )
        return result

    def detached(self, handle: Handle) -> str:
        """The same storage, outside differentiation."""
        value, place = self.value(handle), self.place
        self.place = replace(place, no_grad=True)
        shape = self.types[value].shape
        (result,) = self._emit("view", (value,), (self.types[value],), {"shape": shape}, 0, (self.strides[value],), "")
        self.place = place
        return result

    def _passes(self, op: Op) -> bool:
        """Whether an operator is a view that may be seen through: of the same block, and of the same side of differentiation."""
        same_room = self.names.room(op.module) == self.names.room(self.place.module)
        return op.kind == "view" and op.alias == 0 and not op.no_grad and same_room

    def _lift(
        self, kind: str, values: tuple[str, ...], types: tuple[Type, ...], attrs: dict[str, Attr]
    ) -> tuple[tuple[int, ...], tuple[str, ...], tuple[Type, ...], dict[str, Attr]] | None:
        """The operator over the dimensions that its operands were flattened from, or None."""
        positions = TOKENWISE.get(kind, tuple(range(len(values))))
        tokens, lead = self._flattened(values[i] for i in positions if i < len(values))
        adjusted = _shift_dims(attrs, len(lead) - 1, lead) if lead else None
        if adjusted is None:
            return None
        if kind != "cross_entropy" and any(t.shape[:1] != (tokens,) for t in types):
            return None
        wide = list(values)
        for i in positions:
            shape = self.types[values[i]].shape if i < len(values) else ()
            if shape[:1] == (tokens,) and (i == positions[0] or kind in TOKENWISE or len(shape) == len(types[0].shape)):
                unflattened = self._unflattened(values[i], lead)
                if unflattened is None:
                    return None
                wide[i] = unflattened
        wide_types = tuple(Type((*lead, *t.shape[1:]), t.dtype) if t.shape[:1] == (tokens,) else t for t in types)
        return lead, tuple(wide), wide_types, adjusted

    def _flattened(self, values: Iterable[str]) -> tuple[int, tuple[int, ...]]:
        for value in values:
            op = self.producer.get(value)
            if op is not None and self._passes(op):
                lead = _merged(self.types[op.operands[0]].shape, self.types[value].shape)
                if lead:
                    return self.types[value].shape[0], lead
        return 0, ()

    def _unflattened(self, value: str, lead: tuple[int, ...]) -> str | None:
        op = self.producer.get(value)
        shape = self.types[value].shape
        if op is None:
            return self.view(value, (*lead, *shape[1:]))
        if op.kind == "constant":
            term = self.constants[value]
            return self.value(self.keep(Term("view", (*lead, *shape[1:]), term.dtype, (term, (*lead, *shape[1:])))))
        if self._passes(op) and _merged(self.types[op.operands[0]].shape, shape) == lead:
            return op.operands[0]
        return None

    def _define(self, value: str, type_: Type, strides: tuple[int, ...] | None) -> None:
        self.types[value] = type_
        self.strides[value] = strides if strides is not None else contiguous(type_.shape)

    def _fresh(self, stem: str) -> str:
        value, number = stem, 1
        while value in self.types:
            number += 1
            value = f"{stem}_{number}"
        return value

    # Walking the program ----------------------------------------------------------------------------------------------

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
                return [_looked_up(cells, item) for item in _flat(node.args[0])]
            else:
                cells[node] = self._node(node, cells, owner)
        return []

    def _attribute(self, owner: torch.nn.Module, name: str) -> Any:
        found: Any = owner
        for part in name.split("."):
            found = getattr(found, part)
        return found if isinstance(found, fx.GraphModule) else Cell[Handle](self.add_constant(tensor_term(found)))

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
        """A higher-order call: grad mode is a flag on what is inside; autocast has already left its casts there."""
        position = 1 if target == "wrap_with_set_grad_enabled" else 4
        body: fx.GraphModule = cells[node.args[position]]
        before = self.place
        if position == 1:
            self.place = replace(before, no_grad=not node.args[0])
        results = self.run(body.graph, [_looked_up(cells, a) for a in node.args[position + 1 :]], body)
        self.place = before
        return results

    def _place_of(self, node: fx.Node) -> Place:
        stack = node.meta.get("nn_module_stack") or {}
        path = re.sub(r"@\d+", "", list(stack.values())[-1][0]) if stack else ""
        module = self.names.path(path) if path else self.place.module
        return Place(module, source_line(node.meta.get("stack_trace") or ""), self.place.no_grad)

    def _operator(self, node: fx.Node, cells: dict[fx.Node, Any]) -> Any:
        from meshwright.ir.frontends import aten

        call, given = self._bound(node, cells)
        first = given[0] if given else None
        if aten.writes(call.target):
            return self._written(call, first, given)
        if first is not None and call.target in aten.VIEWS:
            take = lambda value: self._result(call.on(value))  # noqa: E731
            handle = None if isinstance(first.read(), Assembly) else self._result(call)
            if handle is not None and isinstance(handle, tuple):
                return [
                    Cell(part, first, lambda value, i=i: take(value)[i], aten.putting_part(self, call, i))
                    for i, part in enumerate(handle)
                ]
            return Cell(handle, first, take, aten.putting(self, call))
        handle = self._result(call)
        if aten.updates(call.target) and isinstance(handle, tuple):
            for position, value in zip(aten.updates(call.target), handle[1:], strict=True):
                cells[node.args[position]].write(value)  # type: ignore[index]
            return Cell(handle[0])
        return [Cell(part) for part in handle] if isinstance(handle, tuple) else Cell(handle)

    def _written(self, call: Call, first: Any, given: list[Any]) -> Any:
        """An in-place operator: its functional twin, then a write."""
        from meshwright.ir.frontends import aten

        twin = replace(call, target=aten.functional(call.target))
        handle = self._result(twin)
        wanted = self.type(first.read()) if not isinstance(first.read(), tuple) else call.type
        if self.type(handle).dtype != wanted.dtype:
            handle = self.emit("cast", (handle,), (wanted,), {"dtype": wanted.dtype})
        first.write(handle)
        return first

    def _result(self, call: Call) -> Handle:
        """A constant if all it reads is constant, else what the table lowers it to."""
        from meshwright.ir.frontends import aten

        if aten.is_creation(call.target):
            args = (
                None,
                *call.raw[0][1:],
            )  # of the tensor that it is made like, only shape and dtype are used: they are the result's
            return self.keep(Term(call.target.split(".")[0], call.type.shape, call.type.dtype, args, dict(call.raw[1])))
        read = [h for h in _flat(tuple(call.args.values())) if isinstance(h, str | Term | Assembly)]
        if aten.is_pure(call.target) and all(isinstance(h, Term) for h in read):
            args, kwargs = call.raw
            packet = call.target.split(".")[0]
            terms = tuple(
                self.keep(
                    Term(packet if len(call.types) == 1 else f"{packet}[{i}]", t.shape, t.dtype, args, dict(kwargs))
                )
                for i, t in enumerate(call.types)
            )
            return terms[0] if len(terms) == 1 else terms
        return self._lower(self, call)

    def _bound(self, node: fx.Node, cells: dict[fx.Node, Any]) -> tuple[Call, list[Any]]:
        schema = node.target._schema  # type: ignore[union-attr]
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
        results = [v for v in _flat(node.meta.get("val")) if isinstance(v, Tensor)]
        where = f"{self.place.source or node.name} ({node.target})"
        types = tuple(type_of(v, where) for v in results)
        strides = tuple(tuple(v.stride()) for v in results)
        plain = tuple(_plain(a) for a in positional), {k: _plain(v) for k, v in keyword.items()}
        return Call(target, bound, types, strides, node.name, plain), given

    # The end ----------------------------------------------------------------------------------------------------------

    def finish(self, outputs: Sequence[Handle], updates: Sequence[tuple[str, Handle, str]], *, loss: bool) -> Traced:
        """The graph of what reaches the outputs and the buffers."""
        values = tuple(self.value(handle) for handle in outputs)
        changed = tuple(Update(path, self.value(handle), reduction) for path, handle, reduction in updates)
        needed = {*values, *(update.value for update in changed)}
        ops: list[Op] = []
        for op in reversed((*self._prologue, *self._ops)):
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
            ops=tuple(ops),
            outputs=values,
            updates=changed,
            loss=values[0] if loss else None,
        )
        constants = {value: term for value, term in self.constants.items() if value in used}
        return Traced(graph, constants, tuple(dict.fromkeys(self.notes)))


@dataclass(frozen=True, slots=True)
class Literal:
    """A string argument, kept apart from value names."""

    text: str


def _plain(argument: Any) -> Any:
    return argument.text if isinstance(argument, Literal) else argument


def tensor_term(tensor: Tensor) -> Term:
    """A tensor of the module as a constant; on the meta device its data is unknown."""
    shape = tuple(int(extent) for extent in tensor.shape)
    dtype = DTYPES.get(tensor.dtype, "f32")
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
        return Term("", shape, dtype)
    widened = tensor.detach().cpu()
    return Term("", shape, dtype, data=(widened.double() if widened.is_floating_point() else widened).numpy())


def source_line(trace: str) -> str:
    """The innermost line of a stack trace outside torch and this room: `transformers/models/llama/modeling_llama.py:12`."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', trace)
    for filename, number in reversed(lines):
        parts = PurePath(filename).parts
        if PurePath(filename).parent == PurePath(__file__).parent:
            continue
        library = next((i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), None)
        if library is None:
            return f"{parts[-1]}:{number}"
        if parts[library + 1] != "torch":
            return f"{'/'.join(parts[library + 1 :])}:{number}"
    return ""


def _merged(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """The leading dimensions of `source` that `target` has as one, or () if it is not such a flattening."""
    extra = len(source) - len(target)
    if extra < 1 or not target or source[extra + 1 :] != target[1:] or prod(source[: extra + 1]) != target[0]:
        return ()
    return source[: extra + 1]


def _shift_dims(attrs: dict[str, Attr], extra: int, lead: tuple[int, ...]) -> dict[str, Attr] | None:
    """Attributes that count dimensions, with `extra` more in front; None if the operator acts on the flattened one."""
    moved = dict(attrs)
    if isinstance(dim := moved.get("dim"), int) and not isinstance(dim, bool):
        if dim == 0:
            return None
        moved["dim"] = dim + extra
    if isinstance(dims := moved.get("dim"), tuple):
        if 0 in dims:
            return None
        moved["dim"] = tuple(d + extra for d in dims if isinstance(d, int))
    if isinstance(shape := moved.get("shape"), tuple):
        moved["shape"] = (*lead, *shape[1:])
    return moved


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides are a permutation of row-major ones."""
    order = sorted((stride, extent) for stride, extent in zip(strides, shape, strict=True) if extent != 1)
    expected = 1
    for stride, extent in order:
        if stride != expected:
            return False
        expected *= extent
    return True


def _flat(item: Any) -> list[Any]:
    if isinstance(item, list | tuple):
        return [leaf for part in item for leaf in _flat(part)]
    return [item]


def _looked_up(cells: Mapping[fx.Node, Any], item: Any) -> Any:
    return cells[item] if isinstance(item, fx.Node) else item
