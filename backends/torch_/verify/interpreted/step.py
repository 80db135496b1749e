"""Whole training steps under a plan on simulated devices, compared with autograd on the unfolded model.

The reference runs every micro-batch through the whole graph and adds up losses and gradients by the micro-batches'
weights. The plan is lowered, verified and executed by the interpreter: stages, schedule, ZeRO and optimizer included.
Compared are the loss, every gradient, every buffer and every parameter after one step of plain gradient descent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.backends.torch_.verify.interpreted.compare import CPU, TOLERANCE, largest, random_values, whole
from meshwright.backends.torch_.verify.interpreted.simulate import TorchKernels, exact
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.errors import NoLoss
from meshwright.ir.graph.fold import Fold, unfold
from meshwright.ir.interp.steps import run_step
from meshwright.ir.program.lower import lower
from meshwright.ir.verify.meaning import verify_meaning
from meshwright.ir.verify.programs import verify_program

LEARNING_RATE = 0.1


@dataclass(frozen=True, slots=True)
class Data:
    """The data of a step: parameters by path, one batch and one weight per micro-batch (weights add up to 1)."""

    parameters: Mapping[str, Tensor]
    batches: Sequence[Mapping[str, Tensor]]
    weights: Sequence[float]


def random_data(fold: Fold, microbatches: int, seed: int = 0) -> Data:
    """Random parameters and batches; all micro-batches weigh the same."""
    graph = unfold(fold)
    made = [random_values(graph, seed + index) for index in range(microbatches)]
    return Data(
        parameters={param.path: 0.3 * made[0][param.value] for param in graph.params},
        batches=[{item.value: values[item.value] for item, _ in fold.inputs} for values in made],
        weights=[1 / microbatches] * microbatches,
    )


def step_differences(fold: Fold, decisions: Decisions, data: Data | None = None) -> list[str]:
    """Differences between a step under the plan and the whole model; empty if the plan is exact."""
    data = data or random_data(fold, decisions.schedule.microbatches)
    program = lower(fold, decisions, CPU)
    verify_program(program)
    verify_meaning(program, fold)
    found = run_step(
        program,
        fold,
        data.parameters,
        data.batches,
        TorchKernels(TOLERANCE),
        seeds=[{loss_of(fold): torch.tensor(weight, dtype=torch.float64)} for weight in data.weights],
        update=lambda param, grad: param - LEARNING_RATE * grad,
    )
    expected = reference(fold, data)
    reached = sum(w * out[loss_of(fold)] for w, out in zip(data.weights, found.outputs, strict=True))
    wrong = [] if exact(reached, expected.loss, TOLERANCE) else ["loss"]
    wrong += [
        f"buffer {path}"
        for path, value in expected.buffers.items()
        if not exact(found.buffers[path], value, TOLERANCE, 1e-3)
    ]
    floor = 1e-3 * largest(expected.grads)
    for path, grad in expected.grads.items():
        if not exact(found.gradients[path], grad, TOLERANCE, floor):
            wrong.append(f"gradient of {path}")
        if not exact(found.parameters[path], data.parameters[path] - LEARNING_RATE * grad, TOLERANCE, floor):
            wrong.append(f"{path} after the step")
    return wrong


@dataclass(frozen=True, slots=True)
class Reference:
    """The results of the whole model: the weighted loss, gradients and new buffers by path."""

    loss: Tensor
    grads: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def loss_of(fold: Fold) -> int:
    """The output of the model that is its loss."""
    if fold.loss is None:
        raise NoLoss(place="fold", cause="none of its outputs is a loss", fix="trace a training step, loss included")
    return fold.loss


def reference(fold: Fold, data: Data) -> Reference:
    """The whole model over all micro-batches, one after another."""
    graph = unfold(fold)
    trained = [param for param in graph.parameters() if param.requires_grad]
    loss = torch.zeros((), dtype=torch.float64)
    grads = {param.path: torch.zeros_like(data.parameters[param.path]) for param in trained}
    buffers: dict[str, Tensor] = {}
    for batch, weight in zip(data.batches, data.weights, strict=True):
        now = dict(data.parameters) | buffers
        one = whole(graph, {param.value: now[param.path] for param in graph.params} | dict(batch))
        buffers |= one.buffers
        loss = loss + weight * one.outputs[graph.outputs[loss_of(fold)]]
        for param in trained:
            grads[param.path] += weight * one.grads[param.value]
    return Reference(loss, grads, buffers)
