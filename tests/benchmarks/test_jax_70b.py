"""The arguments of a step, by the Program and as XLA counts them; of a model of 70 billion parameters by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax")

from benchmarks.jax_70b import BATCH, DEGREES, DEVICES, MODEL, SEQ, compiled, held, planned
from meshwright.backends.jax_.emit.files import emit
from meshwright.ir.names import Degrees

PARAMETERS, LAYERS, WIDTH = 70_553_706_496, 80, 8192


@pytest.mark.e2e
def test_arguments_are_those_of_the_program(tmp_path: Path) -> None:
    subject = planned("examples/jax_llama.py:tiny_scan", Degrees(dp=4, tp=2, zero=3, recompute="full"), 16, 32)
    emit(subject, tmp_path).write(tmp_path)
    assert compiled(tmp_path, 8)[1] == held(subject)


def test_each_of_64_holds_a_part_of_70_billion() -> None:
    """Norms are copied along the tensor axis: two for every layer, and the last. Tokens and labels are of 4 bytes."""
    norms = (2 * LAYERS + 1) * WIDTH
    own = (PARAMETERS - norms) // DEVICES + norms // DEGREES.dp
    assert held(planned(f"{MODEL}_scan", DEGREES, BATCH, SEQ)) == 12 * own + 2 * 4 * BATCH * SEQ // DEGREES.dp + 4
