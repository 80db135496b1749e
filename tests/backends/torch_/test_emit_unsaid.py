"""A model that its graph does not say whole: its own code runs, and nothing is printed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.planner.cli import main

MODEL = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function


class Through(Function):
    '''Rounds, and has the gradient of what it rounds.'''

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.up, self.head = nn.Embedding(64, 32), nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, tokens):
        return self.head(Through.apply(self.up(self.table(tokens))))


def build() -> Model:
    return Model()


def example_inputs(batch, seq):
    return {"tokens": torch.randint(0, 64, (batch, seq)), "labels": torch.randint(0, 64, (batch, seq))}


def loss(outputs, batch):
    return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())
"""


@pytest.mark.parametrize(("fix", "code"), [("dp=2", 0), ("tp=2", 6)])
def test_a_backward_pass_of_another_function_is_not_printed(
    fix: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rounded.py"
    file.write_text(MODEL)
    words = f"--cluster cpu:2 --fix {fix} --target torch-gloo --global-batch 8 --seq 8 --dtype fp32 --force --out"
    assert main([f"{file}:build", *words.split(), str(tmp_path / "out")]) == code
    said = "rounded.Through has a backward pass that is not the derivative of its forward pass"
    assert (said in capsys.readouterr().err) == bool(code)
