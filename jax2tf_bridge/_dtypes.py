"""A table of dtypes, with their names and numbers in each format that the bridge uses.

To add a dtype, add a row to ALL_DTYPES, or to KEYS for typed PRNG keys. `Aval` handles JAX's
"float0", `saved_model` handles TensorFlow's strings and resources, and `weights` handles the
extended floats of some machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Kind: TypeAlias = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True)
class DType:
    """A dtype of numbers.

    Attributes:
      name: its name in JAX, TensorFlow, and NumPy or ml_dtypes.
      kind: the kind of its numbers.
      bits: significant bits of an element; in memory, an element takes at least one byte.
      element_type: the type that MLIR prints; None if MLIR has no such type.
      vhlo: the type's number in StableHLO bytecode, from StableHLO's VhloBytecode.cpp; None for
        complex types, which are composed.
      tensorflow: the number in TensorFlow's types.proto, which increases with its releases.
      jax_export: the number in the files of jax.export, from JAX's serialization.fbs. The rows,
        KEYS and float0 use all numbers from 0 on, without gaps.
      safetensors: the name in .safetensors files, if NumPy can represent it.
      in_ml_dtypes: whether ml_dtypes defines it instead of NumPy.

    >>> find_dtype("int4").op_dtype, find_dtype("complex128").real
    ('int8', 'float64')
    """

    name: str
    kind: Kind
    bits: int
    element_type: str | None
    vhlo: int | None
    tensorflow: int | None
    jax_export: int | None
    safetensors: str | None
    in_ml_dtypes: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and the highest number of an integer dtype.

        >>> find_dtype("int4").limits, find_dtype("uint8").limits
        ((-8, 7), (0, 255))
        """
        lowest = -(2 ** (self.bits - 1)) if self.kind == "int" else 0
        return lowest, lowest + 2**self.bits - 1

    @property
    def is_integer(self) -> bool:
        """Returns whether its numbers are integers; False for bool."""
        return self.kind in ("int", "uint")

    @property
    def is_differentiable(self) -> bool:
        """Returns whether its cotangents have the same dtype, instead of float0."""
        return self.kind in ("float", "complex")

    @property
    def real(self) -> str:
        """The dtype of the real part of a complex dtype; otherwise its own name."""
        prefix = self.name.removesuffix(f"complex{self.bits}")
        return f"{prefix}float{self.bits // 2}" if self.kind == "complex" else self.name

    @property
    def op_dtype(self) -> str:
        """Its dtype as an argument of XlaCallModule, which misreads integers below 8 bits."""
        narrow = self.is_integer and self.bits < 8 and self.element_type is not None
        return f"{self.kind}8" if narrow else self.name

    @property
    def is_accepted_by_op(self) -> bool:
        """Returns whether XlaCallModule accepts it in every TensorFlow release that has it."""
        return self.kind != "float" or self.bits >= 8

    @property
    def without_x64(self) -> str:
        """The dtype that JAX uses for it if jax_enable_x64 is not set.

        >>> find_dtype("int64").without_x64, find_dtype("bfloat16").without_x64
        ('int32', 'bfloat16')
        """
        widest = {"bool": 8, "complex": 64}.get(self.kind, 32)
        return f"{self.kind}{widest}" if self.bits > widest else self.name

    @property
    def itemsize(self) -> int | None:
        """Bytes per element; None below 8 bits, because files pack those in different ways."""
        return self.bits // 8 if self.bits % 8 == 0 else None

    def numpy(self) -> np.dtype[Any]:
        """Returns the NumPy dtype.

        Raises:
          ImportError: ml_dtypes defines it and is not installed.
          AttributeError: the installed ml_dtypes lacks it.
        """
        import numpy as np

        if not self.in_ml_dtypes:
            return np.dtype(self.name)
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return dtype


ALL_DTYPES = (
    # name, kind, bits, MLIR's type, numbers (VHLO, TensorFlow, jax.export), safetensors, ml_dtypes?
    # Messages list the dtypes in this order.
    DType("bool", "bool", 8, "i1", 0, 10, 0, "BOOL", False),
    DType("int1", "int", 1, None, None, None, None, None, True),
    DType("int2", "int", 2, "i2", 31, 31, None, None, True),
    DType("int4", "int", 4, "i4", 10, 29, 15, None, True),
    DType("int8", "int", 8, "i8", 11, 6, 1, "I8", False),
    DType("int16", "int", 16, "i16", 12, 5, 2, "I16", False),
    DType("int32", "int", 32, "i32", 13, 3, 3, "I32", False),
    DType("int64", "int", 64, "i64", 14, 9, 4, "I64", False),
    DType("uint1", "uint", 1, None, None, None, None, None, True),
    DType("uint2", "uint", 2, "ui2", 32, 32, None, None, True),
    DType("uint4", "uint", 4, "ui4", 15, 30, 16, None, True),
    DType("uint8", "uint", 8, "ui8", 16, 4, 5, "U8", False),
    DType("uint16", "uint", 16, "ui16", 17, 17, 6, "U16", False),
    DType("uint32", "uint", 32, "ui32", 18, 22, 7, "U32", False),
    DType("uint64", "uint", 64, "ui64", 19, 23, 8, "U64", False),
    DType("float16", "float", 16, "f16", 3, 19, 9, "F16", False),
    DType("float32", "float", 32, "f32", 4, 1, 10, "F32", False),
    DType("float64", "float", 64, "f64", 5, 2, 11, "F64", False),
    DType("bfloat16", "float", 16, "bf16", 2, 14, 14, "BF16", True),
    DType("complex64", "complex", 64, "complex<f32>", None, 8, 12, "C64", False),
    DType("complex128", "complex", 128, "complex<f64>", None, 18, 13, None, False),
    DType("complex32", "complex", 32, None, None, None, None, None, True),
    DType("bcomplex32", "complex", 32, None, None, None, None, None, True),
    DType("float8_e4m3fn", "float", 8, "f8E4M3FN", 6, 25, 18, "F8_E4M3", True),
    DType("float8_e5m2", "float", 8, "f8E5M2", 7, 24, 20, "F8_E5M2", True),
    DType("float8_e8m0fnu", "float", 8, "f8E8M0FNU", 40, None, 25, "F8_E8M0", True),
    DType("float8_e4m3fnuz", "float", 8, "f8E4M3FNUZ", 27, 26, 19, "F8_E4M3FNUZ", True),
    DType("float8_e5m2fnuz", "float", 8, "f8E5M2FNUZ", 28, 28, 21, "F8_E5M2FNUZ", True),
    DType("float8_e4m3b11fnuz", "float", 8, "f8E4M3B11FNUZ", 29, 27, 17, None, True),
    DType("float8_e4m3", "float", 8, "f8E4M3", 35, None, 23, None, True),
    DType("float8_e3m4", "float", 8, "f8E3M4", 36, None, 24, None, True),
    DType("float6_e2m3fn", "float", 6, "f6E2M3FN", 38, None, None, None, True),
    DType("float6_e3m2fn", "float", 6, "f6E3M2FN", 39, None, None, None, True),
    DType("float4_e2m1fn", "float", 4, "f4E2M1FN", 37, 33, 26, None, True),
)


@dataclass(frozen=True)
class KeyDType:
    """A dtype of typed PRNG keys.

    Attributes:
      name: the name that JAX prints.
      implementation: the name in jax.random.
      words: the number of uint32 words per key. The key of a seed alternates 0 and the seed.
      jax_export: the number in the files of jax.export.
    """

    name: str
    implementation: str
    words: int
    jax_export: int


KEYS: Mapping[str, KeyDType] = MappingProxyType(
    {
        row.name: row
        for row in (
            KeyDType("key<fry>", "threefry2x32", 2, 27),
            KeyDType("key<rbg>", "rbg", 4, 28),
            KeyDType("key<urbg>", "unsafe_rbg", 4, 29),
        )
    }
)
"""Maps the names of PRNG key dtypes to their rows; programs may register other kinds."""

_BY_NAME = {row.name: row for row in ALL_DTYPES}

ELEMENT_TYPES: Mapping[str, str] = MappingProxyType(
    {row.name: row.element_type for row in ALL_DTYPES if row.element_type is not None}
)
"""Maps dtype names to MLIR element types."""

DTYPES_BY_ELEMENT_TYPE: Mapping[str, str] = MappingProxyType(
    {v: k for k, v in ELEMENT_TYPES.items()}
)
"""Maps MLIR element types to dtype names."""

WIDENED: Mapping[str, str] = MappingProxyType(
    {row.name: row.op_dtype for row in ALL_DTYPES if row.op_dtype != row.name}
)
"""Maps integers of fewer than 8 bits to the dtype in which XlaCallModule takes them."""

NEED_X64 = frozenset(
    row.name for row in ALL_DTYPES if row.element_type is not None and row.without_x64 != row.name
)
"""Dtypes that JAX has only if jax_enable_x64 is set."""

NARROW_FLOATS = frozenset(row.name for row in ALL_DTYPES if row.kind == "float" and row.bits <= 8)
"""Floats for which TensorFlow lacks gradients and most kernels."""


def find_dtype(name: str) -> DType | None:
    """Returns the row of a dtype; None for "float0", PRNG keys and unknown names."""
    return _BY_NAME.get(name)


def dtype_of_element(element: str) -> DType:
    """Returns the row of an MLIR element type.

    Raises:
      KeyError: no dtype has this element type.

    >>> dtype_of_element("bf16").name
    'bfloat16'
    """
    return _BY_NAME[DTYPES_BY_ELEMENT_TYPE[element]]


def find_kind(name: str) -> Kind | None:
    """Returns the kind of a dtype's numbers; None for unknown names.

    >>> find_kind("bfloat16"), find_kind("float0")
    ('float', None)
    """
    row = _BY_NAME.get(name)
    return None if row is None else row.kind


def is_differentiable(name: str) -> bool:
    """Returns whether cotangents of a dtype have the same dtype, instead of float0."""
    return find_kind(name) in ("float", "complex")


def is_integer(name: str) -> bool:
    """Returns whether a dtype is an integer dtype; False for bool."""
    return find_kind(name) in ("int", "uint")


def dtype_holds(name: str, number: Any) -> bool:
    """Returns whether a dtype can represent a number; bool holds 0 and 1, and floats may round.

    >>> dtype_holds("int4", 7), dtype_holds("int4", 8), dtype_holds("bool", 1)
    (True, False, True)
    """
    import numpy as np

    array = np.asarray(number)
    row = find_dtype(name)
    if row is None or array.shape != () or array.dtype.kind in "mM":
        return False
    value = array.item()  # a Python number, also for the dtypes of ml_dtypes
    if not isinstance(value, (int, float, complex, np.inexact)):
        return False
    if row.kind == "bool":
        return bool(value == 0 or value == 1)
    if row.is_integer:
        lowest, highest = row.limits
        return isinstance(value, int) and lowest <= value <= highest
    return row.kind == "complex" or not isinstance(value, (complex, np.complexfloating))
