"""An encoder-decoder with padding masks, in plain JAX: cross attention, relative bias, two stacks."""

from typing import Any

import jax
import jax.numpy as jnp

D, F, H, V, L = 32, 64, 4, 64, 4


def normal(key: Any, *shape: int) -> Any:
    return 0.1 * jax.random.normal(key, shape)


def weights(key: Any) -> Any:
    return {name: normal(k, D, D) for name, k in zip("qkvo", jax.random.split(key, 4), strict=True)}


def attend(p: Any, x: Any, memory: Any, bias: Any) -> Any:
    def heads(y: Any) -> Any:
        return y.reshape(*y.shape[:2], H, D // H).transpose(0, 2, 1, 3)

    q, k, v = heads(x @ p["q"]), heads(memory @ p["k"]), heads(memory @ p["v"])
    scores = (q @ k.transpose(0, 1, 3, 2)) * (D // H) ** -0.5 + bias
    y = (jax.nn.softmax(scores, axis=-1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return y @ p["o"]


def norm(x: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * w


def build() -> Any:
    def layer(key: Any, names: tuple[str, ...]) -> Any:
        keys = jax.random.split(key, len(names) + 2)
        made = {name: {**weights(k), "norm": jnp.ones(D)} for name, k in zip(names, keys, strict=False)}
        return {**made, "up": normal(keys[-2], D, F), "down": normal(keys[-1], F, D), "norm": jnp.ones(D)}

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 2 * L + 3)
        return {
            "table": normal(keys[0], V, D),
            "bias": normal(keys[1], H, 64, 64),
            "encoder": [layer(k, ("own",)) for k in keys[2 : L + 2]],
            "decoder": [layer(k, ("own", "cross")) for k in keys[L + 2 : 2 * L + 2]],
            "head": normal(keys[-1], D, V),
        }

    def feed(p: Any, x: Any) -> Any:
        return x + jax.nn.relu(norm(x, p["norm"]) @ p["up"]) @ p["down"]

    def apply(p: Any, source: Any, tokens: Any) -> Any:
        s, t = source.shape[1], tokens.shape[1]
        hidden = jnp.where(source == 0, -1e9, 0.0)[:, None, None, :].astype(p["table"].dtype)
        memory = p["table"][source]
        for one in p["encoder"]:
            y = norm(memory, one["own"]["norm"])
            memory = feed(one, memory + attend(one["own"], y, y, p["bias"][None, :, :s, :s] + hidden))
        future = jnp.where(jnp.arange(t)[:, None] >= jnp.arange(t)[None, :], 0.0, -1e9).astype(memory.dtype)
        x = p["table"][tokens]
        for one in p["decoder"]:
            y = norm(x, one["own"]["norm"])
            x = x + attend(one["own"], y, y, future)
            x = feed(one, x + attend(one["cross"], norm(x, one["cross"]["norm"]), memory, hidden))
        return x @ p["head"]

    return init, apply


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"source": jnp.zeros((batch, seq + 4), jnp.int32), "tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    scores = jax.nn.log_softmax(outputs, axis=-1)
    return -jnp.take_along_axis(scores, batch["labels"][..., None], axis=-1).mean()
