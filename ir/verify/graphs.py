"""Verifiers of graphs, rules and folds, by code that trusts no producer.

The types check their own form when they are built (values defined once and before use, factors declared, wires that
exist). What needs the *meaning* of operators is checked here, after every step that produces such data:

`verify_graph`
    Every operator has a rule, and the rule derives the types of its results. Views share storage only where a view can.
    Gradients are asked only of what has them, and are not lost in an operand that is read as an index. The loss
    depends on a trained parameter. Updates name buffers of their type, once. Paths name one parameter each.
`verify_rule`
    Work, saved tensors, sections, slots and pairs of a rule refer to factors and tensors that it has; its expansion
    takes and gives the same types.
`verify_fold`
    Every body is valid by itself. Glue is one body, once. A path means one parameter wherever it is read, in every one
    of the instances. Gradients cross every wire that carries one. The unfolded graph is valid: at two repeats a
    segment, where every wire is used, so that the check costs the same at any depth.

Each kind of fault raises its own class of error. Program and decisions are verified where they are defined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from meshwright.ir.errors import (
    AliasIllegal,
    AliasUnknown,
    AttributeRepeated,
    BufferTrained,
    ExpansionMismatch,
    FactorUndeclared,
    FoldGlue,
    FoldGradient,
    FoldLoss,
    FoldTie,
    GradientOfIntegers,
    IndexDifferentiated,
    LabelsRank,
    LossDetached,
    OpaqueUnnamed,
    ParamPaths,
    ResultCount,
    ResultType,
    RuleBook,
    SectionsMismatch,
    UpdateReduction,
    UpdateRepeated,
    UpdateType,
    UpdateUnknown,
)
from meshwright.ir.graph.fold import Call, Fold, FromInput, FromPrevious, Segment, Source, joined, shortened, unfold
from meshwright.ir.graph.graph import Graph, Op, Param, Type
from meshwright.ir.rules.base import Engine, Law, Rule, Save, Signature
from meshwright.ir.rules.registry import expand, infer, signature_of

REDUCTIONS = ("mean", "sum", "same")
"""How the shards of a buffer update may be combined."""

PART_OF = ("slice", "select", "split", "expand")
"""Views whose results have other elements in number than what they view."""


# Graphs ---------------------------------------------------------------------------------------------------------------


def verify_graph(graph: Graph) -> None:
    """Raise the error of the first fault found, in the order of the graph."""
    _verify_inputs(graph)
    _verify_params(graph)
    for op in graph.ops:
        _verify_op(op, graph)
    _verify_updates(graph)
    _verify_loss(graph)


def _place(op: Op) -> str:
    source = f" <{op.source}>" if op.source else ""
    module = f" @{op.module}" if op.module else ""
    return f"%{op.name} = {op.kind}{module}{source}"


def _verify_inputs(graph: Graph) -> None:
    for item in graph.inputs:
        type_, place = graph.types[item.value], f"input %{item.value}"
        if item.labels and len(item.labels) != len(type_.shape):
            raise LabelsRank(
                place=place,
                cause=f"{len(item.labels)} labels {item.labels} for {type_}",
                fix='give one label per dimension, "" where there is none',
            )
        if item.requires_grad:
            _verify_gradient(type_, place)


def _verify_params(graph: Graph) -> None:
    owners: dict[str, str] = {}
    for param in graph.params:
        place = f"parameter %{param.value}"
        if not param.paths:
            raise ParamPaths(place=place, cause="it has no path", fix="give the name that the model knows it by")
        for path in param.paths:
            if path in owners:
                raise ParamPaths(
                    place=place,
                    cause=f"path {path!r} already names %{owners[path]}",
                    fix="list the paths of a tied parameter on one value",
                )
            owners[path] = param.value
        if param.requires_grad and param.buffer:
            raise BufferTrained(place=place, cause=f"buffer {param.path!r} requires a gradient", fix="clear the flag")
        if param.requires_grad:
            _verify_gradient(graph.types[param.value], place)


def _verify_gradient(type_: Type, place: str) -> None:
    if not type_.floating:
        raise GradientOfIntegers(place=place, cause=f"{type_} requires a gradient", fix="clear the flag")


def _verify_op(op: Op, graph: Graph) -> None:
    keys = Counter(key for key, _ in op.attrs)
    twice = next((key for key, count in keys.items() if count > 1), None)
    if twice is not None:
        raise AttributeRepeated(place=_place(op), cause=f"attribute {twice!r} is given twice", fix="keep one of them")
    if op.kind == "opaque" and not op.attr("target"):
        raise OpaqueUnnamed(
            place=_place(op), cause="it has no attribute 'target'", fix="name the framework's operator there"
        )
    rule = verified_rule(signature_of(op, graph.types))
    _verify_results(op, rule, graph)
    _verify_alias(op, rule, graph)
    _verify_indices(op, rule, graph)


def _verify_results(op: Op, rule: Rule, graph: Graph) -> None:
    if len(op.results) != len(rule.types):
        raise ResultCount(
            place=_place(op), cause=f"{len(op.results)} results, not {len(rule.types)}", fix="name every result"
        )
    for value, wanted in zip(op.results, rule.types, strict=True):
        if graph.types[value] != wanted:
            raise ResultType(
                place=_place(op),
                cause=f"%{value} is {graph.types[value]}, the rule derives {wanted}",
                fix="correct the type, the operands or the attributes",
            )


def _verify_alias(op: Op, rule: Rule, graph: Graph) -> None:
    if op.alias is None:
        return
    if not 0 <= op.alias < len(op.operands):
        raise AliasUnknown(
            place=_place(op), cause=f"alias={op.alias} with {len(op.operands)} operands", fix="name an operand"
        )
    viewed, view = graph.types[op.operands[op.alias]], rule.types[0]
    same = viewed.dtype == view.dtype and (op.kind in PART_OF or viewed.elements == view.elements)
    if rule.engine is not Engine.VIEW or not same:
        raise AliasIllegal(
            place=_place(op), cause=f"{view} cannot share the storage of {viewed} here", fix="drop the alias"
        )


def _verify_indices(op: Op, rule: Rule, graph: Graph) -> None:
    if op.no_grad or not any(type_.floating for type_ in rule.types):
        return
    for value, law in zip(op.operands, rule.laws, strict=True):
        if law is Law.INDEX and value in graph.differentiable:
            raise IndexDifferentiated(
                place=_place(op),
                cause=f"%{value} has a gradient and is read as an index",
                fix="mark the operator no_grad, or give the operand another law",
            )


def _verify_updates(graph: Graph) -> None:
    buffers = {path: graph.types[param.value] for param in graph.params if param.buffer for path in param.paths}
    seen: set[str] = set()
    for update in graph.updates:
        place = f"update of {update.buffer!r}"
        if update.buffer not in buffers:
            raise UpdateUnknown(place=place, cause="there is no such buffer", fix="name a buffer by its path")
        if update.buffer in seen:
            raise UpdateRepeated(place=place, cause="it is updated twice", fix="keep the last value")
        seen.add(update.buffer)
        if graph.types[update.value] != buffers[update.buffer]:
            raise UpdateType(
                place=place,
                cause=f"%{update.value} is {graph.types[update.value]}, the buffer {buffers[update.buffer]}",
                fix="give a value of the buffer's type",
            )
        if update.reduction not in REDUCTIONS:
            raise UpdateReduction(
                place=place, cause=f"unknown reduction {update.reduction!r}", fix=f"use one of {', '.join(REDUCTIONS)}"
            )


def _verify_loss(graph: Graph) -> None:
    trained = any(param.requires_grad for param in graph.params)
    if graph.loss is not None and trained and graph.loss not in graph.differentiable:
        raise LossDetached(
            place=f"loss %{graph.loss}",
            cause="no gradient flows from it to any parameter",
            fix="compute the loss outside no_grad",
        )


# Rules ----------------------------------------------------------------------------------------------------------------


def verified_rule(signature: Signature) -> Rule:
    """The rule of a signature, verified."""
    rule = infer(signature)
    verify_rule(rule, signature)
    return rule


@lru_cache(maxsize=65536)
def verify_rule(rule: Rule, signature: Signature) -> None:
    """Check a rule beyond its dims, which it checks itself. Rules that were valid once are not checked again."""
    rule.check_operands(signature)
    for work in rule.work:
        _verify_factors(rule, work.factors, signature)
        for operand in (work.grad_of, work.shared_with):
            if operand is not None:
                _verify_operand(rule, operand, "work", signature)
    for save in rule.saves:
        _verify_save(rule, save, signature)
    for pair in rule.pairs:
        _verify_factors(rule, (pair.first, pair.second), signature)
    for index in rule.gathered:
        _verify_operand(rule, index, "gathered", signature)
    for side, index, dim, sizes in rule.sections:
        _verify_sections(rule, side, index, dim, sizes, signature)
    for side, index, dim, _ in rule.slots:
        _verify_dim(rule, side, index, dim, "slots", signature)
    _verify_expansion(rule, signature)


def _verify_factors(rule: Rule, names: Iterable[str], signature: Signature) -> None:
    declared = [factor.name for factor in rule.factors]
    for name in names:
        if name not in declared:
            raise FactorUndeclared(
                place=str(signature), cause=f"factor {name!r} is not declared", fix="declare it with its size"
            )


def _verify_operand(rule: Rule, index: int, what: str, signature: Signature) -> None:
    if not 0 <= index < len(rule.operands):
        raise RuleBook(
            place=str(signature), cause=f"{what} of operand {index} of {len(rule.operands)}", fix="name an operand"
        )


def _verify_save(rule: Rule, save: Save, signature: Signature) -> None:
    tensors = {"operand": rule.operands, "result": rule.results, "extra": (save.dims,)}.get(save.what, ())
    if not 0 <= save.index < len(tensors):
        raise RuleBook(
            place=str(signature), cause=f"it saves {save.what} {save.index}", fix="save an operand, result or extra"
        )
    for need in (*save.needs, *save.given, *save.unless):
        _verify_operand(rule, need, "need", signature)
    _verify_factors(rule, (name for dim in save.dims for name in dim), signature)


def _verify_sections(rule: Rule, side: str, index: int, dim: int, sizes: tuple[int, ...], signature: Signature) -> None:
    types = _verify_dim(rule, side, index, dim, "sections", signature)
    if sum(sizes) != types[index].shape[dim]:
        raise SectionsMismatch(
            place=f"{signature}, {side} {index}",
            cause=f"sections {sizes} of extent {types[index].shape[dim]}",
            fix="make the sections add up",
        )


def _verify_dim(rule: Rule, side: str, index: int, dim: int, what: str, signature: Signature) -> tuple[Type, ...]:
    """Check that the dimension exists, and return the types on its side."""
    types = signature.operands if side == "operand" else rule.types
    if index >= len(types) or dim >= len(types[index].shape):
        raise RuleBook(place=str(signature), cause=f"{what} of {side} {index}, dim {dim}", fix="name a dimension")
    return types


def _verify_expansion(rule: Rule, signature: Signature) -> None:
    if not any(factor.expanded for factor in rule.factors):
        return
    graph = expand(signature).graph
    wanted = {str(index): type_ for index, type_ in enumerate(signature.operands)}
    given = {item.value: graph.types[item.value] for item in graph.inputs}
    results = tuple(graph.types[value] for value in graph.outputs)
    if given != wanted or results != rule.types or graph.params:
        raise ExpansionMismatch(
            place=f"expansion of {signature}",
            cause=f"takes ({_listed(given.values())}), gives ({_listed(results)})",
            fix=f"take ({_listed(signature.operands)}) as %0, %1 …, give ({_listed(rule.types)})",
        )


def _listed(types: Iterable[Type]) -> str:
    return ", ".join(map(str, types))


# Folds ----------------------------------------------------------------------------------------------------------------


def verify_fold(fold: Fold) -> None:
    """Raise the error of the first fault found: in the bodies, then in how they are put together."""
    if fold.loss is not None and not 0 <= fold.loss < len(fold.outputs):
        raise FoldLoss(
            place="fold", cause=f"loss {fold.loss} of {len(fold.outputs)} outputs", fix="give the index of an output"
        )
    for body in fold.bodies:
        verify_graph(body.graph)
    for index, segment in enumerate(fold.segments):
        _verify_glue(index, segment)
    _verify_ties(fold)
    short = shortened(fold, 2)
    _verify_wires(short)
    verify_graph(unfold(short))


def _verify_glue(index: int, segment: Segment) -> None:
    if segment.glue and (len(segment.period) > 1 or segment.paths != ("",)):
        raise FoldGlue(
            place=f"segment {index} {segment.period}",
            cause=f"glue with the paths {segment.paths}",
            fix='glue is one body, once, with the path ""; make it a stack',
        )


def _verify_ties(fold: Fold) -> None:
    """Check that a path means the same parameter in every call: with the same names, type and flags."""
    meanings: dict[str, tuple[tuple[str, ...], Param, Type, str]] = {}
    for call in fold.calls():
        for param in call.body.graph.params:
            paths = tuple(joined(call.path, path) for path in param.paths)
            type_ = call.body.graph.types[param.value]
            for path in paths:
                known = meanings.setdefault(path, (paths, param, type_, _where(call)))
                if _meaning(*known[:3]) != _meaning(paths, param, type_):
                    raise FoldTie(
                        place=f"{_where(call)}, parameter {path!r}",
                        cause=f"{type_} {paths}, but {known[2]} {known[0]} in {known[3]}",
                        fix="give one parameter one list of paths, type and flags",
                    )


def _meaning(paths: tuple[str, ...], param: Param, type_: Type) -> object:
    return paths, type_, param.requires_grad, param.buffer


def _where(call: Call) -> str:
    return call.path or f"segment {call.segment}, {call.body.name}"


def _verify_wires(fold: Fold) -> None:
    """Follow gradients through the calls: a value that has one must enter a block by an input that returns one."""
    inputs = {item.value: item.requires_grad for item, _ in fold.inputs}
    previous: tuple[bool, ...] = ()
    last: dict[tuple[int, int], tuple[bool, ...]] = {}

    def flows(source: Source) -> bool:
        if isinstance(source, FromInput):
            return inputs[source.name]
        if isinstance(source, FromPrevious):
            return previous[source.output]
        return last[source.segment, source.position][source.output]

    for call in fold.calls():
        previous = tuple(_outputs_with_gradient(call, [flows(source) for source in call.sources]))
        last[call.segment, call.position] = previous


def _outputs_with_gradient(call: Call, given: list[bool]) -> Iterator[bool]:
    """Outputs of a call that have a gradient, given the sources that have one."""
    graph = call.body.graph
    for item, source, flowing in zip(graph.inputs, call.sources, given, strict=True):
        if flowing and not item.requires_grad:
            raise FoldGradient(
                place=f"{_where(call)}, input %{item.value}",
                cause=f"{source} has a gradient",
                fix="set requires_grad on the input of the body",
            )
    inputs = tuple(replace(item, requires_grad=flow) for item, flow in zip(graph.inputs, given, strict=True))
    differentiable = replace(graph, inputs=inputs).differentiable
    return (value in differentiable for value in graph.outputs)
