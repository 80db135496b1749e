"""The report of an answered search: comparisons with other plans, and what keeps the plan where it is.

differences   shares of a step time add up to it (`cost_models.prediction`), so the shares of two plans, one less the
              other, add up to the time between them: that is why one lost
alternatives  of everything that was priced, the fastest of every other kind (degrees that split operators, and
              stages), and of what would be faster and does not fit the one that lacks
              least
frontier      of everything that was priced, what nothing else undercuts in both time and memory
binding       one step away from the plan in each direction: what the model, the batch or the target refuse, and what
              does not fit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from math import inf

from meshwright.cost_models.hardware.cluster import suspicions
from meshwright.cost_models.hardware.quantity import weakest_kind
from meshwright.cost_models.prediction import Prediction
from meshwright.ir.errors import (
    BatchIndivisible,
    CapabilityError,
    DegreeImpossible,
    ExpertsIndivisible,
    HeadsIndivisible,
    LayersIndivisible,
    MeshwrightError,
    SequenceIndivisible,
    WidthIndivisible,
)
from meshwright.ir.sharding.shares import shares_of, weights_of
from meshwright.planner.answer.solve import Solved
from meshwright.planner.plan.notes import EMISSION_REFUSES, IDLE, OWN_MESHES, PASSED_OVER, UNSURE
from meshwright.planner.plan.types import Binding, Bounds, Machines, Model, Plan, Point, Provenance, Rival, blocks_of
from meshwright.planner.plan.units import nbytes, percent, seconds
from meshwright.planner.question.pins import Config
from meshwright.planner.search.emittable import by_code
from meshwright.planner.search.search import Found
from meshwright.planner.space.baselines import NAMES

ALTERNATIVES = 5
"""That are kept, unless more are asked for."""
TOLD = 0.002
"""Of the step time: smaller differences are not worth a word."""
MOST_TOLD = 4
THINNED = 0.02
"""Of the memory of a configuration of the frontier: the next one needs less by this share or more."""

LEFT_OUT = {
    "cost": (
        "numbers of hosts that do not divide the cluster's",
        "some devices of a host",
        "some hosts of several pools",
    )
}
"""What objectives leave out of the space."""

KINDS: Mapping[type[MeshwrightError], str] = {
    HeadsIndivisible: "heads",
    ExpertsIndivisible: "experts",
    WidthIndivisible: "width",
    SequenceIndivisible: "sequence",
    BatchIndivisible: "batch",
    LayersIndivisible: "layers",
    DegreeImpossible: "degrees",
    CapabilityError: "target",
}
"""What binds, by what is refused."""


def differences(one: Prediction, other: Prediction) -> tuple[tuple[str, float], ...]:
    """Seconds that `one` takes longer than `other`, by share of the step; the largest first."""
    mine, theirs = dict(one.shares), dict(other.shares)
    found = {name: mine.get(name, 0.0) - theirs.get(name, 0.0) for name in dict.fromkeys((*mine, *theirs))}
    return tuple(sorted(found.items(), key=lambda item: (-abs(item[1]), item[0])))


def told(found: tuple[tuple[str, float], ...], step_s: float) -> str:
    """The differences that matter, in words."""
    worth = [(name, more_s) for name, more_s in found if abs(more_s) >= TOLD * step_s][:MOST_TOLD]
    return ", ".join(f"{'+' if more_s > 0 else '-'}{seconds(abs(more_s))} {name}" for name, more_s in worth)


def shortest(prediction: Prediction) -> tuple[int, float]:
    """The stage that lacks most memory, and the bytes; -1 and 0 if all fit."""
    lacks = [(stage.memory.lacks_bytes, -stage.stage) for stage in prediction.stages]
    most, stage = max(lacks)
    return (-stage, most) if most > 0 else (-1, 0.0)


def rival(name: str, found: Found, best: Found, objective: str = "time", unwritten: str = "") -> Rival:
    """A plan to compare the answer with; `unwritten` is the code of the refusal if it is not emitted."""
    stage, short = shortest(found.prediction)
    delta = differences(found.prediction, best.prediction)
    words = told(delta, best.step_s)
    if stage >= 0:
        lost = f"does not fit: short {nbytes(short)} on stage {stage}"
    elif found == best:
        lost = "it is the plan"
    elif objective == "memory":
        lost = f"+{nbytes(found.prediction.peak_memory_bytes - best.prediction.peak_memory_bytes)}"
    elif found.step_s == best.step_s:
        lost = "as fast"
    elif found.step_s < best.step_s:
        lost = f"faster: {words}" if words else "hardly faster"
    else:
        lost = words or "hardly slower"
    if unwritten:
        lost = f"{lost}; {EMISSION_REFUSES} ({unwritten})"
    return Rival(
        name=name,
        config=found.config,
        step_time_s=found.step_s,
        peak_memory_bytes=found.prediction.peak_memory_bytes,
        short_stage=stage,
        short_bytes=short,
        slower=found.step_s / best.step_s,
        differences=tuple((share, more_s) for share, more_s in delta if more_s),
        lost=lost,
    )


def plan_of(solved: Solved, top: int = ALTERNATIVES) -> Plan:
    """The plan that a search has found. Must: there is one."""
    best = solved.best
    assert best is not None
    setting, ask, workload = solved.setting, solved.ask, solved.setting.workload
    fold = setting.fold(best.config)
    decisions = solved.decisions
    kinds = [kind for _, kind in best.prediction.provenance]
    cautions = setting.cautions() if best.config.microbatches > 1 else ()
    return Plan(
        decisions=decisions,
        config=best.config,
        model=Model.of(ask.model, fold, setting.folds.source.config),
        machines=Machines.of(ask.cluster_reference, ask.cluster),
        workload=workload if workload.recipe != workload.stack.recipe else replace(workload, recipe=""),
        prediction=best.prediction,
        bounds=_bounds(solved, best),
        baselines=tuple(_baselines(solved, best)),
        alternatives=tuple(_alternatives(solved, best, top)),
        frontier=tuple(_frontier(solved)),
        binding=tuple(_binding(solved, best)),
        provenance=Provenance.of(weakest_kind(*kinds), ask.seed, ask.profile),
        blocks=blocks_of(decisions, fold),
        notes=(
            *_idle(solved),
            *_unsure(solved, best),
            *_refinements(solved),
            *solved.notes,
            *ask.notes,
            *suspicions(ask.cluster),
            *setting.folds.first(best.config.batch).notes,
            *cautions,
            *_unwritten(solved, best),
        ),
    )


def _unwritten(solved: Solved, best: Found) -> Iterator[str]:
    """Notes on plans that no code is written for: those in whose place the answer was chosen, and the plan itself."""
    emission = solved.search.emission
    outright = emission.notes() if emission else ()
    yield from dict.fromkeys((*solved.setting.unwritten(best.config), *outright))
    if emission is None:
        return
    ranked = sorted(emission.passed, key=lambda one: (solved.score(Found(one.config, one.prediction)), str(one.config)))
    better = [one for one in ranked if solved.score(Found(one.config, one.prediction)) < solved.score(best)]
    for code, several in by_code(better).items():
        first, more = several[0], f", and of {len(several) - 1} more" * (len(several) > 1)
        yield (
            f"{PASSED_OVER}: {first.config}, {seconds(first.prediction.step_time_s)} a "
            f"step ({code}: {first.refusal.place}, {first.refusal.cause}){more}"
        )


def _idle(solved: Solved) -> Iterator[str]:
    used, whole = solved.ask.cluster.hosts, solved.hosts or solved.ask.cluster.hosts
    if used < whole:
        yield f"{whole - used:,} of {whole:,} hosts {IDLE}: the plan is for the other {used:,}"


def _refinements(solved: Solved) -> Iterator[str]:
    """Notes on what the plan has that no configuration of the declared space has."""
    refined = solved.refined
    if refined is None:
        return
    even = solved.search.best
    pinned = " that have the pins of modules" if solved.asked.modules else ""
    faster = percent(1 - refined.prediction.step_time_s / even.step_s) if even else ""
    gained = f", {faster} faster than the best of them{pinned}" if even else ""
    yield f"the plan was refined beyond named degrees{gained}"
    if refined.config is None:
        yield OWN_MESHES
    elif refined.config.stage_blocks and not solved.asked.constraints.only.keys() & {"split", "stage_blocks"}:
        yield f"layers of the stages, shared out by what they take: {'+'.join(map(str, refined.counts))}"
    if shares := shares_of(refined.decisions):
        yield f"copies on different devices take unequal shares of every micro-batch: {':'.join(map(str, shares))}"
    if weights := weights_of(refined.decisions):
        total = sum(weights)
        held = ":".join(f"{weight / total:.1%}" for weight in weights)
        yield f"of what ZeRO cuts they hold as much as they have room for: {held}"
    if any(stage.ranks != tuple(range(min(stage.ranks), max(stage.ranks) + 1)) for stage in refined.decisions.stages):
        yield "ranks are placed where links and devices want them: see `ranks` of plan.json"
    if refined.changed:
        yield f"operators were planned anew in {', '.join(refined.changed)}: see `placements` of plan.json"
    if refined.custom:
        made, now_s = refined.custom, refined.prediction.step_time_s
        gain = f"{percent(1 - now_s / made.before_s)} faster than with {made.before}" if made.before_s > now_s else ""
        gain = gain or (f"as fast as with {made.before}" if made.before_s else f"with {made.before} it does not fit")
        yield (
            f"the pipeline's schedule was made for this plan: {gain}; no order of its work takes less than "
            f"{seconds(made.least_s)}"
        )
    if refined.idle:
        yield f"{len(refined.idle)} ranks {IDLE}: {', '.join(map(str, refined.idle))}"


def _bounds(solved: Solved, best: Found) -> Bounds:
    search, constraints = solved.search, solved.asked.constraints
    return Bounds(
        objective=solved.objective,
        lower=solved.proved,
        upper=solved.score(best),
        gap=solved.gap,
        operators_s=min(solved.operators_s, best.step_s),
        more_axes_s=min(solved.more_axes_s, best.step_s),
        complete=solved.complete,
        only=constraints.only,
        never=constraints.never,
        modules=solved.asked.modules,
        truncated=(*search.space.truncated, *LEFT_OUT.get(solved.objective, ())),
        counts=asdict(search.counts),
    )


# What it is held against ---------------------------------------------------------------------------------------------


def _baselines(solved: Solved, best: Found) -> Iterator[Rival]:
    search = solved.search
    for name in NAMES:
        if name in search.baselines:
            found = search.baselines[name]
            yield rival(name, found, best, solved.objective, _code(solved, found))
        elif name in search.unpriced:
            yield Rival(
                name=name,
                config=None,
                step_time_s=0.0,
                peak_memory_bytes=0.0,
                short_stage=-1,
                short_bytes=0.0,
                slower=0.0,
                differences=(),
                lost=search.unpriced[name],
            )


def _unsure(solved: Solved, best: Found) -> Iterator[str]:
    """A note where the plan is faster than what a person would write by less than the prediction is sure of."""
    usual = [(found.step_s, name) for name, found in solved.search.baselines.items() if found.fits]
    step_s, name = min(usual, default=(0.0, ""))
    if best.step_s < step_s <= best.prediction.step_time_high_s and step_s > (1 + TOLD) * best.step_s:
        yield f"{name} takes {step_s / best.step_s - 1:.0%} longer by this count, which is {UNSURE}"


def _code(solved: Solved, found: Found) -> str:
    """The code of the refusal to emit a configuration that fits; empty if it is emitted."""
    emission = solved.search.emission
    if emission is None or not found.fits or found == solved.best:
        return ""
    try:
        decisions = solved.setting.decisions(found.config, solved.global_batch)
    except MeshwrightError:  # a baseline of the whole cluster, where the plan is for one pool of it
        return ""
    refusal = emission.refusal(found.config, decisions)
    return refusal.code if refusal else ""


def _alternatives(solved: Solved, best: Found, top: int) -> Iterator[Rival]:
    """The fastest plan of every family but the answer's."""
    ranked = sorted(solved.search.found.values(), key=lambda found: (solved.score(found), str(found.config)))
    faster = _nearly(solved, best)
    if faster:
        yield rival("faster, but does not fit", faster, best, solved.objective)
    known = {_family(best.config)}
    usual = {found.config for found in solved.search.baselines.values()}
    for found in ranked:
        if found.config in usual:
            continue
        family = _family(found.config)
        if found.fits and family not in known and len(known) <= top:
            known.add(family)
            yield rival("", found, best, solved.objective, _code(solved, found))


def _frontier(solved: Solved) -> Iterator[Point]:
    """The fastest configuration, and after it the next one that needs less memory by `THINNED` or more."""
    ranked = sorted(
        solved.search.found.values(), key=lambda one: (one.step_s, one.prediction.peak_memory_bytes, str(one.config))
    )
    room_bytes = inf
    for one in ranked:
        peak = one.prediction.peak_memory_bytes
        if peak <= (1 - THINNED) * room_bytes:
            yield Point(config=one.config, step_time_s=one.step_s, peak_memory_bytes=peak, fits=one.prediction.fits)
            room_bytes = peak


def _nearly(solved: Solved, best: Found) -> Found | None:
    """The configuration that is clearly faster, does not fit, and lacks least."""
    below_s = (1 - TOLD) * best.step_s
    full = [found for found in solved.search.found.values() if not found.fits and found.step_s < below_s]
    return min(full, key=lambda found: (shortest(found.prediction)[1], str(found.config)), default=None)


def _family(config: Config) -> tuple[object, ...]:
    """The values by which people tell plans apart."""
    return config.tp, config.cp, config.ep, config.pp, config.context if config.cp > 1 else "", config.zero


# What binds ----------------------------------------------------------------------------------------------------------


def _binding(solved: Solved, best: Found) -> Iterator[Binding]:
    found = _nearly(solved, best)
    if found:
        stage, short = shortest(found.prediction)
        yield Binding(
            kind="memory",
            what=f"stage {stage}: {found.config} would take {seconds(found.step_s)}, and is short {nbytes(short)}",
        )
    for step, config in _steps(best.config, solved.setting.target.usual_schedule):
        try:
            solved.setting.decisions(solved.search.space.settled(config), solved.global_batch)
        except MeshwrightError as error:
            kind = next((word for kind, word in KINDS.items() if isinstance(error, kind)), "")
            if kind:
                yield Binding(kind=kind, what=f"{step}: {error.cause}")
    for name, values in solved.asked.constraints.only.items():
        yield Binding(kind="constraint", what=f"{name} was to be {' or '.join(map(str, values))}")
    for name, values in solved.asked.constraints.never.items():
        yield Binding(kind="constraint", what=f"{name} was not to be {' or '.join(map(str, values))}")
    for pin in solved.asked.modules:
        yield Binding(kind="constraint", what=str(pin))


def _steps(config: Config, schedule: str) -> Iterator[tuple[str, Config]]:
    """Configurations one step away, in every direction that copies, or micro-batches, can pay for; a pipeline with this
    schedule."""
    for name in ("tp", "cp", "pp"):
        if config.dp % 2 == 0:
            twice = 2 * getattr(config, name)
            change = {name: twice, "dp": config.dp // 2, "microbatches": 2 * config.microbatches, "stage_blocks": ()}
            change |= {"shard": 0} | ({"sp": True} if name == "tp" else {})
            if name == "pp" and config.pp == 1:
                change["schedule"] = schedule
            yield f"{name}={twice}", replace(config, **change)
    if config.ep > 1:
        yield f"ep={2 * config.ep}", replace(config, ep=2 * config.ep)
    if config.microbatches == 1:
        yield f"mbs={2 * config.mbs}", replace(config, mbs=2 * config.mbs)
