"""Leaves as they are stored: known by shape and dtype, and read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.weights._sources import ByteSource, Span


@dataclass(frozen=True)
class LeafInfo:
    """Shape, dtype and size of a leaf, known before it is read.

    Attributes:
      shape: of an array; () for a NumPy scalar; None for any other value.
      dtype: of an array or a NumPy scalar; None for any other value.
      nbytes: the size of the elements in the file; 0 for any other value.

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
    """An array in a file.

    Attributes:
      start: the byte where its elements begin; they are row-major.
      is_scalar: whether it stands for a NumPy scalar.
      chunks: where its elements are, if they are in chunks; then reading makes a copy.
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
            return source.joined(self.chunks, self.dtype, self.shape)
        array = source.array(self.start, self.dtype, self.shape)
        return array[()] if self.is_scalar else array


@dataclass(slots=True)
class StoredValue:
    """A leaf that is no array, and was read with the structure."""

    value: Any

    @property
    def info(self) -> LeafInfo:
        return LeafInfo()

    def read(self, source: ByteSource) -> Any:
        return self.value


StoredLeaf: TypeAlias = StoredArray | StoredValue


class StoredContents(Protocol):
    """A reader of one format, which has checked the structure of a source as a whole.

    Attributes:
      format_name: "msgpack" or "safetensors".
      metadata: the texts that the file has beside the weights.
    """

    format_name: str
    metadata: Mapping[str, str]

    def leaves(self) -> Mapping[str, StoredLeaf]:
        """Returns each leaf by its path, in the order of the file."""

    def tree(self) -> Any:
        """Reads the whole tree."""
