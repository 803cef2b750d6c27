"""Abstract values, and the arrays that a function captured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge.portable._dtypes import WIDENED, is_differentiable
from jax2tf_bridge.portable._sharding import Sharding
from shape_poly import Dim

_OP_DTYPES = {"float0": "bool", **WIDENED}

MemorySpace: TypeAlias = Literal["device", "host", "any"]


@dataclass(frozen=True)
class Aval:
    """An abstract value: what is known of an array before it exists.

    Attributes:
      shape: sizes, or expressions over dimension variables.
      dtype: by JAX's name ("float32", "bfloat16", "int4", "float0", "key<fry>").
      element_shape: for a PRNG key, the shape of the uint32 words that it is made of.
      memory_space: where the array lies.
      widened: whether bfloat16 crosses as float32, as targets want that have none.
      weak_type: whether JAX promotes it as a number of Python's; known in the process that exported
        it alone, since no file keeps it.

    >>> str(Aval((2, 3), "int4")), Aval((2, 3), "int4").op_dtype
    ('int4[2,3]', 'int8')
    """

    shape: tuple[Dim, ...]
    dtype: str
    element_shape: tuple[int, ...] = ()
    memory_space: MemorySpace = "device"
    widened: bool = field(default=False, kw_only=True)
    weak_type: bool = field(default=False, compare=False, repr=False)

    @property
    def is_key(self) -> bool:
        """Tells typed PRNG keys, which cross as words."""
        return self.dtype.startswith("key<")

    @property
    def op_dtype(self) -> str:
        """Its dtype as an argument or result of the XlaCallModule op."""
        found = self.module_dtype
        return "float32" if self.widened and found == "bfloat16" else found

    @property
    def module_dtype(self) -> str:
        """Its dtype as an argument or result of the module."""
        return "uint32" if self.is_key else _OP_DTYPES.get(self.dtype, self.dtype)

    @property
    def op_shape(self) -> tuple[Dim, ...]:
        """Its shape as an argument or result of the XlaCallModule op."""
        return self.shape + self.element_shape

    @property
    def ndim(self) -> int:
        """Its number of dimensions."""
        return len(self.shape)

    @property
    def is_differentiable(self) -> bool:
        """Tells dtypes whose cotangents are arrays of the same dtype, and not float0."""
        return is_differentiable(self.dtype)

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


@dataclass(frozen=True)
class LiftedConstant:
    """An array that a function captured, and that its module takes as an argument.

    Attributes:
      aval: its shape and dtype.
      digest: the SHA-256 of `data`, in hexadecimal: arrays of equal digest and aval are one.
      name: its name for people.
      data: its elements in C order, little-endian, a byte each for bool; None where they are kept
        elsewhere. A view only of what nobody changes or pickles.
    """

    aval: Aval
    digest: str
    name: str = ""
    data: bytes | memoryview | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Port:
    """A flat argument or result of a portable function.

    Attributes:
      path: how a user would write it: "x", "params['w']"; "" for a result that is alone.
      aval: its shape and dtype.
      sharding: how it is spread over devices; None for not at all.
    """

    path: str
    aval: Aval
    sharding: Sharding | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.aval}"
