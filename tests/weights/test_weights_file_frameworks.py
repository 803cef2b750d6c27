"""Tests that NumPy, JAX and TensorFlow accept the unaligned arrays of a mapped file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.weights import open_weights, write_weights
from tests.sampling import sampled

NAMES = (
    *("bool", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128"),
)


def _array(name: str) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return (np.arange(1001) % 2 if name == "bool" else np.arange(1001) % 100).astype(dtype)


# Numbers of one, two, four and sixteen bytes, and one that NumPy lacks.
FEW = ("bool", "uint16", "bfloat16", "float32", "complex128")


@pytest.fixture(params=sampled(NAMES, every=len(NAMES), keep=FEW))
def views(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Yields an array at several offsets from aligned addresses, and the written array."""
    array = _array(request.param).reshape(7, 11, 13)
    path = tmp_path / "weights.msgpack"
    path.write_bytes(
        flax.serialization.msgpack_serialize({"x" * i: {"array": array} for i in range(5)})
    )
    with open_weights(path) as weights:
        found = list(weights.values())
    assert array.dtype.itemsize == 1 or not all(view.flags.aligned for view in found)
    return found, array


USES: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy itself": lambda x: x,
    "numpy twice": lambda x: x.astype(np.complex128) * 2,
    "numpy product": lambda x: x[0].astype(np.complex128) @ x[0].T.astype(np.complex128),
    "numpy sorted": lambda x: np.sort(x, axis=1),
    "numpy reshaped": lambda x: x.reshape(-1)[5:9],
    "numpy transposed": lambda x: np.ascontiguousarray(x.T),
    "jax asarray": jnp.asarray,
    "jax array": jnp.array,
    "jax device_put": jax.device_put,
    "jax jit": lambda x: jax.jit(lambda y: y[::-1])(x),
    "jax tree_map": lambda x: jax.tree_util.tree_map(jnp.asarray, {"a": [x]})["a"][0],
    "tensorflow constant": tf.constant,
    "tensorflow convert_to_tensor": tf.convert_to_tensor,
    "tensorflow Variable": tf.Variable,
    "tensorflow function": lambda x: tf.function(lambda y: tf.reverse(y, [0]))(x),
    "tensorflow from_tensor_slices": lambda x: next(iter(tf.data.Dataset.from_tensor_slices(x))),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_views_are_used_as_other_arrays(
    views: tuple[list[np.ndarray], np.ndarray], use: Callable[[np.ndarray], Any]
) -> None:
    found, array = views
    with jax.enable_x64(True):
        expected = use(array)
        for view in found:
            result = use(view)
            assert type(result) is type(expected)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


def test_numpy_sums_views_to_rounding(views: tuple[list[np.ndarray], np.ndarray]) -> None:
    """NumPy sums an unaligned array in buffered pieces, so in another order."""
    found, array = views
    for view in found:
        np.testing.assert_allclose(
            view.sum().astype(np.complex128), array.sum().astype(np.complex128), rtol=1e-2
        )


def test_variables_and_arrays_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.msgpack"
    write_weights(path, {"w": np.arange(70_000, dtype=np.float32)})
    with open_weights(path) as weights:
        variable, array = tf.Variable(weights["w"]), jnp.asarray(weights["w"])
    path.unlink()
    variable.assign_add(tf.ones_like(variable))
    assert float(variable.numpy()[-1]) == 70_000
    assert float((array + 1)[-1]) == 70_000
