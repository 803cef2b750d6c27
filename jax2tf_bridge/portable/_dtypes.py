"""A table of dtypes: the name and number of each wherever the bridge meets it.

A new dtype is a new row: of ALL_DTYPES for numbers, of KEYS for typed PRNG keys. JAX's "float0", of
arrays that hold nothing, is `Aval`'s; TensorFlow's strings and resources are in saved_model, the
extended floats of some machines in weights.
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
      name: in JAX, TensorFlow, and NumPy or ml_dtypes, which agree.
      kind: what numbers it has.
      bits: that an element means; one of fewer than 8 takes a byte in memory.
      element_type: as MLIR prints it in a module; None if no module has it under a name of its own.
      vhlo: the number of that type in StableHLO's bytecode, or None: complex types are made of two.
      tensorflow: the number in types.proto; TensorFlow numbers them in the order of its releases.
      jax_export: the number in the files of jax.export.
      safetensors: the name in .safetensors files, of those that NumPy can hold.
      in_ml_dtypes: whether ml_dtypes has it, and not NumPy itself.

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
    def is_integer(self) -> bool:
        """Tells integers, which bool is not."""
        return self.kind in ("int", "uint")

    @property
    def is_differentiable(self) -> bool:
        """Tells dtypes whose cotangents are of the same dtype, and not float0."""
        return self.kind in ("float", "complex")

    @property
    def real(self) -> str:
        """Name of the dtype of a complex number's two parts; otherwise its own name."""
        before = self.name.removesuffix(f"complex{self.bits}")
        return f"{before}float{self.bits // 2}" if self.kind == "complex" else self.name

    @property
    def op_dtype(self) -> str:
        """Its name as an argument of XlaCallModule, which misreads integers below 8 bits."""
        narrow = self.is_integer and self.bits < 8 and self.element_type is not None
        return f"{self.kind}8" if narrow else self.name

    @property
    def crosses(self) -> bool:
        """Tells dtypes that XlaCallModule takes in any TensorFlow release that has them."""
        return self.kind != "float" or self.bits >= 8

    @property
    def without_x64(self) -> str:
        """Name of the dtype that JAX takes it for where jax_enable_x64 is not set.

        >>> find_dtype("int64").without_x64, find_dtype("bfloat16").without_x64
        ('int32', 'bfloat16')
        """
        widest = {"bool": 8, "complex": 64}.get(self.kind, 32)
        return f"{self.kind}{widest}" if self.bits > widest else self.name

    @property
    def itemsize(self) -> int | None:
        """Bytes of an element; None below 8 bits, which files pack in different ways."""
        return self.bits // 8 if self.bits % 8 == 0 else None

    def numpy(self) -> np.dtype[Any]:
        """NumPy's dtype.

        Raises:
          ImportError: it is one of ml_dtypes, which is not installed.
          AttributeError: the installed ml_dtypes lacks it.
        """
        import numpy as np

        if not self.in_ml_dtypes:
            return np.dtype(self.name)
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return found


ALL_DTYPES = (
    # name, kind, bits, MLIR's type, numbers (VHLO, TensorFlow, jax.export), safetensors, ml_dtypes?
    # Messages list them in this order.
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
    """A kind of typed PRNG keys.

    Attributes:
      name: as JAX prints it.
      implementation: what jax.random calls it.
      words: of uint32, that a key is made of. That of a seed has 0 and the seed in turn.
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
"""The kinds of typed PRNG keys by the names of their dtypes; programs may register others."""

_BY_NAME = {row.name: row for row in ALL_DTYPES}

ELEMENT_TYPES: Mapping[str, str] = MappingProxyType(
    {row.name: row.element_type for row in ALL_DTYPES if row.element_type is not None}
)
"""MLIR's element types by the names of dtypes."""

OF_ELEMENT_TYPES: Mapping[str, str] = MappingProxyType({v: k for k, v in ELEMENT_TYPES.items()})
"""The names of dtypes by MLIR's element types."""

WIDENED: Mapping[str, str] = MappingProxyType(
    {row.name: row.op_dtype for row in ALL_DTYPES if row.op_dtype != row.name}
)
"""The integers of fewer than 8 bits, and in which dtype they cross XlaCallModule."""

NEED_X64 = frozenset(
    row.name for row in ALL_DTYPES if row.element_type is not None and row.without_x64 != row.name
)
"""The dtypes that JAX has only where jax_enable_x64 is set."""

NARROW_FLOATS = frozenset(row.name for row in ALL_DTYPES if row.kind == "float" and row.bits <= 8)
"""Floats for which TensorFlow has neither gradients nor most of its kernels."""


def find_dtype(name: str) -> DType | None:
    """Returns the dtype of a name; None for "float0", PRNG keys and what is no dtype."""
    return _BY_NAME.get(name)


def kind_of(name: str) -> Kind | None:
    """Returns the kind of numbers of a dtype; None for what is no dtype of numbers.

    >>> kind_of("bfloat16"), kind_of("float0")
    ('float', None)
    """
    row = _BY_NAME.get(name)
    return None if row is None else row.kind


def is_differentiable(name: str) -> bool:
    """Tells whether a dtype is one of numbers whose cotangents are of it; else they are float0."""
    row = find_dtype(name)
    return row is not None and row.is_differentiable


def is_integer(name: str) -> bool:
    """Tells whether a dtype has integers, which bool is not."""
    row = find_dtype(name)
    return row is not None and row.is_integer


def dtype_holds(name: str, number: Any) -> bool:
    """Tells whether a dtype holds a number, as flags do 0 and 1; floats round it, or have infinity.

    >>> dtype_holds("int4", 7), dtype_holds("int4", 8), dtype_holds("bool", 1)
    (True, False, True)
    """
    import numpy as np

    array = np.asarray(number)
    row = find_dtype(name)
    if row is None or array.shape != () or array.dtype.kind not in "biufc":
        return False
    if row.kind == "bool":
        return bool(array == 0 or array == 1)
    if row.is_integer:
        least = -(2 ** (row.bits - 1)) if row.kind == "int" else 0
        return array.dtype.kind in "biu" and 0 <= int(array) - least < 2**row.bits
    return row.kind == "complex" or array.dtype.kind != "c"
