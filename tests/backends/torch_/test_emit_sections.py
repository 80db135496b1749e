"""Fused weights whose sections a tensor axis cuts: what is written, and what is refused. They run in the launches of
test_emit_meta.py (drawn, and taken up from a checkpoint of one device) and test_emit_checkpoints.py (saved)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.backends.torch_.capabilities import TORCH_CUDA, TORCH_GLOO
from meshwright.backends.torch_.emit import emit
from meshwright.backends.torch_.emit.sections import fused_of
from meshwright.ir.adjoint import Split, Strategy
from meshwright.ir.capabilities import Capabilities
from meshwright.ir.errors import EmissionModule, EmissionSoftware, LayoutNotExpressible
from meshwright.ir.placement import Sections
from tests.backends.torch_.emitted import ROOT, subject, unclean, written

FUSED = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'llama_fused.py'}:fused"
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
def test_what_is_done_to_all_sections_together_is_no_cut_product(target: Capabilities) -> None:
    plan = subject(reference=CLAMPED, tp=2)
    with pytest.raises(LayoutNotExpressible, match="layout joined"):
        target.check(plan.decisions, plan.fold)
    plan = subject(reference=FUSED, tp=2)
    target.check(plan.decisions, plan.fold)


def test_emission_refuses_sections_elsewhere() -> None:
    plan = subject(reference=FUSED, tp=2)
    piece = next(piece for piece in plan.pieces if piece.repeated)
    silu = next(op for op in piece.graph.ops if op.kind == "silu")
    pairs = Strategy((("tp", Split(("d2",), Sections((24, 24)))),))
    strategies = tuple((name, pairs if name == silu.name else one) for name, one in piece.plan.strategies)
    with pytest.raises(EmissionModule, match=r"silu.*it reads .* in sections"):
        fused_of(plan, replace(piece, plan=replace(piece.plan, strategies=strategies)), "tp")


def test_compiled_blocks_are_refused(tmp_path: Path) -> None:
    plan = subject(reference=FUSED, tp=2)
    compiled = replace(plan, decisions=replace(plan.decisions, style="compiled"))
    with pytest.raises(EmissionSoftware, match="sections cut in"):
        emit(compiled, tmp_path)
