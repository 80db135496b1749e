"""Masks that transformers leaves away in training are left away in traces, where it would write them out."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any
from unittest import mock

import pytest
import torch

from meshwright.ir.frontends.door import capture, load_model

MODEL = """
import torch
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=2, head_dim=16, use_cache=False)


def causal():
    return LlamaForCausalLM(LlamaConfig(**SMALL))


def both_ways():
    return GemmaForCausalLM(GemmaConfig(**SMALL, use_bidirectional_attention=True))


def example_inputs(batch, seq):
    tokens = torch.randint(0, 64, (batch, seq))
    return {"input_ids": tokens, "labels": tokens.clone()}
"""
PACKED = """

def with_positions(batch, seq):
    return {**example_inputs_before(batch, seq), "position_ids": torch.arange(seq).expand(batch, seq) % 4}


example_inputs_before, example_inputs = example_inputs, with_positions
"""


def traced(folder: Path, factory: str, text: str) -> tuple[str, set[tuple[bool, bool]]]:
    """The mask of the trace, and of every call in training whether a mask was given and whether it is causal."""
    (folder / "model.py").write_text(text)
    source = load_model(f"{folder / 'model.py'}:{factory}")
    fold = capture(source, batch=2, seq=8).fold
    (attention, *_) = (op for body in fold.bodies for op in body.graph.ops if op.kind == "attention")
    namespace = run_path(str(folder / "model.py"))
    seen: set[tuple[bool, bool]] = set()
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, **given: Any) -> torch.Tensor:
        seen.add((given.get("attn_mask") is not None, bool(given.get("is_causal"))))
        return attend(*args, **given)

    with mock.patch("torch.nn.functional.scaled_dot_product_attention", watched):
        namespace[factory]()(**namespace["example_inputs"](2, 8))
    return "given" if len(attention.operands) > 3 else str(attention.attr("mask")), seen


@pytest.mark.parametrize(("factory", "mask"), [("causal", "causal"), ("both_ways", "full")])
def test_the_attentions_own_flag_decides_as_in_training(tmp_path: Path, factory: str, mask: str) -> None:
    found, seen = traced(tmp_path, factory, MODEL)
    assert seen == {(False, mask == "causal")}
    assert found == mask


def test_positions_that_are_given_may_be_of_packed_sequences(tmp_path: Path) -> None:
    found, seen = traced(tmp_path, "causal", MODEL + PACKED)
    assert seen == {(True, False)}
    assert found == "given"
