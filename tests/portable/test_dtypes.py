"""The table of dtypes: each row leads there and back in every format, and ml_dtypes has it."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge._dtypes import (
    ALL_DTYPES,
    DTYPES_BY_ELEMENT_TYPE,
    ELEMENT_TYPES,
    KEYS,
    NEED_X64,
    WIDENED,
    DType,
    dtype_holds,
    find_dtype,
    find_kind,
)

# Private: the spellings of dtypes are read without JAX.
from jax2tf_bridge.cli._export import DTYPES as WRITTEN
from jax2tf_bridge.cli._export import ArgumentSpec
from jax2tf_bridge.comparing import tolerance_of
from jax2tf_bridge.portable import Aval, array_size, can_hold_number
from jax2tf_bridge.saved_model import TensorSpec

# Private: each format's own table is compared with this one.
from jax2tf_bridge.saved_model import _tensors as tensorflows
from jax2tf_bridge.serialization.jax_exported import DTYPES as EXPORTED
from jax2tf_bridge.weights._safetensors import DTYPES as SAFETENSORS
from jax2tf_bridge.weights._stored import read_dtype

each_row = pytest.mark.parametrize("row", ALL_DTYPES, ids=lambda row: row.name)


@each_row
def test_row_leads_there_and_back(row: DType) -> None:
    assert find_dtype(row.name) is row
    if row.element_type is not None:
        assert DTYPES_BY_ELEMENT_TYPE[ELEMENT_TYPES[row.name]] == row.name
        assert WRITTEN[row.name] == row.name
        assert ArgumentSpec.read(f"{row.name}[3]", "--args").dtype == row.name
    if row.tensorflow is not None:
        assert tensorflows.DTYPES[row.tensorflow] == row.name
        assert TensorSpec(row.name, (3,)).size == 3 * max(8, row.bits) // 8
    if row.jax_export is not None:
        assert EXPORTED[row.jax_export] == row.name
    if row.safetensors is not None:
        assert SAFETENSORS[row.safetensors] == row.name


@each_row
def test_numpy_or_ml_dtypes_has_it(row: DType) -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    if row.in_ml_dtypes and not hasattr(ml_dtypes, row.name):
        assert "a later one may have it" in str(read_dtype(row.name, None))
        return
    dtype = row.numpy()
    assert dtype.name == row.name
    assert read_dtype(row.name, None) == dtype
    assert dtype.itemsize == max(8, row.bits) // 8
    if row.is_integer:
        assert ml_dtypes.iinfo(dtype).bits == row.bits
        assert (ml_dtypes.iinfo(dtype).min < 0) == (row.kind == "int")
    if row.kind == "float":
        assert ml_dtypes.finfo(dtype).bits == row.bits
    if row.kind == "complex":
        real = find_dtype(row.real)
        assert real is not None
        assert real.bits * 2 == row.bits
        assert row.in_ml_dtypes or np.zeros((), dtype).real.dtype == row.real


def test_no_dtype_of_ml_dtypes_is_missing() -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    scalars = {
        name
        for name, value in vars(ml_dtypes).items()
        if isinstance(value, type) and re.search(r"\d", name)
    }
    assert scalars <= {row.name for row in ALL_DTYPES if row.in_ml_dtypes}


@pytest.mark.parametrize(
    "column", ["name", "element_type", "vhlo", "tensorflow", "jax_export", "safetensors"]
)
def test_no_two_rows_share_a_name_or_number(column: str) -> None:
    found = [x for row in ALL_DTYPES if (x := getattr(row, column)) is not None]
    if column == "jax_export":
        found += [row.jax_export for row in KEYS.values()]
    assert len(found) == len(set(found))


def test_what_follows_from_the_rows() -> None:
    assert WIDENED == {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
    assert {"int64", "uint64", "float64", "complex128"} == NEED_X64
    assert Aval((), "int4").op_dtype == "int8"
    assert Aval((), "float0").op_dtype == "bool"
    assert Aval((), "key<fry>").op_dtype == "uint32"
    assert Aval((2,), "float16").is_differentiable
    assert not Aval((2,), "float0").is_differentiable
    assert find_kind("float0") is find_kind("key<fry>") is find_kind("string") is None
    assert array_size(Aval((3,), "complex64")) == 24
    assert tensorflows.STORED_BITS["qint32"] == 32
    assert tensorflows.DTYPES[7] == tensorflows.STRING


def test_numbers_of_every_library_fit_their_dtype() -> None:
    for dtype in ("bfloat16", "float8_e5m2", "int4", "float32", "int64"):
        row = find_dtype(dtype)
        assert row is not None
        assert dtype_holds(dtype, row.numpy().type(-1))
    assert dtype_holds("float64", np.longdouble(-1))
    assert dtype_holds("float32", 2**70)
    assert not dtype_holds("int4", ml_dtypes.bfloat16(1))
    assert not dtype_holds("float32", np.clongdouble(1))
    for wrong in ("1", None, [1], [1, 2], np.datetime64(1, "ns"), np.timedelta64(1, "ns")):
        assert not dtype_holds("int64", wrong)


def test_dtypes_hold_scalars_of_ml_dtypes() -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    lowest = ml_dtypes.finfo("bfloat16").min
    for dtype, holds in (("bfloat16", True), ("float32", True), ("complex64", True)):
        assert dtype_holds(dtype, lowest) is holds
    assert dtype_holds("int8", ml_dtypes.int4(-8))
    assert not dtype_holds("uint8", ml_dtypes.int4(-8))
    assert not dtype_holds("int8", lowest)


@pytest.mark.parametrize(
    ("dtype", "number", "holds"),
    [
        ("int8", -128, True),
        ("int8", 128, False),
        ("uint4", 15, True),
        ("int32", 1.0, False),
        ("int32", True, True),
        ("bool", True, True),
        ("bool", 1, False),
        ("float32", 1j, False),
        ("float32", 7, True),
        ("complex64", 1j, True),
        ("key<fry>", 7, False),
        ("float0", 0, False),
    ],
)
def test_numbers_of_python_that_dtypes_hold(dtype: str, number: complex, holds: bool) -> None:
    assert can_hold_number(number, dtype) is holds


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float64", 1e-12),
        ("complex64", 1e-4),
        ("bfloat16", 6e-2),
        ("float8_e5m2", 0.3),
        ("int32", 0.0),
        ("bool", 0.0),
        ("string", 0.0),
    ],
)
def test_tolerances(dtype: str, tolerance: float) -> None:
    assert tolerance_of(dtype) == tolerance
