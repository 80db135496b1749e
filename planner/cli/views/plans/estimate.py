"""An estimate as a person reads it: the question, its cost, whether it fits, and where time and memory go."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from meshwright.cost_models.hardware.quantity import weakest_kind
from meshwright.cost_models.prediction import HELD, StagePrediction
from meshwright.planner.answer.estimate import Estimate, StageWork
from meshwright.planner.answer.estimates import Outcome
from meshwright.planner.cli.views.tables import new_console, new_table, share_table
from meshwright.planner.plan.units import count, decimal_bytes, nbytes, percent, seconds
from meshwright.planner.plan.words import rows_alike, worth
from meshwright.planner.question.annotated import LEFT
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.pins import NAMES, word


def show(found: Estimate) -> None:
    """Print one configuration to standard output."""
    console = new_console()
    _heading(console, found)
    _answer(console, found)
    console.print()
    console.print(_stages(found))
    console.print()
    console.print(_memory(found))
    console.print()
    console.print(share_table(found.prediction))
    console.print()
    console.print(_traffic(found))
    console.print()
    _provenance(console, found)
    for note in found.notes:
        console.print(f"note: {note}")


def _heading(console: Console, found: Estimate) -> None:
    console.print(f"{found.ask.model}  digest {found.digest}", style="bold")
    _setting(console, found.ask, found.workload.global_batch, f"{found.parameters:,} parameters; ")
    if found.ask.annotated is None:
        console.print(f"configuration {found.config}")
    else:
        said = ", ".join(f"{name}={getattr(found.config, name)}" for name in LEFT)
        console.print(f"configuration the model's own shardings on ({found.ask.annotated}), {said}")
    console.print()


def _setting(console: Console, ask: Ask, global_batch: int | None, before: str = "") -> None:
    workload, cluster = ask.workload, ask.cluster
    stack = workload.stack
    batch = f"{global_batch:,} x " if global_batch else ""
    console.print(f"{before}a step of {batch}{workload.seq:,} tokens in {workload.precision} with {workload.optimizer}")
    devices = " and ".join(dict.fromkeys(pool.device.name for pool in cluster.pools))
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts:,} hosts"
    console.print(f"cluster {ask.cluster_reference}: {cluster.ranks:,} ranks ({devices}) on {hosts}")
    recipe = workload.recipe or stack.recipe
    console.print(f"stack {stack.name}: {stack.style} kernels, recipe {recipe}; target {ask.target.target}")


def _answer(console: Console, found: Estimate) -> None:
    predicted = found.prediction
    low, high = seconds(predicted.step_time_low_s), seconds(predicted.step_time_high_s)
    fullest = max(predicted.stages, key=lambda one: one.memory.peak_bytes)
    console.print(f"step time     {seconds(predicted.step_time_s)}  ({low} to {high})", style="bold")
    console.print(f"tokens/s/GPU  {count(predicted.tokens_per_s_per_gpu)}")
    console.print(f"MFU           {percent(predicted.mfu)}")
    peak, capacity = nbytes(fullest.memory.peak_bytes), nbytes(fullest.memory.capacity_bytes)
    console.print(f"peak memory   {peak} on stage {fullest.stage}, of {capacity}{_margin(found)}")
    most = max(one.memory.host_bytes for one in predicted.stages)
    if most:
        console.print(f"host memory   {nbytes(most)} for each device, at most")
    if predicted.fits:
        console.print("fits          yes")
        return
    worst, short = max(found.short, key=lambda pair: pair[1])
    more = f", and {len(found.short) - 1} more" if len(found.short) > 1 else ""
    console.print(f"fits          no: short {nbytes(short)} on stage {worst}{more}", style="bold")


def _margin(found: Estimate) -> str:
    """The memory of the fullest stage's device, and the part of it that is kept free."""
    memory = max(found.prediction.stages, key=lambda one: one.memory.peak_bytes).memory
    return f" (the device's {nbytes(memory.device_bytes)} less a margin of {nbytes(memory.margin_bytes)})"


def _stages(found: Estimate) -> Table:
    table = new_table(
        "stages, one micro-batch each",
        *(
            "stage",
            "layers",
            "ranks",
            "forward",
            "backward",
            "in flight",
            "peak memory",
            "capacity",
            "left",
            "fullest at",
        ),
    )
    rows = [_stage(stage, work) for stage, work in zip(found.prediction.stages, found.work, strict=True)]
    for name, row in rows_alike(rows):
        table.add_row(name, *row)
    return table


def _stage(stage: StagePrediction, work: StageWork) -> tuple[str, ...]:
    memory = stage.memory
    return (
        str(work.layers),
        f"{stage.ranks:,}",
        f"{1e3 * stage.forward_s:,.2f} ms",
        f"{1e3 * stage.backward_s:,.2f} ms",
        str(work.in_flight),
        nbytes(memory.peak_bytes),
        nbytes(memory.capacity_bytes),
        nbytes(memory.left_bytes) if memory.fits else f"short {nbytes(memory.lacks_bytes)}",
        memory.instant,
    )


def _memory(found: Estimate) -> Table:
    """Memory by category; categories that no stage has are left out."""
    held = [dict(stage.memory.parts) for stage in found.prediction.stages]
    names = [name for name in HELD if any(parts.get(name) for parts in held)]
    table = new_table("memory at the fullest instant", "stage", *names)
    for name, row in rows_alike([tuple(nbytes(parts.get(part, 0)) for part in names) for parts in held]):
        table.add_row(name, *row)
    return table


def _traffic(found: Estimate) -> Table:
    table = new_table("bytes received in a step, all ranks together", "link", "bytes")
    for tier, received in found.prediction.traffic:
        table.add_row(tier, decimal_bytes(received))
    return table


def _provenance(console: Console, found: Estimate) -> None:
    """The numbers that everything above follows from."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in found.prediction.provenance)
    console.print(f"provenance: {kinds}")
    console.print(f"times, memory and shares follow from these: they are {worth(found.weakest)}")


# Many ----------------------------------------------------------------------------------------------------------------


def show_ranked(ask: Ask, numbers: Sequence[int], outcomes: Sequence[Outcome], top: int) -> None:
    """Print the fastest configurations, those that fit first."""
    console = new_console()
    console.print(ask.model, style="bold")
    _setting(console, ask, ask.global_batch)
    console.print()
    priced = [(number, one) for number, one in zip(numbers, outcomes, strict=True) if not one.error]
    priced.sort(key=lambda pair: (not pair[1].fits, pair[1].step_time_s, pair[0]))
    shown = priced[:top]
    names = [name for name in NAMES if name != "microbatches"]  # they follow from dp and mbs
    varied = [name for name in names if len({one.config[name] for _, one in shown}) > 1]
    same = ",".join(f"{name}={word(shown[0][1].config[name])}" for name in names if shown and name not in varied)
    table = new_table(
        "configurations by step time, those that fit first",
        *("rank", "line", *varied, "step time", "tokens/s/GPU", "MFU", "peak memory", "fits"),
    )
    for rank, (number, one) in enumerate(shown, 1):
        pins = (word(one.config[name]) for name in varied)
        numbers_shown = (seconds(one.step_time_s), count(one.tokens_per_s_per_gpu), percent(one.mfu))
        fits = "yes" if one.fits else "no"
        table.add_row(str(rank), str(number), *pins, *numbers_shown, nbytes(one.peak_memory_bytes), fits)
    if priced:
        console.print(f"all of these have {same}")
        console.print(table)
    fitting, failed = sum(one.fits for _, one in priced), len(outcomes) - len(priced)
    left = f"; {len(priced) - top:,} more are not shown (--top)" if len(priced) > top else ""
    refused = f"; {failed:,} could not be priced" if failed else ""
    console.print(f"{len(priced):,} priced, {fitting:,} of them fit{refused}{left}")
    if priced:
        console.print(f"numbers are {worth(weakest_kind(*(one.weakest for _, one in priced)))}")
