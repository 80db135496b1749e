"""A model whose batch is a tuple."""

from typing import Any

import jax.numpy as jnp
from flax import nnx


class Mean(nnx.Module):
    def __init__(self) -> None:
        self.linear = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

    def __call__(self, x: Any, y: Any) -> Any:
        return ((self.linear(x) - y) ** 2).mean()


def mean() -> Mean:
    return Mean()


def example_inputs(batch: int, seq: int) -> tuple[Any, Any]:
    return jnp.zeros((batch, 8)), jnp.zeros((batch, 8))
