"""A decoder whose own code says where values and parameters lie, by the four ways of saying it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

D, F, H, V, L = 64, 256, 8, 512, 4
ROWS, WIDE = P("dp", None, None), P("dp", None, "tp")
logical_axis_rules = (("batch", "dp"), ("embed", "dp"), ("wide", "tp"), ("length", None))


def constrained(x: Any, spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, spec)


class Block(nnx.Module):
    """Megatron's cuts over tp, parameters in shards over dp."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def linear(a: int, b: int, *names: Any) -> nnx.Linear:
            made = nnx.with_partitioning(nnx.initializers.lecun_normal(), names)
            return nnx.Linear(a, b, use_bias=False, kernel_init=made, rngs=rngs)

        self.q, self.k, self.v = (linear(D, D, "dp", "tp") for _ in range(3))
        self.o, self.up, self.down = linear(D, D, "tp", "dp"), linear(D, F, "dp", "tp"), linear(F, D, "tp", "dp")
        self.one, self.two = nnx.RMSNorm(D, rngs=rngs), nnx.RMSNorm(D, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y = self.one(x)
        q, k, v = (one(y).reshape(*x.shape[:2], H, D // H) for one in (self.q, self.k, self.v))
        x = constrained(x + self.o(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)), ROWS)
        return constrained(x + self.down(constrained(jax.nn.silu(self.up(self.two(x))), WIDE)), ROWS)


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(V, D, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(L)])
        self.head = nnx.Linear(D, V, use_bias=False, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = constrained(self.table(tokens), ROWS)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def decoder() -> Decoder:
    return Decoder(nnx.Rngs(0))


class Perceptron(nn.Module):
    """Logical names, which rules translate."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        def dense(width: int, *names: str) -> nn.Dense:
            made = nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)
            return nn.Dense(width, use_bias=False, kernel_init=made)

        x = nn.with_logical_constraint(nn.Embed(V, D)(tokens), ("batch", "length", None))
        return nn.Dense(V)(dense(D, "wide", "embed")(nn.relu(dense(F, "embed", "wide")(x))))


def perceptron() -> Perceptron:
    return Perceptron()


def pair() -> Any:
    """Parameters of no library: where they are read, code says where they lie; the table's axis is of another mesh."""

    def init(key: Any) -> Any:
        return {"table": jnp.zeros((V, D)), "head": jnp.zeros((D, V))}

    def apply(params: Any, tokens: Any) -> Any:
        return constrained(params["table"], P("fsdp", None))[tokens] @ params["head"]

    return init, apply


class Scanned(nn.Module):
    """A perceptron in a scan, whose parameters are stacked."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = constrained(nn.Embed(V, D)(tokens), ROWS)
        named = {"partition_name": None}
        scanned = nn.scan(
            Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=L, metadata_params=named
        )
        return nn.Dense(V)(scanned(name="layers")(x, None)[0])


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        w = self.param("w", nn.with_partitioning(nn.initializers.lecun_normal(), ("dp", "tp")), (D, D))
        return constrained(x + jnp.tanh(x @ w), ROWS), None


def scanned() -> Scanned:
    return Scanned()


class Named(nnx.Module):
    """A perceptron whose parameters carry names, for which NNX wants a mesh as it makes them."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def linear(a: int, b: int, *names: str) -> nnx.Linear:
            made = nnx.with_partitioning(nnx.initializers.lecun_normal(), names)
            return nnx.Linear(a, b, use_bias=False, kernel_init=made, rngs=rngs)

        self.table, self.norm = nnx.Embed(V, D, rngs=rngs), nnx.RMSNorm(D, rngs=rngs)
        self.up, self.down, self.head = linear(D, F, "dp", "tp"), linear(F, D, "tp", "dp"), linear(D, V, "dp", "tp")

    def __call__(self, tokens: Any) -> Any:
        x = self.table(tokens)
        return self.head(x + self.down(jax.nn.silu(self.up(self.norm(x)))))


def named() -> Named:
    return Named(nnx.Rngs(0))


def silent() -> Any:
    """Code that says nothing."""

    def init(key: Any) -> Any:
        return {"table": jnp.zeros((V, D)), "head": jnp.zeros((D, V))}

    return init, lambda params, tokens: params["table"][tokens] @ params["head"]


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    text = jnp.zeros((batch, seq + 1), jnp.int32)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    scores = jax.nn.log_softmax(outputs, axis=-1)
    return -jnp.take_along_axis(scores, batch["labels"][..., None], axis=-1).mean()
