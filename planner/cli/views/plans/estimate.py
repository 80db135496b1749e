"""An estimate as a person reads it: the question, its cost, whether it fits, and where time and memory go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.cost_models.hardware.quantity import weakest_kind
from meshwright.cost_models.prediction import HELD, StagePrediction
from meshwright.planner.answer.estimate import Estimate, StageWork
from meshwright.planner.answer.estimates import Outcome
from meshwright.planner.cli.views.plans.parts import share_table
from meshwright.planner.cli.views.tables import Page, Table, Way, number, text
from meshwright.planner.plan.units import count, decimal_bytes, nbytes, percent, seconds
from meshwright.planner.plan.words import rows_alike, worth
from meshwright.planner.question.annotated import LEFT
from meshwright.planner.question.ask import Ask
from meshwright.planner.question.pins import NAMES, word

Row = tuple[str, Sequence[str]]
"""The name of a stage, or of several that are alike, and its cells."""
MOST_STAGES, MOST_HELD, MOST_SHARES = 5, 1, 9
"""Rows of stages; those of which it is said what fills their memory; and rows of shares of the step."""


def show(found: Estimate) -> None:
    """Print one configuration to standard output."""
    page = Page()
    _heading(page, found)
    _answer(page, found)
    page.blank()
    page.table(_stages(found))
    page.blank()
    page.table(_memory(found))
    page.blank()
    page.table(share_table(found.prediction, MOST_SHARES))
    page.blank()
    _traffic(page, found)
    _provenance(page, found)
    for note in found.notes:
        page.say(f"note: {note}")
    page.print()


def _heading(page: Page, found: Estimate) -> None:
    page.say(f"{found.ask.model}  digest {found.digest}", "bold")
    _setting(page, found.ask, found.workload.global_batch, f"{found.parameters:,} parameters; ")
    if found.ask.annotated is None:
        page.say(str(found.config), label="configuration ")
    else:
        said = ", ".join(f"{name}={getattr(found.config, name)}" for name in LEFT)
        page.say(f"the model's own shardings on ({found.ask.annotated}), {said}", label="configuration ")
    page.blank()


def _setting(page: Page, ask: Ask, global_batch: int | None, before: str = "") -> None:
    workload, cluster = ask.workload, ask.cluster
    stack = workload.stack
    batch = f"{global_batch:,} x " if global_batch else ""
    page.say(f"{before}a step of {batch}{workload.seq:,} tokens in {workload.precision} with {workload.optimizer}")
    devices = " and ".join(dict.fromkeys(pool.device.name for pool in cluster.pools))
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts:,} hosts"
    page.say(f"cluster {ask.cluster_reference}: {cluster.ranks:,} ranks ({devices}) on {hosts}")
    recipe = workload.recipe or stack.recipe
    page.say(f"stack {stack.name}: {stack.style} kernels, recipe {recipe}; target {ask.target.target}")


def _answer(page: Page, found: Estimate) -> None:
    predicted = found.prediction
    low, high = seconds(predicted.step_time_low_s), seconds(predicted.step_time_high_s)
    fullest = max(predicted.stages, key=lambda one: one.memory.peak_bytes)
    page.say(f"{seconds(predicted.step_time_s)}  ({low} to {high})", "bold", label="step time     ")
    page.say(f"{count(predicted.tokens_per_s_per_gpu)}", label="tokens/s/GPU  ")
    page.say(f"{percent(predicted.mfu)}", label="MFU           ")
    peak, capacity = nbytes(fullest.memory.peak_bytes), nbytes(fullest.memory.capacity_bytes)
    page.say(f"{peak} on stage {fullest.stage}, of {capacity}{_margin(found)}", label="peak memory   ")
    most = max(one.memory.host_bytes for one in predicted.stages)
    if most:
        page.say(f"{nbytes(most)} for each device, at most", label="host memory   ")
    if predicted.fits:
        page.say("yes", label="fits          ")
        return
    worst, short = max(found.short, key=lambda pair: pair[1])
    more = f", and {len(found.short) - 1} more" if len(found.short) > 1 else ""
    page.say(f"no: short {nbytes(short)} on stage {worst}{more}", "bold", label="fits          ")


def _margin(found: Estimate) -> str:
    """The memory of the fullest stage's device, and the part of it that is kept free."""
    memory = max(found.prediction.stages, key=lambda one: one.memory.peak_bytes).memory
    return f" (the device's {nbytes(memory.device_bytes)} less a margin of {nbytes(memory.margin_bytes)})"


def _stages(found: Estimate) -> Table:
    table = Table(
        "stages, one micro-batch each",
        (
            text("stage", 9),
            number("layers", 5),
            number("ranks", 4),
            number("forward", 7),
            number("backward", 8),
            number("in flight", 3),
            number("peak memory"),
            number("capacity", 2),
            number("left", 6),
            number("fullest at", 1),
        ),
    )
    rows = [_stage(stage, work) for stage, work in zip(found.prediction.stages, found.work, strict=True)]
    alike = list(rows_alike(rows))
    for name, row in _ends(alike, MOST_STAGES):
        table.add(name, *row)
    return table


def _ends(rows: Sequence[Row], most: int) -> Iterator[Row]:
    """The first and the last of the rows where there are more, and a row that says so between them."""
    if len(rows) <= most:
        yield from rows
        return
    first = most // 2
    yield from rows[:first]
    yield f"{len(rows) - most + 1} more", ("",) * len(rows[0][1])
    yield from rows[first - most + 1 :]


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
    """Memory by category: of all stages, or where they are many of those with the least room."""
    stages = found.prediction.stages
    alike = list(rows_alike([(_parts(one), f"{one.memory.left_bytes:.0f}") for one in stages]))
    shown = sorted(alike, key=lambda row: float(row[1][1]))[:MOST_HELD]
    of = ", of the stage with the least room" if len(alike) > MOST_HELD else ""
    table = Table(f"memory at the fullest instant{of}", (text("stage", 2), text("held by", 1, least=24)))
    for name, (held, _) in alike:
        if any(name == one for one, _ in shown):
            table.add(name, held)
    return table


def _parts(stage: StagePrediction) -> str:
    """What a stage holds at its fullest instant, in the order of `HELD`."""
    held = dict(stage.memory.parts)
    return ", ".join(f"{name} {nbytes(held[name])}" for name in HELD if held.get(name))


def _traffic(page: Page, found: Estimate) -> None:
    received = ", ".join(f"{decimal_bytes(one)} over {tier}" for tier, one in found.prediction.traffic)
    page.say(f"{received or 'nothing'}, in a step, by all ranks together", label="received: ")


def _provenance(page: Page, found: Estimate) -> None:
    """The numbers that everything above follows from."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in found.prediction.provenance)
    page.say(f"provenance: {kinds}")
    page.say(f"times, memory and shares follow from these: they are {worth(found.weakest)}")


# Many ----------------------------------------------------------------------------------------------------------------


def show_ranked(ask: Ask, numbers: Sequence[int], outcomes: Sequence[Outcome], top: int) -> None:
    """Print the fastest configurations, those that fit first."""
    page = Page()
    page.say(ask.model, "bold")
    _setting(page, ask, ask.global_batch)
    page.blank()
    priced = [(number, one) for number, one in zip(numbers, outcomes, strict=True) if not one.error]
    priced.sort(key=lambda pair: (not pair[1].fits, pair[1].step_time_s, pair[0]))
    shown = priced[:top]
    names = [name for name in NAMES if name != "microbatches"]  # they follow from dp and mbs
    varied = [name for name in names if len({one.config[name] for _, one in shown}) > 1]
    same = ",".join(f"{name}={word(shown[0][1].config[name])}" for name in names if shown and name not in varied)
    table = Table(
        "configurations by step time, those that fit first",
        (
            text("rank", 3, Way.DROP),
            number("line", 6),
            text("pins", 4, least=20),
            number("step time"),
            number("tokens/s/GPU", 2),
            number("MFU", 1),
            number("peak memory", 5),
            number("fits"),
        ),
    )
    for rank, (line, one) in enumerate(shown, 1):
        pins = ",".join(f"{name}={word(one.config[name])}" for name in varied)
        figures = (seconds(one.step_time_s), count(one.tokens_per_s_per_gpu), percent(one.mfu))
        fits = "yes" if one.fits else "no"
        table.add(str(rank), str(line), pins, *figures, nbytes(one.peak_memory_bytes), fits)
    if priced:
        page.say(f"all of these have {same}")
        page.table(table)
    fitting, failed = sum(one.fits for _, one in priced), len(outcomes) - len(priced)
    left = f"; {len(priced) - top:,} more are not shown (--top)" if len(priced) > top else ""
    refused = f"; {failed:,} could not be priced" if failed else ""
    page.say(f"{len(priced):,} priced, {fitting:,} of them fit{refused}{left}")
    if priced:
        page.say(f"numbers are {worth(weakest_kind(*(one.weakest for _, one in priced)))}")
    page.print()
