"""Loops of one's own in JAX, each with a plan and as it was before, on one device; what comes of them as JSON.

    python jax_apply_run.py PLANS MODULES

Of a pair `(init, apply)`, an NNX and an Equinox module with weights of their own, a Linen module with its variables.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import meshwright
from meshwright.ir.errors import BatchImpossible, PlanOfAnotherModel

STEPS, BATCH, SEQ = 3, 16, 32


def batch_of(number: int) -> dict[str, Any]:
    text = np.random.default_rng(number).integers(0, 64, (BATCH, SEQ + 1)).astype(np.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def alone(params: Any, run: Any, loss: Any, optimizer: Any) -> list[float]:
    """The loop on one device, as it was before."""

    @jax.jit
    def step(params: Any, states: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(lambda params: loss(run(params, batch["tokens"]), batch))(params)
        updates, states = optimizer.update(grads, states, params)
        return optax.apply_updates(params, updates), states, value

    states, losses = optimizer.init(params), []
    for number in range(STEPS):
        params, states, value = step(params, states, batch_of(number))
        losses.append(float(value))
    return losses


def with_plan(model: Any, plan: Path) -> list[float]:
    """The same loop with a plan."""
    applied = meshwright.jax_apply(model, plan)
    state, losses = applied.init(), []
    for number in range(STEPS):
        state, value = applied.step(state, batch_of(number))
        losses.append(float(value))
    return losses


def pair(file: Any) -> tuple[Any, Any, Any]:
    init, apply = file.tiny_scan()
    return (init, apply), init(jax.random.key(0)), apply


def doubled(file: Any) -> Any:
    """The same parameters, read otherwise."""
    init, apply = file.tiny_scan()
    return init, lambda params, tokens: apply(params, tokens) * 2


def of_nnx(file: Any) -> tuple[Any, Any, Any]:
    model = file.GPT(nnx.Rngs(7))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return model, params, lambda params, tokens: nnx.merge(graph, params, rest)(tokens)


def of_equinox(file: Any) -> tuple[Any, Any, Any]:
    model = file.GPT(key=jax.random.key(7))
    params, static = equinox.partition(model, equinox.is_array)
    return model, params, lambda params, tokens: jax.vmap(equinox.combine(params, static))(tokens)


def of_linen(file: Any) -> tuple[Any, Any, Any]:
    module = file.GPT()
    variables = module.init(jax.random.key(7), jnp.zeros((2, SEQ), jnp.int32))
    return (module, variables), variables["params"], lambda params, tokens: module.apply({"params": params}, tokens)


def main(plans: Path, modules: dict[str, str]) -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    found: dict[str, Any] = {}
    for name, make in {"pair": pair, "nnx": of_nnx, "equinox": of_equinox, "linen": of_linen}.items():
        file = importlib.import_module(modules[name])
        model, params, run = make(file)
        optimizer = file.optimizer() if hasattr(file, "optimizer") else optax.adamw(3e-4, weight_decay=0.01)
        losses = with_plan(model, plans / name)
        found[name] = {"planned": losses, "alone": alone(params, run, file.loss, optimizer)}
    nnx_model = of_nnx(importlib.import_module(modules["nnx"]))[0]
    applied = meshwright.jax_apply(nnx_model, plans / "nnx")
    embedding = applied.init()[0]["tokens"]["embedding"][...]
    found["stored"] = str(embedding.sharding.spec), str(applied.script.PARAMS["tokens.embedding"])
    found["devices"] = len(embedding.sharding.device_set)
    found["refused"] = []
    for attempt in (
        lambda: applied.step(applied.init(), {name: one[:3] for name, one in batch_of(0).items()}),
        lambda: meshwright.jax_apply(pair(importlib.import_module(modules["pair"]))[0], plans / "nnx"),
        lambda: meshwright.jax_apply(doubled(importlib.import_module(modules["pair"])), plans / "pair"),
    ):
        try:
            attempt()
        except (BatchImpossible, PlanOfAnotherModel) as error:
            found["refused"].append(str(error))
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
