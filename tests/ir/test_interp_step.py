"""Whole training steps on simulated devices: every template equals the unsharded model, pipelines and ZeRO included."""

from __future__ import annotations

import pytest

from meshwright.backends.torch_.verify.step import Data, random_data, step_differences
from meshwright.ir.fold import Fold
from meshwright.ir.names import Degrees, template
<<<<<<< HEAD
from tests.llama_block import model


def data_for(fold: Fold, microbatches: int) -> Data:
    """Some labels are ignored, a different number in every micro-batch; micro-batches weigh by the rest."""
    data = random_data(fold, microbatches)
    for index, batch in enumerate(data.batches):
        batch["labels"][0, : index + 1] = -100
    counts = [int((batch["labels"] != -100).sum()) for batch in data.batches]
    return Data(data.parameters, data.batches, [count / sum(counts) for count in counts])
=======
from meshwright.ir.verify_meaning import verify_meaning
from meshwright.ir.verify_program import verify_program
from tests.llama_block import Sizes, model
from tests.sharded import CPU, TOLERANCE, whole
from tests.torch_kernels import TorchKernels, exact

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
    verify_meaning(program, fold)
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
>>>>>>> plantext


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
    fold = model(tied=tied)
    decisions = template(fold, PLANS[name])
    assert not step_differences(fold, decisions, data_for(fold, PLANS[name].microbatches))
