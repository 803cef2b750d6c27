"""save_coreml(): what its errors say, without coremltools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import save_coreml

# Private: the rest needs coremltools.
from jax2tf_bridge.coreml._save import find_shapes, list_large_arrays, read_sizes
from jax2tf_bridge.errors import MissingDependencyError, SavingError
from jax2tf_bridge.signatures import ServedArray
from shape_poly import symbolic_shape
from tests.plugins.blocked_imports import blocked


def double(x: Any) -> Any:
    return x + x


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    expected = 'precision must be "float16" or "float32". Got: \'int8\'.'
    with pytest.raises(SavingError, match=re.escape(expected)):
        save_coreml(tmp_path / "a.mlpackage", double, precision="int8")  # type: ignore[arg-type]
    expected = f"A Core ML package needs a name that ends with .mlpackage. Got: {tmp_path / 'a'}."
    with pytest.raises(SavingError, match=re.escape(expected)):
        save_coreml(tmp_path / "a", double)
    (tmp_path / "a.mlpackage").mkdir()
    (tmp_path / "a.mlpackage" / "file").touch()
    with pytest.raises(FileExistsError):
        save_coreml(tmp_path / "a.mlpackage", double)
    with pytest.raises(FileExistsError, match=r"it has other contents, and no Manifest\.json"):
        save_coreml(tmp_path / "a.mlpackage", double, overwrite=True)


def test_coremltools_is_missing(tmp_path: Path) -> None:
    with blocked("coremltools"), pytest.raises(MissingDependencyError) as caught:
        save_coreml(tmp_path / "a.mlpackage", double)
    assert str(caught.value) == (
        "Writing a Core ML package needs coremltools, which is not installed here. Install it "
        "with: pip install 'jax2tf-bridge[coreml]'"
    )
    assert not (tmp_path / "a.mlpackage").exists()


def test_sizes_are_integers_and_ranges_of_them() -> None:
    sizes = {"a": np.int64(3), "b": [1, np.int32(8)], "c": (2, 2)}
    assert read_sizes(sizes) == {"a": 3, "b": (1, 8), "c": 2}
    assert type(read_sizes(sizes)["a"]) is int


@pytest.mark.parametrize(
    "size", [0, True, 2.0, "1..8", None, (8, 1), (0, 3), (1,), (1, 2, 3), (1, None), {}]
)
def test_other_sizes_are_refused(size: Any) -> None:
    expected = (
        f"sizes['b'] must be a size of at least 1, or a range, as {{'b': (1, 8)}}. Got: {size!r}."
    )
    with pytest.raises(SavingError, match=f"^{re.escape(expected)}$"):
        read_sizes({"b": size})


def test_sizes_are_named(tmp_path: Path) -> None:
    expected = "sizes must be a dict of sizes by name, as {'b': (1, 8)}. Got: 8."
    with pytest.raises(SavingError, match=f"^{re.escape(expected)}$"):
        save_coreml(tmp_path / "a.mlpackage", double, sizes=8)  # type: ignore[arg-type]


def served(shape: str) -> ServedArray:
    return ServedArray("float32", symbolic_shape(shape))


def test_open_sizes() -> None:
    inputs = {"x": served("(b, 2*n, 3)"), "y": ServedArray("int32", (None,))}
    assert find_shapes(inputs, {"b": (1, 8), "n": 2, "y.0": 5}) == {"x": ["b", 4, 3], "y": [5]}
    assert find_shapes({"x": served("()")}, {}) == {"x": []}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            {},
            "Core ML needs the size b of the input x: float32[b,2*n], or its range. Pass "
            "sizes={'b': 1}, or sizes={'b': (1, 8)}.",
        ),
        (
            {"b": 1, "n": (1, 4)},
            "The size 2*n of the input x depends on a range, and Core ML has no such sizes. Fix n "
            "in sizes.",
        ),
        (
            {"b": 1, "n": 2, "m": 3},
            "sizes has 'm', which is not an open size of the function. It has: b, n.",
        ),
    ],
)
def test_sizes_that_do_not_fit(sizes: Any, expected: str) -> None:
    with pytest.raises(SavingError, match=re.escape(expected)):
        find_shapes({"x": served("(b, 2*n)")}, sizes)


def test_arrays_beyond_the_range_of_float16_are_listed() -> None:
    weights = np.array([[1, 2e5], [-7e4, 3]], np.float32)
    mask = np.triu(np.full((2, 2), -1e9, np.float32), 1)

    @tf.function(input_signature=[tf.TensorSpec((2, 2), tf.float32)])
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("at.net.py.12"):
            scores = tf.matmul(x, tf.identity(tf.constant(weights))) + tf.constant(mask)
        return tf.maximum(scores * 1e6, np.full((2, 2), np.inf, np.float32))

    graph = function.get_concrete_function().graph.as_graph_def()
    assert list_large_arrays(graph) == ["float32[2,2], up to 2e+05, at net.py:12"]
