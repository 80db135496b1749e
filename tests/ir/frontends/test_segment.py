"""Folds of models that repeat, that nearly repeat, and that do not. What cannot be folded is traced whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.frontends.folding.captured import Captured
from meshwright.ir.frontends.folding.segment import replaced_ops, unlike
from meshwright.ir.frontends.torch_.sources.factory import Hooks, TorchSource, example_batch
from meshwright.ir.frontends.torch_.tracing.export import trace
from meshwright.ir.graph.fold import Fold, FromSegment, unfold
from meshwright.ir.graph.graph import Graph
from meshwright.ir.verify.graphs import verify_fold
from tests.ir.frontends.tiny import CONFIGS, small

WIDTH = 8


class Block(nn.Module):
    def __init__(self, index: int = 0, width: int = 2 * WIDTH, odd: str = "") -> None:
        super().__init__()
        self.layer_idx = index
        self.odd = odd
        self.up = nn.Linear(WIDTH, width)
        self.down = nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(x)))


class Model(nn.Module):
    """Blocks one after another; subclasses do it otherwise."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.embedding = nn.Embedding(10, WIDTH)

    def run(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.run(self.embedding(tokens)).sum()


def captured(model: nn.Module) -> Captured:
    def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
        return {"tokens": torch.zeros(batch, seq, dtype=torch.long)}

    source = TorchSource(model.to("meta"), Hooks(example_inputs), "a test")
    found = capture(source, batch=2, seq=4)
    verify_fold(found.fold)
    whole = trace(source, example_batch(source, 2, 4)).graph
    assert unlike(anonymous(unfold(found.fold)), anonymous(whole)) == ""
    return found


def anonymous(graph: Graph) -> Graph:
    """Without module paths: glue between two blocks counts as part of the second."""
    return replaced_ops(graph, tuple(replace(op, module="") for op in graph.ops))


def shape(fold: Fold) -> list[tuple[int, int]]:
    """(period, repeats) of every stack."""
    return [(len(segment.period), segment.repeats) for segment in fold.segments if not segment.glue]


def test_like_blocks_are_one() -> None:
    assert shape(captured(Model([Block(i) for i in range(9)])).fold) == [(1, 9)]


def test_one_altered_layer_stays_apart() -> None:
    blocks: list[nn.Module] = [Block(i) for i in range(9)]
    blocks[4] = Block(4, width=3)
    assert shape(captured(Model(blocks)).fold) == [(1, 4), (1, 1), (1, 4)]


def test_a_period() -> None:
    blocks: list[nn.Module] = [Block(i, width=24 if i % 3 == 2 else 16) for i in range(11)]
    assert shape(captured(Model(blocks)).fold) == [(3, 3), (1, 2)]


def test_a_block_that_looks_alike_but_is_not() -> None:
    class Even(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.layer_idx % 2 else x - self.down(self.up(x))

    found = captured(Model([Even(i) for i in range(8)]))
    assert shape(found.fold) == [(2, 4)]
    assert "full depth" in found.notes[0]


def test_a_first_layer_that_looks_alike_but_is_not() -> None:
    class First(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.relu(x) if self.layer_idx == 0 else x)

    assert shape(captured(Model([First(i) for i in range(8)])).fold) == [(1, 1), (1, 7)]


def test_glue_between_blocks_belongs_to_the_next() -> None:
    class Between(Model):
        def run(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x).neg()
            return x

    assert shape(captured(Between([Block(i) for i in range(8)])).fold) == [(1, 1), (1, 7)]


@pytest.mark.parametrize("depth", [5, 9])
def test_a_residual_outside_the_blocks(depth: int) -> None:
    """The second block adds to what the first was given, later ones to a sum: that is no reason for full depth."""

    class Outside(Model):
        def run(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x

    found = captured(Outside([Block(i) for i in range(depth)]))
    assert shape(found.fold) == [(1, 1), (1, depth - 1)]
    assert found.notes == ()


def test_every_other_block_reads_something_else() -> None:
    class Other(Model):
        def run(self, x: Tensor) -> Tensor:
            first = x
            for index, block in enumerate(self.blocks):
                x = block(x) * (first if index % 2 else x)
            return x

    assert shape(captured(Other([Block(i) for i in range(12)])).fold)[-1] != (1, 11)


def test_a_value_that_all_blocks_read() -> None:
    class Shared(Model):
        def run(self, x: Tensor) -> Tensor:
            first = x.relu()
            for block in self.blocks:
                x = block(x) + first
            return x

    fold = captured(Shared([Block(i) for i in range(8)])).fold
    stack = next(segment for segment in fold.segments if segment.repeats > 1)
    assert any(isinstance(source, FromSegment) and source.segment == 0 for source in stack.wires[0])


def test_a_parameter_that_all_blocks_read() -> None:
    class Reads(Block):
        def __init__(self, index: int, scale: nn.Parameter) -> None:
            super().__init__(index)
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * self.scale)

    scale = nn.Parameter(torch.ones(WIDTH, device="meta"))
    found = captured(Model([Reads(i, scale) for i in range(6)]))
    assert shape(found.fold) == [(1, 6)]
    assert found.parameters == sum(p.numel() for p in Model([Block(i) for i in range(6)]).parameters()) + WIDTH


def test_parameters_of_blocks_that_are_not_called_belong_to_the_first_call() -> None:
    """The images' half of a model that is given text alone: all of its blocks, of which few are traced."""

    class TwoHalves(Model):
        def __init__(self) -> None:
            super().__init__([Block(i) for i in range(6)])
            self.images = nn.ModuleList(Block(i, odd="yes" if i == 3 else "") for i in range(6))

    model = TwoHalves()
    found = captured(model).fold
    assert shape(found) == [(1, 6)]
    held = [path for param in next(iter(found.calls())).body.graph.params for path in param.paths]
    assert sorted(held) == sorted(name for name, _ in model.named_parameters() if not name.startswith("blocks."))


def test_a_parameter_of_a_block_that_the_model_reads_too() -> None:
    class Reads(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            return F.linear(self.run(self.embedding(tokens)), self.blocks.get_submodule("0.up").weight).sum()

    found = captured(Reads([Block(i) for i in range(6)])).fold
    first = next(iter(found.calls())).body.graph
    assert [param.value for param in first.params if param.value in first.outputs] == ["blocks.0.up.weight"]


def test_skips_across_the_stack_are_not_folded_away() -> None:
    class Skips(Model):
        def run(self, x: Tensor) -> Tensor:
            kept: list[Tensor] = []
            half = len(self.blocks) // 2
            for block in self.blocks[:half]:
                x = block(x)
                kept.append(x)
            for block in self.blocks[half:]:
                x = block(x + kept.pop())
            return x

    found = captured(Skips([Block(i) for i in range(8)]))
    assert found.notes


def test_parallel_blocks_are_not_a_stack() -> None:
    class Parallel(Model):
        def run(self, x: Tensor) -> Tensor:
            return torch.stack([block(x) for block in self.blocks]).sum(0)

    assert captured(Parallel([Block(i) for i in range(8)])).notes


def test_a_block_that_runs_twice() -> None:
    class Twice(Model):
        def run(self, x: Tensor) -> Tensor:
            return super().run(super().run(x))

    found = captured(Twice([Block(i) for i in range(4)]))
    assert shape(found.fold) == []
    assert "entered twice" in " ".join(found.notes)


def test_two_lists_in_step() -> None:
    class InStep(Model):
        def __init__(self) -> None:
            super().__init__([Block(i) for i in range(6)])
            self.others = nn.ModuleList(Block(i, width=12) for i in range(6))

        def run(self, x: Tensor) -> Tensor:
            for a, b in zip(self.blocks, self.others, strict=True):
                x = b(a(x))
            return x

    assert shape(captured(InStep()).fold) == [(2, 6)]


def test_a_model_that_counts_on_its_depth() -> None:
    class Counts(Model):
        def run(self, x: Tensor) -> Tensor:
            for i in range(8):
                x = self.blocks[i](x)
            return x

    found = captured(Counts([Block(i) for i in range(8)]))
    assert shape(found.fold) == [(1, 8)]
    assert "fewer blocks" in found.notes[0]


def test_frozen_layers_stay_apart() -> None:
    model = Model([Block(i) for i in range(8)])
    for block in list(model.blocks)[:3]:
        block.requires_grad_(False)
    model.embedding.requires_grad_(False)
    fold = captured(model).fold
    assert shape(fold) == [(1, 3), (1, 1), (1, 4)]


SPINE: dict[str, tuple[list[tuple[int, int]], int]] = {
    "llama-3.1-8b": ([(1, 32)], 8_030_261_248),
    "llama-3.1-70b": ([(1, 80)], 70_553_706_496),
    "llama-3.1-405b": ([(1, 126)], 405_853_388_800),
    "gpt2": ([(1, 12)], 124_439_808),
    "phi-3-mini": ([(1, 32)], 3_821_079_552),
    "gemma-3-1b": ([(6, 4), (1, 2)], 999_885_952),
    "gemma-3-27b": ([(6, 10), (1, 2)], 27_009_346_304),
    "mixtral-8x7b": ([(1, 32)], 46_702_792_704),
    # The published 671,026,419,200 counts the 58 x 256 routing biases, which are buffers here.
    "deepseek-v3": ([(1, 3), (1, 58)], 671_026_404_352),
    "t5-large": ([(1, 1), (1, 23), (1, 1), (1, 23)], 737_668_096),
}


@pytest.mark.parametrize("name", SPINE)
def test_spine_at_full_size(name: str) -> None:
    folds, parameters = SPINE[name]
    found = capture(load_model(str(CONFIGS / name)), batch=1, seq=512)
    assert found.parameters == parameters
    assert shape(found.fold) == folds
    assert found.notes == ()
    assert not [op for body in found.fold.bodies for op in body.graph.ops if op.kind == "opaque"]
    verify_fold(found.fold)


def test_depth_does_not_change_the_bodies(tmp_path: Path) -> None:
    few, many = (capture(small("llama-3.1-8b", tmp_path / str(n), layers=n), batch=2, seq=8).fold for n in (4, 40))
    assert [body.graph for body in few.bodies] == [body.graph for body in many.bodies]
