"""Flax Linen models."""

from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn

D, F, H, V, L = 32, 64, 4, 64, 4


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=H)(nn.LayerNorm()(x), mask=mask)
        y = nn.Dense(F)(nn.LayerNorm()(x))
        return x + nn.Dense(D)(nn.gelu(y))


class GPT(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        table = nn.Embed(V, D)
        x = table(tokens) + self.param("positions", nn.initializers.normal(), (64, D))[: tokens.shape[1]]
        for _ in range(L):
            x = Block()(x)
        return table.attend(nn.LayerNorm()(x))


def gpt() -> GPT:
    return GPT()


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return Block()(x), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(V, D)(tokens)
        layers = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=L)
        x, _ = layers(name="layers")(x, None)
        return nn.Dense(V)(nn.RMSNorm()(x))


def scanned() -> Scanned:
    return Scanned()


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()
