"""Whole training steps on simulated devices: every template equals the unsharded model, pipelines and ZeRO included."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from meshwright.backends.torch_.verify.compare import CPU, TOLERANCE, whole
from meshwright.backends.torch_.verify.simulate import TorchKernels, exact
from meshwright.ir.fold import Fold, unfold
from meshwright.ir.interp_step import StepResult, run_step
from meshwright.ir.lower import lower
from meshwright.ir.names import Degrees, template
from meshwright.ir.verify_program import verify_program
from tests.llama_block import Sizes, model

SIZES = Sizes()
LEARNING_RATE = 0.1


def batches(fold: Fold, count: int) -> list[dict[str, Tensor]]:
    """Tokens and labels; some labels are ignored, a different number in every micro-batch."""
    random = torch.Generator().manual_seed(7)
    made = []
    for index in range(count):
        data = {item.value: torch.randint(0, SIZES.vocab, t.shape, generator=random) for item, t in fold.inputs}
        data["labels"][0, : index + 1] = -100
        made.append(data)
    return made


def parameters(fold: Fold) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    graph = unfold(fold)
    return {
        param.path: 0.3 * torch.randn(graph.types[param.value].shape, generator=random, dtype=torch.float64)
        for param in graph.params
    }


def step(fold: Fold, degrees: Degrees) -> tuple[StepResult, dict[str, Tensor], list[float]]:
    program = lower(fold, template(fold, degrees), CPU)
    verify_program(program)
    data, values = batches(fold, degrees.microbatches), parameters(fold)
    counts = [int((batch["labels"] != -100).sum()) for batch in data]
    weights = [count / sum(counts) for count in counts]
    result = run_step(
        program,
        fold,
        values,
        data,
        TorchKernels(TOLERANCE),
        seeds=[{0: torch.tensor(weight, dtype=torch.float64)} for weight in weights],
        update=lambda param, grad: param - LEARNING_RATE * grad,
    )
    return result, values, weights


def reference(fold: Fold, values: Mapping[str, Tensor], weights: list[float]) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole model over all micro-batches, weighted by their tokens."""
    graph = unfold(fold)
    loss, grads = 0.0, {path: torch.zeros_like(value) for path, value in values.items()}
    for batch, weight in zip(batches(fold, len(weights)), weights, strict=True):
        given = {param.value: values[param.path] for param in graph.params} | batch
        one = whole(graph, given)
        loss += weight * float(one.outputs[graph.outputs[0]])
        for param in graph.params:
            grads[param.path] += weight * one.grads[param.value]
    return loss, grads


PLANS = {
    "dp": Degrees(dp=4),
    "dp zero-1": Degrees(dp=4, zero=1),
    "dp zero-2": Degrees(dp=2, zero=2, microbatches=2),
    "dp zero-3": Degrees(dp=4, zero=3, microbatches=2),
    "tp": Degrees(tp=4),
    "tp sp": Degrees(tp=4, sequence_parallel=True),
    "tp sp recompute": Degrees(tp=2, sequence_parallel=True, recompute="full"),
    "cp all-gather": Degrees(cp=4),
    "cp ring": Degrees(cp=4, context="ring"),
    "cp zigzag ring": Degrees(cp=2, context="ring", zigzag=True),
    "cp ulysses": Degrees(cp=4, context="ulysses"),
    "pp gpipe": Degrees(pp=2, microbatches=4),
    "pp 1f1b": Degrees(pp=4, microbatches=4, schedule="1f1b"),
    "dp tp pp zero-3": Degrees(dp=2, tp=2, pp=2, sequence_parallel=True, zero=3, schedule="1f1b", microbatches=2),
    "dp cp tp pp recompute": Degrees(
        dp=2, cp=2, tp=2, pp=2, context="ring", zigzag=True, recompute="full", zero=1, microbatches=2
    ),
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", PLANS)
def test_a_step_is_exact(name: str, tied: bool) -> None:
    fold = model(SIZES, tied=tied)
    result, values, weights = step(fold, PLANS[name])
    loss, grads = reference(fold, values, weights)
    found = sum(weight * float(outputs[0]) for weight, outputs in zip(weights, result.outputs, strict=True))
    assert found == pytest.approx(loss, rel=1e-9)
    floor = 1e-3 * max(float(grad.abs().max()) for grad in grads.values())
    for path, grad in grads.items():
        assert exact(result.gradients[path], grad, TOLERANCE, floor), f"gradient of {path}"
        assert exact(result.parameters[path], values[path] - LEARNING_RATE * grad, TOLERANCE), f"new {path}"
