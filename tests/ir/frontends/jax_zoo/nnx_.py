"""Flax NNX models."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.ir.frontends.jax_zoo.plain import dims, example_inputs

__all__ = ["dims", "example_inputs"]
D, F, H, V, L = 32, 64, 4, 64, 4


def real() -> Any:
    """The usual floating dtype, which is wider where 64 bits are enabled."""
    return jnp.zeros(()).dtype


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float) -> None:
        self.norm1 = nnx.LayerNorm(D, rngs=rngs, param_dtype=real())
        self.attention = nnx.MultiHeadAttention(num_heads=H, in_features=D, decode=False, rngs=rngs, param_dtype=real())
        self.norm2 = nnx.LayerNorm(D, rngs=rngs, param_dtype=real())
        self.up = nnx.Linear(D, F, rngs=rngs, param_dtype=real())
        self.down = nnx.Linear(F, D, rngs=rngs, param_dtype=real())
        self.drop = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.drop(self.attention(self.norm1(x), mask=mask))
        return x + self.drop(self.down(nnx.gelu(self.up(self.norm2(x)))))


class GPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.0) -> None:
        self.tokens = nnx.Embed(V, D, rngs=rngs, param_dtype=real())
        self.positions = nnx.Embed(64, D, rngs=rngs, param_dtype=real())
        self.blocks = nnx.List([Block(rngs, rate) for _ in range(L)])
        self.norm = nnx.LayerNorm(D, rngs=rngs, param_dtype=real())
        self.head = nnx.Linear(D, V, use_bias=False, rngs=rngs, param_dtype=real())

    def __call__(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt() -> GPT:
    return GPT(nnx.Rngs(0))


def gpt_dropout() -> GPT:
    return GPT(nnx.Rngs(0), rate=0.1)


class Scanned(nnx.Module):
    """The same blocks, made by `vmap` and run by `scan`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=L)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> Block:
            return Block(rngs, 0.0)

        self.tokens = nnx.Embed(V, D, rngs=rngs, param_dtype=real())
        self.blocks = make(rngs)
        self.norm = nnx.RMSNorm(D, rngs=rngs, param_dtype=real())

    def __call__(self, tokens: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: Any, block: Block) -> Any:
            return block(x)

        x = run(self.tokens(tokens), self.blocks)
        return self.tokens.attend(self.norm(x))


def scanned() -> Scanned:
    return Scanned(nnx.Rngs(0))


class MixerBlock(nnx.Module):
    def __init__(self, tokens: int, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = (
            nnx.LayerNorm(D, rngs=rngs, param_dtype=real()),
            nnx.LayerNorm(D, rngs=rngs, param_dtype=real()),
        )
        self.across = nnx.List(
            [nnx.Linear(tokens, F, rngs=rngs, param_dtype=real()), nnx.Linear(F, tokens, rngs=rngs, param_dtype=real())]
        )
        self.within = nnx.List(
            [nnx.Linear(D, F, rngs=rngs, param_dtype=real()), nnx.Linear(F, D, rngs=rngs, param_dtype=real())]
        )

    def __call__(self, x: Any) -> Any:
        y = jnp.swapaxes(self.norm1(x), 1, 2)
        x = x + jnp.swapaxes(self.across[1](jax.nn.gelu(self.across[0](y), approximate=False)), 1, 2)
        return x + self.within[1](jax.nn.gelu(self.within[0](self.norm2(x)), approximate=False))


class Mixer(nnx.Module):
    """A model for so many tokens."""

    def __init__(self, rngs: nnx.Rngs, tokens: int = 16) -> None:
        self.embed = nnx.Embed(V, D, rngs=rngs, param_dtype=real())
        self.blocks = nnx.List([MixerBlock(tokens, rngs) for _ in range(L)])
        self.head = nnx.Linear(D, V, rngs=rngs, param_dtype=real())

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mixer() -> Mixer:
    return Mixer(nnx.Rngs(0))


def mixer_of_32() -> Mixer:
    return Mixer(nnx.Rngs(0), tokens=32)
