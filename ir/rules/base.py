"""Rules: one operator as a loop nest over factors.

A *factor* is a loop: batch, sequence, kv-head, hidden, expert, vocabulary. Every dimension of every operand and
result is written as the factors it runs over, major to minor. So ``linear`` is

    (b, s, k), (n, k), (n) -> (b, s, n)         b, s, n parallel; k summed

and a view (b, s, h*d) -> (b, s, h, d) maps one dimension to two factors. From the same table follow the shapes, the
floating-point work, which splits over a mesh axis are legal, what every operand then looks like, and (in
`meshwright.ir.sharding.adjoint`) the whole backward pass. A rule is a pure function of a `Signature` (kind, operand
types, attributes), registered under its kind by `@rule(kind)`.

Laws. The result of an operator is read as the sum of its ADDITIVE operands and of one term that is linear in each
LINEAR operand and anything at all in the NONLINEAR ones. A partial sum may pass through an operator only where that
reading allows it. INDEX operands (tokens, masks, router choices) carry no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from meshwright.ir.errors import BadOperand, FactorDropped, FactorRepeated, FactorUndeclared, RuleArity
from meshwright.ir.graph.graph import ITEMSIZE, Attr, Graph, Type, as_integers

if TYPE_CHECKING:
    from collections.abc import Iterable


class Role(Enum):
    """The effect of a loop on the result, and thereby of a mesh axis that splits it."""

    PARALLEL = "parallel"
    """Each iteration writes its own part of the result."""
    SUM = "sum"
    """Iterations are added up: split, the result is a partial sum."""
    MAX = "max"
    """Iterations are maximised: split, the result is a partial maximum, which no gradient passes."""
    WHOLE = "whole"
    """The operator needs the loop in one place."""
    HALO = "halo"
    """Neighbouring iterations overlap (convolution): whole, unless a backend exchanges halos."""


class Law(Enum):
    """The dependence of the result on an operand (see the module docstring)."""

    LINEAR = "linear"
    ADDITIVE = "additive"
    NONLINEAR = "nonlinear"
    INDEX = "index"


class Engine(Enum):
    """The part of a device that an operator keeps busy; the cost models read it."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONV = "conv"
    MEMORY = "memory"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop.

    `expanded`: to split it the operator is first rewritten by its expansion (`Rule` consumers call `expand`), because
    the split needs communication inside: the maximum and sum of a vocabulary-sharded cross entropy, the statistics of
    a batch norm.
    """

    name: str
    size: int
    role: Role = Role.PARALLEL
    expanded: bool = False


Dims = tuple[tuple[str, ...], ...]
"""For each dimension of a tensor, its factors, major to minor."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two factors that one axis may split together, and the algorithm that makes it legal (ring attention: sq with
    sk)."""

    first: str
    second: str
    algorithm: str


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations: `flops` per point of the loop nest over `factors`. `grad_of` is None forward, else
    the operand whose gradient it computes: dgrad and wgrad are priced apart, frozen operands cost nothing. Work that
    the gradients of two operands share is done once if either is wanted."""

    flops: float
    factors: tuple[str, ...]
    grad_of: int | None = None
    shared_with: int | None = None

    def done(self, wanted: Set[int] | None) -> bool:
        """Whether the work is done: forward (None), or for the gradients of the operands `wanted`."""
        if wanted is None or self.grad_of is None:
            return wanted is None and self.grad_of is None
        return self.grad_of in wanted or self.shared_with in wanted


@dataclass(frozen=True, slots=True)
class Save:
    """A tensor kept for the backward pass: an operand, a result, or an extra one of the given dims and dtype
    (log-sum-exp, masks).

    It is kept if any operand in `needs` requires a gradient (empty: if any operand does), on `devices` (empty: all).
    Where the framework chooses between kernels by who requires one: only if all of `given` do and none of `unless`.
    """

    what: str
    index: int = 0
    needs: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    dims: Dims = ()
    dtype: str = "f32"
    given: tuple[int, ...] = ()
    unless: tuple[int, ...] = ()
    each_bytes: int = 0
    """Of several extra ones together, at each point of the loops of `dims`; 0 for one, of that dtype."""

    @property
    def width(self) -> float:
        """Bytes at each point of the loops of `dims`."""
        return self.each_bytes or ITEMSIZE[self.dtype]

    def kept(self, device: str, wanted: Set[int]) -> bool:
        """Whether the tensor is saved when the operands `wanted` require a gradient."""
        asked = bool(wanted & set(self.needs)) if self.needs else bool(wanted)
        chosen = set(self.given) <= wanted and not wanted & set(self.unless)
        return asked and chosen and (not self.devices or device in self.devices)


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything that a rule may depend on: the kind, the operand types and the attributes of an operator."""

    kind: str
    operands: tuple[Type, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Made when it is asked for first, and kept: signatures are keys everywhere."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.kind, self.operands, self.attrs)))
            return self._hash

    def __reduce__(self) -> tuple[type[Signature], tuple[object, ...]]:
        """Rebuild the signature when unpickled: strings have other hashes in another process."""
        return Signature, (self.kind, self.operands, self.attrs)

    def attr(self, key: str, default: Attr = None) -> Attr:
        return next((value for name, value in self.attrs if name == key), default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.attr(key, default)
        if (found := as_integers((value,))) is None:
            raise self.error(f"attribute {key} is {value!r}", "give an integer")
        return found[0]

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.attr(key)
        if (found := as_integers(value if isinstance(value, tuple) else (value,))) is None:
            raise self.error(f"attribute {key} is {value!r}", "give integers")
        return found

    def axis(self, key: str = "dim", rank: int | None = None) -> int:
        """A dimension attribute, counted from the front."""
        rank = len(self.operands[0].shape) if rank is None else rank
        dim = self.integer(key)
        if not -rank <= dim < max(rank, 1):
            raise self.error(f"{key}={dim} for a tensor of {rank} dims", "give a dimension that exists")
        return dim % max(rank, 1)

    def error(self, cause: str, fix: str) -> BadOperand:
        return BadOperand(place=str(self), cause=cause, fix=fix)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.operands))})"


@dataclass(frozen=True, slots=True)
class Rule:
    """One operator as a loop nest.

    - Every factor named in a dimension must be declared, once.
    - A dimension's extent is the product of its factors' sizes, unless it has exactly one factor (strides), is
      sectioned or consists of slots.
    - A result without a factor must either sum it (or maximise it) or the factor must be whole or expanded.
    - `sections` marks dimensions that concatenate: splitting the factor cuts every section (the operand of `split`).
    - `slots` marks dimensions that their loops fill instead of running over (the capacity of experts): such a
      dimension is cut as if each of its factors had the size given there, its number of groups.
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    types: tuple[Type, ...]
    laws: tuple[Law, ...]
    engine: Engine = Engine.MEMORY
    work: tuple[Work, ...] = ()
    saves: tuple[Save, ...] = ()
    pairs: tuple[Pair, ...] = ()
    sections: tuple[tuple[str, int, int, tuple[int, ...]], ...] = ()
    slots: tuple[tuple[str, int, int, tuple[int, ...]], ...] = ()
    gathered: tuple[int, ...] = ()
    """Operands of which only about as many bytes as the result has are read (embedding tables)."""
    elementwise: bool = False
    """One output element reads one element of each operand: compilers fuse and recompute it."""
    _hash: int = field(init=False, repr=False, compare=False)
    """As of signatures."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(self._given()))
            return self._hash

    def __reduce__(self) -> tuple[type[Rule], tuple[object, ...]]:
        return Rule, self._given()

    def _given(self) -> tuple[object, ...]:
        return tuple(getattr(self, one.name) for one in fields(self) if one.init)

    def __post_init__(self) -> None:
        names = [factor.name for factor in self.factors]
        if len(set(names)) != len(names):
            raise FactorRepeated(place=str(self), cause="a factor is declared twice", fix="name every factor once")
        if len(self.laws) != len(self.operands):
            raise RuleArity(place=str(self), cause="laws and operands differ in number", fix="give one law per operand")
        if len(self.types) != len(self.results):
            raise RuleArity(place=str(self), cause="types and results differ in number", fix="give one type per result")
        for dims in (*self.operands, *self.results):
            used = [name for dim in dims for name in dim]
            for name in used:
                if name not in names:
                    raise FactorUndeclared(
                        place=str(self), cause=f"factor {name!r} is not declared", fix="declare it with its size"
                    )
                if used.count(name) > 1:
                    raise FactorRepeated(
                        place=str(self), cause=f"factor {name!r} twice in one tensor", fix="use a second factor"
                    )
        for factor in self.factors:
            self._check_reduction(factor)

    def _check_reduction(self, factor: Factor) -> None:
        if factor.role is not Role.PARALLEL or factor.expanded:
            return
        for dims in self.results:
            if not any(factor.name in dim for dim in dims):
                raise FactorDropped(
                    place=str(self),
                    cause=f"factor {factor.name!r} is parallel but a result lacks it",
                    fix="make it sum, max or whole",
                )

    def factor(self, name: str) -> Factor:
        for factor in self.factors:
            if factor.name == name:
                return factor
        raise FactorUndeclared(
            place=str(self), cause=f"there is no factor {name!r}", fix=f"use {', '.join(f.name for f in self.factors)}"
        )

    def check_operands(self, signature: Signature) -> None:
        """Check that the dims describe the operands that the rule was built for and the results that it promises."""
        for side, tensors, types in (
            ("operand", self.operands, signature.operands),
            ("result", self.results, self.types),
        ):
            for index, (dims, type_) in enumerate(zip(tensors, types, strict=True)):
                if len(dims) != len(type_.shape):
                    raise signature.error(f"dims {dims} for {type_}", "give one entry per dimension")
                for at, (dim, extent) in enumerate(zip(dims, type_.shape, strict=True)):
                    self._check_extent(signature, dim, extent, self.slot_groups(side, index, at))

    def _check_extent(
        self, signature: Signature, dim: tuple[str, ...], extent: int, groups: tuple[int, ...] | None
    ) -> None:
        if groups is not None:
            if len(groups) != len(dim) or extent % prod(groups):
                raise signature.error(f"{extent} slots in groups {groups}", "choose groups that divide the slots")
        elif len(dim) != 1 and prod(self.factor(name).size for name in dim) != extent:
            raise signature.error(f"factors {dim} do not make extent {extent}", "correct the factor sizes")

    def section_sizes(self, side: str, index: int, dim: int) -> tuple[int, ...] | None:
        """The sections of a dimension that concatenates; side is "operand" or "result"."""
        if not self.sections:  # as of nearly all rules
            return None
        return next((sizes for s, i, d, sizes in self.sections if (s, i, d) == (side, index, dim)), None)

    def slot_groups(self, side: str, index: int, dim: int) -> tuple[int, ...] | None:
        """The number of groups in which each factor of a dimension of slots is counted; side is "operand" or
        "result"."""
        if not self.slots:
            return None
        return next((groups for s, i, d, groups in self.slots if (s, i, d) == (side, index, dim)), None)

    def flops(self, *, needs: Iterable[int] | None = None, sizes: Mapping[str, int] | None = None) -> float:
        """Forward work (needs=None), or the backward work for the gradients of the operands `needs`.

        `sizes` replaces factor sizes by local ones.
        """
        wanted = None if needs is None else set(needs)
        size = {factor.name: factor.size for factor in self.factors} | dict(sizes or {})
        return sum(work.flops * prod(size[name] for name in work.factors) for work in self.work if work.done(wanted))

    def nbytes(self, signature: Signature) -> float:
        """Bytes read and written by one forward execution, without fusion."""
        if self.engine is Engine.VIEW:
            return 0
        written = sum(type_.nbytes for type_ in self.types)
        read = sum(
            min(type_.nbytes, written) if index in self.gathered else type_.nbytes
            for index, type_ in enumerate(signature.operands)
        )
        return read + written

    def saved(self, device: str, needs: Iterable[int]) -> tuple[Save, ...]:
        """The tensors that eager execution saves for the backward pass, given which operands require a gradient."""
        wanted = set(needs)
        return tuple(save for save in self.saves if save.kept(device, wanted))

    def reruns(self, needs: Iterable[int]) -> bool:
        """Whether the derivatives read, on some device, tensors that only the operator itself makes: its results or
        extras."""
        return any(save.what != "operand" for save in self._saved_anywhere(needs))

    def reads(self, needs: Iterable[int]) -> tuple[int, ...]:
        """The operands whose values the derivatives need: those saved on some device, or all, to run the operator
        again. The derivative of a sum reads none."""
        wanted = set(needs)
        if self.reruns(wanted):
            return tuple(range(len(self.operands)))
        return tuple(sorted({save.index for save in self._saved_anywhere(wanted)}))

    def _saved_anywhere(self, needs: Iterable[int]) -> Iterable[Save]:
        wanted = set(needs)
        return (save for save in self.saves if any(save.kept(device, wanted) for device in save.devices or ("",)))

    def save_bytes(self, save: Save, signature: Signature) -> float:
        if save.what == "operand":
            return signature.operands[save.index].nbytes
        if save.what == "result":
            return self.types[save.index].nbytes
        return save.width * prod(self.factor(name).size for dim in save.dims for name in dim)

    def __str__(self) -> str:
        def side(tensors: tuple[Dims, ...]) -> str:
            return ", ".join("(" + " ".join("·".join(dim) or "1" for dim in dims) + ")" for dims in tensors)

        roles = ", ".join(f"{f.name}:{f.role.value}" for f in self.factors if f.role is not Role.PARALLEL)
        return f"{side(self.operands)} -> {side(self.results)}" + (f"; {roles}" if roles else "")


@dataclass(frozen=True, slots=True)
class Expansion:
    """An operator rewritten into simpler ones, with the factors that a split becomes.

    - The graph's inputs must be named "0", "1", … after the operands; its outputs are the results, in order.
    - `choices[i]` lists, for operator i, (outer factor, inner factor) pairs: an axis that splits the outer factor of
      the composite splits that inner factor there, and is idle in an operator that does not list it.
    """

    graph: Graph
    choices: tuple[tuple[tuple[str, str], ...], ...]

    def __post_init__(self) -> None:
        if len(self.choices) != len(self.graph.ops):
            raise RuleArity(
                place="expansion", cause="choices and operators differ in number", fix="give one entry per operator"
            )

    def inner(self, op: int, outer: str) -> str | None:
        """The factor of operator `op` that an axis on the composite's factor `outer` splits; None if it is idle."""
        return next((inner for name, inner in self.choices[op] if name == outer), None)
