"""What a tree is in msgpack, worked out as a whole before the first byte of it is written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgpack
import numpy as np

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.weights._array_bytes import byte_blocks, host_array, is_jax_array
from jax2tf_bridge.weights.msgpack import _format, _refusals

Block: TypeAlias = bytes | memoryview

_BLOCK = 2**26
"""Bytes that are handed out at once, so that a progress bar moves within a large array."""

_PLAIN = frozenset({type(None), bool, int, float, str, msgpack.Timestamp})
_BINARY = frozenset({bytes, bytearray, memoryview})


@dataclass(frozen=True)
class _Leaf:
    """An array, or a binary, and what comes before each chunk of it: header and size."""

    value: Any
    place: str
    chunks: tuple[tuple[bytes, int], ...]

    def blocks(self) -> Iterator[Block]:
        rest = self._elements()
        left = memoryview(b"")
        for header, size in self.chunks:
            yield header
            while size:
                if not left:
                    left = next(rest, left)
                if not left:
                    raise SerializationError(_refusals.became_smaller(self.place))
                block = left[: min(size, _BLOCK)]
                yield block
                size -= len(block)
                left = left[len(block) :]

    def _elements(self) -> Iterator[memoryview]:
        if type(self.value) in _BINARY:
            yield memoryview(self.value).cast("B")
            return
        try:
            array = host_array(self.value)
        except Exception as e:
            # What went wrong in the computation of a JAX array comes out here.
            raise SerializationError(_refusals.not_copied(self.place, e)) from e
        yield from byte_blocks(array)


@dataclass(frozen=True)
class Plan:
    """The msgpack bytes of a tree, of which the arrays are still where they were.

    Attributes:
      size: in bytes.
    """

    size: int
    _leaves: tuple[_Leaf, ...]
    _end: bytes

    def blocks(self) -> Iterator[Block]:
        """All bytes in order; nothing of an array is copied that lies in memory as in the file.

        Raises:
          SerializationError: a JAX array has no value, since its computation failed; or something
            has fewer bytes than when this was planned.
        """
        for leaf in self._leaves:
            yield from leaf.blocks()
        yield self._end


def plan(tree: object, *, sort_keys: bool, max_chunk_size: int = _format.MAX_CHUNK_SIZE) -> Plan:
    """How a tree of plain dicts and lists is written; the tree is only looked at.

    Args:
      tree: of dicts, lists, what msgpack has, complex, NumPy's scalars, and arrays.
      sort_keys: whether the items of dicts are written in the order of their keys, or in their
        own.
      max_chunk_size: in bytes; larger arrays that only dicts lie around are written in chunks.

    Raises:
      SerializationError: the format cannot hold something; the path of it is in the text.
    """
    return _Planner(sort_keys, max_chunk_size).plan(tree)


@dataclass(frozen=True)
class _Entered:
    """A dict or a list of which the items are being written, and what remains of them."""

    container: dict[Any, Any] | list[Any]
    items: Iterator[tuple[Any, Any]]
    only_dicts: bool
    """Whether it and all around it are dicts: readers join chunks nowhere else."""


@dataclass
class _Planner:
    sort_keys: bool
    max_chunk_size: int
    packer: Any = field(default_factory=lambda: msgpack.Packer(strict_types=True))
    leaves: list[_Leaf] = field(default_factory=list)
    size_of_leaves: int = 0
    pending: bytearray = field(default_factory=bytearray)
    entered: list[_Entered] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    """Of what is being written; one for each that is entered, or one less."""
    inside: set[int] = field(default_factory=set)
    """The ids of what is entered."""
    dtypes: dict[np.dtype[Any], str | None] = field(default_factory=dict)

    def plan(self, tree: object) -> Plan:
        # A loop, since how deep functions may be called depends on who called this one.
        self.value(tree, only_dicts=True)
        while self.entered:
            top = self.entered[-1]
            item = next(top.items, None)
            if item is None:
                self.leave(top)
                continue
            key, value = item
            if isinstance(top.container, dict):
                self.key(key)
            self.keys.append(key)
            self.value(value, only_dicts=top.only_dicts)
            if self.entered[-1] is top:
                self.keys.pop()
        end = bytes(self.pending)
        return Plan(self.size_of_leaves + len(end), tuple(self.leaves), end)

    def leave(self, top: _Entered) -> None:
        self.entered.pop()
        self.inside.discard(id(top.container))
        if self.entered:
            self.keys.pop()

    def value(self, value: Any, *, only_dicts: bool) -> None:
        kind = type(value)
        if kind is dict or kind is list:
            self.enter(value, only_dicts=only_dicts)
        elif isinstance(value, np.ndarray) or is_jax_array(value):
            self.array(value, chunked=only_dicts)
        elif kind in _BINARY:
            self.binary(value)
        else:
            self.pending += self.scalar(value, self.place)

    def key(self, key: Any) -> None:
        if isinstance(key, str) and key == _format.CHUNKED_KEY:
            raise SerializationError(_refusals.reserved_key(self.place()))
        if type(key) in _BINARY:
            self.pending += self.packer.pack(key)
            return
        self.pending += self.scalar(key, lambda: _refusals.key_of(key, self.place()))

    def scalar(self, value: Any, place: Any) -> bytes:
        if type(value) in _PLAIN:
            try:
                packed: bytes = self.packer.pack(value)
            except (ValueError, OverflowError) as e:
                raise SerializationError(_refusals.unpackable(place(), value, e)) from e
            return packed
        if isinstance(value, np.generic):
            array = np.asarray(value)
            prelude = self.prelude(array, (), array.nbytes, place)
            content = b"".join([prelude, *byte_blocks(array)])
            return _extension(_format.NUMPY_SCALAR, len(content)) + content
        if isinstance(value, complex):
            content = b"\x92\xcb%b\xcb%b" % (
                struct.pack(">d", value.real),
                struct.pack(">d", value.imag),
            )
            return _extension(_format.COMPLEX, len(content)) + content
        if type(value) is msgpack.ExtType and value.code not in _format.EXTENSIONS:
            return bytes(self.packer.pack(value))
        raise SerializationError(_refusals.of_type(place(), value))

    def enter(self, value: dict[Any, Any] | list[Any], *, only_dicts: bool) -> None:
        if id(value) in self.inside:
            raise SerializationError(_refusals.cycle(self.place()))
        self.check_depth(1)
        items: Any
        if isinstance(value, dict):
            items = list(value.items())
            if self.sort_keys:
                try:
                    items.sort(key=lambda item: item[0])
                except TypeError as e:
                    raise SerializationError(_refusals.unordered_keys(self.place(), value)) from e
            self.pending += self.packer.pack_map_header(len(items))
        else:
            items = list(enumerate(value))
            self.pending += self.packer.pack_array_header(len(items))
        self.inside.add(id(value))
        self.entered.append(_Entered(value, iter(items), only_dicts and isinstance(value, dict)))

    def check_depth(self, more: int) -> None:
        if len(self.entered) + more > _format.MAX_DEPTH:
            raise SerializationError(_refusals.too_deep(self.place()))

    def binary(self, value: bytes | bytearray | memoryview) -> None:
        view = memoryview(value)
        if not view.c_contiguous:
            raise SerializationError(_refusals.scattered(self.place()))
        if view.nbytes > _format.MAX_ITEM_SIZE:
            raise SerializationError(_refusals.too_large(self.place(), view.nbytes))
        self.pending += _binary_header(view.nbytes)
        self.leaf(value, [(self.taken(), view.nbytes)])

    def array(self, value: Any, *, chunked: bool) -> None:
        problem = _refusals.of_array(self.place, value)
        if problem is not None:
            raise SerializationError(problem)
        shape, itemsize = value.shape, value.dtype.itemsize
        size = value.size * itemsize
        if not chunked or size <= self.max_chunk_size:
            self.array_headers(value, shape, size)
            self.leaf(value, [(self.taken(), size)])
            return
        self.check_depth(2)
        self.pending += self.packer.pack_map_header(3)
        self.pack(_format.CHUNKED_KEY, True, _format.SHAPE_KEY)
        self.pack({str(i): dim for i, dim in enumerate(shape)})
        self.pack(_format.CHUNKS_KEY)
        count = max(1, self.max_chunk_size // itemsize)
        starts = range(0, value.size, count)
        self.pending += self.packer.pack_map_header(len(starts))
        chunks = []
        for i, start in enumerate(starts):
            self.pack(str(i))
            elements = min(count, value.size - start)
            self.array_headers(value, (elements,), elements * itemsize)
            chunks.append((self.taken(), elements * itemsize))
        self.leaf(value, chunks)

    def array_headers(self, array: Any, shape: tuple[int, ...], size: int) -> None:
        prelude = self.prelude(array, shape, size, self.place)
        if len(prelude) + size > _format.MAX_ITEM_SIZE:
            raise SerializationError(_refusals.too_large_array(self.place(), size))
        self.pending += _extension(_format.ARRAY, len(prelude) + size)
        self.pending += prelude

    def prelude(self, array: Any, shape: tuple[int, ...], size: int, place: Any) -> bytes:
        """What comes before the elements in an extension's content."""
        name = self.dtype_name(array.dtype)
        if name is None:
            raise SerializationError(_refusals.dtype(place(), array))
        parts = [
            self.packer.pack_array_header(3),
            self.packer.pack(list(shape)),
            self.packer.pack(name),
            _binary_header(size),
        ]
        return b"".join(parts)

    def dtype_name(self, dtype: np.dtype[Any]) -> str | None:
        """What readers know it as; None if they cannot."""
        if dtype not in self.dtypes:
            found = _format.dtype_named(dtype.name)
            known = found is not None and found == dtype.newbyteorder("=")
            self.dtypes[dtype] = dtype.name if known else None
        return self.dtypes[dtype]

    def pack(self, *values: object) -> None:
        for value in values:
            self.pending += self.packer.pack(value)

    def taken(self) -> bytes:
        """The bytes since the last array."""
        found = bytes(self.pending)
        self.pending.clear()
        return found

    def leaf(self, value: Any, chunks: list[tuple[bytes, int]]) -> None:
        self.leaves.append(_Leaf(value, self.place(), tuple(chunks)))
        self.size_of_leaves += sum(len(header) + size for header, size in chunks)

    def place(self) -> str:
        return _refusals.place(self.keys)


def _binary_header(size: int) -> bytes:
    if size < 2**8:
        return struct.pack(">BB", 0xC4, size)
    if size < 2**16:
        return struct.pack(">BH", 0xC5, size)
    return struct.pack(">BI", 0xC6, size)


_FIXED_SIZES = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def _extension(code: int, size: int) -> bytes:
    """The header of an extension."""
    if size in _FIXED_SIZES:
        return struct.pack(">Bb", _FIXED_SIZES[size], code)
    if size < 2**8:
        return struct.pack(">BBb", 0xC7, size, code)
    if size < 2**16:
        return struct.pack(">BHb", 0xC8, size, code)
    return struct.pack(">BIb", 0xC9, size, code)
