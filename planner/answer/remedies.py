"""Remedies where the plans that are asked for cannot be expressed or emitted, each tried out.

    constraints take back what was asked of one name, or by one pin of modules; else of all
    target      plan for `any`, which is for prices, and no code is written for

A change is told only if a search under it finds a plan that fits, and that is emitted where it is for a runtime: no fix
leads back to the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.ir.errors import (
    CapabilityError,
    MeshwrightError,
    ModulePinUnmet,
    NoPlanInTime,
    NothingEmitted,
    SpaceEmpty,
)
from meshwright.ir.names.stages import too_many_stages
from meshwright.ir.target.capabilities import ANY
from meshwright.planner.answer.relax import tried
from meshwright.planner.answer.solve import Solved
from meshwright.planner.question.constraints import Asked
from meshwright.planner.question.pins import word
from meshwright.planner.search.emittable import Passed, by_code
from meshwright.planner.space.declared import Space


def refused(solved: Solved, time_limit: float | None) -> MeshwrightError | None:
    """The error of a search without an answer; None where plans can be had, and none of them fits."""
    if not solved.complete:
        ended = "it was interrupted" if solved.stop.interrupted else f"--time-limit {time_limit:g} ended it"
        return NoPlanInTime(
            place="plan, the search",
            cause=f"no plan that fits was found before {ended}{_passed_over(solved)}",
            fix="give it more time, or pin more of the plan",
        )
    if not solved.search.found and is_empty(solved.search.space):
        return empty(solved)
    if (nothing_emitted := unwritten(solved)) is not None:
        return nothing_emitted
    refusal = solved.search.refusal
    if refusal is not None and not solved.search.priced_any and not isinstance(refusal, ModulePinUnmet):
        return inexpressible(solved, refusal)
    return None


def _passed_over(solved: Solved) -> str:
    """Plans that fit and are not emitted, in words."""
    passed = solved.search.emission.passed if solved.search.emission else []
    return f"; {len(passed)} that fit was passed over ({', '.join(by_code(passed))})" if passed else ""


def unwritten(solved: Solved) -> MeshwrightError | None:
    """The error where plans fit and none of them is emitted: with the emission's code if there is only one."""
    passed = solved.search.emission.passed if solved.search.emission else []
    if not passed or solved.best is not None:
        return None
    codes = by_code(passed)
    kind = type(passed[0].refusal) if len(codes) == 1 else NothingEmitted
    fix = remedy(solved) or passed[0].refusal.fix
    return kind(place=_place(solved), cause=reasons(passed), fix=fix)


def reasons(passed: Iterable[Passed]) -> str:
    """The reasons why none of these plans is an answer, by the codes of their refusals."""
    return f"no code is written for any plan that fits: {'; '.join(map(_why, by_code(passed).values()))}"


def inexpressible(solved: Solved, refusal: MeshwrightError) -> MeshwrightError:
    """The error where the model or the target has no plan; for the target with a remedy."""
    if not isinstance(refusal, CapabilityError):
        return refusal
    fix = remedy(solved)
    return type(refusal)(place=refusal.place, cause=refusal.cause, fix=fix) if fix else refusal


def _why(several: list[Passed]) -> str:
    first = several[0]
    more = f", and {len(several) - 1} more" if len(several) > 1 else ""
    return f"{first.refusal.code} at {first.refusal.place}, {first.refusal.cause} ({first.config}{more})"


def _place(solved: Solved) -> str:
    return f"plan, {solved.asked.text or solved.ask.model}"


def remedy(solved: Solved) -> str:
    """The change that helps, in words; empty if nothing that is tried does."""
    return "; or ".join(_constraints(solved)) or next(_target(solved), "")


def _constraints(solved: Solved) -> Iterator[str]:
    """The constraints to take back, each by itself; all of them where none helps alone."""
    ask, setting, asked = solved.ask, solved.setting, solved.asked
    helped = False
    for name in asked.names:
        if found := tried(ask, setting, asked.without(name), solved.stop):
            helped = True
            yield f"ask nothing of {name}: with {name}={word(getattr(found.config, name))} there is a plan"
    for pin in asked.modules:
        if tried(ask, setting, asked.without_module(pin), solved.stop):
            helped = True
            yield f"take back {pin}"
    if not helped and len(asked.names) + len(asked.modules) > 1:
        found = tried(ask, setting, Asked(), solved.stop)
        if found:
            yield f"ask for nothing: there is a plan, {found.config}"


def _target(solved: Solved) -> Iterator[str]:
    ask, setting = replace(solved.ask, target=ANY), replace(solved.setting, target=ANY, bodies={})
    if tried(ask, setting, solved.asked, solved.stop):
        yield f"plan with --target {ANY.target}, which is for prices: no code is written for it"


def is_empty(space: Space) -> bool:
    """Whether the space holds nothing that was asked for."""
    return not any(
        True for base in space.bases() for pipeline in space.pipelines(base) for _ in space.storages(pipeline)
    )


def empty(solved: Solved) -> MeshwrightError:
    """The error for constraints that nothing satisfies: the contradicting ones, as far as taking one of them back
    shows."""
    space, asked = solved.search.space, solved.asked
    stages = [number for number in asked.constraints.only.get("pp", ()) if isinstance(number, int)]
    if stages and min(stages) > max(space.layers, 1):
        return too_many_stages(min(stages), space.layers)
    alone = [name for name in asked.names if not is_empty(replace(space, constraints=asked.without(name).constraints))]
    return SpaceEmpty(
        place=f"plan, {asked.text or 'the space'}",
        cause=f"{space.ranks} ranks, {space.global_batch} sequences and {space.layers} layers cannot be shared out so",
        fix=f"take back what was asked of {' or '.join(alone)}" if alone else "take back more than one of them",
    )
