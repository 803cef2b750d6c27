"""A file of weights, opened: its leaves by path, each read when it is asked for.

A reader of a format gives a `Contents`; everything else is the same for all formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.weights._sources import MappedSource, Source, Span

_MOST_LISTED = 100
# Comparing more words takes longer than anybody waits for a message.
_MOST_COMPARED = 4096


@dataclass(frozen=True)
class LeafInfo:
    """What is known of a leaf before it is read.

    Attributes:
      shape: of an array; () of a NumPy scalar; None of any other value.
      dtype: of an array or a NumPy scalar; None of any other value.
      nbytes: how many bytes the numbers take in the file; 0 of any other value.
    """

    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    nbytes: int = 0

    def __str__(self) -> str:
        """As "float32[3,4], 48 bytes"; "value" for what is no array."""
        if self.shape is None or self.dtype is None:
            return "value"
        return f"{array_type_text(self.dtype.name, self.shape)}, {self.nbytes} bytes"


@dataclass(slots=True)
class StoredArray:
    """An array in a file, in one piece.

    Attributes:
      start: the byte where its numbers begin; they are row-major.
      is_scalar: whether it stands for a NumPy scalar.
    """

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_scalar: bool = False

    @property
    def info(self) -> LeafInfo:
        """What is known of it."""
        return LeafInfo(self.shape, self.dtype, prod(self.shape) * self.dtype.itemsize)

    def read(self, source: Source) -> Any:
        """The array, or the scalar."""
        array = source.array(self.start, self.dtype, self.shape)
        return array[()] if self.is_scalar else array


@dataclass(slots=True)
class StoredChunks:
    """An array in a file, in several pieces."""

    spans: tuple[Span, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def info(self) -> LeafInfo:
        """What is known of it."""
        return LeafInfo(self.shape, self.dtype, prod(self.shape) * self.dtype.itemsize)

    def read(self, source: Source) -> np.ndarray:
        """The array, which is a copy."""
        return source.joined(self.spans, self.dtype, self.shape)


@dataclass(slots=True)
class StoredValue:
    """A leaf that is no array: it was read with the structure."""

    value: Any

    @property
    def info(self) -> LeafInfo:
        """That it is no array."""
        return LeafInfo()

    def read(self, source: Source) -> Any:
        """The value."""
        return self.value


StoredLeaf: TypeAlias = StoredArray | StoredChunks | StoredValue


class Contents(Protocol):
    """What the reader of a format makes of a source, whose structure it has checked as a whole.

    Attributes:
      format_name: "msgpack" or "safetensors".
      metadata: what the file says of itself, beside the weights.
    """

    format_name: str
    metadata: Mapping[str, str]

    def leaves(self) -> Mapping[str, StoredLeaf]:
        """Each leaf by its path, in the order of the file."""

    def tree(self) -> Any:
        """All of it, with arrays out of the source."""


class WeightsFile(Mapping[str, Any]):
    """An open file of weights: a mapping from paths as "params/dense/kernel" to leaves.

    `open_weights` makes it. Of the file only the structure has been read. A leaf is read when it
    is asked for: arrays are read-only views of the file, which the system reads when their numbers
    are used; an array that the file holds in chunks is a copy.

    If the file changes, the next access is a FileFormatError. A file that another one replaced is
    still the one that was opened. Arrays that were handed out can't be guarded: of a file that is
    rewritten in place they show the new numbers, and beyond the end of one that became shorter,
    the system ends the process (SIGBUS). So files are to be replaced, as `write_weights` does, or
    to be read with read_weights(path, mmap=False).

    Attributes:
      file: its name.
      format_name: "msgpack" or "safetensors".
      metadata: what a safetensors file says of itself; empty for msgpack.
    """

    def __init__(self, source: MappedSource, contents: Contents) -> None:
        """The `contents` of `source`, which this closes."""
        self.file = source.file
        self.format_name, self.metadata = contents.format_name, contents.metadata
        self._source, self._contents = source, contents
        self._leaves = contents.leaves()

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Arrays that were handed out stay, and with them what they map."""
        self._source.close()

    @property
    def info(self) -> dict[str, LeafInfo]:
        """Shape, dtype and size of every leaf, by its path; nothing is read for it."""
        return {path: leaf.info for path, leaf in self._leaves.items()}

    def tree(self) -> Any:
        """All of it as one tree of dicts and lists, as `read_weights` gives it.

        Raises:
          FileFormatError: the file changed.
          ValueError: it was closed.
        """
        self._source.check()
        return self._contents.tree()

    def __getitem__(self, path: str) -> Any:
        """The leaf at a path.

        Raises:
          KeyError: there is no leaf of this path.
          FileFormatError: the file changed.
          ValueError: it was closed.
        """
        leaf = self._leaves.get(path)
        if leaf is None:
            raise KeyError(self._missing(path))
        self._source.check()
        return leaf.read(self._source)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, path: object) -> bool:
        return path in self._leaves

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        state = ", closed" if self._source.closed else ""
        return f"<{self.format_name} file {self.file!r} of {len(self)} leaves{state}>"

    def __str__(self) -> str:
        """One line a leaf: its path, dtype and shape, and size."""
        listed = list(self.info.items())[:_MOST_LISTED]
        width = max((len(path) for path, _ in listed), default=0)
        lines = [repr(self)[1:-1]]
        lines += [f"  {path:{width}}  {info}" for path, info in listed]
        if len(self) > len(listed):
            lines.append(f"  and {len(self) - len(listed)} more")
        return "\n".join(lines)

    def _missing(self, path: object) -> str:
        below = [leaf for leaf in self._leaves if leaf.startswith(f"{path}/")]
        if below:
            inner = f"it holds {len(below)}, such as {below[0]!r}"
            return f"{path!r} is no leaf of {self.file}: {inner}"
        meant = did_you_mean(str(path), islice(self._leaves, _MOST_COMPARED), quoted=True)
        return f"no leaf {path!r} in {self.file}, which has {len(self)}{meant}"
