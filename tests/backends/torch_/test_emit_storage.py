"""Storage of all kinds, emitted and run: shards of copies, copies of shards, three axes at once."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.backends.results import Verified
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.emit.read.storage import ACTIVE, WHOLE, Kept, check_sharded
from meshwright.ir.errors import EmissionRecompute, EmissionSoftware, EmissionStorage
from meshwright.ir.names.pinned import Allowed, Pinned
from meshwright.ir.sharding.placement import Placement
from tests.backends.torch_.emitted import MIXED, lowered, model, subject, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved

KINDS: dict[str, dict[str, Any]] = {
    "fsdp": {"dp": 4, "zero": 3},
    "fsdp that stays whole": {"dp": 4, "zero": 3, "regather": False},
    "hsdp": {"dp": 4, "zero": 3, "shard": 2},
    "dp x tp": {"dp": 2, "tp": 2},
    "dp x tp+sp": {"dp": 2, "tp": 2, "sequence_parallel": True},
    "fsdp in bf16": {"dp": 2, "zero": 3, "workload": MIXED},
    "tp+sp x fsdp in bf16": {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True, "workload": MIXED},
    "copies beside tp+sp in bf16": {"dp": 2, "tp": 2, "sequence_parallel": True, "workload": MIXED},
    "tp+sp in bf16, micro-batches": {"tp": 2, "sequence_parallel": True, "microbatches": 2, "workload": MIXED},
    "tp, all in bf16": {"tp": 2, "workload": replace(MIXED, recipe="bf16")},
    "copies in bf16, micro-batches": {"dp": 2, "microbatches": 2, "workload": MIXED},
    "tp+sp, attention again": {"tp": 2, "sequence_parallel": True, "pins": ["attention"]},
    "fsdp, norms and feed-forward again": {"dp": 2, "zero": 3, "pins": ["feed_forward_norm", "feed_forward"]},
    "fsdp, first layers again": {"dp": 2, "zero": 3, "recompute": "full_layers:2"},
    "dp, blocks again": {"dp": 2, "recompute": "full"},
    "tp+sp, the core of attention again": {"tp": 2, "sequence_parallel": True, "recompute": "selective"},
    "tp+sp x fsdp, all but products and attention again": {
        "tp": 2,
        "dp": 2,
        "zero": 3,
        "sequence_parallel": True,
        "recompute": "selective_op",
    },
    "tp x fsdp, states on the host": {"tp": 2, "dp": 2, "zero": 3, "microbatches": 2, "offload": "optimizer"},
    "copies in bf16, states on the host": {"dp": 2, "workload": MIXED, "offload": "optimizer"},
    "dp, states on the host": {"dp": 2, "offload": "optimizer"},
    "dp, activations on the host": {"dp": 2, "offload": "activations"},
    "tp+sp, activations on the host": {
        "tp": 2,
        "sequence_parallel": True,
        "microbatches": 2,
        "offload": "activations",
    },
    "fsdp, first activations and states on the host": {"dp": 2, "zero": 3, "offload": "activations:2+optimizer"},
    "fsdp, all of the first activations on the host": {"dp": 2, "zero": 3, "offload": "activations:4"},
    "dp, all of the first layers again": {"dp": 2, "recompute": "full_layers:4", "offload": "optimizer"},
    "1f1b, activations on the host": {
        "pp": 2,
        "microbatches": 4,
        "schedule": "1f1b",
        "offload": "activations",
    },
    "hsdp x tp+sp": {"dp": 4, "tp": 2, "zero": 3, "shard": 2, "sequence_parallel": True},
}


def plan_of(kind: str) -> Subject:
    degrees = dict(KINDS[kind])
    parts = degrees.pop("pins", ())
    return subject(again(*parts) if parts else None, **degrees)


def again(*parts: str) -> Pinned:
    """Modules of a block run again."""
    chosen = [
        op.name
        for op in model()[0].body["Block"].graph.ops
        if any(op.module == part or op.module.startswith(f"{part}.") for part in parts)
    ]
    return Pinned({"Block": dict.fromkeys(chosen, Allowed(recompute=frozenset({"on"})))})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All plans in one launch."""
    plans = {kind: plan_of(kind) for kind in KINDS}
    scripts = {kind: (plan, written(plan, tmp_path_factory.mktemp("plan"))) for kind, plan in plans.items()}
    return proved("storage", scripts, steps=2, limit_s=600)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_exact_and_communicates_what_it_says(kind: str, found: dict[str, Verified]) -> None:
    one = found[kind]
    assert one.differences == ()
    assert one.tensors == 2 * 39
    counts = {f"{kind} {axes}": number for kind, axes, number, _ in one.collectives}
    assert_planned(plan_of(kind), one)
    if kind == "hsdp":  # six units: gathered twice but for the root, scattered among shards, summed over copies
        assert counts == {
            "all_gather dp_shard": 11,
            "reduce_scatter dp_shard": 6,
            "all_reduce dp": 6,
            "all_reduce dp.dp_shard": 2,
        }
    if kind == "dp x tp+sp":  # two norms a block and the last one: their gradients are sums over tp as well
        assert counts["all_reduce dp.tp"] == 2 * 4 + 1


def test_what_is_not_computed_in_bf16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmissionSoftware, match="more than the batch cut along cp") as copies:
        emit(subject(cp=2, context="all_gather", workload=MIXED), tmp_path)
    assert "zero=3" in copies.value.fix
    with pytest.raises(EmissionSoftware, match="inside of products only") as traced:
        emit(replace(subject(dp=2, zero=3), workload=MIXED), tmp_path)
    assert "--dtype fp32" in traced.value.fix


def test_what_is_exchanged_between_modules_does_not_run_again(tmp_path: Path) -> None:
    with pytest.raises(EmissionRecompute, match="exchanging %rms_norm again between attention_norm and attention"):
        emit(subject(again("attention_norm", "attention"), tp=2, sequence_parallel=True), tmp_path)


def outer_shards() -> Subject:
    """Copies along the inner axis."""
    plan = subject(dp=4, zero=3, shard=2)
    (held,) = plan.decisions.plan["embed"].storage
    outer = Placement.parse("[dp, -]")
    stored = replace(held, params=outer, grads=outer, optimizer=outer)
    plans = tuple(replace(one, storage=(stored,)) if one.name == "embed" else one for one in plan.decisions.plans)
    decisions = replace(plan.decisions, plans=plans)
    return replace(plan, decisions=decisions, program=lowered(decisions))


def test_copies_inside_of_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmissionStorage, match="copies along an axis inside of dp") as refused:
        emit(outer_shards(), tmp_path)
    assert "zero=3" in refused.value.fix


@pytest.mark.parametrize(("of_rank", "refused"), [(1, False), (ACTIVE, False), (ACTIVE + 1, True)])
def test_torch_keeps_three_stages_of_a_rank_gathered_and_no_more(of_rank: int, refused: bool) -> None:
    """Where the optimizer's state alone is sharded; where parameters are, stages are gathered as they run."""
    stages = [SimpleNamespace(ranks=(rank, rank + 1)) for rank in (0, 2) for _ in range(of_rank)]
    plan: Any = SimpleNamespace(decisions=SimpleNamespace(stages=stages), program=SimpleNamespace(actions=()))
    axes: Any = SimpleNamespace(copies=("dp",))
    check_sharded(plan, Kept((), ("dp",), level=2), axes)
    with pytest.raises(EmissionStorage, match="keeps 3 gathered") if refused else nullcontext():
        check_sharded(plan, Kept((), ("dp",), level=1), axes)
    check_sharded(plan, Kept((), (WHOLE,), level=1), axes)  # over one rank nothing is gathered
    with pytest.raises(EmissionStorage, match="copies along dp"):
        check_sharded(plan, Kept((), ("other",), level=2), axes)
