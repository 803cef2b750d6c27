"""Reshapes with -1, interleaving, groups, scans, gathers and vmapped code."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import provable, requires, weights


@requires("mod(b, 2) == 0", of=("(b, 5, 7)",), why="two halves with the rest left to -1")
def two_rows(x: Any) -> Any:
    return x.reshape(2, -1)


@requires("mod(b, 2) == 0", of=("(b, 15)",), why="6 divides 15 * b for even b only")
def six_columns(x: Any) -> Any:
    return x.reshape(-1, 6)


@requires("mod(b, 6) == 0", of=("(b,)",), why="a matrix of 6 columns")
def to_matrix(x: Any) -> Any:
    return x.reshape(-1, 6).T


@requires("mod(b, 6) == 0", of=("(b,)",), why="two requirements, mod 2 and mod 3, are one of 6")
def by_two_and_by_three(x: Any) -> Any:
    return x.reshape(2, -1).sum(axis=0).sum() + x.reshape(-1, 3).prod(axis=1).sum()


@requires("mod(b, 2) == 0", of=("(b, 3)",), why="consecutive rows are paired")
def pair_rows(x: Any) -> Any:
    return x.reshape(-1, 2, x.shape[1]).swapaxes(1, 2)


@requires("mod(b, 4) == 0", of=("(b, 2)",), why="split among four devices")
def shard_batch(x: Any) -> Any:
    shards = x.reshape(4, -1, 2)
    return jax.vmap(lambda part: part - part.mean(axis=0))(shards).reshape(x.shape)


@requires("mod(d, 4) == 0", of=("(b, d)",), why="group norm of four channels a group")
def group_norm(x: Any) -> Any:
    b, d = x.shape
    groups = x.reshape(b, -1, 4)
    mean, var = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    return ((groups - mean) / jnp.sqrt(var + 1e-5)).reshape(b, d)


@requires("mod(n, 4) == 0", of=("(b, n)",), why="microbatches of accumulation: scan over 4 columns")
def scan_over_chunks(x: Any) -> Any:
    b = x.shape[0]
    chunks = x.reshape(b, -1, 4).swapaxes(0, 1)
    _, sums = lax.scan(lambda c, part: (c + part.sum(1), c), jnp.zeros(b), chunks)
    return sums


@requires("mod(t, 2) == 0", of=("(t, 3)",), why="spectra of halves")
def fft_of_halves(x: Any) -> Any:
    halves = jnp.stack(jnp.split(x, 2))
    return jnp.abs(jnp.fft.fft(halves, axis=-1))


@requires("mod(b, 3) == 0", of=("(b,)",), why="columns dealt out in turn: reshape and transpose")
def deal_out(x: Any) -> Any:
    return x.reshape(-1, 3).T.reshape(x.shape)


@requires("mod(b, 2) == 0", of=("(b,)",), why="vmap over pairs")
def distances_of_pairs(x: Any) -> Any:
    pairs = x.reshape(-1, 2)
    return jax.vmap(lambda pair: jnp.abs(pair[0] - pair[1]))(pairs)


@requires("mod(a*b, 4) == 0", of=("(a, b)",), why="4 must divide the product of both sizes")
def flatten_to_four(x: Any) -> Any:
    return x.reshape(-1, 4)


@requires("mod(b, 8) == 0", of=("(b,)",), why="a butterfly of three levels")
def butterfly(x: Any) -> Any:
    for level in range(3):
        pairs = x.reshape(-1, 2, 2**level)
        x = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
    return x.reshape(-1)


@provable("(b,)", why="evens beside padded odds: b // 2 + b % 2 is ceil(b / 2)")
def pairwise_sums(x: Any) -> Any:
    odds = jnp.pad(x[1::2], (0, x.shape[0] % 2))
    return x[::2] + odds


@provable("(b,)", why="an interleave of ceil(b / 2) and b // 2, cut to b")
def interleave_and_cut(x: Any) -> Any:
    n = x.shape[0]
    evens, odds = x[::2], jnp.pad(x[1::2], (0, n % 2))
    return jnp.stack([evens, odds], axis=1).reshape(-1)[:n] - x


@provable("(b, 3)", why="three levels of a reduction tree")
def tree_sum(x: Any) -> Any:
    for _ in range(3):
        x = jnp.pad(x, ((0, x.shape[0] % 2), (0, 0))).reshape(-1, 2, 3).sum(axis=1)
    return x


@provable("(b,)", why="every second of every second is every fourth")
def strides_compose(x: Any) -> Any:
    return x[::2][::2] + x[::4]


@provable("(b,)", why="two strides of 3 are one of 9")
def strides_of_three_compose(x: Any) -> Any:
    return jnp.stack([x[::3][::3], x[::9]])


@provable("(b,)", why="the first half of the first half has b // 4 elements")
def half_of_half(x: Any) -> Any:
    n = x.shape[0]
    half = x[: n // 2]
    return half[: half.shape[0] // 2] + x[: n // 4]


@provable("(b,)", why="bits packed in bytes, unpacked and cut back", dtypes=("bool",))
def pack_and_unpack(bits: Any) -> Any:
    return jnp.unpackbits(jnp.packbits(bits))[: bits.shape[0]] ^ bits


@provable("(a,)", "(b,)", why="evens and odds of a + b elements")
def shuffle_of_two(x: Any, y: Any) -> Any:
    both = jnp.concatenate([x, y])
    return jnp.concatenate([both[::2], both[1::2]]) * both


@provable("(n,)", "(m,)", why="padded to a multiple of the other's length")
def blocks_of_the_other(x: Any, y: Any) -> Any:
    m = y.shape[0]
    return jnp.pad(x, (0, -x.shape[0] % m)).reshape(-1, m) * y


@requires("b >= 2", of=("(b,)",), stricter=True, why="if b > 1, decided in Python")
def python_branch(x: Any) -> Any:
    if x.shape[0] > 1:
        return x - x.mean()
    return x


@requires("b >= 9", of=("(b,)",), stricter=True, why="min(b, 8) by Python's min asks if 8 < b")
def at_most_eight(x: Any) -> Any:
    return lax.top_k(x, min(x.shape[0], 8))[0].sum()


@requires("d == 8", of=("(b, d)",), why="a layer whose weights take 8")
def dense(x: Any) -> Any:
    return jax.nn.relu(x @ weights(8, 3))


@requires("mod(b, 2) == 0", of=("(b,)",), dtypes=("int16",), why="pairs of int16 seen as int32")
def view_as_wider(x: Any) -> Any:
    return x.view(jnp.int32)


@provable("(h, w)", why="even and odd places of h * w elements")
def evens_then_odds_of_all(x: Any) -> Any:
    flat = x.reshape(-1)
    return jnp.concatenate([flat[::2], flat[1::2]]) + flat
