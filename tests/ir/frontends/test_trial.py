"""What a run of a model on the meta device says: what it holds, what it runs, and by which numbers it may be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meshwright.ir.frontends.small.runs import Run, Step
from meshwright.ir.frontends.torch_.small import trial
from meshwright.ir.frontends.torch_.small.trial import Recipe
from meshwright.ir.frontends.torch_.sources.factory import Hooks


class Model(nn.Module):
    """Everything that a step is asked for, once."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        if given["n"] < 0:
            raise ValueError("impossible")
        self.table, self.places = nn.Embedding(50, 4), nn.Parameter(torch.zeros(9, 4))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.ReLU()])
        self.register_buffer("seen", torch.zeros(3, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.table(tokens) + self.places[positions]
        x = F.dropout(x, 0.25)
        best = x.topk(3, dim=1).values
        more = x.gather(1, positions[None, :2, None].expand(2, 2, 4)).index_select(2, positions[:2])
        y: Tensor = x.topk(2).values.sum() + best.sum() + more.sum()
        return self.layers[0](x) + y


def batch_of(batch: int, seq: int) -> dict[str, Tensor]:
    return {"tokens": torch.zeros(batch, seq, dtype=torch.long), "targets": torch.zeros(batch, seq, dtype=torch.long)}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch["targets"].flatten())


def recipe(build: Callable[[dict[str, Any]], nn.Module], hooks: Hooks) -> Recipe:
    return Recipe(settings={"n": 1}, build=build, whole=nn.Identity(), hooks=hooks, place="here")


def ran(recipe: Recipe, settings: dict[str, Any]) -> Run | None:
    """With five tokens."""
    model = trial.built(recipe, settings)
    return trial.run(model, recipe, settings, 5)[0] if model is not None else None


def test_what_a_run_says() -> None:
    """Of two sequences of five. Words are looked up by an entry of the batch, positions are not; targets are words of
    what they choose from. A selection says how many of how many it keeps, in which dimension whatever. Dropout of
    a quarter keeps the rest."""
    found = ran(recipe(Model, Hooks(batch_of, loss)), {"n": 1})
    assert found is not None
    parameters = {"table.weight": (50, 4), "places": (9, 4)}
    layers = {"layers.0.weight": (4, 4), "layers.0.bias": (4,), "layers.1.weight": (4, 4)}
    assert dict(found.parameters) == parameters | layers
    assert dict(found.buffers) == {"seen": (3, 2)}
    kinds = [("Linear", "weight", "bias"), ("Linear", "weight"), ("ReLU",)]
    assert dict(found.kinds) == {"layers": Counter(kinds)}
    told = {one.name: one for one in found.steps if one.rows is not None or one.chosen or one.chances is not None}
    names = {name: told[f"aten::{name}"] for name in ("embedding", "index.Tensor", "gather", "index_select")}
    assert {name: (one.rows, one.words) for name, one in names.items()} == {
        "embedding": (50, True),
        "index.Tensor": (9, False),
        "gather": (5, False),
        "index_select": (4, False),
    }
    assert [one.chosen for one in found.steps if one.chosen] == [(3, 5), (2, 4)]
    assert [one.chances for one in found.steps if one.chances is not None] == [(0.75,)]
    (last,) = [one for one in found.steps if "nll_loss" in one.name]
    assert (last.rows, last.words, last.shapes) == (4, True, ((), ()))
    assert dict(found.read_by or {})["table.weight"] == "look-up"
    assert dict(found.read_by or {})["places"] == "look-up"
    assert "layers.1.weight" not in dict(found.read_by or {})


def test_words_are_what_an_entry_says_however_it_is_laid_out_and_positions_are_what_masks_count() -> None:
    class Laid(nn.Module):
        def __init__(self, _: dict[str, Any]) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50, 4), nn.Embedding(9, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            laid = torch.cat([tokens.new_zeros(2, 1), tokens.view(-1, 5)], dim=1) + 1
            return (self.words(laid) + self.words.weight[laid] + self.places(laid.ne(1).cumsum(1))).sum()

    found = ran(recipe(Laid, Hooks(batch_of)), {})
    assert found is not None
    assert [(one.rows, one.words) for one in found.steps if one.rows] == [(50, True), (50, True), (9, False)]


class Elsewhere(nn.Module):
    """Has a parameter, and makes a tensor, that are on no default device."""

    def __init__(self, _: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(4, 4))

    def forward(self, alike: Tensor) -> Tensor:
        return (torch.from_numpy(np.ones(4, "f4")) * self.weight[0] + F.one_hot(alike, 4)).sum()


def test_a_model_that_leaves_the_default_device_is_tried_as_it_is_traced() -> None:
    made = recipe(Elsewhere, Hooks(lambda batch, seq: {"alike": torch.zeros(batch, seq, dtype=torch.long)}))
    assert ran(made, {}) is None
    found = ran(replace(made, exact=True), {})
    assert found is not None
    assert dict(found.parameters) == {"weight": (4, 4)}
    assert (2, 5, 4) in [shape for one in found.steps for shape in one.shapes]


def test_a_block_is_of_its_kind_however_many_blocks_are_inside() -> None:
    """Of three stages, two are as deep as one another; all are of one kind, and one that has no bias is not."""

    class Stage(nn.Module):
        def __init__(self, depth: int, *, bias: bool = True) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(2, 2, bias=bias) for _ in range(depth))

    stages = nn.ModuleList([Stage(3), Stage(3), Stage(8), Stage(3, bias=False)])
    kinds = trial.skeleton(nn.ModuleDict({"stages": stages})).kinds
    assert kinds["stages"] == {("Stage", "blocks.*.weight", "blocks.*.bias"): 3, ("Stage", "blocks.*.weight"): 1}
    assert kinds["stages.2.blocks"].total() == 8


LOSSES: dict[str, Callable[[Tensor, dict[str, Tensor]], Tensor]] = {
    "of one": lambda outputs, batch: F.cross_entropy(outputs[0, 0], batch["targets"][0, 0]),
    "of a row": lambda outputs, batch: F.cross_entropy(outputs[0], batch["targets"][0]),
    "of an image": lambda outputs, batch: F.cross_entropy(
        outputs.transpose(1, 2)[..., None], batch["targets"][..., None]
    ),
}


def test_what_a_loss_chooses_from_is_its_second_dimension_or_its_only_one() -> None:
    """Four words, of five positions."""
    for what, of_words in LOSSES.items():
        found = ran(recipe(Model, Hooks(batch_of, of_words)), {"n": 1})
        assert found is not None, what
        assert [(one.rows, one.words) for one in found.steps if "nll_loss" in one.name] == [(4, True)], what


def test_the_size_of_a_run() -> None:
    """6 + 4 numbers held, 2 · 3 and 1 made."""
    steps = (Step(name="a", shapes=((2, 3),)), Step(name="b", shapes=((), ())))
    found = Run(parameters={"w": (2, 3)}, buffers={"b": (4,)}, kinds={}, steps=steps)
    assert found.held == {"w": (2, 3), "b": (4,)}
    assert found.size == 6 + 4 + 2 * 3 + 1 + 1


def test_impossible_settings_make_no_model() -> None:
    made = recipe(Model, Hooks(batch_of, loss))
    assert trial.built(made, {"n": -1}) is None
    assert ran(made, {"n": -1}) is None
    assert trial.computed(made, {"n": -1}, 5) is None
    assert trial.computed(recipe(Model, Hooks(None, loss)), {"n": 1}, 5) is None
    built = trial.built(made, {"n": 1})
    assert built is not None
    assert {one.device.type for one in built.parameters()} == {"meta"}


class Drawn(nn.Module):
    """Says what it was given."""

    def __init__(self, _: dict[str, Any]) -> None:
        super().__init__()
        self.vector, self.matrix = nn.Parameter(torch.zeros(999).half()), nn.Parameter(torch.zeros(99, 9))

    def forward(self, alike: Tensor, unlike: Tensor, floats: Tensor, switches: Tensor) -> Tensor:
        v, m = self.vector, self.matrix
        told = [
            v.min() >= 0.5,
            v.min() < 0.6,
            v.max() <= 1.5,
            v.max() > 1.4,
            m.min() >= -0.1,
            m.min() < -0.09,
            m.max() <= 0.1,
            m.max() > 0.09,
            alike.min() == 0,
            alike.max() == 7,
            unlike.tolist() == [[1, 2]],
            floats.tolist() == [1.0, 1.0],
            switches.tolist() == [True, True],
            self.training,
            v.dtype is torch.float32,
        ]
        return torch.tensor([float(one) for one in told]).min()


def test_labels_that_are_alike_by_chance_stay() -> None:
    """Two labels of two classes are alike every other time; whatever is drawn, there is a loss."""

    class Two(nn.Module):
        def __init__(self, given: dict[str, Any]) -> None:
            super().__init__()
            torch.rand(given["n"])  # so that others are drawn
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(x)
            return y

    def batch(batch: int, _: int) -> dict[str, Tensor]:
        return {"x": torch.randn(batch, 3), "y": torch.randint(0, 2, (batch,))}

    made = recipe(Two, Hooks(batch, lambda outputs, batch: F.cross_entropy(outputs, batch["y"])))
    assert all(trial.computed(made, {"n": number}, 5) is not None for number in range(20))


def test_values_are_drawn_for_a_loss() -> None:
    """Of vectors about 1, of matrices about 0. Of indices that are all alike some below 8; all else stays. Every time
    the same, and what is drawn elsewhere is as it would have been."""

    def batch(batch: int, seq: int) -> dict[str, Tensor]:
        return {
            "alike": torch.zeros(batch, 99, dtype=torch.long),
            "unlike": torch.tensor([[1, 2]]),
            "floats": torch.ones(2),
            "switches": torch.ones(2, dtype=torch.bool),
        }

    made = recipe(Drawn, Hooks(batch, None))
    torch.manual_seed(3)
    first = torch.rand(1)
    torch.manual_seed(3)
    assert trial.computed(made, {"n": 1}, 5) == 1.0
    assert torch.equal(torch.rand(1), first)
    varied = recipe(Model, Hooks(batch_of, loss))
    assert trial.computed(varied, {"n": 1}, 5) == trial.computed(varied, {"n": 1}, 5)


def test_a_loss_that_what_is_drawn_is_too_large_for_is_that_of_the_models_own_batch() -> None:
    """Two samples of a class, of two classes: which happens every other time."""
    made = recipe(
        lambda _: nn.Linear(4, 2),
        Hooks(
            lambda batch, seq: {"input": torch.ones(batch, 4), "y": torch.ones(batch, dtype=torch.long)},
            lambda outputs, batch: F.cross_entropy(outputs, batch["y"]),
        ),
    )
    assert trial.computed(made, {"n": 1}, 5) is not None


def test_what_batches_are_made_of_settings() -> None:
    """In runs and in losses."""
    images = {"input": torch.ones(2, 8)}
    made = recipe(
        lambda given: nn.Linear(given["n"], 2), Hooks(lambda batch, seq: images, lambda outputs, _: outputs.sum())
    )
    made = replace(made, inputs=lambda given: lambda batch, seq: {"input": images["input"][:, : given["n"]]})
    found = ran(made, {"n": 4})
    assert found is not None
    assert found.parameters["weight"] == (2, 4)
    assert trial.computed(made, {"n": 4}, 5) is not None
    assert ran(replace(made, inputs=None), {"n": 4}) is None


class Strided(nn.Module):
    """Operators that write, make views, keep strides, draw, return several, and are given other dtypes of one shape."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(given["n"], 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.weight.t()
        y = torch.empty_like(x.t()) + x.t().double() + torch.rand_like(x.t())
        mean, spread = torch.var_mean(y.float(), 1)
        whole = (x > mean).long().cumsum(0) + spread.long()
        return (y.t().mul_(2).relu_().unfold(0, 2, 1).float().flatten(1) * whole[:1].float().repeat(1, 2)).view(1, -1)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_what_is_known_of_operators_is_what_torch_says(sizes: list[int]) -> None:
    hooks = Hooks(lambda batch, seq: {"x": torch.zeros(batch, 4)}, lambda outputs, batch: outputs.sum())

    def once(size: int) -> Run | None:
        trial.KNOWN.clear()
        return ran(recipe(Strided, hooks), {"n": size})

    expected = [once(size) for size in sizes]
    assert None not in expected
    assert [ran(recipe(Strided, hooks), {"n": size}) for size in sizes + sizes] == expected + expected
