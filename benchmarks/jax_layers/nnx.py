"""Layers of Flax NNX, each in a small model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx

from benchmarks.jax_layers.linen import HEADS, ROW, D, V, dims, example_inputs, loss

__all__ = ["dims", "example_inputs", "loss"]
LEFT_OUT = {
    "Dict": "a container",
    "List": "a container",
    "Sequential": "a container",
    "Module": "abstract",
    "RNNCellBase": "abstract",
}


def applied(module: Any, call: Callable[[Any, Any], Any] = lambda module, x: module(x)) -> Any:
    """A layer, and how it is called."""
    return Applied(module, call)


class Applied(nnx.Module):  # type: ignore[misc]
    def __init__(self, module: Any, call: Callable[[Any, Any], Any]) -> None:
        self.module, self.call = module, call

    def __call__(self, x: Any) -> Any:
        return self.call(self.module, x)


def attending(module: Any, x: Any) -> Any:
    return module(x, mask=nnx.make_causal_mask(x[..., 0]))


def in_heads(module: Any, x: Any) -> Any:
    return module(x.reshape(*x.shape[:2], HEADS, D // HEADS))


def in_pixels(module: Any, x: Any) -> Any:
    return module(x.reshape(x.shape[0], -1, ROW, D)).reshape(x.shape)


def both(rngs: nnx.Rngs) -> Any:
    return nnx.Bidirectional(
        nnx.RNN(nnx.GRUCell(D, D // 2, rngs=rngs)), nnx.RNN(nnx.GRUCell(D, D // 2, rngs=rngs)), rngs=rngs
    )


LAYERS: dict[str, Callable[[nnx.Rngs], Any]] = {
    "Linear": lambda rngs: nnx.Linear(D, D, rngs=rngs),
    "LinearGeneral": lambda rngs: applied(
        nnx.LinearGeneral((HEADS, D // HEADS), D, axis=(-2, -1), rngs=rngs), in_heads
    ),
    "Einsum": lambda rngs: nnx.Einsum("bsd,de->bse", (D, D), rngs=rngs),
    "Embed": lambda rngs: applied(nnx.Embed(V, D, rngs=rngs), lambda table, x: table(jnp.argmax(x, -1))),
    "MultiHeadAttention": lambda rngs: applied(
        nnx.MultiHeadAttention(num_heads=HEADS, in_features=D, decode=False, rngs=rngs), attending
    ),
    "Conv": lambda rngs: applied(nnx.Conv(D, D, (3, 3), rngs=rngs), in_pixels),
    "ConvTranspose": lambda rngs: applied(nnx.ConvTranspose(D, D, (3, 3), rngs=rngs), in_pixels),
    "LoRA": lambda rngs: nnx.LoRA(D, 4, D, rngs=rngs),
    "LoRALinear": lambda rngs: nnx.LoRALinear(D, D, lora_rank=4, rngs=rngs),
    "BatchNorm": lambda rngs: nnx.BatchNorm(D, rngs=rngs),
    "LayerNorm": lambda rngs: nnx.LayerNorm(D, rngs=rngs),
    "RMSNorm": lambda rngs: nnx.RMSNorm(D, rngs=rngs),
    "GroupNorm": lambda rngs: nnx.GroupNorm(D, num_groups=HEADS, rngs=rngs),
    "InstanceNorm": lambda rngs: nnx.InstanceNorm(D, rngs=rngs),
    "SpectralNorm": lambda rngs: applied(
        nnx.SpectralNorm(nnx.Linear(D, D, rngs=rngs), rngs=rngs), lambda module, x: module(x, update_stats=True)
    ),
    "WeightNorm": lambda rngs: nnx.WeightNorm(nnx.Linear(D, D, rngs=rngs), rngs=rngs),
    "LSTMCell": lambda rngs: nnx.RNN(nnx.LSTMCell(D, D, rngs=rngs)),
    "OptimizedLSTMCell": lambda rngs: nnx.RNN(nnx.OptimizedLSTMCell(D, D, rngs=rngs)),
    "GRUCell": lambda rngs: nnx.RNN(nnx.GRUCell(D, D, rngs=rngs)),
    "SimpleCell": lambda rngs: nnx.RNN(nnx.SimpleCell(D, D, rngs=rngs)),
    "RNN": lambda rngs: nnx.RNN(nnx.SimpleCell(D, D, rngs=rngs), reverse=True, keep_order=True),
    "Bidirectional": both,
    "PReLU": lambda rngs: nnx.PReLU(),
    "Dropout": lambda rngs: nnx.Dropout(0.1, rngs=rngs),
}


class Net(nnx.Module):  # type: ignore[misc]
    def __init__(self, layer: str, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(V, D, rngs=rngs)
        self.mixed = nnx.List([nnx.Linear(D, D, rngs=rngs) for _ in range(2)])
        self.layers = nnx.List([LAYERS[layer](rngs) for _ in range(2)])
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for mixed, layer in zip(self.mixed, self.layers, strict=True):
            x = x + layer(mixed(x))
        return self.head(x)


def build(layer: str) -> Net:
    return Net(layer, nnx.Rngs(0))


for _name in LAYERS:
    globals()[_name] = partial(build, _name)
