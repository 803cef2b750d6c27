"""Halves, strides, windows, splits, rolls and top_k."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import provable, requires

EVEN = "mod(b, 2) == 0"


@requires(EVEN, of=("(b,)",), why="stacks b // 2 and b - b // 2 elements")
def stack_halves(x: Any) -> Any:
    half = x.shape[0] // 2
    return jnp.stack([x[:half], x[half:]])


@requires(EVEN, of=("(b,)",), stricter=True, why="adds halves; at 1 and 3 a half broadcasts")
def add_halves(x: Any) -> Any:
    half = x.shape[0] // 2
    return x[:half] + x[half:]


@requires("b >= 2", of=("(b,)",), stricter=True, why="the sign of the index -(b // 2)")
def fold_ends(x: Any) -> Any:
    half = x.shape[0] // 2
    return x[:half] + x[-half:]


@requires(EVEN, of=("(b, 3)",), why="stacks ceil(b / 2) and b // 2 rows")
def stack_even_and_odd(x: Any) -> Any:
    return jnp.stack([x[::2], x[1::2]], axis=1)


@requires(EVEN, of=("(b,)",), stricter=True, why="adds ceil(b / 2) and b // 2; 1 broadcasts")
def add_even_and_odd(x: Any) -> Any:
    return x[::2] + x[1::2]


@requires("mod(b, 3) == 0", of=("(b,)",), why="stacks three strides of 3")
def stack_three_strides(x: Any) -> Any:
    return jnp.stack([x[0::3], x[1::3], x[2::3]])


@requires(EVEN, of=("(b, 4)",), why="jnp.split into two")
def split_in_two(x: Any) -> Any:
    gate, value = jnp.split(x, 2)
    return jax.nn.sigmoid(gate) * value


@requires("mod(c, 3) == 0", of=("(2, c)",), why="hsplit into three")
def hsplit_in_three(x: Any) -> Any:
    query, key, value = jnp.hsplit(x, 3)
    return query * key + value


@requires("mod(c, 2) == 0", of=("(b, c)",), why="a gated unit over the last dimension")
def gated_linear_unit(x: Any) -> Any:
    return jax.nn.glu(x, axis=-1)


@requires("b >= 5", of=("(b,)",), why="top_k of 5")
def top_five(x: Any) -> Any:
    values, indices = lax.top_k(x, 5)
    return values, indices


@requires("v >= 4", of=("(b, v)",), why="top_k of 4 in each row")
def top_four_logits(logits: Any) -> Any:
    values, indices = lax.top_k(logits, 4)
    return jax.nn.softmax(values), indices


@requires("b >= 6", of=("(b,)",), why="cut at 2 and 6, the middle beside four numbers")
def split_at_places(x: Any) -> Any:
    head, middle, tail = jnp.split(x, [2, 6])
    return head * 2, jnp.stack([middle, jnp.arange(4.0)]), tail.sum()


@requires("b >= 4", of=("(b, 3)",), why="a slice of 4 rows at a place that is data")
def window_at(x: Any) -> Any:
    return lax.dynamic_slice_in_dim(x, jnp.argmax(x[:, 0]), 4)


@requires("b >= 3", of=("(b,)",), stricter=True, why="b - 2 windows of 3; below, vmap has none")
def sliding_windows(x: Any) -> Any:
    starts = jnp.arange(x.shape[0] - 2)
    return jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 3))(starts)


@requires("b >= 3", of=("(b,)",), why="slices that end at b - 3")
def moving_average(x: Any) -> Any:
    n = x.shape[0]
    return sum(lax.slice_in_dim(x, i, n - 3 + i) for i in range(4)) / 4


@requires("b >= 3", of=("(b,)",), why="x[3 - 1] by lax.index_in_dim")
def third_element(x: Any) -> Any:
    return x - lax.index_in_dim(x, 2, keepdims=False)


@requires("b >= 7", of=("(b,)",), why="the last seven by lax.slice")
def last_week(x: Any) -> Any:
    n = x.shape[0]
    return lax.slice(x, (n - 7,), (n,)).mean()


@requires("b >= 4", of=("(b,)",), why="the last 4 added to a constant of 4")
def last_four(x: Any) -> Any:
    return jnp.stack([x[-4:], jnp.arange(4.0)])


@requires("b >= 2", of=("(b, 3)",), why="the first row with the last ones: b - 1 of both")
def update_rows(x: Any) -> Any:
    return lax.dynamic_update_slice(x, jnp.ones((2, 3)), (0, 0))


@provable("(b,)", why="even and odd places, together b elements")
def evens_then_odds(x: Any) -> Any:
    return jnp.concatenate([x[::2], x[1::2]]) + x


@provable("(b,)", why="three strides, together b elements")
def group_by_remainder(x: Any) -> Any:
    return jnp.concatenate([x[0::3], x[1::3], x[2::3]]) * x


@requires("b <= 10", of=("(b,)",), why="a table of ten, cut to b by lax.slice")
def rows_of_a_table(x: Any) -> Any:
    return x * lax.slice_in_dim(jnp.arange(10.0), 0, x.shape[0])


@requires("b >= 2", of=("(b,)",), why="lax.slice from 1 to b - 1")
def interior(x: Any) -> Any:
    return lax.slice_in_dim(x, 1, x.shape[0] - 1) * 2


@provable("(b,)", why="ceil(b / 2) is b - b // 2")
def evens_beside_second_half(x: Any) -> Any:
    return jnp.stack([x[::2], x[x.shape[0] // 2 :]])


@provable("(b,)", why="every third from 2 on: b // 3 elements")
def thirds_beside_start(x: Any) -> Any:
    return jnp.stack([x[2::3], x[: x.shape[0] // 3]])


@provable("(n,)", why="the first n of n * (n + 1) / 2")
def triangular_prefix(x: Any) -> Any:
    n = x.shape[0]
    return x * lax.slice_in_dim(jnp.arange(n * (n + 1) // 2), 0, n)


@requires("b >= 5", of=("(b,)",), why="x[2:5] beside three numbers")
def three_from_two(x: Any) -> Any:
    return jnp.stack([x[2:5], jnp.arange(3.0)])


@requires("b >= 4", of=("(b,)",), why="partitioned at place 3")
def fourth_smallest(x: Any) -> Any:
    return jnp.partition(x, 3)[:3].sum()


@requires("b >= 3", of=("(b,)",), why="deletes the element at 2")
def without_the_third(x: Any) -> Any:
    return jnp.delete(x, 2)


@requires("b >= 2", of=("(b,)",), why="a gradient of differences wants two points")
def slope(x: Any) -> Any:
    return jnp.gradient(x)
