"""A plan as a person reads it: what matters most comes first.

    show_brief   the plan and its step time
    show         a page: five lines that answer (the plan; step time, beside what a person would write; memory; what
                 is unusual; how sure all that is), then stages, where the time goes, why, other plans, what would
                 change it
    show_whole   all that is known: the page, unfolded, then the configuration in words, the space, what was left out,
                 what numbers stand on

A page has at most `PAGE` lines on terminals of 80 columns or more: other plans, and then notes, are shown as far as
there is room; of notes the last, which say what to beware of, after those on how the plan was refined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from meshwright.ir.decisions.offload import Offload
from meshwright.ir.schedules import CUSTOM
from meshwright.ir.sharding.shares import shares_of
from meshwright.planner.cli.views.plans.parts import MOST_ROWS, in_a_row, rival_table, share_table, stage_table
from meshwright.planner.cli.views.tables import Page
from meshwright.planner.plan.notes import IDLE, OWN_MESHES, PASSED_OVER, UNSURE
from meshwright.planner.plan.types import Plan, Rival
from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.plan.words import (
    amount,
    gap_text,
    in_words,
    more,
    operator_gap_text,
    rough,
    share_name,
    short,
    worth,
)
from meshwright.planner.question.pins import word

ODD = IDLE, OWN_MESHES
"""Notes that belong to the first lines."""
PAGE = 45
"""Lines of a page."""
LEAST_RIVALS = 1
TOLD = 2
"""Differences that are told of another plan."""
MOST_WHY = 3
"""Limits of the model, the batch or the target that are told."""
KERNELS = ("matmul", "attention", "memory-bound", "recompute")
COLLECTIVES = ("tensor", "context", "expert", "parameters", "transfers", "gradients", "publish")
RESTS_ON = {"kernels": KERNELS, "collectives": COLLECTIVES, "host": ("launch", "host")}
"""The shares of a step that rest on a kind of price."""
MEASURED = {"kernels": "kernels", "collectives": "collectives", "host": "launches"}
"""What would be measured of it."""


def show_brief(plan: Plan, written: Path | None = None) -> None:
    """Print the plan and its step time to standard output, and nothing of where it was written."""
    page = Page()
    page.say(short(plan.config), "bold", label="plan        ")
    page.say(_interval(plan), label="step time   ")
    page.print()


def show(plan: Plan, written: Path | None = None) -> None:
    """Print a page on a plan to standard output."""
    rivals, notes = len(_rivals(plan)), len(_notes(plan))
    page = _page(plan, rivals, notes, written)
    while len(page.lines) > PAGE and (rivals > LEAST_RIVALS or notes > 1):
        rivals, notes = (rivals - 1, notes) if rivals > LEAST_RIVALS else (rivals, notes - 1)
        page = _page(plan, rivals, notes, written)
    page.print()


def show_whole(plan: Plan, written: Path | None = None) -> None:
    """Print all that is known of a plan to standard output."""
    page = Page()
    _answer(page, plan)
    page.blank()
    _question(page, plan)
    page.blank()
    page.say(str(plan.config), label="whole plan    ")
    for line in in_words(plan.config, shares_of(plan.decisions)):
        page.say(line)
    memory = max((stage.memory for stage in plan.prediction.stages), key=lambda held: held.lacks_bytes)
    margin = f"{nbytes(memory.device_bytes)} less a margin of {percent(memory.margin_bytes / memory.device_bytes)}"
    page.say(f"{nbytes(memory.capacity_bytes)} of a device may be used: {margin}")
    page.blank()
    page.table(stage_table(plan, None))
    page.blank()
    page.table(share_table(plan.prediction))
    page.blank()
    _why(page, plan, None)
    page.table(rival_table("beside what a person would write", plan.baselines))
    if plan.alternatives:
        page.blank()
        page.table(rival_table("alternatives, and why they lost", plan.alternatives))
    if plan.binding:
        page.blank()
        page.say("what binds", "bold")
        for one in plan.binding:
            page.say(f"{one.kind}: {one.what}")
    page.blank()
    _space(page, plan)
    _provenance(page, plan)
    _end(page, plan.notes, written)
    page.print()


SHOWN = {"brief": show_brief, "page": show, "whole": show_whole}
"""How a plan is shown, by how much of it is asked for."""


# The answer in five lines --------------------------------------------------------------------------------------------


def _answer(page: Page, plan: Plan) -> None:
    page.say(short(plan.config), "bold", label="plan        ")
    page.say(f"{_interval(plan)}; {_beside(plan)}", "bold", label="step time   ")
    page.say(_memory(plan), label="memory      ")
    page.say(_unusual(plan), label="unusual     ")
    page.say(_confidence(plan), label="confidence  ")


def _interval(plan: Plan) -> str:
    predicted = plan.prediction
    low, high = seconds(predicted.step_time_low_s), seconds(predicted.step_time_high_s)
    return f"{seconds(predicted.step_time_s)} ({low} to {high})"


def best_by_hand(plan: Plan) -> Rival | None:
    """The fastest plan that a person would write and that fits."""
    return min((one for one in plan.baselines if one.fits), key=lambda one: one.step_time_s, default=None)


def _is(one: Rival, plan: Plan) -> bool:
    """Whether another plan is the plan itself, and not what it was refined from."""
    return one.config == plan.config and one.step_time_s == plan.prediction.step_time_s


def _beside(plan: Plan) -> str:
    """The step time beside that of the best plan that a person would write."""
    best = best_by_hand(plan)
    if best is None:
        return "nothing that a person would write fits"
    if _is(best, plan):
        return f"as a person would write it: {best.name}"
    inside = plan.prediction.step_time_low_s <= best.step_time_s <= plan.prediction.step_time_high_s
    return f"{best.name} {more(best.slower)}, {'inside' if inside else 'beyond'} it"


def _memory(plan: Plan) -> str:
    """The memory of the fullest rank."""
    stages = plan.prediction.stages
    fullest = max(stages, key=lambda stage: stage.memory.lacks_bytes)
    held, free = fullest.memory, fullest.memory.margin_bytes / fullest.memory.device_bytes
    where = f" (stage {fullest.stage})" if len(stages) > 1 else ""
    peak, capacity = nbytes(held.peak_bytes), nbytes(held.capacity_bytes)
    return f"{peak} of {capacity} on the fullest rank{where}, {rough(free)} kept free"


def _unusual(plan: Plan) -> str:
    return "; ".join(_oddities(plan)) or "nothing: no rank is idle, nothing waits on the host"


def _oddities(plan: Plan) -> Iterator[str]:
    """What a reader would not expect of a plan of this kind."""
    decisions, config = plan.decisions, plan.config
    yield from (note for note in plan.notes if any(said in note for said in ODD))
    waiting, waits = Offload.parse(config.offload), max(stage.memory.host_bytes for stage in plan.prediction.stages)
    of = f" of {waiting.blocks} blocks" if waiting.blocks else ""
    said = {"activations": f"activations{of}", "optimizer": "the optimizer's state and step"}
    if waiting.kinds:
        kept = " and ".join(said[kind] for kind in waiting.kinds)
        yield f"{kept} wait in the host's memory ({nbytes(waits)} a rank)"
    if decisions.schedule.name == CUSTOM:
        yield "a schedule made for this plan"
    if len({str(stage.mesh) for stage in decisions.stages}) > 1 and OWN_MESHES not in plan.notes:
        yield "stages have meshes of their own"
    if len(set(config.stage_blocks)) > 1:
        yield "stages have unequal layers"
    if shares_of(decisions):
        yield "copies take unequal shares of the batch"
    if not all(in_a_row(stage.ranks) for stage in decisions.stages):
        yield "ranks are in an order of their own"


def _confidence(plan: Plan) -> str:
    """Whether prices were measured, and which of them would be worth measuring first."""
    kinds = dict(plan.prediction.provenance)
    if plan.provenance.weakest == "measured":
        return "calibrated: all prices were measured on this cluster"
    measured = [name for name, kind in kinds.items() if kind == "measured"]
    how = f"calibrated in part ({', '.join(measured)})" if measured else "not calibrated"
    shares = dict(plan.prediction.shares)
    first_s, first = max(
        ((sum(shares.get(name, 0.0) for name in RESTS_ON[kind]), kind) for kind in RESTS_ON if kind not in measured),
        default=(0.0, ""),
    )
    if not first_s:
        return f"{how}: numbers are no better than {plan.provenance.weakest}"
    known = f", {kinds[first]}" if first in kinds else ""
    return f"{how}; measure {MEASURED[first]} first ({rough(first_s / plan.prediction.step_time_s)} of the step{known})"


# The page ------------------------------------------------------------------------------------------------------------


def _page(plan: Plan, rivals: int, notes: int, written: Path | None) -> Page:
    """The page with so many other plans and notes."""
    page = Page()
    _answer(page, plan)
    page.blank()
    _question(page, plan)
    page.blank()
    page.table(stage_table(plan))
    page.blank()
    page.table(share_table(plan.prediction, MOST_ROWS))
    page.blank()
    _why(page, plan, MOST_WHY)
    others, told = _rivals(plan), _notes(plan)
    if others:
        page.table(rival_table("other plans", sorted(others[:rivals], key=_rank), TOLD))
        page.blank()
    _changes(page, plan)
    _end(page, told[len(told) - notes :], written)
    left = ((len(others) - rivals, "plan"), (len(told) - notes, "note"))
    more_of = [f"{number} more {what}{'s' * (number > 1)}" for number, what in left if number]
    page.say(f"-v shows {', '.join([*more_of, 'the space searched'])}, and what numbers stand on")
    return page


def _question(page: Page, plan: Plan) -> None:
    workload, machines, predicted = plan.workload, plan.machines, plan.prediction
    speed = f"{count(predicted.tokens_per_s_per_gpu)} tokens/s/GPU, MFU {percent(predicted.mfu)}"
    cost = f", {amount('cost', plan.bounds.upper)}" if plan.bounds.objective == "cost" else ""
    page.say(f"{speed}{cost}", label="speed       ")
    page.say(gap_text(plan), label="gap         ")
    model = f"{plan.model.ref}, {count(plan.model.parameters)} parameters"
    step = f"{workload.global_batch:,} x {workload.seq:,} tokens in {workload.precision}"
    ranks = f"{machines.ranks:,} ranks, {', '.join(machines.devices)}"
    page.say(f"{model}, {step}, on {machines.ref} ({ranks})", label="asked       ")


def _why(page: Page, plan: Plan, most: int | None) -> None:
    """The decisive facts: what is won over the best plan by hand, and what the model, the batch or the target limit."""
    said = [f"{one.kind}: {one.what}" for one in plan.binding if one.kind not in ("memory", "constraint")][:most]
    best = best_by_hand(plan) if plan.bounds.objective != "memory" else None
    if best is not None and not _is(best, plan) and best.differences:
        said.insert(0, f"beside {best.name}, {_won(best)}")
    if said:
        page.say("why", "bold")
        for one in said:
            page.say(one)
        page.blank()


def _won(best: Rival) -> str:
    """What the plan saves and spends beside another one."""
    saved = [f"{seconds(more_s)} {share_name(name)}" for name, more_s in best.differences if more_s > 0][:TOLD]
    spent = [f"{seconds(-more_s)} {share_name(name)}" for name, more_s in best.differences if more_s < 0][:TOLD]
    parts = [f"{verb} {', '.join(what)}" for verb, what in (("saves", saved), ("spends", spent)) if what]
    return f"it {', and '.join(parts)}"


def _changes(page: Page, plan: Plan) -> None:
    """What would make it another plan."""
    said = [f"memory: {short(one.config)} takes {seconds(one.step_time_s)}, and is short {nbytes(one.short_bytes)}"
            for one in plan.alternatives if one.config and not one.fits and one.slower < 1]  # fmt: skip
    said += [f"taking back: {one.what}" for one in plan.binding if one.kind == "constraint"]
    best, predicted = best_by_hand(plan), plan.prediction
    if best and predicted.step_time_s < best.step_time_s <= predicted.step_time_high_s:
        said.append(f"measuring: {best.name} may be as fast")
    if not plan.bounds.complete:
        said.append("more time: the search was cut short, and may find a better plan")
    if said:
        page.say("what would change it", "bold")
        for one in said:
            page.say(one)
        page.blank()


def _rivals(plan: Plan) -> list[Rival]:
    """Other plans, those first that say most: by turns one that a person would write and one that was found. What is
    faster and does not fit is said under what would change the plan."""
    usual = sorted((one for one in plan.baselines if one.config and not _is(one, plan)), key=_rank)
    found = sorted((one for one in plan.alternatives if one.fits), key=_rank)
    turns = zip_longest(usual, found)
    return [one for turn in turns for one in turn if one is not None]


def _rank(one: Rival) -> tuple[bool, float]:
    """What fits first, the fastest first."""
    return not one.fits, one.step_time_s


def _notes(plan: Plan) -> list[str]:
    """Notes that are not said elsewhere on the page."""
    return [note for note in plan.notes if not any(said in note for said in (*ODD, UNSURE, PASSED_OVER))]


def _end(page: Page, notes: Sequence[str], written: Path | None) -> None:
    for note in notes:
        page.say(f"note: {note}")
    if written is not None:
        page.whole(f"written: {written}")


# All that is known ---------------------------------------------------------------------------------------------------


def _space(page: Page, plan: Plan) -> None:
    bounds = plan.bounds
    if bounds.operators_s:
        page.say(operator_gap_text(plan), label="operator gap  ")
    counts = ", ".join(f"{number:,} {COUNTED[name]}" for name, number in bounds.counts.items() if number)
    page.say(f"declared space: {counts}")
    constraints = [f"{name} {' or '.join(map(word, values))}" for name, values in bounds.only.items()]
    constraints += [f"{name} not {' or '.join(map(word, values))}" for name, values in bounds.never.items()]
    constraints += [str(pin) for pin in bounds.modules]
    if constraints:
        page.say(f"asked for: {', '.join(constraints)}")
    page.say(f"left out: {'; '.join(bounds.truncated)}")
    if not bounds.complete:
        page.say("the search was cut short: more time may find a better plan")


COUNTED = {
    "bases": "kernel configurations priced", "shapes": "pipeline configurations bounded",
    "full": "of them over memory", "slow": "of them too slow",
    "priced": "priced by the evaluator", "refused": "refused by the model or the target",
    "unwritten": "passed over since no code is written for them", "left": "left that may be better",
}  # fmt: skip


def _provenance(page: Page, plan: Plan) -> None:
    workload, machines, stack = plan.workload, plan.machines, plan.workload.stack
    kinds = ", ".join(f"{name} {kind}" for name, kind in plan.prediction.provenance)
    page.say(f"provenance: {kinds}")
    page.say(f"times, memory and bounds follow from these: they are {worth(plan.provenance.weakest)}")
    page.say(f"model: digest {plan.model.digest}, {plan.model.parameters:,} parameters, {workload.optimizer}")
    hosts = "1 host" if machines.hosts == 1 else f"{machines.hosts:,} hosts"
    page.say(f"cluster: {machines.ranks:,} ranks ({' and '.join(machines.devices)}) on {hosts}")
    kernels = f"{stack.style} kernels, recipe {workload.recipe or stack.recipe}"
    page.say(f"stack {stack.name}: {kernels}; target {plan.decisions.target}")
