"""Layers of Flax Linen, each in a small model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn

D, HEADS, V, ROW = 32, 4, 64, 8
"""Width, heads, words, and pixels of a row."""

dims = {"tokens": ("b", "s"), "labels": ("b", "s")}
LEFT_OUT = {
    "Sequential": "a container",
    "MultiHeadAttention": "MultiHeadDotProductAttention by another name",
    "SelfAttention": "deprecated, MultiHeadDotProductAttention of one operand",
    "OptimizedLSTMCell": "as LSTMCell, parameters joined by its own code",
    "Fp8DirectDotGeneralOp": "eight bits",
    "Fp8DotGeneral": "eight bits",
    "Fp8DotGeneralOp": "eight bits",
    "Fp8Einsum": "eight bits",
    "NANOOFp8DotGeneralOp": "eight bits",
    "RNNCellBase": "abstract",
    "Module": "abstract",
}


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()


def in_pixels(layer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A layer of images, of sequences as images of eight pixels a row."""
    return lambda x: layer(x.reshape(x.shape[0], -1, ROW, D)).reshape(x.shape)


def causal(x: Any) -> Any:
    return nn.MultiHeadDotProductAttention(num_heads=HEADS)(x, mask=nn.make_causal_mask(x[..., 0]))


def by_rows(x: Any) -> Any:
    """Rows of pixels in turn, each the state of a convolution."""
    cell = nn.ConvLSTMCell(features=D, kernel_size=(3,))
    return nn.RNN(cell)(x.reshape(x.shape[0], -1, ROW, D)).reshape(x.shape)


def in_heads(x: Any) -> Any:
    heads = x.reshape(*x.shape[:2], HEADS, D // HEADS)
    return nn.dot_product_attention(heads, heads, heads).reshape(x.shape)


LAYERS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "Dense": lambda: nn.Dense(D),
    "DenseGeneral": lambda: lambda x: nn.DenseGeneral(D, axis=(-2, -1))(nn.DenseGeneral((HEADS, D // HEADS))(x)),
    "Einsum": lambda: nn.Einsum((D, D), "bsd,de->bse"),
    "Embed": lambda: lambda x: nn.Embed(V, D)(jnp.argmax(x, -1)),
    "MultiHeadDotProductAttention": lambda: causal,
    "Conv": lambda: nn.Conv(D, (3,), padding="CAUSAL"),
    "ConvLocal": lambda: nn.ConvLocal(D, (3,)),
    "ConvTranspose": lambda: nn.ConvTranspose(D, (3,)),
    "BatchNorm": lambda: nn.BatchNorm(use_running_average=False),
    "GroupNorm": lambda: nn.GroupNorm(HEADS),
    "InstanceNorm": nn.InstanceNorm,
    "LayerNorm": nn.LayerNorm,
    "RMSNorm": nn.RMSNorm,
    "SpectralNorm": lambda: lambda x: nn.SpectralNorm(nn.Dense(D))(x, update_stats=True),
    "WeightNorm": lambda: nn.WeightNorm(nn.Dense(D)),
    "LSTMCell": lambda: nn.RNN(nn.LSTMCell(D)),
    "GRUCell": lambda: nn.RNN(nn.GRUCell(D)),
    "MGUCell": lambda: nn.RNN(nn.MGUCell(D)),
    "SimpleCell": lambda: nn.RNN(nn.SimpleCell(D)),
    "Bidirectional": lambda: nn.Bidirectional(nn.RNN(nn.GRUCell(D // 2)), nn.RNN(nn.GRUCell(D // 2))),
    "ConvLSTMCell": lambda: by_rows,
    "RNN": lambda: nn.RNN(nn.SimpleCell(D), reverse=True, keep_order=True),
    "PReLU": nn.PReLU,
    "Dropout": lambda: lambda x: nn.Dropout(0.1, deterministic=False)(nn.Dense(D)(x)),
    "avg_pool": lambda: lambda x: nn.avg_pool(x, (3,), padding="SAME"),
    "max_pool": lambda: in_pixels(lambda x: nn.max_pool(x, (3, 3), padding="SAME")),
    "dot_product_attention": lambda: in_heads,
    "softmax": lambda: lambda x: nn.softmax(nn.Dense(D)(x)) * nn.log_softmax(x),
    "logsumexp": lambda: lambda x: x - nn.logsumexp(x, axis=-1, keepdims=True),
    "glu": lambda: lambda x: nn.glu(nn.Dense(2 * D)(x)),
    "gelu": lambda: lambda x: nn.gelu(x) + nn.silu(x) + nn.softplus(x) + nn.elu(x) + nn.celu(x) + nn.selu(x),
    "relu6": lambda: lambda x: nn.relu6(x) + nn.leaky_relu(x) + nn.hard_tanh(x) + nn.hard_swish(x) + nn.soft_sign(x),
    "standardize": lambda: nn.standardize,
    "one_hot": lambda: lambda x: nn.one_hot(jnp.argmax(x, -1), D) * x,
}


class Net(nn.Module):  # type: ignore[misc]
    """The model: tokens, and twice what the layer makes of them."""

    layer: str

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(V, D)(tokens)
        for _ in range(2):
            x = x + LAYERS[self.layer]()(nn.Dense(D)(x))
        return nn.Dense(V)(x)


def build(layer: str) -> Net:
    return Net(layer)


for _name in LAYERS:
    globals()[_name] = partial(build, _name)
