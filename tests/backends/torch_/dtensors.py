"""A body under its plan, run a second time by nothing of ours: torch's DTensors on a mesh of gloo processes.

Every operator's operands are brought to the placements that its strategy asks for, then the eager call of torch runs on
DTensors, and DTensor says by its own rules where the results lie. Autograd differentiates, through DTensor's rules for
gradients. Nothing of lowering, of the adjoint or of the interpreter takes part.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from meshwright.backends.torch_.verify.interpreted.eager import EAGER
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph, Op
from meshwright.ir.sharding import placement as ours
from meshwright.ir.sharding.adjoint import Strategy
from meshwright.ir.sharding.layouts import CONTIGUOUS
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.rewrite import facts_of, rewritten

WAIT_S = 200.0
FLOATING = ("f64", "f32", "bf16", "f16")


class NotSaid(Exception):
    """A placement that DTensor cannot have: layouts other than contiguous, or axes of one dimension in another order
    than the mesh's."""


class NoRule(Exception):
    """An operator that DTensor cannot run."""


@dataclass(slots=True)
class Second:
    """What the second execution found: outputs and gradients put together, and the kinds of operators whose results
    DTensor left where our rule does, and elsewhere."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    agreed: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Job:
    """A body under its plan, and what is given to it."""

    graph: Graph
    plan: BodyPlan
    mesh: Mesh
    values: Mapping[str, Tensor]
    cotangents: Mapping[str, Tensor]


def second(module: str, ranks: int, folder: Path) -> list[Second | str]:
    """Every job that `all_jobs` of a module makes, on processes of their own; of those that DTensor cannot say or run
    the reason."""
    start = f"from {__name__} import main; raise SystemExit(main({module!r}, {ranks}, {str(folder)!r}))"
    command = [sys.executable, "-c", start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Second | str] = torch.load(folder / "found.pt", weights_only=False)
    return found


def main(module: str, ranks: int, folder: str) -> int:
    """Fork the ranks, which find each other by a file, and wait for them."""
    jobs: list[Job] = import_module(module).all_jobs()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            _rank(jobs, Path(folder), rank, ranks)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return int(any(codes))


def _rank(jobs: Sequence[Job], folder: Path, rank: int, ranks: int) -> None:
    """One rank: all jobs, one after the other; the first one writes what was found."""
    try:
        signal.alarm(int(WAIT_S))
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
        found: list[Second | str] = []
        for job in jobs:
            try:
                found.append(_run(job))
            except (NotSaid, NoRule) as why:
                found.append(f"{type(why).__name__}: {why}")
        if rank == 0:
            torch.save(found, folder / "found.pt")
        dist.barrier()
    except BaseException:  # noqa: BLE001 - a forked process must not return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def placed(placement: ours.Placement, mesh: Mesh) -> list[Placement]:
    """A placement in DTensor's words."""
    for dim in placement.dims:
        names = [shard.axis for shard in dim]
        if any(shard.layout != CONTIGUOUS for shard in dim) or names != [n for n in mesh.names if n in names]:
            raise NotSaid(str(placement))
    words: list[Placement] = []
    for name in mesh.names:
        at = placement.on(name)
        if isinstance(at, int):
            words.append(Shard(at))
        else:
            words.append(Replicate() if at is None else Partial(at.reduction))
    return words


@cache
def _mesh(sizes: tuple[int, ...]) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(prod(sizes)).reshape(sizes))


def _run(job: Job) -> Second:
    mesh, values, cotangents = job.mesh, job.values, job.cotangents
    graph, strategies = rewritten(job.graph, dict(job.plan.strategies))
    states = dict(job.plan.states)
    device_mesh = _mesh(tuple(axis.size for axis in mesh.axes))
    facts, found = facts_of(graph), Second()
    env: dict[str, DTensor] = {}
    found.grads = {name: torch.zeros_like(value) for name, value in values.items() if name in graph.differentiable}
    leaves: dict[str, DTensor] = {}
    for name, value in values.items():
        rank = value.dim()
        at = placed(states[name].value if name in states else ours.Placement.replicated(rank), mesh)
        kept = [Replicate() if isinstance(word, Partial) else word for word in at]
        env[name] = distribute_tensor(value.detach(), device_mesh, kept)
        if name in graph.differentiable:
            leaves[name] = env[name].requires_grad_()
    for op in graph.ops:
        applied = facts[op.name].applied(strategies.get(op.name, Strategy()), mesh)
        wanted = [placed(state.value, mesh) for state in applied.operands]
        left = [placed(state.value, mesh) for state in applied.results]
        operands = tuple(_brought(env[value], at) for value, at in zip(op.operands, wanted, strict=True))
        with torch.set_grad_enabled(not op.no_grad):
            results = _result(op, operands, left, found)
        for name, result, at in zip(op.results, results, left, strict=True):
            env[name] = _brought(result, at)
    outs = [name for name in dict.fromkeys(graph.outputs) if name in cotangents]
    if outs and leaves:
        arriving = [_cut(cotangents[name], device_mesh, env[name].placements) for name in outs]
        gradients = torch.autograd.grad(
            [env[name] for name in outs], list(leaves.values()), arriving, allow_unused=True
        )
        found.grads |= {
            name: grad.full_tensor() for name, grad in zip(leaves, gradients, strict=True) if isinstance(grad, DTensor)
        }
    found.outputs = {name: env[name].full_tensor().detach() for name in graph.outputs}
    return found


def _brought(value: DTensor, words: Sequence[Placement]) -> DTensor:
    """A value where it is wanted. DTensor makes no partial sums of other things; its own may be masked ones."""
    pairs = list(zip(value.placements, words, strict=True))
    if any(word.is_partial() and not same(now, word) for now, word in pairs):
        raise NotSaid(f"{value.placements} as {words}")
    return value.redistribute(placements=[now if word.is_partial() else word for now, word in pairs])


def same(one: Placement, other: Placement) -> bool:
    """Whether two placements are, masks aside."""
    if isinstance(one, Partial) and isinstance(other, Partial):
        return one.reduce_op == other.reduce_op
    return one == other


def _cut(value: Tensor, mesh: DeviceMesh, words: Sequence[Placement]) -> DTensor:
    """A whole value on a mesh; partial ones as copies, which is how the gradient of a partial sum arrives."""
    return distribute_tensor(value, mesh, [Replicate() if word.is_partial() else word for word in words])


def _result(op: Op, operands: tuple[DTensor, ...], left: list[list[Placement]], found: Second) -> list[DTensor]:
    attrs = {key: "f64" if key == "dtype" and value in FLOATING else value for key, value in op.attrs}
    try:
        made = _EAGER[op.kind](operands, attrs)
    except RuntimeError as error:  # DTensor has no rule for it, or torch no kernel
        raise NoRule(f"{op.kind}: {str(error).splitlines()[0]}") from error
    results = [one for one in made if isinstance(one, DTensor)]
    if len(results) < len(made):
        raise NoRule(f"{op.kind}: it makes plain tensors")
    agrees = all(all(map(same, one.placements, at)) for one, at in zip(results, left, strict=True))
    (found.agreed if agrees else found.otherwise).append(op.kind)
    return results


def _attention(operands: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Softmax attention in its parts: DTensor has no rule for the CPU kernel."""
    q, k, v = operands
    batch, heads, seq, size = q.shape
    few = k.shape[1]

    def shared(x: Tensor) -> Tensor:
        wide = x.unsqueeze(2).expand(batch, few, heads // few, x.shape[2], x.shape[3])
        return wide.reshape(batch, heads, x.shape[2], x.shape[3])

    scores = q @ shared(k).transpose(-1, -2) / size**0.5
    if attrs.get("mask") == "causal":
        assert isinstance(q, DTensor)
        hidden = torch.ones(seq, k.shape[2], dtype=torch.bool).triu(1)
        words = [Replicate()] * q.device_mesh.ndim
        scores = scores.masked_fill(distribute_tensor(hidden, q.device_mesh, words), float("-inf"))
    return (scores.softmax(-1) @ shared(v),)


_EAGER = {**EAGER, "attention": _attention}
