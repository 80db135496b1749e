"""How models are called: what a file has, which entries of a batch its forward pass is given, and which modules it
calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.door import calls_of, load_model
from meshwright.ir.frontends.torch_.tracing.reduce import find_stacks
from meshwright.ir.graph.calls import Calls

MODEL = """
import torch
from torch import Tensor, nn


class Leaf(nn.Module):
    def forward(self, x):
        return x + 1


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.inner = Leaf()

    def forward(self, x):
        return self.inner(x) * self.weight


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(4))

    def forward(self, x):
        return x * self.seen


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.never, self.parts = Leaf(), nn.ModuleList([Leaf(), Leaf()])
        self.holds, self.counts = Holds(), Counts()
        self.twice = self.holds
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)

    def forward(self, style, tokens):
        x = self.counts(self.holds(self.embed(tokens)))
        return self.frozen(self.twice(self.parts[1](x)) + style).sum()


def make():
    return Model()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    tokens = torch.zeros(batch, seq, dtype=torch.long)
    return {"tokens": tokens, "labels": tokens, "style": torch.zeros(batch, seq, 4)}


def loss(outputs, batch):
    return outputs
"""


def called(folder: Path, text: str = MODEL) -> Calls:
    file = folder / "model.py"
    file.write_text(text)
    reference = f"{file}:make"
    return calls_of(load_model(reference), reference, batch=2, seq=6)


def test_what_a_forward_pass_is_given_and_calls(tmp_path: Path) -> None:
    """Entries stand in the order of its parameters; a module with two names is called by its first one."""
    found = called(tmp_path)
    assert found.entries == ("style", "tokens")
    assert found.called == {"", "embed", "holds", "holds.inner", "counts", "parts.1", "frozen"}
    assert found.again == {"twice": "holds", "twice.inner": "holds.inner"}
    assert (found.buffers, found.untrained) == (("counts.seen",), {"frozen.weight"})
    assert (found.factory, found.has_optimizer, found.draws, found.own_loss) == ("make", False, False, None)
    assert found.undrawn == ("holds", "counts")


def test_what_a_file_says_beside_its_factory(tmp_path: Path) -> None:
    hooks = "\n\ndef optimizer(params):\n    return None\n\n\ndef draw_weights(module):\n    pass\n"
    calls = called(tmp_path, MODEL + hooks)
    assert (calls.has_optimizer, calls.draws, calls.undrawn) == (True, True, ())


def test_what_emitted_code_cannot_call(tmp_path: Path) -> None:
    place = str(tmp_path / "model.py")
    for text, where, cause in (
        (
            MODEL.replace("def loss", "def other").replace(".sum()", ".sum(0)"),
            place,
            "there is no loss(outputs, batch), and the model returns none",
        ),
        (
            MODEL.replace("return {", "return tokens.float(), tokens\n    return {"),
            f"{place}, example_inputs",
            "the batch is no dict",
        ),
    ):
        with pytest.raises(EmissionModel) as caught:
            called(tmp_path, text)
        assert (caught.value.place, caught.value.cause) == (where, cause)


RECURRENT = """
import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(8, 4), nn.LSTM(4, 4, 2, batch_first=True), nn.Linear(4, 8)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens))[0])


def make():
    return Recurrent()


def example_inputs(batch, seq):
    return {"tokens": torch.zeros(batch, seq, dtype=torch.long)}


def loss(outputs, batch):
    return outputs.square().mean()
"""


def test_kernels_that_compare_devices_are_watched(tmp_path: Path) -> None:
    """Those of recurrent networks look at weights before these can be made fake."""
    file = tmp_path / "recurrent.py"
    file.write_text(RECURRENT)
    found = calls_of(load_model(f"{file}:make"), f"{file}:make", batch=2, seq=6)
    assert found.called == {"", "embed", "layers", "head"}


DEEP = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.into, self.never = nn.Linear(4, 4), nn.Linear(4, 4)
        self.wide = nn.Linear(4, 4) if wide else None
        self.seen = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        if self.wide is not None:
            return x + self.wide(x)
        with torch.no_grad():
            self.seen.mul_(0.9)
        return x + self.into(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(wide=at % 3 == 2) for at in range(24)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make():
    return Model()


def example_inputs(batch, seq):
    return {"x": torch.zeros(batch, seq, 4)}


def loss(outputs, batch):
    return outputs.square().mean()
"""


def test_shortened_lists_stand_for_all_blocks(tmp_path: Path) -> None:
    """What is called of one is called of all that are like it, and what is written."""
    file = tmp_path / "deep.py"
    file.write_text(DEEP)
    reference = f"{file}:make"
    source = load_model(reference)
    stacks = find_stacks(source.module)
    assert [len(stack.walk) < stack.depth for stack in stacks] == [True]
    found = calls_of(source, reference, batch=2, seq=6, stacks=stacks)
    assert found == calls_of(source, reference, batch=2, seq=6)
    assert {"blocks.22.into", "blocks.23.wide"} <= found.called
    assert "blocks.13.seen" in found.written
    assert "blocks.14.seen" not in found.written
