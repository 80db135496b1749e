"""Plans of models in JAX by degrees, as the emitter takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.emitted_jax import BATCH, SEQ, WORKLOADS, model_at, subject_of
from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.emitted import Job, words
from meshwright.backends.subject import Subject
from meshwright.ir.names import Degrees
from meshwright.ir.target.capabilities import Capabilities

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


def job(plan: Subject, folder: Path) -> Job:
    """Its script, written into a folder."""
    emit(plan, folder).write(folder)
    return Job.of(plan, folder)


def words_of(reference: str) -> int:
    """How many tokens are drawn from for a model."""
    return words(model_at(reference)[0])
