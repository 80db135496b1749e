"""A plan as a person reads it: what it is, what it costs, how good it is, and why it is the one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from meshwright.ir.sharding.shares import shares_of
from meshwright.planner.answer.relax import Nothing
from meshwright.planner.cli.views.tables import new_console, new_table, share_table
from meshwright.planner.plan.types import Plan, Rival
from meshwright.planner.plan.units import count, nbytes, percent, seconds
from meshwright.planner.plan.words import amount, gap_text, in_words, operator_gap_text, rows_alike, short, worth
from meshwright.planner.question.pins import word


def show(plan: Plan, written: Path | None = None) -> None:
    """Print a plan to standard output."""
    console = new_console()
    _heading(console, plan)
    _answer(console, plan)
    console.print()
    for line in in_words(plan.config, shares_of(plan.decisions)):
        console.print(line)
    console.print()
    console.print(_stages(plan))
    console.print()
    console.print(share_table(plan.prediction))
    console.print()
    console.print(_rivals("beside what a person would write", "plan", plan.baselines))
    if plan.alternatives:
        console.print()
        console.print(_rivals("alternatives, and why they lost", "", plan.alternatives))
    _binding(console, plan)
    console.print()
    _space(console, plan)
    kinds = ", ".join(f"{name} {kind}" for name, kind in plan.prediction.provenance)
    console.print(f"provenance: {kinds}")
    console.print(f"times, memory and bounds follow from these: they are {worth(plan.provenance.weakest)}")
    for note in plan.notes:
        console.print(f"note: {note}")
    if written is not None:
        console.print(f"written: {written}")


def _heading(console: Console, plan: Plan) -> None:
    workload, machines = plan.workload, plan.machines
    console.print(f"{plan.model.ref}  digest {plan.model.digest}", style="bold")
    step = f"a step of {workload.global_batch:,} x {workload.seq:,} tokens in {workload.precision}"
    console.print(f"{plan.model.parameters:,} parameters; {step} with {workload.optimizer}")
    hosts = "1 host" if machines.hosts == 1 else f"{machines.hosts:,} hosts"
    devices = " and ".join(machines.devices)
    console.print(f"cluster {machines.ref}: {machines.ranks:,} ranks ({devices}) on {hosts}")
    stack = workload.stack
    recipe = workload.recipe or stack.recipe
    console.print(f"stack {stack.name}: {stack.style} kernels, recipe {recipe}; target {plan.decisions.target}")
    console.print()


def _answer(console: Console, plan: Plan) -> None:
    predicted, memory = plan.prediction, max((s.memory for s in plan.prediction.stages), key=lambda m: m.peak_bytes)
    low, high = seconds(predicted.step_time_low_s), seconds(predicted.step_time_high_s)
    console.print(f"plan          {plan.config}", style="bold")
    console.print(f"step time     {seconds(predicted.step_time_s)}  ({low} to {high})", style="bold")
    console.print(f"tokens/s/GPU  {count(predicted.tokens_per_s_per_gpu)}")
    console.print(f"MFU           {percent(predicted.mfu)}")
    margin = f"{nbytes(memory.device_bytes)} less a margin of {percent(memory.margin_bytes / memory.device_bytes)}"
    capacity = f"of {nbytes(memory.capacity_bytes)} (the device's {margin})"
    console.print(f"peak memory   {nbytes(memory.peak_bytes)} on the fullest stage, {capacity}")
    if plan.bounds.objective == "cost":
        console.print(f"cost          {amount('cost', plan.bounds.upper)}, {plan.machines.ranks:,} devices in use")
    console.print(f"gap           {gap_text(plan)}", style="bold")
    if plan.bounds.operators_s:
        console.print(f"operator gap  {operator_gap_text(plan)}", style="bold")


def _stages(plan: Plan) -> Table:
    """Rows of stages: neighbours that run the same on equal meshes are one, with the memory of the fullest."""
    shown = new_table("stages", "stage", "blocks", "mesh", "peak memory", "capacity", "left", "fullest at")
    names = []
    for stage, blocks in zip(plan.decisions.stages, plan.blocks, strict=True):
        what = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in blocks)
        names.append((what, str(stage.mesh)))
    for numbers, row in rows_alike(names):
        first, _, last = numbers.partition("-")
        alike = plan.prediction.stages[int(first) : int(last or first) + 1]
        held = max((stage.memory for stage in alike), key=lambda memory: memory.lacks_bytes)
        left = held.left_bytes
        memory = nbytes(left) if left >= 0 else f"short {nbytes(-left)}"
        shown.add_row(numbers, *row, nbytes(held.peak_bytes), nbytes(held.capacity_bytes), memory, held.instant)
    return shown


def _rivals(title: str, first: str, rivals: Sequence[Rival]) -> Table:
    named = any(one.name for one in rivals)
    shown = new_table(
        title, *([first] if named else []), "configuration", "step time", "x", "peak memory", "why it lost"
    )
    for column in shown.columns[: 1 + named]:
        column.justify = "left"
    shown.columns[-1].justify = "left"
    for one in rivals:
        numbers = (seconds(one.step_time_s), f"{one.slower:.3f}", nbytes(one.peak_memory_bytes))
        cells = (short(one.config), *numbers) if one.config else ("", "-", "-", "-")
        shown.add_row(*([one.name] if named else []), *cells, one.lost)
    return shown


def difference_table(title: str, differences: Sequence[tuple[str, float]]) -> Table:
    """Seconds more or less, by share; they add up to the difference of two step times."""
    shown = new_table(title, "", "time")
    for name, more_s in differences:
        if more_s:
            shown.add_row(name, f"{'+' if more_s > 0 else '-'}{seconds(abs(more_s))}")
    total_s = sum(more_s for _, more_s in differences)
    shown.add_row("together", f"{'-' if total_s < 0 else '+'}{seconds(abs(total_s))}")
    return shown


def _binding(console: Console, plan: Plan) -> None:
    if plan.binding:
        console.print("\nwhat binds", style="bold")
    for one in plan.binding:
        console.print(f"{one.kind}: {one.what}")


def _space(console: Console, plan: Plan) -> None:
    bounds = plan.bounds
    counts = ", ".join(f"{number:,} {COUNTED[name]}" for name, number in bounds.counts.items() if number)
    console.print(f"declared space: {counts}")
    constraints = [f"{name} {' or '.join(map(word, values))}" for name, values in bounds.only.items()]
    constraints += [f"{name} not {' or '.join(map(word, values))}" for name, values in bounds.never.items()]
    constraints += [str(pin) for pin in bounds.modules]
    if constraints:
        console.print(f"asked for: {', '.join(constraints)}")
    console.print(f"left out: {'; '.join(bounds.truncated)}")
    if not bounds.complete:
        console.print("the search was cut short: more time may find a better plan")


COUNTED = {
    "bases": "kernel configurations priced", "shapes": "pipeline configurations bounded",
    "full": "of them over memory", "slow": "of them too slow",
    "priced": "priced by the evaluator", "refused": "refused by the model or the target",
    "unwritten": "passed over since no code is written for them", "left": "left that may be better",
}  # fmt: skip


# Nothing -------------------------------------------------------------------------------------------------------------


def show_nothing(nothing: Nothing) -> None:
    """Print the configuration that lacks least, and what would help, to standard output."""
    console = new_console()
    console.print("nothing fits", style="bold")
    if nothing.nearest is not None:
        stage, lack = nothing.short
        memory = nothing.nearest.prediction.stages[stage].memory
        needed, capacity = nbytes(memory.peak_bytes), nbytes(memory.capacity_bytes)
        console.print(f"what lacks least is short {nbytes(lack)} on stage {stage}: {needed} of {capacity}")
        console.print(f"  {nothing.nearest.config}")
    if not nothing.relaxations:
        console.print("no single change that was tried helps: constraints, margin, batch, sequence, hosts")
        return
    console.print()
    table = new_table("what would help, each tried", "", "change", "step time", "peak memory", "with")
    table.columns[1].justify = table.columns[4].justify = "left"
    for one in nothing.relaxations:
        found = one.found
        memory_used = nbytes(found.prediction.peak_memory_bytes)
        table.add_row(one.kind, one.what, seconds(found.step_s), memory_used, short(found.config))
    console.print(table)
