"""What is kept for the backward pass and what runs again, and what meets at a hub: on bodies of five operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost_models.ledger.ledger import Phase, streaming
from meshwright.ir.graph.fold import Body, Fold, FromInput, FromPrevious, Segment
from meshwright.ir.graph.graph import Graph
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import State
from meshwright.planner.block.build import build
from meshwright.planner.block.plan import Block
from meshwright.planner.block.space import Space
from tests.build import Builder
from tests.planner.block.settings import terms

MESH = Mesh.parse("a=2")


def once(graph: Graph) -> Fold:
    """A model of this body alone."""
    entering = tuple((item, graph.types[item.value]) for item in graph.inputs)
    sources = tuple(FromInput(item.value) for item in graph.inputs)
    segment = Segment(("block",), ("layers.0",), sources, (sources,))
    return Fold((Body("block", graph),), (segment,), entering, (FromPrevious(0),))


def whole(block: Block) -> tuple[int, ...]:
    """The choice in which every rank has everything."""
    found = []
    for at in range(len(block.problem.variables)):
        if at < len(block.options):
            own = block.options[at]
            states = [[own.state(value, option) for value in own.states] for option in range(len(own))]
        else:
            states = [[state] for state in block.hubs[at - len(block.options)].states]
        found.append(next(n for n, each in enumerate(states) if all(s == State.replicated(len(s.dims)) for s in each)))
    return tuple(found)


# What is kept --------------------------------------------------------------------------------------------------------


def residual(*, frozen: bool = False) -> Graph:
    """Of 2048 bytes for x, two, sum and end, and 4096 for one and act between."""
    g = Builder()
    x = g.input((4, 8, 16), labels=("b", "s", ""), requires_grad=True)
    one = g.op("linear", x, g.param("one.weight", (32, 16)), name="one")
    act = g.op("silu", one, name="act")
    two = g.op("linear", act, g.param("two.weight", (16, 32), requires_grad=not frozen), name="two")
    total = g.op("add", x, two, name="sum")
    g.output(g.op("silu", total, name="end"))
    return g.graph()


NARROW, WIDE = 2048, 4096


@pytest.mark.parametrize("joined", [False, True])
def test_what_is_computed_again_is_not_kept(joined: bool) -> None:
    """A product's derivative reads what comes in, that of an activation too, a sum's nothing. Whatever is not kept runs
    again where one of them reads it, and so does what it is made of, as far as that is not kept either."""
    mesh, every = MESH, ("one", "act", "two", "sum", "end")
    cases: list[tuple[tuple[str, ...], int, set[str]]] = [
        ((), 2 * NARROW + 2 * WIDE, set()),
        (("one",), 2 * NARROW + WIDE, {"one"}),
        (("act",), 2 * NARROW + WIDE, {"act"}),
        (("one", "act"), 2 * NARROW, {"one", "act"}),
        (("two",), 2 * NARROW + 2 * WIDE, set()),
        (("sum",), 2 * NARROW + 2 * WIDE, {"sum"}),
        (("two", "sum"), NARROW + 2 * WIDE, {"two", "sum"}),
        (("end",), 2 * NARROW + 2 * WIDE, set()),
        (every, NARROW, {"one", "act", "two", "sum"}),
    ]
    for recompute, kept, again in cases[4::2] if joined else cases:
        block = build(
            once(residual()),
            "block",
            mesh,
            terms(mesh, batch=4, seq=8),
            Space(zero=0, joined=joined, recompute=recompute),
        )
        chosen = whole(block)
        saved = sum(float(own[state]) for own, state in zip(block.saved, chosen, strict=True))
        redone = {
            op.name
            for number, group in enumerate(block.parts.groups)
            for op in group.ops
            if block.times[number][chosen[number]].recompute_s > 0
        }
        assert (recompute, saved) == (recompute, kept)
        assert again == redone if not joined else again <= redone


# What moves again ----------------------------------------------------------------------------------------------------


def dearer(one: Block, other: Block) -> set[str]:
    """The pairs that cost more in the other problem."""
    names = [variable.name for variable in one.problem.variables]
    both = zip(one.problem.pairs, other.problem.pairs, strict=True)
    return {f"{names[a.first]}, {names[a.second]}" for a, b in both if (b.costs > a.costs * (1 + 1e-9)).any()}


def test_what_is_made_again_travels_again() -> None:
    """Where the backward pass reads it: for a derivative, or for what runs again itself."""
    setting = terms(MESH, batch=4, seq=8)
    cases: list[tuple[bool, tuple[str, ...], set[str]]] = [
        (False, ("act",), {"act, two"}),
        (True, ("act",), set()),  # of a product with a frozen weight nobody needs what comes in
        (True, ("act", "two", "sum"), {"act, two", "two, sum", "sum, end"}),
        (False, ("one",), {"one, act"}),
        (False, ("two",), set()),  # a sum's derivative reads nothing
        (False, ("two", "sum"), {"two, sum", "sum, end"}),
        (False, ("end",), set()),
    ]
    made = [once(residual(frozen=frozen)) for frozen in (False, True)]
    plain = [build(own, "block", MESH, setting, Space(zero=0, joined=False)) for own in made]
    for frozen, recompute, again in cases:
        space = Space(zero=0, joined=False, recompute=recompute)
        blocks = [plain[frozen], build(made[frozen], "block", MESH, setting, space)]
        assert (recompute, dearer(*blocks)) == (recompute, again)
        if recompute != ("act",) or frozen:
            continue
        # As much more as the same moves take in the backward pass.
        first, second = (one.name for one in blocks[0].problem.variables[1:3])
        assert (first, second) == ("act", "two")
        (own, more) = (next(p for p in one.problem.pairs if (p.first, p.second) == (1, 2)) for one in blocks)
        act, two = blocks[0].options[1:3]
        there, here = ([one.state("act", n).value for n in range(len(one))] for one in (act, two))
        moved = blocks[0].moves.seconds(WIDE, there, here, backward=True)
        assert (more.costs - own.costs).ravel().tolist() == pytest.approx(moved.ravel().tolist(), abs=1e-15)


def test_what_was_gathered_and_let_go_is_gathered_again() -> None:
    """By stacks that let it go, and only where the backward pass reads it as its reader has it: a sum reads nothing,
    unless it runs again itself. Of what is made again all moves are repeated anyhow."""
    setting = terms(MESH, stack="megatron", batch=4, seq=8)
    assert setting.lowering.regathers
    kept = replace(setting, lowering=replace(setting.lowering, regathers=False))
    cases: list[tuple[bool, tuple[str, ...], set[str]]] = [
        (False, (), {"hub x, one", "one, act", "act, two", "sum, end"}),
        (True, (), {"hub x, one", "one, act", "sum, end"}),
        (False, ("act",), {"hub x, one", "one, act", "sum, end"}),
        (False, ("sum",), {"hub x, one", "hub x, sum", "one, act", "act, two", "two, sum"}),
    ]
    for frozen, recompute, again in cases:
        space = Space(zero=0, joined=False, recompute=recompute)
        blocks = [build(once(residual(frozen=frozen)), "block", MESH, own, space) for own in (kept, setting)]
        found = {" , ".join(sorted(pair.split(", "))) for pair in dearer(*blocks)}
        assert (recompute, found) == (recompute, {" , ".join(sorted(pair.split(", "))) for pair in again})


# What meets at a hub -------------------------------------------------------------------------------------------------


def read_by(*readers: str, trained: bool = True, handed_on: bool = False) -> Graph:
    """A value that these read; `handed_on`: made here and an output too."""
    g = Builder()
    value = g.input((64, 128, 256), labels=("b", "s", ""), dtype="bf16", requires_grad=trained)
    if handed_on:
        value = g.op("linear", value, g.param("m.weight", (256, 256), dtype="bf16"), name="m")
    made = []
    for number, kind in enumerate(readers):
        name = f"r{number}"
        if kind == "linear":
            made.append(g.op("linear", value, g.param(f"{name}.weight", (256, 256), dtype="bf16"), name=name))
        elif kind == "square":
            made.append(g.op("mul", value, value, name=name))
        else:
            made.append(g.op(kind.strip("!"), value, name=name, no_grad=kind.endswith("!")))
    g.output(*([value] if handed_on else []), *made)
    return g.graph()


@pytest.mark.parametrize("stack", ["torch", "megatron"])
def test_gradients_of_several_readers_are_added(stack: str) -> None:
    """In an eager stack a sum reads all and writes one; fused, it spares a read and a write, and products that are
    joined have one gradient together. One gradient needs no sum."""
    setting = terms(MESH, stack=stack, batch=64, seq=128)
    nbytes = 64 * 128 * 256 * 2
    cases: list[tuple[Any, int, int]] = [
        # gradients in an eager stack, and where products are joined
        (read_by("linear"), 1, 1),
        (read_by("linear", "linear"), 2, 1),
        (read_by("linear", "silu"), 2, 2),
        (read_by("silu", "sigmoid"), 2, 2),
        (read_by("linear", "linear", "silu"), 3, 2),
        (read_by("linear", "silu!"), 1, 1),
        (read_by("square"), 1, 1),
        (read_by("square", "silu"), 2, 2),
        (read_by("linear", "silu", trained=False), 0, 0),
        (read_by("linear", handed_on=True), 2, 2),
        (read_by("linear", "linear", handed_on=True), 3, 2),
        (read_by("silu", "linear", handed_on=True), 3, 3),
    ]
    for graph, eager, joined in cases:
        block = build(once(graph), "block", MESH, setting, Space(zero=0))
        value = "m" if "m" in graph.types else "x"
        costs = block.problem.variables[block.variable_of(value)].costs
        states = block.hubs[block.hub_of[value]].states
        number = eager if stack == "torch" else joined
        passes = 0 if number < 2 else number + 1 if stack == "torch" else number - 1
        for words, share in (("[-, -, -]", 1), ("[a, -, -]", 2)):
            phase = Phase()
            phase.kernels[streaming(passes * nbytes / share, setting.workload)] = 1
            expected = setting.cost(phase, MESH).device_s if passes else 0.0
            assert costs[states.index(State.parse(words))] == pytest.approx(expected)


def test_what_two_axes_cut_together_must_divide() -> None:
    """A sequence in four parts; in a zigzag each axis takes twice as many."""
    mesh = Mesh.parse("a=2 b=2")
    for seq, zigzag, together in (
        (4, (), True),
        (6, (), False),
        (8, ("a",), True),
        (4, ("a",), False),
        (16, ("a", "b"), True),
        (8, ("a", "b"), False),
    ):
        g = Builder()
        x = g.input((1, seq, 3), labels=("b", "s", ""), requires_grad=True)
        g.output(g.op("silu", g.op("silu", x)))
        block = build(once(g.graph()), "block", mesh, terms(mesh, batch=1, seq=seq), Space(zigzag=zigzag))
        cuts = {len(state.dims[1]) for hub in block.hubs for state in hub.states}
        assert (seq, zigzag, 2 in cuts) == (seq, zigzag, together)
