"""What XLA makes of a model's own shardings on host devices: the collectives of its loss and gradients."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.backends.jax_.verify.emitted import APART
from meshwright.backends.jax_.verify.hlo import collectives
from meshwright.ir.sharding.mesh import Mesh
from tests.ir.frontends.jax_zoo import annotated


def main(axes: str, batch: str, seq: str) -> None:
    """Compile the decoder for a mesh whose first axis cuts the batch, and write what is found."""
    own = Mesh.parse(axes)
    jax.config.update("jax_num_cpu_devices", own.size)
    sizes = tuple(axis.size for axis in own.axes)
    mesh = jax.make_mesh(sizes, own.names, axis_types=(AxisType.Auto,) * len(sizes))
    with jax.set_mesh(mesh):
        static, state = nnx.split(nnx.eval_shape(annotated.decoder))
        specs = nnx.get_partition_spec(state)
        stored = jax.tree.map(lambda one: NamedSharding(mesh, one), specs, is_leaf=lambda one: isinstance(one, P))
        rows = NamedSharding(mesh, P(own.names[0]))

        def step(state: Any, batch: Any) -> Any:
            return jax.value_and_grad(lambda state: annotated.loss(nnx.merge(static, state)(batch["tokens"]), batch))(
                state
            )

        made = jax.jit(step, in_shardings=(stored, rows), out_shardings=(NamedSharding(mesh, P()), stored))
        given = jax.eval_shape(lambda: annotated.example_inputs(int(batch), int(seq)))
        compiled = made.lower(state, given).compile(compiler_options={"xla_disable_hlo_passes": APART})
    found = collectives(compiled.as_text(), own)
    sys.stdout.write(json.dumps([[kind, over, size, number] for (kind, over, size), number in found.items()]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
