"""The summary of a plan: what it is, takes and holds, against what a person would write, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.cost_models.prediction import Prediction
from meshwright.ir.sharding.shares import shares_of
from meshwright.planner.plan.types import Plan, Rival
from meshwright.planner.plan.units import percent, seconds
from meshwright.planner.plan.words import gap_text, in_words, operator_gap_text, worth

HOLDS = "four of five"
"""Measurements that an interval is meant to hold (docs/prices.md)."""

SAME = 1.0005
"""Step times within this factor of each other are told as equal: three digits are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A plan in sentences and figures."""

    model: str
    parameters: int
    question: str
    cluster: str
    software: str
    config: str
    words: tuple[str, ...]
    step_s: float
    low_s: float
    high_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    shares: tuple[tuple[str, float], ...]
    """Seconds of the step on the busiest ranks, by what they are spent on."""
    beside: str
    gap: str
    operator_gap: str
    """Empty where nothing is known."""
    confidence: str
    provenance: tuple[tuple[str, str], ...]
    changed: tuple[str, ...]
    """What is not as it was when the plan was made."""
    binding: tuple[tuple[str, str], ...]
    truncated: tuple[str, ...]
    notes: tuple[str, ...]


def summary_of(plan: Plan, prediction: Prediction, changed: Sequence[str] = ()) -> Summary:
    """The summary of a plan, as it is priced now."""
    workload, machines = plan.workload, plan.machines
    hosts = "1 host" if machines.hosts == 1 else f"{machines.hosts:,} hosts"
    stack = workload.stack
    return Summary(
        model=plan.model.ref,
        parameters=plan.model.parameters,
        question=f"{workload.global_batch:,} sequences of {workload.seq:,} tokens in {workload.precision}, "
        f"with {workload.optimizer}",
        cluster=f"{machines.ranks:,} ranks ({' and '.join(machines.devices)}) on {hosts}: {machines.ref}",
        software=f"stack {stack.name}: {stack.style} kernels, recipe {workload.recipe or stack.recipe}; "
        f"target {plan.decisions.target}",
        config=str(plan.config),
        words=tuple(in_words(plan.config, shares_of(plan.decisions))),
        step_s=prediction.step_time_s,
        low_s=prediction.step_time_low_s,
        high_s=prediction.step_time_high_s,
        tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu,
        mfu=prediction.mfu,
        shares=prediction.shares,
        beside=beside(plan.baselines),
        gap=gap_text(plan),
        operator_gap=operator_gap_text(plan) if plan.bounds.operators_s else "",
        confidence=f"The interval is meant to hold {HOLDS} measurements. What the numbers stand on is "
        f"{worth(plan.provenance.weakest)}.",
        provenance=tuple(prediction.provenance),
        changed=tuple(changed),
        binding=tuple((one.kind, one.what) for one in plan.binding),
        truncated=plan.bounds.truncated,
        notes=plan.notes,
    )


def beside(baselines: Sequence[Rival]) -> str:
    """The plan against the best of those that a person would write, in a sentence."""
    possible = [one for one in baselines if one.config is not None]
    fitting = [one for one in possible if one.fits]
    if not possible:
        return "None of the plans that a person would write can be had here."
    if not fitting:
        return "None of the plans that a person would write fits in memory."
    best = min(fitting, key=lambda one: (one.step_time_s, one.name))
    known = f"the best plan that a person would write ({best.name}, {seconds(best.step_time_s)})"
    if 1 / SAME < best.slower < SAME:
        return f"It is as fast as {known}."
    if best.slower < 1:
        return f"It takes {1 / best.slower:.2f} times as long as {known}."
    return f"It is {best.slower:.2f} times as fast as {known}, and saves {percent(1 - 1 / best.slower)} of that."
