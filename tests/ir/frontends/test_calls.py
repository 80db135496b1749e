"""Which module made which argument of which other one, of a small model whose calls can be followed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.ir.errors import EmissionModel
from meshwright.ir.frontends.calls import Watched
from meshwright.ir.frontends.load import load_model

MODEL = """
import torch
from torch import Tensor, nn


class Leaf(nn.Module):
    def forward(self, x, *more, **named):
        return x + 1


class Same(nn.Module):
    '''Returns what the module inside it made.'''

    def __init__(self):
        super().__init__()
        self.inner = Leaf()

    def forward(self, x):
        return self.inner(x)


class Makes(nn.Module):
    '''Makes a table of so many positions while it runs.'''

    def __init__(self, more):
        super().__init__()
        self.more = more

    def forward(self, x, other):
        return x + torch.arange(x.shape[1] + self.more)[:, None].float().mean()


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.weight


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
        self.one, self.named, self.nested, self.vector, self.last = Leaf(), Leaf(), Leaf(), Leaf(), Leaf()
        self.never = Leaf()
        self.same, self.makes, self.shorter = Same(), Makes(0), Makes(1)
        self.holds, self.counts = Holds(), Counts()

    def forward(self, style, tokens):
        x = self.embed(tokens)
        y = self.one(x)
        z = self.same(y)
        self.one(z, y)
        a = self.named(z, scale=x, size=3)
        b = self.nested(a, {"tables": [y, 4]})
        c = self.vector(b, x[0, :, 0], x.transpose(1, 2))
        d = self.makes(c, z)
        e = self.shorter(d, z)
        f = self.counts(self.holds(e))
        return self.last(f + style).sum()


def make():
    return Model()


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    tokens = torch.zeros(batch, seq, dtype=torch.long)
    return {"tokens": tokens, "labels": tokens, "style": torch.zeros(batch, seq, 4)}


def loss(outputs, batch):
    return outputs
"""


def watched(folder: Path, text: str = MODEL) -> Watched:
    file = folder / "model.py"
    file.write_text(text)
    reference = f"{file}:make"
    return Watched.of(load_model(reference), reference, batch=2, seq=6, blocks=["one"])


def test_who_made_the_arguments_of_whom(tmp_path: Path) -> None:
    """The arguments are those of the first call, of the innermost module that returned a tensor; a sum or a part of one
    is nobody's. Positioned are those that are given two tensors of six positions at once and make none of as many."""
    found = watched(tmp_path)
    calls = found.calls
    assert found.blocks == ("one",)
    assert calls.entries == ("style", "tokens")
    assert calls.arguments == {
        "": (),
        "embed": (None,),
        "one": ("embed",),
        "same": ("one",),
        "same.inner": ("one",),
        "named": ("same.inner",),
        "nested": ("named", None),
        "vector": ("nested", None, None),
        "makes": ("vector", "same.inner"),
        "shorter": ("makes", "same.inner"),
        "holds": ("shorter",),
        "counts": ("holds",),
        "last": (None,),
    }
    assert calls.keywords["named"] == {"scale": "embed", "size": None}
    assert calls.keywords[""] == {"style": None, "tokens": None}
    assert {path for path, named in calls.keywords.items() if named} == {"", "named"}
    assert calls.positioned == {"one", "named", "nested", "shorter"}
    assert (calls.factory, calls.has_optimizer, calls.draws) == ("make", False, False)
    assert calls.undrawn == ("holds", "counts")


def test_what_a_file_says_beside_its_factory(tmp_path: Path) -> None:
    hooks = "\n\ndef optimizer(params):\n    return None\n\n\ndef draw_weights(module):\n    pass\n"
    calls = watched(tmp_path, MODEL + hooks).calls
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
            watched(tmp_path, text)
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
    found = Watched.of(load_model(f"{file}:make"), f"{file}:make", batch=2, seq=6, blocks=[])
    assert found.calls.arguments["layers"] == ("embed",)
