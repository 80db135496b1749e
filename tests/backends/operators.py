"""Operators as dialects print them, on the shards of every rank, beside the reference's local kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from meshwright.backends.printing import Dialect, items_of
from meshwright.backends.torch_.verify.interpreted.kernels import KERNELS
from meshwright.backends.torch_.verify.interpreted.rules import single
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.errors import EmissionPrinted, IllegalStrategy, IndivisibleExtent, SectionsMismatch
from meshwright.ir.graph.graph import Type
from meshwright.ir.interp.bodies import LocalCall, factor_spans, shard
from meshwright.ir.program.program import Kernels
from meshwright.ir.program.routes import Routed, routed
from meshwright.ir.rules import Signature, infer
from meshwright.ir.sharding.adjoint import Strategy, apply
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.reshard import MOVES
from tests.samples import tensors


@dataclass(frozen=True)
class Case:
    """An expression, on one rank: where that is, what it is given, and what comes out."""

    text: str
    about: str
    mesh: Mesh
    rank: int
    operands: tuple[Tensor, ...]
    wanted: tuple[Tensor, ...]

    @property
    def here(self) -> dict[str, int]:
        return dict(self.mesh.coordinates(self.rank))


def cases(
    signature: Signature, ways: Iterable[tuple[Mesh, Strategy]], dialect: Callable[[Mesh], Dialect]
) -> Iterator[Case]:
    """Every strategy of an operator that is printed whole, on every rank."""
    graph = single(signature)
    wide = tuple(one.double() if one.is_floating_point() else one for one in tensors(signature))
    for mesh, strategy in ways:
        try:
            states = apply(infer(signature), signature.operands, strategy, mesh).operands
            plan = BodyPlan("op", "op", (("y0", strategy),), tuple((f"x{n}", one) for n, one in enumerate(states)))
            way = routed(graph, plan, mesh, MOVES)
            text = printed_of(way, dialect(mesh)) if len(way.graph.ops) == 1 else ""  # parts have samples of their own
        except (IllegalStrategy, IndivisibleExtent, SectionsMismatch, EmissionPrinted):
            continue
        for rank in range(mesh.size if text else 0):
            call = local_call(way, strategy, wide, rank)
            about = f"{text} under {strategy}"
            yield Case(text, about, mesh, rank, tuple(call.operands), tuple(KERNELS[signature.kind](call)))


def printed_of(way: Routed, dialect: Dialect) -> str:
    """The expression of a body of one operator; empty for a ring, which sends, and runs elsewhere."""
    walked = items_of(way, dialect, frozenset(), {}, Kernels())
    (item,) = (one for one in walked.items if not one.moves)
    for slot in range(len(item.reads)):
        assert item.reads[slot] == f"x{slot}"
    return "" if item.text.lower().startswith("ring") else item.text.replace("%", "x")


def local_call(way: Routed, strategy: Strategy, operands: tuple[Tensor, ...], rank: int) -> LocalCall:
    """What a rank's kernel is told."""
    (op,), mesh = way.graph.ops, way.mesh
    signature = way.facts[op.name].signature
    given = zip(operands, signature.operands, way.wanted[op.name], strict=True)
    made = zip(way.graph.result_types(op), way.made(op.name), strict=True)
    return LocalCall(
        op.kind,
        tuple(shard(TorchKernels(), x, type_, state.value, mesh)[rank] for x, type_, state in given),
        dict(op.attrs),
        tuple(Type(state.value.local_shape(type_.shape, mesh, rank), type_.dtype) for type_, state in made),
        factor_spans(signature, strategy, mesh, rank),
        {one.name: one.size for one in way.facts[op.name].rule.factors},
    )
