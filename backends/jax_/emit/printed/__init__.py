"""Printed models: the loss of a plan as every device computes it on its own parts, inside of `jax.shard_map`.

    bodies      the forward pass of every body, as functions (`backends.printing`)
    passes      the loss, which calls them: blocks one by one, or in `jax.lax.scan`
    script      the file that both stand in, and how `train.py` takes gradients of it
    dialect     how operators and moves look in JAX: `operators`, `layers`; the functions that JAX lacks: `moves`,
                `functions`, `attention`

This is for plans that shardings of values cannot say (`emit.shardings`): what is exchanged stands in the code.
"""
