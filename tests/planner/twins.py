"""Plans by degrees for real models and clusters, and their small twins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.backends.torch_.capabilities import TORCH_CUDA
from meshwright.backends.torch_.emit import Subject
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.torch_.sources.factory import TorchSource
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.names.stages import layer_calls
from meshwright.ir.program.lower import lower
from meshwright.ir.target.workload import Workload
from meshwright.planner.plan.twin import Planned
from meshwright.planner.question.pins import fill, parse
from meshwright.planner.refine.heterogeneous import neighbours, over_parts

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA, OWN = str(EXAMPLES / "configs" / "llama-3.1-8b"), f"{EXAMPLES / 'llama.py'}:llama_8b"
RANKS, SEQ = 64, 512


@cache
def seen(model: str, batch: int) -> tuple[TorchSource, Captured]:
    source = load_model(model, dtype="bf16")
    return source, capture(source, batch=batch, seq=SEQ)


def captured(model: str, batch: int) -> tuple[TorchSource, Fold]:
    source, found = seen(model, batch)
    return source, found.fold


def subject_of(plan: Planned) -> Subject:
    """The plan itself, to be emitted for its GPUs, in fp32."""
    workload = replace(plan.workload, precision="fp32", recipe="fp32")
    shape: dict[str, Any] = {"batch": plan.config.batch, "seq": SEQ}
    constants = seen(plan.model, plan.config.batch)[1].constants
    return Subject(
        fold=plan.fold,
        decisions=plan.decisions,
        program=lower(plan.fold, plan.decisions, TORCH_CUDA.lowering(), workload),
        workload=workload,
        calls=calls_of(plan.source, plan.model, **shape, constants=constants),
        config=str(plan.config),
    )


def over_unlike(model: str, *degrees: Degrees, batch: int = 8, microbatches: int = 8) -> Planned:
    """A plan of stages with these meshes, and as many blocks in each."""
    source, fold = captured(model, batch)
    blocks, several = len(layer_calls(fold)), len(degrees)
    counts = [blocks * (at + 1) // several - blocks * at // several for at in range(several)]
    asked = parse([f"tp=1,dp=1,mbs={batch},microbatches={microbatches}"])
    config = fill(asked, ranks=1, global_batch=batch * microbatches)
    return Planned(
        model=model,
        source=source,
        fold=fold,
        decisions=over_parts(fold, neighbours(*degrees), counts, Schedule("1f1b", microbatches), "torch-cuda"),
        config=replace(config, split="even"),
        workload=Workload(global_batch=batch * microbatches, seq=SEQ),
    )


def planned(model: str, pins: str, batch: int = 64) -> Planned:
    """The plan that pins mean, for 64 GPUs."""
    config = replace(fill(parse([pins]), ranks=RANKS, global_batch=batch), split="even")
    source, fold = captured(model, config.batch)
    return Planned(
        model=model,
        source=source,
        fold=fold,
        decisions=template(fold, config.degrees(), "torch-cuda"),
        config=config,
        workload=Workload(global_batch=batch, seq=SEQ),
    )
