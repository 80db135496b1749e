"""Plans of models in JAX by degrees, as the emitter takes them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.backends.jax_.capabilities import JAX_CPU
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.emitted import Job, words
from meshwright.backends.subject import Subject
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.target.capabilities import Capabilities
from meshwright.ir.target.workload import STACKS, Workload

ROOT = Path(__file__).parents[3]
LLAMA = f"{ROOT / 'examples' / 'jax_llama.py'}"
ZOO = ROOT / "tests" / "ir" / "frontends" / "jax_zoo"
TARGET = JAX_CPU
BATCH, SEQ = 16, 32
WORKLOAD = Workload(global_batch=BATCH, seq=SEQ, precision="fp32", recipe="fp32", stack=STACKS["jax"])
BF16 = replace(WORKLOAD, precision="bf16", recipe="fsdp-bf16-reduce")


@cache
def model(reference: str, batch: int = BATCH, dtype: str = "fp32") -> tuple[Fold, Calls]:
    source = load_model(reference).in_dtype(dtype)
    return capture(source, batch=batch, seq=SEQ).fold, calls_of(source, reference, batch=batch, seq=SEQ)


def subject(reference: str, *, on: Capabilities = JAX_CPU, **degrees: Any) -> Subject:
    """The plan that degrees mean; in bf16 on devices that have it."""
    several = degrees.get("microbatches", 1)
    workload = WORKLOAD if on is JAX_CPU else BF16
    fold, calls = model(reference, BATCH // several, workload.precision)
    degrees |= on.ran(degrees.get("zero", 0), several)
    decisions = replace(template(fold, Degrees(**degrees), on.target), style="xla")
    on.check(decisions, fold, workload)
    program = lower(fold, decisions, on.lowering().for_stack(workload.stack), workload)
    config = " ".join(f"{name}={value}" for name, value in degrees.items())
    return Subject(fold=fold, decisions=decisions, program=program, workload=workload, calls=calls, config=config)


def job(plan: Subject, folder: Path) -> Job:
    """Its script, written into a folder."""
    emit(plan, folder).write(folder)
    return Job.of(plan, folder)


def words_of(reference: str) -> int:
    """How many tokens are drawn from for a model."""
    return words(model(reference)[0])
