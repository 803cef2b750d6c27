"""Small networks of flax.linen."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from tests.shape_corpus.shape_case import provable, requires, weights

# flax does not annotate them.
avg_pool: Any = nn.avg_pool
max_pool: Any = nn.max_pool


def apply(module: nn.Module, x: Any, *shape: int) -> Any:
    """Applies the module, with parameters made for an input of that shape."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, x.dtype))
    return module.apply(jax.tree.map(lambda leaf: weights(*leaf.shape), shapes), x)


@provable("(1, n, 2)", why="flax's avg_pool SAME beside x[::2]")
def average_pool_beside_skip(x: Any) -> Any:
    return avg_pool(x, (3,), (2,), "SAME") + x[:, ::2]


@provable("(1, h, w, 3)", why="a strided flax convolution beside a strided max_pool")
def stem(image: Any) -> Any:
    convolved = apply(nn.Conv(4, (3, 3), (2, 2), padding=((1, 1), (1, 1))), image, 1, 8, 8, 3)
    pooled = max_pool(image, (3, 3), (2, 2), "SAME")
    return jnp.concatenate([convolved, pooled], axis=-1)


@provable("(1, n, 2)", why="Conv and ConvTranspose on a padded signal, cut back")
def padded_autoencoder(x: Any) -> Any:
    n = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (0, -n % 4), (0, 0)))
    code = nn.relu(apply(nn.Conv(4, (4,), (4,), padding="VALID"), padded, 1, 8, 2))
    decoded = apply(nn.ConvTranspose(2, (4,), (4,), padding="VALID"), code, 1, 2, 4)
    return (padded - decoded)[:, :n]


@provable("(s, 4)", why="self-attention in chunks of a padded sequence")
def attention_in_chunks(x: Any) -> Any:
    s, d = x.shape
    chunks = jnp.pad(x, ((0, -s % 4), (0, 0))).reshape(-1, 4, d)
    attention = nn.MultiHeadDotProductAttention(num_heads=2)
    return x + apply(attention, chunks, 1, 4, 4).reshape(-1, d)[:s]


@provable("(b, t, 3)", why="a GRU over every second step, joined with pooled steps")
def recurrent_over_every_second(x: Any) -> Any:
    states = apply(nn.RNN(nn.GRUCell(4)), x[:, ::2], 1, 2, 3)
    return jnp.concatenate([states, max_pool(x, (2,), (2,), "SAME")], axis=-1)


@requires("mod(n, 2) == 0", of=("(1, n, 2)",), why="max_pool VALID, repeated beside its input")
def pool_and_unpool(x: Any) -> Any:
    pooled = max_pool(x, (2,), (2,))
    return jnp.concatenate([x, jnp.repeat(pooled, 2, axis=1)], axis=-1)


@requires("mod(c, 4) == 0", of=("(b, c)",), why="flax's GroupNorm asks whether 4 divides c")
def normalized_groups(x: Any) -> Any:
    return nn.GroupNorm(4, use_bias=False, use_scale=False).apply({}, x)


@requires("mod(n, 4) == 0", of=("(1, n, 2)",), why="a U-Net with ConvTranspose, two levels")
def unet_of_flax(x: Any) -> Any:
    level1 = nn.relu(apply(nn.Conv(3, (3,), (2,)), x, 1, 8, 2))
    level2 = nn.relu(apply(nn.Conv(3, (3,), (2,)), level1, 1, 8, 3))
    up1 = apply(nn.ConvTranspose(3, (2,), (2,)), level2, 1, 2, 3)
    level1 = jnp.concatenate([level1, up1], axis=-1)
    up0 = apply(nn.ConvTranspose(2, (2,), (2,)), level1, 1, 2, 6)
    return jnp.concatenate([x, up0], axis=-1)


@requires("d == 8", of=("(b, d)",), why="flax compares the kernel's shape with the input's")
def dense_layer(x: Any) -> Any:
    return apply(nn.Dense(3), x, 1, 8)
