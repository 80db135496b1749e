"""Fused weights whose sections a tensor axis cuts: what is written, and what is refused. They run in the launches of
test_emit_meta.py (drawn, and taken up from a checkpoint of one device) and test_emit_checkpoints.py (saved)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.backends.torch_.capabilities import TORCH_CUDA, TORCH_GLOO
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.sections import fused_of, sizes_of
from meshwright.ir.adjoint import Split, Strategy
from meshwright.ir.capabilities import Capabilities
from meshwright.ir.errors import EmissionModule, EmissionSoftware
from meshwright.ir.placement import CONTIGUOUS, ZIGZAG, Nested, Sections
from tests.backends.torch_.emitted import ROOT, subject, unclean, written

FUSED = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'llama_fused.py'}:fused"
ENCODER = FUSED.replace("llama_fused.py:fused", "printed_models.py:encoder")
CLAMPED = FUSED.replace(":fused", ":clamped")
LONG_NAMES = """\
SECTIONS = {  # parameters by name: the dimension that holds several values side by side, and their sizes
    r"blocks\\.\\d+\\.attention\\.qkv\\.weight": (0, (32, 16, 16)),
    r"blocks\\.\\d+\\.attention\\.qkv\\.bias": (0, (32, 16, 16)),
    r"blocks\\.\\d+\\.feed_forward\\.gate_up\\.weight": (1, (48, 48)),
    r"blocks\\.\\d+\\.feed_forward\\.gate_up\\.bias": (0, (48, 48)),
}
"""


def test_what_is_fused_is_said_once_by_name(tmp_path: Path) -> None:
    text = written(subject(reference=FUSED, tp=2), tmp_path).read_text()
    assert LONG_NAMES in text
    assert '        in_sections(block.get_submodule("attention.qkv"), 32, 16, 16)\n' in text
    assert '        "attention.qkv": ColwiseParallel(),\n' in text
    assert '        "feed_forward.gate_up": Transposed(ColwiseParallel()),\n' in text
    assert '        "attention.out": Transposed(RowwiseParallel(output_layouts=Replicate())),\n' in text


def test_the_script_is_clean(tmp_path: Path) -> None:
    written(subject(reference=FUSED, tp=2, pp=2, microbatches=2, schedule="gpipe"), tmp_path)
    assert unclean(tmp_path, types=True) == ""


@pytest.mark.parametrize("target", [TORCH_GLOO, TORCH_CUDA])
def test_what_is_done_to_all_sections_together_no_style_says(target: Capabilities, tmp_path: Path) -> None:
    plan = subject(reference=CLAMPED, tp=2)
    target.check(plan.decisions, plan.fold)
    with pytest.raises(EmissionModule, match=r"%clamp .*no style says this"):
        emit(plan, tmp_path)
    assert "def block_forward(" in written(replace(plan, prints=None), tmp_path).read_text()


def test_equal_runs_of_a_weight_are_sections_that_no_style_says() -> None:
    """Three products in one, told apart by a dimension of three before the heads."""
    plan = subject(reference=ENCODER, tp=2, prints=None)
    piece = next(piece for piece in plan.pieces if piece.repeated)
    with pytest.raises(EmissionModule, match=r"it reads .* in equal runs"):
        fused_of(plan, piece, "tp")
    assert sizes_of(Nested(3), 96) == (32, 32, 32)
    assert sizes_of(Nested(3, ZIGZAG), 96) == sizes_of(CONTIGUOUS, 96) == ()


def test_emission_refuses_sections_elsewhere() -> None:
    plan = subject(reference=FUSED, tp=2)
    piece = next(piece for piece in plan.pieces if piece.repeated)
    silu = next(op for op in piece.graph.ops if op.kind == "silu")
    pairs = Strategy((("tp", Split(("d2",), Sections((24, 24)))),))
    strategies = tuple((name, pairs if name == silu.name else one) for name, one in piece.plan.strategies)
    with pytest.raises(EmissionModule, match=r"silu.*it reads .* in sections"):
        fused_of(plan, replace(piece, plan=replace(piece.plan, strategies=strategies)), "tp")


def test_compiled_blocks_are_refused_where_they_are_not_printed(tmp_path: Path) -> None:
    plan = subject(reference=FUSED, tp=2)
    compiled = replace(plan, decisions=replace(plan.decisions, style="compiled"))
    with pytest.raises(EmissionSoftware, match="sections cut in"):
        emit(compiled, tmp_path)
    assert "torch.compile(" in written(replace(compiled, prints=None), tmp_path).read_text()
