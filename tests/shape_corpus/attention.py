"""Attention: heads, chunks, windows, rotary halves, relative positions, caches."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import impossible, provable, requires, weights


def attend(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """Over (..., length, width)."""
    scores = jnp.einsum("...qd,...kd->...qk", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores), value)


def attend_plainly(query: Any, key: Any, value: Any) -> Any:
    scores = jnp.einsum("...qd,...kd->...qk", query, key)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores), value)


@requires("mod(d, 8) == 0", of=("(b, s, d)",), why="heads of width 8: d // 8 of them")
def heads_of_width_eight(x: Any) -> Any:
    b, s, d = x.shape
    heads = x.reshape(b, s, -1, 8).swapaxes(1, 2)
    return attend(heads, heads, heads).swapaxes(1, 2).reshape(b, s, d)


@requires("mod(d, 4) == 0", of=("(b, s, d)",), why="4 heads of a width left to -1")
def four_heads(x: Any) -> Any:
    b, s, _ = x.shape
    heads = x.reshape(b, s, 4, -1).swapaxes(1, 2)
    return attend_plainly(heads, heads, heads).swapaxes(1, 2).reshape(x.shape)


@requires("mod(h, k) == 0", of=("(s, h, 2)", "(s, k, 2)"), why="h // k query heads share a key")
def grouped_queries(queries: Any, keys: Any) -> Any:
    s, _, d = queries.shape
    k = keys.shape[1]
    grouped = queries.reshape(s, k, -1, d)
    return jnp.einsum("qkgd,skd->kgqs", grouped, keys)


@requires("mod(d, 2) == 0", of=("(s, d)",), stricter=True, why="rotary: d // 2 frequencies, twice")
def rotary_by_halves(x: Any) -> Any:
    s, d = x.shape
    angles = jnp.outer(jnp.arange(s), 1.0 / (1 + jnp.arange(d // 2)))
    angles = jnp.concatenate([angles, angles], axis=-1)
    turned = jnp.concatenate([-x[:, d // 2 :], x[:, : d // 2]], axis=-1)
    return jnp.stack([x, turned]) * jnp.stack([jnp.cos(angles), jnp.sin(angles)])


@requires("mod(d, 2) == 0", of=("(s, d)",), why="rotary over interleaved pairs")
def rotary_by_pairs(x: Any) -> Any:
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([-odd, even], axis=-1).reshape(x.shape)


@provable("(s, 4)", why="chunks of 8 of a padded sequence, cut back to s")
def chunked_attention(x: Any) -> Any:
    s, d = x.shape
    chunks = jnp.pad(x, ((0, -s % 8), (0, 0))).reshape(-1, 8, d)
    mask = (jnp.arange(s + -s % 8) < s).reshape(-1, 1, 8)
    return attend(chunks, chunks, chunks, mask).reshape(-1, d)[:s]


@provable("(b, s, 4)", why="each padded chunk sees the one before it")
def chunks_look_back(x: Any) -> Any:
    b, s, d = x.shape
    chunks = jnp.pad(x, ((0, 0), (0, -s % 4), (0, 0))).reshape(b, -1, 4, d)
    before = jnp.pad(chunks, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]
    both = jnp.concatenate([before, chunks], axis=2)
    out = attend(chunks, both, both)
    return out.reshape(b, -1, d)[:, :s] + x


@requires("mod(s, 4) == 0", of=("(s, 3)",), why="windows of 4, not padded")
def windowed_attention(x: Any) -> Any:
    windows = x.reshape(-1, 4, 3)
    return attend(windows, windows, windows).reshape(x.shape)


@requires("mod(s, 2) == 0", of=("(b, s, 3)",), why="windows of 2, shifted by one and rolled back")
def shifted_windows(x: Any) -> Any:
    b, s, d = x.shape
    windows = jnp.roll(x, -1, axis=1).reshape(b, -1, 2, d)
    return jnp.roll(attend(windows, windows, windows).reshape(b, s, d), 1, axis=1)


@requires("s <= 12", of=("(b, s, 4)",), why="a table of 12 positions, cut to s")
def learned_positions(x: Any) -> Any:
    table = jnp.asarray(weights(12, 4))
    return x + lax.slice_in_dim(table, 0, x.shape[1], axis=0)


@requires("s <= 16", of=("(s, 4)",), why="biases of relative positions from -15 to 15")
def relative_biases(x: Any) -> Any:
    s = x.shape[0]
    biases = lax.slice(jnp.asarray(weights(31)), (16 - s,), (15 + s,))
    rows = jnp.arange(s)
    return x @ x.T + biases[rows[:, None] - rows[None, :] + s - 1]


@requires("m >= n", of=("(m, 4)", "(n, 4)"), why="new keys must fit into the cache")
def write_to_cache(cache: Any, keys: Any) -> Any:
    return lax.dynamic_update_slice(cache, keys, (1, 0))


@requires("k >= q", of=("(q, 4)", "(k, 4)"), why="the last q of k positions are the queries'")
def causal_with_cache(query: Any, key: Any) -> Any:
    q, k = query.shape[0], key.shape[0]
    positions = lax.slice(jnp.arange(k), (k - q,), (k,))
    return attend(query, key, key, positions[:, None] >= jnp.arange(k)[None, :])


@provable("(s, 3)", why="queries at every second place, ceil(s / 2) twice against s")
def strided_queries(x: Any) -> Any:
    even, odd = attend(x[::2], x, x), attend(x[1::2], x, x)
    return jnp.concatenate([even, odd]) - x


@provable("(s, 4)", why="block sums over a padded length beside a strided slice")
def compressed_keys(x: Any) -> Any:
    s, d = x.shape
    keys = jnp.pad(x, ((0, -s % 3), (0, 0))).reshape(-1, 3, d).mean(axis=1)
    values = x[::3]
    return attend_plainly(x, keys, values)


@provable("(s, 4)", why="a scan over padded blocks of keys (online softmax)")
def online_softmax(x: Any) -> Any:
    s, d = x.shape
    blocks = jnp.pad(x, ((0, -s % 4), (0, 0))).reshape(-1, 4, d)
    valid = (jnp.arange(s + -s % 4) < s).reshape(-1, 4)

    def step(carry: Any, block: Any) -> Any:
        keys, mask = block
        total, weighted = carry
        scores = jnp.exp(jnp.tanh(x @ keys.T)) * mask
        return (total + scores.sum(1), weighted + scores @ keys), None

    (total, weighted), _ = lax.scan(step, (jnp.zeros(s), jnp.zeros((s, d))), (blocks, valid))
    return weighted / total[:, None]


@requires("a == b", of=("(a, 4)", "(b, 3)"), why="as many keys as values")
def keys_and_values(keys: Any, values: Any) -> Any:
    return jax.nn.softmax(jnp.ones((2, 4)) @ keys.T) @ values


@impossible("(s, d)", obstacle="needs a number", why="math.sqrt of the width")
def scaled_by_math_sqrt(x: Any) -> Any:
    return jax.nn.softmax(x @ x.T / math.sqrt(x.shape[1])) @ x
