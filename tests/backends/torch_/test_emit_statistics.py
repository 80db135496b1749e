"""Batch norms over copies: the statistics of all of them, also where blocks run again and of micro-batches; and the
buffers that hold them, which are compared as parameters are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.results import EXACT, IN_FP64, Verified
from meshwright.backends.torch_.emit import Subject
from meshwright.backends.torch_.verify.emitted import verify
from meshwright.ir.sharding.mesh import Mesh, MeshAxis
from meshwright.ir.target.combined import COMBINED
from tests.backends.torch_.emitted import ROOT, job, subject, unclean, written
from tests.backends.torch_.measured import assert_planned
from tests.backends.torch_.proved import proved

NORMED = f"{Path(__file__).parent / 'normed.py'}:tiny"
CANCELLING = NORMED.replace("tiny", "cancelling")
UNET = f"{ROOT / 'examples' / 'unet.py'}:tiny"
KINDS: dict[str, dict[str, Any]] = {
    "copies": {"reference": NORMED, "dp": 2, "recompute": "full"},
    "micro-batches": {"reference": NORMED, "dp": 2, "zero": 3, "microbatches": 2},
    "unet": {"reference": UNET, "dp": 2, "zero": 3},
    "cancelling": {"reference": CANCELLING, "dp": 2, "zero": 3},
    "by hand": {"reference": NORMED.replace("tiny", "by_hand"), "dp": 2, "microbatches": 2},
}
FAULTS = {
    "statistics of own samples": (
        "copies",
        ("dist.all_reduce(moments, group=self.group)", "moments /= self.share"),
        "buffer",
    ),
    "statistics twice": (
        "copies",
        ("buffer.copy_(one)", "pass"),
        "buffer blocks.0.norm.num_batches_tracked",
    ),
    "gradients of own samples": (
        "copies",
        ("dist.all_reduce(sums, group=ctx.group)", "sums /= ctx.share"),
        "gradient",
    ),
    "gradients a thousandth too large, where rounding does more": (
        "cancelling",
        ("(loss * group.size())", "(loss * group.size() * 1.001)"),
        "gradient",
    ),
    "statistics of one rank, where rounding does more": (
        "cancelling",
        ("running_mean.lerp_(mean, momentum)", "running_mean.lerp_(mean, momentum * dist.get_rank())"),
        "rank 0: the buffer batch_norm.running_mean",
    ),
}
"""Of a script: what is changed, and words of what is found then."""


@pytest.fixture(scope="module")
def plans() -> dict[str, Subject]:
    return {kind: subject(**given) for kind, given in KINDS.items()}


@pytest.fixture(scope="module")
def found(plans: dict[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All in one launch, and in one more those in fp64."""
    scripts = {kind: written(plan, tmp_path_factory.mktemp("plan")) for kind, plan in plans.items()}
    jobs = {}
    for name, (kind, (text, other), _) in FAULTS.items():
        script = written(plans[kind], tmp_path_factory.mktemp("fault"))
        assert text in script.read_text()
        script.write_text(script.read_text().replace(text, other))
        jobs[name] = job(plans[kind], script)
    exact = proved("statistics", {kind: (plan, scripts[kind]) for kind, plan in plans.items()}, steps=2, limit_s=120)
    return exact | dict(zip(jobs, verify(list(jobs.values()), steps=2, limit_s=120), strict=True))


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_is_exact_and_holds_what_is_planned(
    kind: str, plans: dict[str, Subject], found: dict[str, Verified]
) -> None:
    assert found[kind].exact, found[kind].differences[:4]
    assert_planned(plans[kind], found[kind])
    assert (kind == "cancelling") == (found[kind].in_fp64 is not None)


@pytest.mark.e2e
def test_what_is_rounding_in_fp32_is_none_in_fp64(found: dict[str, Verified]) -> None:
    """The gradient of the shift, in both steps: nothing else."""
    one = found["cancelling"]
    assert one.worst > 100 * EXACT
    assert one.in_fp64 is not None
    assert one.in_fp64 < IN_FP64
    assert one.rounded == one.apart == 2


@pytest.mark.e2e
@pytest.mark.parametrize("fault", FAULTS)
def test_a_script_with_a_fault_does_not_pass(fault: str, found: dict[str, Verified]) -> None:
    says = FAULTS[fault][-1]
    assert any(says in one for one in found[fault].differences), found[fault].differences[:4]


def test_searches_pass_over_what_statistics_of_copies_are_not_emitted_beside(plans: dict[str, Subject]) -> None:
    plan = plans["copies"]
    (stage,) = plan.decisions.stages
    other = replace(stage, mesh=Mesh((MeshAxis("dp", 4),)), ranks=tuple(range(2, 6)))
    unlike = replace(plan.decisions, stages=(stage, other))
    assert "statistics that copies share" in COMBINED["beside_different_meshes"](unlike, plan.fold)


@pytest.mark.e2e
def test_copies_exchange_two_numbers_per_channel_each_way(plans: dict[str, Subject], tmp_path: Path) -> None:
    """Both moments of 16 channels, of four blocks and the head; those of blocks once more when these run again."""
    (body,) = [one for one in plans["copies"].program.bodies if one.body == "Block"]
    moves = [one for one in (*body.forward, *body.backward) if getattr(one, "reason", "") in ("value", "gradient")]
    assert [body.nbytes[one.operand] for one in moves] == [2 * 16 * 8] * 3
    assert unclean(written(plans["copies"], tmp_path).parent, types=True) == ""
