"""Models that are a pair (init, apply) over a tree of arrays."""

from typing import Any

import jax
import jax.numpy as jnp

B, D, F, H, V, L, E = "b", 32, 64, 4, 64, 4, 4
dims = {"tokens": ("b", "s"), "labels": ("b", "s")}


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    """Cross entropy by one-hot vectors; of two outputs, the second is added."""
    logits, extra = outputs if isinstance(outputs, tuple) else (outputs, 0.0)
    hot = jax.nn.one_hot(batch["labels"], logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(logits), axis=-1)) + extra


def normal(key: Any, *shape: int) -> Any:
    return 0.1 * jax.random.normal(key, shape)


def norm(x: Any, w: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w


def attend(p: Any, x: Any) -> Any:
    """Causal attention by einsum over parameters with heads of their own."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jnp.where(seen, scores, -1e9)
    return jnp.einsum("bhqk,bkhd,hdo->bqo", jax.nn.softmax(scores, axis=-1), v, p["o"])


def attention_weights(key: Any) -> Any:
    keys = jax.random.split(key, 4)
    return {
        **{n: normal(k, D, H, D // H) for n, k in zip("qkv", keys[:3], strict=True)},
        "o": normal(keys[3], H, D // H, D),
    }


def mlp() -> Any:
    """Regression of tokens' embeddings: linear layers with biases."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        return {
            "table": normal(keys[0], V, D),
            "up": {"w": normal(keys[1], D, F), "b": jnp.zeros(F)},
            "down": {"w": normal(keys[2], F, V), "b": jnp.zeros(V)},
        }

    def apply(p: Any, tokens: Any) -> Any:
        x = jnp.tanh(p["table"][tokens] @ p["up"]["w"] + p["up"]["b"])
        return x @ p["down"]["w"] + p["down"]["b"]

    return init, apply


def _decoder(*feeds: tuple[Any, Any], scan: bool = False) -> Any:
    """Blocks whose second halves take turns: each a function and what makes its weights."""

    def block(key: Any, at: int = 0) -> Any:
        first, second = jax.random.split(key)
        return {
            "norm1": jnp.ones(D), "attn": attention_weights(first),
            "norm2": jnp.ones(D), "ffn": feeds[at % len(feeds)][1](second),
        }  # fmt: skip

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        layers = jax.random.split(keys[0], L)
        return {
            "table": normal(keys[1], V, D),
            "layers": jax.vmap(block)(layers) if scan else [block(one, at) for at, one in enumerate(layers)],
            "norm": jnp.ones(D),
        }

    def run(x: Any, p: Any, at: int = 0) -> Any:
        x = x + attend(p["attn"], norm(x, p["norm1"]))
        y = feeds[at % len(feeds)][0](p["ffn"], norm(x, p["norm2"]))
        y, extra = y if isinstance(y, tuple) else (y, None)
        return x + y, extra

    def apply(p: Any, tokens: Any) -> Any:
        x, total = jnp.take(p["table"], tokens, axis=0), 0.0
        if scan:
            x, extras = jax.lax.scan(jax.remat(run), x, p["layers"])
            total = total if extras is None else jnp.sum(extras)
        else:
            for at, one in enumerate(p["layers"]):
                x, extra = run(x, one, at)
                total = total if extra is None else total + extra
        logits = norm(x, p["norm"]) @ p["table"].T
        return logits if isinstance(total, float) else (logits, total)

    return init, apply


def _dense(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def _dense_weights(key: Any) -> Any:
    first, second = jax.random.split(key)
    return {"up": normal(first, D, F), "down": normal(second, F, D)}


def decoder() -> Any:
    """Tied embedding, unrolled."""
    return _decoder((_dense, _dense_weights))


def decoder_scan() -> Any:
    return _decoder((_dense, _dense_weights), scan=True)


def _experts(p: Any, x: Any, over: Any = 1) -> Any:
    """GShard: the best expert of each token by one-hot dispatch with a capacity, and a loss that balances them in every
    sequence, or over more."""
    s = x.shape[1]
    gates = jax.nn.softmax(x @ p["router"], axis=-1)
    best = jnp.argmax(gates, axis=-1)
    chosen = jax.nn.one_hot(best, E, dtype=x.dtype)
    place = jnp.cumsum(chosen, axis=1) * chosen - chosen
    capacity = s // E * 2
    slot = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity, dtype=x.dtype)
    dispatch = jnp.einsum("bse,bsc->bsec", chosen, slot)
    rows = jnp.einsum("bsec,bsd->ebcd", dispatch, x)
    rows = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", rows, p["up"]))
    rows = jnp.einsum("ebcf,efd->ebcd", rows, p["down"])
    combined = jnp.einsum("bsec,ebcd->bsd", dispatch * jnp.sum(gates * chosen, -1)[..., None, None], rows)
    return combined, jnp.mean(jnp.mean(gates, over) * jnp.mean(chosen, over)) * E


def _expert_weights(key: Any) -> Any:
    keys = jax.random.split(key, 3)
    return {"router": normal(keys[0], D, E), "up": normal(keys[1], E, D, F), "down": normal(keys[2], E, F, D)}


def gshard() -> Any:
    """A mixture of experts with two outputs."""
    return _decoder((_experts, _expert_weights))


def _balanced(p: Any, x: Any) -> Any:
    return _experts(p, x, (0, 1))


def gshard_balanced() -> Any:
    """The same, whose experts are balanced over the whole batch: no parts of one add up to that loss."""
    return _decoder((_balanced, _expert_weights))


def in_turn() -> Any:
    """Dense blocks and mixtures of experts in turn, of which the latter add to a loss that is handed on."""
    return _decoder((_dense, _dense_weights), (_experts, _expert_weights))


def gshard_scan() -> Any:
    """The same in a scan, which stacks what every block adds to the loss."""
    return _decoder((_experts, _expert_weights), scan=True)


def _ragged(p: Any, x: Any) -> Any:
    """Top-2 experts without capacity: tokens sorted by expert, ragged products."""
    flat = x.reshape(-1, D)
    weights, chosen = jax.lax.top_k(jax.nn.softmax(flat @ p["router"], axis=-1), 2)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.sum(jax.nn.one_hot(chosen.reshape(-1), E, dtype=jnp.int32), axis=0)
    rows = jnp.take(flat, order // 2, axis=0)
    rows = jax.lax.ragged_dot(jax.nn.silu(jax.lax.ragged_dot(rows, p["up"], sizes)), p["down"], sizes)
    back = jnp.take(rows, jnp.argsort(order), axis=0).reshape(-1, 2, D)
    return jnp.sum(back * weights[..., None], axis=1).reshape(x.shape)


def ragged() -> Any:
    return _decoder((_ragged, _expert_weights))


def _lora(p: Any, x: Any) -> Any:
    def layer(w: Any, a: Any, b: Any, x: Any) -> Any:
        return x @ jax.lax.stop_gradient(w) + 2.0 * (x @ a) @ b

    return layer(p["down"], p["down_a"], p["down_b"], jax.nn.silu(layer(p["up"], p["up_a"], p["up_b"], x)))


def _lora_weights(key: Any) -> Any:
    shapes = {"up": (D, F), "up_a": (D, 4), "up_b": (4, F), "down": (F, D), "down_a": (F, 4), "down_b": (4, D)}
    return {name: normal(k, *shapes[name]) for name, k in zip(shapes, jax.random.split(key, len(shapes)), strict=True)}


def lora() -> Any:
    return _decoder((_lora, _lora_weights))


def ssm() -> Any:
    """A diagonal state-space model, by an associative scan over time."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 4)
        return {
            "table": normal(keys[0], V, D),
            "layers": [{"a": jnp.ones(F), "b": normal(keys[1], D, F), "c": normal(keys[2], F, D)} for _ in range(L)],
            "head": normal(keys[3], D, V),
        }

    def apply(p: Any, tokens: Any) -> Any:
        x = p["table"][tokens]
        for one in p["layers"]:
            decay = jnp.broadcast_to(jax.nn.sigmoid(one["a"]), (*x.shape[:2], F))
            _, state = jax.lax.associative_scan(
                lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1]), (decay, x @ one["b"]), axis=1
            )
            x = x + jnp.tanh(state) @ one["c"]
        return x @ p["head"]

    return init, apply


def counting() -> Any:
    """Blocks that hand on how often each token was let through, beside what they make of it."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 2 * L + 2)
        return {
            "table": normal(keys[0], V, D),
            "layers": [
                {"gate": normal(first, D), "w": normal(second, D, D)}
                for first, second in zip(keys[2::2], keys[3::2], strict=True)
            ],
            "head": normal(keys[1], D, V),
        }

    def apply(p: Any, tokens: Any) -> Any:
        x, seen = p["table"][tokens], jnp.zeros(tokens.shape, jnp.int32)
        for one in p["layers"]:
            seen = seen + (x @ one["gate"] > 0)
            x = x + jnp.tanh(x @ one["w"]) / (1 + seen)[..., None]
        return x @ p["head"] / (1 + seen)[..., None]

    return init, apply
