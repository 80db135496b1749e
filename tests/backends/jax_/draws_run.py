"""What devices of a printed script draw, and what two steps of it leave to draw from."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from meshwright.backends.jax_.emit.files import emit
from meshwright.backends.jax_.verify.run import load
from tests.backends.jax_.planned import ZOO, subject

ELEMENTS, RATE = 4096, 0.9


def main() -> None:
    """Masks of every step, place and device, as bytes; those along `tp`, which does not cut them, side by side."""
    with tempfile.TemporaryDirectory() as folder:
        plan = subject(f"{ZOO}/drawing.py:streams", dp=2, tp=2, sequence_parallel=True, microbatches=2)
        emit(plan, Path(folder)).write(Path(folder))
        script: Any = load(f"{folder}/train.py")
        dropout = sys.modules["train_shardings"].dropout  # type: ignore[attr-defined]
        state = script.start()
        for number in range(2):
            *state, _ = script.step(*state, script.batch_of(number))
    count = int(state[-1]["rngs"]["count"])

    def masks(key: Any) -> Any:
        of_steps = [jax.random.fold_in(key, step) for step in range(2)]
        made = [dropout(jnp.ones(ELEMENTS), one, site, RATE, axes=("dp",)) > 0 for one in of_steps for site in range(2)]
        return jnp.stack(made)[None, None]

    every = jax.shard_map(masks, mesh=script.mesh, in_specs=P(), out_specs=P("dp", "tp"), check_vma=False)
    found = np.asarray(every(jax.random.key(0)))  # [dp, tp, step and place, element]
    apart = {one.tobytes() for copies in found[:, 0] for one in copies}
    told = {
        "unlike": len(apart),
        "alike": bool((found[:, 0] == found[:, 1]).all()),
        "kept": float(found.mean()),
        "count": count,
    }
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main()
