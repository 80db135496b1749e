"""Emission of graph operators: the half of the translation that knows our vocabulary.

An `Emitter` collects operators. Lowerings of front ends call `emit`, `view` and `value`; what they
need not think about happens here:

- *Nothing is emitted for nothing*: views of the same shape pass their operand through, views of views are one view.
- *Constants* surface as `constant` operators, or as buffers. Those made outside repeated blocks are moved to the front;
  inside a block a constant is made where it is used, so that blocks stay alike.
- *Lifting*: models flatten (batch, seq) into tokens and back around operators that do not care. An operator over
  flattened leading dimensions is emitted over the original ones, with the flattening after it, where it usually meets
  its own inverse. So batch and sequence stay two dimensions, which can be split separately.
- *Strides* are followed (`layout.py`): a `view` that has to copy has no alias and the attribute `copy`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from meshwright.ir.frontends.folding.handles import Assembly, Attribute, Handle, Names, Place
from meshwright.ir.frontends.folding.layout import contiguous, ordered, taken_strides, view_strides
from meshwright.ir.frontends.folding.terms import Term
from meshwright.ir.graph.constants import Constant, Held
from meshwright.ir.graph.graph import Attr, Input, Op, Param, Type

LIFTED = frozenset(
    (
        "linear", "embedding", "cast", "dropout", "rms_norm", "layer_norm", "cross_entropy", "softmax", "log_softmax",
        "topk", "gather", "scatter", "masked_fill", "where", "split", "slice", "cat", "expand", "sum", "mean", "amax",
        "add", "sub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "relu", "silu", "gelu", "tanh",
        "sigmoid", "softplus", "bitwise_not", "logical_not", "eq", "ne", "lt", "le", "gt", "ge", "pointwise",
    )
)  # fmt: skip
"""Kinds that treat their leading dimensions alike, whatever their number."""

TOKENWISE: Mapping[str, tuple[int, ...]] = {
    "linear": (0,),
    "embedding": (1,),
    "rms_norm": (0,),
    "layer_norm": (0,),
    "cross_entropy": (0, 1),
}
"""Which operands have those leading dimensions; by default all."""
"""Which operands have those leading dimensions; by default all."""


Written = Callable[[Term, Callable[[Term], Held | None]], Constant]
"""The code that makes a constant, given which tensors are ones that the model has."""


class Emitter:
    """The graph so far. `place` is the place in the model of the operator that is being lowered."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.types: dict[str, Type] = {}
        self.strides: dict[str, tuple[int, ...]] = {}
        self.producer: dict[str, Op] = {}
        self.inputs: list[Input] = []
        self.params: dict[str, Param] = {}
        self.constants: dict[str, Term] = {}
        self.notes: list[str] = []
        self.place = Place()
        self.work: Callable[[], int] = int
        """The forward FLOPs of the operator that is being lowered, for one that has no rule to tell them."""
        self.apart: Callable[[], Handle | None] = lambda: None
        """What the operator that is being lowered is made of, translated, where it is no case of its entry."""
        self.hugging_face = False
        """Whether attention is Hugging Face's. Its eager runs take keys of fewer heads than its exports repeat them to,
        and by name masks that its exports write out."""
        self.masked: dict[str, tuple[Term, Handle]] = {}
        """Values that are `where(condition, x, very negative)`: attention reads them as a mask and a bias."""
        self._ops: list[Op] = []
        self._prologue: list[Op] = []
        self._made: dict[tuple[int, str], str] = {}
        self._origin: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        """For every stem of names the last number that was looked at: those below are taken for good."""
        self._buffers: dict[int, str] = {}
        self._attributes: dict[int, tuple[Attribute, ...]] = {}
        self._rooms: dict[str, str] = {}
        self._kept: list[object] = []  # whatever the tables above know by id

    @property
    def ops(self) -> tuple[Op, ...]:
        """Every operator so far, constants first."""
        return (*self._prologue, *self._ops)

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
        """Add a constant leaf; one that is a buffer of the model appears under its name."""
        self._kept.append(term)
        if buffer is not None:
            self._buffers[id(term)] = buffer
        return term

    def add_attribute(self, term: Term, places: tuple[Attribute, ...]) -> Handle:
        """Register a tensor that modules hold as a plain attribute, at these places. A block's own is read in the
        block."""
        self._kept.append(term)
        if places:
            self._attributes[id(term)] = places
            self._origin[id(term)] = self.names.room(places[0].path.rpartition(".")[0])
        return term

    # Handles ----------------------------------------------------------------------------------------------------------

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
            self.constants[value], self._rooms[value] = term, room
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
                leaf = self._leaf(item, room)
                data = "" if item.data is None else hashlib.sha256(item.data.tobytes()).hexdigest()
                arguments = [
                    digest(item.args),
                    *(f"{k}={digest(v)}" for k, v in sorted(item.kwargs.items()) if k != "device"),
                ]
                text = f"{item.op} {item.dtype} {item.shape} {leaf} {data} {arguments}"
                digests[id(item)] = hashlib.sha256(text.encode()).hexdigest()[:8]
            return digests[id(item)]

        return f"{term.op or 'buffer'}:{digest(term)}"

    def _leaf(self, term: Term, room: str) -> str:
        """The law of a constant in this room that is a tensor of the model."""
        held = self.held(term, room)
        if held is None:
            return ""
        keys = "".join(f"[{key!r}]" for key in held.keys)
        return f"{'.' if held.relative else ''}{held.path}{keys}"

    def held(self, term: Term, room: str) -> Held | None:
        """The model's tensor that a term is, seen from a room; None if the term is computed."""
        buffer = self._buffers.get(id(term))
        places = self._attributes.get(id(term), ()) if buffer is None else (Attribute(buffer),)
        if not places:
            return None
        inside = f"{room}." if room else ""
        place = next((one for one in places if inside and one.path.startswith(inside)), places[0])
        relative = bool(inside) and place.path.startswith(inside)
        path = place.path.removeprefix(inside) if relative else place.path
        return Held(path=path, relative=relative, buffer=buffer is not None, keys=place.keys)

    def made(self, values: Iterable[str], written: Written) -> dict[str, Constant]:
        """The constants by their laws, each as it is `written` in the model's framework."""
        found: dict[str, Constant] = {}
        for value in values:
            law, room = str(self.producer[value].attr("law")), self._rooms[value]
            if law not in found:
                found[law] = written(self.constants[value], partial(self.held, room=room))
        return found

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
        return self.value(
            self.keep(
                Term("slice", shape, whole.base.dtype, (whole.base, whole.dim, start, end), target="slice.Tensor")
            )
        )

    def keep(self, term: Term) -> Term:
        """Note the place where a constant was made."""
        self._kept.append(term)
        self._origin[id(term)] = self.names.room(self.place.module)
        return term

    # Operators --------------------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: str,
        operands: Sequence[Handle],
        types: tuple[Type, ...],
        attrs: Mapping[str, Attr] | None = None,
        *,
        alias: int | None = None,
        strides: tuple[int, ...] | None = None,
    ) -> str:
        """Emit one operator; returns its first result (see `emit_all`)."""
        return self.emit_all(kind, operands, types, attrs, alias=alias, strides=strides)[0]

    def emit_all(
        self,
        kind: str,
        operands: Sequence[Handle],
        types: tuple[Type, ...],
        attrs: Mapping[str, Attr] | None = None,
        *,
        alias: int | None = None,
        strides: tuple[int, ...] | None = None,
    ) -> tuple[str, ...]:
        """Emit one operator; returns its results. Operands flattened from leading dimensions make it lifted."""
        values = tuple(self.value(operand) for operand in operands)
        lifted = self._lift(kind, values, types, dict(attrs or {})) if kind in LIFTED else None
        if lifted is None:
            return self._emit(kind, values, types, dict(attrs or {}), alias, strides)
        lead, values, wide_types, wide_attrs = lifted
        wide = self._emit(kind, values, wide_types, wide_attrs, alias, None)
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
        strides: tuple[int, ...] | None,
    ) -> tuple[str, ...]:
        several = len(types) > 1
        results = tuple(self._fresh(f"{kind}.{index}" if several else kind) for index in range(len(types)))
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
        for result, type_ in zip(results, types, strict=True):
            self._define(result, type_, self._laid_out(op, type_) if strides is None else strides)
            self.producer[result] = op
        self._ops.append(op)
        return results

    def _laid_out(self, op: Op, type_: Type) -> tuple[int, ...]:
        """Strides of results: those of a view's operand, or of the first operand of an elementwise result's shape."""
        if op.alias is not None:
            taken = op.operands[op.alias]
            return taken_strides(op, self.types[taken].shape, self.strides[taken], type_.shape)
        for value in op.operands:
            if self.types[value].shape == type_.shape and (like := ordered(type_.shape, self.strides[value])):
                return like
        return contiguous(type_.shape)

    def view(self, handle: Handle, shape: tuple[int, ...]) -> str:
        """The operand in another shape: a view where strides allow one, else a copy."""
        value = self.value(handle)
        source = self.types[value].shape
        if source == shape:
            return value
        before = self.producer.get(value)
        if before is not None and self._passes(before):
            inner = before.operands[0]
            lead = merged(self.types[inner].shape, source)
            wide = (*lead, *shape[1:])
            back = lead[:1] == shape[:1] and merged(self.types[inner].shape, wide)  # ones that come and go without end
            if lead and shape[:1] == source[:1] and not back:
                return self.view(self.view(inner, wide), shape)
            if lead or not merged(source, shape):
                return self.view(inner, shape)
        strides = view_strides(source, self.strides[value], shape)
        return self.copy(value, shape) if strides is None else self._seen_as(value, shape, strides)

    def _seen_as(self, value: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
        type_ = Type(shape, self.types[value].dtype)
        return self._emit("view", (value,), (type_,), {"shape": shape}, 0, strides)[0]

    def copy(self, value: str, shape: tuple[int, ...]) -> str:
        """The elements of a value, in order, in storage of their own."""
        type_ = Type(shape, self.types[value].dtype)
        return self._emit("view", (value,), (type_,), {"shape": shape, "copy": True}, None, contiguous(shape))[0]

    def detached(self, handle: Handle) -> str:
        """The same storage, outside differentiation."""
        value, place = self.value(handle), self.place
        self.place = replace(place, no_grad=True)
        result = self._seen_as(value, self.types[value].shape, self.strides[value])
        self.place = place
        return result

    def cast(self, handle: Handle, dtype: str) -> Handle:
        """The operand in this dtype."""
        type_ = self.type(handle)
        if type_.dtype == dtype:
            return handle
        return self.emit("cast", [handle], (Type(type_.shape, dtype),), {"dtype": dtype})

    # Lifting ----------------------------------------------------------------------------------------------------------

    def _passes(self, op: Op) -> bool:
        """Whether an operator is a view that may be seen through: of the same block, and of the same side of
        differentiation."""
        same_room = self.names.room(op.module) == self.names.room(self.place.module)
        return op.kind == "view" and op.alias == 0 and not op.no_grad and same_room

    def _lift(
        self, kind: str, values: tuple[str, ...], types: tuple[Type, ...], attrs: dict[str, Attr]
    ) -> tuple[tuple[int, ...], tuple[str, ...], tuple[Type, ...], dict[str, Attr]] | None:
        """The operator over the dimensions that its operands were flattened from; None if it cannot be lifted."""
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
                lead = merged(self.types[op.operands[0]].shape, self.types[value].shape)
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
            return self.value(
                self.keep(
                    Term("view", (*lead, *shape[1:]), term.dtype, (term, (*lead, *shape[1:])), target="view.default")
                )
            )
        if self._passes(op) and merged(self.types[op.operands[0]].shape, shape) == lead:
            return op.operands[0]
        return None

    def _define(self, value: str, type_: Type, strides: tuple[int, ...] | None) -> None:
        self.types[value] = type_
        self.strides[value] = strides if strides is not None else contiguous(type_.shape)

    def _fresh(self, stem: str) -> str:
        number = self._numbers.get(stem, 1)
        value = stem if number == 1 else f"{stem}_{number}"
        while value in self.types:
            number += 1
            value = f"{stem}_{number}"
        self._numbers[stem] = number
        return value


def merged(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
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
