"""Sharded against whole: run a body on simulated devices and compare with torch's autograd on the whole graph.

This is the oracle for rules, adjoint, reshards and lowering together. The reference side shares nothing with them: it
runs the graph's operators on whole tensors through `eager` and lets autograd differentiate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.eager import EAGER
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels, exact
from meshwright.ir.decisions.decisions import BodyPlan
from meshwright.ir.graph.graph import Graph
from meshwright.ir.interp.bodies import BodyRun, Environment, collect, shard
from meshwright.ir.program.lower_body import Lowering, lower_body
from meshwright.ir.program.program import BodyProgram, Local
from meshwright.ir.sharding.mesh import Mesh
from meshwright.ir.sharding.placement import Placement
from meshwright.ir.verify.meaning import verify_body_meaning
from meshwright.ir.verify.programs import verify_body

TOLERANCE = 1e-9
CPU = Lowering(device="cpu")


@dataclass(frozen=True, slots=True)
class Whole:
    """The results of the unsharded graph."""

    outputs: Mapping[str, Tensor]
    grads: Mapping[str, Tensor]
    cotangents: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    """New values of the buffers that are updated, by path."""


def random_values(graph: Graph, seed: int = 0, given: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """fp64 tensors for every input and parameter that is not given."""
    random, bound = torch.Generator().manual_seed(seed), _index_bound(graph)
    values = dict(given or {})
    for name in [item.value for item in graph.inputs] + [param.value for param in graph.params]:
        type_ = graph.types[name]
        if name not in values and type_.floating:
            values[name] = torch.randn(type_.shape, generator=random, dtype=torch.float64)
        elif name not in values:
            values[name] = torch.randint(0, bound, type_.shape, generator=random)
    return values


def whole(graph: Graph, values: Mapping[str, Tensor], seed: int = 0) -> Whole:
    """Run the graph on whole tensors and differentiate it with random output gradients (1 for a loss)."""
    random = torch.Generator().manual_seed(seed + 1)
    env = {name: value.detach() for name, value in values.items()}
    leaves = [name for name in env if name in graph.differentiable]
    for name in leaves:
        env[name].requires_grad_()
    for op in graph.ops:
        attrs = {key: "f64" if key == "dtype" and _floating(value) else value for key, value in op.attrs}
        results = EAGER[op.kind](tuple(env[value] for value in op.operands), attrs)
        # Detached, not made while gradients are off: a cast to the same dtype is its operand itself.
        env.update(zip(op.results, (one.detach() for one in results) if op.no_grad else results, strict=True))
    wanted = [name for name in dict.fromkeys(graph.outputs) if env[name].requires_grad]
    cotangents = {
        name: torch.ones_like(env[name])
        if name == graph.loss
        else torch.randn(env[name].shape, generator=random, dtype=torch.float64)
        for name in wanted
    }
    found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if wanted and leaves:
        found = torch.autograd.grad(
            [env[name] for name in wanted],
            [env[name] for name in leaves],
            [cotangents[name] for name in wanted],
            allow_unused=True,
        )
    grads = {
        name: torch.zeros_like(env[name]) if grad is None else grad for name, grad in zip(leaves, found, strict=True)
    }
    buffers = {update.buffer: env[update.value].detach() for update in graph.updates}
    return Whole({name: env[name].detach() for name in graph.outputs}, grads, cotangents, buffers)


def _floating(dtype: object) -> bool:
    return dtype in ("f64", "f32", "bf16", "f16")


def _index_bound(graph: Graph) -> int:
    """The bound of values of every integer input: the shortest table or vocabulary that is looked up in."""
    rows = [graph.types[op.operands[0]].shape[0] for op in graph.ops if op.kind == "embedding"]
    classes = [graph.types[op.operands[0]].shape[-1] for op in graph.ops if op.kind == "cross_entropy"]
    return min([*rows, *classes], default=2)


@dataclass(slots=True)
class Sharded:
    """The results on simulated devices, put together again."""

    program: BodyProgram
    outputs: dict[str, Tensor]
    grads: dict[str, Tensor]


def sharded(
    graph: Graph, program: BodyProgram, values: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]
) -> Sharded:
    """Execute the body, forward, backward and gradient reduction."""
    mesh = program.mesh
    kernels = TorchKernels(TOLERANCE)
    run = BodyRun(program, kernels, _entry(program, values, kernels))
    run.execute(program.forward)
    shards = {name: run.env[name] for name in program.outputs}
    run.forget()
    for value, name in zip(graph.outputs, program.output_grads, strict=True):
        if name is not None and value in cotangents:
            local = program.locals[name]
            run.env[name] = spread(kernels, cotangents[value], local, mesh)
        elif name is not None:
            run.env[name] = run.zeros(name)
    run.execute(program.backward)
    run.execute(program.sync)

    def whole_of(name: str, held: list[Tensor]) -> Tensor:
        tensor: Tensor = collect(kernels, held, program.locals[name].placement, mesh, name)
        return tensor

    grads = {
        item.value: whole_of(name, run.env[name])
        for item, name in zip(graph.inputs, program.input_grads, strict=True)
        if name is not None
    }
    grads |= {slot.value: whole_of(slot.synced, run.env[slot.synced]) for slot in program.params if slot.synced}
    outputs = {value: whole_of(name, shards[name]) for value, name in zip(graph.outputs, program.outputs, strict=True)}
    return Sharded(program, outputs, grads)


def _entry(program: BodyProgram, values: Mapping[str, Tensor], kernels: TorchKernels) -> Environment:
    names = dict(zip(program.inputs, program.inputs, strict=True)) | {
        slot.stored: slot.value for slot in program.params
    }
    return {name: spread(kernels, values[value], program.locals[name], program.mesh) for name, value in names.items()}


def spread(kernels: TorchKernels, tensor: Tensor, local: Local, mesh: Mesh) -> list[Tensor]:
    """Cut a tensor; where it is a partial sum, into random terms, so that no rank's share is idle."""
    sums = [p.axis for p in local.placement.partial if p.reduction == "sum"]
    if not sums:
        return shard(kernels, tensor, local.type, local.placement, mesh)
    random = torch.Generator().manual_seed(tensor.numel())
    points = list(dict.fromkeys(tuple(mesh.coordinates(rank)[axis] for axis in sums) for rank in range(mesh.size)))
    terms = {point: torch.randn(tensor.shape, generator=random, dtype=torch.float64) for point in points[1:]}
    terms[points[0]] = tensor - sum(terms.values(), start=torch.zeros_like(tensor))
    rest = Placement(local.placement.dims, tuple(p for p in local.placement.partial if p.axis not in sums))
    cut = {point: shard(kernels, term, local.type, rest, mesh) for point, term in terms.items()}
    return [cut[tuple(mesh.coordinates(rank)[axis] for axis in sums)][rank] for rank in range(mesh.size)]


def differences(
    graph: Graph,
    plan: BodyPlan,
    mesh: Mesh,
    values: Mapping[str, Tensor],
    seed: int = 0,
    lowering: Lowering = CPU,
) -> list[str]:
    """Differences between sharded and whole, once the body is lowered and verified; empty if the plan is exact."""
    program = lower_body(graph, plan, mesh, lowering)
    verify_body(program)
    verify_body_meaning(program, graph)
    return program_differences(graph, program, values, seed)


def program_differences(graph: Graph, program: BodyProgram, values: Mapping[str, Tensor], seed: int = 0) -> list[str]:
    """Differences between a body program, executed as it is, and its graph; empty if it is exact."""
    reference = whole(graph, values, seed)
    found = sharded(graph, program, values, reference.cotangents)
    wrong = []
    floor = 1e-3 * largest(reference.outputs)
    for name, expected in reference.outputs.items():
        held = found.outputs[name]
        if not (
            exact(held, expected, TOLERANCE, floor) if expected.is_floating_point() else torch.equal(held, expected)
        ):
            wrong.append(f"%{name}")
    floor = 1e-3 * largest(reference.grads)
    for name, expected in reference.grads.items():
        if name in found.grads and not exact(found.grads[name], expected, TOLERANCE, floor):
            wrong.append(f"gradient of %{name}")
        if name not in found.grads and name in {p.value for p in graph.params}:
            wrong.append(f"no gradient of %{name}")
    return wrong


def largest(tensors: Mapping[str, Tensor]) -> float:
    """The scale for rounding errors, at least that of the inputs: values that cancel have none themselves."""
    return max([float(t.abs().max()) for t in tensors.values() if t.numel() and t.is_floating_point()] + [1.0])
