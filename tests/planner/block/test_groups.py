"""Which operators share one choice, and what goes between them: on graphs of a few operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshwright.ir.analysis.loops import loops
from meshwright.ir.graph.graph import Graph
from meshwright.planner.block.groups import Parts, parts
from tests.build import Builder


def linear(g: Builder, value: str, name: str, features: int = 16, inner: int = 16) -> str:
    return g.op("linear", value, g.param(f"{name}.weight", (features, inner)), name=name)


def entering(g: Builder, shape: tuple[int, ...] = (4, 8, 16)) -> str:
    return g.input(shape, labels=("b", "s", ""), requires_grad=True)


def chain() -> Graph:
    """A product, what follows it, and another product."""
    g = Builder()
    g.output(linear(g, g.op("silu", linear(g, entering(g), "one")), "two"))
    return g.graph()


def residual() -> Graph:
    """An activation of what comes in, which others read too; a product; their sum."""
    g = Builder()
    x = entering(g)
    g.output(g.op("add", x, linear(g, g.op("silu", x), "up")))
    return g.graph()


def torn() -> Graph:
    """A product that its follower reads and the body hands on."""
    g = Builder()
    made = linear(g, entering(g), "up")
    g.output(g.op("silu", made), made)
    return g.graph()


def updated() -> Graph:
    """The same, with a buffer that takes the product."""
    g = Builder()
    g.buffer("seen", (4, 8, 16))
    made = linear(g, entering(g), "up")
    g.update("seen", made)
    g.output(g.op("silu", made))
    return g.graph()


def updated_last() -> Graph:
    """A buffer takes what nobody reads."""
    g = Builder()
    g.buffer("seen", (4, 8, 16))
    made = linear(g, entering(g), "up")
    g.update("seen", g.op("silu", made))
    g.output(linear(g, made, "down"))
    return g.graph()


def rotated() -> Graph:
    """A product times the cosine of angles, which have neither samples nor a gradient."""
    g = Builder()
    angles = g.input((8, 16), name="angles", labels=("s", ""))
    made = linear(g, entering(g), "up")
    g.output(g.op("mul", made, g.op("cos", angles)))
    return g.graph()


def scaled() -> Graph:
    """A weight is doubled before it is read."""
    g = Builder()
    weight = g.op("neg", g.param("up.weight", (16, 16)), name="twice")
    g.output(g.op("linear", entering(g), weight, name="up"))
    return g.graph()


def shared() -> Graph:
    """Two products by one weight."""
    g = Builder()
    weight = g.param("weight", (16, 16))
    first = g.op("linear", entering(g), weight, name="one")
    g.output(g.op("linear", first, weight, name="two"))
    return g.graph()


def decayed() -> Graph:
    """What is made of one weight, added to what comes in and to what another product makes."""
    g = Builder()
    x, decay = entering(g), g.op("neg", g.op("exp", g.param("decay", (16,))))
    g.output(g.op("add", g.op("add", x, decay, name="early"), linear(g, g.op("sub", x, decay, name="late"), "up")))
    return g.graph()


def normed() -> Graph:
    """A product, and what it makes over its size."""
    g = Builder()
    made = linear(g, entering(g), "up")
    size = g.op("mean", g.op("mul", made, made), name="size", dims=(2,), keepdim=True)
    g.output(g.op("mul", made, g.op("rsqrt", size)))
    return g.graph()


CASES: list[tuple[Callable[[], Graph], list[str]]] = [
    (chain, ["one silu | x > silu | p.one.weight", "two | silu > two | p.two.weight"]),
    (residual, ["silu | x > silu |", "up | silu > up | p.up.weight", "add | x up > add |"]),
    (torn, ["up | x > up | p.up.weight", "silu | up > silu |"]),
    (updated, ["up | x > up | p.up.weight", "silu | up > silu |"]),
    (updated_last, ["up | x > up | p.up.weight", "silu | up > silu |", "down | up > down | p.down.weight"]),
    (rotated, ["up mul | x > mul | p.up.weight"]),
    (normed, ["up | x > up | p.up.weight", "mul size rsqrt | up > rsqrt |", "mul_1 | up rsqrt > mul_1 |"]),
    (scaled, ["twice up | x > up | p.up.weight"]),
    (
        decayed,
        [
            *("exp |  > exp | p.decay", "neg | exp > neg |", "early | x neg > early |", "late | x neg > late |"),
            *("up | late > up | p.up.weight", "add | early up > add |"),
        ],
    ),
    (shared, ["one | x p.weight > one |", "two | one p.weight > two |"]),
]


def shown(found: Parts) -> list[str]:
    """Of every group its operators, what it reads and makes, and its own parameters."""
    return [
        f"{' '.join(op.name for op in one.ops)} | {' '.join(one.reads)} > {' '.join(one.makes)} | "
        f"{' '.join(param.value for param in one.params)}".rstrip()
        for one in found.groups
    ]


@pytest.mark.parametrize(("made", "expected"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_groups_of_a_body(made: Callable[[], Graph], expected: list[str]) -> None:
    graph = made()
    assert shown(parts(graph, loops(graph))) == expected


def test_without_ties_every_operator_is_a_group() -> None:
    graph = chain()
    found = parts(graph, loops(graph), joined=False)
    assert [one.name for one in found.groups] == ["one", "silu", "two"]
    assert found.maker == {"one": 0, "silu": 1, "two": 2}
    assert found.readers == {"x": (0,), "one": (1,), "silu": (2,)}


def test_no_group_goes_across_a_cut() -> None:
    graph = chain()
    assert [one.name for one in parts(graph, loops(graph), cut=["one"]).groups] == ["one", "silu", "two"]
    assert [one.name for one in parts(graph, loops(graph), cut=["silu"]).groups] == ["one", "two"]


def test_tables_are_nobodys_choice() -> None:
    """What they are made by is fixed; a group knows that it reads one."""
    graph = rotated()
    found = parts(graph, loops(graph))
    assert found.tables == {"angles", "cos"}
    assert [op.name for op in found.fixed] == ["cos"]
    (group,) = found.groups
    assert (group.tables, group.names) == (("cos",), {"up", "mul"})
    assert found.readers == {"x": (0,)}
