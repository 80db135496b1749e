"""What every mesh axis does to the operators of a body, and where its parameters lie between uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.ir.analysis.loops import Loops
from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.pinned import Words
from meshwright.ir.names.words import name_of
from meshwright.ir.same import Same
from meshwright.ir.sharding.adjoint import Choice, Pass, Split, Strategy
from meshwright.ir.sharding.layouts import Uneven, Zigzag
from meshwright.ir.sharding.mesh import Mesh, MeshAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one axis does in some operators, the same in all of them."""

    axis: str
    size: int
    named: str
    """What people would call the use of the axis in all of the body."""
    what: str
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where parameters, their gradients and the optimizer's state lie, the same for so many parameters."""

    parameters: str
    gradients: str
    optimizer: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyUse:
    """A body under one plan: the uses of all axes of its mesh."""

    plans: tuple[str, ...]
    """Plans that say the same."""
    module: str
    mesh: str
    calls: int
    """How often the model runs it so."""
    operators: int
    uses: tuple[Use, ...]
    stored: tuple[Stored, ...]
    recomputed: int
    """Values that are computed again in the backward pass."""


def placements_of(decisions: Decisions, fold: Fold) -> tuple[BodyUse, ...]:
    """The uses of every body that a plan has; plans that say the same are one."""
    calls, meshes, loops = Counter[str](), dict[str, Mesh](), loops_of(Same(fold))
    names = [call.body.name for call in fold.calls()]
    for index, stage in enumerate(decisions.stages):
        for plan in decisions.plans_for(index, names[stage.first : stage.last]):
            calls[plan.name] += 1
            meshes[plan.name] = stage.mesh
    found: dict[tuple[object, ...], list[BodyPlan]] = {}
    for plan in decisions.plans:
        if plan.name in meshes:
            mesh = meshes[plan.name]
            key = plan.body, str(mesh), plan.strategies, plan.storage, plan.recompute
            found.setdefault(key, []).append(plan)
    made = []
    for plans in found.values():
        first = plans[0]
        body, mesh = fold.body[first.body], meshes[first.name]
        made.append(
            BodyUse(
                plans=tuple(plan.name for plan in plans),
                module=(body.module_class or body.name).rpartition(".")[2],
                mesh=str(mesh),
                calls=sum(calls[plan.name] for plan in plans),
                operators=len(body.graph.ops),
                uses=tuple(
                    use
                    for axis in mesh.axes
                    if axis.size > 1
                    for use in _uses(first, body.graph, loops[first.body], mesh, axis)
                ),
                stored=tuple(_stored(first)),
                recomputed=len(first.recompute),
            )
        )
    return tuple(made)


def _uses(plan: BodyPlan, graph: Graph, found: Loops, mesh: Mesh, axis: MeshAxis) -> Iterator[Use]:
    """The uses of one axis, that of most operators first."""
    words, chosen, by_use = Words(graph, found), dict(plan.strategies), dict[str, list[str]]()
    named = name_of(plan, graph, found, axis.name)
    for op in graph.ops:
        strategy = chosen.get(op.name, Strategy())
        cuts = [loop for name, loop in words.by_axis(op, "split", strategy, mesh) if name == axis.name]
        said = op.name if op.name == op.kind else f"{op.name} ({op.kind})"
        by_use.setdefault(in_words(strategy.of(axis.name), cuts), []).append(said)
    for what, operators in sorted(by_use.items(), key=lambda item: (-len(item[1]), item[0])):
        yield Use(axis=axis.name, size=axis.size, named=named, what=what, operators=tuple(operators))


def in_words(choice: Choice, loops: Sequence[str]) -> str:
    """What an axis does in an operator, where it cuts these loops."""
    if isinstance(choice, Split):
        cut = " and ".join(dict.fromkeys(loops)) or str(choice)
        if isinstance(choice.layout, Zigzag):
            return f"cuts {cut}, zigzag"
        return f"cuts {cut}, in unequal parts" if isinstance(choice.layout, Uneven) else f"cuts {cut}"
    if isinstance(choice, Pass):
        return "lets partial sums through"
    return "nothing; gradients pass as partial sums" if choice.grad_partial else "nothing: every rank does the same"


def _stored(plan: BodyPlan) -> Iterator[Stored]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in plan.storage:
        found.setdefault((str(one.params), str(one.grads), str(one.optimizer)), []).append(one.path)
    for (parameters, gradients, optimizer), paths in found.items():
        yield Stored(parameters=parameters, gradients=gradients, optimizer=optimizer, paths=tuple(paths))
