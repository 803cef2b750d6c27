"""Functions that no constraint on the sizes can help."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.shape_corpus.shape_case import impossible, weights


@impossible("(b,)", obstacle="no size fits", why="stacks b and b + 1")
def stack_with_one_more(x: Any) -> Any:
    return jnp.stack([x, jnp.concatenate([x, jnp.zeros(1)])])


@impossible("(b,)", obstacle="no size fits", why="b elements in rows of b + 1")
def reshape_to_one_more(x: Any) -> Any:
    return x.reshape(-1, x.shape[0] + 1)


@impossible("(b,)", obstacle="no size fits", why="halves of 2 * b + 1")
def split_odd_length(x: Any) -> Any:
    return jnp.split(jnp.concatenate([x, x, jnp.zeros(1)]), 2)


@impossible("(b,)", obstacle="no size fits", why="the largest b + 1 of b")
def top_too_many(x: Any) -> Any:
    return lax.top_k(x, x.shape[0] + 1)


@impossible("(b, 2)", obstacle="no size fits", why="a window of b + 3 rows out of b")
def window_too_large(x: Any) -> Any:
    return lax.dynamic_slice_in_dim(x, 0, x.shape[0] + 3)


@impossible("(b, 3)", obstacle="no size fits", why="the product's inner sizes are b and b + 2")
def product_of_mismatched(x: Any) -> Any:
    return x.T @ jnp.ones((x.shape[0] + 2, 4))


@impossible("(b,)", obstacle="no size fits", why="2 * b + 3 elements in rows of 2")
def odd_length_in_pairs(x: Any) -> Any:
    return jnp.pad(x, (1, x.shape[0] + 2)).reshape(-1, 2)


@impossible("(a,)", "(b,)", obstacle="no size fits", why="a + b beside a + b + 1")
def joined_beside_longer(x: Any, y: Any) -> Any:
    return jnp.stack([jnp.concatenate([x, y]), jnp.concatenate([y, x, jnp.ones(1)])])


@impossible("(b,)", obstacle="no size fits", why="pads by -b")
def cut_all_and_more(x: Any) -> Any:
    return lax.pad(x, 0.0, [(0, -x.shape[0] - 1, 0)])


@impossible("(b,)", obstacle="few sizes fit", why="beside five numbers: b = 5 alone")
def beside_five(x: Any) -> Any:
    return jnp.stack([x, jnp.arange(5.0)])


@impossible("(b,)", obstacle="few sizes fit", why="added to four: b = 4, or 1 by broadcasting")
def plus_four(x: Any) -> Any:
    return x + jnp.arange(4.0)


@impossible("(b,)", obstacle="few sizes fit", why="weights of 6 rows: b = 6 alone")
def weights_of_six(x: Any) -> Any:
    return x @ weights(6, 2)


@impossible("(b,)", obstacle="few sizes fit", why="b squared beside b: b = 1 alone")
def square_beside_side(x: Any) -> Any:
    return jnp.stack([jnp.outer(x, x).reshape(-1), x])


@impossible("(b,)", obstacle="few sizes fit", why="b <= 3 and b >= 3")
def exactly_three(x: Any) -> Any:
    return lax.slice_in_dim(jnp.arange(3.0), 0, x.shape[0]), lax.dynamic_slice_in_dim(x, 0, 3)


@impossible("(b, 2)", obstacle="needs a number", why="range(b)")
def loop_over_rows(x: Any) -> Any:
    total = jnp.zeros(2)
    for i in range(x.shape[0]):
        total = total * 0.5 + x[i]
    return total


@impossible("(b, 2)", obstacle="needs a number", why="iterating over an array")
def unpack_rows(x: Any) -> Any:
    return sum(row.max() for row in x)


@impossible("(b,)", obstacle="needs a number", why="int(log2(b)) levels")
def levels_of_halving(x: Any) -> Any:
    for _ in range(int(math.log2(x.shape[0]))):
        x = x + jnp.roll(x, 1)
    return x


@impossible("(b,)", obstacle="needs a number", why="a numpy array of b elements")
def numpy_window(x: Any) -> Any:
    return x * np.hanning(x.shape[0])


@impossible("(b,)", obstacle="depends on values", why="as many results as positive elements")
def positive_elements(x: Any) -> Any:
    return x[x > 0]


@impossible("(b,)", obstacle="depends on values", why="as many results as distinct elements")
def distinct_elements(x: Any) -> Any:
    return jnp.unique(x)


@impossible("(b,)", obstacle="depends on values", why="a size read from an array")
def as_many_as_the_first(x: Any) -> Any:
    return jnp.arange(int(jnp.abs(x[0])))


@impossible("(b,)", obstacle="needs a number", why="a scan of b steps, unrolled by 2")
def unrolled_scan(x: Any) -> Any:
    return lax.scan(lambda carry, y: (carry + y, carry), 0.0, x, unroll=2)


@impossible("(b,)", obstacle="needs a number", why="a scan by doubling: log2(b) levels")
def prefix_products(x: Any) -> Any:
    return lax.associative_scan(jnp.multiply, x)


@impossible("(b,)", obstacle="needs a number", why="log2(b) steps of bisection")
def place_in_sorted(x: Any) -> Any:
    return jnp.searchsorted(jnp.sort(x), 0.5)


@impossible("(b,)", obstacle="needs a number", why="three nearly equal parts, planned by numpy")
def three_parts(x: Any) -> Any:
    return jnp.array_split(x, 3)
