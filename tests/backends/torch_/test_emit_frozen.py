"""Stages in which nothing is trained: they have optimizers too, and what follows them sends no gradient back."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.planner.cli.main import main

MODEL = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def begun() -> Model:
    model = Model()
    for part in (model.table, *model.blocks[:3]):
        part.requires_grad_(False)
    return model


def ended() -> Model:
    model = Model()
    for part in (*model.blocks[1:], model.head):
        part.requires_grad_(False)
    return model


def example_inputs(batch, seq):
    return {"tokens": torch.randint(0, 64, (batch, seq)), "labels": torch.randint(0, 64, (batch, seq))}


def loss(outputs, batch):
    return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())
"""


@pytest.mark.parametrize(
    ("factory", "fix", "written"),
    [("begun", "pp=2,mbs=2,schedule=zb-h1", "one.dw_builder = "), ("ended", "pp=2", '[{"params": parameters}]')],
)
def test_a_stage_trains_nothing(
    factory: str, fix: str, written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, code = tmp_path / "frozen.py", tmp_path / "out", tmp_path / "code"
    file.write_text(MODEL)
    words = f"--cluster cpu:2 --fix {fix} --target torch-gloo --global-batch 8 --seq 16 --dtype fp32 --force --out"
    assert main([f"{file}:{factory}", *words.split(), str(out)]) == 0
    assert main(["emit", str(out), "--out", str(code)]) == 0
    assert any(written in one.read_text("utf-8") for one in code.glob("*.py"))
    assert main(["verify", str(out)]) == 0
    assert "against one device: exact" in capsys.readouterr().out
