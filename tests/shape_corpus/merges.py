"""Arguments whose sizes have to agree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_corpus.shape_case import requires, weights

EQUAL = "a == b"


@requires(EQUAL, of=("(a,)", "(b,)"), stricter=True, why="an addition; a size of 1 broadcasts")
def add(x: Any, y: Any) -> Any:
    return x + y


@requires(EQUAL, of=("(a,)", "(b,)"), why="stacked")
def stack(x: Any, y: Any) -> Any:
    return jnp.stack([x, y])


@requires(EQUAL, of=("(m, a)", "(b, n)"), why="the contracted dimension of a product")
def matmul(x: Any, y: Any) -> Any:
    return x @ y


@requires(
    EQUAL, of=("(n, a)", "(m, b)"), stricter=True, why="an einsum over one letter; 1 broadcasts"
)
def similarity(x: Any, y: Any) -> Any:
    return jnp.einsum("nd,md->nm", x, y)


@requires(EQUAL, of=("(m, a)", "(n, b)"), why="rows of one width")
def append_rows(x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y])


@requires(EQUAL, of=("(a, 3)", "(b,)"), dtypes=("float32", "int32"), why="a label a row")
def cross_entropy(logits: Any, labels: Any) -> Any:
    chosen = jax.vmap(lambda row, label: row[label % 3])(jax.nn.log_softmax(logits), labels)
    return -chosen.mean()


@requires(EQUAL, of=("(a, 3)", "(b, 2)"), why="a scan over both")
def scan_both(xs: Any, ys: Any) -> Any:
    def step(carry: Any, pair: Any) -> Any:
        x, y = pair
        return carry + x.sum() * y, carry

    return lax.scan(step, jnp.zeros(2), (xs, ys))


@requires(EQUAL, of=("(a, 3)", "(b, 3)"), why="vmapped over both")
def row_products(x: Any, y: Any) -> Any:
    return jax.vmap(jnp.dot)(x, y)


@requires("a == b", "b == c", of=("(a,)", "(b,)", "(c,)"), why="three columns of one table")
def table(x: Any, y: Any, z: Any) -> Any:
    return jnp.stack([x, y, z], axis=1) @ weights(3, 2)


@requires("a == 2*b", of=("(a,)", "(b,)"), why="pairs of the one beside the other")
def pairs_beside_single(x: Any, y: Any) -> Any:
    return jnp.concatenate([x.reshape(-1, 2), y[:, None]], axis=1)


@requires("b == floordiv(a + 1, 2)", of=("(a,)", "(b,)"), why="every second element beside y")
def every_second_beside(x: Any, y: Any) -> Any:
    return jnp.stack([x[::2], y])


@requires("a >= b", of=("(a,)", "(b,)"), why="the first b of x beside y")
def prefix_beside(x: Any, y: Any) -> Any:
    return jnp.stack([x[: y.shape[0]], y])


@requires("a >= b", of=("(a,)", "(b,)"), stricter=True, why="as prefix_beside; 1 broadcasts")
def add_to_prefix(x: Any, y: Any) -> Any:
    return x[: y.shape[0]] + y


@requires("a == b + 1", of=("(a,)", "(b,)"), why="edges and the bins between them")
def histogram_area(edges: Any, counts: Any) -> Any:
    return jnp.stack([edges[1:] - edges[:-1], counts]).prod(axis=0)


@requires(EQUAL, of=("(1, 6, 6, a)", "(3, 3, b, 2)"), why="channels of image and kernel")
def image_and_kernel(image: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@requires(EQUAL, of=({"image": "(a, 4)", "mask": "(b, 4)"},), why="two entries of a dict")
def masked_image(batch: Any) -> Any:
    return lax.select(batch["mask"] > 0, batch["image"], jnp.zeros_like(batch["image"]))


@requires(
    EQUAL, of=(("(a, 2)", "(b, 2)"), "(2,)"), stricter=True, why="a tuple of points, and a shift"
)
def shifted_difference(points: Any, shift: Any) -> Any:
    first, second = points
    return lax.sub(first + shift, second)


@requires(
    EQUAL,
    of=({"params": {"w": "(a, 3)", "b": "(3,)"}, "state": ("(n, b)",)},),
    why="nested: the rows of the weights are the columns of the state",
)
def nested_layer(tree: Any) -> Any:
    (state,) = tree["state"]
    return jnp.tanh(state @ tree["params"]["w"] + tree["params"]["b"])


@requires("a == b*c", of=("(a,)", "(b,)", "(c,)"), why="a vector as a matrix over two others")
def matrix_beside_vectors(x: Any, y: Any, z: Any) -> Any:
    return y @ x.reshape(y.shape[0], -1) @ z


@requires("a <= b", of=("(a,)", "(b,)"), why="lax.slice of y to the length of x")
def cut_to_the_shorter(x: Any, y: Any) -> Any:
    return x * lax.slice_in_dim(y, 0, x.shape[0])
