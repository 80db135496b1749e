"""Loops of one's own with models that hold more than parameters, each beside the same one without a plan."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from meshwright.backends.jax_.parallel import parallelize
from tests.backends.jax_.planned import BATCH, ZOO, subject
from tests.ir.frontends.jax_zoo import holding

STEPS = 2


def of_nnx() -> tuple[Any, Any, Any]:
    """A model, what it holds beside its parameters, and the way to call it."""
    model = holding.Normed(nnx.Rngs(5))
    model.norm.mean[...] += 1.0
    graph, _, rest = nnx.split(model, nnx.Param, ...)

    def run(params: Any, rest: Any, x: Any) -> Any:
        own = nnx.merge(graph, params, rest)
        own.train()
        return own(x), nnx.state(own, nnx.Not(nnx.Param))

    return model, rest, run


def of_linen(factory: str, x: Any) -> tuple[Any, Any, Any]:
    module = getattr(holding, factory)()
    variables = module.init(jax.random.key(5), x)
    rest = jax.tree.map(lambda one: one + 1.0, {name: one for name, one in variables.items() if name != "params"})

    def run(params: Any, rest: Any, x: Any) -> Any:
        outputs, left = module.apply({"params": params, **rest}, x, mutable=list(rest))
        return outputs, {**rest, **left}

    return (module, {"params": variables["params"], **rest}), rest, run


def main() -> None:
    """For every model the losses and what it holds in the end, with a plan and without."""
    jax.config.update("jax_num_cpu_devices", 2)
    batch = {"x": jax.random.normal(jax.random.key(1), (BATCH, holding.D)), "label": np.arange(BATCH) % holding.V}
    found = {}
    for factory in sys.argv[1:]:
        model, rest, run = of_nnx() if factory == "normed" else of_linen(factory, batch["x"])
        reference = f"{ZOO}/holding.py:{factory}"
        applied = parallelize(model, subject(reference, dp=2), reference)
        state, losses = applied.init(), []
        for _ in range(STEPS):
            outputs, rest = run(jax.device_get(state[0]), rest, batch["x"])
            alone = float(holding.loss(outputs, batch))
            state, loss = applied.step(state, batch)
            losses.append((float(loss), alone))
        found[factory] = {"losses": losses, "held": list(zip(*map(numbers, (state[2:], rest)), strict=False))}
    sys.stdout.write(f"{json.dumps(found)}\n")


def numbers(tree: Any) -> list[list[float]]:
    """The elements of every array of reals."""
    leaves = [one for one in jax.tree.leaves(tree) if jnp.issubdtype(one.dtype, jnp.floating)]
    return [np.asarray(jax.device_get(one)).ravel().tolist() for one in leaves]


if __name__ == "__main__":
    main()
