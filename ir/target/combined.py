"""Things that a target may be able to have each, and not together: what of pipelines, storage and shared parameters a
plan combines. A capability lists the combinations that it can; what they are in a plan is said here, one function each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod

from meshwright.ir.decisions.decisions import BodyPlan, Decisions
from meshwright.ir.errors.capability import BODIES, CUTS, SCHEDULE, STORAGE
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.names import CONTEXTS, name_of
from meshwright.ir.names.cache import loops_of
from meshwright.ir.names.recompute import is_loss
from meshwright.ir.names.words import uses_of
from meshwright.ir.same import Same
from meshwright.ir.schedules import SCHEDULES
from meshwright.ir.sharding.adjoint import Split
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.sharding.rewrite import reached
from meshwright.ir.sharding.shares import shares_of

ATTENTION = "attention"
WAYS: Mapping[tuple[str, ...], str] = {kind.splits: word for word, kind in CONTEXTS.items()}
"""How attention meets the tokens of other ranks, by what an axis that cuts sequences splits of it."""

GATHERED = 3
"""Stages of a rank whose parameters `torch.distributed.pipelining` keeps gathered at once (torch 2.13, the default of
`max_active_stages` where its schedules are written out)."""


def different_meshes(decisions: Decisions, fold: Fold) -> str:
    """Stages whose ranks are arranged in different ways."""
    meshes = {stage.mesh for stage in decisions.stages}
    return f"{len(meshes)} meshes in one pipeline" if len(meshes) > 1 else ""


def beside_different_meshes(decisions: Decisions, fold: Fold) -> str:
    """Features that stages of different meshes cannot have, beyond passing values on."""
    if not different_meshes(decisions, fold):
        return ""
    stage_of = [index for index, stage in enumerate(decisions.stages) for _ in range(stage.first, stage.last)]
    held_by = {name: len({stage_of[number] for number, _ in held}) for name, held in fold.tied}
    shared = [name for name, stages in held_by.items() if stages > 1]
    uses = list(_uses(decisions, fold))
    others = (f"axis {axis} as {' and '.join(sorted(used))}" for axis, used in uses if not _simple(used))
    batch = sorted({axis for axis, used in uses if used == {"dp"}})
    found = (
        "several stages per rank" if len(decisions.stages) > len(decisions.groups) else "",
        f"schedule {decisions.schedule.name}" if _splits(decisions) else "",
        f"{len(shared)} parameters of several stages" if len(shared) > 1 else "",
        *(f"{name}, which {held_by[name]} stages hold" for name in shared if held_by[name] > 2),
        *others,
        *(f"statistics that copies share in {plan.name}" for plan in decisions.plans if _shares_statistics(plan, fold)),
        f"several axes that cut the batch, {' and '.join(batch)}" if len(batch) > 1 else "",
        "a loss that is taken of each rank's tokens" if _takes_own_loss(decisions, fold) else "",
    )
    return next((f"different meshes beside {what}" for what in found if what), "")


def beside_shares(decisions: Decisions, fold: Fold) -> str:
    """Features that unequal shares of a batch cannot have, beyond data that is cut otherwise."""
    if not shares_of(decisions):
        return ""
    if len(decisions.stages) > 1:
        return "unequal shares of a batch in a pipeline"
    uses = _uses(decisions, fold)
    others = (
        f"unequal shares of a batch beside axis {axis} as {' and '.join(sorted(u))}"
        for axis, u in uses
        if not _simple(u)
    )
    return next(others, "")


def shared_shards(decisions: Decisions, fold: Fold) -> str:
    """A parameter of several parts of the model that these store differently, while some are sharded. Stages of
    different meshes each have parts of their own."""
    if not fold.tied or not any(_stored(decisions)):
        return ""
    calls, apart = list(fold.calls()), bool(different_meshes(decisions, fold))
    plans = {
        stage.first + at: (number if apart else 0, plan)
        for number, stage in enumerate(decisions.stages)
        for at, plan in enumerate(
            decisions.plans_for(number, [call.body.name for call in calls[stage.first : stage.last]])
        )
    }
    for name, held in fold.tied:
        found = {(plans[number][0], _storage(plans[number][1], path)) for number, path in held}
        if len(found) > len({place for place, _ in found}):
            return f"shards beside {name}, which several parts share and store otherwise"
    return ""


def split_backward_shards(decisions: Decisions, fold: Fold) -> str:
    """Gradients scattered for every micro-batch, where those of weights are computed apart."""
    scattered = any(item.grads == item.optimizer for plan in _stored(decisions) for item in plan.storage)
    if len(decisions.stages) == 1 or not (_splits(decisions) and scattered):
        return ""
    return f"gradients scattered for every micro-batch under schedule {decisions.schedule.name}"


def again_in_halves(decisions: Decisions, fold: Fold) -> str:
    """Recomputation of more than attention, where gradients of weights are computed apart: torch does it in both halves
    of the backward pass, and keeps it in between."""
    if len(decisions.stages) == 1 or not _splits(decisions):
        return ""
    for plan in decisions.plans:
        attended = {value for op in fold.body[plan.body].graph.ops if op.kind == ATTENTION for value in op.results}
        if not attended.issuperset(plan.recompute):
            return f"{plan.name} computed again under schedule {decisions.schedule.name}"
    return ""


def contexts(decisions: Decisions, fold: Fold) -> set[str]:
    """The ways in which attention meets the tokens of other ranks."""
    return {
        WAYS[factors]
        for plan in decisions.plans
        for op in fold.body[plan.body].graph.ops
        for axis, factors in _cuts_of_attention(plan, op)
        if factors in WAYS and axis.startswith("cp")
    }


def _cuts_of_attention(plan: BodyPlan, op: Op) -> list[tuple[str, tuple[str, ...]]]:
    choices = plan.strategy(op.name).choices if op.kind == ATTENTION else ()
    return [(axis, choice.factors) for axis, choice in choices if isinstance(choice, Split)]


def compiled_blocks(decisions: Decisions, fold: Fold) -> str:
    """Features that blocks which torch compiles one by one do not have (torch 2.13): backward passes in halves, which
    split what the compiler has joined; values of DTensors that are recomputed."""
    if decisions.style != "compiled":
        return ""
    meshes, loops = {name: stage.mesh for stage in decisions.stages for name in stage.plans}, loops_of(Same(fold))
    found = [f"schedule {decisions.schedule.name}" if len(decisions.stages) > 1 and _splits(decisions) else ""]
    for plan in decisions.plans:
        graph, mesh = fold.body[plan.body].graph, meshes.get(plan.name)
        used = {name_of(plan, graph, loops[plan.body], axis) for axis in mesh.names} if mesh is not None else set()
        again = any(not set(plan.recompute).isdisjoint(op.results) for op in graph.ops if op.kind == ATTENTION)
        if plan.recompute and ("tp" in used or ("tp+sp" in used and again)):
            found.append(f"{plan.name} computed again beside tensor parallelism")
    return next((f"compiled blocks beside {what}" for what in found if what), "")


def compiled_statistics(decisions: Decisions, fold: Fold) -> str:
    """Statistics of copies, exchanged inside compiled blocks that the user wrote."""
    if decisions.style != "compiled":
        return ""
    found = (plan.name for plan in decisions.plans if _shares_statistics(plan, fold))
    return next((f"compiled blocks beside statistics that copies share in {name}" for name in found), "")


def waiting_blocks(decisions: Decisions, fold: Fold) -> str:
    """Features that blocks do not have beside offloaded activations, which hooks of autograd move."""
    if not decisions.offload.activations:
        return ""
    kinds = {segment.period for segment in fold.segments if not segment.glue}
    found = (
        "blocks computed again" if any(plan.recompute for plan in decisions.plans) else "",
        "compiled blocks" if decisions.style == "compiled" else "",
        different_meshes(decisions, fold),
        f"schedule {decisions.schedule.name}" if len(decisions.stages) > 1 and _splits(decisions) else "",
        f"{len(kinds)} kinds of blocks" if decisions.offload.blocks and len(kinds) > 1 else "",
    )
    return next((f"activations on the host beside {what}" for what in found if what), "")


def waiting_whole(decisions: Decisions, fold: Fold) -> str:
    """Offloaded activations of anything but blocks that are computed again, all of them and in one stage, from what
    each reads of the one before."""
    if not decisions.offload.activations:
        return ""
    repeated = {name for segment in fold.segments if not segment.glue for name in segment.period}
    whole = (plan.name for plan in decisions.plans if plan.body in repeated and not _is_again(plan, fold))
    found = (
        *(f"{name}, which is not computed again" for name in whole),
        f"the first {decisions.offload.blocks} blocks alone" if decisions.offload.blocks else "",
        "a pipeline" if len(decisions.stages) > 1 else "",
    )
    return next((f"activations on the host beside {what}" for what in found if what), "")


def _is_again(plan: BodyPlan, fold: Fold) -> bool:
    """Whether all of a block is computed again."""
    return {value for op in fold.body[plan.body].graph.ops for value in op.results} <= {*plan.recompute}


def cast_copies(decisions: Decisions, fold: Fold) -> str:
    """Parameters that every rank holds whole, except for what cuts modules, and casts before use, along more than one
    axis that cuts the batch alone."""
    if any(_stored(decisions)):
        return ""
    uses = dict(_uses(decisions, fold))
    others = (f"axis {axis} as {' and '.join(sorted(used))}" for axis, used in uses.items() if not _simple(used))
    batch = sorted(axis for axis, used in uses.items() if used == {"dp"})
    several = f"axes {' and '.join(batch)}" if len(batch) > 1 else ""
    what = next(others, several)
    return f"parameters that are cast, and kept whole, beside {what}" if what else ""


def cast_untrained(decisions: Decisions, fold: Fold) -> str:
    """Parameters that are not trained, which every rank holds whole and casts before use, beside shards of others:
    copies that derivatives read are kept, which no unit of `fully_shard` does of what it has shards of."""
    stored = {(plan.body, item.path) for plan in decisions.plans for item in plan.storage}
    whole = any(
        _differentiated(
            body.graph,
            {
                param.value
                for param in body.graph.parameters()
                if not param.requires_grad and (body.name, param.path) not in stored
            },
        )
        for body in fold.bodies
    )
    return "parameters that are not trained, and cast, beside shards of others" if stored and whole else ""


def _differentiated(graph: Graph, values: set[str]) -> bool:
    """Whether a value made of these has a gradient."""
    found = reached(graph) if values else frozenset()
    return any(not (values.isdisjoint(op.operands) or found.isdisjoint(op.results)) for op in graph.ops)


def many_gathered_stages(decisions: Decisions, fold: Fold) -> str:
    """States in shards of more stages on a rank than torch keeps gathered."""
    most = max(Counter(stage.ranks for stage in decisions.stages).values())
    whole = any(item.grads != item.optimizer for plan in _stored(decisions) for item in plan.storage)
    return f"shards of states alone on ranks with {most} stages" if whole and most > GATHERED else ""


def _storage(plan: BodyPlan, path: str) -> tuple[Placement, ...]:
    return next(((one.params, one.grads, one.optimizer) for one in plan.storage if one.path == path), ())


def _uses(decisions: Decisions, fold: Fold) -> Iterator[tuple[str, set[str]]]:
    """The use of every axis of every mesh."""
    loops = loops_of(Same(fold))
    for mesh in dict.fromkeys(stage.mesh for stage in decisions.stages):
        names = dict.fromkeys(name for stage in decisions.stages if stage.mesh == mesh for name in stage.plans)
        plans = [decisions.plan[name] for name in names]
        for axis in mesh.names:
            yield axis, set(uses_of(plans, fold, loops, axis).values())


def several_uses(decisions: Decisions, fold: Fold) -> str:
    """An axis that parts of a model use in different ways, or in one that has no name. To cut sequences is one."""
    uses = _uses(decisions, fold)
    sequence = {kind.called for kind in CONTEXTS.values()}
    several = (
        f"axis {axis} as {' and '.join(sorted(used))}" for axis, used in uses if not (_simple(used) or used <= sequence)
    )
    return next(several, "")


def mixed_uses(decisions: Decisions, fold: Fold) -> str:
    """An axis that parts of a model use for more than one of batch, insides of operators, and sequences."""
    families = {"dp"}, {"tp", "tp+sp"}, {kind.called for kind in CONTEXTS.values()}
    mixed = (
        f"axis {axis} as {' and '.join(sorted(used))}"
        for axis, used in _uses(decisions, fold)
        if not any(used <= family for family in families)
    )
    return next(mixed, "")


def _simple(used: set[str]) -> bool:
    """Whether an axis cuts nothing but the batch, or the insides of operators."""
    return used == {"dp"} or (used <= {"tp", "tp+sp", "cp", "-"} and not used.isdisjoint({"tp", "tp+sp"}))


def _shares_statistics(plan: BodyPlan, fold: Fold) -> bool:
    """Whether an axis cuts what batch norms normalise over."""
    choices = (choice for op in _trained_norms(plan, fold) for _, choice in plan.strategy(op.name).choices)
    return any(isinstance(choice, Split) and choice.factors != ("c",) for choice in choices)


def _trained_norms(plan: BodyPlan, fold: Fold) -> list[Op]:
    """The batch norms of a body that take statistics."""
    return [op for op in fold.body[plan.body].graph.ops if op.kind == "batch_norm" and op.attr("training", True)]


def norms_of_one_value(decisions: Decisions, fold: Fold) -> str:
    """A batch norm whose micro-batches have one value for every channel: there is nothing to normalise by."""
    norms = ((plan.body, op) for plan in decisions.plans for op in _trained_norms(plan, fold))
    given = ((body, op.name, fold.body[body].graph.types[op.operands[0]].shape) for body, op in norms)
    single = (f"%{name} in {body}" for body, name, (batch, _, *places) in given if batch * prod(places) == 1)
    return next((f"micro-batches of one value for every channel of {name}" for name in single), "")


def _takes_own_loss(decisions: Decisions, fold: Fold) -> bool:
    """Whether a tensor axis cuts tokens where the loss is taken, and not the vocabulary."""
    tensor = {axis for axis, used in _uses(decisions, fold) if used & {"tp", "tp+sp"}}
    loops = loops_of(Same(fold))
    bodies = ((plan, fold.body[plan.body].graph) for plan in decisions.plans)
    ends = [(plan, graph) for plan, graph in bodies if any(is_loss(graph, value) for value in graph.outputs)]
    return any(name_of(plan, graph, loops[plan.body], axis) == "cp" for plan, graph in ends for axis in tensor)


def _splits(decisions: Decisions) -> bool:
    """Whether gradients of weights are computed apart."""
    schedule = decisions.schedule
    named = SCHEDULES.get(schedule.name)
    return named.splits if named is not None else any("W" in action for one in schedule.actions for action in one)


def _stored(decisions: Decisions) -> list[BodyPlan]:
    return [plan for plan in decisions.plans if plan.storage]


COMBINED: Mapping[str, Callable[[Decisions, Fold], str]] = {
    "different_meshes": different_meshes,
    "beside_different_meshes": beside_different_meshes,
    "beside_shares": beside_shares,
    "shared_shards": shared_shards,
    "split_backward_shards": split_backward_shards,
    "again_in_halves": again_in_halves,
    "many_gathered_stages": many_gathered_stages,
    "compiled_blocks": compiled_blocks,
    "waiting_blocks": waiting_blocks,
    "waiting_whole": waiting_whole,
    "several_uses": several_uses,
    "norms_of_one_value": norms_of_one_value,
}
"""What a plan has of it, in words; empty if it does not have it."""
CAST: Mapping[str, Callable[[Decisions, Fold], str]] = {
    "cast_copies": cast_copies,
    "cast_untrained": cast_untrained,
}
"""The same of plans whose parameters are stored in another dtype than they are used in."""
DEPENDS: Mapping[str, tuple[str, ...]] = {
    "split_backward_shards": (CUTS, STORAGE, SCHEDULE),
    "again_in_halves": (BODIES, SCHEDULE),
    "many_gathered_stages": (CUTS, STORAGE, SCHEDULE),
    "compiled_blocks": (BODIES, SCHEDULE),
    "waiting_blocks": (BODIES, SCHEDULE),
    "waiting_whole": (BODIES, SCHEDULE),
    "several_uses": (CUTS, STORAGE),
    "cast_copies": (CUTS, STORAGE),
    "cast_untrained": (CUTS, STORAGE),
}
"""The parts of a plan that these follow from, where that is not all of it."""
