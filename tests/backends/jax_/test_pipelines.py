"""Pipelines of JAX: stages run in step, and are the model they were written for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.capabilities import JAX_CUDA
from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.emit.pipeline.stages import Stages
from meshwright.backends.jax_.emit.pipeline.ticks import Ticks
from meshwright.backends.jax_.verify.emitted import Job, Ran, run, verdict
from meshwright.backends.jax_.verify.hlo import collectives
from meshwright.backends.jax_.verify.predicted import REWRITES
from meshwright.ir.errors import EmissionLoss, EmissionSchedule, EmissionStorage, NotExpressible
from meshwright.ir.sharding.mesh import Mesh
from tests.backends.jax_.planned import LLAMA, ZOO, needed_of, ran_together, subject
from tests.backends.torch_.emitted import unclean

SCAN = f"{LLAMA}:tiny_scan"
PIPELINES: tuple[tuple[str, dict[str, Any]], ...] = (
    (SCAN, {"pp": 2, "microbatches": 16, "schedule": "gpipe"}),
    (SCAN, {"pp": 2, "microbatches": 16, "schedule": "eager-1f1b"}),
    (f"{LLAMA}:tiny", {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "eager-1f1b", "recompute": "full"}),
    (SCAN, {"pp": 2, "vp": 2, "tp": 2, "microbatches": 4, "schedule": "interleaved"}),
    (f"{ZOO}/linen.py:gpt", {"pp": 4, "dp": 2, "microbatches": 4, "schedule": "eager-1f1b"}),
    (f"{ZOO}/plain.py:in_turn", {"pp": 2, "dp": 2, "microbatches": 4, "schedule": "eager-1f1b", "recompute": "full"}),
    (f"{ZOO}/plain.py:gshard_scan", {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "interleaved"}),
    (f"{ZOO}/plain.py:counting", {"pp": 2, "microbatches": 4, "schedule": "gpipe"}),
)
NEEDED = (
    {"in_step", "told"},
    {"in_step", "told"},
    {"in_step", "one_program", "scalars", "told"},
    {"in_step", "one_program", "told"},
    {"added_up", "by_bytes", "in_step", "one_program", "scalars", "told"},
    {"by_bytes", "in_step", "made_again", "one_program", "scalars", "told"},
    {"in_step", "made_again", "one_program", "stacked", "told"},
    {"in_step", "told"},
)
"""The rewrites without which collectives of each would differ."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, Ran]]:
    """All scripts, run in one process."""
    return ran_together("pipelines", PIPELINES, tmp_path_factory.mktemp("piped"), 1800)


@pytest.mark.e2e
@pytest.mark.slow
def test_pipelines_are_exact(ran: list[tuple[Job, Ran]]) -> None:
    """The loss, every gradient and the optimizer's step; collectives, none left."""
    for one, left in ran:
        found = verdict(one, left)
        assert found.differences == ()
        assert found.tensors >= 16
        assert "permute" in {kind for kind, axes, _, _ in found.collectives if axes == "pp"}


@pytest.mark.e2e
@pytest.mark.slow
def test_every_rewrite_of_pipelines_is_needed(ran: list[tuple[Job, Ran]]) -> None:
    for (one, left), needed in zip(ran, NEEDED, strict=True):
        assert needed_of(one, left, REWRITES) == needed


@pytest.mark.e2e
@pytest.mark.slow
def test_less_waits_for_its_backward_pass_under_1f1b(ran: list[tuple[Job, Ran]]) -> None:
    """Sixteen micro-batches of GPipe, three of 1F1B, beside what does not wait."""
    gpipe, one_f_one_b = (left.temp_bytes for _, left in ran[:2])
    assert 0 < one_f_one_b <= gpipe / 2


def test_scripts_of_pipelines_are_clean(tmp_path: Path) -> None:
    for number, (reference, degrees) in enumerate(PIPELINES):
        emit(subject(reference, **degrees), tmp_path / str(number)).write(tmp_path / str(number))
    for file in tmp_path.rglob("*.py"):
        assert "meshwright" not in file.read_text()
        assert len(file.read_text().splitlines()) <= {"train.py": 150, "train_shardings.py": 240}.get(file.name, 335)
    assert unclean(tmp_path, types=False) == ""


@pytest.mark.parametrize("name", ["gpipe", "eager-1f1b", "interleaved"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_no_turn_waits_but_for_the_tick_before(name: str, stages: int) -> None:
    """The values and gradients that a turn reads were made in the tick before it by the neighbour, or by its own stage
    in this one."""
    chunks = 2 if name == "interleaved" else 1
    ticks = Ticks(stages=stages, chunks=chunks, microbatches=2 * stages, waits=name == "gpipe")
    depth, at = stages * chunks, dict[tuple[str, int, int], int]()
    for stage in range(stages):
        for number in range(ticks.turns):
            for kind, tick in (("F", stage + number), ("B", ticks.start + stages - 1 - stage + number)):
                chunk, micro = ticks.turn(number, back=kind == "B")
                at[kind, chunk * stages + stage, micro] = tick
    assert len(at) == 2 * depth * ticks.microbatches
    for (kind, stage, micro), tick in at.items():
        before = ("F", stage - 1, micro) if kind == "F" else ("B", stage + 1, micro)
        assert at.get(before, tick - 1) == tick - 1
        assert kind == "F" or at["F", stage, micro] <= tick
        assert any(first <= tick < last and ways[kind == "B"] for first, last, ways in ticks.loops)


def test_schedules_of_a_program_are_those_that_run_in_step() -> None:
    for reference, degrees in PIPELINES:
        plan = subject(reference, **degrees)
        ticks = Ticks.of(plan.program)
        assert (ticks.stages, ticks.chunks) == (degrees["pp"], degrees.get("vp", 1))
        assert ticks.waits == (degrees["schedule"] == "gpipe")


@pytest.mark.parametrize(
    ("reference", "degrees", "error", "why"),
    [
        (
            SCAN,
            {"pp": 2, "dp": 2, "zero": 2, "microbatches": 4, "schedule": "eager-1f1b"},
            EmissionStorage,
            "every micro",
        ),
        (SCAN, {"pp": 2, "microbatches": 4, "schedule": "zb-h1"}, NotExpressible, "schedule"),
        (
            f"{ZOO}/translation.py:build",
            {"pp": 2, "microbatches": 4, "schedule": "eager-1f1b"},
            EmissionSchedule,
            "one program",
        ),
        (
            f"{ZOO}/plain.py:in_turn",
            {"pp": 2, "vp": 2, "microbatches": 4, "schedule": "interleaved"},
            EmissionSchedule,
            "one program",
        ),
        (
            f"{ZOO}/plain.py:gshard_balanced",
            {"pp": 2, "microbatches": 4, "schedule": "eager-1f1b"},
            EmissionLoss,
            "no parts",
        ),
    ],
)
def test_pipelines_that_are_not_written_are_refused(
    reference: str, degrees: dict[str, Any], error: type[Exception], why: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=why):
        emit(subject(reference, **degrees), tmp_path)


def test_a_table_that_is_cast_once_for_both_ends_is_refused(tmp_path: Path) -> None:
    """In bf16 the plan hands the cast one on to the last stage, where a scan hands on what blocks do."""
    with pytest.raises(EmissionSchedule, match=r"made of tokens\.embedding is planned to be handed on"):
        emit(subject(f"{ZOO}/nnx_.py:scanned", on=JAX_CUDA, pp=2, microbatches=4, schedule="gpipe"), tmp_path)


def test_blocks_of_a_unit_are_computed_again_each_by_its_own_plan(tmp_path: Path) -> None:
    """Dense blocks and mixtures in turn: the plan of one says nothing of the other."""
    plan = subject(f"{ZOO}/plain.py:in_turn", pp=2, microbatches=4, schedule="eager-1f1b", recompute="full")
    dense = tuple(replace(one, recompute=()) if one.body == "layers" else one for one in plan.decisions.plans)
    plan = replace(plan, decisions=replace(plan.decisions, plans=dense))
    assert Stages(plan).units == (("layers.0", "layers.1"), ("layers.2", "layers.3"))
    assert Stages(plan).again == (False, True)
    emit(plan, tmp_path).write(tmp_path)
    written = "    partial(jax.checkpoint, policy=but_cheap),\n    jax.checkpoint,\n]\n"
    assert written in (tmp_path / "train_pipeline.py").read_text()
    last = tuple(replace(one, recompute=()) if one.body == "layers.3" else one for one in plan.decisions.plans)
    with pytest.raises(EmissionSchedule, match="computed again"):
        Stages(replace(plan, decisions=replace(plan.decisions, plans=last))).check()


def test_a_scan_that_begins_with_the_last_block_is_refused(tmp_path: Path) -> None:
    text = (ZOO / "plain.py").read_text()
    (tmp_path / "plain.py").write_text(text.replace('x, p["layers"])', 'x, p["layers"], reverse=True)'))
    plan = subject(f"{tmp_path}/plain.py:decoder_scan", pp=2, microbatches=4, schedule="gpipe")
    with pytest.raises(EmissionSchedule, match="begins with the last"):
        emit(plan, tmp_path)


CONDITIONS = """\
HloModule x

%deep (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  ROOT %r = f32[4] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
}

%turn (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  %a = f32[8] all-gather(%p), replica_groups={{0,1}}, dimensions={0}
  ROOT %c = f32[4] conditional(%i, %p, %p), branch_computations={%none, %deep}
}

%none (p: f32[4]) -> f32[4] {
  ROOT %p = f32[4] parameter(0)
}

%tick (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  %c = f32[4] conditional(%i, %p, %p), branch_computations={%none, %turn}
  ROOT %r = f32[4] collective-permute(%c), source_target_pairs={{0,1}}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  ROOT %w = f32[4] while(%p), condition=%none, body=%tick, backend_config={"known_trip_count":{"n":"9"}}
}
"""


def test_what_stands_under_conditions_runs_as_often_as_they_hold() -> None:
    found = collectives(CONDITIONS, Mesh.parse("pp=2"), (8, 4))
    assert found == Counter(
        {("permute", ("pp",), 16): 9, ("all_gather", ("pp",), 16): 8, ("all_reduce", ("pp",), 16): 4}
    )


@pytest.mark.e2e
@pytest.mark.slow
def test_stages_in_bf16_are_near_fp32(tmp_path: Path) -> None:
    """Parameters and the sums of gradients are in fp32, of which a step computes with a bf16 copy."""
    plan = subject(SCAN, on=JAX_CUDA, pp=2, dp=2, microbatches=4, schedule="eager-1f1b")
    emit(plan, tmp_path).write(tmp_path)
    (found,) = run([Job.of(plan, tmp_path)], steps=1, limit_s=900)
    assert "bf16[" in found.hlo
    assert all(off < 0.05 for off in found.off.values())
