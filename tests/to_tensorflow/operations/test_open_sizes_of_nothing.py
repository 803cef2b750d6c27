"""Open sizes that are 0, or less than a window, when the graph runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, export, to_tf

_IMAGES = ("NHWC", "HWIO", "NHWC")


def _numbers(*sizes: int) -> Any:
    return (np.arange(np.prod(sizes)) * 7 % 11 - 5).astype(np.float32).reshape(sizes)


def _conv(x: Any, w: Any, stride: int = 1, padding: Any = "VALID") -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=_IMAGES)


def _pool(x: Any, size: int, stride: int, padding: Any = "VALID") -> Any:
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding
    )


def _squared(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x: (f(x) ** 2).sum())


def _windows(x: Any) -> Any:
    """Reduces and convolves with windows of three, of which two may be larger than the images."""
    w = jnp.ones((3, 3, 2, 3))
    flat = x[0, :, 0, 0]
    twice = jnp.concatenate([jnp.concatenate([x, x], 1)] * 2, 2)
    return (
        _conv(x, w),
        _conv(x, w, 2, ((0, 0), (1, 0))),
        _conv(x.astype(jnp.int32), w.astype(jnp.int32)),
        _squared(lambda x: _conv(x, w))(twice),
        _squared(lambda w: _conv(twice, w))(w),
        _pool(x, 3, 1),
        _pool(_conv(x, w), 2, 2),
        lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "VALID"),
        lax.reduce_window(flat, 0.0, lax.add, (3,), (2,), "VALID", window_dilation=(2,)),
        lax.reduce_window(flat, 1.0, lambda a, b: a * b + 0 * a, (3,), (1,), ((1, 0),)),
        _squared(lambda x: _pool(x, 3, 2))(x),
        _squared(lambda x: _pool(x, 3, 2, ((0, 0), (1, 0), (1, 0), (0, 0))))(x),
    )


def _empty_images(x: Any) -> Any:
    """Does so with a batch, and with features, of as many as there are but one."""
    y = x[1:]
    few = jnp.ones((2, 2, 2, 1)) * y[:, 0, 0, 0]
    return (
        _conv(y, jnp.ones((2, 2, 2, 3)), 1, "SAME"),
        _squared(lambda y: _conv(y, jnp.ones((2, 2, 2, 3)), 2, "SAME"))(y),
        _squared(lambda w: _conv(y, w, 1, "SAME"))(jnp.ones((2, 2, 2, 3))),
        _conv(x[:1], few),
        _conv(jnp.swapaxes(y, 0, 3), jnp.swapaxes(few, 2, 3)[:, :, :, :2]),
        _squared(lambda y: _pool(y, 2, 2))(y),
        _squared(lambda y: _pool(y, 3, 2, "SAME"))(y),
    )


def _scatters(x: Any, i: Any) -> Any:
    """Scatters into all rows but one."""
    y = x[1:]
    row = jnp.arange(3.0)
    return (
        y.at[i].set(row),
        y.at[i].add(row),
        y.at[i].max(row),
        y.at[i].multiply(2.0),
        y.at[i, i].set(5.0),
        y.at[i].apply(lambda v: v * v + 1),
        y.at[i[:2]].apply(lambda v: v * v + 1, unique_indices=True),
        jnp.zeros_like(y).at[i].add(1.0),
        jax.vmap(lambda row: row.at[i].add(1.0))(y),
        jax.vmap(lambda column: column.at[i].add(1.0), 1, 1)(y),
    )


_CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Any], tuple[Any, ...], Any]] = {
    "windows": (_windows, lambda b: _numbers(2, b, b, 2), (), "(2, b, b, 2)"),
    "images": (_empty_images, lambda b: _numbers(b, 4, 4, 2), (), "(b, 4, 4, 2)"),
    "scatters": (
        _scatters,
        lambda b: _numbers(b, 3),
        (np.array([0, 7, -1], np.int32),),
        ("(b, 3)", None),
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", _CASES)
def test_values_are_those_of_jax(name: str) -> None:
    f, make, others, shapes = _CASES[name]
    portable = export(f, target=Target.widest(xla=False), polymorphic_shapes=shapes)(
        make(5), *others
    )
    specs = [
        tf.TensorSpec(
            [n if m == n else None for m, n in zip(a.shape, b.shape, strict=True)], a.dtype
        )
        for a, b in zip((make(1), *others), (make(9), *others), strict=True)
    ]
    graph = tf.function(to_tf(portable), input_signature=specs, autograph=False)
    # Rows and images without elements, and with; windows that fit into nothing, half, and all.
    for size in (1, 2, 5) if name == "windows" else (1, 2):
        x = make(size)
        found = tf.nest.flatten(graph(x, *others))
        for one, other in zip(found, jax.tree.leaves(jax.jit(f)(x, *others)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_rows_without_elements_at_pairs_of_indices() -> None:
    """GatherNd fails for rows without elements, of which there are half as many as elements."""

    def pairs(x: Any, i: Any) -> Any:
        return x[..., : x.shape[2] // 2][i, i]

    function = export(
        pairs, polymorphic_shapes=["(b, b, b)", "(n,)"], target=Target.widest(xla=False)
    )(np.ones((4, 4, 4), np.float32), np.arange(3))
    for size in (1, 3):
        x, i = np.ones((size,) * 3, np.float32), np.zeros(2, np.int32)
        np.testing.assert_array_equal(to_tf(function)(x, i), pairs(x, i))
