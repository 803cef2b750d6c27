"""Models of images in Flax linen: residual nets, a vision transformer and a VAE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.models.model import Built, model, normal, random_weights


class _Convolution(nn.Module):
    """A convolution, batch normalization, and perhaps an activation."""

    channels: int
    size: int = 3
    strides: int = 1
    train: bool = False
    active: bool = True

    @nn.compact
    def __call__(self, x: Any) -> Any:
        window, strides = (self.size,) * 2, (self.strides,) * 2
        x = nn.Conv(self.channels, window, strides, use_bias=False, name="conv")(x)
        x = nn.BatchNorm(use_running_average=not self.train, momentum=0.9, name="norm")(x)
        return _activated(x, self.train) if self.active else x


def _activated(x: Any, train: bool) -> Any:
    """Relu; smooth where gradients of a few rows are compared, in which one kink is seen."""
    return nn.silu(x) if train else nn.relu(x)


class _Residual(nn.Module):
    """Convolutions beside a shortcut; `sizes` are those of their windows."""

    channels: Sequence[int]
    sizes: Sequence[int]
    strides: int = 1
    train: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = x
        last = len(self.sizes) - 1
        strided = self.sizes.index(3)
        for i, (channels, size) in enumerate(zip(self.channels, self.sizes, strict=True)):
            strides = self.strides if i == strided else 1
            y = _Convolution(channels, size, strides, self.train, active=i < last)(y)
        if x.shape[-1] != self.channels[-1] or self.strides > 1:
            x = _Convolution(self.channels[-1], 1, self.strides, self.train, active=False)(x)
        return _activated(x + y, self.train)


class _ResNet(nn.Module):
    """Residual blocks in four stages, each of half the size and twice the channels."""

    depths: Sequence[int]
    bottleneck: bool
    train: bool = False
    dropout: float = 0.0
    classes: int = 1000

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = _Convolution(64, 7, 2, self.train, name="stem")(images)
        pool: Any = nn.max_pool  # without types
        x = pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for stage, depth in enumerate(self.depths):
            width = 64 * 2**stage
            channels = (width, width, 4 * width) if self.bottleneck else (width, width)
            sizes = (1, 3, 1) if self.bottleneck else (3, 3)
            for block in range(depth):
                strides = 2 if stage > 0 and block == 0 else 1
                name = f"stage{stage}_block{block}"
                x = _Residual(channels, sizes, strides, self.train, name=name)(x)
        x = x.mean(axis=(1, 2))
        x = nn.Dropout(self.dropout, deterministic=not self.train)(x)
        return nn.Dense(self.classes, name="head")(x)


def _variables(net: nn.Module, *args: Any, seed: int = 0) -> Any:
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    return random_weights(jax.eval_shape(net.init, keys, *args), seed)


@model("linen", "(b, 64, 64, 3)", trainable=["params"], gradient_tolerance=2e-2)
def resnet50() -> Built:
    """All 50 layers and 25.6 million weights; images of 64 by 64, so that CI can compute it."""
    net = _ResNet((3, 4, 6, 3), bottleneck=True)
    x = normal(2, 64, 64, 3)
    calls = [(normal(b, 64, 64, 3, seed=b),) for b in (1, 3)]
    return Built(net.apply, _variables(net, x), (x,), calls)


@model("linen", "(b, 32, 32, 3)", "(b,)", None, trainable=["params"], gradient_tolerance=2e-2)
def resnet18_training() -> Built:
    """Loss, accuracy and the next running statistics: the batch's own statistics, and dropout."""
    net = _ResNet((2, 2, 2, 2), bottleneck=False, train=True, dropout=0.1, classes=10)
    images, labels = normal(4, 32, 32, 3), np.arange(4, dtype=np.int32)

    def loss(variables: Any, images: Any, labels: Any, key: Any) -> Any:
        scores, updated = net.apply(
            variables, images, rngs={"dropout": key}, mutable=["batch_stats"]
        )
        likely = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)
        right = jnp.mean(jnp.argmax(scores, axis=1) == labels)
        return {"loss": -likely.mean(), "accuracy": right, **updated}

    def arguments(b: int) -> Any:
        labels = np.arange(b, dtype=np.int32) % 10
        return normal(b, 32, 32, 3, seed=b), labels, jax.random.key(b)

    example = (images, labels, jax.random.key(0))
    return Built(loss, _variables(net, images), example, [arguments(b) for b in (6, 9)])


class _Block(nn.Module):
    """A transformer's block, normalized before each half."""

    heads: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads)(y, y)
        y = nn.Dense(4 * width)(nn.LayerNorm()(x))
        return x + nn.Dense(width)(nn.gelu(y))


class _ViT(nn.Module):
    """Patches of 16 by 16; where they lie is told by sines, so that any image size will do."""

    width: int = 384
    heads: int = 6
    depth: int = 6

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.Conv(self.width, (16, 16), (16, 16), padding="VALID", name="patches")(images)
        b, h, w, width = x.shape
        x = (x + _positions(h, w, width)).reshape(b, h * w, width)
        first = self.param("class", nn.initializers.zeros, (1, 1, width))
        x = jnp.concatenate([jnp.broadcast_to(first, (b, 1, width)), x], axis=1)
        for i in range(self.depth):
            x = _Block(self.heads, name=f"block{i}")(x)
        return nn.Dense(1000, name="head")(nn.LayerNorm()(x[:, 0]))


def _positions(h: Any, w: Any, width: int) -> Any:
    """(h, w, width): sines and cosines of the row and of the column."""
    rates = 1e4 ** -jnp.linspace(0, 1, width // 4)
    rows, columns = (jnp.arange(n)[:, None] * rates for n in (h, w))
    waves = [f(a) for a in (rows[:, None], columns[None]) for f in (jnp.sin, jnp.cos)]
    return jnp.concatenate([jnp.broadcast_to(a, (h, w, width // 4)) for a in waves], axis=-1)


@model("linen", "(b, 16*h, 16*w, 3)")
def vision_transformer() -> Built:
    """ViT-S/16 with 6 of its 12 blocks; batch, height and width are open."""
    net = _ViT()
    x = normal(2, 64, 48, 3)
    calls = [(normal(1, 96, 64, 3),), (normal(3, 32, 80, 3),)]
    return Built(net.apply, _variables(net, x), (x,), calls)


class _VAE(nn.Module):
    """Images to a distribution of 64 latent numbers, and a sample of these back to images."""

    latent: int = 64

    @nn.compact
    def __call__(self, images: Any, key: Any) -> dict[str, Any]:
        x = images
        for channels in (32, 64, 128):
            x = nn.gelu(nn.Conv(channels, (3, 3), (2, 2))(x))
        x = x.reshape(x.shape[0], -1)
        mean, log_var = jnp.split(nn.Dense(2 * self.latent, name="encoded")(x), 2, axis=-1)
        z = mean + jnp.exp(log_var / 2) * jax.random.normal(key, mean.shape)
        x = nn.Dense(4 * 4 * 128, name="decoded")(z).reshape(-1, 4, 4, 128)
        for channels in (64, 32):
            x = nn.gelu(nn.ConvTranspose(channels, (3, 3), (2, 2))(x))
        x = nn.sigmoid(nn.ConvTranspose(3, (3, 3), (2, 2), name="pixels")(x))
        divergence = 0.5 * (mean**2 + jnp.exp(log_var) - 1 - log_var).sum(axis=-1)
        error = ((x - images) ** 2).sum(axis=(1, 2, 3))
        return {"images": x, "divergence": divergence, "error": error}


@model("linen", "(b, 32, 32, 3)", None)
def vae() -> Built:
    """A convolutional VAE that draws its latent numbers with a key that the caller gives."""
    net = _VAE()
    x, key = normal(2, 32, 32, 3), jax.random.key(0)
    calls = [(normal(b, 32, 32, 3), jax.random.key(b)) for b in (1, 5)]
    return Built(net.apply, _variables(net, x, key), (x, key), calls)
