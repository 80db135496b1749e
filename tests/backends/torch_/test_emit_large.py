"""One rank of a mesh of hundreds, alone: its emitted script builds, runs a step, and communicates what was priced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.groups import groups_of, unlike
from meshwright.backends.torch_.verify.run.fake import counted
from meshwright.ir.errors import RanksFailed
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.names import template
from meshwright.ir.program.lower import lower
from meshwright.ir.target.workload import Workload
from meshwright.planner.question.pins import fill, parse
from tests.planner.twins import LLAMA

RANKS, RANK, SEQ, BATCH = 256, 77, 512, 32
LIMIT_BYTES = 4 * 10**9


@pytest.mark.e2e
@pytest.mark.slow
def test_one_of_256_ranks_communicates_what_is_priced(tmp_path: Path) -> None:
    config = replace(fill(parse(["tp=8,dp=32,zero=3,microbatches=1"]), ranks=RANKS, global_batch=BATCH), split="even")
    source = load_model(LLAMA, dtype="fp32")
    found = capture(source, batch=BATCH, seq=SEQ)
    fold, constants = found.fold, found.constants
    workload = Workload(global_batch=BATCH, seq=SEQ, precision="fp32", recipe="fp32")
    decisions = template(fold, config.degrees(), "torch-gloo")
    program = lower(fold, decisions, TORCH_GLOO.lowering(), workload)
    calls = calls_of(source, LLAMA, batch=BATCH, seq=SEQ, constants=constants)
    subject = Subject(
        fold=fold,
        decisions=decisions,
        program=program,
        workload=workload,
        calls=calls,
        config=str(config),
    )
    emit(subject, tmp_path).write(tmp_path)
    found = counted(tmp_path / "train.py", RANK, RANKS, limit_s=300)
    (group,) = groups_of(program, fold)
    assert unlike(found.collectives, group, RANK, Counter()) == []
    assert sum(found.collectives.values()) > 32 * 8
    assert found.peak_bytes < LIMIT_BYTES
    short = dict(found.collectives)
    short.pop(max(short))
    assert unlike(short, group, RANK, Counter())


def test_a_rank_alone_that_dies_says_what_of(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def start():\n    raise SystemExit('planned for 8 ranks')\n")
    with pytest.raises(RanksFailed, match="rank 3 of 8") as refused:
        counted(tmp_path / "train.py", 3, 8, limit_s=60)
    assert "planned for 8 ranks" in refused.value.fix
