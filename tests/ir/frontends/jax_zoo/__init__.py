"""Small JAX models as people write them: plain trees, Flax NNX, Flax Linen, Equinox."""
