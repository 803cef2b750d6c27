"""Padding to a multiple, and what is then done in blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import provable, requires


@provable("(b,)", why="-1 in a reshape: mod(-b, 8) + b is a multiple of 8")
def pad_to_multiple(x: Any) -> Any:
    return jnp.pad(x, (0, -x.shape[0] % 8)).reshape(-1, 8)


@provable("(b, 3)", why="-1 in a reshape of the rows")
def pad_rows_to_multiple(x: Any) -> Any:
    n, d = x.shape
    return jnp.pad(x, ((0, -n % 4), (0, 0))).reshape(-1, 4, d).mean(axis=1)


@provable("(b,)", why="n + pad is a multiple of 5, pad written with two remainders")
def pad_by_two_remainders(x: Any) -> Any:
    n = x.shape[0]
    pad = (5 - n % 5) % 5
    return jnp.pad(x, (0, pad)).reshape(-1, 5)


@provable("(b, 4)", why="the padding is split between both ends")
def pad_both_ends(x: Any) -> Any:
    n = x.shape[0]
    total = -n % 16
    left = total // 2
    return jnp.pad(x, ((left, total - left), (0, 0))).reshape(-1, 16, 4)


@provable("(h, w, 3)", why="two padded dimensions are cut into windows")
def pad_image_to_windows(image: Any) -> Any:
    h, w, c = image.shape
    image = jnp.pad(image, ((0, -h % 7), (0, -w % 7), (0, 0)))
    return image.reshape(image.shape[0] // 7, 7, -1, 7, c).swapaxes(1, 2)


@provable("(b,)", why="zeros are appended by a concatenation")
def append_zeros(x: Any) -> Any:
    missing = -x.shape[0] % 10
    return jnp.concatenate([x, jnp.zeros(missing, x.dtype)]).reshape(-1, 10)


@provable("(b,)", why="lax.pad, with padding in front")
def pad_in_front(x: Any) -> Any:
    padded = lax.pad(x, jnp.float32(0), [(-x.shape[0] % 3, 0, 0)])
    return padded.reshape(-1, 3).cumsum(axis=0)


@provable("(b,)", why="the padded blocks are cut back to b rows: ceil(b / 8) * 8 >= b")
def pad_normalize_cut_back(x: Any) -> Any:
    n = x.shape[0]
    blocks = jnp.pad(x, (0, -n % 8)).reshape(-1, 8)
    blocks = blocks - blocks.mean(axis=1, keepdims=True)
    return blocks.reshape(-1)[:n] + x


@provable("(b, 2)", why="the last row repeated, to pairs of rows")
def repeat_last_row_to_pairs(x: Any) -> Any:
    n = x.shape[0]
    return jnp.pad(x, ((0, n % 2), (0, 0)), mode="edge").reshape(-1, 2, 2)


@provable("(b, s)", why="tokens and mask are padded alike")
def pad_tokens_and_mask(tokens: Any) -> Any:
    b, s = tokens.shape
    pad = -s % 8
    mask = jnp.pad(jnp.ones((b, s)), ((0, 0), (0, pad)))
    tokens = jnp.pad(tokens, ((0, 0), (0, pad)))
    blocks = (tokens * mask).reshape(b, -1, 8)
    return blocks.sum(-1) / jnp.maximum(mask.reshape(b, -1, 8).sum(-1), 1)


@provable("(b, 5)", why="scan over padded chunks, the result cut back to b")
def scan_over_padded_chunks(x: Any) -> Any:
    n = x.shape[0]
    chunks = jnp.pad(x, ((0, -n % 4), (0, 0))).reshape(-1, 4, 5)

    def step(carry: Any, chunk: Any) -> Any:
        carry = carry + chunk.sum(axis=0)
        return carry, chunk * carry

    _, out = lax.scan(step, jnp.zeros(5), chunks)
    return out.reshape(-1, 5)[:n]


@provable("(b, 6)", why="lax.map over batches of 3")
def map_over_batches(x: Any) -> Any:
    n = x.shape[0]
    batches = jnp.pad(x, ((0, -n % 3), (0, 0))).reshape(-1, 3, 6)
    return lax.map(lambda part: jax.nn.softmax(part), batches).reshape(-1, 6)[:n]


@provable("(m, 4)", "(4, n)", why="both operands padded to blocks, the product cut back")
def blockwise_matmul(left: Any, right: Any) -> Any:
    m, n = left.shape[0], right.shape[1]
    rows = jnp.pad(left, ((0, -m % 2), (0, 0))).reshape(-1, 2, 4)
    columns = jnp.pad(right, ((0, 0), (0, -n % 3))).reshape(4, -1, 3)
    product = jnp.einsum("ask,ktb->astb", rows, columns)
    return product.reshape(rows.shape[0] * 2, -1)[:m, :n]


@provable("(b,)", why="the power spectrum of padded frames")
def spectrum_of_padded_frames(signal: Any) -> Any:
    frames = jnp.pad(signal, (0, -signal.shape[0] % 8)).reshape(-1, 8)
    return jnp.abs(jnp.fft.rfft(frames * jnp.hanning(8)))


@provable("(b,)", why="segment sums with ceil(b / 3) segments, compared with padded blocks")
def segments_and_blocks(x: Any) -> Any:
    n = x.shape[0]
    count = -(-n // 3)
    sums = jax.ops.segment_sum(x, jnp.arange(n) // 3, num_segments=count)
    return sums - jnp.pad(x, (0, -n % 3)).reshape(-1, 3).sum(axis=1)


@requires("b <= 16", of=("(b,)",), why="set in the first b of 16 places")
def pad_to_sixteen(x: Any) -> Any:
    return jnp.zeros(16).at[: x.shape[0]].set(x)


@requires("a >= b", of=("(a,)", "(b,)"), why="a - b must not be negative")
def pad_to_the_longer(longer: Any, shorter: Any) -> Any:
    return longer + jnp.concatenate([shorter, jnp.zeros(longer.shape[0] - shorter.shape[0])])


@provable("(b,)", why="a multiple of 4 is padded to one of 6: mod(-b, 4) inside mod(-..., 6)")
def pad_to_four_then_six(x: Any) -> Any:
    fours = jnp.pad(x, (0, -x.shape[0] % 4)).reshape(-1, 4).sum(axis=1)
    repeated = jnp.repeat(fours, 4)
    return jnp.pad(repeated, (0, -repeated.shape[0] % 6)).reshape(-1, 6)


@provable("(b,)", why="overlapping frames of 8, hop 4, of a padded signal")
def overlapping_frames(signal: Any) -> Any:
    hops = jnp.pad(signal, (4, 4 + -signal.shape[0] % 4)).reshape(-1, 4)
    return jnp.concatenate([hops[:-1], hops[1:]], axis=1) * jnp.hanning(8)


@provable("(b, 3)", why="rows of a padded batch for each of 4 workers, by vmap")
def vmap_over_workers(x: Any) -> Any:
    n = x.shape[0]
    shares = jnp.pad(x, ((0, -n % 4), (0, 0))).reshape(4, -1, 3)
    centered = jax.vmap(lambda share: share - share.mean(axis=0))(shares)
    return centered.reshape(-1, 3)[:n]


@provable("(n,)", why="blocks of ceil(n / 4) elements beside padded quarters")
def quarters_beside_starts(x: Any) -> Any:
    n = x.shape[0]
    quarters = jnp.pad(x, (0, -n % 4)).reshape(4, -1)
    return quarters[0] + quarters[3] - x[: (n + 3) // 4]


@requires("b >= 3", of=("(b,)",), stricter=True, why="mode reflect: b must exceed the padding")
def pad_mirrored(x: Any) -> Any:
    return jnp.pad(x, (2, 2), mode="reflect")


@requires("mod(b, 4) == 0", of=("(b,)",), why="pads by b % 8, not -b % 8: right for b = 4 and 8")
def pad_by_the_wrong_remainder(x: Any) -> Any:
    return jnp.pad(x, (0, x.shape[0] % 8)).reshape(-1, 8)
