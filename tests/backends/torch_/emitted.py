"""Plans of a tiny Llama by degrees, their emitted files, and runs of these."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.backends.torch_.capabilities import TORCH_GLOO
from meshwright.backends.torch_.emit import Subject, emit
from meshwright.backends.torch_.verify.emitted import Job
from meshwright.ir.decisions.decisions import Decisions
from meshwright.ir.frontends.door import calls_of, capture, load_model
from meshwright.ir.graph.calls import Calls
from meshwright.ir.graph.fold import Fold
from meshwright.ir.names import Degrees, template
from meshwright.ir.names.pinned import Pinned
from meshwright.ir.program.lower import lower
from meshwright.ir.program.program import Program
from meshwright.ir.target.workload import Workload

ROOT = Path(__file__).parents[3]
TINY = f"{ROOT / 'examples' / 'llama.py'}:tiny"
BATCH, SEQ = 8, 16
WORKLOAD = Workload(global_batch=BATCH, seq=SEQ, precision="fp32", recipe="fp32")
MIXED = Workload(global_batch=BATCH, seq=SEQ, precision="bf16")
"""Parameters in fp32, compute in bf16."""


@cache
def model(batch: int = BATCH, reference: str = TINY, dtype: str = "fp32") -> tuple[Fold, Calls]:
    """As it is traced on a micro-batch. Its factory makes it in fp32."""
    source = load_model(reference).in_dtype(dtype)
    found = capture(source, batch=batch, seq=SEQ)
    return found.fold, calls_of(source, reference, batch=batch, seq=SEQ, constants=found.constants)


def lowered(decisions: Decisions, workload: Workload = WORKLOAD, reference: str = TINY) -> Program:
    """What decisions lower to."""
    fold, _ = model(BATCH // decisions.schedule.microbatches, reference, dtype=workload.precision)
    return lower(fold, decisions, TORCH_GLOO.lowering(), workload)


def subject(
    pins: Pinned | None = None,
    target: str = "torch-gloo",
    workload: Workload = WORKLOAD,
    reference: str = TINY,
    prints: bool = False,
    **degrees: Any,
) -> Subject:
    """The plan that degrees mean; with `prints`, printed also where the model's own code could run."""
    fold, calls = model(BATCH // degrees.get("microbatches", 1), reference, dtype=workload.precision)
    decisions = template(fold, Degrees(**degrees), target, *([pins] if pins else []))
    return Subject(
        fold=fold,
        decisions=decisions,
        program=lower(fold, decisions, TORCH_GLOO.lowering(), workload),
        workload=workload,
        calls=calls,
        config=" ".join(f"{name}={value}" for name, value in degrees.items()),
        prints=prints,
    )


def written(plan: Subject, folder: Path) -> Path:
    """The script of a plan."""
    emit(plan, folder).write(folder)
    return folder / "train.py"


def job(plan: Subject, script: Path) -> Job:
    """A script, to be run and compared."""
    return Job.of(plan, script)


def unclean(folder: Path, *, types: bool = False) -> str:
    """What ruff, and with `types` mypy, have against the scripts in a folder. The file beside a script is its own."""
    roots = sorted({str(path.parent) for path in folder.rglob("train.py")})
    line = ["--isolated", "--line-length", "120"]
    sources = ["--config", f"src = {json.dumps(roots)}"]
    commands = [
        ["ruff", "check", "--select", "E,F,I,B,UP,RET,SIM", *line, *sources, str(folder)],
        ["ruff", "format", "--check", *line, str(folder)],
    ]
    with tempfile.TemporaryDirectory() as name:
        if types:
            config = ["--config-file", str(ROOT / "pyproject.toml"), "--allow-subclassing-any"]
            commands.append(["mypy", *config, *_side_by_side(roots, Path(name))])
        runs = [
            subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
            for command in commands
        ]
    return "".join(done.stdout + done.stderr for done in runs if done.returncode)


def _side_by_side(roots: Sequence[str], folder: Path) -> list[str]:
    """Scripts of several folders, and the files beside them, under names of their own: mypy reads torch once."""
    found = []
    for number, root in enumerate(roots):
        for source in Path(root).glob("train*.py"):
            text = re.sub(
                r"^from train_parts import", f"from parts_{number} import", source.read_text(), flags=re.MULTILINE
            )
            target = folder / (f"train_{number}.py" if source.stem == "train" else f"parts_{number}.py")
            target.write_text(text)
            found.append(str(target))
    return found
