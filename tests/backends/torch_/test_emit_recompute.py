"""Scripts compute again what the Program does, product by product; what policies cannot say is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.run.loading import load
from meshwright.ir.errors import EmissionRecompute
from meshwright.ir.program.program import Compute
from tests.backends.torch_.emitted import BATCH, SEQ, subject, written

KINDS = ("full", "full_layers:3", "selective", "selective_op")


class Ran(TorchDispatchMode):
    """Counts products and attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "addmm"):
            self.found["linear"] += 1
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            self.found["attention"] += 1
        return func(*args, **kwargs or {})


def ran(plan: Subject, folder: Path) -> Counter[str]:
    """What one step of a script runs, on one device."""
    train: Any = load(str(written(plan, folder)))
    model = train.parallelize(train.build(), None)
    batch = train.model_file.example_inputs(BATCH, SEQ)
    with Ran() as counted:
        train.model_file.loss(model(batch["tokens"]), batch).backward()
    return counted.found


def again(plan: Subject) -> Counter[str]:
    """What the backward pass of the Program computes again."""
    found: Counter[str] = Counter()
    for stage in plan.program.stages:
        for _, name in stage.calls():
            kinds = {op.name: op.kind for op in plan.fold.body[plan.program.body(name).body].graph.ops}
            rerun = (one for one in plan.program.body(name).backward if isinstance(one, Compute))
            found.update(kinds[one.op] for one in rerun)
    return Counter({kind: number for kind, number in found.items() if kind in ("linear", "attention")})


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_again_is_what_the_program_says(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plan = subject(recompute=kind)
    usual = ran(subject(), tmp_path / "usual")
    assert ran(plan, tmp_path / "again") == usual + again(plan)
    assert again(plan).total() > 0


@pytest.mark.parametrize("kind", ["selective", "selective_op"])
def test_a_ring_runs_again_with_its_block_only(kind: str, tmp_path: Path) -> None:
    with pytest.raises(EmissionRecompute, match="%attention, which is a ring"):
        emit(subject(cp=2, context="ring", recompute=kind), tmp_path)


def test_what_is_kept_after_an_exchange_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmissionRecompute, match="keeping %attention as it is after an exchange"):
        emit(subject(cp=2, context="ulysses", recompute="selective_op"), tmp_path)
