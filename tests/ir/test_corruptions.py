"""Hand-made corruptions: each breaks one law of one artefact, and each is refused by an error class of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshwright.ir import errors
from meshwright.ir.analysis.saved import saved
from meshwright.ir.errors import IRError
from meshwright.ir.graph.fold import Body, FromPrevious
from meshwright.ir.graph.graph import Graph, Op, Type, Update
from meshwright.ir.graph.text import graph_text, parse_graph
from meshwright.ir.rules.base import Factor, Law, Role, Save, Signature
from meshwright.ir.rules.registry import expand, infer, rule
from meshwright.ir.sharding.adjoint import Strategy, apply
from meshwright.ir.sharding.layouts import Uneven
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.sharding.placement import Partial, Placement
from meshwright.ir.sharding.reshard import reshard
from meshwright.ir.verify.graphs import verify_fold, verify_graph, verify_rule
from tests.build import Builder
from tests.models import embed_body, head_body, layer_body, llama, llama_fold

Corruption = Callable[[], object]

X = Type((4, 8), "f32")
LINEAR = Signature("linear", (X, Type((16, 8), "f32")))
MESH = Mesh.parse("dp=2 tp=3")


def edited(graph: Graph, kind: str, change: Callable[[Op], Op]) -> None:
    """Verify the graph with its first operator of a kind changed."""
    at = next(index for index, op in enumerate(graph.ops) if op.kind == kind)
    verify_graph(replace(graph, ops=(*graph.ops[:at], change(graph.ops[at]), *graph.ops[at + 1 :])))


def retyped(graph: Graph, kind: str, type_: Type) -> Graph:
    """The graph with another type on the result of its first operator of a kind."""
    op = next(op for op in graph.ops if op.kind == kind)
    return replace(graph, types={**graph.types, op.name: type_})


def trained(**flags: bool) -> Graph:
    """A linear layer with a running mean and a mean as its loss."""
    g = Builder()
    x = g.input((4, 8), labels=("b", ""))
    y = g.op("linear", x, g.param("w", (16, 8)))
    seen = g.buffer("seen", (16,))
    g.update("seen", g.op("add", seen, g.op("mean", y, dim=0)), "mean")
    g.loss(g.op("mean", y, **flags))
    return g.graph()


def with_updates(*updates: Update) -> None:
    verify_graph(replace(trained(), updates=updates))


def with_params(*changes: dict[str, object]) -> None:
    graph = trained()
    params = tuple(replace(param, **change) for param, change in zip(graph.params, changes, strict=True))
    verify_graph(replace(graph, params=params))


def rebuilt(**changes: object) -> None:
    """Verify the rule of a linear layer with some parts changed."""
    verify_rule(replace(infer(LINEAR), **changes), LINEAR)


def expanded_wrongly() -> None:
    """A loss that promises more precision than its expansion gives."""
    signature = Signature("cross_entropy", (X, Type((4,), "i64")))
    verify_rule(replace(infer(signature), types=(Type((), "f64"),)), signature)


def folded(**changes: object) -> None:
    verify_fold(replace(llama_fold(), **changes))


def rewired(index: int, **changes: object) -> None:
    segments = list(llama_fold().segments)
    segments[index] = replace(segments[index], **changes)
    folded(segments=tuple(segments))


def forgetful_layer() -> Body:
    """A layer that hands no gradient back."""
    body = layer_body()
    return replace(body, graph=replace(body.graph, inputs=(replace(body.graph.inputs[0], requires_grad=False),)))


MESHES: dict[str, tuple[Corruption, type[IRError]]] = {
    "axis name": (lambda: MeshAxis("data parallel", 2), errors.BadAxisName),
    "axis size": (lambda: MeshAxis("dp", 0), errors.BadAxisSize),
    "axis repeated": (lambda: Mesh((MeshAxis("dp", 2), MeshAxis("dp", 4))), errors.AxisRepeated),
    "mesh text": (lambda: Mesh.parse("dp:2"), errors.MeshSyntax),
}

PLACEMENTS: dict[str, tuple[Corruption, type[IRError]]] = {
    "axis of another mesh": (lambda: Placement.parse("[ep]").check((4,), MESH, "w"), errors.UnknownAxis),
    "extent that does not divide": (lambda: Placement.parse("[tp]").check((4,), MESH, "w"), errors.IndivisibleExtent),
    "sections too long": (
        lambda: Placement.parse("[dp:sections(4,4)]").check((4,), MESH, "w"),
        errors.SectionsMismatch,
    ),
    "one size too many": (lambda: Placement.parse("[dp:uneven(1,2,1)]").check((4,), MESH, "w"), errors.UnevenMismatch),
    "an empty part": (lambda: Uneven((4, 0)), errors.BadLayoutSize),
    "an axis on two dims": (lambda: Placement.parse("[dp, dp]"), errors.AxisUsedTwice),
    "average as reduction": (lambda: Partial("dp", "mean"), errors.UnknownReduction),
    "a dim too many": (lambda: Placement.parse("[dp, -]").check((4,), MESH, "w"), errors.PlacementRank),
    "nothing but slices": (
        lambda: reshard(Placement.parse("[dp]"), Placement.parse("[-]"), MESH, moves=("slice",)),
        errors.NoReshard,
    ),
    "placement text": (lambda: Placement.parse("[dp"), errors.PlacementSyntax),
}

GRAPHS: dict[str, tuple[Corruption, type[IRError]]] = {
    "unknown dtype": (lambda: Type((2,), "float32"), errors.UnknownDtype),
    "negative extent": (lambda: Type((2, -1), "f32"), errors.NegativeExtent),
    "attribute of another type": (
        lambda: Op("slice", ("x",), ("y",), (("dim", "0"),)).integer("dim"),
        errors.BadAttribute,
    ),
    "value defined twice": (
        lambda: edited(llama(), "silu", lambda op: replace(op, results=("add",))),
        errors.ValueRedefined,
    ),
    "operator out of order": (
        lambda: verify_graph(replace(llama(), ops=llama().ops[::-1])),
        errors.UsedBeforeDefinition,
    ),
    "value without type": (
        lambda: edited(llama(), "cross_entropy", lambda op: replace(op, results=("new",))),
        errors.TypeMissing,
    ),
    "type without value": (
        lambda: verify_graph(replace(llama(), types={**llama().types, "ghost": X})),
        errors.TypeOrphaned,
    ),
    "loss with dims": (lambda: verify_graph(replace(llama(), loss="tokens")), errors.LossNotScalar),
    "text cut short": (lambda: parse_graph(graph_text(llama())[:-9] + "%"), errors.GraphSyntax),
    "unknown kind": (lambda: edited(llama(), "silu", lambda op: replace(op, kind="sillu")), errors.UnknownOp),
    "operand of another shape": (
        lambda: edited(llama(), "linear", lambda op: replace(op, operands=op.operands[::-1])),
        errors.BadOperand,
    ),
    "wrong result shape": (
        lambda: verify_graph(retyped(llama(), "permute", Type((2, 8, 4, 4), "f32"))),
        errors.ResultType,
    ),
    "result forgotten": (
        lambda: verify_graph(parse_graph("graph\n input %x: f32[4]\n %a: f32[2] = split(%x) {dim=0, sizes=(2, 2)}\n")),
        errors.ResultCount,
    ),
    "attribute given twice": (
        lambda: edited(llama(), "permute", lambda op: replace(op, attrs=op.attrs * 2)),
        errors.AttributeRepeated,
    ),
    "opaque without target": (
        lambda: verify_graph(parse_graph('graph\n input %x: f32[4]\n %y: f32[4] = opaque(%x) {types=("f32[4]",)}\n')),
        errors.OpaqueUnnamed,
    ),
    "alias of no operand": (lambda: edited(llama(), "view", lambda op: replace(op, alias=1)), errors.AliasUnknown),
    "product as a view": (lambda: edited(llama(), "linear", lambda op: replace(op, alias=0)), errors.AliasIllegal),
    "gradient through an index": (
        lambda: verify_graph(
            parse_graph(
                "graph\n input %x: f32[4]\n input %m: f32[4] grad\n"
                " %y: f32[4] = masked_fill(%x, %m) {scalar=0}\n output %y\n"
            )
        ),
        errors.IndexDifferentiated,
    ),
    "gradient of integers": (
        lambda: verify_graph(parse_graph("graph\n input %x: i64[4] grad\n")),
        errors.GradientOfIntegers,
    ),
    "buffer with a gradient": (lambda: with_params({}, {"requires_grad": True}), errors.BufferTrained),
    "loss under no_grad": (lambda: verify_graph(trained(no_grad=True)), errors.LossDetached),
    "update of a parameter": (lambda: with_updates(Update("w", "add")), errors.UpdateUnknown),
    "two updates of a buffer": (lambda: with_updates(*[Update("seen", "add")] * 2), errors.UpdateRepeated),
    "update of another type": (lambda: with_updates(Update("seen", "linear")), errors.UpdateType),
    "unknown reduction": (lambda: with_updates(Update("seen", "add", "median")), errors.UpdateReduction),
    "one path, two parameters": (lambda: with_params({}, {"paths": ("w",)}), errors.ParamPaths),
    "unknown execution style": (lambda: saved(llama(), "lazy"), errors.UnknownStyle),
    "a label too few": (
        lambda: verify_graph(parse_graph("graph\n input %x: i64[4, 4]  (b)\n")),
        errors.LabelsRank,
    ),
}

RULES: dict[str, tuple[Corruption, type[IRError]]] = {
    "factor twice": (lambda: rebuilt(factors=(Factor("k", 8), Factor("k", 8))), errors.FactorRepeated),
    "factor not declared": (lambda: rebuilt(factors=(Factor("k", 8, Role.SUM),)), errors.FactorUndeclared),
    "parallel factor dropped": (
        lambda: rebuilt(factors=(Factor("d0", 4), Factor("k", 8), Factor("n", 16))),
        errors.FactorDropped,
    ),
    "law missing": (lambda: rebuilt(laws=(Law.LINEAR,)), errors.RuleArity),
    "second rule": (lambda: rule("linear")(infer), errors.RuleRegistered),
    "no expansion": (lambda: expand(LINEAR), errors.NoExpansion),
    "saves an operand that is not there": (lambda: rebuilt(saves=(Save("operand", 5),)), errors.RuleBook),
    "expansion of another type": (expanded_wrongly, errors.ExpansionMismatch),
    "strategy outside the rule": (
        lambda: apply(infer(LINEAR), LINEAR.operands, Strategy.parse("dp=P2"), MESH),
        errors.IllegalStrategy,
    ),
}

FOLDS: dict[str, tuple[Corruption, type[IRError]]] = {
    "source that does not exist": (lambda: rewired(1, entry=(FromPrevious(1),)), errors.FoldBroken),
    "half a period": (lambda: rewired(1, paths=("a", "b", "a")), errors.FoldInstances),
    "port of another type": (lambda: rewired(2, entry=(FromPrevious(0), FromPrevious(0))), errors.FoldPort),
    "glue with a path": (lambda: rewired(0, paths=("embed",)), errors.FoldGlue),
    "one path, two types": (
        lambda: folded(bodies=(embed_body(path="w"), layer_body(), norm_head("w"))),
        errors.FoldTie,
    ),
    "gradient not handed back": (
        lambda: folded(bodies=(embed_body(), forgetful_layer(), head_body())),
        errors.FoldGradient,
    ),
    "loss that is no output": (lambda: folded(loss=1), errors.FoldLoss),
}


def norm_head(path: str) -> Body:
    """A head whose final norm has a given parameter path."""
    body = head_body()
    params = tuple(
        replace(param, paths=(path,)) if param.paths == ("norm.weight",) else param for param in body.graph.params
    )
    return replace(body, graph=replace(body.graph, params=params))


TABLE = MESHES | PLACEMENTS | GRAPHS | RULES | FOLDS


@pytest.mark.parametrize("name", TABLE)
def test_each_corruption_is_refused_by_its_own_class(name: str) -> None:
    corrupt, expected = TABLE[name]
    with pytest.raises(IRError) as caught:
        corrupt()
    assert type(caught.value) is expected


def test_no_two_corruptions_share_a_class() -> None:
    classes = [expected for _, expected in TABLE.values()]
    assert len(set(classes)) == len(classes)
    assert len(TABLE) == sum(map(len, (MESHES, PLACEMENTS, GRAPHS, RULES, FOLDS))), "a name is used twice"


def test_every_law_has_its_corruption() -> None:
    """Meshes, placements, graphs, rules and folds have the codes below MW3060; a new one comes with a corruption."""
    classes = {expected for _, expected in TABLE.values()}
    laws = [kind for kind in errors.catalogue() if issubclass(kind, IRError) and kind.code < "MW3060"]
    assert [kind.__name__ for kind in laws if kind not in classes] == []


def test_what_is_not_corrupt_is_accepted() -> None:
    verify_graph(llama())
    verify_graph(trained())
    verify_fold(llama_fold())
    rebuilt()
