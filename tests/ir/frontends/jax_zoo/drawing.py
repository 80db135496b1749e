"""Models that draw random numbers, and return their losses themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx

from tests.ir.frontends.jax_zoo.plain import dims, example_inputs

__all__ = ["dims", "example_inputs"]
D, F, H, V, L = 32, 64, 4, 64, 2


def cross_entropy(outputs: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


class Layer(nn.Module):
    train: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(x[..., 0])
        attention = nn.MultiHeadDotProductAttention(H, dropout_rate=0.1, deterministic=not self.train)
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        y = nn.Dense(D)(nn.gelu(nn.Dense(F)(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.2, deterministic=not self.train)(y)


class Decoder(nn.Module):
    """Dropout behind the embedding, in attention, and behind each block's layers; it returns logits and its loss."""

    @nn.compact
    def __call__(self, tokens: Any, labels: Any, train: bool) -> Any:
        x = nn.Dropout(0.1, deterministic=not train)(nn.Embed(V, D)(tokens))
        for _ in range(L):
            x = Layer(train)(x)
        logits = nn.Dense(V, use_bias=False)(nn.LayerNorm()(x))
        return logits, cross_entropy(logits, labels)


def linen() -> Decoder:
    return Decoder()


class Streams(nnx.Module):
    """Each layer draws from a stream of its own, which its model holds."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(V, D, rngs=rngs)
        self.ups = nnx.List([nnx.Linear(D, F, rngs=rngs) for _ in range(L)])
        self.downs = nnx.List([nnx.Linear(F, D, rngs=rngs) for _ in range(L)])
        self.drops = nnx.List([nnx.Dropout(0.1, broadcast_dims=(1,), rngs=rngs) for _ in range(L)])
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, tokens: Any, labels: Any) -> Any:
        x = self.tokens(tokens)
        for up, down, drop in zip(self.ups, self.downs, self.drops, strict=True):
            x = x + drop(down(nnx.relu(up(x))))
        return {"loss": cross_entropy(self.head(x), labels)}


def streams() -> Streams:
    return Streams(nnx.Rngs(0))


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.down = nnx.Linear(D, F, rngs=rngs), nnx.Linear(F, D, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.drop(self.down(nnx.relu(self.up(x))))


class Stacked(nnx.Module):
    """Blocks in a loop, which hands on what each leaves of its stream."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=L)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> Block:
            return Block(rngs)

        self.tokens, self.blocks = nnx.Embed(V, D, rngs=rngs), make(rngs)

    def __call__(self, tokens: Any, labels: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: Any, block: Block) -> Any:
            return block(x)

        return cross_entropy(self.tokens.attend(run(self.tokens(tokens), self.blocks)), labels)


def stacked() -> Stacked:
    return Stacked(nnx.Rngs(0))


def scanned() -> Any:
    """Two functions: blocks in a loop that is given a key for each."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        return {
            "tokens": jax.random.normal(keys[0], (V, D)) * 0.1,
            "up": jax.random.normal(keys[1], (L, D, F)) * 0.1,
            "down": jax.random.normal(keys[2], (L, F, D)) * 0.1,
        }

    def apply(params: Any, tokens: Any, labels: Any, key: Any) -> Any:
        def block(x: Any, own: Any) -> tuple[Any, None]:
            up, down, key = own
            kept = jax.random.bernoulli(key, 0.8, x.shape)
            return x + jnp.where(kept, jax.nn.gelu(x @ up) @ down / 0.8, 0), None

        x, _ = jax.lax.scan(block, params["tokens"][tokens], (params["up"], params["down"], jax.random.split(key, L)))
        return cross_entropy(x @ params["tokens"].T, labels)

    return init, apply
