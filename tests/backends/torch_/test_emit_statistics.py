"""Batch norms over copies: the statistics of all of them, also where blocks run again and of micro-batches; and the
buffers that hold them, which are compared as parameters are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.torch_.emit import Subject
from meshwright.backends.torch_.verify.emitted import Verified, verify
from meshwright.ir.combined import COMBINED
from meshwright.ir.mesh import Mesh, MeshAxis
from tests.backends.torch_.emitted import ROOT, job, subject, unclean, written
from tests.backends.torch_.measured import assert_planned

NORMED = f"{Path(__file__).parent / 'normed.py'}:tiny"
UNET = f"{ROOT / 'examples' / 'unet.py'}:tiny"
KINDS: dict[str, dict[str, Any]] = {
    "copies": {"reference": NORMED, "dp": 2, "recompute": "full"},
    "micro-batches": {"reference": NORMED, "dp": 2, "zero": 3, "microbatches": 2},
    "unet": {"reference": UNET, "dp": 2, "zero": 3},
}
FAULTS = {
    "statistics of own samples": ("dist.all_reduce(moments, group=self.group)", "moments /= self.share", "buffer"),
    "statistics twice": ("buffer.copy_(one)", "pass", "buffer blocks.0.norm.num_batches_tracked"),
    "gradients of own samples": ("dist.all_reduce(sums, group=ctx.group)", "sums /= ctx.share", "gradient"),
}
"""Of the first one's script: what is changed, and a word of what is found then."""


@pytest.fixture(scope="module")
def plans() -> dict[str, Subject]:
    return {kind: subject(**given) for kind, given in KINDS.items()}


@pytest.fixture(scope="module")
def found(plans: dict[str, Subject], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    """All in one launch."""
    scripts = {kind: written(plan, tmp_path_factory.mktemp("plan")) for kind, plan in plans.items()}
    jobs = {kind: job(plan, scripts[kind]) for kind, plan in plans.items()}
    for name, (text, other, _) in FAULTS.items():
        script = written(plans["copies"], tmp_path_factory.mktemp("fault"))
        assert text in script.read_text()
        script.write_text(script.read_text().replace(text, other))
        jobs[name] = job(plans["copies"], script)
    return dict(zip(jobs, verify(list(jobs.values()), steps=2, limit_s=120), strict=True))


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_is_exact_and_holds_what_is_planned(
    kind: str, plans: dict[str, Subject], found: dict[str, Verified]
) -> None:
    assert found[kind].exact, found[kind].differences[:4]
    assert_planned(plans[kind], found[kind])


@pytest.mark.e2e
@pytest.mark.parametrize("fault", FAULTS)
def test_a_script_with_a_fault_does_not_pass(fault: str, found: dict[str, Verified]) -> None:
    says = FAULTS[fault][-1]
    assert any(says in one for one in found[fault].differences), found[fault].differences[:4]


def test_searches_pass_over_what_statistics_of_copies_are_not_emitted_beside(plans: dict[str, Subject]) -> None:
    plan = plans["copies"]
    compiled = replace(plan.decisions, style="compiled")
    assert "statistics that copies share in Block" in COMBINED["compiled_blocks"](compiled, plan.fold)
    assert COMBINED["compiled_blocks"](plan.decisions, plan.fold) == ""
    (stage,) = plan.decisions.stages
    other = replace(stage, mesh=Mesh((MeshAxis("dp", 4),)), ranks=tuple(range(2, 6)))
    unlike = replace(plan.decisions, stages=(stage, other))
    assert "statistics that copies share" in COMBINED["beside_unlike_meshes"](unlike, plan.fold)


@pytest.mark.e2e
def test_copies_exchange_two_numbers_per_channel_each_way(plans: dict[str, Subject], tmp_path: Path) -> None:
    """Both moments of 16 channels, of four blocks and the head; those of blocks once more when these run again."""
    (body,) = [one for one in plans["copies"].program.bodies if one.body == "Block"]
    moves = [one for one in (*body.forward, *body.backward) if getattr(one, "reason", "") in ("value", "gradient")]
    assert [body.nbytes[one.operand] for one in moves] == [2 * 16 * 8] * 3
    assert unclean(written(plans["copies"], tmp_path).parent, types=True) == ""
