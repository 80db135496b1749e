"""Losses, forward passes and parameters of many forms: emitted under copies, ZeRO-3, micro-batches and two stages, run
in one launch, and exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.torch_.emit import Subject
from meshwright.ir.errors import EmissionLoss, EmissionStorage
from tests.backends.torch_.emitted import subject, unclean, written
from tests.backends.torch_.proved import proved

HERE = Path(__file__).parent
STAGES = {"pp": 2, "microbatches": 2, "schedule": "1f1b"}
LOSSES = {
    "mse": 'F.mse_loss(outputs, batch["y"])',
    "bce": 'F.binary_cross_entropy_with_logits(outputs, batch["y"])',
    "kl": 'F.kl_div(outputs.log_softmax(-1), batch["y"].softmax(-1), reduction="batchmean")',
    "sum": '0.1 * F.l1_loss(outputs, batch["y"], reduction="sum")',
    "several": 'several(outputs, batch["label"], batch["y"])',
    "root": 'F.mse_loss(outputs, batch["y"]).sqrt()',
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mse, copies": ("plain", "mse", {"dp": 2}),
    "bce, stages": ("plain", "bce", STAGES),
    "kl, micro-batches": ("plain", "kl", {"dp": 2, "microbatches": 2}),
    "sum, zero 3": ("plain", "sum", {"dp": 2, "zero": 3}),
    "several, copies": ("plain", "several", {"dp": 2}),
    "several, micro-batches": ("plain", "several", {"dp": 2, "microbatches": 2}),
    "several, stages": ("plain", "several", STAGES),
    "several, stages of copies": ("plain", "several", {**STAGES, "dp": 2, "zero": 1}),
    "several, tensor parallel": ("plain", "several", {"tp": 2, "dp": 2, "microbatches": 2}),
    "root, copies": ("plain", "root", {"dp": 2}),
    "a scalar, zero 3": ("scalar", "", {"dp": 2, "zero": 3}),
    "a pair, copies": ("pair", "", {"dp": 2}),
    "a pair, stages": ("pair", "", STAGES),
    "a table, stages": ("table", "", STAGES),
    "an output, copies": ("output", "", {"dp": 2}),
    "scattered, copies": ("scattered", "mse", {"dp": 2}),
    "scattered, zero 3": ("scattered", "mse", {"dp": 2, "zero": 3}),
    "scattered, stages": ("scattered", "mse", STAGES),
    "nested, zero 3": ("nested", "mse", {"dp": 2, "zero": 3}),
    "nested, copies of shards": ("nested", "mse", {"dp": 4, "zero": 3, "shard": 2}),
    "nested, zero 3, printed": ("nested", "mse", {"dp": 2, "zero": 3, "prints": True}),
    "shared, tensor parallel": ("shared", "mse", {"tp": 2}),
    "shared, zero 3": ("shared", "mse", {"dp": 2, "zero": 3}),
    "shared, zero 2, micro-batches": ("shared", "mse", {"dp": 2, "zero": 2, "microbatches": 2}),
    "shared, zero 3, printed": ("shared", "mse", {"dp": 2, "zero": 3, "prints": True}),
    "shared, shards of tensor parallel": ("shared", "mse", {"dp": 2, "tp": 2, "zero": 3}),
    "dropping, copies": ("dropping", "mse", {"dp": 2}),
}


def planned(folder: Path, factory: str, loss: str, degrees: dict[str, Any]) -> Subject:
    """A plan of a model of `forwards.py`, with this loss in its file."""
    file = folder / f"of_{loss or 'own'}.py"
    text = (HERE / "forwards.py").read_text()
    hook = (
        f"\n\ndef loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:\n    return {LOSSES[loss]}\n" if loss else ""
    )
    file.write_text(text + hook)
    return subject(reference=f"{file}:{factory}", **degrees)


def test_all_of_them_are_exact(tmp_path: Path) -> None:
    """Losses, gradients, parameters, buffers and collectives; and nothing in the scripts that ruff minds."""
    plans = {name: planned(tmp_path, *case) for name, case in CASES.items()}
    folders = {name: tmp_path / str(number) for number, name in enumerate(plans)}
    scripts = {name: (plan, written(plan, folders[name])) for name, plan in plans.items()}
    found = proved("losses", scripts, steps=2, limit_s=300)
    assert {name: one.differences[:2] for name, one in found.items() if not one.exact} == {}
    assert {name for name, one in found.items() if one.still} == {"dropping, copies"}
    assert unclean(tmp_path) == ""


def test_what_blocks_share_is_not_in_stages(tmp_path: Path) -> None:
    plan = planned(tmp_path, "shared", "mse", STAGES)
    with pytest.raises(EmissionStorage, match="a block holds it, others read it"):
        written(plan, tmp_path / "out")


def test_a_loss_without_parts_is_refused_where_parts_are_needed(tmp_path: Path) -> None:
    """Of micro-batches; ranks take it of the whole batch together."""
    plan = planned(tmp_path, "plain", "root", {"dp": 2, "microbatches": 2})
    with pytest.raises(EmissionLoss, match="is not linear in a sum over the batch"):
        written(plan, tmp_path / "out")
