"""Fused weights whose sections a tensor axis cuts: what is written. They run in the launches of test_emit_meta.py
(drawn, and taken up from a checkpoint of one device) and test_emit_checkpoints.py (saved)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.backends.torch_.emit.read.sections import sizes_of, whatever_numbers
from meshwright.backends.torch_.emit.write.steps.sections import in_order
from meshwright.ir.sharding.layouts import CONTIGUOUS, ZIGZAG, Nested, Sections
from tests.backends.torch_.emitted import ROOT, subject, unclean, written

FUSED = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'llama_fused.py'}:fused"
LONG_NAMES = """\
SECTIONS = {  # parameters by name: the dimension that holds several values side by side, their sizes, the axis
    r"blocks\\.\\d+\\.attention\\.qkv\\.weight": (0, (32, 16, 16), "tp"),
    r"blocks\\.\\d+\\.attention\\.qkv\\.bias": (0, (32, 16, 16), "tp"),
    r"blocks\\.\\d+\\.feed_forward\\.gate_up\\.weight": (1, (48, 48), "tp"),
    r"blocks\\.\\d+\\.feed_forward\\.gate_up\\.bias": (0, (48, 48), "tp"),
}
"""


def test_what_is_fused_is_said_once_by_name(tmp_path: Path) -> None:
    text = written(subject(reference=FUSED, tp=2), tmp_path).read_text()
    assert LONG_NAMES in text
    assert "    split, split_2, split_3 = qkv.split([16, 8, 8], 2)\n" in text
    assert "    split, split_2 = gate_up.split([24, 24], 2)\n" in text


def test_the_script_is_clean(tmp_path: Path) -> None:
    written(subject(reference=FUSED, tp=2, pp=2, microbatches=2, schedule="gpipe"), tmp_path)
    assert unclean(tmp_path, types=True) == ""


def test_equal_runs_of_a_weight_are_sections() -> None:
    """Three products in one, told apart by a dimension of three before the heads."""
    assert sizes_of(Nested(3), 96) == (32, 32, 32)
    assert sizes_of(Sections((48, 24, 24)), 96) == (48, 24, 24)
    assert sizes_of(Nested(3, ZIGZAG), 96) == sizes_of(CONTIGUOUS, 96) == ()


def test_fused_weights_are_cut_in_compiled_blocks(tmp_path: Path) -> None:
    plan = subject(reference=FUSED, tp=2)
    compiled = replace(plan, decisions=replace(plan.decisions, style="compiled"))
    text = written(compiled, tmp_path).read_text()
    assert LONG_NAMES in text
    assert "torch.compile(" in text


@pytest.mark.parametrize("cut", ["running_mean", "weight"])
def test_statistics_that_are_cut_like_weights_are_put_in_their_order(cut: str) -> None:
    """Where two axes cut channels, the inner one's parts are of every part of the outer one: sections of all that is of
    these channels, running statistics too."""
    params = [SimpleNamespace(buffer=name.startswith("running"), paths=(name,)) for name in ("weight", "running_mean")]
    piece = SimpleNamespace(graph=SimpleNamespace(params=params))
    parts: Any = SimpleNamespace(fused=[(piece, {cut: (0, (4, 4), "dp")})])
    text = "\n".join(in_order(parts))
    assert "parameter.data = reordered(name, parameter.data)" in text
    assert ("buffer.data = reordered(name, buffer.data)" in text) == (cut == "running_mean")


NAMES = st.sampled_from([f"{stack}.{number}.{leaf}" for stack in "ab" for number in range(4) for leaf in ("w", "0.w")])


@given(st.sets(NAMES), st.sets(NAMES))
def test_names_are_told_for_whatever_numbers_if_no_others_have_these(told: set[str], others: set[str]) -> None:
    others -= told
    found = whatever_numbers(map(re.escape, sorted(told)), others)
    assert all(any(re.fullmatch(one, name) for one in found) for name in told)
    assert not any(re.fullmatch(one, name) for one in found for name in others)
    assert len(found) <= len(told)


def test_blocks_that_are_told_one_by_one_are_told_at_once() -> None:
    names = [re.escape(f"tower.layers.{number}.weight") for number in range(70)]
    assert whatever_numbers(names, ["layers.1.weight"]) == (r"tower\.layers\.\d+\.weight",)
