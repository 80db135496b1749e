"""The Llama-style decoder of `llama.py` in plain JAX: an `init`, an `apply`, and the same hooks.

    plan inspect examples/jax_llama.py:llama_8b

A factory returns the pair `(init, apply)`: `init(key)` makes the parameters, a tree of arrays, and `apply(params,
tokens)` is the forward pass. The `*_scan` factories keep the parameters of all blocks stacked, `[layers, …]`, and run
them by `jax.lax.scan` with rematerialization, which is how deep JAX models are usually written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

Tree = Any


@dataclass(frozen=True)
class LlamaConfig:
    vocab: int
    width: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    rope_theta: float = 500_000.0
    eps: float = 1e-5
    dtype: Any = jnp.float32

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def init_block(key: jax.Array, config: LlamaConfig) -> Tree:
    shapes = {
        "attention": {
            "q_proj": (config.width, config.heads * config.head_dim),
            "k_proj": (config.width, config.kv_heads * config.head_dim),
            "v_proj": (config.width, config.kv_heads * config.head_dim),
            "o_proj": (config.heads * config.head_dim, config.width),
        },
        "feed_forward": {
            "gate_proj": (config.width, config.ffn),
            "up_proj": (config.width, config.ffn),
            "down_proj": (config.ffn, config.width),
        },
    }
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda one: isinstance(one, tuple))
    keys = jax.random.split(key, len(leaves))
    drawn = [0.02 * jax.random.normal(k, s, config.dtype) for k, s in zip(keys, leaves, strict=True)]
    norms = {name: jnp.ones(config.width, config.dtype) for name in ("attention_norm", "feed_forward_norm")}
    return {**jax.tree.unflatten(tree, drawn), **norms}


def init(key: jax.Array, config: LlamaConfig, scan: bool) -> Tree:
    table, head, blocks = jax.random.split(key, 3)
    keys = jax.random.split(blocks, config.layers)
    make = partial(init_block, config=config)
    return {
        "embedding": jax.random.normal(table, (config.vocab, config.width), config.dtype),
        "blocks": jax.vmap(make)(keys) if scan else [make(one) for one in keys],
        "norm": jnp.ones(config.width, config.dtype),
        "head": 0.02 * jax.random.normal(head, (config.width, config.vocab), config.dtype),
    }


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scaled = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return scaled.astype(x.dtype) * weight


def rope_table(x: jax.Array, config: LlamaConfig) -> tuple[jax.Array, jax.Array]:
    """cos and sin, each [seq, 1, head_dim], for x [batch, seq, width]; the angles are fp32."""
    frequencies = config.rope_theta ** (-jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim)
    angles = jnp.outer(jnp.arange(x.shape[1], dtype=jnp.float32), frequencies)
    angles = jnp.concatenate((angles, angles), axis=-1)[:, None, :]
    return jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate x [batch, seq, heads, head_dim] by its position (first half of head_dim paired with the second)."""
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate((-second, first), axis=-1) * sin


def attention(params: Tree, x: jax.Array, cos: jax.Array, sin: jax.Array, config: LlamaConfig) -> jax.Array:
    b, s, _ = x.shape
    q = (x @ params["q_proj"]).reshape(b, s, config.heads, config.head_dim)
    k = (x @ params["k_proj"]).reshape(b, s, config.kv_heads, config.head_dim)
    v = (x @ params["v_proj"]).reshape(b, s, config.kv_heads, config.head_dim)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return y.reshape(b, s, config.width) @ params["o_proj"]


def feed_forward(params: Tree, x: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ params["gate_proj"]) * (x @ params["up_proj"])) @ params["down_proj"]


def block(x: jax.Array, params: Tree, cos: jax.Array, sin: jax.Array, config: LlamaConfig) -> jax.Array:
    x = x + attention(params["attention"], rms_norm(x, params["attention_norm"], config.eps), cos, sin, config)
    return x + feed_forward(params["feed_forward"], rms_norm(x, params["feed_forward_norm"], config.eps))


def apply(params: Tree, tokens: jax.Array, config: LlamaConfig, scan: bool) -> jax.Array:
    x = params["embedding"][tokens]
    cos, sin = rope_table(x, config)
    run = partial(block, cos=cos, sin=sin, config=config)
    if scan:
        x, _ = jax.lax.scan(jax.checkpoint(lambda x, layer: (run(x, layer), None)), x, params["blocks"])
    else:
        for layer in params["blocks"]:
            x = run(x, layer)
    return rms_norm(x, params["norm"], config.eps) @ params["head"]


Model = tuple[Callable[[jax.Array], Tree], Callable[..., jax.Array]]


def model(config: LlamaConfig, *, scan: bool = False) -> Model:
    return partial(init, config=config, scan=scan), partial(apply, config=config, scan=scan)


TINY = LlamaConfig(vocab=256, width=64, ffn=128, layers=4, heads=8, kv_heads=4)
LLAMA_8B = LlamaConfig(128_256, 4096, 14_336, layers=32, heads=32, kv_heads=8, dtype=jnp.bfloat16)
LLAMA_70B = LlamaConfig(128_256, 8192, 28_672, layers=80, heads=64, kv_heads=8, dtype=jnp.bfloat16)


def tiny() -> Model:
    """Small enough to train on a laptop's CPU; every dimension divides by 2 and 4."""
    return model(TINY)


def tiny_scan() -> Model:
    return model(TINY, scan=True)


def llama_8b() -> Model:
    return model(LLAMA_8B)


def llama_8b_scan() -> Model:
    return model(LLAMA_8B, scan=True)


def llama_70b() -> Model:
    return model(LLAMA_70B)


def llama_70b_scan() -> Model:
    return model(LLAMA_70B, scan=True)


# The model contract. The forward pass receives what it has parameters for; the loss sees the whole batch.

dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, jax.Array]:
    """One batch: tokens, and for every position the token that follows it (-100: no target)."""
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross entropy over the positions that have a target."""
    labels = batch["labels"]
    valid = labels != -100
    logits = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(valid, labels, 0))
    return jnp.sum(losses * valid) / jnp.sum(valid)


def optimizer() -> optax.GradientTransformation:
    return optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
