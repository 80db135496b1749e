"""Plans of models in JAX by degrees, as the emitter takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.emitted_jax import BATCH, SEQ, WORKLOADS, model_at, subject_of
from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.emitted import Job, Ran, verdict, words
from meshwright.backends.subject import Subject
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.names import Degrees
from meshwright.ir.program.lower import lower
from meshwright.ir.target.capabilities import Capabilities
from tests.backends.jax_.proved import ran
from tests.backends.torch_.emitted import unclean

__all__ = ["BATCH", "SEQ"]
ROOT = Path(__file__).parents[3]
LLAMA = f"{ROOT / 'examples' / 'jax_llama.py'}"
ZOO = ROOT / "tests" / "ir" / "frontends" / "jax_zoo"
TARGET = JAX_CPU
WORKLOAD = WORKLOADS["fp32"]
model = model_at


def subject(reference: str, *, on: Capabilities = JAX_CPU, **degrees: Any) -> Subject:
    """The plan that degrees mean; in bf16 on devices that have it."""
    return subject_of(reference, Degrees(**degrees), on=on, dtype="fp32" if on is JAX_CPU else "bf16")


def with_decisions(plan: Subject, decisions: Decisions) -> Subject:
    """The plan with other decisions."""
    program = lower(plan.fold, decisions, JAX_CPU.lowering().for_stack(plan.workload.stack), plan.workload)
    return replace(plan, decisions=decisions, program=program)


def job(plan: Subject, folder: Path) -> Job:
    """Its script, written into a folder."""
    emit(plan, folder).write(folder)
    return Job.of(plan, folder)


def ran_together(
    name: str, plans: Sequence[tuple[str, dict[str, Any]]], folder: Path, limit_s: float
) -> list[tuple[Job, Ran]]:
    """The scripts of plans, and what they left in one process: on record by this name, or now."""
    jobs = {}
    for at, (reference, degrees) in enumerate(plans):
        kind = " ".join([Path(reference).name, *(f"{word}={value}" for word, value in degrees.items())])
        jobs[kind] = job(subject(reference, **degrees), folder / str(at))
    assert len(jobs) == len(plans), "each has a name of its own"
    left = ran(name, jobs, limit_s)
    return [(one, left[kind]) for kind, one in jobs.items()]


def unclean_of(plans: Sequence[tuple[str, dict[str, Any]]], folder: Path) -> str:
    """What ruff says of the scripts of plans."""
    for number, (reference, degrees) in enumerate(plans):
        emit(subject(reference, **degrees), folder / str(number)).write(folder / str(number))
    return unclean(folder, types=False)


def needed_of(one: Job, left: Ran, rewrites: Sequence[str]) -> set[str]:
    """The rewrites without which collectives of a script differ."""
    without = {name: verdict(one, left, tuple(other for other in rewrites if other != name)) for name in rewrites}
    return {name for name, found in without.items() if not found.exact}


def words_of(reference: str) -> int:
    """How many tokens are drawn from for a model."""
    return words(model_at(reference)[0])
