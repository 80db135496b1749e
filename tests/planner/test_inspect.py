"""`meshwright.inspect` of a module: its counts are torch's own; a step that there is not is refused."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from torch import nn

from meshwright.ir.errors import UnknownStep, WorkloadImpossible
from meshwright.planner.cli.verbs.code.inspect import run
from meshwright.planner.question.inspection import STEPS, Workload, inspect

BATCH, SEQ, WIDTH, WORDS = 4, 8, 16, 32


class Block(nn.Module):
    """A product and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.up(x))


class Model(nn.Module):
    """Three blocks of which one weight is not trained, a buffer, and a head that is tied to the table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(WIDTH))
        for block in self.blocks:
            block.up.bias.requires_grad = False  # type: ignore[union-attr]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found


def example_inputs(batch: int, seq: int) -> dict[str, torch.Tensor]:
    text = torch.randint(0, WORDS, (batch, seq))
    return {"tokens": text, "labels": text}


def loss(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def test_counts_are_those_of_torch() -> None:
    """Tied weights once; four bytes of each; by hand, a product is two FLOPs of every weight for every token."""
    model, workload = Model(), Workload(batch=BATCH, seq=SEQ, dtype="fp32")
    hooks: dict[str, Any] = {"example_inputs": example_inputs, "loss": loss}
    hooks |= {"dims": {"tokens": ("b", "s"), "labels": ("b", "s")}}
    found = inspect(model, workload=workload, **hooks)
    weights = list(model.parameters())
    assert found.parameters == sum(one.numel() for one in weights)
    assert found.trainable == sum(one.numel() for one in weights if one.requires_grad)
    assert found.trainable == found.parameters - 3 * WIDTH
    assert found.parameter_bytes == 4 * found.parameters
    assert found.buffers == 1
    assert (found.reference, found.workload) == ("Model", workload)
    tokens = BATCH * SEQ
    assert found.total.forward_flops == 2 * tokens * (3 * WIDTH * WIDTH + WIDTH * WORDS)
    assert found.total.backward_flops == 2 * found.total.forward_flops
    (block,) = [body for body in found.bodies if body.runs == 3]
    assert block.parameters == WIDTH * WIDTH + 3 * WIDTH
    assert block.account.forward_flops == 2 * tokens * WIDTH * WIDTH
    assert block.module_class.endswith("Block")
    assert found.saved_bytes == sum(body.saved_bytes * body.runs for body in found.bodies)
    assert found.total.ops == sum(body.account.ops * body.runs for body in found.bodies)
    assert [segment for segment in found.segments if not segment[0]] == [(False, (block.name,), 3)]
    assert {loop.name: loop.size for loop in found.loops if loop.label in ("b", "s")} == {"b": BATCH, "s": SEQ}
    assert found.microbatch.legal


def test_the_usual_workload_is_one_sequence() -> None:
    assert Workload() == Workload(batch=1, seq=1024, dtype="bf16", style="eager", device="cuda")
    with pytest.raises(WorkloadImpossible):
        Workload(batch=0)
    with pytest.raises(WorkloadImpossible):
        Workload(seq=0)


def test_a_step_that_there_is_not_is_refused() -> None:
    """Before the model is looked for."""
    args: Any = Namespace(
        batch=1, seq=64, dtype="bf16", style="eager", device="cuda", dump_after="nothing", model="none.py"
    )
    with pytest.raises(UnknownStep) as refused:
        run(args)
    assert (refused.value.place, refused.value.fix) == ("--dump-after nothing", f"use one of {', '.join(STEPS)}")
    assert list(STEPS) == ["load", "fold", "loops", "cuts"]
