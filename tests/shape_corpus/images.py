"""Images: patches, pixel shuffles, resizing, crops and borders."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import provable, requires, weights


@requires("mod(h, 4) == 0", "mod(w, 4) == 0", of=("(b, h, w, 3)",), why="patches of 4 by 4")
def patchify(images: Any) -> Any:
    b, h, w, c = images.shape
    rows = images.reshape(b, -1, 4, w, c)
    patches = rows.reshape(b, h // 4, 4, -1, 4, c).transpose(0, 1, 3, 2, 4, 5)
    return patches.reshape(b, -1, 16 * c) @ weights(48, 5)


@requires("mod(h, 2) == 0", "mod(w, 2) == 0", of=("(h, w)",), why="patches by -1, and back")
def patchify_and_back(image: Any) -> Any:
    h, w = image.shape
    columns = image.reshape(-1, 2, w).swapaxes(1, 2)
    patches = columns.reshape(h // 2, -1, 2, 2)
    patches = patches - patches.mean(axis=(2, 3), keepdims=True)
    return patches.reshape(h // 2, w, 2).swapaxes(1, 2).reshape(h, w)


@provable("(h, w, 2)", why="patches of a padded image, their count left to -1")
def patches_of_padded_image(image: Any) -> Any:
    h, w, c = image.shape
    image = jnp.pad(image, ((0, -h % 4), (0, -w % 4), (0, 0)))
    rows = image.shape[0] // 4
    patches = image.reshape(rows, 4, -1, 4, c).transpose(0, 2, 1, 3, 4)
    return patches.reshape(-1, 16 * c)


@provable("(h, w)", why="padded, cut into tiles, put together and cropped")
def tile_and_untile(image: Any) -> Any:
    h, w = image.shape
    padded = jnp.pad(image, ((0, -h % 3), (0, -w % 3)))
    tiles = padded.reshape(padded.shape[0] // 3, 3, -1, 3).swapaxes(1, 2)
    tiles = tiles * jnp.hanning(5)[1:4]
    return tiles.swapaxes(1, 2).reshape(padded.shape)[:h, :w] + image


@requires("mod(c, 4) == 0", of=("(h, w, c)",), why="pixel shuffle by 2 takes four channels")
def pixel_shuffle(image: Any) -> Any:
    h, w, c = image.shape
    image = image.reshape(h, w, -1, 2, 2).transpose(0, 3, 1, 4, 2)
    return image.reshape(2 * h, 2 * w, c // 4)


@requires("mod(h, 2) == 0", "mod(w, 2) == 0", of=("(h, w, 3)",), why="space to depth by 2")
def space_to_depth(image: Any) -> Any:
    corners = [image[i::2, j::2] for i in range(2) for j in range(2)]
    return jnp.concatenate(corners, axis=-1)


@requires("mod(h, 2) == 0", "mod(w, 2) == 0", of=("(h, w)",), why="a Haar step: four strides")
def haar_step(image: Any) -> Any:
    top, bottom = image[::2], image[1::2]
    quads = [top[:, ::2], top[:, 1::2], bottom[:, ::2], bottom[:, 1::2]]
    return jnp.stack(quads).mean(axis=0)


@requires("mod(h, 2) == 0", of=("(h, 4)",), why="a Laplacian pyramid's band: up(down(x)) - x")
def laplacian_band(image: Any) -> Any:
    small = image.reshape(-1, 2, 4).mean(axis=1)
    return jnp.stack([image, jnp.repeat(small, 2, axis=0)])


@requires("h >= 8", "w >= 8", of=("(h, w, 3)",), why="a center crop of 8 by 8")
def center_crop(image: Any) -> Any:
    h, w, c = image.shape
    top, left = (h - 8) // 2, (w - 8) // 2
    return lax.slice(image, (top, left, 0), (top + 8, left + 8, c))


@requires("h >= 2", "w >= 2", of=("(h, w)",), why="slices that end at h - 2 and w - 2")
def sobel_inside(image: Any) -> Any:
    h, w = image.shape
    rows = lax.slice(image, (2, 1), (h, w - 1)) - lax.slice(image, (0, 1), (h - 2, w - 1))
    columns = lax.slice(image, (1, 2), (h - 1, w)) - lax.slice(image, (1, 0), (h - 1, w - 2))
    return jnp.hypot(rows, columns)


@provable("(h, w)", why="both interlaced fields, put below each other: h rows")
def weave_fields(image: Any) -> Any:
    return jnp.concatenate([image[::2], image[1::2]], axis=0) * image


@provable("(h, w)", why="the first h of h * w pixels: h <= h * w")
def first_pixels(image: Any) -> Any:
    return lax.slice(image.reshape(-1), (0,), (image.shape[0],))


@provable("(h, w)", why="pixels of a padded mosaic, three levels of a pyramid joined by size")
def quarter_pyramid(image: Any) -> Any:
    def halve(x: Any) -> Any:
        padded = jnp.pad(x, ((0, x.shape[0] % 2), (0, x.shape[1] % 2)), mode="edge")
        return padded.reshape(-1, 2, padded.shape[1]).mean(axis=1)[:, ::2]

    return halve(halve(image)) - image[::4, ::4]


@provable("(h, w)", why="the h brightest of h * w pixels: h <= h * w")
def brightest_pixels(image: Any) -> Any:
    return lax.top_k(image.reshape(-1), image.shape[0])


@provable("(h, w, 2)", why="a position for each patch of a padded image: ceil times ceil")
def patches_and_positions(image: Any) -> Any:
    h, w, c = image.shape
    padded = jnp.pad(image, ((0, -h % 2), (0, -w % 2), (0, 0)))
    columns = padded.reshape(-1, 2, padded.shape[1], c).swapaxes(1, 2)
    patches = columns.reshape(-1, 4 * c)
    positions = jnp.arange(((h + 1) // 2) * ((w + 1) // 2))
    return patches + positions[:, None]


@requires("h == w", of=("(h, w)",), stricter=True, why="a matrix and its transpose; 1 broadcasts")
def symmetric_part(image: Any) -> Any:
    return (image + image.T) / 2


@requires("h == w", of=("(h, w)",), why="a matrix times itself")
def squared(matrix: Any) -> Any:
    return matrix @ matrix
