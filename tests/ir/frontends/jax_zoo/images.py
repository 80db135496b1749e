"""Models of images: a vision transformer and a convolutional net in Linen, a residual net in Equinox."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

D, H, V, L, SIZE = 32, 4, 10, 4, 16
dims = {"image": ("b", "", "", ""), "label": ("b",)}


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x + nn.SelfAttention(num_heads=H)(nn.LayerNorm()(x))
        return x + nn.Dense(D)(nn.gelu(nn.Dense(2 * D)(nn.LayerNorm()(x))))


class ViT(nn.Module):
    @nn.compact
    def __call__(self, image: Any) -> Any:
        x = nn.Conv(D, (4, 4), (4, 4), padding="VALID")(image)
        x = x.reshape(x.shape[0], -1, D)
        cls = self.param("cls", nn.initializers.zeros, (1, 1, D))
        x = jnp.concatenate([jnp.tile(cls, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(), (1, x.shape[1], D))
        for _ in range(L):
            x = Encoder()(x)
        return nn.Dense(V)(nn.LayerNorm()(x)[:, 0])


def vit() -> ViT:
    return ViT()


class Residual(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        y = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(16, (3, 3))(x)))
        y = nn.BatchNorm(use_running_average=not train)(nn.Conv(16, (3, 3))(y))
        return nn.relu(x + y)


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, image: Any, train: bool = False) -> Any:
        x = nn.max_pool(nn.Conv(16, (3, 3), strides=(2, 2))(image), (2, 2), (2, 2))
        for _ in range(L):
            x = Residual()(x, train)
        x = nn.avg_pool(x, (2, 2), (2, 2))
        return nn.Dense(V)(jnp.mean(x, axis=(1, 2)))


def convnet() -> ConvNet:
    return ConvNet()


class Small(eqx.Module):
    first: eqx.nn.Conv2d
    blocks: list[eqx.nn.Conv2d]
    pool: eqx.nn.MaxPool2d
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, L + 2)
        self.first = eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0])
        self.blocks = [eqx.nn.Conv2d(8, 8, 3, padding=1, key=one) for one in keys[1:-1]]
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.head = eqx.nn.Linear(8, V, key=keys[-1])

    def __call__(self, image: Any) -> Any:
        x = self.pool(jax.nn.relu(self.first(jnp.moveaxis(image, -1, 0))))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return self.head(x.mean((1, 2)))


def small() -> Small:
    return Small(jax.random.key(0))


def example_inputs(batch: int, seq: int) -> dict[str, Any]:
    return {"image": jnp.zeros((batch, SIZE, SIZE, 3)), "label": jnp.zeros(batch, jnp.int32)}


def loss(outputs: Any, batch: dict[str, Any]) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["label"]).mean()
