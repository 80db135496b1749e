"""Models that hold more than parameters: running statistics, tables of integers, constants."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx

D, V, F = 8, 16, 32
dims = {"x": ("b", ""), "label": ("b",)}


class Normed(nnx.Module):
    """Linear layers with batch norms, whose statistics are cut with what they are of."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.norm = nnx.Linear(D, F, rngs=rngs), nnx.BatchNorm(F, rngs=rngs)
        self.drop = nnx.Dropout(0.0, rngs=rngs)
        self.down = nnx.Linear(F, V, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(self.drop(jax.nn.relu(self.norm(self.up(x)))))


def normed() -> Normed:
    return Normed(nnx.Rngs(0))


class Deep(nnx.Module):
    """Blocks whose batch norms change."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Normed(rngs) for _ in range(2)])
        self.ups = nnx.List([nnx.Linear(V, D, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block, up in zip(self.blocks, self.ups, strict=True):
            x = x + up(block(x))
        return self.head(x)


def deep() -> Deep:
    return Deep(nnx.Rngs(0))


class Shuffled(eqx.Module):
    """A layer whose inputs are taken in another order."""

    order: jax.Array
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.order = jnp.arange(D)[::-1]
        up, down = jax.random.split(key)
        self.up, self.down = eqx.nn.Linear(D, F, key=up), eqx.nn.Linear(F, V, key=down)

    def __call__(self, x: Any) -> Any:
        return self.down(jax.nn.relu(self.up(x[self.order])))


def shuffled() -> Shuffled:
    return Shuffled(jax.random.key(0))


def pair() -> Any:
    """The same as two functions."""

    def init(key: Any) -> Any:
        up, down = jax.random.split(key)
        return {
            "up": jax.random.normal(up, (D, F)),
            "order": jnp.arange(D)[::-1],
            "down": jax.random.normal(down, (F, V)),
        }

    def apply(params: Any, x: Any) -> Any:
        return jax.nn.relu(x[:, params["order"]] @ params["up"]) @ params["down"]

    return init, apply


class Scaled(nn.Module):
    """A layer with a factor that is held, and never changed."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        factor = self.variable("constants", "factor", lambda: jnp.full((F,), 2.0))
        return nn.Dense(V)(nn.relu(nn.Dense(F)(x)) * factor.value)


def scaled() -> Scaled:
    return Scaled()


class Statistics(nn.Module):
    """A layer that counts its calls, and keeps the mean of what it is given for nobody."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        calls = self.variable("seen", "calls", lambda: jnp.zeros(()))
        mean = self.variable("seen", "mean", lambda: jnp.zeros((D,)))
        if not self.is_initializing():
            calls.value, mean.value = calls.value + 1, 0.9 * mean.value + 0.1 * x.mean(0)
        return nn.Dense(V)(nn.relu(nn.Dense(F)(x / (1 + calls.value))))


def statistics() -> Statistics:
    return Statistics()


class Counted(nn.Module):
    """A layer that is warmed up by the number of its calls."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        calls = self.variable("seen", "calls", lambda: jnp.zeros(()))
        if not self.is_initializing():
            calls.value = calls.value + 1
        return nn.Dense(V)(nn.relu(nn.Dense(F)(x * calls.value / (1 + calls.value))))


def counted() -> Counted:
    return Counted()


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    return {"x": jnp.zeros((batch, D)), "label": jnp.zeros(batch, jnp.int32)}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["label"]).mean()
