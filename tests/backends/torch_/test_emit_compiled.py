"""Plans in the compiled style, as text: to compile for four ranks takes minutes. `plan verify` runs such plans as
they are compiled; docs/emit.md says which were run so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.backends.torch_.emit import Subject, emit
from meshwright.ir.errors import EmissionRecompute, EmissionSoftware, MeshwrightError
from meshwright.ir.workload import STACKS
from tests.backends.torch_.emitted import WORKLOAD, subject, unclean, written


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


@pytest.mark.parametrize(
    ("degrees", "kind", "fix"),
    [
        ({"dp": 2, "recompute": "full_layers:1"}, EmissionRecompute, "recompute=none"),
        ({"cp": 2}, EmissionSoftware, "--style eager"),
    ],
)
def test_what_was_not_seen_to_run_compiled_is_refused(
    degrees: dict[str, Any], kind: type[MeshwrightError], fix: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as refused:
        emit(compiled(**degrees), tmp_path)
    assert fix in refused.value.fix
