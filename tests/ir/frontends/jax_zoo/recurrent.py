"""Models with loops over tokens that are too long to be written out."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx

D, V, STATES, LENGTH = 16, 64, 4, 24
dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, LENGTH + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()


class LSTM(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(V, D)(tokens)
        for _ in range(2):
            x = nn.RNN(nn.OptimizedLSTMCell(D))(x)
        return nn.Dense(V)(x)


def linen() -> LSTM:
    return LSTM()


class Dropped(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(V, D, rngs=rngs)
        self.rnn = nnx.RNN(nnx.GRUCell(D, D, rngs=rngs))
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        return self.head(self.drop(self.rnn(self.tokens(tokens))))


def dropped() -> Dropped:
    return Dropped(nnx.Rngs(0))


class Mapped(eqx.Module):
    """The loop of each sequence, mapped over the batch."""

    tokens: eqx.nn.Embedding
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        tokens, cell, head = jax.random.split(key, 3)
        self.tokens, self.cell = eqx.nn.Embedding(V, D, key=tokens), eqx.nn.GRUCell(D, D, key=cell)
        self.head = eqx.nn.Linear(D, V, key=head)

    def __call__(self, tokens: Any) -> Any:
        def step(hidden: Any, x: Any) -> tuple[Any, Any]:
            hidden = self.cell(x, hidden)
            return hidden, hidden

        _, given = jax.lax.scan(step, jnp.zeros(D), jax.vmap(self.tokens)(tokens))
        return jax.vmap(self.head)(given)


def mapped() -> Mapped:
    return Mapped(jax.random.key(0))


def states() -> Any:
    """A state for each channel, as in a selective state space; no step reads a parameter."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        shapes = {"tokens": (V, D), "inputs": (D, STATES), "outputs": (D, STATES), "pace": (D,)}
        return {name: jax.random.normal(one, shapes[name]) * 0.1 for name, one in zip(shapes, keys, strict=True)}

    def apply(params: Any, tokens: Any) -> Any:
        x = params["tokens"][tokens]
        given = x, jax.nn.softplus(x * params["pace"]), x @ params["inputs"], x @ params["outputs"]

        def step(held: Any, now: Any) -> tuple[Any, Any]:
            x, pace, inputs, outputs = now
            held = held * jnp.exp(-pace)[..., None] + (pace * x)[..., None] * inputs[:, None, :]
            return held, (held * outputs[:, None, :]).sum(-1)

        start = jnp.zeros((len(tokens), D, STATES))
        _, y = jax.lax.scan(step, start, jax.tree.map(lambda one: one.swapaxes(0, 1), given))
        return (x + y.swapaxes(0, 1)) @ params["tokens"].T

    return init, apply
