"""What `make demo` shows: a real model inspected, another one planned, then a plan for its tiny twin executed on
simulated devices and checked.

    1. `plan inspect` on Llama-3.1-405B, from its configuration: no weights, no GPU.
    2. `plan` for Llama-3.1-8B on 64 H100: the fastest plan that fits, its proof, and why not another one.
    3. A tiny Llama (examples/llama.py) is traced and folded; a plan is written from degrees (data 2 x tensor 2,
    sequence parallel, ZeRO-3, two pipeline stages, 1F1B); it is lowered to the program that eight devices would run.
    4. One block of that program runs on simulated devices, then the whole training step; both are compared with
    torch's autograd on the unsharded model.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from rich.console import Console

from meshwright.backends.torch_.verify.compare import TOLERANCE, differences, random_values
from meshwright.backends.torch_.verify.step import step_differences
from meshwright.ir.factors import body_loops
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.load import load_model
from meshwright.ir.lower import lower
from meshwright.ir.names import Degrees, name_of, template
from meshwright.ir.program import BodyProgram
from meshwright.ir.verify_program import verify_program
from meshwright.planner.cli import main as plan

EXAMPLES = Path(os.path.relpath(Path(__file__).parent))
MODEL = str(EXAMPLES / "configs" / "llama-3.1-405b" / "config.json")
PLANNED = str(EXAMPLES / "configs" / "llama-3.1-8b")
QUESTION = (PLANNED, "--cluster", "8x8xH100", "--global-batch", "128", "--seq", "8192")
WHY_NOT = "tp=8"
TWIN = f"{EXAMPLES / 'llama.py'}:tiny"
BATCH, SEQ = 4, 16
DEGREES = Degrees(dp=2, tp=2, pp=2, sequence_parallel=True, zero=3, schedule="1f1b", microbatches=4)


def main() -> int:
    """Run the four parts; 0 if everything agrees."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    console.rule("1. what the planner sees in Llama-3.1-405B")
    console.print(f"$ plan inspect {MODEL} --batch 2 --seq 8192\n", markup=False)
    sys.stdout.flush()
    if code := plan(["inspect", MODEL, "--batch", "2", "--seq", "8192"]):
        return code

    console.rule("2. the fastest plan that fits, for Llama-3.1-8B on 64 H100")
    with tempfile.TemporaryDirectory() as folder:
        for words in (["plan", *QUESTION, "--out", folder], ["explain", folder, "--why-not", WHY_NOT]):
            console.print(f"\n$ plan {' '.join(words).replace(folder, 'out').removeprefix('plan ')}\n", markup=False)
            sys.stdout.flush()
            if code := plan(words):
                return code

    console.rule("3. a plan for a tiny twin, lowered")
    torch.manual_seed(0)
    fold = capture(load_model(TWIN), batch=BATCH, seq=SEQ).fold
    decisions = template(fold, DEGREES)
    program = lower(fold, decisions)
    verify_program(program)
    stack = next(segment for segment in fold.segments if not segment.glue)
    block = program.body(stack.period[0])
    graph = fold.body[block.body].graph
    found = body_loops(fold)[block.body]
    named = {axis: name_of(decisions.plan[block.name], graph, found, axis) for axis in block.mesh.names}
    console.print(f"{TWIN}: {len(fold.segments)} segments, block {block.name} x {stack.repeats}")
    for stage in decisions.stages:
        console.print(f"stage: calls {stage.first} to {stage.last - 1} on ranks {stage.ranks}, mesh {stage.mesh}")
    for axis, name in named.items():
        console.print(f"axis {axis} is used as {name}; per block and micro-batch: {traffic(block, axis)}")

    console.rule("4. executed on simulated devices, against the unsharded model")
    wrong = differences(graph, decisions.plan[block.name], block.mesh, random_values(graph))
    console.print(f"one block on {block.mesh.size} devices, forward and backward: {verdict(wrong)}")
    wrong_step = step_differences(fold, decisions)
    devices = sum(len(ranks) for ranks in decisions.groups)
    console.print(f"whole step on {devices} devices, {DEGREES.microbatches} micro-batches: {verdict(wrong_step)}")
    console.print(f"\n{time.perf_counter() - started:.0f} s")
    return 7 if wrong or wrong_step else 0


def traffic(block: BodyProgram, axis: str) -> str:
    """The collectives of one run of a block along an axis, parameters and gradients of parameters included."""
    counts = Counter(move.step.kind for move in block.moves() if axis in move.step.axes)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "nothing"


def verdict(wrong: list[str]) -> str:
    return f"DIFFERS: {', '.join(wrong)}" if wrong else f"equal (to {TOLERANCE:g} of the largest gradient)"


if __name__ == "__main__":
    raise SystemExit(main())
