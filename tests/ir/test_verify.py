from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.ir.errors import FoldTie, IRError
from meshwright.ir.graph.fold import Body, Fold, unfold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.graph.text import parse_graph
from meshwright.ir.rules import Role, kinds, register_rule, unregister_rule
from meshwright.ir.rules.base import Signature
from meshwright.ir.verify.graphs import verified_rule, verify_fold, verify_graph
from tests.build import Builder
from tests.ir.strategies import attrs
from tests.models import embed_body, head_body, llama, llama_fold


def with_paths(body: Body, old: str, *paths: str) -> Body:
    params = tuple(replace(param, paths=paths) if param.paths == (old,) else param for param in body.graph.params)
    return replace(body, graph=replace(body.graph, params=params))


def with_ends(embed: Body, head: Body) -> Fold:
    fold = llama_fold()
    return replace(fold, bodies=(embed, fold.bodies[1], head))


@pytest.mark.parametrize("layers", [1, 2, 126])
def test_folds_of_any_depth_are_verified(layers: int) -> None:
    verify_fold(llama_fold(layers))


def test_the_unfolded_fold_is_a_valid_graph() -> None:
    graph = unfold(llama_fold(3))
    verify_graph(graph)
    assert [param.path for param in graph.params] == [param.path for param in llama(3).params]


def test_a_tied_weight_has_all_its_names_in_every_block() -> None:
    both = ("embed.weight", "head.weight")
    verify_fold(
        with_ends(with_paths(embed_body(), both[0], *both), with_paths(head_body(), both[1], *both)),
    )


def test_a_tie_known_to_one_block_only_is_refused() -> None:
    with pytest.raises(FoldTie, match="head\\.weight"):
        verify_fold(with_ends(with_paths(embed_body(), "embed.weight", "embed.weight", "head.weight"), head_body()))


def test_a_tied_weight_is_frozen_everywhere_or_nowhere() -> None:
    head = with_paths(head_body(), "head.weight", "embed.weight")
    params = tuple(replace(param, requires_grad=param.path != "embed.weight") for param in head.graph.params)
    with pytest.raises(FoldTie):
        verify_fold(with_ends(embed_body(), replace(head, graph=replace(head.graph, params=params))))


def test_a_comparison_may_read_what_has_a_gradient() -> None:
    verify_graph(parse_graph("graph\n input %x: f32[4] grad\n %y: bool[4] = gt(%x) {scalar=0}\n output %y\n"))


def test_no_grad_may_read_an_index_with_a_gradient() -> None:
    text = "graph\n input %x: f32[4]\n input %m: f32[4] grad\n %y: f32[4] = masked_fill(%x, %m) {scalar=0}  no_grad\n"
    verify_graph(parse_graph(text))


@pytest.mark.parametrize(
    ("kind", "given_attrs"),
    [
        ("slice", {"dim": 1, "start": 0, "end": 2}),
        ("select", {"dim": 0, "index": 0}),
        ("expand", {"shape": (3, 4, 6)}),
        ("split", {"dim": 1, "sizes": (2, 4)}),
        ("view", {"shape": (24,)}),
        ("permute", {"perm": (1, 0)}),
    ],
)
def test_views_share_storage(kind: str, given_attrs: dict[str, Any]) -> None:
    g = Builder()
    g.output(g.op(kind, g.input((4, 6)), alias=0, **given_attrs))
    verify_graph(g.graph())


def test_a_rule_that_a_user_changes_is_not_remembered() -> None:
    graph = parse_graph('graph\n input %x: f32[4]\n %y: f32[4] = opaque(%x) {target="t::f", types=("f32[4]",)}\n')
    signature = Signature("opaque", (graph.types["x"],), graph.ops[0].attrs)
    assert verified_rule(signature).factors[0].role is Role.WHOLE
    register_rule("t::f", "a -> a")
    try:
        assert verified_rule(signature).factors[0].role is Role.PARALLEL
    finally:
        unregister_rule("t::f")


def mutated(data: st.DataObject, graph: Graph) -> Graph:
    """The graph with one operator's kind, operands or attributes replaced by others that the graph or we know."""
    at = data.draw(st.integers(0, len(graph.ops) - 1))
    op = graph.ops[at]
    before = [value for value in graph.types if value not in {r for later in graph.ops[at:] for r in later.results}]
    what = data.draw(st.sampled_from(["kind", "operands", "attrs", "types"]))
    if what == "types":
        types = graph.types | {op.name: graph.types[data.draw(st.sampled_from(before))]}
        return replace(graph, types=types)
    changes: dict[str, Any] = {
        "kind": {"kind": data.draw(st.sampled_from(kinds()))},
        "operands": {"operands": tuple(data.draw(st.lists(st.sampled_from(before), max_size=4)))},
        "attrs": {"attrs": tuple(data.draw(st.dictionaries(st.sampled_from(KEYS), attrs, max_size=3)).items())},
    }[what]
    return replace(graph, ops=(*graph.ops[:at], replace(op, **changes), *graph.ops[at + 1 :]))


KEYS = [
    "dim",
    "shape",
    "perm",
    "mask",
    "scalar",
    "sizes",
    "keepdim",
    "reduction",
    "start",
    "end",
    "dtype",
    "num_experts",
]


@given(st.data())
def test_whatever_is_changed_is_accepted_or_refused_with_a_reason(data: st.DataObject) -> None:
    """No graph, however meaningless, makes the verifier itself fail."""
    graph = llama(1)
    with suppress(IRError):
        for _ in range(data.draw(st.integers(1, 3))):
            graph = mutated(data, graph)
        verify_graph(graph)
