"""Hand-made corruptions of plans, targets and programs: each breaks one law and is refused by a class of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meshwright.ir.decisions.decisions import BodyPlan, Decisions, Schedule, verify_decisions
from meshwright.ir.decisions.offload import Offload
from meshwright.ir.errors import (
    ActionMismatch,
    ActionSyntax,
    AttentionNotExpressible,
    BodyUnplanned,
    BoundaryMismatch,
    CallsRepeated,
    CallsUncovered,
    CapabilityUnknown,
    GradientMixed,
    GradientTwice,
    GradientUnused,
    LayoutNotExpressible,
    MeshUnfilled,
    MeshwrightError,
    MicrobatchesNotExpressible,
    MissingGradient,
    NameRedefined,
    NameUnknown,
    NameUntyped,
    OffloadNotExpressible,
    OperatorUncovered,
    PartialAcross,
    PlannedOpUnknown,
    PlannedValueUnknown,
    PlanRepeated,
    PlanUnknown,
    RanksOverlap,
    RecomputeNotExpressible,
    ScheduleImpossible,
    ScheduleNotExpressible,
    ScheduleUnknown,
    StageEmpty,
    StorageConflict,
    StorageNotExpressible,
    StoredParamUnknown,
    TieMissing,
    TransferMissing,
    WaitCircle,
    WorkForeign,
    WorkMiscounted,
    WrongAddition,
    WrongDerivative,
    WrongKept,
    WrongOperand,
    WrongPlacement,
    WrongRing,
    WrongRun,
    WrongStep,
    WrongTransfer,
    WrongType,
    WrongUpdate,
)
from meshwright.ir.graph.graph import Type
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import (
    Action,
    Add,
    BodyProgram,
    Compute,
    Gradient,
    Kept,
    Local,
    Move,
    Program,
    Ring,
    Statement,
    Tie,
    results_of,
)
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement, State
from meshwright.ir.sharding.reshard import Step
from meshwright.ir.target.capabilities import ANY, Line
from meshwright.ir.verify.meaning import verify_body_meaning, verify_meaning
from meshwright.ir.verify.programs import verify_body, verify_program
from tests.build import Builder
from tests.llama_block import model

FOLD = model(tied=True)
PLAN = template(
    FOLD, Degrees(dp=2, tp=2, pp=2, sequence_parallel=True, zero=3, schedule="1f1b", microbatches=2, recompute="none")
)
PROGRAM = lower(FOLD, PLAN)
BLOCK = PROGRAM.body("block")
RING = lower(FOLD, template(FOLD, Degrees(cp=4, context="ring"))).body("block")


def verify(program: Program) -> None:
    verify_program(program)
    verify_meaning(program, FOLD)


def test_the_originals_are_right() -> None:
    verify_decisions(PLAN, FOLD)
    ANY.check(PLAN, FOLD)
    verify(PROGRAM)
    verify_body(RING)


# Decisions -----------------------------------------------------------------------------------------------------------


def with_stage(index: int, **changes: Any) -> Decisions:
    stages = list(PLAN.stages)
    stages[index] = replace(stages[index], **changes)
    return replace(PLAN, stages=tuple(stages))


def with_block_plan(**changes: Any) -> Decisions:
    plans = tuple(replace(plan, **changes) if plan.name == "block" else plan for plan in PLAN.plans)
    return replace(PLAN, plans=plans)


def custom(*actions: tuple[str, ...]) -> Program:
    schedule = Schedule("custom", 2, actions or (("0F0", "0F1", "0B0", "0B1"),) * 2)
    return lower(FOLD, replace(PLAN, schedule=schedule))


IN_PLANS: dict[type[MeshwrightError], Callable[[], object]] = {
    PlanRepeated: lambda: replace(PLAN, plans=(*PLAN.plans, PLAN.plans[0])),
    PlanUnknown: lambda: with_stage(0, plans=("embed", "blok")),
    MeshUnfilled: lambda: with_stage(0, ranks=(0, 1, 2)),
    RanksOverlap: lambda: with_stage(1, ranks=(3, 4, 5, 6)),
    ScheduleImpossible: lambda: replace(PLAN, schedule=Schedule("1f1b", 0)),
    CallsUncovered: lambda: verify_decisions(with_stage(1, first=4), FOLD),
    CallsRepeated: lambda: verify_decisions(with_stage(1, first=2), FOLD),
    StageEmpty: lambda: verify_decisions(with_stage(1, last=3), FOLD),
    BodyUnplanned: lambda: verify_decisions(with_stage(0, plans=("embed",)), FOLD),
    PlannedOpUnknown: lambda: verify_decisions(with_block_plan(strategies=(("query", Strategy.parse("tp=n")),)), FOLD),
    PlannedValueUnknown: lambda: verify_decisions(with_block_plan(states=(("y", State.replicated(3)),)), FOLD),
    StoredParamUnknown: lambda: verify_decisions(
        with_block_plan(storage=(replace(PLAN.plan["block"].storage[0], path="norm.weight"),)), FOLD
    ),
    ScheduleUnknown: lambda: lower(FOLD, replace(PLAN, schedule=Schedule("2f2b", 2))),
}


# Targets -------------------------------------------------------------------------------------------------------------


def refused(degrees: Degrees, plan: Callable[[Decisions], Decisions] = lambda same: same, **lines: Any) -> None:
    """Ask a target that can do everything but this."""
    replace(ANY, **lines).check(plan(template(FOLD, degrees)), FOLD)


IN_TARGETS: dict[type[MeshwrightError], Callable[[], object]] = {
    CapabilityUnknown: lambda: replace(ANY, layouts=(Line("diagonal", "made up"),)),
    LayoutNotExpressible: lambda: refused(Degrees(cp=2, zigzag=True), layouts=(Line("contiguous", "test"),)),
    AttentionNotExpressible: lambda: refused(Degrees(cp=2, context="ring"), attention=(Line("ulysses", "test"),)),
    StorageNotExpressible: lambda: refused(Degrees(dp=2, zero=3), storage=(Line("optimizer", "test"),)),
    RecomputeNotExpressible: lambda: refused(Degrees(dp=2, recompute="full"), recompute=(Line("none", "test"),)),
    ScheduleNotExpressible: lambda: refused(
        Degrees(pp=2, microbatches=2), schedules=tuple(line for line in ANY.schedules if line.name != "gpipe")
    ),
    MicrobatchesNotExpressible: lambda: refused(
        Degrees(pp=2, microbatches=3), schedules=(replace(ANY.schedules[0], multiple_of_groups=True),)
    ),
    OffloadNotExpressible: lambda: refused(
        Degrees(dp=2), lambda plan: replace(plan, offload=Offload(optimizer=True)), offload=()
    ),
}


# Programs ------------------------------------------------------------------------------------------------------------


def with_body(changed: BodyProgram) -> Program:
    return replace(PROGRAM, bodies=tuple(changed if body.name == changed.name else body for body in PROGRAM.bodies))


def with_block(**changes: Any) -> None:
    verify(with_body(replace(BLOCK, **changes)))


def find(statements: tuple[Statement, ...], test: Callable[[Statement], bool]) -> int:
    return next(index for index, statement in enumerate(statements) if test(statement))


def edited(
    statements: tuple[Statement, ...], test: Callable[[Statement], bool], edit: Callable[[Any], tuple[Statement, ...]]
) -> tuple[Statement, ...]:
    """The list with the first statement that passes the test replaced."""
    at = find(statements, test)
    return (*statements[:at], *edit(statements[at]), *statements[at + 1 :])


def of(op: str) -> Callable[[Statement], bool]:
    return lambda statement: getattr(statement, "op", None) == op


def gathers(statement: Statement) -> bool:
    return isinstance(statement, Move) and statement.step.kind == "all_gather" and statement.reason == "value"


def adds(statement: Statement) -> bool:
    return isinstance(statement, Add)


def forward(test: Callable[[Statement], bool], edit: Callable[[Any], tuple[Statement, ...]], **changes: Any) -> None:
    with_block(forward=edited(BLOCK.forward, test, edit), **changes)


def backward(test: Callable[[Statement], bool], edit: Callable[[Any], tuple[Statement, ...]], **changes: Any) -> None:
    with_block(backward=edited(BLOCK.backward, test, edit), **changes)


def placed(name: str, placement: str) -> dict[str, Local]:
    return {**BLOCK.locals, name: replace(BLOCK.locals[name], placement=Placement.parse(placement))}


def gradient_of(op: str, slot: int = 0) -> str:
    statement = BLOCK.backward[find(BLOCK.backward, of(op))]
    assert isinstance(statement, Gradient)
    return statement.results[slot]


def without_collective() -> None:
    """The gather before q, k and v is dropped, and q reads what was to be gathered."""
    move = BLOCK.forward[find(BLOCK.forward, gathers)]
    assert isinstance(move, Move)
    changed = edited(BLOCK.forward, of("q"), lambda q: (replace(q, operands=(move.operand, *q.operands[1:])),))
    with_block(forward=changed)


def frozen() -> None:
    """A weight loses its gradient everywhere, as if it were frozen."""
    slots = tuple(
        replace(slot, grad=None, synced=None, updated=None, published=None) if slot.path == "q.weight" else slot
        for slot in BLOCK.params
    )
    lost = next(slot.grad for slot in BLOCK.params if slot.path == "q.weight")
    kept = edited(BLOCK.backward, of("q"), lambda q: (replace(q, wanted=(0,), results=q.results[:1]),))
    with_block(params=slots, backward=tuple(s for s in kept if lost not in results_of(s)))


def renamed_kind(kind: str, *lists: str) -> None:
    """The activation becomes another function with the same rule."""

    def edit(statement: Any) -> tuple[Statement, ...]:
        return (replace(statement, signature=replace(statement.signature, kind=kind)),)

    with_block(**{name: edited(getattr(BLOCK, name), of("act"), edit) for name in lists})


def unringed(ring: Any) -> tuple[Statement, ...]:
    return (Compute(ring.signature, ring.strategy, ring.operands, ring.results, ring.op),)


def buffered() -> None:
    g = Builder()
    x, mean = g.input((4, 8), requires_grad=True), g.buffer("mean", (8,))
    g.output(g.op("add", x, mean))
    g.update("mean", mean, "mean")
    body = lower_body(g.graph(), BodyPlan("p", "b"), Mesh.parse("dp=2"), Lowering())
    verify_body_meaning(body, g.graph())
    verify_body_meaning(replace(body, updates=()), g.graph())


def with_hop(**changes: Any) -> None:
    verify(replace(PROGRAM, transfers=(replace(PROGRAM.transfers[0], **changes),)))


def summed_later() -> None:
    program = lower(FOLD, template(FOLD, Degrees(dp=2, tp=2, pp=2, microbatches=2)))
    verify(program)
    hop, *others = program.transfers
    verify(replace(program, transfers=(replace(hop, waiting=("tp",)), *others)))


def with_actions(edit: Callable[[tuple[Action, ...]], tuple[Action, ...]]) -> None:
    (ranks, first), *others = PROGRAM.actions
    verify(replace(PROGRAM, actions=((ranks, edit(tuple(first))), *others)))


def without(*kinds: str) -> Callable[[tuple[Action, ...]], tuple[Action, ...]]:
    """The list without its first action of these kinds."""

    def edit(actions: tuple[Action, ...]) -> tuple[Action, ...]:
        at = next(index for index, action in enumerate(actions) if action.kind in kinds)
        return actions[:at] + actions[at + 1 :]

    return edit


def silent() -> Program:
    """Nothing crosses, and nobody sends."""
    actions = tuple((ranks, tuple(action for action in one if action.peer < 0)) for ranks, one in PROGRAM.actions)
    return replace(PROGRAM, transfers=(), actions=actions)


def with_run(**changes: Any) -> Program:
    stage = PROGRAM.stages[0]
    runs = (stage.runs[0], replace(stage.runs[1], **changes))
    return replace(PROGRAM, stages=(replace(stage, runs=runs), *PROGRAM.stages[1:]))


def with_slot(**changes: Any) -> None:
    slots = tuple(replace(slot, **changes) if slot.path == "q.weight" else slot for slot in BLOCK.params)
    with_block(params=slots)


WRONG_SCATTER = Step("reduce_scatter", ("tp",), 0)

IN_PROGRAMS: dict[type[MeshwrightError], Callable[[], object]] = {
    NameUnknown: lambda: forward(gathers, lambda move: ()),
    NameUntyped: lambda: with_block(locals={name: one for name, one in BLOCK.locals.items() if name != "q"}),
    NameRedefined: lambda: forward(of("q"), lambda q: (q, q)),
    WrongType: lambda: with_block(
        locals={**BLOCK.locals, "q": Local(Type((4, 16, 64), "f64"), BLOCK.locals["q"].placement)}
    ),
    WrongPlacement: without_collective,
    WrongStep: lambda: backward(
        lambda s: isinstance(s, Move) and s.step.kind == "reduce_scatter",
        lambda move: (replace(move, step=WRONG_SCATTER),),
    ),
    WrongAddition: lambda: backward(
        adds, lambda add: (replace(add, operands=(add.operands[0], BLOCK.output_grads[0])),)
    ),
    WrongRing: lambda: verify_body(
        replace(RING, forward=edited(RING.forward, lambda s: isinstance(s, Ring), unringed))
    ),
    WrongDerivative: lambda: renamed_kind("relu", "backward"),
    WrongOperand: lambda: renamed_kind("relu", "forward", "backward"),
    OperatorUncovered: lambda: forward(
        of("act"),
        lambda act: (act, replace(act, results=("again",))),
        locals={**BLOCK.locals, "again": BLOCK.locals["act"]},
    ),
    MissingGradient: frozen,
    GradientUnused: lambda: backward(adds, lambda add: (replace(add, operands=add.operands[1:]),)),
    GradientTwice: lambda: backward(adds, lambda add: (replace(add, operands=(*add.operands, add.operands[0])),)),
    GradientMixed: lambda: backward(of("prod"), lambda prod: (replace(prod, results=prod.results[::-1]),)),
    StorageConflict: lambda: with_slot(grads=Placement.parse("[dp.tp, -]")),
    WrongKept: lambda: with_block(kept=BLOCK.kept[1:]),
    WrongUpdate: buffered,
    WrongTransfer: lambda: with_hop(output=1),
    TransferMissing: lambda: verify(silent()),
    PartialAcross: lambda: with_hop(source=Placement.parse("[dp, -, -]+sum(tp)")),
    BoundaryMismatch: lambda: with_hop(target=Placement.replicated(3)),
    ActionMismatch: lambda: with_actions(without("send_F")),
    WorkMiscounted: lambda: with_actions(without("B")),
    WorkForeign: lambda: with_actions(lambda actions: (Action("F", 1, 0), *actions)),
    WaitCircle: lambda: with_actions(
        lambda actions: (next(a for a in actions if a.kind == "recv_B"), *without("recv_B")(actions))
    ),
    WrongRun: lambda: verify(with_run(programs=("embed",))),
    TieMissing: lambda: verify(replace(PROGRAM, ties=())),
}

IN_TEXTS: dict[type[MeshwrightError], Callable[[], object]] = {
    ActionSyntax: lambda: custom(("0F0", "F1")),
}

CORRUPTIONS = [*IN_PLANS.items(), *IN_TARGETS.items(), *IN_PROGRAMS.items(), *IN_TEXTS.items()]


def test_every_corruption_has_a_class_of_its_own() -> None:
    for kind, corrupt in CORRUPTIONS:
        with pytest.raises(kind) as caught:
            corrupt()
        assert type(caught.value) is kind


def test_the_classes_are_pairwise_distinct() -> None:
    assert len({kind for kind, _ in CORRUPTIONS}) == len(CORRUPTIONS) >= 18
    assert len({kind.code for kind, _ in CORRUPTIONS}) == len(CORRUPTIONS)


# The same classes, met in other places -------------------------------------------------------------------------------

OTHERS: dict[str, tuple[type[MeshwrightError], Callable[[], object]]] = {
    "a plan with two strategies for an operator": (
        PlanRepeated,
        lambda: BodyPlan("p", "b", (("q", Strategy.parse("tp=n")), ("q", Strategy.parse("tp=k")))),
    ),
    "recomputation of an unknown value": (
        PlannedValueUnknown,
        lambda: verify_decisions(with_block_plan(recompute=("y",)), FOLD),
    ),
    "stages that end too early": (CallsUncovered, lambda: verify_decisions(with_stage(1, last=5), FOLD)),
    "stages that end too late": (CallsUncovered, lambda: verify_decisions(with_stage(1, last=7), FOLD)),
    "a rank twice": (MeshUnfilled, lambda: with_stage(0, ranks=(0, 1, 2, 2))),
    "a mesh shared in another shape": (
        RanksOverlap,
        lambda: with_stage(1, ranks=PLAN.stages[0].ranks, mesh=Mesh.parse("dp=4")),
    ),
    "a library that executes what does not exist": (
        CapabilityUnknown,
        lambda: replace(ANY, moves=(Line("all_gather", "test", executes="gossip"),)),
    ),
    "zigzag in a state only": (
        LayoutNotExpressible,
        lambda: replace(ANY, layouts=(Line("contiguous", "test"),)).check(
            with_block_plan(strategies=(), states=(("x", State.parse("[-, tp:zigzag, -]")),)), FOLD
        ),
    ),
    "gradients stored by themselves": (
        StorageNotExpressible,
        lambda: refused(Degrees(dp=2, zero=2), storage=(Line("optimizer", "test"),)),
    ),
    "optimizer states stored by themselves": (
        StorageNotExpressible,
        lambda: refused(Degrees(dp=2, zero=1), storage=(Line("params", "test"),)),
    ),
    "ulysses": (
        AttentionNotExpressible,
        lambda: refused(Degrees(cp=2, context="ulysses"), attention=(Line("all_gather", "test"),)),
    ),
    "too few micro-batches": (
        MicrobatchesNotExpressible,
        lambda: refused(Degrees(pp=4), schedules=(replace(ANY.schedules[0], min_microbatches_per_group=1),)),
    ),
    "a step that does not apply": (
        WrongStep,
        lambda: forward(gathers, lambda move: (replace(move, step=replace(move.step, dim=0)),)),
    ),
    "a swapped placement": (WrongPlacement, lambda: with_block(locals=placed("prod", "[dp, tp, -]"))),
    "an input in another placement": (WrongPlacement, lambda: with_block(locals=placed("x", "[tp, dp, -]"))),
    "a dropped sum": (NameUnknown, lambda: backward(adds, lambda add: ())),
    "a dropped gradient": (NameUnknown, lambda: backward(of("act"), lambda act: ())),
    "a dropped reduction of a weight's gradient": (
        WrongPlacement,
        lambda: with_slot(grad=gradient_of("q", 1), synced=gradient_of("q", 1)),
    ),
    "another weight's gradient": (
        GradientMixed,
        lambda: with_slot(grad=next(slot.grad for slot in BLOCK.params if slot.path == "gate.weight")),
    ),
    "another weight's reduction": (
        GradientMixed,
        lambda: with_block(
            params=tuple(
                replace(slot, synced={"k.weight": v.synced}.get(slot.path, slot.synced))
                for v in BLOCK.params
                if v.path == "v.weight"
                for slot in BLOCK.params
            )
        ),
    ),
    "gradients stored elsewhere than planned": (
        WrongPlacement,
        lambda: with_slot(grads=Placement.parse("[tp, dp]")),
    ),
    "an optimizer elsewhere than planned": (WrongPlacement, lambda: with_slot(optimizer=Placement.parse("[tp, -]"))),
    "an operator differentiated twice": (
        GradientTwice,
        lambda: backward(
            of("act"),
            lambda act: (act, replace(act, results=("twice",))),
            locals={**BLOCK.locals, "twice": BLOCK.locals[gradient_of("act")]},
        ),
    ),
    "a gradient that stops at an input": (
        MissingGradient,
        lambda: verify_body_meaning(replace(BLOCK, input_grads=(None,)), FOLD.body["block"].graph),
    ),
    "an input left without its entry": (MissingGradient, lambda: with_block(input_grads=())),
    "a kept value of the wrong size": (
        WrongKept,
        lambda: with_block(kept=(Kept(BLOCK.kept[0].name, 1), *BLOCK.kept[1:])),
    ),
    "a kept value counted twice": (WrongKept, lambda: with_block(kept=(*BLOCK.kept, BLOCK.kept[0]))),
    "a recomputation of something else": (
        WrongDerivative,
        lambda: backward(
            lambda s: isinstance(s, Move) and s.result == "p.k.weight",
            lambda move: (replace(move, operand="p.v.weight!stored"),),
        ),
    ),
    "a parameter gathered from another one": (
        GradientMixed,
        lambda: with_block(
            forward=edited(
                BLOCK.forward,
                lambda s: isinstance(s, Move) and s.result == "p.k.weight",
                lambda move: (replace(move, operand="p.v.weight!stored"),),
            ),
            backward=edited(
                BLOCK.backward,
                lambda s: isinstance(s, Move) and s.result == "p.k.weight",
                lambda move: (replace(move, operand="p.v.weight!stored"),),
            ),
        ),
    ),
    "a transfer of another type": (WrongType, lambda: with_hop(type=Type((4, 16, 64), "f64"))),
    "a transfer twice": (WrongTransfer, lambda: verify(replace(PROGRAM, transfers=PROGRAM.transfers * 2))),
    "a gradient that is no sum at its reader": (BoundaryMismatch, summed_later),
    "a partial gradient between ranks that stand apart": (
        PartialAcross,
        lambda: with_hop(source=Placement.replicated(3), target=Placement.parse("[dp, -, -]"), waiting=("tp",)),
    ),
    "a transfer past the last stage": (WrongTransfer, lambda: with_hop(from_stage=1, to_stage=2)),
    "a transfer without gradient": (
        ActionMismatch,
        lambda: with_hop(differentiable=False),
    ),
    "a call left out": (CallsUncovered, lambda: verify_meaning(with_run(repeats=1), FOLD)),
    "a call run twice": (CallsRepeated, lambda: verify_meaning(with_run(repeats=3), FOLD)),
    "a micro-batch too many": (WorkForeign, lambda: with_actions(lambda actions: (Action("F", 0, 2), *actions))),
    "a forward twice": (WorkMiscounted, lambda: with_actions(lambda actions: (Action("F", 0, 0), *actions))),
    "no optimizer step": (WorkMiscounted, lambda: with_actions(without("step"))),
    "a message that nobody asked for": (
        ActionMismatch,
        lambda: with_actions(lambda actions: (*actions[:-2], Action("send_F", 0, 0, 1), *actions[-2:])),
    ),
    "a tie over too few holders": (
        TieMissing,
        lambda: verify(replace(PROGRAM, ties=(Tie("embed.weight", ((0, 0),)),))),
    ),
}


def test_other_corruptions() -> None:
    for kind, corrupt in OTHERS.values():
        with pytest.raises(kind) as caught:
            corrupt()
        assert type(caught.value) is kind
