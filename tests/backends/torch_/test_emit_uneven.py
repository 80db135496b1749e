"""Parameters that no number of ranks divides, and those that are scalars, under every storage: emitted,
run, and held against one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject
from meshwright.ir.decisions.decisions import Schedule
from meshwright.ir.frontends.door import load_model
from meshwright.ir.names import Degrees
from tests.backends.torch_.emitted import MIXED, subject, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved
from tests.backends.torch_.test_emit_unlike import Case
from tests.backends.torch_.test_emit_unlike import subject as of_unlike

UNEVEN, EXPERTS = (f"{Path(__file__).parent / f'{file}.py'}:uneven" for file in ("llama_uneven", "mixture_uneven"))
KINDS: dict[str, dict[str, Any]] = {
    "zero 1": {"dp": 4, "zero": 1},
    "zero 2, micro-batches": {"dp": 4, "zero": 2, "microbatches": 2},
    "zero 3": {"dp": 4, "zero": 3},
    "hsdp": {"dp": 4, "zero": 3, "shard": 2},
    "zero 3 x tp": {"dp": 2, "tp": 2, "zero": 3},
    "copies in bf16": {"dp": 2, "workload": MIXED},
    "zero 3 in bf16, blocks again": {"dp": 4, "zero": 3, "workload": MIXED, "recompute": "full"},
    "zero 3, sums in bf16": {
        "dp": 2,
        "zero": 3,
        "microbatches": 2,
        "workload": replace(MIXED, recipe="fsdp-bf16-reduce"),
    },
    "zero 3 in bf16, states on the host": {"dp": 2, "zero": 3, "workload": MIXED, "offload": "optimizer"},
    "stages, zero 3 in bf16": {
        "pp": 2,
        "dp": 2,
        "zero": 3,
        "microbatches": 2,
        "schedule": "1f1b",
        "workload": MIXED,
    },
    "experts apart": {"dp": 4, "ep": 2, "zero": 3, "reference": EXPERTS},
    "every expert apart": {"dp": 2, "ep": 2, "zero": 3, "reference": EXPERTS},
}
STAGES = "stages of unlike meshes"
RANKS, STEP_BYTES, WIDTH_BYTES = 4, 8, 4
"""Ranks of the plans whose bytes are counted by hand, scalars of a step that every rank sends besides, and fp32."""


@pytest.fixture(scope="module")
def plans() -> dict[str, Subject]:
    made = {kind: subject(**{"reference": UNEVEN, **degrees}) for kind, degrees in KINDS.items()}
    case = Case((Degrees(dp=2, zero=3), Degrees()), (1, 1), Schedule("1f1b", 2), MIXED, reference=UNEVEN)
    return made | {STAGES: of_unlike(case)}


@pytest.fixture(scope="module")
def scripts(plans: Mapping[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: written(plan, tmp_path_factory.mktemp("plan")) for kind, plan in plans.items()}


@pytest.fixture(scope="module")
def found(plans: Mapping[str, Subject], scripts: Mapping[str, Path]) -> dict[str, Verified]:
    """All in one launch."""
    return proved("uneven", {kind: (plan, scripts[kind]) for kind, plan in plans.items()}, steps=2, limit_s=600)


def sent(one: Verified) -> dict[str, int]:
    """Bytes by kind and axes."""
    return {f"{kind} {axes}": nbytes for kind, axes, _, nbytes in one.collectives}


def padded(ranks: int) -> int:
    """Elements of all parameters but scalars, as `fully_shard` cuts them: along the first dimension that ranks divide,
    or in chunks of the first one, of which all have room for the largest."""
    shapes = [tuple(one.shape) for one in load_model(UNEVEN, dtype="fp32").module.parameters() if one.ndim]
    largest = [
        prod(shape)
        if any(extent % ranks == 0 for extent in shape)
        else ranks * torch.empty(shape).chunk(ranks)[0].numel()
        for shape in shapes
    ]
    return sum(largest)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", [*KINDS, STAGES])
def test_it_is_exact_and_communicates_what_is_planned(kind: str, found: Mapping[str, Verified]) -> None:
    assert found[kind].differences == ()


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["zero 1", "zero 2, micro-batches", "zero 3"])
def test_every_rank_holds_as_much_as_planned(
    kind: str, plans: Mapping[str, Subject], found: Mapping[str, Verified]
) -> None:
    assert_planned(plans[kind], found[kind])


@pytest.mark.e2e
def test_what_is_sent_is_padded_and_gradients_of_numbers_are_summed(found: Mapping[str, Verified]) -> None:
    """By hand: 111,944 elements over four ranks, of which 253 rows are 256, and 5 gains 8; and three scalars."""
    assert padded(RANKS) == 111_944
    whole, scalars = padded(RANKS) * WIDTH_BYTES, 3 * WIDTH_BYTES + STEP_BYTES
    one = sent(found["zero 1"])
    assert one == {"all_gather dp": whole // RANKS, "reduce_scatter dp": whole, "all_reduce dp": scalars}
    for kind in ("zero 2, micro-batches", "zero 3"):
        times = 2 if "micro-batches" in kind else 1
        assert sent(found[kind])["reduce_scatter dp"] == times * whole
    assert sent(found["zero 3"])["all_reduce dp"] == scalars
    assert sent(found["hsdp"])["all_reduce dp.dp_shard"] == scalars


def test_scripts_are_clean(scripts: Mapping[str, Path], tmp_path: Path) -> None:
    for kind in ("zero 3 in bf16, blocks again", "stages, zero 3 in bf16", "experts apart"):
        assert unclean(scripts[kind].parent, types=True) == ""
