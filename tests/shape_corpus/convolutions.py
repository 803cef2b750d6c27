"""Convolutions and pooling of sizes that strides and windows do not divide."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.shape_corpus.shape_case import provable, requires, weights

NWC = ("NWC", "WIO", "NWC")
NHWC = ("NHWC", "HWIO", "NHWC")
NDHWC = ("NDHWC", "DHWIO", "NDHWC")


def conv1d(x: Any, width: int, outputs: int, **options: Any) -> Any:
    kernel = weights(width, x.shape[-1], outputs)
    options = {"window_strides": (1,), "padding": "SAME", **options}
    return lax.conv_general_dilated(x, kernel, dimension_numbers=NWC, **options)


def conv2d(x: Any, width: int, outputs: int, stride: int = 1, padding: Any = "SAME") -> Any:
    kernel = weights(width, width, x.shape[-1], outputs)
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=NHWC)


def max_pool(x: Any, window: int, stride: int, padding: str) -> Any:
    """Over dimension 1 of a signal (batch, length, channels)."""
    return lax.reduce_window(x, -np.inf, lax.max, (1, window, 1), (1, stride, 1), padding)


@provable("(1, n, 2)", why="a strided SAME convolution, and every second sample")
def strided_conv_and_subsampled_skip(x: Any) -> Any:
    return conv1d(x, 3, 2, window_strides=(2,)) + x[:, ::2]


@provable("(1, n, 2)", why="pooling in pairs, and a strided skip")
def pooled_and_subsampled_skip(x: Any) -> Any:
    return max_pool(x, 2, 2, "SAME") - x[:, ::2]


@provable("(1, n, 2)", why="two strides of 2 are one of 4")
def two_strides_are_one(x: Any) -> Any:
    twice = max_pool(max_pool(x, 2, 2, "SAME"), 2, 2, "SAME")
    return twice - max_pool(x, 4, 4, "SAME")


@provable("(1, n, 2)", why="three convolutions of stride 2, and every eighth sample")
def three_strides_and_skip(x: Any) -> Any:
    y = x
    for _ in range(3):
        y = conv1d(y, 3, 2, window_strides=(2,))
    return y + x[:, ::8]


@provable("(1, n, 2)", why="kernel 3, stride 2, padding 1, and the samples kept by [::2]")
def explicit_padding_stride_two(x: Any) -> Any:
    return conv1d(x, 3, 2, window_strides=(2,), padding=[(1, 1)]) + x[:, ::2]


@provable("(1, h, w, 2)", why="a U-Net on an image padded to a multiple of 4")
def unet_on_padded_image(image: Any) -> Any:
    _, h, w, _ = image.shape
    padded = jnp.pad(image, ((0, 0), (0, -h % 4), (0, -w % 4), (0, 0)))
    small = conv2d(conv2d(padded, 3, 2, stride=2), 3, 2, stride=2)
    up = jnp.repeat(jnp.repeat(small, 4, axis=1), 4, axis=2)
    return (padded + up)[:, :h, :w]


@provable("(1, n, 2)", why="SAME pooling beside a convolution padded by 1, both of stride 2")
def pool_beside_conv(x: Any) -> Any:
    pooled = max_pool(x, 3, 2, "SAME")
    convolved = conv1d(x, 3, 2, window_strides=(2,), padding=[(1, 1)])
    return jnp.concatenate([pooled, convolved], axis=-1)


@provable("(1, n, 2)", why="stride 3 with padding 1 and window 3: ceil(n / 3)")
def stride_three_beside_slices(x: Any) -> Any:
    return conv1d(x, 3, 2, window_strides=(3,), padding=[(1, 1)]) + x[:, ::3]


@requires("n >= 5", of=("(1, n, 2)",), why="VALID, window 5: no output below 5")
def valid_then_mean(x: Any) -> Any:
    y = conv1d(x, 5, 3, padding="VALID")
    return lax.dynamic_slice_in_dim(y, 0, 1, axis=1) / 5


@requires("n >= 2", of=("(1, n, 2)",), why="a residual from 1 to n - 1 for a VALID conv")
def valid_with_cut_residual(x: Any) -> Any:
    y = conv1d(x, 3, 2, padding="VALID")
    return y + lax.slice_in_dim(x, 1, x.shape[1] - 1, axis=1)


@requires("mod(n, 2) == 0", of=("(1, n, 2)",), why="down by 2 and up by 2 gives n back")
def down_and_up(x: Any) -> Any:
    small = conv1d(x, 3, 2, window_strides=(2,))
    return jnp.concatenate([x, jnp.repeat(small, 2, axis=1)], axis=-1)


@requires("mod(n, 4) == 0", of=("(1, n, 2)",), why="two levels down and up")
def two_levels_down_and_up(x: Any) -> Any:
    small = max_pool(max_pool(x, 2, 2, "VALID"), 2, 2, "VALID")
    return jnp.concatenate([x, jnp.repeat(small, 4, axis=1)], axis=-1)


@requires(
    "mod(h, 4) == 0",
    "mod(w, 4) == 0",
    of=("(1, h, w, 2)",),
    why="a U-Net of two levels with concatenated skips",
)
def unet(image: Any) -> Any:
    def up(x: Any) -> Any:
        return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)

    level1 = conv2d(image, 3, 2, stride=2)
    level2 = conv2d(level1, 3, 2, stride=2)
    level1 = conv2d(jnp.concatenate([level1, up(level2)], axis=-1), 3, 2)
    return jnp.concatenate([image, up(level1)], axis=-1)


@requires("mod(n, 2) == 0", of=("(1, n, 2)",), why="an autoencoder's loss against its input")
def autoencoder(x: Any) -> Any:
    code = conv1d(x, 4, 3, window_strides=(2,))
    decoded = lax.conv_transpose(code, weights(4, 3, 2), (2,), "SAME", dimension_numbers=NWC)
    return jnp.stack([decoded, x])


@requires("mod(n, 3) == 0", of=("(b, n, 2)",), why="pooling as a reshape to (n // 3, 3)")
def pool_by_reshape(x: Any) -> Any:
    b, _, c = x.shape
    return x.reshape(b, -1, 3, c).max(axis=2)


@requires("c == 3", of=("(b, 8, 8, c)",), why="a kernel for three channels")
def kernel_of_three_channels(images: Any) -> Any:
    return lax.conv_general_dilated(
        images, weights(3, 3, 3, 4), (2, 2), "SAME", dimension_numbers=NHWC
    )


@requires("mod(c, 2) == 0", of=("(1, 6, c)",), why="two groups of channels")
def grouped_conv(x: Any) -> Any:
    c = x.shape[-1]
    kernel = jnp.ones((3, c // 2, 4))
    return lax.conv_general_dilated(
        x, kernel, (1,), "SAME", dimension_numbers=NWC, feature_group_count=2
    )


@requires("n >= 4", of=("(1, n, 2)",), why="a pooled window of 4, squeezed of its length")
def first_window(x: Any) -> Any:
    pooled = max_pool(x, 4, 4, "VALID")
    return lax.index_in_dim(pooled, 0, axis=1, keepdims=False)


@provable("(1, h, w, 2)", why="an image, strided by a convolution and by slices")
def image_beside_its_quarter(image: Any) -> Any:
    return jnp.concatenate([conv2d(image, 3, 2, stride=2), image[:, ::2, ::2]], axis=-1)


@provable("(1, d, 4, 4, 1)", why="a volume of which every second layer is kept")
def volume_beside_its_half(x: Any) -> Any:
    kernel = weights(3, 3, 3, 1, 1)
    small = lax.conv_general_dilated(x, kernel, (2, 1, 1), "SAME", dimension_numbers=NDHWC)
    return small + x[:, ::2]


@provable("(1, n, 2)", why="stride 4 over a padded signal, VALID, beside x[::4]")
def patches_of_padded_signal(x: Any) -> Any:
    padded = jnp.pad(x, ((0, 0), (0, -x.shape[1] % 4), (0, 0)))
    return conv1d(padded, 4, 2, window_strides=(4,), padding="VALID") + x[:, ::4]


@provable("(1, n, 2)", why="dilated by 2 and padded by 2, stride 2, beside x[::2]")
def dilated_and_strided(x: Any) -> Any:
    y = conv1d(x, 3, 2, window_strides=(2,), padding=[(2, 2)], rhs_dilation=(2,))
    return y * x[:, ::2]


@provable("(1, n, 2)", why="a transposed convolution of a padded signal's half")
def autoencoder_of_padded(x: Any) -> Any:
    n = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (0, n % 2), (0, 0)))
    code = conv1d(padded, 4, 3, window_strides=(2,))
    decoded = lax.conv_transpose(code, weights(4, 3, 2), (2,), "SAME", dimension_numbers=NWC)
    return (decoded - padded)[:, :n]


@requires("mod(n, 2) == 1", of=("(1, n, 2)",), why="halved upwards, then 2 * m - 1 places")
def odd_autoencoder(x: Any) -> Any:
    code = conv1d(x, 3, 2, window_strides=(2,), padding=[(1, 1)])
    decoded = conv1d(code, 3, 2, padding=[(1, 1)], lhs_dilation=(2,))
    return jnp.stack([decoded, x])
