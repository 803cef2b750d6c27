"""Types of arrays: abstract values, shardings, captured arrays, ports, and accepted dtypes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import WIDENED, dtype_holds, find_dtype, is_differentiable
from jax2tf_bridge._utils import array_type_text
from shape_poly import Dim, DimExpr, variables_of

AxisType: TypeAlias = Literal["auto", "explicit", "manual"]
"""Authority that shards a mesh axis: the compiler, the types of the values, or the function."""


SHARD_MAP_CALLS = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
"""Custom calls of jax.shard_map that convert between whole arrays and per-device parts."""


@dataclass(frozen=True)
class AbstractDevice:
    """The kind of device in a mesh.

    Attributes:
      kind: the hardware's name ("TPU v5 lite").
      platform: JAX's name of the platform ("tpu"); "" if unknown.
      num_cores: the number of cores per device, if relevant.
    """

    kind: str
    platform: str = ""
    num_cores: int | None = None


@dataclass(frozen=True)
class AbstractMesh:
    """A mesh of named axes, without concrete devices.

    Attributes:
      axis_names, axis_sizes, axis_types: one entry per axis.
      device: the kind of device, if known.

    >>> print(AbstractMesh(("x", "y"), (2, 4), ("auto", "auto")))
    (x=2, y=4)
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[AxisType, ...]
    device: AbstractDevice | None = None

    def __str__(self) -> str:
        pairs = zip(self.axis_names, self.axis_sizes, strict=True)
        return f"({', '.join(f'{name}={size}' for name, size in pairs)})"


@dataclass(frozen=True)
class Sharding:
    """The sharding of an array over a mesh, or a serialized XLA sharding.

    Attributes:
      mesh: the mesh; None if only `hlo` is known.
      partitions: for each dimension the mesh axes that shard it; () for none.
      unreduced, reduced: axes over which a sum is pending, or has been done.
      memory_kind: the memory on the device; None for the default.
      hlo: a serialized xla.OpSharding, which JAX exported until March 2026; else b"".

    >>> print(Sharding(AbstractMesh(("x",), (2,), ("auto",)), (("x",), ())))
    P('x', None) over (x=2)
    """

    mesh: AbstractMesh | None = None
    partitions: tuple[tuple[str, ...], ...] = ()
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    memory_kind: str | None = None
    hlo: bytes = b""

    def find_unknown_axes(self) -> list[str]:
        """Returns the axes that the mesh lacks, sorted."""
        axes = {*self.unreduced, *self.reduced, *itertools.chain(*self.partitions)}
        return sorted(axes.difference(self.mesh.axis_names if self.mesh else ()))

    def __str__(self) -> str:
        if self.mesh is None:
            return f"an XLA sharding of {len(self.hlo)} bytes"
        dimensions = [_format_partition(axes) for axes in self.partitions]
        for name in ("unreduced", "reduced"):
            axes = getattr(self, name)
            dimensions += [f"{name}={{{', '.join(map(repr, axes))}}}"] * bool(axes)
        return f"P({', '.join(dimensions)}) over {self.mesh}"


def _format_partition(axes: tuple[str, ...]) -> str:
    if not axes:
        return "None"
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


# The dtypes that modules take and return in place of others.
_MODULE_DTYPES = {"float0": "bool", **WIDENED}

MemorySpace: TypeAlias = Literal["device", "host", "any"]


@dataclass(frozen=True)
class Aval:
    """An abstract value: the shape and dtype of an array.

    Attributes:
      shape: sizes, or expressions over dimension variables.
      dtype: JAX's name of the dtype ("float32", "bfloat16", "int4", "float0", "key<fry>").
      element_shape: for PRNG keys, the shape of the uint32 words of one key.
      memory_space: the memory that holds the array.
      widened: whether bfloat16 is passed as float32, for targets without bfloat16.
      weak_type: whether JAX promotes it like a Python number. Only set in the process that
        exported the function, because files do not store it.

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
        """Returns whether it is a typed PRNG key; keys are passed as uint32 words."""
        return self.dtype.startswith("key<")

    @property
    def op_dtype(self) -> str:
        """Its dtype as an argument or result of the XlaCallModule op."""
        dtype = self.module_dtype
        return "float32" if self.widened and dtype == "bfloat16" else dtype

    @property
    def module_dtype(self) -> str:
        """Its dtype as an argument or result of the module."""
        return "uint32" if self.is_key else _MODULE_DTYPES.get(self.dtype, self.dtype)

    @property
    def op_shape(self) -> tuple[Dim, ...]:
        """Its shape as an argument or result of the XlaCallModule op."""
        return self.shape + self.element_shape

    @property
    def known_op_shape(self) -> tuple[int, ...]:
        """Its `op_shape` without open sizes. Constants and most weights have none."""
        return tuple(size for size in self.op_shape if isinstance(size, int))

    @property
    def ndim(self) -> int:
        """Its number of dimensions."""
        return len(self.shape)

    @property
    def is_differentiable(self) -> bool:
        """Returns whether its cotangent has the same dtype, instead of float0."""
        return is_differentiable(self.dtype)

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


@dataclass(frozen=True)
class LiftedConstant:
    """A captured array that the module takes as an argument.

    Attributes:
      aval: its shape and dtype.
      digest: the SHA-256 of `data` in hexadecimal. Arrays with equal digest and aval are shared.
      name: a name for people.
      data: the elements in C order, little-endian, with one byte per bool; None if they are
        stored elsewhere. A memoryview is allowed only if nobody changes or pickles it.
    """

    aval: Aval
    digest: str
    name: str = ""
    data: bytes | memoryview | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Port:
    """A flat argument or result of a portable function.

    Attributes:
      path: the Python expression for it, such as "x" or "params['w']"; "" for a single result.
      aval: its shape and dtype.
      sharding: its sharding over devices; None if it is not sharded.
    """

    path: str
    aval: Aval
    sharding: Sharding | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.aval}"


_MAX_BYTES = 2**63 - 1


def array_size(aval: Aval) -> int | str:
    """Returns the size of an array in bytes, or the reason why it has none as a clause.

    >>> array_size(Aval((2, 3), "bfloat16")), array_size(Aval((3,), "int4"))
    (12, 'its dtype is int4, whose elements have no known size in bytes')
    """
    row = find_dtype(aval.dtype)
    size = None if row is None else row.itemsize
    if size is None:
        return f"its dtype is {aval.dtype:.40}, whose elements have no known size in bytes"
    sizes = [int(dim) for dim in aval.shape if not isinstance(dim, DimExpr) and dim >= 0]
    if len(sizes) != len(aval.shape):
        return "its sizes are not all known"
    if 0 in sizes:
        return 0
    for dim in sizes:
        size *= dim
        # Checked in every step, because a product of a million large numbers takes hours.
        if size > _MAX_BYTES:
            return f"it has more than {_MAX_BYTES} bytes"
    return size


MAX_REQUEST_BYTES = 2**31 - 1
"""Maximum size of a request in bytes: TensorFlow's protocol buffers cannot be larger."""


def count_bytes(avals: Iterable[Aval], sizes: Mapping[str, int]) -> int:
    """Counts the bytes of arrays at some sizes; other variables are 1, and texts have no bytes.

    >>> count_bytes([Aval((DimExpr.variable("b"), 3), "float32")], {"b": 2})
    24
    """
    total = 0
    for aval in avals:
        row = find_dtype(aval.op_dtype)
        values = {variable: sizes.get(variable, 1) for variable in variables_in(aval)}
        shape = (d.evaluate(values) if isinstance(d, DimExpr) else d for d in aval.op_shape)
        total += math.prod(shape) * ((row and row.itemsize) or 0)
    return total


def variables_in(aval: Aval) -> frozenset[str]:
    """Returns the variables in a shape."""
    return frozenset[str]().union(*map(variables_of, aval.op_shape))


def is_accepted_as(leaf: Any, dtype: str, *, accepts_bfloat16: bool = False) -> bool:
    """Returns whether an array or number is implicitly accepted as one of a dtype.

    The rules are those of JAX and `convert`: 64-bit values are accepted as 32-bit ones, and 8-bit
    dtypes hold the values that JAX stores in fewer bits.

    Args:
      leaf: the array or number.
      dtype: the dtype.
      accepts_bfloat16: whether float32 also holds bfloat16, as in models for converters.
    """
    actual = dtype_name(leaf)
    if actual is None:
        return can_hold_number(leaf, dtype)
    if accepts_bfloat16 and (actual, dtype) == ("bfloat16", "float32"):
        return True
    return can_become(actual, dtype) or WIDENED.get(actual) == dtype


def dtype_name(leaf: Any) -> str | None:
    """Returns JAX's name of the dtype; None for a Python number, which has no dtype."""
    if isinstance(leaf, (bool, int, float, complex)):
        return None
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return str(getattr(dtype, "name", dtype))


def can_hold_number(number: complex, expected: str) -> bool:
    """Returns whether a dtype can represent a Python number, up to rounding; bool holds bools."""
    return dtype_holds(expected, number) and (expected != "bool" or isinstance(number, bool))


def can_become(actual: str, expected: str) -> bool:
    """Returns whether JAX implicitly accepts a dtype as another: 64 bits as 32 bits."""
    row = find_dtype(actual)
    return actual == expected or (row is not None and row.without_x64 == expected)
