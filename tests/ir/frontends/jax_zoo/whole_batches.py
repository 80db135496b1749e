"""An Equinox module that takes whole batches, which are usually taken example by example."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Net(eqx.Module):
    embed: eqx.nn.Embedding
    out: eqx.nn.Linear

    def __call__(self, tokens: Any) -> Any:
        return jax.vmap(jax.vmap(lambda token: self.out(self.embed(token))))(tokens)


def build() -> Net:
    first, second = jax.random.split(jax.random.key(0))
    return Net(eqx.nn.Embedding(32, 8, key=first), eqx.nn.Linear(8, 32, key=second))


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    return {"tokens": jnp.zeros((batch, seq), jnp.int32)}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["tokens"]).mean()
