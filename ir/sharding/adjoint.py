"""What a strategy means: from (rule, choice per mesh axis) to the states of every operand and result, forward and
backward.

A *choice* is what one mesh axis does in one operator:

    f               split the factor f                         f:zigzag       … with a layout
    sq+sk           split a coupled pair (ring attention)
    -               idle: every rank does the same
    -|P             idle, and gradients pass through as partial sums (always legal: backward is linear in them)
    P0              the value of operand 0 passes through as a partial sum (legal for linear operands only)

The backward pass is not written down anywhere: it follows. The gradient of an operand is a partial sum over an axis
exactly where the operator's vector-Jacobian product sums over the factor that the axis splits, that is, where the
operand lacks this factor:

    split f     operand or result has f                        S      sharded, and so is its gradient
                result lacks f, f sums                         P|R    partial value, full gradient
                result lacks f, f expanded                     R|R    the expansion reduces inside
                additive operand lacks f, f sums               P|R    a bias is added by one shard
                any other operand lacks f                      R|P    partial gradient
    idle        everything                                     R|R    or R|P throughout for -|P
    pass i      operand i, additive operands, results          P|R
                the others                                     R|P

This yields data-parallel gradient reduction (weights lack the batch), Megatron's f and g (the input of a
column-parallel linear lacks n; the output of a row-parallel one sums k) and, where a partial meets a sequence-sharded
neighbour, reduce-scatter with its dual all-gather.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod

from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent
from meshwright.ir.graph.graph import Type
from meshwright.ir.rules.base import Dims, Law, Role, Rule
from meshwright.ir.sharding.layouts import (
    CONTIGUOUS,
    ZIGZAG,
    Contiguous,
    Layout,
    Nested,
    Padded,
    Sections,
    Uneven,
    Zigzag,
    parse_layout,
)
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Dim, Partial, Shard, State


@dataclass(frozen=True, slots=True)
class Split:
    """The axis splits a factor, or a coupled pair."""

    factors: tuple[str, ...]
    layout: Layout = CONTIGUOUS

    def __str__(self) -> str:
        layout = str(self.layout)
        return "+".join(self.factors) + (f":{layout}" if layout else "")


@dataclass(frozen=True, slots=True)
class Idle:
    """The axis does nothing in this operator; with `grad_partial`, gradients pass through unreduced."""

    grad_partial: bool = False

    def __str__(self) -> str:
        return "-|P" if self.grad_partial else "-"


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward partial sum passes through: the LINEAR operand (None if the operator has only ADDITIVE ones)."""

    operand: int | None = None

    def __str__(self) -> str:
        return "P" if self.operand is None else f"P{self.operand}"


Choice = Split | Idle | Pass
IDLE = Idle()


def parse_choice(text: str) -> Choice:
    """Read what `str(choice)` writes."""
    if text in ("-", "-|P"):
        return Idle(text == "-|P")
    if found := re.match(r"^P(\d*)$", text):
        return Pass(int(found[1]) if found[1] else None)
    factors, _, layout = text.partition(":")
    if not re.match(r"^\w+(\+\w+)?$", factors):
        raise IllegalStrategy(place=repr(text), cause="no such choice", fix="write FACTOR[:LAYOUT], A+B, -, -|P or P0")
    return Split(tuple(factors.split("+")), parse_layout(layout))


@dataclass(frozen=True, slots=True)
class Strategy:
    """The use of every mesh axis in one operator, as (axis, choice) pairs. Axes that are not named are idle.

    Where several axes cut one dimension, the order of the pairs is their order, major to minor.
    """

    choices: tuple[tuple[str, Choice], ...] = ()
    split: frozenset[str] = field(init=False, repr=False, compare=False)
    """The factors that an axis splits."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Made when it is asked for first, and kept: strategies are keys everywhere."""

    def __post_init__(self) -> None:
        axes = [axis for axis, _ in self.choices]
        if len(set(axes)) != len(axes):
            raise IllegalStrategy(place=str(self), cause="an axis has two choices", fix="give each axis one choice")
        chosen = tuple([pair for pair in self.choices if pair[1] != IDLE])
        split = [name for _, choice in chosen if isinstance(choice, Split) for name in choice.factors]
        object.__setattr__(self, "choices", chosen)
        object.__setattr__(self, "split", frozenset(split))

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.choices,)))
            return self._hash

    def __reduce__(self) -> tuple[type[Strategy], tuple[object, ...]]:
        """Rebuild the strategy when unpickled: strings have other hashes in another process."""
        return Strategy, (self.choices,)

    @staticmethod
    def parse(text: str) -> Strategy:
        pairs = []
        for word in text.split():
            axis, _, choice = word.partition("=")
            pairs.append((axis, parse_choice(choice)))
        return Strategy(tuple(pairs))

    def of(self, axis: str) -> Choice:
        for name, choice in self.choices:  # asked most of all
            if name == axis:
                return choice
        return IDLE

    def __str__(self) -> str:
        return " ".join(f"{axis}={choice}" for axis, choice in self.choices)


@dataclass(frozen=True, slots=True)
class Applied:
    """A strategy applied: states of operands and results, and the local size of every factor on the first rank."""

    operands: tuple[State, ...]
    results: tuple[State, ...]
    sizes: tuple[tuple[str, int], ...]


def choices(rule: Rule) -> tuple[Choice, ...]:
    """Every choice that the rule allows one axis, in a fixed order, contiguous layouts (and zigzag for pairs)."""
    found: list[Choice] = [IDLE, Idle(grad_partial=True)]
    found += [Split((factor.name,)) for factor in rule.factors if factor.role in SPLITTABLE]
    for pair in rule.pairs:
        found += [Split((pair.first, pair.second)), Split((pair.first, pair.second), ZIGZAG)]
    linear = [index for index, law in enumerate(rule.laws) if law is Law.LINEAR]
    if linear:
        found += [Pass(index) for index in linear]
    elif _only_additive(rule):
        found.append(Pass())
    return tuple(found)


def _only_additive(rule: Rule) -> bool:
    """Whether the result is just the sum of its additive operands."""
    return Law.ADDITIVE in rule.laws and not {Law.LINEAR, Law.NONLINEAR} & set(rule.laws)


SPLITTABLE = (Role.PARALLEL, Role.SUM, Role.MAX)
"""The roles of factors that an axis may split."""


@lru_cache(maxsize=65536)
def apply(rule: Rule, operand_types: tuple[Type, ...], strategy: Strategy, mesh: Mesh) -> Applied:
    """The states that a strategy asks of the operands and gives the results. Raises `IllegalStrategy` or a layout
    error."""
    for axis, choice in strategy.choices:
        mesh.axis(axis)
        _check(rule, choice)
    operands = tuple(_state(rule, strategy, mesh, "operand", index, type_) for index, type_ in enumerate(operand_types))
    results = tuple(_state(rule, strategy, mesh, "result", index, type_) for index, type_ in enumerate(rule.types))
    return Applied(operands, results, _local_sizes(rule, strategy, mesh))


def _check(rule: Rule, choice: Choice) -> None:
    def illegal(cause: str, fix: str) -> IllegalStrategy:
        return IllegalStrategy(place=f"{choice} in {rule}", cause=cause, fix=fix)

    if isinstance(choice, Pass):
        laws = {index for index, law in enumerate(rule.laws) if law is Law.LINEAR}
        if choice.operand is None and not _only_additive(rule):
            raise illegal("a partial sum cannot pass here unnamed", "name a linear operand, or reduce first")
        if choice.operand is not None and choice.operand not in laws:
            raise illegal(f"operand {choice.operand} is not linear", "reduce the value first")
    if isinstance(choice, Split) and isinstance(choice.layout, Padded):
        raise illegal("operators compute on whole parts", "pad only what is stored")
    if isinstance(choice, Split) and len(choice.factors) == 1:
        role = rule.factor(choice.factors[0]).role
        if role not in SPLITTABLE:
            raise illegal(f"factor {choice.factors[0]} is {role.value}", "split another factor")
    if isinstance(choice, Split) and len(choice.factors) == 2:
        known = [(pair.first, pair.second) for pair in rule.pairs]
        if choice.factors not in known:
            raise illegal("these factors are not coupled", "use a pair that the rule declares")


def _state(rule: Rule, strategy: Strategy, mesh: Mesh, side: str, index: int, type_: Type) -> State:
    dims = (rule.operands if side == "operand" else rule.results)[index]
    partial: list[Partial] = []
    grad_partial: list[str] = []
    for axis, choice in strategy.choices:
        mode = _mode(rule, choice, side, index, dims, type_)
        if mode == "R|P":
            grad_partial.append(axis)
        elif mode in ("sum", "max"):
            partial.append(Partial(axis, mode))
    split = strategy.split
    shards = tuple(
        [
            () if split.isdisjoint(names) else _dim(rule, strategy, mesh, (side, index, dim), type_.shape[dim])
            for dim, names in enumerate(dims)
        ]
    )
    state = _one_state(shards, tuple(partial), tuple(grad_partial))
    state.value.check(type_.shape, mesh, _place(rule, side, index))
    return state


@lru_cache(maxsize=65536)
def _one_state(dims: tuple[Dim, ...], partial: tuple[Partial, ...], grad_partial: tuple[str, ...]) -> State:
    """One object for equal states: there are few, and they are made and compared often."""
    return State(dims, partial, grad_partial)


@lru_cache(maxsize=65536)
def _place(rule: Rule, side: str, index: int) -> str:
    return f"{side} {index} of {rule}"


def _mode(rule: Rule, choice: Choice, side: str, index: int, dims: Dims, type_: Type) -> str:
    """The effect of one axis on one operand or result: "S", "R", "R|P", or the reduction that its partial value
    needs."""
    is_result = side == "result"
    law = None if is_result else rule.laws[index]
    carries = type_.floating and law is not Law.INDEX
    if isinstance(choice, Idle):  # and passes gradients: strategies leave out what does nothing
        return "R|P" if carries else "R"
    if isinstance(choice, Pass):
        passes = is_result or law is Law.ADDITIVE or index == choice.operand
        return "sum" if passes and carries else ("R|P" if carries else "R")
    if any(name in dim for dim in dims for name in choice.factors):
        return "S"
    roles = {rule.factor(name).role for name in choice.factors}
    if is_result:
        return "sum" if Role.SUM in roles else ("max" if Role.MAX in roles else "R")
    if law is Law.ADDITIVE and Role.SUM in roles:
        return "sum"
    return "R|P" if carries else "R"


def _dim(rule: Rule, strategy: Strategy, mesh: Mesh, at: tuple[str, int, int], extent: int) -> Dim:
    """The shards of one dimension: those of its first factor, then those of the next, each cutting what was left."""
    side, index, dim = at
    factors = (rule.operands if side == "operand" else rule.results)[index][dim]
    shards: list[Shard] = []
    sections, groups = rule.section_sizes(*at), rule.slot_groups(*at)
    sizes = groups or tuple(rule.factor(name).size for name in factors)
    unit = extent // prod(sizes) if groups else 1
    outer = 1
    for position, name in enumerate(factors):
        inner = prod(sizes[position + 1 :]) * unit
        left = sizes[position]
        for axis, choice in strategy.choices if name in strategy.split else ():
            if not (isinstance(choice, Split) and name in choice.factors):
                continue
            parts = mesh.axis(axis).size
            _check_cut(choice, left, parts, inside=strategy.split.intersection(factors[position + 1 :]))
            if sections is not None:
                shards.append(Shard(axis, _sectioned(choice, sections)))
                sections = tuple(size // parts for size in sections)
            else:
                if groups is not None:
                    _check_groups(choice, left, parts)
                shards.append(Shard(axis, _nested(choice, outer, inner)))
            left = max(1, gcd(*choice.layout.sizes) if isinstance(choice.layout, Uneven) else left // parts)
        outer *= left
    return tuple(shards)


def _check_cut(choice: Split, left: int, parts: int, *, inside: Collection[str]) -> None:
    """Check that the rest of a factor divides, and that no later factor is cut inside uneven parts."""
    if isinstance(choice.layout, Uneven):
        if inside:
            raise IllegalStrategy(
                place=str(choice),
                cause=f"uneven parts, and {', '.join(sorted(inside))} cut inside them",
                fix="cut the innermost factor unevenly",
            )
    elif left % parts:
        raise IndivisibleExtent(
            place=str(choice),
            cause=f"{left} does not divide into {parts} equal parts",
            fix="choose a degree that divides it",
        )


def _sectioned(choice: Split, sections: tuple[int, ...]) -> Layout:
    if choice.layout != CONTIGUOUS:
        raise IllegalStrategy(
            place=str(choice), cause="a sectioned dim takes no other layout", fix="split it contiguously"
        )
    return Sections(sections) if len(sections) > 1 else CONTIGUOUS


def _check_groups(choice: Split, groups: int, parts: int) -> None:
    """Check that what a loop fills, counted in so many groups, is cut where groups end."""
    layout = choice.layout
    runs = layout.runs if isinstance(layout, Nested) else 1
    zigzag = layout == ZIGZAG or layout == Nested(runs, ZIGZAG)
    if isinstance(layout, Sections) or groups % (runs * parts * (2 if zigzag else 1)):
        raise IllegalStrategy(
            place=str(choice), cause=f"{parts} parts of {groups} groups", fix="cut the loop where groups end"
        )


def _nested(choice: Split, outer: int, inner: int) -> Layout:
    """The layout of a factor that stands between `outer` unsplit iterations of earlier factors and `inner` ones of
    later factors."""
    layout = choice.layout.scaled(inner)
    if outer == 1:
        return layout
    if isinstance(layout, Contiguous | Zigzag):
        return Nested(outer, layout)
    if isinstance(layout, Nested):
        return Nested(outer * layout.runs, layout.layout)
    if isinstance(layout, Sections):
        return Sections(layout.sizes * outer)
    raise IllegalStrategy(
        place=str(choice),
        cause=f"{layout} under an outer loop of {outer}",
        fix="split the outer factor fully, or lay this one out contiguously",
    )


def _local_sizes(rule: Rule, strategy: Strategy, mesh: Mesh) -> tuple[tuple[str, int], ...]:
    sizes = {factor.name: factor.size for factor in rule.factors}
    for axis, choice in strategy.choices:
        if isinstance(choice, Split):
            for name in choice.factors:
                parts = mesh.axis(axis).size
                layout = choice.layout
                sizes[name] = layout.sizes[0] if isinstance(layout, Uneven) else sizes[name] // parts
    return tuple(sizes.items())


def needs(differentiable: Sequence[bool]) -> tuple[int, ...]:
    """The operands that want a gradient, by index."""
    return tuple(index for index, wanted in enumerate(differentiable) if wanted)
