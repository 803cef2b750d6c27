"""The table of dtypes says what the installed JAX and TensorFlow have."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax import export as jax_export

from jax2tf_bridge._dtypes import ALL_DTYPES, KEYS, DType
from jax2tf_bridge.bytecode import read_main_types
from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.loading import make_input
from jax2tf_bridge.portable import Aval

# Private: its table is compared with TensorFlow's.
from jax2tf_bridge.saved_model import _tensors as tensorflows
from jax2tf_bridge.serialization.jax_exported import read_exported
from jax2tf_bridge.to_tensorflow import op_dtype

_FIRST_REFERENCE = 101
"""TensorFlow's dtypes from here on are references to those before."""


def exported(dtype: Any) -> jax_export.Exported:
    """The function that gives back a value of this dtype."""
    with jax.enable_x64(True):
        return jax_export.export(jax.jit(lambda x: x), platforms=("cpu",))(
            jax.ShapeDtypeStruct((), dtype)
        )


@pytest.mark.parametrize(
    "row", [row for row in ALL_DTYPES if row.element_type is not None], ids=lambda row: row.name
)
def test_jax_writes_it_as_the_table_says(row: DType) -> None:
    if not hasattr(jax.numpy, row.name):
        pytest.skip(f"JAX {jax.__version__} lacks it")
    dtype = row.numpy()
    function = exported(dtype)
    tensor = f"tensor<{row.element_type}>"
    assert read_main_types(memoryview(function.mlir_module_serialized)) == ((tensor,), (tensor,))
    assert jax.numpy.issubdtype(dtype, np.inexact) == row.is_differentiable
    with jax.enable_x64(False):
        assert jax.typeof(np.zeros((), dtype)).dtype.name == row.without_x64
    if row.jax_export is None:
        with pytest.raises(KeyError):
            function.serialize()
    else:
        assert read_exported(function.serialize()).in_avals[0].dtype == row.name


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str) -> None:
    row = KEYS[name]
    key = jax.random.key(7, impl=row.implementation)
    assert str(key.dtype) == name
    np.testing.assert_array_equal(jax.random.key_data(key), [0, 7] * (row.words // 2))
    aval = read_exported(exported(key.dtype).serialize()).in_avals[0]
    assert (aval.dtype, aval.element_shape) == (name, (row.words,))
    # As a loaded signature with seed="scalar" takes it.
    seeded = make_input(np.uint32(7), aval, "key")
    np.testing.assert_array_equal(jax.random.key_data(seeded), jax.random.key_data(key))


def test_tensorflow_numbers_them_as_the_table_says() -> None:
    found = {}
    for number in range(1, _FIRST_REFERENCE):
        try:
            found[number] = tf.as_dtype(number)
        except TypeError:
            continue
    assert len(found) > 20
    assert {n: dtype.name for n, dtype in found.items()}.items() <= tensorflows.DTYPES.items()
    for dtype in found.values():
        if dtype.name in tensorflows.STORED_BITS:
            assert dtype.size * 8 == tensorflows.STORED_BITS[dtype.name]


@pytest.mark.parametrize(
    ("dtype", "problem"),
    [("float4_e2m1fn", "cannot pass to XLA"), ("float8_e8m0fnu", "does not have")],
)
def test_dtypes_that_do_not_cross(dtype: str, problem: str) -> None:
    # TensorFlow 2.21 has float4_e2m1fn, and its XlaCallModule fails on it when it runs.
    with pytest.raises(DTypeError) as raised:
        op_dtype(Aval((3,), dtype), "The argument x of f")
    assert str(raised.value) == (
        f"The argument x of f has dtype {dtype}, which TensorFlow {tf.__version__} {problem}. "
        "Convert it inside the JAX function, for instance with x.astype('float32')."
    )
