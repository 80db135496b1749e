"""A Linen model that only `forward` says how to call: its parameters are named otherwise than the batch's entries."""

from typing import Any

import optax
from flax import linen as nn

from tests.ir.frontends.jax_zoo.plain import dims, example_inputs

__all__ = ["dims", "example_inputs"]
D, F, V = 32, 64, 64


class Model(nn.Module):
    """It draws, and its statistics change."""

    @nn.compact
    def __call__(self, ids: Any, learns: bool) -> Any:
        x = nn.Embed(V, D)(ids)
        y = nn.BatchNorm(use_running_average=not learns)(nn.Dense(F)(x))
        return nn.Dense(V)(x + nn.Dropout(0.2, deterministic=not learns)(nn.Dense(D)(nn.relu(y))))


def build() -> Model:
    return Model()


def forward(model: Any, batch: dict[str, Any]) -> Any:
    return model(batch["tokens"], learns=True)


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()
