"""The spine models at their real size, on the meta device: parameters, folds, coverage, text form, micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshwright.ir.analysis.account import account_fold, parameters
from meshwright.ir.analysis.microbatch import microbatch
from meshwright.ir.frontends.door import capture, load_model
from meshwright.ir.graph.fold import Fold, shortened, unfold
from meshwright.ir.graph.reader import parse_fold
from meshwright.ir.graph.text import fold_text
from meshwright.ir.verify.graphs import verify_fold
from tests.e2e.spine import BATCH, BY_NAME, EXAMPLES, SEQ, SPINE, SpineModel, captured

every_model = pytest.mark.parametrize("model", SPINE, ids=str)


def stacks(fold: Fold) -> list[tuple[int, int]]:
    return [(len(segment.period), segment.repeats) for segment in fold.segments if not segment.glue]


@every_model
def test_parameters_are_exact(model: SpineModel) -> None:
    """In the fold, written out: bodies times repeats, tied ones once, buffers not."""
    weights = [(param, type_) for param, type_ in parameters(captured(model).fold).values() if not param.buffer]
    assert sum(type_.elements for _, type_ in weights) == model.parameters
    trained = sum(type_.elements for param, type_ in weights if param.requires_grad)
    assert trained == (model.trained or model.parameters)


@every_model
def test_folds(model: SpineModel) -> None:
    assert captured(model).notes == ()
    assert stacks(captured(model).fold) == list(model.stacks)
    verify_fold(captured(model).fold)


@every_model
def test_everything_is_under_rules(model: SpineModel) -> None:
    total = account_fold(captured(model).fold)
    assert total.opaque == ()
    assert total.covered_flops >= 0.999
    assert total.covered_bytes >= 0.99


@every_model
def test_the_text_form_round_trips(model: SpineModel) -> None:
    fold = captured(model).fold
    assert parse_fold(fold_text(fold)) == fold


@every_model
def test_microbatches(model: SpineModel) -> None:
    found = microbatch(unfold(shortened(captured(model).fold, 2)))
    assert found.legal == (not model.split_by)
    assert {blocker.kind for blocker in found.blockers} == {model.split_by} - {""}


def test_blockers_name_the_batch_norms_of_the_unet() -> None:
    found = microbatch(unfold(captured(BY_NAME["unet"]).fold))
    assert [blocker.module for blocker in found.blockers] == [
        f"{block}.norm{number}"
        for block in (*(f"down.{i}" for i in range(4)), "bottom", *(f"up.{i}" for i in range(4)))
        for number in (1, 2)
    ]


# Folding -------------------------------------------------------------------------------------------------------------


def test_gemma_repeats_five_windows_and_a_global_layer() -> None:
    """On more tokens than a window holds."""
    fold = capture(load_model(BY_NAME["gemma-3-1b"].reference), batch=BATCH, seq=1024).fold
    mask = {
        body.name: next(op.attr("mask") for op in body.graph.ops if op.kind == "attention")
        for body in fold.bodies
        if body.module_class
    }
    period = next(segment.period for segment in fold.segments if segment.repeats == 4)
    assert [mask[name] for name in period] == ["window"] * 5 + ["causal"]


def test_whichever_blocks_are_drawn_the_fold_is_the_same() -> None:
    model = BY_NAME["own-llama-405b"]
    other = capture(load_model(model.reference), batch=BATCH, seq=SEQ, seed=1)
    assert [stack.walk for stack in other.stacks] != [stack.walk for stack in captured(model).stacks]
    assert other.fold == captured(model).fold


@pytest.mark.parametrize("family", ["own-llama", "hf-llama"])
def test_depth_costs_nothing(family: str) -> None:
    """The same number of blocks is traced, and the fold is equally long, whatever the depth."""
    small, large = (captured(BY_NAME[f"{family}-{size}"]) for size in ("8b", "405b"))
    assert [len(stack.walk) for stack in small.stacks] == [len(stack.walk) for stack in large.stacks]
    assert sum(len(stack.walk) for stack in large.stacks) <= 3
    assert [len(body.graph.ops) for body in small.fold.bodies] == [len(body.graph.ops) for body in large.fold.bodies]


def wider(block: nn.Module) -> None:
    h, f = block.feed_forward.down_proj.weight.shape
    for name, shape in {"gate_proj": (h, f + 256), "up_proj": (h, f + 256), "down_proj": (f + 256, h)}.items():
        setattr(block.feed_forward, name, nn.Linear(*shape, bias=False, device="meta", dtype=torch.bfloat16))


def test_one_layer_may_have_another_number() -> None:
    source = load_model(f"{EXAMPLES / 'llama.py'}:llama_8b")
    source.module.get_submodule("blocks.17").feed_forward_norm.eps = 1e-6  # type: ignore[assignment]
    fold = capture(source, batch=BATCH, seq=SEQ).fold
    assert stacks(fold) == [(1, 32)]
    (layers,) = (segment for segment in fold.segments if not segment.glue)
    assert [layers.numbers.count(numbers) for numbers in layers.numbers] == [1 if n == 17 else 31 for n in range(32)]


def test_one_altered_layer_stays_apart() -> None:
    source = load_model(f"{EXAMPLES / 'llama.py'}:llama_8b")
    wider(source.module.get_submodule("blocks.17"))
    fold = capture(source, batch=BATCH, seq=SEQ).fold
    assert stacks(fold) == [(1, 17), (1, 1), (1, 14)]
    alone = next(segment for segment in fold.segments if segment.paths == ("blocks.17",))
    assert fold.count(alone.period[0]) == 1
