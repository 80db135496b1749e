"""Layers of Equinox, each in a small model of one sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import nn

from benchmarks.jax_layers.linen import HEADS, ROW, D, V, dims, example_inputs, loss

__all__ = ["dims", "example_inputs", "loss"]
LEFT_OUT = {
    "Lambda": "a container",
    "Sequential": "a container",
    "StatefulLayer": "abstract",
    "Shared": "a container",
    "StateIndex": "a container",
    "Identity": "nothing is computed",
    "Conv": "as Conv1d to Conv3d",
    "ConvTranspose": "as ConvTranspose1d to ConvTranspose3d",
    "Pool": "as pools of one to three dimensions",
    "AdaptivePool": "as pools of one to three dimensions",
    "BatchNorm": "its state is handed along by the caller",
    "SpectralNorm": "its state is handed along by the caller",
}
Call = Callable[[Any, Any], Any]


def each(layer: Any, x: Any) -> Any:
    """A layer of one token."""
    return jax.vmap(layer)(x)


def along(layer: Any, x: Any) -> Any:
    """A layer of channels by positions."""
    return layer(x.T).T


def in_pixels(layer: Any, x: Any) -> Any:
    """A layer of channels by rows by pixels."""
    return layer(x.T.reshape(D, -1, ROW)).reshape(D, -1).T


def in_frames(layer: Any, x: Any) -> Any:
    """A layer of channels by frames by rows by pixels."""
    return layer(x.T.reshape(D, 2, -1, ROW)).reshape(D, -1).T


def as_lookup(layer: Any, x: Any) -> Any:
    return jax.vmap(layer)(jnp.argmax(x, -1))


def attending(layer: Any, x: Any) -> Any:
    return layer(x, x, x, mask=jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool)))


def turned(layer: Any, x: Any) -> Any:
    return jax.vmap(layer, in_axes=1, out_axes=1)(x.reshape(-1, HEADS, D // HEADS)).reshape(x.shape)


def averaged(layer: Any, x: Any) -> Any:
    return x * layer(x.T).T


def averaged_pixels(layer: Any, x: Any) -> Any:
    return x * layer(x.T.reshape(D, -1, ROW)).reshape(1, D)


def averaged_frames(layer: Any, x: Any) -> Any:
    return x * layer(x.T.reshape(D, 2, -1, ROW)).reshape(1, D)


def gru(layer: Any, x: Any) -> Any:
    def step(state: Any, one: Any) -> Any:
        state = layer(one, state)
        return state, state

    return jax.lax.scan(step, jnp.zeros(D), x)[1]


def lstm(layer: Any, x: Any) -> Any:
    def step(state: Any, one: Any) -> Any:
        state = layer(one, state)
        return state, state[0]

    return jax.lax.scan(step, (jnp.zeros(D), jnp.zeros(D)), x)[1]


def shaken(layer: Any, x: Any) -> Any:
    return layer(x, key=jax.random.key(0))


PADDED = {"kernel_size": 3, "padding": 1}
POOLED = {"kernel_size": 3, "stride": 1, "padding": 1}

LAYERS: dict[str, tuple[Callable[[Any], Any], Call]] = {
    "Linear": (lambda key: nn.Linear(D, D, key=key), each),
    "MLP": (lambda key: nn.MLP(D, D, 2 * D, 2, key=key), each),
    "MultiheadAttention": (lambda key: nn.MultiheadAttention(HEADS, D, key=key), attending),
    "RotaryPositionalEmbedding": (lambda key: nn.RotaryPositionalEmbedding(D // HEADS), turned),
    "Embedding": (lambda key: nn.Embedding(V, D, key=key), as_lookup),
    "Conv1d": (lambda key: nn.Conv1d(D, D, **PADDED, key=key), along),
    "Conv2d": (lambda key: nn.Conv2d(D, D, **PADDED, key=key), in_pixels),
    "Conv3d": (lambda key: nn.Conv3d(D, D, **PADDED, key=key), in_frames),
    "ConvTranspose1d": (lambda key: nn.ConvTranspose1d(D, D, **PADDED, key=key), along),
    "ConvTranspose2d": (lambda key: nn.ConvTranspose2d(D, D, **PADDED, key=key), in_pixels),
    "ConvTranspose3d": (lambda key: nn.ConvTranspose3d(D, D, **PADDED, key=key), in_frames),
    "LayerNorm": (lambda key: nn.LayerNorm(D), each),
    "RMSNorm": (lambda key: nn.RMSNorm(D), each),
    "GroupNorm": (lambda key: nn.GroupNorm(HEADS, D), along),
    "WeightNorm": (lambda key: nn.WeightNorm(nn.Linear(D, D, key=key)), each),
    "AvgPool1d": (lambda key: nn.AvgPool1d(**POOLED), along),
    "AvgPool2d": (lambda key: nn.AvgPool2d(**POOLED), in_pixels),
    "AvgPool3d": (lambda key: nn.AvgPool3d(**POOLED), in_frames),
    "MaxPool1d": (lambda key: nn.MaxPool1d(**POOLED), along),
    "MaxPool2d": (lambda key: nn.MaxPool2d(**POOLED), in_pixels),
    "MaxPool3d": (lambda key: nn.MaxPool3d(**POOLED), in_frames),
    "AdaptiveAvgPool1d": (lambda key: nn.AdaptiveAvgPool1d(1), averaged),
    "AdaptiveAvgPool2d": (lambda key: nn.AdaptiveAvgPool2d(1), averaged_pixels),
    "AdaptiveAvgPool3d": (lambda key: nn.AdaptiveAvgPool3d(1), averaged_frames),
    "AdaptiveMaxPool1d": (lambda key: nn.AdaptiveMaxPool1d(1), averaged),
    "AdaptiveMaxPool2d": (lambda key: nn.AdaptiveMaxPool2d(1), averaged_pixels),
    "AdaptiveMaxPool3d": (lambda key: nn.AdaptiveMaxPool3d(1), averaged_frames),
    "GRUCell": (lambda key: nn.GRUCell(D, D, key=key), gru),
    "LSTMCell": (lambda key: nn.LSTMCell(D, D, key=key), lstm),
    "PReLU": (lambda key: nn.PReLU(), each),
    "Dropout": (lambda key: nn.Dropout(0.1), shaken),
}


class Net(eqx.Module):  # type: ignore[misc]
    embed: nn.Embedding
    mixed: list[nn.Linear]
    layers: list[Any]
    head: nn.Linear
    name: str = eqx.field(static=True)

    def __init__(self, layer: str, key: Any) -> None:
        keys = jax.random.split(key, 6)
        self.name = layer
        self.embed = nn.Embedding(V, D, key=keys[0])
        self.mixed = [nn.Linear(D, D, key=one) for one in keys[1:3]]
        self.layers = [LAYERS[layer][0](one) for one in keys[3:5]]
        self.head = nn.Linear(D, V, key=keys[5])

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        for mixed, layer in zip(self.mixed, self.layers, strict=True):
            x = x + LAYERS[self.name][1](layer, jax.vmap(mixed)(x))
        return jax.vmap(self.head)(x)


def build(layer: str) -> Net:
    return Net(layer, jax.random.key(0))


for _name in LAYERS:
    globals()[_name] = partial(build, _name)
