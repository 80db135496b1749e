"""The registry of rules: builders and expansions by kind, and the rules that they made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from meshwright.ir.errors import NoExpansion, RuleRegistered, UnknownOp
from meshwright.ir.graph.graph import Graph, Op, Type
from meshwright.ir.rules.base import Expansion, Rule, Signature
from meshwright.ir.same import Same

Builder = Callable[[Signature], Rule]
Expander = Callable[[Signature], Expansion]
_BUILDERS: dict[str, Builder] = {}
_EXPANDERS: dict[str, Expander] = {}


def rule(*kinds: str) -> Callable[[Builder], Builder]:
    """Register a builder under one or more kinds."""

    def register(builder: Builder) -> Builder:
        for kind in kinds:
            if kind in _BUILDERS:
                raise RuleRegistered(place=kind, cause="this kind has a rule already", fix="remove one of the two")
            _BUILDERS[kind] = builder
        return builder

    return register


def expansion(kind: str) -> Callable[[Expander], Expander]:
    """Register the expansion of a kind: a graph of simpler operators with the same inputs and outputs."""

    def register(expander: Expander) -> Expander:
        _EXPANDERS[kind] = expander
        return expander

    return register


def kinds() -> tuple[str, ...]:
    """Every kind that has a rule."""
    return tuple(sorted(_BUILDERS))


def signature_of(op: Op, types: Mapping[str, Type]) -> Signature:
    """One object for equal signatures: caches find it without comparing types and attributes."""
    return _one_of_equals(Signature(op.kind, tuple(types[value] for value in op.operands), op.attrs))


@lru_cache(maxsize=65536)
def _one_of_equals(signature: Signature) -> Signature:
    return signature


@lru_cache(maxsize=65536)
def infer(signature: Signature) -> Rule:
    """The rule of an operator. Raises `UnknownOp` for a kind that nobody registered."""
    builder = _BUILDERS.get(signature.kind)
    if builder is None:
        raise UnknownOp(
            place=str(signature), cause=f"kind {signature.kind!r} has no rule", fix="make it opaque or register a rule"
        )
    try:
        built = builder(signature)
        built.check_operands(signature)
    except _MISTAKEN as mistake:
        raise signature.error(f"its rule cannot take these operands ({mistake})", "correct the operands") from mistake
    return built


_MISTAKEN = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a builder runs into that expects other operands or attributes: too few to unpack, an index past the last dim."""


def rule_of(op: Op, types: Mapping[str, Type]) -> Rule:
    return infer(signature_of(op, types))


@lru_cache(maxsize=512)
def rules_of(graph: Same[Graph]) -> Mapping[str, Rule]:
    """The rules of all operators of a graph, by name."""
    return {op.name: rule_of(op, graph.of.types) for op in graph.of.ops}


def expand(signature: Signature) -> Expansion:
    """The operator rewritten into simpler ones, for splits that need communication inside."""
    expander = _EXPANDERS.get(signature.kind)
    if expander is None:
        raise NoExpansion(place=str(signature), cause="it has no expansion", fix="register one with @expansion")
    return expander(signature)
