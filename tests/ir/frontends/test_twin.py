"""Models of files of which no small twin can be made, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends.door import load_model
from meshwright.ir.frontends.torch_.small.twin import HOW, Twin, twin_of
from meshwright.ir.frontends.twin import Scale

MODEL = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    width: int = 512
    layers: int = 12
    chance: float = 0.1


class Block(nn.Module):
    def __init__(self, width, grow=4, act=nn.ReLU):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(width, grow * width), nn.Linear(grow * width, width), act()

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    def __init__(self, config, *, narrow=None):
        super().__init__()
        self.into = nn.Linear(4, config.width)
        self.blocks = nn.ModuleList([Block(config.width) for _ in range(config.layers)])
        self.drop, self.narrow = nn.Dropout(config.chance), narrow

    def forward(self, input):
        x = self.into(input)
        for block in self.blocks:
            x = block(x)
        return self.drop(x)


def big():
    MADE


def example_inputs(batch, seq):
    return {"input": torch.zeros(batch, seq, 4)}


def loss(outputs, batch):
    return outputs.sum()
"""

SCALE = Scale(layers=2, seq=16, tokens=16)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("return Model(Config(layers=int(torch.arange(13)[-1])))", "Model(config=Config(width=64, layers=2, "),
        ("return Model(Config())", "Model(config=Config(width=64, layers=2, chance=0.0))"),
        ("config = Config(); config.width = 96; return Model(config)", "Model(config=Config(width=64, layers=2, "),
        (
            "return nn.Sequential(nn.Linear(4, 512), *[Block(512, act=nn.Tanh) for _ in range(2)], nn.Linear(512, 4))",
            "Block(width=64, grow=2, act=nn.Tanh), nn.Linear(in_features=64, out_features=4))",
        ),
        (
            "block = nn.Linear(4, 4); return nn.Sequential(block, block)",  # one module, twice
            "nn.Sequential((linear_1 := nn.Linear(in_features=4, out_features=4)), linear_1)",
        ),
    ],
)
def test_the_calls_that_made_a_model_are_made_with_small_numbers(made: str, says: str, tmp_path: Path) -> None:
    """Also those of classes of a library, one in another; what a configuration was when the model was made counts."""
    file = tmp_path / f"{tmp_path.name}.py"  # twins import it, and no other one
    file.write_text(MODEL.replace("MADE", made))
    twin = twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE)
    ((name, text),) = twin.files(tmp_path)
    assert says in re.sub(r"torch\.nn\.modules\.\w+\.", "nn.", text)
    (tmp_path / name).write_text(text)
    assert load_model(f"{tmp_path / name}:twin").module.to_empty(device="cpu")(torch.zeros(2, 4)).shape[0] == 2


@pytest.mark.parametrize(
    "made",
    [
        "model = Model(Config()); model.blocks = model.blocks[:3]; return model",  # changed after it was made
        "return Model(Config(), narrow=lambda x: x)",  # what has no name
        "model = Model(Config()); model.into.weight.requires_grad = False; return model",
    ],
)
def test_models_that_no_calls_make_again_have_no_twin(made: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL.replace("MADE", made))
    with pytest.raises(NoTwin) as caught:
        twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE)
    found = caught.value
    assert (found.place, found.fix) == (str(file), HOW)
    assert found.cause.endswith("its factory takes no sizes, and calls no classes that can be called with others")


KEPT = """

class Kept(nn.Dropout):
    def __init__(self, way, p):
        super().__init__(p)
        self.way = way
"""


def test_a_small_model_whose_batches_can_be_smaller_is_its_own_twin(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    made = "return nn.Sequential(nn.Conv2d(4, 8, 1), Model(Config(), narrow=lambda x: x).drop)"
    text = MODEL.replace("MADE", made).replace("(batch, seq, 4)", "(batch, 4, 64, 64)")
    file.write_text(
        text.replace("self.drop, ", "self.kept, self.drop, ").replace("nn.Dropout(", "None, Kept(lambda x: x, ")
    )
    file.write_text(file.read_text() + KEPT)
    ((_, twin),) = twin_of(load_model(f"{file}:big"), f"{file}:big", SCALE).files(tmp_path)
    assert "return big()" in twin
    assert '"input": made["input"][:, :, :8, :8]' in twin


def test_a_twin_is_written_under_the_name_before_its_factory(tmp_path: Path) -> None:
    made = Twin(reference="twin.py:twin", text=lambda folder: f"in {folder.name}")
    assert made.files(tmp_path / "there") == (("twin.py", "in there"),)
    assert Twin(reference="model.py:twin").files(tmp_path) == ()
