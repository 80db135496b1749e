"""What blocks keep for their backward passes: what is planned, and not what JAX would keep of every operator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from meshwright.backends.jax_.emit.recompute import CHEAP, cheaply, keeps
from meshwright.backends.jax_.emit.shardings import Shardings
from tests.backends.jax_.planned import BATCH, LLAMA, ROOT, SEQ, ZOO, job, subject

LAYERS = 4


@pytest.mark.parametrize(
    ("reference", "body"), [(f"{LLAMA}:tiny_scan", "blocks"), (f"{ZOO}/plain.py:decoder_scan", "layers")]
)
def test_a_loop_stacks_what_is_planned(tmp_path: Path, reference: str, body: str) -> None:
    """Or a little less: what several products read is kept once. Without the policy JAX keeps twice as much."""
    plan = subject(reference, dp=1)
    planned = LAYERS * sum(kept.nbytes for kept in plan.program.body(body).kept)
    job(plan, tmp_path)
    command = [sys.executable, "-m", "tests.backends.jax_.kept_run", str(tmp_path), str(BATCH), str(SEQ)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    kept, without = map(int, done.stdout.split())
    assert 0.8 * planned < kept < 1.05 * planned
    assert without > 2 * kept


def test_blocks_with_loops_of_their_own_keep_what_jax_keeps() -> None:
    """They would run them twice; so would what stands once."""
    plan = subject(f"{ZOO}/plain.py:ssm", dp=2)
    blocks = [piece for piece in plan.pieces if piece.repeated]
    assert blocks
    assert all(map(keeps, blocks))
    assert cheaply(Shardings(plan))
    looped: Any = SimpleNamespace(repeated=True, graph=SimpleNamespace(ops=[SimpleNamespace(kind="opaque")]))
    assert not keeps(looped)
    assert not any(keeps(piece) for piece in plan.pieces if not piece.repeated)


def test_what_is_cheap_are_primitives_of_jax() -> None:
    from jax._src.interpreters import mlir

    known = {primitive.name for primitive in mlir._lowerings}
    assert set(CHEAP.split()) <= known
    dear = {"dot_general", "reduce_sum", "gather", "psum", "all_gather", "sort", "scan", "while"}
    assert dear.isdisjoint(CHEAP.split())
