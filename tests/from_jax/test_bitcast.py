"""Bitcasts that change the width, at open sizes, in TensorFlow against JAX."""

from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import convert
from jax2tf_bridge.from_jax.lowering._rules import lowering_overrides

PAIRS = [
    ("int16", "int32"),
    ("uint8", "float32"),
    ("float32", "int8"),
    ("float32", "bfloat16"),
    ("bfloat16", "uint32"),
    ("int32", "float16"),
    ("uint16", "uint8"),
    ("int8", "float8_e4m3fn"),
    ("float64", "int32"),
    ("uint8", "int64"),
]


def numbers(dtype: str, *shape: int) -> Any:
    size = np.dtype(jax.numpy.dtype(dtype)).itemsize
    raw = np.random.default_rng(0).integers(0, 256, (*shape, size)).astype(np.uint8)
    return raw.view(jax.numpy.dtype(dtype))[..., 0]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_equal_to_jax(old: str, new: str) -> None:
    with jax.enable_x64(True):

        def f(x: Any) -> Any:
            return lax.bitcast_convert_type(x, new)

        ratio = jax.numpy.dtype(new).itemsize // jax.numpy.dtype(old).itemsize
        shape = "(b, 3)" if ratio <= 1 else f"(b, 3, {ratio})"
        converted = convert(f, polymorphic_shapes=shape, with_gradient=False)
        for b in (1, 4):
            x = numbers(old, b, 3, *([ratio] if ratio > 1 else []))
            found, expected = np.asarray(converted(x)), np.asarray(f(x))
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_known_sizes_keep_the_operation() -> None:
    exported = jax.export.export(
        jax.jit(lambda x: lax.bitcast_convert_type(x, "int8")),
        platforms=["cpu"],
        _override_lowering_rules=lowering_overrides(("cpu",), (0, 14, 24)),
    )(np.zeros((2,), np.float32))
    text = str(exported.mlir_module())
    assert "bitcast_convert" in text
    assert "shift" not in text
