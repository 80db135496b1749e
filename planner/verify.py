"""`plan verify PLAN`: the code of a plan, run on this machine and held against the model on one device.

What it will run and take is told before it starts (`verify_needs`). The plan is emitted into a folder of its own, and
exactly these files are run, one process per rank, under a time limit (`backends.torch_.verify.emitted`). The exit code
is 7 if anything differs, 8 if a process ended early, took too long, or would take more memory than it may.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.needed import check_torch
from meshwright.cost_models.memory import stepped_on_host, tensors_held
from meshwright.ir.errors import VerificationTooLarge
from meshwright.ir.program import Program
from meshwright.planner.alone import verify_alone
from meshwright.planner.emit import subject_of, tiny
from meshwright.planner.output import folder_of
from meshwright.planner.plan import made
from meshwright.planner.plan_file import load_plan
from meshwright.planner.reenter import reenter
from meshwright.planner.units import nbytes
from meshwright.planner.verify_needs import available_bytes, needs_of

if TYPE_CHECKING:
    from meshwright.backends.torch_.verify.emitted import Verified

TARGET, MOST_RANKS = "torch-gloo", 8
MISMATCH = 7
MOST_LINES = 20
"""Differences that are printed; --json has all."""


def run(args: Namespace) -> int:
    """The verb."""
    plan = load_plan(args.plan)
    ranks = plan.machines.ranks
    if args.alone:
        with tempfile.TemporaryDirectory() as own:
            folder = made(folder_of(args.out)) if args.out is not None else Path(own)
            again = reenter(plan, args.model)
            subject = tiny(again, folder) if args.tiny else subject_of(again)
            return 0 if verify_alone(subject, folder, args) else MISMATCH
    if not args.tiny and (plan.decisions.target != TARGET or ranks > MOST_RANKS):
        raise VerificationTooLarge(
            place=f"a plan of {ranks} ranks for {plan.decisions.target}",
            cause=f"plans of at most {MOST_RANKS} ranks for {TARGET} can be run here",
            fix="verify its small twin with --tiny, or one rank of each stage with --alone",
        )
    check_torch()
    from meshwright.backends.torch_.verify.emitted import Job, verify

    again = reenter(plan, args.model)
    with tempfile.TemporaryDirectory() as own:
        folder = made(folder_of(args.out)) if args.out is not None else Path(own)
        subject = tiny(again, folder) if args.tiny else subject_of(again)
        planned = planned_memory(subject.program)
        limit = available_bytes() if args.memory_limit is None else args.memory_limit * 2**30
        needs_of(subject, planned, args.steps).check(limit, args.time_limit)
        emit(subject, folder).write(folder)
        job = Job.of(subject, folder / "train.py")
        (found,) = verify([job], steps=args.steps, limit_s=args.time_limit)
    whole = sum(sum(group.predicted[0].whole.values()) for group in job.groups)
    if args.json:
        sys.stdout.write(f"{json.dumps(to_json(found, whole, planned), indent=2)}\n")
    else:
        sys.stdout.write("\n".join(shown(found, whole, planned)) + "\n")
    return 0 if found.exact else MISMATCH


def planned_memory(program: Program) -> tuple[float, ...]:
    """What tensors take at the fullest instant, as planned, on every rank, group after group. Where ranks run on CPUs,
    what the host steps is in the same memory; activations that wait there are not counted (`Peak.leave_out`)."""
    held, stepped = tensors_held(program), stepped_on_host(program)
    ranks = dict.fromkeys(rank for stage in program.stages for rank in stage.ranks)
    return tuple(held[rank].peak_bytes + stepped[rank] for rank in ranks)


def shown(found: Verified, whole: int, planned: tuple[float, ...]) -> Iterable[str]:
    """What is printed."""
    yield f"{found.ranks} ranks, {found.steps} steps against one device: {'exact' if found.exact else 'DIFFERENT'}"
    yield f"loss          {', '.join(f'{loss:.6f}' for loss in found.losses)}"
    yield f"compared      {found.tensors} tensors per rank and step, the worst off by {found.worst:.1e}"
    if found.still:
        yield f"random        {', '.join(found.still)}: in place of draws their means, on both sides"
    if found.in_fp64 is not None:
        off = f"{found.apart} tensors are off by more than 1e-05 in fp32"
        yield f"rounding      {off}; of the same script in fp64, the worst by {found.in_fp64:.1e}"
    elif found.failed_in_fp64:
        yield f"rounding      is not told from faults: the script does not run in fp64 ({found.failed_in_fp64})"
    elif found.rounded:
        yield f"rounding      {found.rounded} gradients are as near to those in fp32 as one device's are"
    for kind, axes, number, size in found.collectives:
        yield f"per step      {number} {kind} over {axes}, {nbytes(size)}"
    for kind, axes, number, size in found.once:
        yield f"once          {number} {kind} over {axes}, {nbytes(size)}"
    if found.memory:
        run, plan = max(zip(found.memory, planned, strict=True))
        far = f"{plan / run - 1:+.1%}"
        yield f"memory        {nbytes(run)} of tensors on the fullest rank, {nbytes(plan)} planned ({far})"
    if whole:
        yield f"not executed  {whole} collectives of tokens and labels: every rank reads them whole"
    yield from found.differences[:MOST_LINES]
    if len(found.differences) > MOST_LINES:
        yield f"and {len(found.differences) - MOST_LINES} more: see --json"


def to_json(found: Verified, whole: int, planned: tuple[float, ...]) -> dict[str, Any]:
    """What is printed with --json; docs/emit.md describes it."""

    def rows(collectives: Iterable[tuple[str, str, int, int]]) -> list[dict[str, Any]]:
        return [{"kind": kind, "axes": axes, "count": n, "bytes": size} for kind, axes, n, size in collectives]

    return {
        "exact": found.exact,
        "ranks": found.ranks,
        "steps": found.steps,
        "losses": list(found.losses),
        "tensors": found.tensors,
        "worst": found.worst,
        "collectives": rows(found.collectives),
        "once": rows(found.once),
        "read_whole": whole,
        "memory": [{"bytes": run, "planned_bytes": plan} for run, plan in zip(found.memory, planned, strict=False)],
        "rounded": found.rounded,
        "in_fp64": found.in_fp64,
        "random": list(found.still),
        "differences": list(found.differences),
    }
