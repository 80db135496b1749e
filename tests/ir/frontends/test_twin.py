"""Models of files of which no small twin can be made, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.ir.errors import NoTwin
from meshwright.ir.frontends.load import load_model
from meshwright.ir.frontends.shrink import Scale
from meshwright.ir.frontends.twin import HOW, Twin, twin_of

MODEL = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    width: int = 64


class Model(nn.Module):
    def __init__(self, {taken}):
        super().__init__()
        self.config = {kept}
        self.up = nn.Linear(4, 64)

    def forward(self, x):
        return self.up(x)


def big():
    return Model({given})


def example_inputs(batch, seq):
    return {{"x": torch.zeros(batch, seq, 4)}}


def loss(outputs, batch):
    return outputs.sum()
"""
NO_SIZES = "its factory takes no sizes, and the model has no dataclass `config` that it was made of"


def test_models_of_which_no_twin_can_be_made(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    for taken, kept, given, cause in (
        ("config", "None", "Config()", NO_SIZES),
        ("config", "{'width': 64}", "Config()", NO_SIZES),
        ("config", "Config", "Config()", NO_SIZES),
        ("config, more=1", "config", "Config()", "Model(config, more=1) is not made of its config alone"),
        ("sizes", "sizes", "Config()", "Model(sizes) is not made of its config alone"),
    ):
        file.write_text(MODEL.format(taken=taken, kept=kept, given=given))
        with pytest.raises(NoTwin) as caught:
            twin_of(load_model(f"{file}:big"), f"{file}:big", Scale(layers=2, seq=16, tokens=16))
        found = caught.value
        assert (found.place, found.fix) == (str(file), HOW)
        assert found.cause == f"no small twin of it can be made: {cause}"


def test_a_twin_is_written_under_the_name_before_its_factory(tmp_path: Path) -> None:
    made = Twin(reference="twin.py:twin", text=lambda folder: f"in {folder.name}")
    assert made.files(tmp_path / "there") == (("twin.py", "in there"),)
    assert Twin(reference="model.py:twin").files(tmp_path) == ()
