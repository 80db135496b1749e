"""Every layer that packages of JAX ship is there, or left out for a reason; those that are drawn are captured."""

from __future__ import annotations

import inspect
from random import Random
from types import ModuleType

import pytest

pytest.importorskip("jax")

import equinox as eqx
from flax import linen as flax_linen
from flax import nnx as flax_nnx

from benchmarks.jax_layers import equinox, linen, nnx
from meshwright.ir.frontends.door import capture, load_model

SHIPPED = ((linen, flax_linen, flax_linen.Module), (nnx, flax_nnx, flax_nnx.Module), (equinox, eqx.nn, eqx.Module))
DRAWS = 12
SEED = 1


@pytest.mark.parametrize(("layers", "package", "base"), SHIPPED, ids=["linen", "nnx", "equinox"])
def test_every_layer_is_there_or_left_out(layers: ModuleType, package: ModuleType, base: type) -> None:
    shipped = {name for name, one in vars(package).items() if inspect.isclass(one) and issubclass(one, base)}
    assert shipped - set(layers.LAYERS) == set(layers.LEFT_OUT)


@pytest.mark.slow
def test_layers_that_are_drawn_are_captured() -> None:
    every = [(layers, name) for layers, _, _ in SHIPPED for name in layers.LAYERS]
    drawn = Random(SEED).sample(every, DRAWS)
    # A view that leaves no dimension at all: the norm of a matrix, by iteration.
    for layers, name in [*drawn, (nnx, "SpectralNorm")]:
        found = capture(load_model(f"{layers.__file__}:{name}").in_dtype("fp32"), batch=16, seq=32)
        assert any(op.kind == "cross_entropy" for body in found.fold.bodies for op in body.graph.ops), (SEED, name)
