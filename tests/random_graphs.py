"""Random small graphs with random legal plans: fan-out, biases, partial sums, hubs, layouts, recomputation.

Everything is drawn from one `random.Random`, so a seed is a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from meshwright.backends.torch_.verify.interpreted.compare import CPU
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import IllegalStrategy, IndivisibleExtent, SectionsMismatch
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.program.lower_body import lower_body
from meshwright.ir.rules import rule_of
from meshwright.ir.sharding.adjoint import Pass, Split, Strategy, apply, choices
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Layout, Nested, Sections, Uneven
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Partial, Shard, State
from tests.build import Builder

MESHES = ("a=2", "a=4", "a=2 b=2", "a=2 b=4", "a=2 b=2 c=2")
SHAPE = (4, 8, 8)


class RandomGraph:
    """Grows a graph operator by operator over values of rank 2 to 4 whose extents are 4 or 8."""

    def __init__(self, random: Random) -> None:
        self.random, self.g = random, Builder()
        self.pool = [
            self.g.input(SHAPE, name=f"x{index}", dtype="f64", requires_grad=random.random() < 0.8)
            for index in range(random.randint(1, 2))
        ]
        self.parameters = 0

    def shape(self, value: str) -> tuple[int, ...]:
        return self.g.types[value].shape

    def pick(self, accept: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> str | None:
        found = [value for value in self.pool if accept(self.shape(value))]
        return self.random.choice(found) if found else None

    def param(self, *shape: int) -> str:
        self.parameters += 1
        return self.g.param(f"w{self.parameters}", shape, dtype="f64", requires_grad=self.random.random() < 0.85)

    def grow(self) -> None:
        common = [self.linear, self.binary] * 2
        rare = [
            self.unary,
            self.norm,
            self.view,
            self.permute,
            self.matmul,
            self.reduce,
            self.split,
            self.cat,
            self.scalar,
        ]
        step = self.random.choice(common + rare)
        self.pool += step()

    def linear(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 1)
        if x is None:
            return []
        n = self.random.choice((4, 8))
        operands = [x, self.param(n, self.shape(x)[-1])]
        if self.random.random() < 0.5:
            operands.append(self.param(n))
        return [self.g.op("linear", *operands)]

    def binary(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 0)
        if x is None:
            return []
        shape = self.shape(x)
        other = self.param(shape[-1]) if self.random.random() < 0.3 else self.pick(lambda s: s == shape)
        assert other is not None
        pair = (x, other) if self.random.random() < 0.5 else (other, x)
        return [self.g.op(self.random.choice(("add", "sub", "mul")), *pair)]

    def scalar(self) -> list[str]:
        x = self.pick()
        assert x is not None
        return [self.g.op(self.random.choice(("add", "mul")), x, scalar=0.5)]

    def unary(self) -> list[str]:
        x = self.pick()
        assert x is not None
        return [self.g.op(self.random.choice(("silu", "tanh", "neg", "sigmoid")), x)]

    def norm(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 1)
        if x is None:
            return []
        if self.random.random() < 0.5:
            return [self.g.op("softmax", x, dim=-1)]
        return [self.g.op("rms_norm", x, self.param(self.shape(x)[-1]), eps=1e-3)]

    def view(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) == 3 and shape[-1] == 8)
        if x is None:
            return []
        first, second, _ = self.shape(x)
        shape = self.random.choice(((first, second, 2, 4), (first, second, 4, 2), (first * second, 8)))
        return [self.g.op("view", x, shape=shape)]

    def permute(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 1)
        if x is None:
            return []
        perm = list(range(len(self.shape(x))))
        self.random.shuffle(perm)
        return [self.g.op("permute", x, perm=tuple(perm))]

    def matmul(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) == 3)
        if x is None:
            return []
        b, _, k = self.shape(x)
        y = self.pick(lambda shape: len(shape) == 3 and shape[0] == b and shape[1] == k)
        return [] if y is None else [self.g.op("matmul", x, y)]

    def reduce(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 1)
        if x is None:
            return []
        return [self.g.op(self.random.choice(("sum", "mean")), x, dim=-1, keepdim=self.random.random() < 0.5)]

    def split(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 0 and shape[-1] == 8)
        return [] if x is None else list(self.g.many("split", x, dim=-1, sizes=(4, 4)))

    def cat(self) -> list[str]:
        x = self.pick(lambda shape: len(shape) > 0 and shape[-1] == 4)
        if x is None:
            return []
        y = self.pick(lambda shape: shape == self.shape(x))
        assert y is not None
        return [self.g.op("cat", x, y, dim=-1)]


def random_graph(random: Random) -> Graph:
    grown = RandomGraph(random)
    wanted = random.randint(2, 12)
    while len(grown.g.ops) < wanted:
        grown.grow()
    read = {value for op in grown.g.ops for value in op.operands}
    made = [value for op in grown.g.ops for value in op.results]
    grown.g.output(*(value for value in made if value not in read or random.random() < 0.1))
    return grown.g.graph()


def random_strategy(random: Random, graph: Graph, op: Op, mesh: Mesh) -> Strategy:
    """Axis by axis a random choice that the rule allows beside the earlier ones; partial sums are favoured."""
    rule = rule_of(op, graph.types)
    strategy = Strategy()
    for axis in random.sample(mesh.names, len(mesh.names)):
        found = list(choices(rule))
        found += [choice for choice in found if isinstance(choice, Pass) or choice == Split(("k",))]
        choice = random.choice(found)
        if isinstance(choice, Split) and random.random() < 0.3:
            sizes = {factor.name: factor.size for factor in rule.factors}
            choice = Split(choice.factors, random_layout(random, sizes[choice.factors[0]], mesh.axis(axis).size))
        tried = Strategy((*strategy.choices, (axis, choice)))
        try:
            apply(rule, graph.operand_types(op), tried, mesh)
        except REFUSED:
            continue
        strategy = tried
    return strategy


REFUSED = (IllegalStrategy, IndivisibleExtent, SectionsMismatch)


def random_layout(random: Random, extent: int, parts: int) -> Layout:
    """One of the layouts that are not plain; it may not fit beside what else is chosen."""
    if extent < 2 * parts:
        return CONTIGUOUS
    uneven = [1] * (parts - 1)
    half = extent // 2
    return random.choice(
        (ZIGZAG, Sections((half, extent - half)), Nested(2), Nested(2, ZIGZAG), Uneven((extent - len(uneven), *uneven)))
    )


def random_state(random: Random, graph: Graph, value: str, mesh: Mesh) -> State:
    """Any state of a value: each axis cuts a dimension, holds copies, or holds partial values or gradients."""
    shape = graph.types[value].shape
    state = State.replicated(len(shape))
    for axis in mesh.names:
        roll = random.random()
        tried = state
        if roll < 0.5 and shape:
            dim = random.randrange(len(shape))
            plain = state.dims[dim] or random.random() < 0.7
            layout = CONTIGUOUS if plain else random_layout(random, shape[dim], mesh.axis(axis).size)
            dims = tuple((*d, Shard(axis, layout)) if index == dim else d for index, d in enumerate(state.dims))
            tried = State(dims, state.partial, state.grad_partial)
        elif roll < 0.65:
            tried = State(state.dims, (*state.partial, Partial(axis)), state.grad_partial)
        elif roll < 0.8 and value in graph.differentiable:
            tried = State(state.dims, state.partial, (*state.grad_partial, axis))
        try:
            tried.value.check(shape, mesh, value)
        except REFUSED:
            continue
        state = tried
    return state


def random_plan(random: Random, graph: Graph, mesh: Mesh) -> BodyPlan:
    """Random strategies, states for the ends, hubs for some values, recomputation of some operators."""
    strategies = tuple((op.name, random_strategy(random, graph, op, mesh)) for op in graph.ops)
    ends = [item.value for item in graph.inputs] + list(graph.outputs)
    hubs = [value for value in graph.types if value not in graph.param and random.random() < 0.25]
    states = {value: random_state(random, graph, value, mesh) for value in dict.fromkeys([*ends, *hubs])}
    again = tuple(value for value in graph.types if value not in graph.param and random.random() < 0.2)
    plan = BodyPlan("body", "body", strategies, tuple(states.items()), recompute=again)
    lower_body(graph, plan, mesh, CPU)
    return plan
