"""Sizes that are equal but written differently, where JAX wants equal types."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import provable, requires


def pool(x: Any, window: int = 2) -> Any:
    """Sums over windows; ceil(n / window) of them, the last may be cut."""
    return lax.reduce_window(x, 0.0, lax.add, (window,), (window,), "SAME")


@provable("(b,)", why="the branches of a cond have ceil(b / 2) elements")
def cond_pools_or_subsamples(x: Any) -> Any:
    return lax.cond(x[0] > 0, lambda: pool(x), lambda: x[::2])


@provable("(b,)", why="the branches of a switch have ceil(b / 3) elements")
def switch_of_three(x: Any) -> Any:
    padded = jnp.pad(x, (0, -x.shape[0] % 3))
    return lax.switch(
        jnp.argmax(x) % 3,
        [lambda: pool(x, 3), lambda: x[::3], lambda: padded[::3]],
    )


@provable("(b, 3)", why="the carry of a scan starts as x[::2]")
def scan_from_subsample(x: Any) -> Any:
    def step(carry: Any, column: Any) -> Any:
        return pool(column) + carry.sum(), carry[0]

    return lax.scan(step, x[::2, 0], x.T)


@provable("(b,)", why="the state of a while loop starts as x[::2]")
def loop_from_subsample(x: Any) -> Any:
    def body(state: Any) -> Any:
        step, y = state
        return step + 1, pool(x) * y.mean()

    return lax.while_loop(lambda state: state[0] < 3, body, (0, x[::2]))[1]


@provable("(b,)", why="vmapped over pooled and subsampled elements")
def vmap_over_both(x: Any) -> Any:
    return jax.vmap(lambda low, high: jnp.maximum(low, high) - low)(x[::2], pool(x))


@provable("(b,)", why="mapped over a tuple of both")
def map_over_both(x: Any) -> Any:
    return lax.map(lambda pair: pair[0] * pair[1], (pool(x), x[::2]))


@provable("(b,)", why="lax.select between both")
def select_between(x: Any) -> Any:
    return lax.select(x[::2] > 0, pool(x), x[::2])


@provable("(b,)", why="jnp.where with both")
def where_between(x: Any) -> Any:
    return jnp.where(x[::2] > 0, pool(x), 0)


@provable("(b,)", why="every second element set from the pooled ones")
def set_every_second(x: Any) -> Any:
    return x.at[::2].set(pool(x))


@provable("(b,)", why="every second element gets the pooled ones added")
def add_to_every_second(x: Any) -> Any:
    return x.at[::2].add(pool(x)) - x


@provable("(b, 2)", why="broadcast to ceil(b / 2) by 3")
def broadcast_pooled(x: Any) -> Any:
    return jnp.broadcast_to(pool(x[:, 0])[:, None], ((x.shape[0] + 1) // 2, 3))


@provable("(b,)", why="the inner product of both")
def inner_product(x: Any) -> Any:
    return x[::2] @ pool(x)


@provable("(b,)", why="an einsum of both")
def weighted_sum(x: Any) -> Any:
    return jnp.einsum("i,i->i", pool(x), x[::2])


@provable("(b,)", why="a vjp pulls the pooled values back through x[::2]")
def pull_back_pooled(x: Any) -> Any:
    y, pull_back = jax.vjp(lambda v: jnp.sin(v[::2]), x)
    return y, pull_back(pool(x))


@provable("(b,)", why="segment ids by arange((b + 1) // 2), the data pooled")
def segments_of_pooled(x: Any) -> Any:
    places = jnp.arange((x.shape[0] + 1) // 2)
    return jax.ops.segment_sum(pool(x), places // 2, num_segments=3)


@requires("mod(b, 2) == 0", of=("(b,)",), why="the branches of a cond: halves of b")
def cond_between_halves(x: Any) -> Any:
    half = x.shape[0] // 2
    return lax.cond(x[0] > 0, lambda: x[:half], lambda: x[half:])


@requires("mod(b, 2) == 0", of=("(b,)",), why="the carry of a scan: first evens, then odds")
def scan_evens_to_odds(x: Any) -> Any:
    return lax.scan(lambda carry, _: (x[1::2] * 2, carry.sum()), x[::2], None, length=2)


@requires("b >= 4", of=("(b, 2)",), stricter=True, why="lax.map in batches of 4: a scan of b // 4")
def map_in_batches_of_four(x: Any) -> Any:
    return lax.map(jnp.sin, x, batch_size=4)
