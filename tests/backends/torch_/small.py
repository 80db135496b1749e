"""Plans of a small Llama that is written by hand, graphs and calls, so that they are made and emitted in milliseconds:
nothing of it is traced, and its file is not there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.backends.subject import Subject
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit.read.axes import cuts_more
from meshwright.backends.torch_.emit.write.files import parts_of as parts_in
from meshwright.backends.torch_.emit.write.parts import Parts
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.names import Degrees, template
from meshwright.ir.program.lower import lower
from meshwright.ir.target.workload import Workload
from tests.llama_block import Sizes, model

FP32 = Workload(global_batch=8, seq=16, precision="fp32", recipe="fp32")
MIXED = Workload(global_batch=8, seq=16, precision="bf16")
INSIDE = {"q": "attn", "k": "attn", "v": "attn", "o": "attn", "gate": "mlp", "up": "mlp", "down": "mlp"}
"""The modules of a block that its products are in."""
OUTSIDE = {"act": "mlp", "prod": "mlp", "attn": "attn", "attn_t": "attn", "attn_flat": "attn"}
"""Those of operators without weights."""


def in_modules(graph: Graph) -> Graph:
    """The graph with a module for each operator that reads a weight, and modules around products."""

    def placed(path: str) -> str:
        first = path.partition(".")[0]
        return f"{INSIDE[first]}.{path}" if first in INSIDE else path

    params = tuple(replace(one, paths=tuple(map(placed, one.paths))) for one in graph.params)
    owner = {one.value: one.path.rpartition(".")[0] for one in params}
    ops = []
    for op in graph.ops:
        module = next((owner[value] for value in op.operands if value in owner), "")
        module = module or OUTSIDE.get(op.name, INSIDE.get(op.name.partition("_")[0], ""))
        ops.append(replace(op, module=module))
    return replace(graph, params=params, ops=tuple(ops))


@cache
def fold_of(dtype: str = "f32", layers: int = 2, batch: int = 4) -> Fold:
    """As `tests.llama_block` has it, with modules."""
    made = model(Sizes(layers=layers, dtype=dtype, batch=batch))
    return replace(made, bodies=tuple(replace(body, graph=in_modules(body.graph)) for body in made.bodies))


def calls_of(fold: Fold) -> Calls:
    """Blocks one after the other, and the modules in them."""
    blocks = next(one.paths for one in fold.segments if not one.glue)
    inside = (f"{path}.{part}" for path in blocks for part in ("norm1", "attn", "norm2", "mlp"))
    return Calls(
        file=Path("llama.py"),
        factory="tiny",
        entries=("tokens",),
        called=frozenset(("embed", *blocks, *inside, "norm", "head")),
        has_optimizer=False,
    )


def subject(workload: Workload = FP32, *, layers: int = 2, target: str = "torch-gloo", **degrees: Any) -> Subject:
    """The plan that degrees mean."""
    dtype = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[workload.precision]
    fold = fold_of(dtype, layers, workload.global_batch // degrees.get("microbatches", 1))
    return planned(fold, template(fold, Degrees(**degrees), target), workload)


def planned(fold: Fold, decisions: Decisions, workload: Workload = FP32) -> Subject:
    """What decisions mean."""
    program = lower(fold, decisions, TORCH_GLOO.lowering(), workload)
    return Subject(
        fold=fold,
        decisions=decisions,
        program=program,
        workload=workload,
        calls=calls_of(fold),
        config="small",
    )


def parts_of(plan: Subject) -> Parts:
    """What its script says."""
    return parts_in(replace(plan, prints=plan.prints or cuts_more(plan)), Path("/out"), [])
