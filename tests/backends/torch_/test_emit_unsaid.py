"""A model that its graph does not say whole: its own code runs, and nothing is printed of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.ir.errors import EmissionPrinted
from meshwright.planner.cli.main import main

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


WORDS = "--cluster cpu:2 --target torch-gloo --global-batch 8 --seq 8 --dtype fp32 --force"


LOCAL = MODEL.replace("Through.apply(", "type('Local', (Through,), {}).apply(")


@pytest.mark.parametrize(
    ("lines", "fix", "code"),
    [(MODEL, "dp=2", 0), (MODEL, "tp=2", 0), (LOCAL, "tp=2", 6)],
)
def test_a_backward_pass_of_another_function_is_called_or_not_printed(
    lines: str, fix: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "rounded.py", str(tmp_path / "out")
    file.write_text(lines)
    planned = main([f"{file}:build", *f"{WORDS} --fix {fix} --out".split(), out])
    assert (planned or main(["verify", out])) == code
    said = "rounded.Local has a backward pass that is not the derivative of its forward pass"
    told = capsys.readouterr().err
    assert (said in told) == bool(code)
    assert (f"error {EmissionPrinted.code} at " in told) == bool(code)
    if not code:
        assert main(["emit", out, "--out", str(tmp_path / "code")]) == 0
        written = (tmp_path / "code" / "train.py").read_text()
        assert ('import_module("rounded").Through.apply(' in written) == (fix == "tp=2")


CLIPPED, RENORMED = "self.up.weight.data.clamp_(-0.1, 0.1)", "self.renormed(tokens)"


@pytest.mark.parametrize(
    ("write", "fix", "code", "said"),
    [
        (CLIPPED, "dp=2,zero=0", 0, "exact"),
        (CLIPPED, "dp=2,zero=3", 6, "MW5022"),
        (CLIPPED, "tp=2", 6, "the forward pass writes into its parameter up.weight"),
        (RENORMED, "dp=2,zero=0", 6, "copies come apart"),
    ],
)
def test_what_is_written_into_parameters_stays(
    write: str, fix: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = MODEL.replace("return self.head(Through.apply(", f"{write}\n        return self.head(torch.relu(").replace(
        "self.table, self.up", "self.renormed = nn.Embedding(64, 32, max_norm=0.5)\n        self.table, self.up"
    )
    file = tmp_path / "clipped.py"
    file.write_text(lines)
    out = str(tmp_path / "out")
    planned = main([f"{file}:build", *f"{WORDS} --fix {fix} --out".split(), out])
    assert (planned or main(["verify", out])) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Clipped(nn.Linear):
    def forward(self, x):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


def largest(model):
    model(torch.ones(2, 8)).sum().backward()
    weight = model.weight.full_tensor() if hasattr(model.weight, "full_tensor") else model.weight
    return weight.detach().abs().max().item()


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(largest(Clipped(8, 8)) < 0.2, largest(fully_shard(Clipped(8, 8))) < 0.2)
dist.destroy_process_group()
"""


def test_torch_forgets_what_a_forward_pass_writes_into_shards() -> None:
    """The law behind the refusal: in a process of its own, since it has a group."""
    found = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["True", "False"]
