"""Plans in the compiled style, as text: to compile for four ranks takes minutes. `plan verify` runs such plans as
they are compiled; docs/emit.md says which were run so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.emitted_matrix import Small
from meshwright.backends.torch_.capabilities import TORCH_CUDA
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.ir.errors import CombinationNotExpressible, EmissionSoftware
from meshwright.ir.names import Degrees
from meshwright.ir.workload import STACKS
from tests.backends.torch_.emitted import ROOT, WORKLOAD, subject, unclean, written

MIXTURE = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'mixtures.py'}:tiny"


def compiled(**degrees: Any) -> Subject:
    """The plan that degrees mean, in the compiled style."""
    plan = subject(**degrees)
    workload = replace(WORKLOAD, stack=STACKS["torch-compile"])
    return replace(plan, decisions=replace(plan.decisions, style="compiled"), workload=workload)


@pytest.mark.parametrize(
    ("degrees", "count"),
    [
        ({"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True}, "range(4)"),
        ({"pp": 2, "microbatches": 2, "schedule": "1f1b"}, "BLOCKS[model.index]"),
    ],
)
def test_every_block_is_compiled_before_it_is_sharded(degrees: dict[str, Any], count: str, tmp_path: Path) -> None:
    text = written(compiled(**degrees), tmp_path).read_text()
    lines = [
        f"    for index in {count}:",
        '        block = model.get_submodule(f"blocks.{index}")',
        "        block.forward = torch.compile(block.forward)",
    ]
    assert text.count("torch.compile") == 1
    before, _, after = text.partition("\n".join(lines))
    assert after
    assert "fully_shard(" not in before
    assert "parallelize_module(" not in after
    assert unclean(tmp_path) == ""


def test_async_tensor_parallelism_is_asked_of_the_compiler(tmp_path: Path) -> None:
    line = "inductor._micro_pipeline_tp = True"
    stack = replace(WORKLOAD, stack=STACKS["torch-async-tp"])
    plan = replace(compiled(tp=2, sequence_parallel=True, target="torch-cuda"), workload=stack)
    text = written(plan, tmp_path / "hidden").read_text()
    assert text.index(line) < text.index("torch.compile(")
    assert unclean(tmp_path) == ""
    alone = replace(compiled(dp=2, target="torch-cuda"), workload=stack)
    assert line not in written(alone, tmp_path / "alone").read_text()
    with pytest.raises(EmissionSoftware, match="on GPUs only"):
        emit(replace(compiled(tp=2), workload=stack), tmp_path)


TWICE = {"schedule": "zbv", "pp": 2, "vp": 2, "microbatches": 2}
RUN: dict[str, dict[str, Any]] = {
    "blocks again": {"dp": 2, "zero": 3, "recompute": "full"},
    "first layers again": {"dp": 2, "recompute": "full_layers:1"},
    "all but products again, tp+sp": {"tp": 2, "sequence_parallel": True, "recompute": "selective_op"},
    "heads exchanged, attention again": {"cp": 2, "context": "ulysses", "recompute": "selective"},
    "keys and values gathered": {"cp": 2},
    "a ring": {"cp": 2, "context": "ring", "recompute": "full"},
    "experts apart": {"dp": 2, "ep": 2, "reference": MIXTURE},
}
"""What was run with compiled blocks, and exact (docs/emit.md)."""
NOT_RUN: dict[str, tuple[dict[str, Any], str]] = {
    "halves": (TWICE, "schedule zbv"),
    "tp, all but products again": ({"tp": 2, "recompute": "selective_op"}, "beside tensor parallelism"),
    "tp+sp, blocks again": ({"tp": 2, "sequence_parallel": True, "recompute": "full"}, "beside tensor parallelism"),
    "keys and values gathered, attention again": ({"cp": 2, "recompute": "selective"}, "attention of cut sequences"),
    "experts cut": ({"tp": 2, "reference": MIXTURE}, "experts cut in themselves"),
}


@pytest.mark.parametrize("name", RUN)
def test_what_was_run_compiled_is_emitted(name: str, tmp_path: Path) -> None:
    text = written(compiled(**RUN[name]), tmp_path).read_text()
    again = [text.find(f"{call}(block") for call in ("run_again", "run_within")]
    compiles = text.index("torch.compile(block")
    assert max(again) < compiles
    assert (max(again) > 0) == any(asked in RUN[name] for asked in ("recompute", "cp"))
    assert unclean(tmp_path) == ""


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_does_not_run_compiled_is_refused_and_not_searched_for(name: str, tmp_path: Path) -> None:
    degrees, says = NOT_RUN[name]
    plan = compiled(**degrees)
    with pytest.raises(EmissionSoftware, match=says):
        emit(plan, tmp_path)
    with pytest.raises(CombinationNotExpressible, match=says):
        TORCH_CUDA.check(plan.decisions, plan.fold)
    eager = replace(plan.decisions, style="eager")
    assert not [*TORCH_CUDA.refusals(eager, plan.fold)]


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"cp": 2}], ids=str)
def test_a_trained_bias_that_is_cut_is_not_compiled(degrees: dict[str, Any], tmp_path: Path) -> None:
    """T5's: its blocks run as they are."""
    plan = Small("t5", tmp_path).subject("compiled", Degrees(**degrees))
    assert isinstance(plan, Subject)
    decisions = replace(plan.decisions, style="compiled")
    with pytest.raises(CombinationNotExpressible, match="a trained bias of positions that is cut in T5Block"):
        TORCH_CUDA.check(decisions, plan.fold)
    assert not [*TORCH_CUDA.refusals(plan.decisions, plan.fold)]
