"""How many whole weights a step under FSDP holds on TPUs beside its states, as XLA compiles it: `XLA_LIVE`.

    python -m benchmarks.xla_live

A loop of MLPs in bf16, with parameters and AdamW's moments in fp32 cut over eight v5e that are only described, blocks
computed again for the backward pass. Of what a step holds beside its arguments, gradients take four bytes of every
parameter's shard and what the loop casts before it two; the rest is told in whole weights of bf16. It needs the wheel
of libtpu: `pip install libtpu`.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.compiled_for_tpus import DEVICES, described

SIZES = ((6, 8192, 28_672), (9, 8192, 28_672), (1, 16_384, 53_248), (2, 16_384, 53_248))
"""Blocks, and the widths of each: with room, and until the states fill 16 GB."""
WEIGHTS, TOKENS, MIB = 3, 32, 2**20


def main() -> int:
    """Compile, and tell."""
    if find_spec("libtpu") is None:
        sys.stderr.write("skipped, for libtpu is not installed: pip install libtpu\n")
        return 0
    for blocks, width, inner in SIZES:
        held = compiled(blocks, width, inner).memory_analysis()
        weight, shards = 2 * width * inner, blocks * WEIGHTS * width * inner / DEVICES
        rest = held.temp_size_in_bytes - shards * (6 if blocks > 1 else 4)  # one block is no loop
        filled = (held.argument_size_in_bytes + held.temp_size_in_bytes) / MIB
        print(f"{blocks} blocks of {width} x {inner}: {filled:,.0f} MiB, {rest / weight:.2f} weights whole")
    return 0


def compiled(blocks: int, width: int, inner: int) -> Any:
    """The step, compiled."""
    mesh = Mesh(np.array(described()).reshape(DEVICES), ("dp",))
    stored, rows = NamedSharding(mesh, P(None, "dp")), NamedSharding(mesh, P("dp"))
    shapes = {"gate": (blocks, width, inner), "up": (blocks, width, inner), "down": (blocks, inner, width)}
    state = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=stored) for name, shape in shapes.items()}
    batch = jax.ShapeDtypeStruct((4 * DEVICES, TOKENS, width), jnp.bfloat16, sharding=rows)
    outs = (NamedSharding(mesh, P()), *(dict.fromkeys(shapes, stored),) * 3)
    run = jax.jit(partial(step, rows=rows), donate_argnums=(0, 1, 2), out_shardings=outs)
    return run.lower(state, state, state, batch).compile()


def step(params: Any, first: Any, second: Any, x: jax.Array, *, rows: NamedSharding) -> tuple[Any, ...]:
    """A step of Adam."""

    def block(x: jax.Array, own: Any) -> tuple[jax.Array, None]:
        own = jax.tree.map(lambda one: one.astype(jnp.bfloat16), own)
        inner = jax.lax.with_sharding_constraint(jax.nn.silu(x @ own["gate"]) * (x @ own["up"]), rows)
        return jax.lax.with_sharding_constraint(x + inner @ own["down"], rows), None

    def loss(params: Any) -> jax.Array:
        return jnp.square(jax.lax.scan(jax.checkpoint(block), x, params)[0].astype(jnp.float32)).mean()

    value, grads = jax.value_and_grad(loss)(params)
    first = jax.tree.map(lambda old, grad: 0.9 * old + 0.1 * grad, first, grads)
    second = jax.tree.map(lambda old, grad: 0.95 * old + 0.05 * grad * grad, second, grads)
    moved = jax.tree.map(lambda one, m, v: one - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return value, moved, first, second


if __name__ == "__main__":
    sys.exit(main())
