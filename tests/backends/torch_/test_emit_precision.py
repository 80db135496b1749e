"""Scripts in float8, as text: torchao is no dependency of the tests. docs/emit.md says what was run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.backends.torch_.emit import emit
from meshwright.ir.errors import EmissionSoftware
from tests.backends.torch_.emitted import MIXED, ROOT, subject, unclean, written

FLOAT8 = replace(MIXED, precision="fp8_tensorwise")
MIXTURE = f"{ROOT / 'tests' / 'backends' / 'torch_' / 'mixture.py'}:tiny"


def test_products_of_blocks_are_in_float8_before_they_are_cut(tmp_path: Path) -> None:
    plan = replace(subject(workload=MIXED, tp=2, dp=2, zero=3, sequence_parallel=True), workload=FLOAT8)
    text = written(plan, tmp_path).read_text()
    (line,) = [line for line in text.splitlines() if "convert_to_float8_training(" in line]
    assert text.index("model_file.tiny().float()") < text.index(line) < text.index("def parallelize")
    assert 'name.startswith("blocks.")' in text
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16" in text
    assert unclean(tmp_path) == ""
    assert "float8" not in written(subject(workload=MIXED, dp=2), tmp_path / "bf16").read_text()


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (replace(MIXED, precision="mxfp8"), "dtype mxfp8: it is not emitted yet"),
        (replace(FLOAT8, recipe="megatron"), "recipe megatron"),
    ],
)
def test_what_no_code_is_written_for_is_refused(workload: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(EmissionSoftware, match=says):
        emit(replace(subject(workload=MIXED, dp=2), workload=workload), tmp_path)


def test_experts_are_not_emitted_in_float8(tmp_path: Path) -> None:
    plan = subject(workload=MIXED, dp=2, zero=3, reference=MIXTURE)
    with pytest.raises(EmissionSoftware, match=r"no nn\.Linear"):
        emit(replace(plan, workload=FLOAT8), tmp_path)
