"""Functions that JAX exports with a plain specification, but not their VJPs.

Labels, requirements and reasons are the gradient's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import impossible, provable, requires, weights

EVEN = "mod(b, 2) == 0"
PADDING = "JAX hands its gradient the padding {}, which must be a number"


def with_gradient(rule: Any) -> Any:
    """A function that multiplies by 2, whose cotangent goes through `rule` on its way back."""

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return 2 * x

    def forward(x: Any) -> Any:
        return double(x), None

    def backward(_: None, g: Any) -> Any:
        return (2 * rule(g),)

    double.defvjp(forward, backward)
    return double


@provable("(b,)", of_gradient=True, why="the cotangent is scaled in padded blocks of 4")
def gradient_scaled_in_blocks(x: Any) -> Any:
    def rule(g: Any) -> Any:
        n = g.shape[0]
        blocks = jnp.pad(g, (0, -n % 4)).reshape(-1, 4)
        scale = jnp.abs(blocks).max(axis=1, keepdims=True) + 1
        return (blocks / scale).reshape(-1)[:n]

    return jnp.sin(with_gradient(rule)(x))


@provable("(b,)", of_gradient=True, why="the cotangent's even places, and its pooled pairs")
def gradient_smoothed_in_pairs(x: Any) -> Any:
    def rule(g: Any) -> Any:
        pooled = lax.reduce_window(g, 0.0, lax.add, (2,), (2,), "SAME")
        return jnp.repeat((pooled + g[::2]) / 2, 2)[: g.shape[0]]

    return with_gradient(rule)(x) ** 2


@provable("(b, 3)", of_gradient=True, why="the cotangent's evens and odds, joined and added to it")
def gradient_shuffled(x: Any) -> Any:
    return with_gradient(lambda g: g + jnp.concatenate([g[::2], g[1::2]]))(x)


@requires(EVEN, of=("(b,)",), of_gradient=True, why="the cotangent is averaged over two halves")
def gradient_of_halves(x: Any) -> Any:
    def rule(g: Any) -> Any:
        halves = g.reshape(2, -1)
        return (halves + halves.mean(axis=0)).reshape(g.shape)

    return jnp.cos(with_gradient(rule)(x))


@requires("b >= 3", of=("(b,)",), of_gradient=True, why="the three largest of the cotangent stay")
def sparse_gradient(x: Any) -> Any:
    def rule(g: Any) -> Any:
        smallest = lax.top_k(jnp.abs(g), 3)[0][2]
        return jnp.where(jnp.abs(g) >= smallest, g, 0)

    return with_gradient(rule)(x) * x


@requires(
    "b <= 12", of=("(b,)",), of_gradient=True, why="a schedule of 12 weights for the cotangent"
)
def scheduled_gradient(x: Any) -> Any:
    def rule(g: Any) -> Any:
        return g * lax.slice_in_dim(jnp.asarray(weights(12)), 0, g.shape[0])

    return with_gradient(rule)(x)


@requires(
    "n >= 2",
    of=("(1, n, 2)",),
    of_gradient=True,
    stricter=True,
    why=PADDING.format("max(n - 2, 0) - n + 2"),
)
def valid_convolution(x: Any) -> Any:
    return lax.conv_general_dilated(
        x, weights(3, 2, 2), (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
    )


@requires(
    "mod(n, 2) == 0",
    of=("(1, n, 2)",),
    of_gradient=True,
    stricter=True,
    why=PADDING.format("- 2*floordiv(n - 1, 2) + n"),
)
def strided_convolution(x: Any) -> Any:
    return lax.conv_general_dilated(
        x, weights(3, 2, 2), (2,), [(1, 1)], dimension_numbers=("NWC", "WIO", "NWC")
    )


@impossible(
    "(b,)", of_gradient=True, obstacle="no size fits", why="a cotangent of b + 1 for b elements"
)
def gradient_of_wrong_size(x: Any) -> Any:
    return with_gradient(lambda g: jnp.concatenate([g, jnp.zeros(1)]))(x)


@impossible("(b,)", of_gradient=True, obstacle="few sizes fit", why="mixes the cotangent by 4 by 4")
def gradient_of_four(x: Any) -> Any:
    return with_gradient(lambda g: weights(4, 4) @ g)(x)


@impossible("(b,)", of_gradient=True, obstacle="needs a number", why="a product tree of log2(b)")
def cumulative_product(x: Any) -> Any:
    return jnp.cumprod(x)


@impossible("(b, 3)", of_gradient=True, obstacle="needs a number", why="the others' product, by b")
def product_of_rows(x: Any) -> Any:
    return jnp.prod(x, axis=0)
