"""Plans of a tiny Llama by degrees, their emitted files, and runs of these."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.emitted import Job
from meshwright.backends.torch_.verify.predicted import predicted
from meshwright.ir.calls import Calls
from meshwright.ir.decisions import Decisions
from meshwright.ir.fold import Fold
from meshwright.ir.frontends.calls import calls_of
from meshwright.ir.frontends.capture import capture
from meshwright.ir.frontends.load import load_model
from meshwright.ir.lower import lower
from meshwright.ir.names import Degrees, template
from meshwright.ir.names.pinned import Pinned
from meshwright.ir.program import Program
from meshwright.ir.workload import Workload

ROOT = Path(__file__).parents[3]
TINY = f"{ROOT / 'examples' / 'llama.py'}:tiny"
BATCH, SEQ = 8, 16
WORKLOAD = Workload(global_batch=BATCH, seq=SEQ, precision="fp32")


@cache
def model() -> tuple[Fold, Calls]:
    source = load_model(TINY)
    return capture(source, batch=BATCH, seq=SEQ).fold, calls_of(source, TINY, batch=BATCH, seq=SEQ)


def lowered(decisions: Decisions) -> Program:
    """What decisions lower to."""
    return lower(model()[0], decisions, TORCH_GLOO.lowering(), WORKLOAD)


def subject(pins: Pinned | None = None, target: str = "torch-gloo", **degrees: Any) -> Subject:
    """The plan that degrees mean."""
    fold, calls = model()
    decisions = template(fold, Degrees(**degrees), target, *([pins] if pins else []))
    return Subject(
        fold=fold,
        decisions=decisions,
        program=lowered(decisions),
        workload=WORKLOAD,
        calls=calls,
        config=" ".join(f"{name}={value}" for name, value in degrees.items()),
    )


def written(plan: Subject, folder: Path) -> Path:
    """The script of a plan."""
    emit(plan, folder).write(folder)
    return folder / "train.py"


def job(plan: Subject, script: Path) -> Job:
    """A script, to be run and compared."""
    expected = predicted(plan.program, plan.fold)
    return Job(script=script, calls=plan.calls, workload=plan.workload, predicted=expected, mesh=plan.mesh)


def unclean(folder: Path) -> str:
    """What ruff has against the scripts in a folder."""
    quiet, found = ["--isolated", "--line-length", "120"], ""
    for command in (["check", "--select", "E,F,I,B,UP,RET,SIM"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, *quiet, folder]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        found += done.stdout if done.returncode else ""
    return found
