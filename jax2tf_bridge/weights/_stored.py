"""Stored leaves: shapes and dtypes, and values on demand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import MissingDependencyError
from jax2tf_bridge.weights._sources import ByteSource, Span


@dataclass(frozen=True)
class LeafInfo:
    """Shape, dtype and size of a leaf, known before it is read.

    Attributes:
      shape: the shape of an array; () for a NumPy scalar; None for other values.
      dtype: the dtype of an array or NumPy scalar; None for other values.
      nbytes: the size of the elements in the file in bytes; 0 for other values.

    >>> info = LeafInfo((3, 4), np.dtype("float32"), 48)
    >>> str(info), str(LeafInfo())
    ('float32[3,4], 48 bytes', 'value')
    """

    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    nbytes: int = 0

    def __str__(self) -> str:
        if self.shape is None or self.dtype is None:
            return "value"
        return f"{array_type_text(self.dtype.name, self.shape)}, {self.nbytes} bytes"


@dataclass(slots=True)
class StoredArray:
    """Array in a file.

    Attributes:
      start: the offset of the elements, which are in row-major order.
      is_scalar: whether it is a NumPy scalar.
      chunks: the spans of the elements if they are in chunks; reading then makes a copy.
    """

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_scalar: bool = False
    chunks: tuple[Span, ...] = ()

    @property
    def info(self) -> LeafInfo:
        return LeafInfo(self.shape, self.dtype, prod(self.shape) * self.dtype.itemsize)

    def read(self, source: ByteSource) -> Any:
        """Returns the array, or the scalar."""
        if self.chunks:
            return source.read_spans(self.chunks, self.dtype, self.shape)
        array = source.read_array(self.start, self.dtype, self.shape)
        return array[()] if self.is_scalar else array


@dataclass(slots=True)
class StoredValue:
    """Leaf that is not an array; its value was read with the structure."""

    value: Any

    @property
    def info(self) -> LeafInfo:
        return LeafInfo()

    def read(self, source: ByteSource) -> Any:
        return self.value


StoredLeaf: TypeAlias = StoredArray | StoredValue


class StoredContents(Protocol):
    """Contents of a source in one format, with a checked structure.

    Attributes:
      format_name: "msgpack" or "safetensors".
      metadata: the metadata texts of the file.
    """

    format_name: str
    metadata: Mapping[str, str]

    def leaves(self) -> Mapping[str, StoredLeaf]:
        """Maps paths to leaves, in the order of the file."""

    def tree(self) -> Any:
        """Reads the whole tree."""


MAX_RANK = 64 if int(np.__version__.split(".")[0]) >= 2 else 32
"""Maximum rank of a NumPy array."""

MAX_BYTES = 2**63 - 1
"""Maximum size of a NumPy array in bytes, without its dimensions of size 0."""

# Names of extended floats, which NumPy has on some machines.
_EXTENDED = frozenset({"float96", "float128", "complex192", "complex256"})
_DATES = re.compile(
    r"(datetime64|timedelta64)(\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?", re.ASCII
)


def read_dtype(name: str, file: str | None) -> np.dtype[Any] | str:
    """Returns the dtype with this name, or a text with the expected kind of name.

    Args:
      name: the name as in `np.dtype.name`; other spellings are not accepted.
      file: the file with the name, for messages.

    Raises:
      MissingDependencyError: the dtype needs ml_dtypes, which is not installed.

    >>> read_dtype("float32", None), read_dtype("datetime64[ns]", None)
    (dtype('float32'), dtype('<M8[ns]'))
    >>> read_dtype("str96", None)
    'the name of a dtype of numbers, such as float32 or bfloat16'
    """
    if name in _EXTENDED or _DATES.fullmatch(name):
        try:
            return np.dtype(name)
        except TypeError:
            return "a dtype that NumPy has on this machine"
    row = find_dtype(name)
    if row is None:
        return "the name of a dtype of numbers, such as float32 or bfloat16"
    try:
        return row.numpy()
    except ImportError:
        needed_for = f"reading {name} from {file or 'bytes'}"
        raise MissingDependencyError("ml_dtypes", "jax", needed_for) from None
    except AttributeError:
        import ml_dtypes

        version = ml_dtypes.__version__
        return f"a dtype of ml_dtypes {version}, which is installed here (a later one may have it)"


def fits_numpy(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Returns whether an array of this shape is within NumPy's limits, apart from the rank.

    >>> fits_numpy((0, 2**40), np.dtype("int8")), fits_numpy((0, 2**64), np.dtype("int8"))
    (True, False)
    """
    return prod(filter(None, shape)) * dtype.itemsize <= MAX_BYTES
