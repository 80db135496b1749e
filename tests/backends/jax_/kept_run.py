"""Print what the blocks of a script's first loop keep, in bytes: as it is written, and as JAX would have it.

python -m tests.backends.jax_.kept_run FOLDER BATCH SEQ
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax

from meshwright.backends.jax_.verify.run import load


def stacked_bytes(jaxpr: Any) -> int:
    """What the first scan of a step stacks beside its carry."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            made = equation.outvars[equation.params["num_carry"] :]
            return sum(var.aval.size * var.aval.dtype.itemsize for var in made)
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr") and (found := stacked_bytes(inner.jaxpr)):
                return found
    return 0


def main(folder: Path, batch: int, seq: int) -> None:
    beside = folder / "train_shardings.py"
    for policy in ("policy=but_cheap", "policy=lambda *_, **__: True"):
        beside.write_text(beside.read_text().replace("policy=but_cheap", policy))
        script: Any = load(str(folder / "train.py"))
        given = jax.eval_shape(script.begin), script.model_file.example_inputs(batch, seq)
        sys.stdout.write(f"{stacked_bytes(jax.make_jaxpr(jax.grad(script.loss_of))(*given).jaxpr)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
