"""Equinox models, which take one example."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

D, F, H, V, L = 32, 64, 4, 64, 4


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    feed: eqx.nn.MLP

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(D), eqx.nn.LayerNorm(D)
        self.attention = eqx.nn.MultiheadAttention(H, D, key=first)
        self.feed = eqx.nn.MLP(D, D, F, depth=1, activation=jax.nn.gelu, key=second)

    def __call__(self, x: Any, mask: Any) -> Any:
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y, mask=mask)
        return x + jax.vmap(self.feed)(jax.vmap(self.norm2)(x))


class GPT(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.RMSNorm
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, L + 2)
        self.embed = eqx.nn.Embedding(V, D, key=keys[0])
        self.blocks = [Block(one) for one in keys[1:-1]]
        self.norm = eqx.nn.RMSNorm(D)
        self.head = eqx.nn.Linear(D, V, use_bias=False, key=keys[-1])

    def __call__(self, tokens: Any) -> Any:
        mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        x = jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def gpt() -> GPT:
    return GPT(jax.random.key(0))


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()


class Keyed(eqx.Module):
    """Every sequence is given a key of its own."""

    tokens: eqx.nn.Embedding
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        tokens, up, down = jax.random.split(key, 3)
        self.tokens = eqx.nn.Embedding(V, D, key=tokens)
        self.up, self.down = eqx.nn.Linear(D, F, key=up), eqx.nn.Linear(F, V, key=down)
        self.drop = eqx.nn.Dropout(0.2)

    def __call__(self, tokens: Any, *, key: Any) -> Any:
        first, second = jax.random.split(key)
        x = self.drop(jax.vmap(self.tokens)(tokens), key=first)
        x = self.drop(jax.nn.relu(jax.vmap(self.up)(x)), key=second)
        return jax.vmap(self.down)(x)


def keyed() -> Keyed:
    return Keyed(jax.random.key(0))
