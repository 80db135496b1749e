"""Emitted scripts whose copies take unequal shares of a batch: exact, with the collectives and memory of the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject
from meshwright.ir.errors import CombinationNotExpressible, LayoutNotExpressible
from meshwright.ir.sharding.shares import batch_shares, state_shares
from meshwright.planner.plan.needs import planned_memory
from tests.backends.torch_.emitted import TINY, lowered, subject, unclean, written
from tests.backends.torch_.measured import NEAR
from tests.backends.torch_.proved import proved

COUNTED = f"{Path(__file__).parent / 'counted.py'}:counted"
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "copies": ({"dp": 4}, (3, 3, 1, 1)),
    "copies, printed": ({"dp": 4, "prints": True}, (3, 3, 1, 1)),
    "shards, micro-batches": ({"dp": 2, "zero": 3, "microbatches": 2, "recompute": "full"}, (3, 1)),
    "tensor": ({"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 1}, (5, 3)),
    "hsdp": ({"dp": 4, "shard": 2, "zero": 3}, (6, 2)),
    "samples that the model counts": ({"dp": 2, "prints": True, "reference": COUNTED}, (7, 1)),
    "samples that the model counts, tensor": ({"dp": 2, "tp": 2, "reference": COUNTED}, (5, 3)),
}


def plan(name: str) -> Subject:
    degrees, sizes = CASES[name]
    even = subject(**degrees)
    decisions = batch_shares(even.decisions, even.fold, sizes)
    TORCH_GLOO.check(decisions, even.fold)
    return replace(even, decisions=decisions, program=lowered(decisions, reference=degrees.get("reference", TINY)))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All scripts, in one launch."""
    folder = tmp_path_factory.mktemp("shares")
    scripts = {name: (plan(name), written(plan(name), folder / name.replace(" ", "_"))) for name in CASES}
    assert not unclean(folder, types=True)
    return proved("shares", scripts, steps=2, limit_s=240)


@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
def test_a_script_with_unequal_shares_is_exact(name: str, found: dict[str, Verified]) -> None:
    one = found[name]
    assert one.differences == ()
    assert one.losses[1] < one.losses[0]
    planned = planned_memory(plan(name).program)
    assert len(set(planned)) == 2
    if "counts" not in name:  # small tensors, of which printed functions hold some longer, with equal shares too
        assert planned == pytest.approx(one.memory, rel=NEAR)


def test_a_script_says_its_shares(tmp_path: Path) -> None:
    text = written(plan("hsdp"), tmp_path).read_text()
    assert "SHARES = (3,) * 2 + (1,) * 2  # of a batch, on the ranks of dp_dp_shard" in text


def test_printed_code_looks_up_how_many_samples_a_rank_has(tmp_path: Path) -> None:
    """Only where it cannot be read off a shape."""
    text = written(plan("samples that the model counts"), tmp_path).read_text()
    assert "self.first.expand((7, 1)[dp.get_local_rank()], -1, -1)" in text
    assert ".split([7, 1], 0)[dp.get_local_rank()]" in text
    assert "qkv.reshape(-1, 17, 3, 4, 8)" in text


def test_what_is_not_emitted_beside_shares_is_refused() -> None:
    """By the target, so that searches pass over it."""
    piped = subject(dp=2, pp=2, microbatches=2)
    for even in (piped, subject(dp=2, cp=2)):
        batch = 8 // even.decisions.schedule.microbatches
        with pytest.raises(CombinationNotExpressible, match="unequal shares of a batch"):
            TORCH_GLOO.check(batch_shares(even.decisions, even.fold, (batch - 1, 1)), even.fold)
    stored = subject(dp=2, zero=3)
    with pytest.raises(LayoutNotExpressible, match="layout uneven"):
        TORCH_GLOO.check(state_shares(stored.decisions, stored.fold, (3, 1)), stored.fold)
